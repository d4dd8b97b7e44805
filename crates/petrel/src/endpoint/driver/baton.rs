//! The right to run an endpoint's event loop, which passes between the endpoint's thread and threads that wait for a call.
//!
//! Handing a call to another thread, and taking the response back, costs two wake-ups of threads: ten times as much as the call over
//! shared memory. A thread that waits for the only outstanding call therefore runs the event loop (as the clients of RAMCloud
//! and of brpc do).
//!
//! # Why the unsafe code is sound
//!
//! The holder alone accesses the endpoint. [`Baton::try_take`] and [`Baton::try_take_back`] make one thread the holder by an atomic
//! exchange, and a holder leaves by a store that releases its accesses to the next one.
//!
//! An endpoint is not `Send`: the endpoint and the tasks in it share objects without locks (`Rc`, `Cell`). All of these objects are inside
//! the endpoint, and change threads together, as long as no code of the application has seen a shared object. The application gets
//! shared objects only by [`Client::spawn`](crate::Client::spawn), whose closure runs on the endpoint's own thread; afterwards the thread keeps the
//! endpoint for ever (`Endpoint::is_bound`). Nothing in an endpoint belongs to the thread of its creation: thread-local variables hold
//! a value during a turn only.

use std::cell::UnsafeCell;
use std::ops::{Deref, DerefMut};

use crate::sync::thread::{self, Thread};
use crate::sync::{AtomicBool, AtomicUsize, Ordering};

/// The endpoint has no holder, and waits for a caller or for the endpoint's thread.
const FREE: usize = 0;
/// The endpoint's thread is the holder.
const THREAD: usize = 1;
/// A caller is the holder.
const CALLER: usize = 2;
/// A caller has panicked in the event loop, or the endpoint is gone.
const GONE: usize = 3;

/// The endpoint, and its holder.
pub(crate) struct Baton<E> {
    holder: AtomicUsize,
    /// Times that a caller has taken the endpoint.
    taken: AtomicUsize,
    /// Whether a caller has asked the thread for the endpoint.
    is_asked: AtomicBool,
    /// Whether the thread waits, parked, until a caller leaves.
    is_awaited: AtomicBool,
    thread: Thread,
    endpoint: UnsafeCell<Option<E>>,
}

// SAFETY: only the holder accesses the endpoint, which changes threads together with all shared objects; see the module.
unsafe impl<E> Send for Baton<E> {}
// SAFETY: as for `Send`.
unsafe impl<E> Sync for Baton<E> {}

/// The endpoint, while a caller holds it.
pub(crate) struct Held<'a, E> {
    baton: &'a Baton<E>,
    /// Whether the thread was panicking before: a future that an unwinding thread drops has broken no event loop.
    was_panicking: bool,
}

impl<E> Baton<E> {
    /// Creates the baton of an endpoint that this thread holds.
    pub(crate) fn new(endpoint: E) -> Self {
        Self {
            holder: AtomicUsize::new(THREAD),
            taken: AtomicUsize::new(0),
            is_asked: AtomicBool::new(false),
            is_awaited: AtomicBool::new(false),
            thread: thread::current(),
            endpoint: UnsafeCell::new(Some(endpoint)),
        }
    }

    fn pass(&self, from: usize, to: usize) -> bool {
        self.holder.compare_exchange(from, to, Ordering::AcqRel, Ordering::Relaxed).is_ok()
    }

    /// Makes a caller the holder of a free endpoint.
    pub(crate) fn try_take(&self) -> Option<Held<'_, E>> {
        if self.holder.load(Ordering::Relaxed) != FREE || !self.pass(FREE, CALLER) {
            return None;
        }
        self.taken.fetch_add(1, Ordering::Relaxed);
        Some(Held { baton: self, was_panicking: thread::panicking() })
    }

    /// Asks the endpoint's thread to leave the endpoint to callers. Returns false if the thread is not the holder.
    pub(crate) fn ask(&self) -> bool {
        let is_held = self.holder.load(Ordering::Relaxed) == THREAD;
        if is_held {
            self.is_asked.store(true, Ordering::Relaxed);
        }
        is_held
    }

    /// Returns true for an endpoint without a holder.
    pub(crate) fn is_free(&self) -> bool {
        self.holder.load(Ordering::Relaxed) == FREE
    }

    // The verbs of the endpoint's thread.

    /// Returns the endpoint, which its thread holds.
    ///
    /// # Safety
    /// On the endpoint's thread, and not while an earlier reference exists.
    #[expect(clippy::mut_from_ref, reason = "the one holder has the one reference")]
    pub(super) unsafe fn held(&self) -> &mut E {
        assert_eq!(self.holder.load(Ordering::Relaxed), THREAD, "the thread holds the endpoint");
        // SAFETY: the thread holds the endpoint, and has no other reference.
        unsafe { (*self.endpoint.get()).as_mut() }.expect("an endpoint that is held exists")
    }

    /// Returns true if a caller has asked for the endpoint.
    pub(super) fn is_asked(&self) -> bool {
        self.is_asked.load(Ordering::Relaxed)
    }

    /// Records that the thread has answered the callers that have asked.
    pub(super) fn clear_request(&self) {
        self.is_asked.store(false, Ordering::Relaxed);
    }

    /// Leaves the endpoint to callers.
    pub(super) fn give(&self) {
        assert!(self.pass(THREAD, FREE), "a thread gives an endpoint that it holds");
    }

    /// Returns how often callers have taken the endpoint.
    pub(super) fn taken(&self) -> usize {
        self.taken.load(Ordering::Relaxed)
    }

    /// Makes the thread the holder, unless a caller is. Returns false if the event loop has panicked.
    pub(super) fn try_take_back(&self) -> Option<bool> {
        if self.pass(FREE, THREAD) {
            return Some(true);
        }
        self.pass(GONE, THREAD).then_some(false)
    }

    /// Parks the thread while a caller holds the endpoint.
    pub(super) fn park_while_taken(&self) {
        // The later exchange of the flag sees all stores before the earlier exchange: either this thread sees that the caller has left,
        // or the caller sees that this thread waits.
        while !self.is_awaited.swap(true, Ordering::AcqRel)
            && self.holder.load(Ordering::Acquire) == CALLER
        {
            thread::park();
        }
        self.is_awaited.store(false, Ordering::Relaxed);
    }

    /// Takes the endpoint out for its end.
    pub(super) fn end(&self) -> E {
        assert!(self.pass(THREAD, GONE), "a thread ends an endpoint that it holds");
        // SAFETY: the thread was the holder, and no caller becomes the holder of an endpoint that is gone.
        unsafe { (*self.endpoint.get()).take() }.expect("an endpoint ends once")
    }
}

impl<E> Deref for Held<'_, E> {
    type Target = E;

    fn deref(&self) -> &E {
        // SAFETY: this is the holder.
        unsafe { (*self.baton.endpoint.get()).as_ref() }.expect("an endpoint that is held exists")
    }
}

impl<E> DerefMut for Held<'_, E> {
    fn deref_mut(&mut self) -> &mut E {
        // SAFETY: this is the holder.
        unsafe { (*self.baton.endpoint.get()).as_mut() }.expect("an endpoint that is held exists")
    }
}

impl<E> Held<'_, E> {
    /// Returns true if the event loop has panicked since the endpoint was taken.
    pub(crate) fn has_panicked(&self) -> bool {
        !self.was_panicking && thread::panicking()
    }
}

impl<E> Drop for Held<'_, E> {
    /// Leaves the endpoint. After a panic only the endpoint's thread takes and ends the endpoint.
    fn drop(&mut self) {
        let next = if self.has_panicked() { GONE } else { FREE };
        let baton = self.baton;
        assert!(baton.pass(CALLER, next), "a caller leaves an endpoint that it holds");
        if baton.is_awaited.swap(false, Ordering::AcqRel) {
            baton.thread.unpark();
        }
    }
}
