//! Replays the inputs that the fuzz targets have collected (`fuzz/corpus`), with the code of the
//! targets, so that what the fuzzer once reached stays reached in every run of the tests.

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

/// Gives each input of a target's corpus, of at least `count_min`, to `check`. A failing test
/// prints the input's name last.
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
