//! Entry point of the fuzz target `kv_replica` (`fuzz/README.md`): the crate-private formats of messages between peers
//! and of files on disk.

/// Decodes the bytes after the first as messages between replicas, as parts of a log on disk, or as the file of a save;
/// the first byte selects which.
pub fn check(data: &[u8]) {
    let Some((choice, rest)) = data.split_first() else { return };
    match choice {
        &u8::MAX => crate::backup::fuzzing::check(rest),
        choice if choice % 2 == 0 => crate::replica::fuzzing::check(rest),
        _ => crate::disk::fuzzing::check(rest),
    }
}

#[cfg(test)]
mod tests {
    #[test]
    fn kv_replica__corpus() {
        let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/../../fuzz/corpus/kv_replica");
        let entries = std::fs::read_dir(folder).unwrap();
        let mut paths: Vec<_> = entries.map(|entry| entry.unwrap().path()).collect();
        assert!(paths.len() >= 40, "{} inputs in {folder}", paths.len());
        paths.sort();
        for path in paths {
            println!("{}", path.display());
            super::check(&std::fs::read(&path).unwrap());
        }
    }
}
