//! Errors of segments.

use std::io;

/// Why a segment could not be created or opened.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ShmError {
    /// A setting is out of its limits.
    #[error("{setting} is {value}, but must be {expected}")]
    Config {
        /// The field of [`ShmConfig`](super::ShmConfig).
        setting: &'static str,
        /// The configured value.
        value: usize,
        /// The allowed values.
        expected: String,
    },
    /// The peer's descriptor is no segment that can be used safely.
    #[error("the peer's descriptor is not a usable shared-memory segment: {0}")]
    NotASegment(&'static str),
    /// The peer's segment has a layout unknown to this version.
    #[error(
        "the peer's shared-memory layout has version {theirs}, ours is {ours}; run the same \
         version of Petrel on both sides, or use UDP"
    )]
    Version {
        /// The peer's version.
        theirs: u32,
        /// Our version.
        ours: u32,
    },
    /// The operating system refused.
    #[error("cannot set up shared memory: {0}")]
    Io(#[from] io::Error),
}

impl From<rustix::io::Errno> for ShmError {
    fn from(error: rustix::io::Errno) -> Self {
        Self::Io(error.into())
    }
}
