//! Tests of the command as a process, in one test program.

#![allow(non_snake_case, reason = "tests are named function__condition")]

mod bench;
mod cache;
mod calls;
mod command;
mod common;
mod crash;
mod credentials;
mod device_attacks;
mod device_calls;
mod device_faults;
mod devices;
mod dpdk;
mod index;
mod kv;
mod kv_chaos;
mod kv_files;
mod limits;
#[path = "../../../crates/petrel/tests/common/own_network.rs"]
mod own_network;
mod plain_words;
mod two_networks;
mod typed;
