//! Why an operation has no result.

use crate::api::Certainty;

/// Why an operation has no result, and whether it took effect nevertheless: [`KvError::certainty`].
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum KvError {
    /// The operation breaks a limit of the service. Nothing was sent.
    #[error("{0}")]
    InvalidArgument(&'static str),
    /// The time is over, and nothing was done: try again when the cluster has a leader, or give it more time.
    #[error("the time is over, and nothing was done: {last}")]
    Timeout {
        /// What came of the last attempt.
        last: String,
    },
    /// The operation was sent, and nobody knows whether it took effect or will. Read what it would have
    /// changed; or repeat it, if it may take effect twice.
    #[error("nobody knows whether it was done: {last}")]
    Unknown {
        /// What came of the last attempt.
        last: String,
    },
    /// The leader does not do it, and says why. Nothing was done.
    #[error("refused: {0}")]
    Refused(String),
    /// A server's answer is none of this service, or it takes the request for none: the two are of different
    /// versions, or it is another service. Nothing was done.
    #[error("{0}")]
    Protocol(String),
}

impl KvError {
    /// What is known of the operation.
    pub fn certainty(&self) -> Certainty {
        match self {
            KvError::Unknown { .. } => Certainty::Unknown,
            _ => Certainty::NotApplied,
        }
    }
}
