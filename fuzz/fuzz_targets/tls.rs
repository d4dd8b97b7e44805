//! Bytes that no honest peer sends, to one end of a connection inside TLS.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| petrel_fuzz::tls::check(data));
