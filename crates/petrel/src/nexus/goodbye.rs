//! Reasons for which connections end.

use petrel_proto::Status;

use crate::control::Reason;

/// Whether the peer learns why a connection ends.
#[derive(Clone, Debug)]
pub(super) enum GoodbyeMode {
    /// Sends GOODBYE with this reason, and allows time for delivery.
    Send(Reason),
    /// Sends nothing: the peer would not receive it.
    Silent,
}

/// Why a message of the peer ends its connection.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Ending {
    /// The protocol does not allow the message at this point: the peer's fault.
    Violation(&'static str),
    /// The message cannot be handled, for this reason.
    Refusal(Reason),
}

impl Ending {
    /// An endpoint cannot take the message: a peer may send without limit.
    pub(super) fn overloaded() -> Self {
        let why = "an endpoint's event loop does not keep up with what the peer says";
        Self::Refusal(Reason::new(Status::ResourceExhausted, why))
    }
}

/// Replaces OK in a refusal, which must not count as success.
pub(super) fn not_ok(status: Status) -> Status {
    if status == Status::Ok { Status::Unavailable } else { status }
}
