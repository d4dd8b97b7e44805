//! Tests of the library from outside, in a single program and process.

#![allow(non_snake_case, reason = "tests are named function__condition")]

#[macro_use]
extern crate petrel_planted;

mod addresses;
mod batch;
mod client;
#[path = "../common/mod.rs"]
mod common;
mod deadlines;
mod defaults;
mod drain;
mod driving;
mod ecn;
mod endpoint;
mod examples;
mod factors;
mod given_back;
mod group;
mod hostile;
mod in_place;
mod in_process;
mod interop;
mod largest;
mod local;
mod meeting;
mod memory;
mod multicast;
mod multicast_networks;
mod nexus;
mod over_devices;
mod panics;
mod paths;
mod policy;
mod prefetch;
mod reasons;
mod receive_into;
mod region;
mod region_by_card;
mod reverse;
mod server;
mod service;
mod service_client;
mod shared;
mod shm_hostile;
mod state;
mod stream;
mod streams;
mod third_medium;
mod turns;
mod verbs;
mod waiting;
mod workers;
mod worlds;
