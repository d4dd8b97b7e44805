//! Why a call was not started.

use std::fmt;

use petrel_proto::{Execution, Status};

/// A call that was not started: nothing was sent. The request comes back.
#[derive(Clone, PartialEq, Eq, thiserror::Error)]
#[error("{reason}")]
pub struct NotStarted {
    /// Why.
    pub reason: NotStartedReason,
    /// The request, as it was given.
    pub request: Vec<u8>,
}

/// Why a call was not started.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum NotStartedReason {
    /// As many calls of client handles as the endpoint allows are on their way.
    #[error(
        "{max} calls of client handles are on their way; wait for some to end, by \
         `SessionClient::reserve` for example"
    )]
    Full {
        /// The limit: `EndpointConfig::client_calls_max`.
        max: usize,
    },
    /// The endpoint was dropped.
    #[error("the endpoint is gone")]
    EndpointGone,
}

impl NotStartedReason {
    /// The gRPC status code that fits.
    pub fn status(self) -> Status {
        match self {
            NotStartedReason::Full { .. } => Status::ResourceExhausted,
            NotStartedReason::EndpointGone => Status::Unavailable,
        }
    }
}

impl NotStarted {
    /// The gRPC status code that fits.
    pub fn status(&self) -> Status {
        self.reason.status()
    }

    /// Whether the call may have been executed: it was not even sent.
    pub fn execution(&self) -> Execution {
        Execution::NotSent
    }
}

/// Without the request, which may be large.
impl fmt::Debug for NotStarted {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "NotStarted({:?}, {} B)", self.reason, self.request.len())
    }
}
