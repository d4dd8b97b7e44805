//! Replays the inputs of the fuzz target `cache` (`fuzz/README.md`).

#![allow(
    unreachable_pub,
    reason = "the files are those of the fuzz targets, which other crates use"
)]

#[path = "../../../../fuzz/src/cache.rs"]
mod cache;

#[test]
fn cache__corpus() {
    let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/../../fuzz/corpus/cache");
    let entries = std::fs::read_dir(folder).unwrap();
    let mut paths: Vec<_> = entries.map(|entry| entry.unwrap().path()).collect();
    assert!(paths.len() >= 15, "{} inputs in {folder}", paths.len());
    paths.sort();
    for path in paths {
        println!("{}", path.display());
        cache::check(&std::fs::read(&path).unwrap());
    }
}
