//! Replays the inputs of the fuzz target `kv` (`fuzz/README.md`).

#![allow(
    unreachable_pub,
    reason = "the files are those of the fuzz targets, which other crates use"
)]

#[path = "../../../../fuzz/src/input.rs"]
mod input;
#[path = "../../../../fuzz/src/kv.rs"]
mod kv;
#[path = "../../../../fuzz/replay.rs"]
mod replay;

use proptest::collection::vec;
use proptest::prelude::*;
use replay::replay;

#[test]
fn kv__corpus() {
    replay("kv", 40, kv::check);
}

proptest! {
    #[test]
    fn kv__any_bytes(bytes in vec(prop_oneof![0..4u8, any::<u8>()], 0..200)) {
        kv::check(&bytes);
    }
}
