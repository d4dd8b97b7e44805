//! Ending an event loop from outside.

use petrel_transport::wake::Waker;

use crate::sync::{Arc, AtomicBool, Ordering};

/// Ends [`Endpoint::run`](crate::Endpoint::run) from another thread or a signal handler.
#[derive(Clone, Debug)]
pub struct Stop {
    is_requested: Arc<AtomicBool>,
    waker: Waker,
}

impl Stop {
    pub(super) fn new(waker: Waker) -> Self {
        Self { is_requested: Arc::default(), waker }
    }

    /// Asks the event loop to end.
    pub fn stop(&self) {
        self.is_requested.store(true, Ordering::Release);
        self.waker.wake();
    }

    pub(crate) fn is_requested(&self) -> bool {
        self.is_requested.load(Ordering::Acquire)
    }
}
