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
    /// Whether the last attempt did not leave this process, though its server could be asked when it began.
    never_left: Cell<bool>,
    /// Servers that attempts were made at, in the order of the attempts. Those under way count.
    tried: RefCell<Vec<Target>>,
}

impl<'a> Wanted<'a> {
    pub(super) fn new(
        method: u16,
        request: &'a [u8],
        options: &'a CallOptions,
        end_ns: u64,
        tried: Vec<Target>,
    ) -> Self {
        let (under_way, never_left, tried) = (Cell::new(0), Cell::new(false), RefCell::new(tried));
        Self { method, request, options, end_ns, under_way, never_left, tried }
    }

    /// An attempt at a server has ended.
    pub(super) fn note_end(&self, failure: Option<&Error>) {
        let was_sent = |failure: &Error| failure.execution != Execution::NotSent;
        self.never_left.set(failure.is_some_and(|failure| !was_sent(failure)));
    }

    /// Whether the attempt that failed last may be repeated as if it had not been made: no server has heard of it, so that it
    /// adds nothing to the load of one (gRPC, proposal A6, transparent retries). Each attempt is asked about once.
    pub(super) fn take_never_left(&self) -> bool {
        self.never_left.take() && self.options.hedge_after.is_none()
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
        let options = for_an_attempt(wanted.options, wanted.end_ns);
        wanted.under_way.set(wanted.under_way.get() + 1);
        let outcome = session.call(wanted.method, wanted.request).options(options).await;
        wanted.under_way.set(wanted.under_way.get() - 1);
        wanted.note_end(outcome.as_ref().err());
        self.note_end(outstanding, &outcome);
        outcome
    }

    /// An attempt has ended.
    pub(super) fn note_end<A>(&self, outstanding: Outstanding, outcome: &Result<A, Error>) {
        outstanding.end(outcome);
        if let Err(failure) = outcome {
            let counters = &self.inner.counters;
            let counter = match failure.execution {
                Execution::NotSent => &counters.attempts_not_sent,
                Execution::Refused => &counters.attempts_refused,
                Execution::MayHaveExecuted => &counters.attempts_uncertain,
                Execution::Answered => &counters.attempts_failed,
            };
            counter.increment();
        }
    }
}

/// The options of one attempt of a call that ends at `end_ns` with all of its attempts.
pub(super) fn for_an_attempt(options: &CallOptions, end_ns: u64) -> CallOptions {
    let options = options.no_later_than(Some(end_ns));
    CallOptions { timeout: None, hedge_after: None, wait_for_ready: false, ..options }
}

#[cold]
pub(super) fn unreachable(failures: String) -> Error {
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
