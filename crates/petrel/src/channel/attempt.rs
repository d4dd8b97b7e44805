//! One attempt of a call: at one server, once.

use std::cell::{Cell, RefCell};

use petrel_planted::planted;
use petrel_proto::{CallFailure, Execution, Status};

use super::Channel;
use super::config::Target;
use super::permit::Outstanding;
use crate::endpoint::CallOptions;
use crate::error::Error;
use crate::msgbuf::MsgBuf;

/// A call of a channel, as all its attempts share it.
pub(super) struct Wanted<'a> {
    pub(super) method: u16,
    pub(super) request: &'a [u8],
    pub(super) options: &'a CallOptions,
    pub(super) end_ns: u64,
    /// Attempts that were handed to a session and have not ended, or were dropped before.
    pub(super) under_way: Cell<u32>,
    /// Servers that attempts were made at, in the order of the attempts. Those under way count.
    tried: RefCell<Vec<Target>>,
}

impl<'a> Wanted<'a> {
    pub(super) fn new(
        method: u16,
        request: &'a [u8],
        options: &'a CallOptions,
        end_ns: u64,
    ) -> Self {
        let (under_way, tried) = (Cell::new(0), RefCell::default());
        Self { method, request, options, end_ns, under_way, tried }
    }
}

impl Channel {
    /// Makes an attempt, at a server that has had none if there is one, else at that whose attempt began
    /// first.
    pub(super) async fn attempt(&self, wanted: &Wanted<'_>) -> Result<MsgBuf, Error> {
        let inner = &self.inner;
        let (connection, session) = loop {
            if let Some(chosen) = inner.choose(&wanted.tried.borrow()) {
                break chosen;
            }
            if wanted.options.wait_for_ready {
                self.ready().await;
                continue;
            }
            if let Some(failures) = self.failures() {
                return Err(unreachable(failures));
            }
            inner.wait_for_any(|one| one.is_ready() || self.failures().is_some()).await;
        };
        if !(planted("channel_hedges_are_not_tries") && wanted.options.hedge_after.is_some()) {
            wanted.tried.borrow_mut().push(connection.target);
        }
        let outstanding = Outstanding::begin(&inner.handle, &connection).await;
        let own_ns = wanted.options.deadline_ns.unwrap_or(u64::MAX);
        let deadline_ns = Some(wanted.end_ns.min(own_ns));
        let options = CallOptions { timeout: None, deadline_ns, ..*wanted.options };
        wanted.under_way.set(wanted.under_way.get() + 1);
        let outcome = session.start_with(wanted.method, wanted.request, options).await;
        wanted.under_way.set(wanted.under_way.get() - 1);
        outstanding.end(&outcome);
        if let Err(failure) = &outcome {
            inner.counters.count(|stats| match failure.execution {
                Execution::NotSent => stats.attempts_not_sent += 1,
                Execution::Refused => stats.attempts_refused += 1,
                Execution::MayHaveExecuted => stats.attempts_uncertain += 1,
                Execution::Answered => stats.attempts_failed += 1,
            });
        }
        outcome
    }
}

#[cold]
fn unreachable(failures: String) -> Error {
    Error::not_sent(Status::Unavailable, format!("no server can be reached: {failures}"))
}

/// Whether a call that failed so may be tried again.
pub(super) fn may_retry(failure: &CallFailure, is_idempotent: bool) -> bool {
    match (failure.status, failure.execution) {
        // Its time is over, or the caller does not want it any more, wherever it was.
        (Status::DeadlineExceeded | Status::Cancelled, _) => false,
        (Status::Unavailable, Execution::NotSent | Execution::Refused) => true,
        (Status::ResourceExhausted, Execution::Refused) => true,
        (Status::Unavailable, _) => is_idempotent,
        _ => false,
    }
}
