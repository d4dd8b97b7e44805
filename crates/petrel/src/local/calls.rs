//! Calls as futures.

use std::future::Future;
use std::pin::Pin;
use std::rc::Rc;
use std::task::{Context as TaskContext, Poll, Waker, ready};

use petrel_proto::SessionId;

use super::hub::Hub;
use super::parallel::Gathering;
use super::slab::{Key, Slab};
use crate::endpoint::CallOptions;
use crate::error::Error;
use crate::msgbuf::MsgBuf;

/// The response of a call, or why there is none.
pub(super) type Outcome = Result<MsgBuf, Error>;

/// A call that was started: a future of its response.
///
/// Await it in a task, or wait for it by [`Endpoint::block_on`](crate::Endpoint::block_on), or ask
/// from time to time by [`Call::try_take`]. The call goes its way whether somebody looks or not, as
/// long as the event loop runs.
///
/// Dropping it before its end **cancels** the call: if the request has not left it never will, else
/// the server is told, and its handler can see it. It may have been executed all the same.
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

    /// The outcome, if the call has ended and it was not taken before. Does not wait.
    pub fn try_take(&mut self) -> Option<Result<MsgBuf, Error>> {
        let outcome = self.hub.take_outcome(self.key?)?;
        self.key = None;
        Some(outcome)
    }

    /// Has the outcome given to a gathering of calls instead.
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
    /// When it is polled after it has given its outcome.
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

/// A call that a future has asked for, and that the event loop has not made yet.
#[derive(Debug)]
pub(crate) struct Start {
    pub(crate) key: u64,
    pub(crate) session: SessionId,
    pub(crate) method: u16,
    pub(crate) request: MsgBuf,
    pub(crate) response: MsgBuf,
    pub(crate) options: CallOptions,
}

/// Who wants to know of a call's end.
#[derive(Debug)]
pub(super) enum Interest {
    /// Nobody has asked yet.
    None,
    Task(Waker),
    /// A task of the endpoint, without a detour by its waker.
    Own(Key),
    Gathering(Rc<Gathering>, u64),
}

/// A call that has not ended, or whose outcome was not taken.
#[derive(Debug)]
pub(super) struct Pending {
    pub(super) session: SessionId,
    pub(super) interest: Interest,
    pub(super) outcome: Option<Outcome>,
}

/// The calls of an endpoint's futures.
pub(super) type Calls = Slab<Pending>;

impl Pending {
    pub(super) fn new(session: SessionId) -> Self {
        Self { session, interest: Interest::None, outcome: None }
    }
}
