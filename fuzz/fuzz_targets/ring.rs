//! Producer and consumer of a shared-memory ring whose shared words the input corrupts.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| petrel_fuzz::ring::check(data));
