//! Futures of time.

use std::future::Future;
use std::pin::Pin;
use std::rc::Rc;
use std::task::{Context as TaskContext, Poll};

use super::hub::Hub;
use super::timers::TimerId;

/// A future that is ready at a time.
#[derive(Debug)]
pub struct Sleep {
    hub: Rc<Hub>,
    at_ns: u64,
    timer: Option<TimerId>,
}

impl Sleep {
    pub(super) fn new(hub: Rc<Hub>, at_ns: u64) -> Self {
        Self { hub, at_ns, timer: None }
    }
}

impl Future for Sleep {
    type Output = ();

    fn poll(mut self: Pin<&mut Self>, cx: &mut TaskContext<'_>) -> Poll<()> {
        if self.hub.now_ns() >= self.at_ns {
            return Poll::Ready(());
        }
        match self.timer {
            Some(timer) => self.hub.reset_timer(timer, cx.waker()),
            None => self.timer = Some(self.hub.set_timer(self.at_ns, cx.waker().clone())),
        }
        Poll::Pending
    }
}

impl Drop for Sleep {
    fn drop(&mut self) {
        if let Some(timer) = self.timer {
            self.hub.remove_timer(timer);
        }
    }
}

/// The time that was given to a future is over.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the time is over")]
pub struct Elapsed;

/// A future with a limit of time; what it does not reach until then is dropped.
#[derive(Debug)]
pub struct Timeout<F> {
    /// On the heap, so that it stays where it is however this is moved.
    future: Pin<Box<F>>,
    sleep: Sleep,
}

impl<F> Timeout<F> {
    pub(super) fn new(future: F, sleep: Sleep) -> Self {
        Self { future: Box::pin(future), sleep }
    }
}

impl<F: Future> Future for Timeout<F> {
    type Output = Result<F::Output, Elapsed>;

    fn poll(mut self: Pin<&mut Self>, cx: &mut TaskContext<'_>) -> Poll<Self::Output> {
        if let Poll::Ready(output) = self.future.as_mut().poll(cx) {
            return Poll::Ready(Ok(output));
        }
        Pin::new(&mut self.sleep).poll(cx).map(|()| Err(Elapsed))
    }
}
