//! Replays the inputs of the fuzz target `index` (`fuzz/README.md`).

#![allow(
    unreachable_pub,
    reason = "the files are those of the fuzz targets, which other crates use"
)]

#[path = "../../../../fuzz/src/index.rs"]
mod index;
#[path = "../../../../fuzz/replay.rs"]
mod replay;

use proptest::collection::vec;
use proptest::prelude::*;
use replay::replay;

#[test]
fn index__corpus() {
    replay("index", 20, index::check);
}

proptest! {
    #[test]
    fn index__any_bytes(bytes in vec(prop_oneof![0..4u8, any::<u8>()], 0..200)) {
        index::check(&bytes);
    }
}
