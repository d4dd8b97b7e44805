//! Errors of operations.

use petrel::{Error, Execution, Status};
use petrel_planted::planted;

use crate::api::{Certainty, DecodeError};

/// The reason why an operation has no result. [`KvError::certainty`] says whether the operation may have taken effect
/// nevertheless.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum KvError {
    /// The operation breaks a limit of the service. No request was sent.
    #[error("{0}")]
    InvalidArgument(String),
    /// The time is over, and nothing was done: try again when the cluster has a leader, or allow more time.
    #[error("the time is over, and nothing was done: {last}")]
    Timeout {
        /// The outcome of the last attempt.
        last: String,
    },
    /// No call can be made, and nothing was done: no replica can be reached, the client has no memory for the request,
    /// or its endpoint is gone.
    #[error("no call can be made, and nothing was done: {0}")]
    Unavailable(String),
    /// The operation was sent, and may take effect or not. Read the affected keys; or repeat the operation, if a second
    /// execution is harmless.
    #[error("the outcome is unknown, and the operation may have been executed: {last}")]
    Unknown {
        /// The outcome of the last attempt.
        last: String,
    },
    /// There is no such lease, and nothing was done: the lease has ended, or never began. Grant another.
    #[error("there is no lease {lease}: it has ended, or never began")]
    NoLease {
        /// The number of the lease.
        lease: u64,
    },
    /// No replica has the changes of a revision any more: the watch was too slow, or begins too early. Read the keys
    /// anew, and watch from there.
    #[error(
        "the changes of revision {from} are gone: the first revision that a replica has is {first}"
    )]
    Compacted {
        /// The revision that the watch needs.
        from: u64,
        /// The first revision that a replica has, of those that answered.
        first: u64,
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

    /// Returns the error of a request that no replica would decode.
    pub(super) fn invalid(error: DecodeError) -> Self {
        Self::InvalidArgument(error.to_string())
    }

    /// Returns the error of an operation without effects, whose call failed.
    pub(super) fn of_read(failure: Error) -> Self {
        let last = failure.message.clone();
        match (failure.status, failure.execution) {
            (_, Execution::Answered) => Self::Protocol(last),
            (Status::DeadlineExceeded, _) => Self::Timeout { last },
            (Status::Unavailable | Status::ResourceExhausted, _) => Self::Unavailable(last),
            (Status::FailedPrecondition, _) => Self::Refused(last),
            _ => Self::Protocol(last),
        }
    }

    /// Returns the error of an operation with effects, whose call failed after all its attempts.
    pub(super) fn of_change(failure: Error) -> Self {
        let may_have_run =
            matches!(failure.execution, Execution::MayHaveExecuted | Execution::Answered);
        if may_have_run && !planted("kv_client_is_sure") {
            return Self::Unknown { last: failure.message.clone() };
        }
        Self::of_read(failure)
    }
}

/// Returns the failure of a call whose answer cannot be decoded, or belongs to another request.
pub(super) fn not_understood(error: Option<DecodeError>) -> Error {
    let why = error.map_or("it is for another request".to_owned(), |error| error.to_string());
    Error::new(Status::Internal, format!("the answer is not understood: {why}"))
}
