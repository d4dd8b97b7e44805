//! A world of the simulator, whose settings, features and faults are the input.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| petrel_fuzz::worlds::check(data));
