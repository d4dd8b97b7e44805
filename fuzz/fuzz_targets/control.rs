//! The decoder of the control plane's messages, with bytes in pieces of any size.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| petrel_fuzz::control::check(data));
