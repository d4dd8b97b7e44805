//! Replays the inputs of the fuzz target `kv` (`fuzz/README.md`).

#![allow(
    unreachable_pub,
    reason = "the files are those of the fuzz targets, which other crates use"
)]

#[path = "../../../../fuzz/src/input.rs"]
mod input;
#[path = "../../../../fuzz/src/kv.rs"]
mod kv;

#[test]
fn kv__corpus() {
    let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/../../fuzz/corpus/kv");
    let entries = std::fs::read_dir(folder).unwrap();
    let mut paths: Vec<_> = entries.map(|entry| entry.unwrap().path()).collect();
    assert!(paths.len() >= 40, "{} inputs in {folder}", paths.len());
    paths.sort();
    for path in paths {
        println!("{}", path.display());
        kv::check(&std::fs::read(&path).unwrap());
    }
}
