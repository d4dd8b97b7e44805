//! Requests for the regions of a server.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| petrel::region::fuzzing::check(data));
