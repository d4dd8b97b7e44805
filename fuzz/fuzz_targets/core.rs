//! Two protocol cores that communicate over a medium under the input's control.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| petrel_fuzz::cores::check(data));
