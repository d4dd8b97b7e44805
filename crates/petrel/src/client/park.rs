//! Waiting for a future without an executor: the thread is parked until it is woken.

use std::future::Future;
use std::pin::pin;
use std::task::{Context, Poll, Wake, Waker};

use crate::sync::thread::{self, Thread};
use crate::sync::{Arc, AtomicBool, Ordering, thread_local};

/// Wakes a parked thread.
struct Parker {
    thread: Thread,
    is_woken: AtomicBool,
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
    /// One for each thread that waits: a wait allocates nothing. One that comes from a former wait of
    /// the thread ends a later one early, which then looks and waits again.
    static PARKER: (Arc<Parker>, Waker) = {
        let parker = Parker { thread: thread::current(), is_woken: AtomicBool::new(false) };
        let parker = Arc::new(parker);
        let waker = Waker::from(Arc::clone(&parker));
        (parker, waker)
    };
}

/// Waits for a future, with the thread parked: for programs without an executor. A single call has [`Call::wait`](super::Call::wait).
///
/// On the thread that runs the endpoint on which the future depends it never ends.
pub fn wait<F: Future>(future: F) -> F::Output {
    let mut future = pin!(future);
    PARKER.with(|(parker, waker)| {
        let mut cx = Context::from_waker(waker);
        loop {
            if let Poll::Ready(output) = future.as_mut().poll(&mut cx) {
                return output;
            }
            while !parker.is_woken.swap(false, Ordering::Acquire) {
                thread::park();
            }
        }
    })
}
