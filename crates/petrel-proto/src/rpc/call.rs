//! Calls as the application sees them: their limits, their ends, and their failures (`docs/wire-protocol.md` §5).

use core::fmt;

use crate::session::SessionId;
use crate::session::backlog::{Expiry, NEVER};
use crate::status::Status;

/// An ended call, with its two buffers.
#[derive(Debug)]
pub struct Completion<B, T = u64> {
    /// The session of the call.
    pub session: SessionId,
    /// The tag that the application passed with the call.
    pub tag: T,
    /// The success or failure of the call.
    pub outcome: Result<(), Box<CallFailure>>,
    /// The request's buffer, unchanged.
    pub request: B,
    /// The response's buffer: the response if the call succeeded, otherwise empty.
    pub response: B,
    /// The inherited deadline ([`Core::inherit`](super::Core::inherit)), for calls made by the continuation.
    pub inherited_ns: Option<u64>,
}

/// The end of a call answered in one packet, with status OK.
#[derive(Debug)]
pub struct PlainCompletion<B, T> {
    /// The session of the call.
    pub session: SessionId,
    /// The tag that the application passed with the call.
    pub tag: T,
    /// The request's buffer, unchanged.
    pub request: B,
    /// The response.
    pub response: B,
}

impl<B, T> From<PlainCompletion<B, T>> for Completion<B, T> {
    fn from(ended: PlainCompletion<B, T>) -> Self {
        let PlainCompletion { session, tag, request, response } = ended;
        Self { session, tag, outcome: Ok(()), request, response, inherited_ns: None }
    }
}

/// The time limit of a call, and its demand on the order of execution.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CallLimits {
    /// The caller's deadline, in nanoseconds of the core's clock, carried to the server. Without a deadline,
    /// [`Config::call_timeout_ns`](super::Config) ends the call.
    pub deadline_ns: Option<u64>,
    /// True for a call that runs only after all earlier calls of its session, in a session that keeps an order
    /// ([`Core::keep_order`](super::Core::keep_order)).
    pub ordered: bool,
}

impl CallLimits {
    pub(in crate::rpc) fn expiry(self, inherited_ns: u64) -> Expiry {
        let at_ns = self.deadline_ns.unwrap_or(NEVER).min(inherited_ns);
        Expiry { at_ns, is_on_wire: at_ns != NEVER, inherited_ns }
    }
}

/// The reason why a call failed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CallFailure {
    /// The gRPC status code, never OK.
    pub status: Status,
    /// The reason, for people.
    pub message: String,
    /// The known execution of the request at the server.
    pub execution: Execution,
    /// The bytes of the server's answer behind its text and a zero byte, for programs; empty without.
    pub details: Vec<u8>,
}

impl CallFailure {
    /// Returns a failure without details.
    pub fn new(status: Status, message: impl Into<String>, execution: Execution) -> Self {
        Self { status, message: message.into(), execution, details: Vec::new() }
    }

    /// Reads a text, and details behind a zero byte, from the answer of a server (§3.3).
    pub fn read(status: Status, body: &[u8], execution: Execution) -> Self {
        let end = body.iter().position(|byte| *byte == 0).unwrap_or(body.len());
        let (text, details) = body.split_at(end);
        let details = details.get(1..).unwrap_or_default().to_vec();
        Self { details, ..Self::new(status, String::from_utf8_lossy(text), execution) }
    }
}

/// The known execution of a failed call's request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Execution {
    /// No packet was sent: the request was not executed.
    NotSent,
    /// The request was sent, and the outcome is unknown.
    MayHaveExecuted,
    /// The server reports that the request was not executed and will not be.
    Refused,
    /// The server answered: with the failure, or with a response that could not be accepted.
    Answered,
}

impl fmt::Display for CallFailure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let execution = match self.execution {
            Execution::NotSent => "the request was not sent",
            Execution::MayHaveExecuted => "the request may have been executed",
            Execution::Refused => "the server did not execute the request",
            Execution::Answered => "the server answered",
        };
        write!(f, "{}: {} ({execution})", self.status, self.message)
    }
}

impl std::error::Error for CallFailure {}

/// A refused call, with its buffers. Nothing was sent.
pub struct CallRejected<B, T = ()> {
    /// The reason.
    pub error: CallError,
    /// The request's buffer.
    pub request: B,
    /// The response's buffer.
    pub response: B,
    /// The call's tag.
    pub tag: T,
}

impl<B, T> fmt::Debug for CallRejected<B, T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.error.fmt(f)
    }
}

/// The reason why a call was refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum CallError {
    /// The session has ended, or is not one of this endpoint's client sessions.
    #[error("the session has ended; open a new one")]
    SessionClosed,
    /// The server is going to end, and has asked for no further calls on this session.
    #[error("the server is draining; open a new session, to another server or a little later")]
    Draining,
    /// The request is longer than the server accepts.
    #[error("the request has {len} bytes, and the server accepts {max}")]
    RequestTooLarge {
        /// Length of the request in bytes.
        len: usize,
        /// The largest request that the server accepts, in bytes.
        max: u32,
    },
    /// The session's queue is full: the server is slower than the calls.
    #[error("{max} calls are already waiting on this session; wait for some to end")]
    QueueFull {
        /// The queue's limit.
        max: usize,
    },
    /// The call is ordered, and the session keeps no order.
    #[error(
        "the session keeps no order: its endpoint has to ask for it, and its server has to know ordered calls"
    )]
    NotOrdered,
}

impl CallError {
    /// Returns the corresponding gRPC status code.
    pub fn status(&self) -> Status {
        match self {
            CallError::SessionClosed | CallError::Draining => Status::Unavailable,
            CallError::RequestTooLarge { .. } | CallError::QueueFull { .. } => {
                Status::ResourceExhausted
            }
            CallError::NotOrdered => Status::FailedPrecondition,
        }
    }
}
