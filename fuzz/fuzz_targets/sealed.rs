//! Datagrams, honest and forged, to sealed links.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| petrel_transport::udp::fuzzing::sealed::check(data));
