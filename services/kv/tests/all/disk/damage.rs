//! Damage: opening fails, and never returns a shorter log.

use std::fs;
use std::path::Path;

use petrel_kv::disk::{DiskError, DiskLog, DiskOptions};

use super::model::{LogModel, NODE, Step, copy, files, quick_directory};

/// Writes a log of several segments, and a checkpoint.
fn write_log(path: &Path) {
    let mut model = LogModel::begin(path, 600);
    for round in 0..4 {
        model.take(&Step::Append { back: 0, count: 3, bytes: 60 });
        model.take(&Step::Vote);
        model.take(&Step::Commit(2));
        model.wait();
        if round == 1 {
            model.take(&Step::Checkpoint);
        }
    }
}

fn open(path: &Path) -> Result<(), DiskError> {
    DiskLog::open(path, &DiskOptions::of_node(NODE)).map(drop)
}

#[test]
fn open__with_any_wrong_byte_is_an_error() {
    let dir = quick_directory();
    let [whole, damaged] = ["whole", "damaged"].map(|name| dir.path().join(name));
    write_log(&whole);
    open(&whole).unwrap();
    assert!(files(&whole).len() >= 5, "segments, checkpoint and mark");
    for file in files(&whole) {
        let name = file.strip_prefix(&whole).unwrap();
        let content = fs::read(&file).unwrap();
        for at in 0..content.len() {
            let mut content = content.clone();
            content[at] ^= 1 << (at % 8);
            copy(&whole, &damaged);
            fs::write(damaged.join(name), &content).unwrap();
            let error = open(&damaged).expect_err(&format!("{name:?} is wrong at {at}"));
            let fits = matches!(
                error,
                DiskError::Damaged { .. } | DiskError::Format { .. } | DiskError::Node { .. }
            );
            assert!(fits, "{name:?} is wrong at {at}: {error}");
            let after = fs::read(damaged.join(name)).unwrap();
            assert_eq!(after, content, "{name:?} was changed when it was opened");
        }
    }
}

#[test]
fn open__without_one_of_the_files_is_an_error() {
    let dir = quick_directory();
    let [whole, damaged] = ["whole", "damaged"].map(|name| dir.path().join(name));
    write_log(&whole);
    for file in files(&whole) {
        let name = file.strip_prefix(&whole).unwrap();
        copy(&whole, &damaged);
        fs::remove_file(damaged.join(name)).unwrap();
        let error = open(&damaged).expect_err(&format!("{name:?} is missing"));
        assert!(matches!(error, DiskError::Damaged { .. }), "{name:?} is missing: {error}");
        fs::remove_dir_all(&damaged).unwrap();
    }
}

#[test]
fn open__with_a_cut_file_after_an_orderly_end_is_an_error() {
    let dir = quick_directory();
    let [whole, damaged] = ["whole", "damaged"].map(|name| dir.path().join(name));
    write_log(&whole);
    for file in files(&whole) {
        let name = file.strip_prefix(&whole).unwrap();
        let content = fs::read(&file).unwrap();
        for length in 0..content.len() {
            copy(&whole, &damaged);
            fs::write(damaged.join(name), &content[..length]).unwrap();
            let error = open(&damaged).expect_err(&format!("{name:?} is cut at {length}"));
            let fits = matches!(error, DiskError::Damaged { .. } | DiskError::Format { .. });
            assert!(fits, "{name:?} is cut at {length}: {error}");
        }
    }
}

/// As after a crash: the directory of a running replica, after its first durable batch.
#[test]
fn open__without_a_log_that_was_durable_is_an_error_and_removes_nothing() {
    let dir = quick_directory();
    let [live, crashed] = ["live", "crashed"].map(|name| dir.path().join(name));
    let mut model = LogModel::begin(&live, 1 << 20);
    model.take(&Step::Append { back: 0, count: 1, bytes: 60 });
    model.wait();
    copy(&live, &crashed);
    drop(model);
    let is_segment = |file: &Path| file.extension().is_some_and(|end| end == "wal");
    files(&crashed).iter().filter(|file| is_segment(file)).for_each(|file| {
        fs::remove_file(file).unwrap();
    });
    let left = files(&crashed);
    assert!(left.iter().any(|file| file.ends_with("checkpoint-1")), "{left:?}");
    for _ in 0..2 {
        let error = open(&crashed).expect_err("the log is gone");
        let DiskError::Damaged { path, what } = &error else { panic!("{error}") };
        assert!(path.ends_with("log") && what.contains("ends at byte 0"), "{error}");
        assert_eq!(files(&crashed), left, "nothing was removed or made");
    }
    fs::remove_file(crashed.join("petrel-kv")).unwrap();
    let error = open(&crashed).expect_err("a checkpoint is left");
    let DiskError::Damaged { path, .. } = &error else { panic!("{error}") };
    assert!(path.ends_with("petrel-kv"), "{error}");
    assert!(crashed.join("checkpoint-1").exists());
}

/// The mark is updated at each new segment: the loss of earlier segments is noticed even after a crash.
#[test]
fn open__after_a_crash_without_the_last_segments_is_an_error() {
    let dir = quick_directory();
    let [live, crashed] = ["live", "crashed"].map(|name| dir.path().join(name));
    let mut model = LogModel::begin(&live, 600);
    for _ in 0..8 {
        model.take(&Step::Append { back: 0, count: 3, bytes: 60 });
        model.wait();
    }
    copy(&live, &crashed);
    drop(model);
    let mut segments = files(&crashed);
    segments.retain(|file| file.extension().is_some_and(|end| end == "wal"));
    assert!(segments.len() >= 3, "{segments:?}");
    for file in segments.iter().rev().take(2) {
        fs::remove_file(file).unwrap();
    }
    let error = open(&crashed).expect_err("two segments are missing");
    assert!(matches!(&error, DiskError::Damaged { path, .. } if path.ends_with("log")), "{error}");
}
