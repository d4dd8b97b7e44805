//! Checks that the sources and the table of defects contain equal names.

#![cfg(test)]

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use petrel_planted::DEFECTS;

/// Collects the names in calls of `planted("…")`, with their files.
fn planted_in(directory: &Path, found: &mut BTreeMap<String, Vec<PathBuf>>) {
    for entry in std::fs::read_dir(directory).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            planted_in(&path, found);
        } else if path.extension().is_some_and(|extension| extension == "rs") {
            let text = std::fs::read_to_string(&path).unwrap();
            // As a single literal, the text would look like a call.
            for part in text.split(concat!("planted", "(\"")).skip(1) {
                let name = part.split('"').next().unwrap_or_default();
                found.entry(name.to_owned()).or_default().push(path.clone());
            }
        }
    }
}

#[test]
fn defects__are_those_in_the_sources_once_each() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    let mut found = BTreeMap::new();
    for crate_ in ["petrel-proto", "petrel-transport", "petrel"] {
        planted_in(&root.join("crates").join(crate_).join("src"), &mut found);
    }
    for service in ["cache", "index", "kv"] {
        planted_in(&root.join("services").join(service).join("src"), &mut found);
    }
    let planted: Vec<&str> = found.keys().map(String::as_str).collect();
    let table: Vec<&str> = DEFECTS.iter().map(|defect| defect.name).collect();
    assert_eq!(planted, table, "planted in the sources, and in petrel-planted's table");
    assert!(found.values().all(|files| files.len() == 1), "in one place each: {found:?}");
}
