//! The messages between replicas of the store, and the records on their disks.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| petrel_kv::fuzzing::check(data));
