//! Received Ethernet frames through the parser of devices, beside a naive one.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| petrel_transport::device::ether::fuzzing::check(data));
