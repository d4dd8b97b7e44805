//! Directories of other replicas or programs.

use std::fs;
use std::path::Path;

use petrel_kv::disk::{DiskError, DiskLog, DiskOptions};

use super::model::{LogModel, NODE, directory};

fn error_of(path: &Path, node: u16) -> DiskError {
    DiskLog::open(path, &DiskOptions::of_node(node)).map(drop).unwrap_err()
}

#[test]
fn open__twice_is_refused_until_the_first_ends() {
    let dir = directory();
    let model = LogModel::begin(dir.path(), 1 << 20);
    let error = error_of(dir.path(), NODE);
    assert!(matches!(error, DiskError::Locked { .. }), "{error}");
    let content = model.content;
    drop(model.log);
    assert_eq!(LogModel::resume(dir.path(), 1 << 20).content, content);
}

#[test]
fn open__for_another_node_is_refused() {
    let dir = directory();
    drop(LogModel::begin(dir.path(), 1 << 20));
    let error = error_of(dir.path(), 8);
    assert!(matches!(error, DiskError::Node { found: 7, expected: 8, .. }), "{error}");
}

#[test]
fn open__another_format_is_refused() {
    let dir = directory();
    drop(LogModel::begin(dir.path(), 1 << 20));
    fs::write(dir.path().join("petrel-kv"), "petrel-kv log, format 3\nnode 7\n").unwrap();
    let error = error_of(dir.path(), NODE);
    assert!(matches!(&error, DiskError::Format { found, .. } if found.contains('3')), "{error}");
}

#[test]
fn open__a_directory_of_something_else_is_refused_and_left_alone() {
    let dir = directory();
    fs::write(dir.path().join("letter.txt"), "dear").unwrap();
    let error = error_of(dir.path(), NODE);
    assert!(matches!(&error, DiskError::Foreign { found, .. } if found == "letter.txt"), "{error}");
    assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 1);
}

#[test]
fn open__a_file_is_refused() {
    let dir = directory();
    let path = dir.path().join("file");
    fs::write(&path, "").unwrap();
    let error = error_of(&path, NODE);
    assert!(matches!(error, DiskError::Io { .. }), "{error}");
}
