//! Calls as futures.

use std::future::Future;
use std::mem;
use std::pin::Pin;
use std::rc::Rc;
use std::task::{Context as TaskContext, Poll, Waker, ready};

use petrel_proto::SessionId;

use super::hub::Hub;
use super::parallel::Gathering;
use super::slab::{Key, Slab};
use crate::error::Error;
use crate::msgbuf::MsgBuf;

/// The outcome of a call: the response, or the failure.
pub(super) type Outcome = Result<MsgBuf, Error>;

/// A started call: a future of its response.
///
/// Await it in a task, wait for it by [`Endpoint::block_on`](crate::Endpoint::block_on), or poll it by
/// [`Call::try_take`]. The call continues without polls, as long as the event loop runs.
///
/// Dropping it before the end **cancels** the call. A request that has not left never will; otherwise the server is
/// notified, and the handler can see the cancellation. The call may still have been executed.
#[must_use = "dropping a call cancels it"]
#[derive(Debug)]
pub struct Call {
    hub: Rc<Hub>,
    key: Option<Key>,
}

impl Call {
    pub(super) fn new(hub: Rc<Hub>, key: Key) -> Self {
        Self { hub, key: Some(key) }
    }

    /// Returns the outcome, if the call has ended and its outcome was not taken before. Does not wait.
    pub fn try_take(&mut self) -> Option<Result<MsgBuf, Error>> {
        let outcome = self.hub.take_outcome(self.key?)?;
        self.key = None;
        Some(outcome)
    }

    /// Sends the outcome to a collection of calls instead.
    pub(super) fn redirect(mut self, to: &Rc<Gathering>, label: u64) {
        if let Some(key) = self.key.take() {
            self.hub.redirect(key, to, label);
        }
    }

    pub(super) fn hub(&self) -> &Rc<Hub> {
        &self.hub
    }
}

impl Future for Call {
    type Output = Result<MsgBuf, Error>;

    /// # Panics
    /// When polled after it has returned the outcome.
    fn poll(mut self: Pin<&mut Self>, cx: &mut TaskContext<'_>) -> Poll<Self::Output> {
        let Some(key) = self.key else { panic!("the call's outcome was taken") };
        let outcome = ready!(self.hub.poll_call(key, cx.waker()));
        self.key = None;
        Poll::Ready(outcome)
    }
}

impl Drop for Call {
    fn drop(&mut self) {
        if let Some(key) = self.key {
            self.hub.abandon(key);
        }
    }
}

/// A call started by a future and not yet made by the event loop.
#[derive(Debug)]
pub(crate) struct Start {
    pub(crate) key: u64,
    pub(crate) session: SessionId,
    pub(crate) method: u16,
    pub(crate) request: MsgBuf,
    pub(crate) response: MsgBuf,
    pub(crate) deadline_ns: Option<u64>,
}

/// The progress of a call, with the task that awaits its end.
#[derive(Debug)]
pub(super) enum Progress {
    /// No task awaits it yet.
    Begun,
    AwaitedBy(Waker),
    /// By a task of the endpoint, woken without its waker.
    AwaitedByOwn(Key),
    Gathered(Rc<Gathering>, u64),
    Ended(Outcome),
}

impl Progress {
    /// Replaces a progress that owns nothing by `next`, without instructions to drop it.
    #[inline(always)]
    pub(super) fn set(&mut self, next: Self) {
        debug_assert!(matches!(self, Progress::Begun | Progress::AwaitedByOwn(_)));
        mem::forget(mem::replace(self, next));
    }
}

/// A call that has not ended, or with an outcome not taken yet.
#[derive(Debug)]
pub(super) struct Pending {
    pub(super) session: SessionId,
    pub(super) progress: Progress,
}

/// The calls of an endpoint's futures.
pub(super) type Calls = Slab<Pending>;

impl Pending {
    pub(super) fn new(session: SessionId) -> Self {
        Self { session, progress: Progress::Begun }
    }

    /// Records the awaiting task: a task of the endpoint, or another, by its waker.
    #[inline(never)]
    pub(super) fn await_by(&mut self, own: Option<Key>, waker: &Waker) {
        match (own, &mut self.progress) {
            (Some(task), progress) => *progress = Progress::AwaitedByOwn(task),
            (None, Progress::AwaitedBy(before)) => before.clone_from(waker),
            (None, progress) => *progress = Progress::AwaitedBy(waker.clone()),
        }
    }

    #[inline]
    pub(super) fn has_ended(&self) -> bool {
        matches!(self.progress, Progress::Ended(_))
    }
}

/// Removes a call that has ended, and returns its outcome.
#[inline(always)]
pub(super) fn take_ended(calls: &mut Calls, key: Key) -> Option<Outcome> {
    match calls.remove(key)?.progress {
        Progress::Ended(outcome) => Some(outcome),
        _ => None,
    }
}
