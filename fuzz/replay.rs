//! The corpora of the fuzz targets, for the tests that replay them.

use std::path::{Path, PathBuf};

/// Passes each input of a target's corpus to `check`, and expects at least `count_min` inputs. A failing test
/// prints the input's name last.
pub fn replay(target: &str, count_min: usize, check: fn(&[u8])) {
    // The crate that includes this file is two folders below the root.
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
