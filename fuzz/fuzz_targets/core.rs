//! Two protocol cores that communicate over a medium, which the input controls.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| petrel_fuzz::cores::check(data));
