//! The files of a log: names, creation and removal.

use std::fs::{self, File};
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};

use super::error::{DiskError, During};
use super::mark::Mark;

const MARK: &str = "petrel-kv";
const SEGMENTS: &str = "log";
const CHECKPOINT: &str = "checkpoint-";
/// Suffix of unfinished files.
const NEW: &str = ".new";

/// The directory of a log.
#[derive(Debug)]
pub(super) struct Directory {
    path: PathBuf,
    next_file: AtomicU64,
}

impl Directory {
    /// Creates the directory if necessary; changes nothing in a directory with foreign files.
    pub(super) fn prepare(path: &Path) -> Result<Self, DiskError> {
        let directory = Self { path: path.to_owned(), next_file: AtomicU64::new(1) };
        let is_new = !path.exists();
        fs::create_dir_all(path).during("make the directory", path)?;
        directory.refuse_foreign()?;
        fs::create_dir_all(directory.segments()).during("make the directory", path)?;
        sync_directory(path)?;
        if is_new && let Some(parent) = path.canonicalize().during("find", path)?.parent() {
            sync_directory(parent)?;
        }
        Ok(directory)
    }

    /// The folder of the segments and the lock.
    pub(super) fn segments(&self) -> PathBuf {
        self.path.join(SEGMENTS)
    }

    /// Marks the directory with the format and the node, or checks the existing mark. Returns the known end of the log.
    /// The caller must hold the lock.
    pub(super) fn claim(&self, node: u16) -> Result<u64, DiskError> {
        let path = self.path.join(MARK);
        let expected = Mark { node, log_end: 0 };
        if !path.exists() {
            self.refuse_unmarked()?;
            self.mark(expected)?;
            return Ok(0);
        }
        let found = fs::read(&path).during("read", &path)?;
        match Mark::decode(&found) {
            Some(found) if found.node == node => Ok(found.log_end),
            Some(Mark { node: found, .. }) => {
                Err(DiskError::Node { dir: self.path.clone(), found, expected: node })
            }
            None => {
                let found = String::from_utf8_lossy(&found).into_owned();
                Err(DiskError::Format { path, found, expected: expected.encode() })
            }
        }
    }

    pub(super) fn mark(&self, mark: Mark) -> Result<(), DiskError> {
        write_whole(&self.path.join(MARK), |file| file.write_all(mark.encode().as_bytes()))
    }

    /// Checks that the log reaches the known end. The end of a log, or the whole log, may be missing.
    pub(super) fn check_end(&self, known: u64) -> Result<(), DiskError> {
        let end = self.log_end()?;
        if end >= known {
            return Ok(());
        }
        let what = format!("it ends at byte {end}, and was known to go on to byte {known}");
        Err(DiskError::damaged(&self.segments(), what))
    }

    /// The end of the log by the names and lengths of the segments; 0 without segments.
    pub(super) fn log_end(&self) -> Result<u64, DiskError> {
        let ends = self.list_segments()?.into_iter().map(|(begin, length, _)| begin + length);
        Ok(ends.max().unwrap_or(0))
    }

    /// The segments in order: begin, length and file.
    fn list_segments(&self) -> Result<Vec<(u64, u64, PathBuf)>, DiskError> {
        let directory = self.segments();
        let mut segments = Vec::new();
        for name in names(&directory)? {
            if let Some(begin) = begin_of(&name) {
                let path = directory.join(name);
                match fs::metadata(&path) {
                    Ok(found) => segments.push((begin, found.len(), path)),
                    // The log's thread removes old segments meanwhile.
                    Err(error) if error.kind() == io::ErrorKind::NotFound => {}
                    Err(error) => return Err(error).during("look at", &path),
                }
            }
        }
        segments.sort();
        Ok(segments)
    }

    /// Checks, by names and lengths, that the segments have no gap.
    pub(super) fn check_segments(&self) -> Result<(), DiskError> {
        let mut segments = self.list_segments()?;
        // The next segment is created before the last bytes of the previous one are written.
        segments.pop_if(|(_, length, _)| *length == 0);
        let is_whole = |pair: &&[(u64, u64, PathBuf)]| pair[0].0 + pair[0].1 == pair[1].0;
        match segments.windows(2).find(|pair| !is_whole(pair)) {
            Some([(.., path), _]) => {
                Err(DiskError::damaged(path, "it is cut, or the one that follows is missing"))
            }
            _ => Ok(()),
        }
    }

    pub(super) fn checkpoint(&self, file: u64) -> PathBuf {
        self.path.join(format!("{CHECKPOINT}{file}"))
    }

    pub(super) fn next_file(&self) -> u64 {
        self.next_file.fetch_add(1, Ordering::Relaxed)
    }

    /// Removes the leftovers of a crash: checkpoints that the log does not name, and unfinished files.
    pub(super) fn remove_leftovers(&self, base: Option<u64>) -> Result<(), DiskError> {
        let mut last = base.unwrap_or(0);
        for name in names(&self.path)? {
            let number = name.strip_prefix(CHECKPOINT).and_then(|number| number.parse().ok());
            last = last.max(number.unwrap_or(0));
            if name.ends_with(NEW) || (number.is_some() && number != base) {
                let path = self.path.join(name);
                fs::remove_file(&path).during("remove", &path)?;
            }
        }
        self.next_file.store(last + 1, Ordering::Relaxed);
        sync_directory(&self.path)
    }

    pub(super) fn remove_checkpoint(&self, file: u64) -> Result<(), DiskError> {
        let path = self.checkpoint(file);
        fs::remove_file(&path).during("remove", &path)
    }

    fn refuse_foreign(&self) -> Result<(), DiskError> {
        let names = names(&self.path)?;
        let foreign = names.into_iter().find(|name| !is_ours(name));
        match foreign {
            Some(found) => Err(DiskError::Foreign { dir: self.path.clone(), found }),
            None => Ok(()),
        }
    }

    /// Fails if a log has no mark: the mark is written before the first segment and the first checkpoint.
    fn refuse_unmarked(&self) -> Result<(), DiskError> {
        let has_segments = names(&self.segments())?.iter().any(|name| name.ends_with(".wal"));
        let has_checkpoint = names(&self.path)?.iter().any(|name| name.starts_with(CHECKPOINT));
        if has_segments || has_checkpoint {
            return Err(DiskError::damaged(&self.path.join(MARK), "it is missing"));
        }
        Ok(())
    }
}

fn names(directory: &Path) -> Result<Vec<String>, DiskError> {
    let name = |entry: io::Result<fs::DirEntry>| {
        entry.map(|entry| entry.file_name().to_string_lossy().into_owned())
    };
    let names = fs::read_dir(directory).and_then(|entries| entries.map(name).collect());
    names.during("list", directory)
}

/// Returns true for names that a log's directory may have; file systems begin with `lost+found`.
fn is_ours(name: &str) -> bool {
    let name = name.strip_suffix(NEW).unwrap_or(name);
    [MARK, SEGMENTS, "lost+found"].contains(&name) || name.starts_with(CHECKPOINT)
}

/// The offset in the log where a segment begins: the segment's name has the digits in groups.
fn begin_of(name: &str) -> Option<u64> {
    name.strip_prefix("r-")?.strip_suffix(".wal")?.replace('_', "").parse().ok()
}

/// Writes a file atomically: after a crash the whole file exists, or none. Returns the result of `write`.
pub(super) fn write_whole<T>(
    path: &Path,
    write: impl FnOnce(&mut File) -> io::Result<T>,
) -> Result<T, DiskError> {
    let mut name = path.as_os_str().to_owned();
    name.push(NEW);
    let new = PathBuf::from(name);
    let mut file = File::create(&new).during("create", &new)?;
    let written = write(&mut file).during("write", &new)?;
    file.sync_all().during("sync", &new)?;
    fs::rename(&new, path).during("rename", &new)?;
    sync_directory(path.parent().expect("it is in the log's directory"))?;
    Ok(written)
}

/// Names become durable only when their directory is synced.
fn sync_directory(path: &Path) -> Result<(), DiskError> {
    File::open(path).and_then(|directory| directory.sync_all()).during("sync", path)
}
