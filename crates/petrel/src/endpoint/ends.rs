//! Counters of the ends of sessions and of failed calls.

use petrel_proto::{CallFailure, Execution};

use crate::values::SessionEnd;

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
    fn call_failures__each_under_its_name() {
        let mut failures = CallFailures::default();
        let all = [
            Execution::NotSent,
            Execution::Refused,
            Execution::MayHaveExecuted,
            Execution::Answered,
        ];
        for (count, execution) in all.into_iter().enumerate() {
            let failure = CallFailure::new(petrel_proto::Status::Internal, "", execution);
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
