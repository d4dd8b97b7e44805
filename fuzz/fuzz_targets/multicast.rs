//! A member of multicast groups, with frames from any sender.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| petrel_fuzz::multicast::check(data));
