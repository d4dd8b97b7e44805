//! Replays the inputs collected by the fuzz targets (`fuzz/corpus`) with the code of the targets, so that
//! every run of the tests reaches all states that the fuzzer has reached.

#[path = "../../../fuzz/src/congestion.rs"]
pub mod congestion;
#[path = "../../../fuzz/src/control.rs"]
pub mod control;
#[path = "../../../fuzz/src/cores/mod.rs"]
pub mod cores;
#[path = "../../../fuzz/src/frame.rs"]
pub mod frame;
#[path = "../../../fuzz/src/input.rs"]
pub mod input;
#[path = "../../../fuzz/src/multicast.rs"]
pub mod multicast;
#[path = "../../../fuzz/replay.rs"]
pub mod replay;

use replay::replay;

#[test]
fn frame__corpus() {
    replay("frame", 40, frame::check);
}

#[test]
fn control__corpus() {
    replay("control", 100, control::check);
}

#[test]
fn congestion__corpus() {
    replay("congestion", 40, congestion::check);
}

#[test]
fn multicast__corpus() {
    replay("multicast", 40, multicast::check);
}

#[test]
fn core__corpus() {
    replay("core", 100, cores::check);
}
