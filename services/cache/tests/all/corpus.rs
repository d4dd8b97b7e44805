//! Replays the inputs of the fuzz target `cache` (`fuzz/README.md`).

#![allow(
    unreachable_pub,
    reason = "the files are those of the fuzz targets, which other crates use"
)]

#[path = "../../../../fuzz/src/cache.rs"]
mod cache;
#[path = "../../../../fuzz/replay.rs"]
mod replay;

use replay::replay;

#[test]
fn cache__corpus() {
    replay("cache", 15, cache::check);
}
