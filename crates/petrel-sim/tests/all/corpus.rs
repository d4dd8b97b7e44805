//! Replays the inputs of the fuzz target `world` (`fuzz/README.md`): the smallest set found that reaches what thousands of random
//! worlds reach.

#![allow(
    unreachable_pub,
    reason = "the files are those of the fuzz targets, which other crates use"
)]

#[path = "../../../../fuzz/replay.rs"]
mod replay;
#[path = "../../../../fuzz/src/worlds.rs"]
mod worlds;

use replay::replay;

#[test]
fn world__corpus() {
    replay("world", 100, worlds::check);
}
