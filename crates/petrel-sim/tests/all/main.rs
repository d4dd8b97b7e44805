//! The simulator: one program for all of its tests.

#![allow(non_snake_case, reason = "tests are named function__condition")]

mod chaos;
mod check;
mod common;
mod conformance;
mod control;
mod corpus;
mod devices;
mod fabric;
mod faults;
mod links;
mod nexus;
mod record;
mod regions;
mod sealed;
mod simulation;
mod source_ports;
mod stalls;
mod streams;
mod user_service;
