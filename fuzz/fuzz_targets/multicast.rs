//! A member of groups, with frames of anyone.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| petrel_fuzz::multicast::check(data));
