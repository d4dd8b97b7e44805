//! Futures of time.

use std::future::Future;
use std::pin::Pin;
use std::rc::Rc;
use std::task::{Context as TaskContext, Poll};

use super::hub::Hub;
use super::timers::TimerId;
use crate::error::Error;

/// A future that is ready some time after its first poll: before, the event loop's time may be outdated.
#[derive(Debug)]
pub struct Sleep {
    hub: Rc<Hub>,
    duration_ns: u64,
    /// The end and the timer, once begun.
    until: Option<(u64, TimerId)>,
}

impl Sleep {
    pub(super) fn new(hub: Rc<Hub>, duration_ns: u64) -> Self {
        Self { hub, duration_ns, until: None }
    }
}

impl Future for Sleep {
    type Output = ();

    fn poll(mut self: Pin<&mut Self>, cx: &mut TaskContext<'_>) -> Poll<()> {
        let now_ns = self.hub.now_ns();
        match self.until {
            Some((at_ns, _)) if now_ns >= at_ns => return Poll::Ready(()),
            Some((_, timer)) => self.hub.reset_timer(timer, cx.waker()),
            None if self.duration_ns == 0 => return Poll::Ready(()),
            None => {
                // The time of the turn may be much older: a sleep that counts from the turn would end early.
                let at_ns = self.hub.clock_now_ns().saturating_add(self.duration_ns);
                self.until = Some((at_ns, self.hub.set_timer(at_ns, cx.waker().clone())));
            }
        }
        Poll::Pending
    }
}

impl Drop for Sleep {
    fn drop(&mut self) {
        if let Some((_, timer)) = self.until {
            self.hub.remove_timer(timer);
        }
    }
}

/// A future with a time limit, at which it fails with DEADLINE_EXCEEDED, and the inner future is dropped.
#[derive(Debug)]
pub struct Timeout<F> {
    /// The inner future, on the heap to stay in place when the `Timeout` moves.
    future: Pin<Box<F>>,
    sleep: Sleep,
}

impl<F> Timeout<F> {
    pub(super) fn new(future: F, sleep: Sleep) -> Self {
        Self { future: Box::pin(future), sleep }
    }
}

impl<F: Future> Future for Timeout<F> {
    type Output = Result<F::Output, Error>;

    fn poll(mut self: Pin<&mut Self>, cx: &mut TaskContext<'_>) -> Poll<Self::Output> {
        if let Poll::Ready(output) = self.future.as_mut().poll(cx) {
            return Poll::Ready(Ok(output));
        }
        Pin::new(&mut self.sleep).poll(cx).map(|()| Err(Error::elapsed()))
    }
}
