//! The queue of a thread for parcels of other threads.

use std::sync::{Mutex, MutexGuard, PoisonError};

use mio::net::TcpStream;

use super::batch::Batch;

/// A parcel between threads.
pub(crate) enum Parcel {
    /// Operations on the receiver's partition.
    Work(Box<Batch>),
    /// A batch of the receiver, with replies.
    Done(Box<Batch>),
    /// A new connection.
    Connection {
        socket: TcpStream,
        /// Threads that may take the connection if this thread has no room.
        further_threads: usize,
    },
    /// The server ends.
    Stop,
    /// Another thread has ended its connections.
    Finished,
}

/// Wakes a sleeping thread.
pub(crate) type Wake = Box<dyn Fn() + Send + Sync>;

/// A thread's queue. Its length is bounded: a batch of each other thread and a returning one, the connections below the
/// limit, and an end.
pub(crate) struct Inbox {
    state: Mutex<State>,
    wake: Wake,
}

#[derive(Default)]
struct State {
    parcels: Vec<Parcel>,
    /// The receiver sleeps, or is about to: the next parcel wakes it.
    is_asleep: bool,
}

impl Inbox {
    pub(crate) fn new(wake: Wake) -> Self {
        Self { state: Mutex::default(), wake }
    }

    /// Sends a parcel, and wakes the receiver if it sleeps.
    pub(crate) fn push(&self, parcel: Parcel) {
        let mut state = self.state();
        state.parcels.push(parcel);
        let was_asleep = std::mem::take(&mut state.is_asleep);
        drop(state);
        if was_asleep {
            (self.wake)();
        }
    }

    /// Moves all parcels to `into`, which is empty.
    pub(crate) fn take(&self, into: &mut Vec<Parcel>) {
        assert!(into.is_empty(), "parcels would be overtaken");
        let mut state = self.state();
        state.is_asleep = false;
        std::mem::swap(&mut state.parcels, into);
    }

    /// Announces that the receiver is going to sleep. Returns false if a parcel has come, so that it must not.
    pub(crate) fn may_sleep(&self) -> bool {
        let mut state = self.state();
        state.is_asleep = state.parcels.is_empty();
        state.is_asleep
    }

    /// The state is a queue and a flag, which no panic leaves in between.
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::sync::atomic::{AtomicU32, Ordering};

    use super::*;

    #[test]
    fn push__wakes_a_sleeping_receiver_once() {
        let wakes = Arc::new(AtomicU32::new(0));
        let counted = Arc::clone(&wakes);
        let inbox = Inbox::new(Box::new(move || {
            counted.fetch_add(1, Ordering::Relaxed);
        }));
        inbox.push(Parcel::Finished);
        assert!(!inbox.may_sleep(), "a parcel waits");
        let mut parcels = Vec::new();
        inbox.take(&mut parcels);
        assert_eq!((parcels.len(), wakes.load(Ordering::Relaxed)), (1, 0));
        assert!(inbox.may_sleep());
        inbox.push(Parcel::Finished);
        inbox.push(Parcel::Stop);
        assert_eq!(wakes.load(Ordering::Relaxed), 1);
    }
}
