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

/// A message not allowed by the protocol at this point: the peer's fault.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Violation(pub(super) &'static str);

/// Replaces OK in a refusal, which must not count as success.
pub(super) fn not_ok(status: Status) -> Status {
    if status == Status::Ok { Status::Unavailable } else { status }
}
