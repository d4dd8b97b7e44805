//! Draining without losing a call (`docs/wire-protocol.md` §8.5).
//!
//! A draining server asks its clients to leave, and serves them until they have. The client decides when: it knows of
//! requests still in a queue or on the network, unknown to the server. A session thus ends when the client closes it,
//! and no call is lost in between.

use petrel_proto::SessionId;

pub(super) const DRAINING: &str = "the server is draining";

/// Nanoseconds between checks whether a session's last call has ended: short for an operator who waits for a process to
/// end.
pub(super) const CHECK_INTERVAL_NS: u64 = 200_000;

/// An endpoint's state of draining, as server and as client.
#[derive(Debug, Default)]
pub(super) struct Drain {
    /// Whether this endpoint no longer accepts sessions.
    is_draining: bool,
    /// Client sessions whose servers drain.
    leaving: Vec<SessionId>,
}

impl Drain {
    /// Begins to drain as a server, or goes on.
    pub(super) fn begin(&mut self) {
        self.is_draining = true;
    }

    pub(super) fn is_draining(&self) -> bool {
        self.is_draining
    }

    /// Adds a client session whose server drains.
    pub(super) fn leave(&mut self, session: SessionId) {
        self.leaving.push(session);
    }

    /// Returns the number of client sessions whose servers drain.
    pub(super) fn leaving_count(&self) -> usize {
        self.leaving.len()
    }

    /// Removes the client sessions for which `is_over` is true, and returns them in the order of leaving.
    pub(super) fn take_left(&mut self, is_over: impl Fn(SessionId) -> bool) -> Vec<SessionId> {
        self.leaving.extract_if(.., |session| is_over(*session)).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn take_left__in_the_order_of_leaving() {
        let mut drain = Drain::default();
        let id = |index| SessionId { index, generation: 0 };
        for index in [3, 1, 2] {
            drain.leave(id(index));
        }
        assert_eq!(drain.take_left(|session| session != id(1)), [id(3), id(2)]);
        assert_eq!((drain.leaving_count(), drain.is_draining()), (1, false));
    }
}
