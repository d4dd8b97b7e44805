//! Messages of postcard.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| petrel_fuzz::postcards::check(data));
