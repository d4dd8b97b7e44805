//! Batches of streams, from a stranger.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| petrel::stream::fuzzing::check(data));
