//! Errors.

use petrel::Status;
use petrel::nexus::SetupError;

use crate::limits::{KEY_BYTES_MAX, VALUE_BYTES_MAX};

/// The reason why a store refused a pair.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum StoreError {
    /// The table is full.
    #[error(
        "the table is full: {max} {what}. Delete some, or start the server with a higher limit"
    )]
    Full {
        /// The unit of the limit.
        what: &'static str,
        /// The limit.
        max: u64,
    },
    /// The key is too long.
    #[error("a key of {bytes} bytes; at most {KEY_BYTES_MAX} are taken")]
    KeyTooLong {
        /// The key's length.
        bytes: usize,
    },
    /// The value is too long.
    #[error("a value of {bytes} bytes; at most {VALUE_BYTES_MAX} are taken")]
    ValueTooLong {
        /// The value's length.
        bytes: usize,
    },
}

impl StoreError {
    /// The gRPC status code.
    pub fn status(self) -> Status {
        match self {
            Self::Full { .. } => Status::ResourceExhausted,
            Self::KeyTooLong { .. } | Self::ValueTooLong { .. } => Status::InvalidArgument,
        }
    }
}

/// The reason why a server did not start, or ended.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ServerError {
    /// The configuration breaks a rule.
    #[error("{0}")]
    Config(&'static str),
    /// No nexus or endpoint could be created, for example because the address is in use.
    #[error(transparent)]
    Setup(#[from] SetupError),
    /// An operation of the operating system failed, for example the start of a thread.
    #[error(transparent)]
    Io(#[from] std::io::Error),
    /// A thread has panicked.
    #[error("a thread of the server has ended by an internal error")]
    Ended,
}
