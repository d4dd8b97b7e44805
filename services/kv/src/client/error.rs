//! Errors of operations.

use crate::api::Certainty;

/// The reason why an operation has no result. [`KvError::certainty`] says whether the operation may have taken effect
/// nevertheless.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum KvError {
    /// The operation breaks a limit of the service. No request was sent.
    #[error("{0}")]
    InvalidArgument(&'static str),
    /// The time is over, and nothing was done: try again when the cluster has a leader, or allow more time.
    #[error("the time is over, and nothing was done: {last}")]
    Timeout {
        /// The outcome of the last attempt.
        last: String,
    },
    /// The operation was sent, and may take effect or not. Read the affected keys; or repeat the operation, if a second
    /// execution is harmless.
    #[error("the outcome is unknown, and the operation may have been executed: {last}")]
    Unknown {
        /// The outcome of the last attempt.
        last: String,
    },
    /// The leader refuses the operation, with a reason. Nothing was done.
    #[error("refused: {0}")]
    Refused(String),
    /// The server's answer is not a message of this service, or the server does not understand the request. Client and
    /// server have different versions, or the server belongs to another service. Nothing was done.
    #[error("{0}")]
    Protocol(String),
}

impl KvError {
    /// Returns whether the operation may have taken effect.
    pub fn certainty(&self) -> Certainty {
        match self {
            KvError::Unknown { .. } => Certainty::Unknown,
            _ => Certainty::NotApplied,
        }
    }
}
