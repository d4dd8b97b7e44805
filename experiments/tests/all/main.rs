//! The experiments and their command: one program for all tests.

#![allow(non_snake_case, reason = "tests are named function__condition")]

mod command;
mod common;
mod congestion;
mod fabric;
mod lossy;
mod measured;
mod paths;
mod queueing;
mod simulated;
