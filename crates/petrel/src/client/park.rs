//! Waiting for a future without an executor: the thread is parked until woken.

use std::cell::Cell;
use std::future::Future;
use std::pin::pin;
use std::task::{Context, Poll, Wake, Waker};

use crate::local::Hub;
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
    /// One per waiting thread: a wait allocates nothing. A wake-up left over from a former wait ends a later wait
    /// early, which then polls and parks again.
    static PARKER: (Arc<Parker>, Waker) = {
        let parker = Parker { thread: thread::current(), is_woken: AtomicBool::new(false) };
        let parker = Arc::new(parker);
        let waker = Waker::from(Arc::clone(&parker));
        (parker, waker)
    };
}

thread_local! {
    /// The number of nested event loops on this thread.
    static LOOPS: Cell<u32> = const { Cell::new(0) };
}

/// While this value exists, an event loop runs on the thread.
pub(crate) struct InLoop(());

impl InLoop {
    pub(crate) fn enter() -> Self {
        LOOPS.with(|loops| loops.set(loops.get() + 1));
        Self(())
    }
}

impl Drop for InLoop {
    fn drop(&mut self) {
        LOOPS.with(|loops| loops.set(loops.get() - 1));
    }
}

/// Waits for a future, with the thread parked: for programs without an executor. For a single call use
/// [`Call::wait`](super::Call::wait).
///
/// # Panics
/// Inside an endpoint's event loop: in a handler, a continuation or a task. The endpoint would stand still meanwhile,
/// forever if the future needs it; tasks should await the future. A program's own loop around `Endpoint::run_once` is
/// detected only in tasks.
pub fn wait<F: Future>(future: F) -> F::Output {
    let runs_loop = LOOPS.with(Cell::get) > 0 || Hub::with_current(|_| ()).is_some();
    assert!(
        !runs_loop,
        "a thread that runs an endpoint's event loop cannot wait for a future: the endpoint would not run; await the \
         future in a task there"
    );
    park(future)
}

/// The same on any thread.
pub(super) fn park<F: Future>(future: F) -> F::Output {
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
