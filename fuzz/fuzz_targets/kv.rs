//! The messages, commands and images of the replicated store.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| petrel_fuzz::kv::check(data));
