//! Errors of opening a log, with advice.

use std::io;
use std::path::{Path, PathBuf};

/// The reason why [`DiskLog::open`](super::DiskLog::open) did not open a log.
#[derive(Debug, thiserror::Error)]
pub enum DiskError {
    /// Another process, or another replica of this process, has the directory open.
    #[error("{dir} is in use by another replica: end it, or give this one a directory of its own")]
    Locked {
        /// The directory.
        dir: PathBuf,
    },
    /// The directory has files of something else.
    #[error("{dir} has {found}, and is no log of petrel-kv: give an empty directory")]
    Foreign {
        /// The directory.
        dir: PathBuf,
        /// The name of a foreign file.
        found: String,
    },
    /// The log has the format of another version, or its mark is damaged.
    #[error(
        "{path} says {found:?}; this version writes {expected:?}: use the version that wrote it"
    )]
    Format {
        /// The file with the mark.
        path: PathBuf,
        /// The content of the mark.
        found: String,
        /// The expected content.
        expected: String,
    },
    /// The log belongs to another node.
    #[error("{dir} is the log of node {found}, not of node {expected}: give the node its own")]
    Node {
        /// The directory.
        dir: PathBuf,
        /// The node that the log belongs to.
        found: u16,
        /// The node that opens the log.
        expected: u16,
    },
    /// The content differs from the written one. Acknowledged writes may be lost with it.
    #[error(
        "{path} is damaged: {what}. Do not mend it: take the replica out of the cluster, and let it join with \
         an empty directory"
    )]
    Damaged {
        /// The damaged file or directory.
        path: PathBuf,
        /// The kind of damage.
        what: String,
    },
    /// An operation of the operating system failed.
    #[error("{path}: cannot {what}: {source}")]
    Io {
        /// The file or directory.
        path: PathBuf,
        /// The failed operation.
        what: &'static str,
        /// The operating system's error.
        source: io::Error,
    },
}

impl DiskError {
    pub(super) fn damaged(path: &Path, what: impl ToString) -> Self {
        Self::Damaged { path: path.to_owned(), what: what.to_string() }
    }
}

/// Adds the operation and the file to an error.
pub(super) trait During<T> {
    fn during(self, what: &'static str, path: &Path) -> Result<T, DiskError>;
}

impl<T> During<T> for io::Result<T> {
    fn during(self, what: &'static str, path: &Path) -> Result<T, DiskError> {
        self.map_err(|source| match source.kind() {
            io::ErrorKind::InvalidData | io::ErrorKind::UnexpectedEof => {
                let (path, what) = located(path, &source.to_string());
                DiskError::Damaged { path, what }
            }
            _ => DiskError::Io { path: path.to_owned(), what, source },
        })
    }
}

/// The file and the cause in an error of the log library, whose text has all steps that led there.
fn located(path: &Path, text: &str) -> (PathBuf, String) {
    let segment = text.split_once("ChunkId(").and_then(|(_, rest)| rest.split_once(')'));
    let path = match segment {
        Some((number, _)) => path.join(format!("r-{number}.wal")),
        None => path.to_owned(),
    };
    let cause = text.split_once("; when:(").map_or(text, |(cause, _)| cause);
    (path, cause.to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn located__names_the_segment_and_the_cause() {
        let text =
            "crc32 mismatch; when:(decode Record at offset 7); when:(iterate ChunkId(00_001))";
        let (path, cause) = located(Path::new("/srv/kv/log"), text);
        assert_eq!((path.to_str(), &*cause), (Some("/srv/kv/log/r-00_001.wal"), "crc32 mismatch"));
        let (path, cause) = located(Path::new("/srv/kv"), "cut");
        assert_eq!((path.to_str(), &*cause), (Some("/srv/kv"), "cut"));
    }
}
