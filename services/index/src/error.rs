//! What can go wrong.

use petrel::Status;
use petrel::nexus::SetupError;

use crate::limits::{KEY_BYTES_MAX, VALUE_BYTES_MAX};

/// Why a store did not take a pair.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum StoreError {
    /// There is no room for another.
    #[error(
        "the table is full: {max} {what}. Delete some, or start the server with a higher limit"
    )]
    Full {
        /// Of what there are too many.
        what: &'static str,
        /// How many there may be.
        max: u64,
    },
    /// The key is too long.
    #[error("a key of {bytes} bytes; at most {KEY_BYTES_MAX} are taken")]
    KeyTooLong {
        /// Its length.
        bytes: usize,
    },
    /// The value is too long.
    #[error("a value of {bytes} bytes; at most {VALUE_BYTES_MAX} are taken")]
    ValueTooLong {
        /// Its length.
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

/// Why a message is not one of this service.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("a malformed message: {expected} expected, {bytes} bytes came")]
pub struct Malformed {
    /// What should have come.
    pub expected: &'static str,
    /// The length of what came.
    pub bytes: usize,
}

/// Why a client has no answer.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ClientError {
    /// The call was not made, or failed.
    #[error(transparent)]
    Failed(#[from] petrel::Error),
    /// The answer is not one of this service.
    #[error(transparent)]
    Answer(#[from] Malformed),
    /// The request would be refused.
    #[error(transparent)]
    Request(#[from] StoreError),
}

impl ClientError {
    /// The gRPC status code.
    pub fn status(&self) -> Status {
        match self {
            Self::Failed(failure) => failure.status,
            Self::Answer(_) => Status::Internal,
            Self::Request(error) => error.status(),
        }
    }
}

/// Why a server did not start, or ended.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ServerError {
    /// The configuration breaks a rule.
    #[error("{0}")]
    Config(&'static str),
    /// No nexus or no endpoint: the address is taken, for example.
    #[error(transparent)]
    Setup(#[from] SetupError),
    /// The operating system says no, to another thread for example.
    #[error(transparent)]
    Io(#[from] std::io::Error),
    /// A thread has panicked.
    #[error("a thread of the server has ended by an internal error")]
    Ended,
}
