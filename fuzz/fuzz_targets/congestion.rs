//! The congestion controller of a session, with events that no network would cause.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| petrel_fuzz::congestion::check(data));
