//! A call that was started by a [`SessionClient`](super::SessionClient), as the thread that waits for it has it.

use std::fmt;
use std::future::Future;
use std::pin::Pin;
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use super::state::CallState;
use super::{ClientShared, park};
use crate::error::Error;
use crate::post::Post;
use crate::sync::Arc;

/// A call on its way: a future of its response, for any executor or none. Dropping it cancels the
/// call: the server is told.
///
/// ```no_run
/// # async fn example(client: petrel::SessionClient) -> Result<(), Box<dyn std::error::Error>> {
/// let call = client.start(1, b"petrel", 100)?;
/// let response: Vec<u8> = call.await?;          // in any executor,
/// let response = client.start(1, b"petrel", 100)?.wait()?; // or on a thread of its own
/// # Ok(())
/// # }
/// ```
#[must_use = "a call that is dropped is given up"]
pub struct RemoteCall {
    state: Arc<CallState>,
    client: Arc<ClientShared>,
}

impl RemoteCall {
    pub(super) fn new(state: Arc<CallState>, client: Arc<ClientShared>) -> Self {
        Self { state, client }
    }

    /// Waits for the response, with the thread parked.
    ///
    /// # Errors
    /// Why the call failed, and whether it may have been executed.
    ///
    /// # Panics
    /// On the thread that runs the endpoint, which would wait for itself.
    pub fn wait(self) -> Result<Vec<u8>, Error> {
        self.client.check_thread();
        park::wait(self)
    }

    /// Waits for the response, but for no longer than this: `None` then, and the call goes on.
    ///
    /// # Panics
    /// As [`RemoteCall::wait`], and when it has given the outcome already.
    pub fn wait_for(&mut self, limit: Duration) -> Option<Result<Vec<u8>, Error>> {
        self.client.check_thread();
        park::wait_for(self, limit)
    }

    /// The outcome if it is there, without waiting.
    ///
    /// # Panics
    /// When it has given the outcome already.
    pub fn try_take(&mut self) -> Option<Result<Vec<u8>, Error>> {
        match self.state.poll(Waker::noop()) {
            Poll::Ready(outcome) => Some(outcome),
            Poll::Pending => None,
        }
    }

    /// Whether the outcome is there.
    pub fn has_ended(&self) -> bool {
        self.state.has_ended()
    }
}

impl Future for RemoteCall {
    type Output = Result<Vec<u8>, Error>;

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        self.state.poll(cx.waker())
    }
}

impl Drop for RemoteCall {
    fn drop(&mut self) {
        if self.state.abandon() {
            // Without the endpoint there is nothing to cancel.
            let _ = self.client.poster.post(Post::Cancel(Arc::clone(&self.state)));
        }
    }
}

impl fmt::Debug for RemoteCall {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "RemoteCall({:?})", self.state)
    }
}
