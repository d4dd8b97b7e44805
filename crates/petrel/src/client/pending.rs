//! The calls of a service's own client.

use std::fmt;
use std::future::Future;
use std::pin::Pin;
use std::task::{Context, Poll};

/// A call of a service's own client, or several in a row: such a client wraps a [`Client`](super::Client). Awaiting or
/// [waiting](Pending::wait) begins the call.
#[must_use = "a call begins when it is awaited or waited for"]
pub struct Pending<T, E>(Pin<Box<dyn Future<Output = Result<T, E>> + Send>>);

impl<T, E> Pending<T, E> {
    /// Returns calls that have not begun.
    pub fn new(calls: impl Future<Output = Result<T, E>> + Send + 'static) -> Self {
        Self(Box::pin(calls))
    }

    /// Waits for the end, and parks the thread meanwhile.
    ///
    /// # Errors
    /// The service's.
    ///
    /// # Panics
    /// In code run by an endpoint's event loop, as [`wait`](super::wait).
    pub fn wait(self) -> Result<T, E> {
        super::wait(self)
    }
}

impl<T, E> Future for Pending<T, E> {
    type Output = Result<T, E>;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        self.0.as_mut().poll(cx)
    }
}

impl<T, E> fmt::Debug for Pending<T, E> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Pending").finish_non_exhaustive()
    }
}
