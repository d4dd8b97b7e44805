//! Replays the inputs of the fuzz targets `table`, `metadata` and `postcard` (`fuzz/README.md`).

#![allow(
    unreachable_pub,
    reason = "the files are those of the fuzz targets, which other crates use"
)]

#[path = "../../../../fuzz/src/metadata.rs"]
mod metadata;
#[path = "../../../../fuzz/src/postcards.rs"]
mod postcards;
#[path = "../../../../fuzz/replay.rs"]
mod replay;
#[path = "../../../../fuzz/src/table.rs"]
mod table;

use proptest::collection::vec;
use proptest::prelude::*;
use replay::replay;

#[test]
fn table__corpus() {
    replay("table", 15, table::check);
}

#[test]
fn postcard__corpus() {
    replay("postcard", 15, postcards::check);
}

#[test]
fn metadata__corpus() {
    replay("metadata", 20, metadata::check);
}

proptest! {
    #[test]
    fn metadata__any_bytes(bytes in vec(prop_oneof![0..6u8, b'a'..b'd', any::<u8>()], 0..60)) {
        metadata::check(&bytes);
    }

    #[test]
    fn table__any_bytes(bytes in vec(prop_oneof![0..4u8, any::<u8>()], 0..200)) {
        table::check(&bytes);
    }
}
