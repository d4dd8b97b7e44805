//! Damage: an error, and never a log that has less.

use std::fs;
use std::path::{Path, PathBuf};

use petrel_kv::disk::{DiskError, DiskLog, DiskOptions};

use crate::rig::{NODE, Rig, Step, copy, files, quick_directory};

/// A log of several segments, and a checkpoint.
fn write_log(path: &Path) {
    let mut rig = Rig::begin(path, 600);
    for round in 0..4 {
        rig.take(&Step::Append { back: 0, count: 3, bytes: 60 });
        rig.take(&Step::Vote);
        rig.take(&Step::Commit(2));
        rig.wait();
        if round == 1 {
            rig.take(&Step::Checkpoint);
        }
    }
}

fn open(path: &Path) -> Result<(), DiskError> {
    DiskLog::open(path, &DiskOptions::of_node(NODE)).map(drop)
}

/// All but the last segment, which may not have been begun yet.
fn files_without_the_last_segment(log: &Path) -> Vec<PathBuf> {
    let mut files = files(log);
    let last = files.iter().rposition(|file| file.extension().is_some_and(|end| end == "wal"));
    files.remove(last.unwrap());
    files
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
    for file in files_without_the_last_segment(&whole) {
        let name = file.strip_prefix(&whole).unwrap();
        copy(&whole, &damaged);
        fs::remove_file(damaged.join(name)).unwrap();
        let error = open(&damaged).expect_err(&format!("{name:?} is missing"));
        assert!(matches!(error, DiskError::Damaged { .. }), "{name:?} is missing: {error}");
        fs::remove_dir_all(&damaged).unwrap();
    }
}

#[test]
fn open__with_a_cut_file_before_the_last_segment_is_an_error() {
    let dir = quick_directory();
    let [whole, damaged] = ["whole", "damaged"].map(|name| dir.path().join(name));
    write_log(&whole);
    for file in files_without_the_last_segment(&whole) {
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
