//! The transports: a single program for all tests that can share a process.

#![allow(non_snake_case, reason = "tests are named function__condition")]

#[macro_use]
extern crate petrel_planted;

mod defaults;
mod shm_bells;
mod shm_conformance;
mod shm_endpoint;
mod shm_segment;
mod shm_vectors;
