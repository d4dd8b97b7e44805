//! Replays the inputs of the fuzz target `index` (`fuzz/README.md`).

#![allow(
    unreachable_pub,
    reason = "the files are those of the fuzz targets, which other crates use"
)]

#[path = "../../../../fuzz/src/index.rs"]
mod index;

#[test]
fn index__corpus() {
    let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/../../fuzz/corpus/index");
    let entries = std::fs::read_dir(folder).unwrap();
    let mut paths: Vec<_> = entries.map(|entry| entry.unwrap().path()).collect();
    assert!(paths.len() >= 20, "{} inputs in {folder}", paths.len());
    paths.sort();
    for path in paths {
        println!("{}", path.display());
        index::check(&std::fs::read(&path).unwrap());
    }
}
