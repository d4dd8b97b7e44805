//! Waiting for a future without an executor: the thread is parked until it is woken.

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
    /// One for each thread that waits: a wait allocates nothing. One that comes from a former wait of
    /// the thread ends a later one early, which then looks and waits again.
    static PARKER: (Arc<Parker>, Waker) = {
        let parker = Parker { thread: thread::current(), is_woken: AtomicBool::new(false) };
        let parker = Arc::new(parker);
        let waker = Waker::from(Arc::clone(&parker));
        (parker, waker)
    };
}

thread_local! {
    /// How many event loops run on this thread, one within another.
    static LOOPS: Cell<u32> = const { Cell::new(0) };
}

/// As long as this is there, an event loop runs on this thread.
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

/// Waits for a future, with the thread parked: for programs without an executor. A single call has [`Call::wait`](super::Call::wait).
///
/// # Panics
/// In what an endpoint's event loop runs: a handler, a continuation, a task. The endpoint would stand still meanwhile, for ever if
/// the future needs it; tasks await the future. A loop of the program's own around `Endpoint::run_once` is not noticed, but
/// in tasks.
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
