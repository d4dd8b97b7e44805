//! A datagram and all of its frames.
#![no_main]

use petrel_fuzz::{bundle, frame};

libfuzzer_sys::fuzz_target!(|data: &[u8]| {
    bundle::check(data);
    frame::check(data);
    for inner in petrel_transport::bundle::frames(data).into_iter().flatten() {
        frame::check(inner);
    }
});
