//! The inbox of an endpoint for messages from other threads: a queue filled by many and emptied, whole, by its owner.
//!
//! # No message is lost
//!
//! A message is queued, and the flag raised, under the lock. The owner polls the flag alone, once per turn. If the flag
//! is up, the owner lowers it *first* and then takes the queue, under the lock: a later sender raises the flag again.
//! If a sender holds the lock at that moment, the owner, which never waits for the lock, raises the flag and comes
//! back.
//!
//! # No wake-up is lost
//!
//! Before sleeping, the owner checks the queue and sets the sleep flag, under the lock. A message comes either before,
//! and prevents the sleep, or after, and wakes the owner. The waker remembers a wake-up (`petrel_transport::wake`): the
//! sleep need not have begun.
//!
//! The queue has no limit of its own, but its contents have: [`Places`] limit calls, and the requests limit the
//! answers.
//!
//! A `crossbeam` queue would spare senders each other's lock. But the owner would need an atomic operation per message
//! instead of one for all.
//!
//! [`Places`]: crate::local::client_call::places::Places

use std::mem;

use petrel_planted::planted;

use crate::sync::{Arc, AtomicBool, AtomicU64, Mutex, Ordering, TryLockError, lock};

/// Notifies an endpoint of work other than frames, or of the time of future work. The event loop polls nothing else in
/// every turn.
#[derive(Clone, Debug)]
pub(crate) struct WorkFlag(Arc<AtomicU64>);

/// The value without work.
pub(crate) const NEVER_NS: u64 = u64::MAX;

impl WorkFlag {
    pub(crate) fn new() -> Self {
        Self(Arc::new(AtomicU64::new(NEVER_NS)))
    }

    /// Returns when to check for work, in nanoseconds of the endpoint's clock; 0 for now.
    #[inline]
    pub(crate) fn due_ns(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }

    pub(crate) fn is_raised(&self) -> bool {
        self.due_ns() == 0
    }

    /// Requests a check now.
    pub(crate) fn raise(&self) {
        self.0.store(0, Ordering::Relaxed);
    }

    /// Requests a check at that time, if not before.
    pub(crate) fn raise_at(&self, at_ns: u64) {
        self.0.fetch_min(at_ns, Ordering::Relaxed);
    }

    /// Clears the request before a check: later ones request another check.
    pub(crate) fn clear(&self) {
        self.0.swap(NEVER_NS, Ordering::Relaxed);
    }
}

/// The owner's end. Dropping it drops the queued messages, and makes later posts fail.
pub(crate) struct Inbox<T> {
    shared: Arc<Shared<T>>,
    /// The vector taken last, kept for its memory.
    emptied: Vec<T>,
}

/// The senders' end.
pub(crate) struct InboxSender<T> {
    shared: Arc<Shared<T>>,
}

struct Shared<T> {
    queue: Mutex<Queue<T>>,
    work_flag: WorkFlag,
    /// Set under the lock; cleared by the sender that wakes the owner, or by the owner when awake.
    sleeps: AtomicBool,
    wake: Box<dyn Fn() + Send + Sync>,
}

struct Queue<T> {
    messages: Vec<T>,
    is_open: bool,
}

impl<T> Inbox<T> {
    /// Creates an inbox. A message raises `work_flag`, and calls `wake` when the owner sleeps.
    pub(crate) fn new(work_flag: WorkFlag, wake: impl Fn() + Send + Sync + 'static) -> Self {
        let queue = Mutex::new(Queue { messages: Vec::new(), is_open: true });
        let sleeps = AtomicBool::new(false);
        let shared = Shared { queue, work_flag, sleeps, wake: Box::new(wake) };
        Self { shared: Arc::new(shared), emptied: Vec::new() }
    }

    pub(crate) fn sender(&self) -> InboxSender<T> {
        InboxSender { shared: Arc::clone(&self.shared) }
    }

    /// Returns all messages, oldest first; return the empty vector to [`Inbox::put_back`]. The flag was lowered
    /// before. Does not wait: if a sender holds the lock, raises the flag again.
    pub(crate) fn take(&mut self) -> Vec<T> {
        let mut messages = mem::take(&mut self.emptied);
        assert!(messages.is_empty(), "messages are handled before others are taken");
        match self.shared.queue.try_lock() {
            Ok(mut queue) => mem::swap(&mut queue.messages, &mut messages),
            Err(TryLockError::WouldBlock) => self.shared.work_flag.raise(),
            Err(TryLockError::Poisoned(queue)) => {
                mem::swap(&mut queue.into_inner().messages, &mut messages);
            }
        }
        messages
    }

    /// Returns the memory of a taken vector.
    pub(crate) fn put_back(&mut self, emptied: Vec<T>) {
        assert!(emptied.is_empty(), "a message is handled before its memory comes back");
        self.emptied = emptied;
    }

    /// Records that the owner is about to sleep. Returns false if it must not, because a message is queued.
    pub(crate) fn may_sleep(&self) -> bool {
        let queue = lock(&self.shared.queue);
        if queue.messages.is_empty() {
            self.shared.sleeps.store(true, Ordering::Relaxed);
        }
        queue.messages.is_empty()
    }

    /// Records that the owner is awake: senders then save the wake-up.
    pub(crate) fn is_awake(&self) {
        self.shared.sleeps.store(false, Ordering::Relaxed);
    }
}

impl<T> Drop for Inbox<T> {
    fn drop(&mut self) {
        let mut queue = lock(&self.shared.queue);
        queue.is_open = false;
        let messages = mem::take(&mut queue.messages);
        // The lock is released: dropping messages may wake other threads, which may post.
        drop(queue);
        drop(messages);
    }
}

impl<T> InboxSender<T> {
    /// Queues a message, and wakes the owner if it sleeps.
    ///
    /// # Errors
    /// The message, if the owner is gone.
    pub(crate) fn post(&self, message: T) -> Result<(), T> {
        let sleeps = || self.shared.sleeps.load(Ordering::Relaxed);
        let before_lock = planted("inbox_looks_before_its_lock").then(sleeps);
        let mut queue = lock(&self.shared.queue);
        if !queue.is_open {
            return Err(message);
        }
        queue.messages.push(message);
        self.shared.work_flag.raise();
        // Only the first of many messages has to wake the owner. The flag is read under the lock: see the module.
        let sleeps = before_lock.unwrap_or_else(sleeps);
        if sleeps {
            self.shared.sleeps.store(false, Ordering::Relaxed);
        }
        drop(queue);
        if sleeps {
            (self.shared.wake)();
        }
        Ok(())
    }

    /// Returns true if the owner still exists.
    pub(crate) fn is_open(&self) -> bool {
        lock(&self.shared.queue).is_open
    }
}

impl<T> Clone for InboxSender<T> {
    fn clone(&self) -> Self {
        Self { shared: Arc::clone(&self.shared) }
    }
}

impl<T> std::fmt::Debug for InboxSender<T> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("InboxSender")
    }
}
