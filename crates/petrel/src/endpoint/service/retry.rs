//! The record of a call's attempts, and the decision to retry.

use std::time::Duration;

use petrel_planted::planted;
use petrel_proto::{CallFailure, Execution, Status};

use crate::error::Error;
use crate::local::Key;
use crate::overload::{Backoff, BackoffConfig};
use crate::time::as_ns;
use crate::values::client::Target;

/// The most doublings of an attempt's time: a thousandfold reaches the call's own deadline in practice.
const DOUBLINGS_MAX: u32 = 10;

/// The number of a call's attempts, and whether one may have been executed.
#[derive(Debug)]
pub(super) struct AttemptRecord {
    begun: u32,
    /// Attempts that ended for lack of a server.
    unreached: u32,
    /// Whether an ended attempt may have been executed.
    may_have_executed: bool,
}

impl AttemptRecord {
    /// The first attempt begins.
    #[inline(always)]
    pub(super) fn first() -> Self {
        Self { begun: 1, unreached: 0, may_have_executed: false }
    }

    pub(super) fn begin(&mut self) {
        self.begun += 1;
    }

    /// Records that an attempt reached no server.
    pub(super) fn record_unreached(&mut self) {
        assert!(self.unreached < self.begun, "an attempt that failed has begun");
        self.unreached += 1;
    }

    /// Returns the number of attempts that reached a server.
    pub(super) fn reached(&self) -> u32 {
        self.begun.saturating_sub(self.unreached)
    }

    /// Uncounts the attempt begun last.
    pub(super) fn uncount(&mut self) {
        assert!(self.begun > 0, "an attempt that failed has begun");
        self.begun -= 1;
    }

    pub(super) fn count(&self) -> u32 {
        self.begun
    }

    pub(super) fn may_have_executed(&self) -> bool {
        self.may_have_executed
    }

    /// Records the failure of an attempt.
    pub(super) fn record(&mut self, failure: &CallFailure) {
        self.may_have_executed &= !planted("service_refusal_forgets_execution");
        self.may_have_executed |= !did_not_run(failure);
    }

    /// Records an attempt whose end will stay unknown.
    pub(super) fn record_unknown_end(&mut self) {
        self.may_have_executed |= !planted("service_unknown_end_did_not_run");
    }

    /// Returns the failure of the call. An earlier attempt that may have been executed makes the failure uncertain.
    pub(super) fn conclude(&self, mut failure: Error) -> Error {
        if self.may_have_executed && did_not_run(&failure) {
            failure = failure.with_execution(Execution::MayHaveExecuted);
        }
        if self.reached() > 1 {
            let message = format!("{} (after {} attempts)", failure.message, self.reached());
            failure = failure.with_message(message);
        }
        failure
    }
}

/// The state of a call after a failed attempt, or with hedges.
pub(super) struct RetryState {
    backoff: Backoff,
    /// Servers with failed attempts, each once, in the order of their last failure.
    tried: Vec<Target>,
    /// How the last attempt failed.
    last: String,
    /// Redirects since the call last paused.
    redirects: usize,
    /// Attempts that had no answer within their own time.
    timeouts: u32,
    /// Outstanding hedges.
    hedges: Vec<Key>,
}

impl RetryState {
    pub(super) fn new(backoff: BackoffConfig) -> Self {
        let (backoff, tried, last) = (Backoff::new(backoff), Vec::new(), String::new());
        Self { backoff, tried, last, redirects: 0, timeouts: 0, hedges: Vec::new() }
    }

    /// Records a failed attempt at a server.
    pub(super) fn record_failure_at(&mut self, target: Target, why: &str) {
        self.tried.retain(|tried| !tried.is_server(&target));
        self.tried.push(target);
        self.last = format!("{}: {why}", target.address);
    }

    pub(super) fn tried(&self) -> &[Target] {
        &self.tried
    }

    /// Returns how the last attempt failed; empty if none has.
    pub(super) fn last(&self) -> &str {
        &self.last
    }

    /// Counts a redirect. Returns the number of redirects since the call last paused.
    pub(super) fn count_redirect(&mut self) -> usize {
        self.redirects += 1;
        self.redirects
    }

    /// Counts an attempt that had no answer within its own time.
    pub(super) fn count_timeout(&mut self) {
        self.timeouts += 1;
    }

    /// Returns the time of the next attempt: each timeout doubles it, since a slow service would otherwise be asked ever
    /// more often.
    pub(super) fn attempt_ns(&self, timeout: Duration) -> u64 {
        let most = if planted("service_second_timeout_as_first") { 1 } else { DOUBLINGS_MAX };
        as_ns(timeout).saturating_mul(1 << self.timeouts.min(most))
    }

    /// Returns the pause before the next attempt.
    pub(super) fn pause_ns(&mut self, random: u64) -> u64 {
        if !planted("service_redirects_never_forgotten") {
            self.redirects = 0;
        }
        self.backoff.next_ns(random)
    }

    pub(super) fn hedges(&self) -> &[Key] {
        &self.hedges
    }

    pub(super) fn add_hedge(&mut self, attempt: Key) {
        assert!(!self.hedges.contains(&attempt), "a hedge is added once");
        self.hedges.push(attempt);
    }

    /// Removes a hedge that has ended.
    pub(super) fn remove_hedge(&mut self, attempt: Key) {
        let index = self.hedges.iter().position(|hedge| *hedge == attempt);
        self.hedges.remove(index.expect("a hedge that ends is outstanding"));
    }

    pub(super) fn take_hedges(&mut self) -> Vec<Key> {
        std::mem::take(&mut self.hedges)
    }
}

fn did_not_run(failure: &CallFailure) -> bool {
    matches!(failure.execution, Execution::NotSent | Execution::Refused)
}

/// Returns true if a call with this failure may be retried.
pub(super) fn may_retry(failure: &CallFailure, is_idempotent: bool) -> bool {
    match (failure.status, failure.execution) {
        // The call has no time left, or the caller no longer wants it, wherever the call was.
        (Status::DeadlineExceeded | Status::Cancelled, _) => false,
        (Status::Unavailable, Execution::NotSent | Execution::Refused) => true,
        (Status::ResourceExhausted, Execution::Refused) => true,
        (Status::Unavailable, _) => is_idempotent,
        _ => false,
    }
}

/// Returns true if an attempt may be repeated as if it had not been made: it reached no server, and so adds no load
/// (gRPC, proposal A6, transparent retries). A hedge is made while another attempt is outstanding and always counts.
pub(super) fn is_transparent(failure: &CallFailure, is_hedged: bool) -> bool {
    failure.execution == Execution::NotSent
        && failure.status == Status::Unavailable
        && !is_hedged
        && !planted("service_unsent_is_an_attempt")
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The last attempt's failure, the failures before it, and the number of attempts.
    #[test]
    fn conclude__counts_all_attempts() {
        use Execution::{Answered, MayHaveExecuted, NotSent, Refused};
        let failure = |execution| Error::of(Status::Unavailable, "gone", execution);
        for last in [NotSent, Refused, MayHaveExecuted, Answered] {
            let uncertain = [vec![MayHaveExecuted], vec![MayHaveExecuted, Refused]];
            for before in
                [vec![], vec![Refused], vec![Refused, NotSent]].into_iter().chain(uncertain)
            {
                let mut attempts =
                    AttemptRecord { begun: 0, unreached: 0, may_have_executed: false };
                for execution in &before {
                    attempts.begin();
                    attempts.record(&failure(*execution));
                }
                attempts.begin();
                let concluded = attempts.conclude(failure(last));
                let is_uncertain = before.contains(&MayHaveExecuted);
                let expected = match last {
                    NotSent | Refused if is_uncertain => MayHaveExecuted,
                    as_it_is => as_it_is,
                };
                assert_eq!(concluded.execution, expected, "{before:?}, {last:?}");
                assert_eq!(concluded.status, Status::Unavailable);
                let message = match before.len() {
                    0 => "gone",
                    1 => "gone (after 2 attempts)",
                    _ => "gone (after 3 attempts)",
                };
                assert_eq!(concluded.message, message);
            }
        }
    }

    #[test]
    fn attempt_ns__doubles_with_each_timeout_up_to_a_thousandfold() {
        let mut state = RetryState::new(BackoffConfig::default());
        let times: Vec<u64> = (0..13)
            .map(|_| {
                let attempt_ns = state.attempt_ns(Duration::from_nanos(5));
                state.count_timeout();
                attempt_ns
            })
            .collect();
        assert_eq!(
            (&times[..3], &times[9..]),
            (&[5, 10, 20][..], &[2_560, 5_120, 5_120, 5_120][..])
        );
        assert_eq!(state.attempt_ns(Duration::MAX), u64::MAX);
    }

    #[test]
    fn conclude__after_an_unknown_end() {
        let mut attempts = AttemptRecord::first();
        attempts.record_unknown_end();
        let refused = Error::of(Status::Unavailable, "gone", Execution::Refused);
        assert_eq!(attempts.conclude(refused).execution, Execution::MayHaveExecuted);
    }

    #[test]
    fn count_redirect__begins_again_after_each_pause() {
        let mut state = RetryState::new(BackoffConfig::default());
        for _pause in 0..3 {
            assert_eq!([state.count_redirect(), state.count_redirect()], [1, 2]);
            state.pause_ns(0);
        }
    }

    panics! {
        uncount__more_attempts_than_have_begun: "an attempt that failed has begun" => {
            let mut attempts = AttemptRecord::first();
            attempts.uncount();
            attempts.uncount();
        };
        remove_hedge__that_is_not_outstanding: "a hedge that ends is outstanding" => {
            let mut state = RetryState::new(BackoffConfig::default());
            state.add_hedge(Key::from_bits(1));
            state.remove_hedge(Key::from_bits(2));
        };
    }
}
