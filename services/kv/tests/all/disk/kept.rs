//! Directories that an earlier version left: this version continues with them.

use std::path::Path;

use petrel_kv::disk::{DiskLog, DiskOptions};
use petrel_kv::store::Store;
use raft::eraftpb::EntryType;

use super::model::directory;

/// The keys that two nodes had at the end, with their revisions. The files of `log-2` are those of version 0.1.0 of 1 December 2026:
/// node 1 bootstrapped the cluster, and node 2 joined it, from a checkpoint with four of the keys.
const KEYS: [(&[u8], u64, &[u8]); 5] = [
    (b"\x00\xff", 10, b"bytes"),
    (b"after", 21, b"join"),
    (b"colour", 23, b"green"),
    (b"empty", 8, b""),
    (b"long", 12, &[b'x'; 300]),
];

/// Opens a copy of a kept directory, and returns the store with all entries of the log applied.
fn recover(node: u16) -> (u64, Store) {
    let kept = Path::new(env!("CARGO_MANIFEST_DIR")).join(format!("tests/files/log-2/node-{node}"));
    let dir = directory();
    let copy = |from: &Path| {
        let to = dir.path().join(from.strip_prefix(&kept).unwrap());
        std::fs::create_dir_all(to.parent().unwrap()).unwrap();
        std::fs::copy(from, to).unwrap();
    };
    for folder in [kept.clone(), kept.join("log")] {
        for file in std::fs::read_dir(folder).unwrap().map(|file| file.unwrap()) {
            if file.file_type().unwrap().is_file() {
                copy(&file.path());
            }
        }
    }
    let (_log, recovered) = DiskLog::open(dir.path(), &DiskOptions::of_node(node)).unwrap();
    let recovered = recovered.expect("a replica's log");
    let mut store = recovered.store;
    let from_checkpoint = store.keys();
    for entry in &recovered.entries {
        if entry.get_entry_type() == EntryType::EntryNormal && !entry.data.is_empty() {
            store.apply(entry.index, &entry.data, &mut Vec::new());
        }
    }
    (from_checkpoint, store)
}

#[test]
fn log__of_format_2_is_continued() {
    for (node, from_checkpoint) in [(1, 0), (2, 4)] {
        let (keys, store) = recover(node);
        assert_eq!(keys, from_checkpoint, "node {node}");
        assert_eq!(store.keys(), KEYS.len() as u64, "node {node}");
        for (key, revision, value) in KEYS {
            assert_eq!(store.get(key), Some((value, revision)), "node {node}");
        }
    }
}
