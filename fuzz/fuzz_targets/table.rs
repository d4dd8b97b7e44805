//! A server's answer with its tables of methods.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| petrel_fuzz::table::check(data));
