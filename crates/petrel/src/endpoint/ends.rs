//! Counters of the ends of sessions and of failed calls.

use petrel_proto::{CallFailure, Execution};

/// How a session ended. The [`Reason`](crate::control::Reason) explains it in words.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum SessionEnd {
    /// This side closed it.
    ClosedHere,
    /// The peer closed it.
    ClosedByPeer,
    /// The server drained.
    Drained,
    /// The link to the peer went down: its process ended, was restarted, hung, or cannot be reached.
    LinkLost,
    /// It never opened: no link could be made.
    NotReached,
    /// It never opened: the peer refused it.
    Refused,
    /// Its request numbers are used up, or the server was silent for too many timeouts.
    Exhausted,
    /// The peer accepted it with impossible values, or after the local end was closed.
    Invalid,
}

impl SessionEnd {
    const ALL: [Self; 8] = [
        Self::ClosedHere,
        Self::ClosedByPeer,
        Self::Drained,
        Self::LinkLost,
        Self::NotReached,
        Self::Refused,
        Self::Exhausted,
        Self::Invalid,
    ];

    /// Returns the name of its counter, without `sessions_ended_`.
    pub fn name(self) -> &'static str {
        match self {
            Self::ClosedHere => "closed_here",
            Self::ClosedByPeer => "closed_by_peer",
            Self::Drained => "drained",
            Self::LinkLost => "link_lost",
            Self::NotReached => "not_reached",
            Self::Refused => "refused",
            Self::Exhausted => "exhausted",
            Self::Invalid => "invalid",
        }
    }

    /// Returns true if sessions end this way in normal operation.
    pub fn is_expected(self) -> bool {
        matches!(self, Self::ClosedHere | Self::ClosedByPeer | Self::Drained)
    }

    fn counter(self) -> &'static str {
        match self {
            Self::ClosedHere => "sessions_ended_closed_here",
            Self::ClosedByPeer => "sessions_ended_closed_by_peer",
            Self::Drained => "sessions_ended_drained",
            Self::LinkLost => "sessions_ended_link_lost",
            Self::NotReached => "sessions_ended_not_reached",
            Self::Refused => "sessions_ended_refused",
            Self::Exhausted => "sessions_ended_exhausted",
            Self::Invalid => "sessions_ended_invalid",
        }
    }
}

/// The number of ended sessions by the kind of end, in both roles.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SessionEnds([u64; SessionEnd::ALL.len()]);

impl SessionEnds {
    /// Returns the number of sessions with this kind of end.
    pub fn get(&self, end: SessionEnd) -> u64 {
        self.0[end as usize]
    }

    /// Returns names and values, in order.
    pub fn iter(&self) -> impl Iterator<Item = (&'static str, u64)> {
        let counts = *self;
        SessionEnd::ALL.into_iter().map(move |end| (end.counter(), counts.get(end)))
    }

    pub(super) fn count(&mut self, end: SessionEnd) {
        self.0[end as usize] += 1;
    }
}

/// Failed calls of this endpoint, by the known state of their execution. Their sum is `calls_failed` of the protocol's
/// counters.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct CallFailures {
    /// Nothing of the request was sent.
    pub not_sent: u64,
    /// The server reported a refusal without execution.
    pub refused: u64,
    /// The request was sent, and the outcome is unknown.
    pub may_have_executed: u64,
    /// The server answered with the failure.
    pub answered: u64,
}

impl CallFailures {
    /// Returns names and values, in order.
    pub fn iter(&self) -> impl Iterator<Item = (&'static str, u64)> {
        [
            ("calls_failed_not_sent", self.not_sent),
            ("calls_failed_refused", self.refused),
            ("calls_failed_may_have_executed", self.may_have_executed),
            ("calls_failed_answered", self.answered),
        ]
        .into_iter()
    }

    pub(super) fn count(&mut self, failure: &CallFailure) {
        match failure.execution {
            Execution::NotSent => self.not_sent += 1,
            Execution::Refused => self.refused += 1,
            Execution::MayHaveExecuted => self.may_have_executed += 1,
            Execution::Answered => self.answered += 1,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn iter__has_each_end_under_its_name() {
        let mut ends = SessionEnds::default();
        for (count, end) in SessionEnd::ALL.into_iter().enumerate() {
            (0..=count).for_each(|_| ends.count(end));
            assert_eq!(end.counter(), format!("sessions_ended_{}", end.name()));
        }
        let values: Vec<_> = ends.iter().map(|(_, value)| value).collect();
        assert_eq!(values, [1, 2, 3, 4, 5, 6, 7, 8]);
    }

    /// The end of a closed or drained session needs no investigation.
    #[test]
    fn is_expected__of_requested_ends() {
        let expected = SessionEnd::ALL.into_iter().filter(|end| end.is_expected());
        let names: Vec<_> = expected.map(SessionEnd::name).collect();
        assert_eq!(names, ["closed_here", "closed_by_peer", "drained"]);
    }

    #[test]
    fn call_failures__each_under_its_name() {
        let mut failures = CallFailures::default();
        let all = [
            Execution::NotSent,
            Execution::Refused,
            Execution::MayHaveExecuted,
            Execution::Answered,
        ];
        for (count, execution) in all.into_iter().enumerate() {
            let (status, message) = (petrel_proto::Status::Internal, String::new());
            let failure = CallFailure { status, message, execution };
            (0..=count).for_each(|_| failures.count(&failure));
        }
        let expected = [
            ("calls_failed_not_sent", 1),
            ("calls_failed_refused", 2),
            ("calls_failed_may_have_executed", 3),
            ("calls_failed_answered", 4),
        ];
        assert_eq!(failures.iter().collect::<Vec<_>>(), expected);
    }
}
