//! Waiting for a future without an executor: the thread is parked until woken.

use std::cell::Cell;
use std::future::Future;
use std::pin::pin;
use std::task::{Context, Poll, Wake, Waker};

use crate::endpoint::runs_loop;
use crate::look;
use crate::sync::thread::{self, Thread};
use crate::sync::{Arc, AtomicBool, Ordering, thread_local};

/// Wakes a parked thread.
struct Parker {
    thread: Thread,
    is_woken: AtomicBool,
}

/// The means of a thread to wait.
struct Parking {
    parker: Arc<Parker>,
    waker: Waker,
    /// The waits in progress: a polled future may wait for a second future.
    waits: Cell<u32>,
}

/// A wait in progress.
struct Waiting<'a>(&'a Parking);

impl<'a> Waiting<'a> {
    fn begin(parking: &'a Parking) -> Self {
        parking.waits.set(parking.waits.get() + 1);
        Self(parking)
    }
}

impl Drop for Waiting<'_> {
    fn drop(&mut self) {
        let Parking { parker, waits, .. } = self.0;
        assert!(waits.get() > 0, "a wait that ends has begun on this thread");
        waits.set(waits.get() - 1);
        // All waits of a thread share a waker: this one may have taken a wake-up of the outer one.
        if waits.get() > 0 {
            parker.is_woken.store(true, Ordering::Release);
        }
    }
}

impl Wake for Parker {
    fn wake(self: Arc<Self>) {
        self.wake_by_ref();
    }

    fn wake_by_ref(self: &Arc<Self>) {
        self.is_woken.store(true, Ordering::Release);
        self.thread.unpark();
    }
}

thread_local! {
    /// One per waiting thread: a wait allocates nothing. A wake-up left over from a former wait ends a later wait
    /// early, which then polls and parks again.
    static PARKING: Parking = {
        let parker = Parker { thread: thread::current(), is_woken: AtomicBool::new(false) };
        let parker = Arc::new(parker);
        let waker = Waker::from(Arc::clone(&parker));
        Parking { parker, waker, waits: Cell::new(0) }
    };
}

/// Waits for a future, with the thread parked: for programs without an executor. For a single call use
/// [`Call::wait`](super::Call::wait).
///
/// # Panics
/// Inside an endpoint's event loop: in a handler, a continuation or a task. The endpoint would stand still meanwhile,
/// forever if the future needs it; tasks should await the future. A program's own loop around `Endpoint::run_once` is
/// detected only in tasks.
pub fn wait<F: Future>(future: F) -> F::Output {
    assert!(
        !runs_loop(),
        "a thread that runs an endpoint's event loop cannot wait for a future: the endpoint would not run; await the \
         future in a task there"
    );
    park(future)
}

/// Returns true if this thread waits for a future, which is polled.
pub(super) fn waits() -> bool {
    PARKING.with(|parking| parking.waits.get() > 0)
}

/// Waits for a future, on any thread.
pub(super) fn park<F: Future>(future: F) -> F::Output {
    let mut future = pin!(future);
    PARKING.with(|parking| {
        let _waiting = Waiting::begin(parking);
        let Parking { parker, waker, .. } = parking;
        let mut cx = Context::from_waker(waker);
        loop {
            if let Poll::Ready(output) = future.as_mut().poll(&mut cx) {
                return output;
            }
            look::until(|| parker.is_woken.load(Ordering::Relaxed));
            // Reads the last of several wake-ups, and sees all writes before the wake-up.
            while !parker.is_woken.swap(false, Ordering::Acquire) {
                thread::park();
            }
        }
    })
}

#[cfg(all(test, not(shuttle)))]
mod tests {
    use std::future::poll_fn;
    use std::sync::mpsc;
    use std::time::Duration;

    use super::*;

    /// A future that is ready when polled for the second time; `first` runs in the first poll.
    fn second_time(mut first: impl FnMut(&Context<'_>)) -> impl Future<Output = ()> {
        let mut polls = 0;
        poll_fn(move |cx| {
            polls += 1;
            if polls == 1 {
                first(cx);
                return Poll::Pending;
            }
            Poll::Ready(())
        })
    }

    /// A part of the outer future ends while another part waits.
    #[test]
    fn park__in_a_poll_leaves_the_wake_up_of_the_outer_wait() {
        let (tell, told) = mpsc::channel();
        std::thread::spawn(move || {
            park(second_time(|cx| {
                cx.waker().wake_by_ref();
                park(second_time(|_| ()));
            }));
            tell.send(())
        });
        told.recv_timeout(Duration::from_secs(60)).expect("the outer wait sleeps for ever");
    }
}
