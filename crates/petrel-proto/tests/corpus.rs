//! Replays the inputs collected by the fuzz targets (`fuzz/corpus`) with the code of the targets, so that
//! every run of the tests reaches all states that the fuzzer has reached.

use std::path::{Path, PathBuf};

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

/// Passes every input of a target's corpus to `check`, and expects at least `count_min` inputs. The last
/// printed name is the input of a failing test.
fn replay(target: &str, count_min: usize, check: fn(&[u8])) {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../fuzz/corpus").join(target);
    let entries = std::fs::read_dir(&folder).unwrap();
    let mut paths: Vec<PathBuf> = entries.map(|entry| entry.unwrap().path()).collect();
    assert!(paths.len() >= count_min, "{} inputs in {}", paths.len(), folder.display());
    paths.sort();
    for path in paths {
        println!("{}", path.display());
        check(&std::fs::read(&path).unwrap());
    }
}

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
