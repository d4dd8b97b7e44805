//! Why a log cannot be opened, and what to do about it.

use std::io;
use std::path::{Path, PathBuf};

/// Why [`DiskLog::open`](super::DiskLog::open) did not open a log.
#[derive(Debug, thiserror::Error)]
pub enum DiskError {
    /// Another process, or another replica of this one, has the directory open.
    #[error("{dir} is in use by another replica: end it, or give this one a directory of its own")]
    Locked {
        /// The directory.
        dir: PathBuf,
    },
    /// The directory has files, but not those of a log.
    #[error("{dir} has {found}, and is no log of petrel-kv: give an empty directory")]
    Foreign {
        /// The directory.
        dir: PathBuf,
        /// A file that is there.
        found: String,
    },
    /// The log was written by a version with another format, or its mark is damaged.
    #[error(
        "{path} says {found:?}; this version writes {expected:?}: use the version that wrote it"
    )]
    Format {
        /// The file with the mark.
        path: PathBuf,
        /// What it says.
        found: String,
        /// What it would have to say.
        expected: String,
    },
    /// The log is that of another node.
    #[error("{dir} is the log of node {found}, not of node {expected}: give the node its own")]
    Node {
        /// The directory.
        dir: PathBuf,
        /// Whose log it is.
        found: u16,
        /// Who wants it.
        expected: u16,
    },
    /// What is there is not what was written. What was acknowledged may be lost with it.
    #[error(
        "{path} is damaged: {what}. Do not mend it: take the replica out of the cluster, and let it join with \
         an empty directory"
    )]
    Damaged {
        /// File or directory.
        path: PathBuf,
        /// What is wrong.
        what: String,
    },
    /// The operating system did not do what it was asked for.
    #[error("{path}: cannot {what}: {source}")]
    Io {
        /// File or directory.
        path: PathBuf,
        /// What was asked for.
        what: &'static str,
        /// Its answer.
        source: io::Error,
    },
}

impl DiskError {
    pub(super) fn damaged(path: &Path, what: impl ToString) -> Self {
        Self::Damaged { path: path.to_owned(), what: what.to_string() }
    }
}

/// Names what was done to which file when an operation fails.
pub(super) trait During<T> {
    fn during(self, what: &'static str, path: &Path) -> Result<T, DiskError>;
}

impl<T> During<T> for io::Result<T> {
    fn during(self, what: &'static str, path: &Path) -> Result<T, DiskError> {
        self.map_err(|source| match source.kind() {
            io::ErrorKind::InvalidData | io::ErrorKind::UnexpectedEof => {
                DiskError::damaged(path, source)
            }
            _ => DiskError::Io { path: path.to_owned(), what, source },
        })
    }
}
