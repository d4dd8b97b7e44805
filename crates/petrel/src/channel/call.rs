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
        self.inner.counters.count(|stats| stats.calls += 1);
        if options.hedge_after.is_some() && !options.idempotent {
            return Err(not_idempotent());
        }
        let options = options.no_later_than(self.inner.handle.inherited_ns());
        let timeout = options.timeout.unwrap_or(self.inner.config.timeout);
        // All attempts end then, whenever they are made.
        let end_ns = self.inner.handle.clock_now_ns().saturating_add(as_ns(timeout));
        let mut progress = Progress::default();
        let wanted = Wanted::new(method, request, &options, end_ns);
        let attempts = self.attempt_all(&wanted, &mut progress);
        let ended = self.inner.handle.timeout_at(end_ns, attempts).await;
        ended.unwrap_or_else(|_| {
            let may_have_executed = progress.may_have_executed || wanted.under_way.get() > 0;
            Err(too_late(timeout, progress.attempts, may_have_executed))
        })
    }

    async fn attempt_all(
        &self,
        wanted: &Wanted<'_>,
        progress: &mut Progress,
    ) -> Result<MsgBuf, Error> {
        let inner = &self.inner;
        let mut backoff = Backoff::new(inner.config.retry_backoff);
        loop {
            let outcome = match wanted.options.hedge_after {
                Some(after) => self.attempt_hedged(wanted, after, progress).await,
                None => {
                    progress.begin();
                    self.attempt(wanted).await
                }
            };
            let failure = match outcome {
                Ok(reply) => {
                    if !planted("channel_budget_never_filled") {
                        inner.budget.borrow_mut().on_success();
                    }
                    return Ok(reply);
                }
                Err(failure) => failure,
            };
            // A hedged call may end while attempts go on that are dropped then.
            progress.may_have_executed |= wanted.under_way.get() > 0;
            progress.note(&failure);
            // The attempt's own outcome decides: an earlier attempt may have run, but that was known
            // when this one was allowed.
            let may_go_on = progress.attempts < inner.config.attempts_max
                && may_retry(&failure, wanted.options.idempotent);
            if !may_go_on || !self.may_try_again(wanted.method) {
                return Err(progress.conclude(failure));
            }
            inner.counters.count(|stats| stats.retries += 1);
            events::call_retried(wanted.method, progress.attempts, &failure);
            let pause_ns = backoff.next_ns(inner.handle.random());
            inner.handle.sleep(Duration::from_nanos(pause_ns)).await;
        }
    }

    /// Takes a retry or a hedge out of the budget.
    pub(super) fn may_try_again(&self, method: u16) -> bool {
        let may = self.inner.budget.borrow_mut().try_retry(self.inner.handle.now_ns());
        if !may {
            self.inner.counters.count(|stats| stats.budget_exhausted += 1);
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
fn too_late(timeout: Duration, attempts: u32, may_have_executed: bool) -> Error {
    let execution = match may_have_executed {
        true => Execution::MayHaveExecuted,
        false => Execution::NotSent,
    };
    let message = format!("no answer within {timeout:?}, in {attempts} attempts");
    Error::of(Status::DeadlineExceeded, message, execution)
}

#[cold]
fn not_idempotent() -> Error {
    let message = "a hedged call may be executed twice: it has to be marked idempotent";
    Error::not_sent(Status::InvalidArgument, message)
}
