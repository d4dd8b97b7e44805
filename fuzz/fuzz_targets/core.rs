//! Two protocol cores that talk over a medium which the input directs.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| petrel_fuzz::cores::check(data));
