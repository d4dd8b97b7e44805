//! Replays the inputs of the fuzz target `table` (`fuzz/README.md`).

#![allow(
    unreachable_pub,
    reason = "the files are those of the fuzz targets, which other crates use"
)]

#[path = "../../../../fuzz/replay.rs"]
mod replay;
#[path = "../../../../fuzz/src/table.rs"]
mod table;

use proptest::collection::vec;
use proptest::prelude::*;
use replay::replay;

#[test]
fn table__corpus() {
    replay("table", 10, table::check);
}

proptest! {
    #[test]
    fn table__any_bytes(bytes in vec(prop_oneof![0..4u8, any::<u8>()], 0..200)) {
        table::check(&bytes);
    }
}
