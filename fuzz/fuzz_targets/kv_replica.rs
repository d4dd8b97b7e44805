//! What replicas of the store say to each other, and what their disks keep.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| petrel_kv::fuzzing::check(data));
