//! A call of a channel: its attempts, one after the other.

use std::time::Duration;

use petrel_planted::planted;
use petrel_proto::{CallFailure, Execution, Status};

use super::Channel;
use super::attempt::{Wanted, may_retry};
use crate::endpoint::CallOptions;
use crate::error::Error;
use crate::events;
use crate::msgbuf::MsgBuf;
use crate::overload::Backoff;
use crate::time::as_ns;

impl Channel {
    /// Calls a method of the service, with as many attempts as the options and the channel's
    /// configuration allow. Dropping the future cancels the call.
    ///
    /// # Errors
    /// That of the last attempt. Whether the call may have been executed counts all of them.
    pub async fn call(
        &self,
        method: u16,
        request: &[u8],
        options: CallOptions,
    ) -> Result<MsgBuf, Error> {
        self.inner.counters.calls.increment();
        if options.hedge_after.is_some() && !options.idempotent {
            return Err(not_idempotent());
        }
        let options = options.no_later_than(self.inner.handle.inherited_ns());
        // All attempts end then, whenever they are made.
        let end_ns = self.end_ns(&options, self.inner.handle.clock_now_ns());
        let wanted = Wanted::new(method, request, &options, end_ns, Vec::new());
        self.attempt_until(&wanted, Progress::default(), None).await
    }

    /// When a call that begins now ends with all its attempts, by its own time or that of the channel.
    pub(super) fn end_ns(&self, options: &CallOptions, now_ns: u64) -> u64 {
        let timeout = options.timeout.unwrap_or(self.inner.config.timeout);
        let end_ns = now_ns.saturating_add(as_ns(timeout));
        options.deadline_ns.map_or(end_ns, |deadline_ns| deadline_ns.min(end_ns))
    }

    /// Makes attempts until the call's end: with `failed`, after one that has failed.
    pub(super) async fn attempt_until(
        &self,
        wanted: &Wanted<'_>,
        mut progress: Progress,
        failed: Option<Error>,
    ) -> Result<MsgBuf, Error> {
        let attempts = self.attempt_all(wanted, &mut progress, failed);
        let ended = self.inner.handle.timeout_at(wanted.end_ns, attempts).await;
        ended.unwrap_or_else(|_| {
            let may_have_executed = progress.may_have_executed || wanted.under_way.get() > 0;
            Err(too_late(progress.attempts, may_have_executed))
        })
    }

    async fn attempt_all(
        &self,
        wanted: &Wanted<'_>,
        progress: &mut Progress,
        mut failed: Option<Error>,
    ) -> Result<MsgBuf, Error> {
        let inner = &self.inner;
        let mut backoff = Backoff::new(inner.config.retry_backoff);
        loop {
            if let Some(failure) = failed.take() {
                self.may_go_on(wanted, progress, failure)?;
                let pause_ns = backoff.next_ns(inner.handle.random());
                inner.handle.sleep(Duration::from_nanos(pause_ns)).await;
            }
            let outcome = match wanted.options.hedge_after {
                Some(after) => self.attempt_hedged(wanted, after, progress).await,
                None => {
                    progress.begin();
                    self.attempt(wanted).await
                }
            };
            match outcome {
                Ok(reply) => {
                    self.note_success();
                    return Ok(reply);
                }
                Err(failure) => {
                    // A hedged call may end while attempts go on that are dropped then.
                    progress.may_have_executed |= wanted.under_way.get() > 0;
                    failed = Some(failure);
                }
            }
        }
    }

    /// A call has its response.
    pub(super) fn note_success(&self) {
        if !planted("channel_budget_never_filled") {
            self.inner.budget.borrow_mut().on_success();
        }
    }

    /// Takes in how an attempt failed; the call's failure if that was the last attempt.
    fn may_go_on(
        &self,
        wanted: &Wanted<'_>,
        progress: &mut Progress,
        failure: Error,
    ) -> Result<(), Error> {
        progress.note(&failure);
        let never_left = wanted.take_never_left() && failure.status == Status::Unavailable;
        if never_left && !planted("channel_unsent_is_an_attempt") {
            progress.take_back();
            self.inner.counters.retries.increment();
            events::call_retried(wanted.method, progress.attempts, &failure);
            return Ok(());
        }
        // The attempt's own outcome decides: an earlier attempt may have run, but that was known
        // when this one was allowed.
        let may_go_on = progress.attempts < self.inner.config.attempts_max
            && may_retry(&failure, wanted.options.idempotent);
        if !may_go_on || !self.may_try_again(wanted.method) {
            return Err(progress.conclude(failure));
        }
        self.inner.counters.retries.increment();
        events::call_retried(wanted.method, progress.attempts, &failure);
        Ok(())
    }

    /// Takes a retry or a hedge out of the budget.
    pub(super) fn may_try_again(&self, method: u16) -> bool {
        let may = self.inner.budget.borrow_mut().try_retry(self.inner.handle.now_ns());
        if !may {
            self.inner.counters.budget_exhausted.increment();
            events::retry_denied(method);
        }
        may
    }
}

/// What is known of a call while it is tried.
#[derive(Default)]
pub(super) struct Progress {
    /// Attempts that were begun.
    pub(super) attempts: u32,
    /// Whether one that has ended may have been executed.
    may_have_executed: bool,
}

impl Progress {
    pub(super) fn begin(&mut self) {
        self.attempts += 1;
    }

    /// The attempt that was begun last does not count.
    fn take_back(&mut self) {
        self.attempts = self.attempts.checked_sub(1).expect("an attempt that failed has begun");
    }

    /// Takes in how an attempt failed.
    pub(super) fn note(&mut self, failure: &CallFailure) {
        self.may_have_executed |= !did_not_run(failure);
    }

    /// The call's failure, by that of its last attempt. An earlier attempt that may have been executed
    /// makes it uncertain.
    fn conclude(&self, mut failure: Error) -> Error {
        if self.may_have_executed && did_not_run(&failure) {
            failure = failure.uncertain();
        }
        if self.attempts > 1 {
            let message = format!("{} (after {} attempts)", failure.message, self.attempts);
            failure = failure.with_message(message);
        }
        failure
    }
}

fn did_not_run(failure: &CallFailure) -> bool {
    matches!(failure.execution, Execution::NotSent | Execution::Refused)
}

#[cold]
fn too_late(attempts: u32, may_have_executed: bool) -> Error {
    let execution = match may_have_executed {
        true => Execution::MayHaveExecuted,
        false => Execution::NotSent,
    };
    let message = format!("no answer within the call's time, in {attempts} attempts");
    Error::of(Status::DeadlineExceeded, message, execution)
}

#[cold]
fn not_idempotent() -> Error {
    let message = "a hedged call may be executed twice: it has to be marked idempotent";
    Error::not_sent(Status::InvalidArgument, message)
}

#[cfg(test)]
mod conclusions {
    use super::*;

    /// The last attempt's failure, what came before it, and how often it was tried.
    #[test]
    fn conclude__counts_all_attempts() {
        use Execution::{Answered, MayHaveExecuted, NotSent, Refused};
        let failure = |execution| Error::of(Status::Unavailable, "gone", execution);
        for last in [NotSent, Refused, MayHaveExecuted, Answered] {
            for before in [vec![], vec![Refused], vec![MayHaveExecuted], vec![Refused, NotSent]] {
                let mut progress = Progress::default();
                for execution in &before {
                    progress.begin();
                    progress.note(&failure(*execution));
                }
                progress.begin();
                let concluded = progress.conclude(failure(last));
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
}
