//! Replays the inputs of the fuzz target `tls` (`fuzz/README.md`).

#![allow(
    unreachable_pub,
    reason = "the files are those of the fuzz targets, which other crates use"
)]

#[path = "../../../../fuzz/src/input.rs"]
mod input;
#[path = "../../../../fuzz/replay.rs"]
mod replay;
#[path = "../../../../fuzz/src/tls.rs"]
mod tls;

use replay::replay;

#[test]
fn tls__corpus() {
    replay("tls", 20, tls::check);
}
