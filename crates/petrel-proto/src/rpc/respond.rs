//! Running requests as the application sees them, and the answers that are refused (`docs/wire-protocol.md` §6.3).

use core::fmt;

use crate::session::SessionId;

/// Names a running request. The handle is valid until the answer, until the client gives the request up, or
/// until the session ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct RequestHandle {
    /// The session of the request.
    pub session: SessionId,
    /// The request's number. The top bit is set if the request has a place in its session's order (§14.6), so that
    /// the answers of others need not ask.
    pub number: u64,
}

/// The bit of a handle's number for a place in the order: numbers have 48 bits.
const IN_ORDER: u64 = 1 << 63;

const _: () = assert!(IN_ORDER > crate::limits::REQUEST_NUMBER_END);

impl RequestHandle {
    /// Returns the handle of the same request with a place in the order.
    pub(in crate::rpc) fn in_order(self) -> Self {
        Self { number: self.number | IN_ORDER, ..self }
    }

    /// Returns true if the request has a place in the order.
    pub(in crate::rpc) fn is_in_order(self) -> bool {
        self.number & IN_ORDER != 0
    }

    /// Returns the handle that names the request by its number alone.
    pub(in crate::rpc) fn by_number(self) -> Self {
        Self { number: self.number & !IN_ORDER, ..self }
    }
}

/// A refused answer, with its buffer.
pub struct RespondRejected<B> {
    /// The reason.
    pub error: RespondError,
    /// The answer's buffer.
    pub message: B,
}

impl<B> fmt::Debug for RespondRejected<B> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.error.fmt(f)
    }
}

/// The reason why an answer was refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum RespondError {
    /// The client gave the request up, the session ended, or the request has been answered.
    #[error("the caller no longer waits for this response")]
    Gone,
    /// The answer is longer than the client accepts; the request can still be answered.
    #[error("the response has {len} bytes, and the client accepts {max}")]
    TooLarge {
        /// Length of the answer in bytes.
        len: usize,
        /// The largest response that the client accepts, in bytes.
        max: u32,
    },
    /// Answers in transmission use up the share of the session or peer in this endpoint's memory for
    /// messages. The request can still be answered with an error.
    #[error("no memory to keep the answer in until the client has it")]
    NoRoom,
}
