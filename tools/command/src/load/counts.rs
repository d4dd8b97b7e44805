//! The outcomes of the calls of a run.

use std::time::Duration;

use petrel::{Execution, Status};
use serde::Serialize;

use crate::output::latency::Latencies;

/// The outcomes of the calls of a run, so far.
#[derive(Default)]
pub struct Counts {
    /// Calls started, including rejected calls.
    pub started: u64,
    /// Calls with a response, right or wrong.
    pub answered: u64,
    /// Wrong responses.
    pub mismatched: u64,
    /// Failed calls, grouped by the kind of failure.
    pub failures: Vec<FailureGroup>,
    /// Times of the answered calls.
    pub latencies: Latencies,
    /// Duration of the run.
    pub elapsed_ns: u64,
    /// Packets that this end retransmitted.
    pub retransmissions: u64,
}

/// Calls that failed in the same way.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct FailureGroup {
    /// Name of the gRPC status code.
    pub status: &'static str,
    /// Whether the server may have executed the calls: `yes`, `no`, or `answered`.
    #[serde(rename = "may_have_executed")]
    pub executed: &'static str,
    /// Number of the calls.
    pub count: u64,
    /// The message of the first failure.
    pub message: String,
}

impl Counts {
    /// Returns the number of calls that ended without a response.
    pub fn failed(&self) -> u64 {
        self.failures.iter().map(|group| group.count).sum()
    }

    /// Returns true if all calls were answered correctly.
    pub fn is_valid(&self) -> bool {
        self.mismatched == 0 && self.failures.is_empty()
    }

    /// Returns the answered calls per second.
    pub fn calls_per_second(&self) -> f64 {
        self.answered as f64 * 1e9 / self.elapsed_ns.max(1) as f64
    }

    #[inline]
    pub(super) fn answer(&mut self, latency_ns: u64, is_right: bool) {
        self.answered += 1;
        self.mismatched += u64::from(!is_right);
        self.latencies.record(latency_ns);
    }

    /// Counts a failed call.
    pub fn fail(&mut self, failure: &petrel::Error) {
        self.count(failure.status, executed(failure.execution), || failure.message.clone());
    }

    /// Counts a call that got no reply in time.
    pub fn give_up(&mut self, execution: Execution, timeout: Duration) {
        let message = || format!("no reply within {timeout:?}");
        self.count(Status::DeadlineExceeded, executed(execution), message);
    }

    fn count(&mut self, status: Status, executed: &'static str, message: impl FnOnce() -> String) {
        let status = status.name();
        let is_alike =
            |group: &&mut FailureGroup| group.status == status && group.executed == executed;
        match self.failures.iter_mut().find(is_alike) {
            Some(group) => group.count += 1,
            None => {
                self.failures.push(FailureGroup { status, executed, count: 1, message: message() });
            }
        }
    }
}

/// Returns, in one word, whether the server may have executed the request.
pub fn executed(execution: Execution) -> &'static str {
    match execution {
        Execution::NotSent | Execution::Refused => "no",
        Execution::MayHaveExecuted => "yes",
        Execution::Answered => "answered",
    }
}

/// `3 calls ended with UNAVAILABLE (may have executed: yes): the connection broke`.
impl std::fmt::Display for FailureGroup {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Self { status, executed, count, message } = self;
        let calls = if *count == 1 { "call" } else { "calls" };
        write!(f, "{count} {calls} ended with {status} ")?;
        match *executed {
            "answered" => write!(f, "(the server answered): {message}"),
            executed => write!(f, "(may have executed: {executed}): {message}"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn failure(status: Status, execution: Execution) -> petrel::Error {
        petrel_proto::CallFailure::new(status, "gone", execution).into()
    }

    #[test]
    fn fail__groups_by_status_and_execution() {
        let mut counts = Counts::default();
        assert!(counts.is_valid());
        counts.fail(&failure(Status::Unavailable, Execution::MayHaveExecuted));
        counts.fail(&failure(Status::Unavailable, Execution::MayHaveExecuted));
        counts.fail(&failure(Status::Unavailable, Execution::NotSent));
        counts.fail(&failure(Status::Unavailable, Execution::NotSent));
        assert_eq!(counts.failures.iter().map(|group| group.count).collect::<Vec<_>>(), [2, 2]);
        assert_eq!(counts.failed(), 4);
        assert_eq!(
            counts.failures[0].to_string(),
            "2 calls ended with UNAVAILABLE (may have executed: yes): gone"
        );
        assert!(!counts.is_valid());
    }

    #[test]
    fn answer__counts_wrong_ones() {
        let mut counts = Counts::default();
        counts.answer(10, true);
        counts.answer(10, false);
        assert_eq!((counts.answered, counts.mismatched), (2, 1));
        assert!(!counts.is_valid());
    }
}
