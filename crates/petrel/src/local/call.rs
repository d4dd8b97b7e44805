//! Calls as futures.

use std::future::Future;
use std::pin::Pin;
use std::rc::Rc;
use std::task::{Context, Poll, ready};

use super::completions::Completions;
use super::hub::Hub;
use super::slab::Key;
use crate::error::Error;
use crate::msgbuf::MsgBuf;

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
    #[inline]
    pub(crate) fn new(hub: Rc<Hub>, key: Key) -> Self {
        Self { hub, key: Some(key) }
    }

    /// Returns the outcome, if the call has ended and its outcome was not taken before. Does not wait.
    pub fn try_take(&mut self) -> Option<Result<MsgBuf, Error>> {
        let outcome = self.hub.take_outcome(self.key?)?;
        self.key = None;
        Some(outcome)
    }

    /// Sends the outcome to a collection of calls instead.
    pub(super) fn redirect(mut self, to: &Rc<Completions>, label: u64) {
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
    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
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
