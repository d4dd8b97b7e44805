//! The store: one program for all tests.

#![allow(non_snake_case, reason = "tests are named function__condition")]

mod backup;
mod client;
mod cluster;
mod common;
mod corpus;
mod disk;
mod exactly_once;
mod leases;
mod messages;
mod store;
mod watch;
