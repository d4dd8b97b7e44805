//! Frames through the UDP sending plan and the receive buffers.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| petrel_transport::udp::fuzzing::check(data));
