//! Bodies with metadata, and details of errors.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| petrel_fuzz::metadata::check(data));
