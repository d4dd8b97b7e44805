//! The inbox of an endpoint for messages from other threads: a queue filled by many and emptied, whole, by its owner.
//!
//! # No post is lost
//!
//! A message is queued, and the flag raised, under the lock. The owner polls the flag alone, once per turn. If the flag
//! is up, the owner lowers it *first* and then takes the queue, under the lock: a later poster raises the flag again.
//! If a poster holds the lock at that moment, the owner, which never waits for the lock, raises the flag and comes
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
//! A `crossbeam` queue would spare posters each other's lock. But the owner would need an atomic operation per message
//! instead of one for all.
//!
//! [`Places`]: crate::client::places::Places

use std::mem;

use petrel_planted::planted;

use crate::sync::{Arc, AtomicBool, AtomicU64, Mutex, Ordering, TryLockError, lock};

/// Notifies an endpoint of work other than frames, or of the time of future work. The event loop polls nothing else in
/// every turn.
#[derive(Clone, Debug)]
pub(crate) struct Attention(Arc<AtomicU64>);

/// The value without work.
pub(crate) const NEVER_NS: u64 = u64::MAX;

impl Attention {
    pub(crate) fn new() -> Self {
        Self(Arc::new(AtomicU64::new(NEVER_NS)))
    }

    /// Returns when to check for work, in nanoseconds of the endpoint's clock; 0 for now.
    #[inline]
    pub(crate) fn due_ns(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }

    /// Returns true if there is work now.
    pub(crate) fn is_asked(&self) -> bool {
        self.due_ns() == 0
    }

    /// Requests a check now.
    pub(crate) fn ask(&self) {
        self.0.store(0, Ordering::Relaxed);
    }

    /// Requests a check at that time, if not before.
    pub(crate) fn ask_at(&self, at_ns: u64) {
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

/// The posters' end.
pub(crate) struct Poster<T> {
    shared: Arc<Shared<T>>,
}

struct Shared<T> {
    queue: Mutex<Queue<T>>,
    attention: Attention,
    /// Set under the lock; cleared by the poster that wakes the owner, or by the owner when awake.
    sleeps: AtomicBool,
    wake: Box<dyn Fn() + Send + Sync>,
}

struct Queue<T> {
    posts: Vec<T>,
    is_open: bool,
}

impl<T> Inbox<T> {
    /// Creates an inbox. A message raises `attention`, and calls `wake` when the owner sleeps.
    pub(crate) fn new(attention: Attention, wake: impl Fn() + Send + Sync + 'static) -> Self {
        let queue = Mutex::new(Queue { posts: Vec::new(), is_open: true });
        let sleeps = AtomicBool::new(false);
        let shared = Shared { queue, attention, sleeps, wake: Box::new(wake) };
        Self { shared: Arc::new(shared), emptied: Vec::new() }
    }

    pub(crate) fn poster(&self) -> Poster<T> {
        Poster { shared: Arc::clone(&self.shared) }
    }

    /// Returns all messages, oldest first; return the empty vector to [`Inbox::put_back`]. The attention was cleared
    /// before. Does not wait: if a poster holds the lock, raises the attention again.
    pub(crate) fn take(&mut self) -> Vec<T> {
        let mut posts = mem::take(&mut self.emptied);
        match self.shared.queue.try_lock() {
            Ok(mut queue) => mem::swap(&mut queue.posts, &mut posts),
            Err(TryLockError::WouldBlock) => self.shared.attention.ask(),
            Err(TryLockError::Poisoned(queue)) => {
                mem::swap(&mut queue.into_inner().posts, &mut posts);
            }
        }
        posts
    }

    /// Returns the memory of a taken vector.
    pub(crate) fn put_back(&mut self, emptied: Vec<T>) {
        debug_assert!(emptied.is_empty());
        self.emptied = emptied;
    }

    /// Records that the owner is about to sleep. Returns false if it must not, because a message is queued.
    pub(crate) fn may_sleep(&self) -> bool {
        let queue = lock(&self.shared.queue);
        if queue.posts.is_empty() {
            self.shared.sleeps.store(true, Ordering::Relaxed);
        }
        queue.posts.is_empty()
    }

    /// Records that the owner is awake: posters then save the wake-up.
    pub(crate) fn is_awake(&self) {
        self.shared.sleeps.store(false, Ordering::Relaxed);
    }
}

impl<T> Drop for Inbox<T> {
    fn drop(&mut self) {
        let mut queue = lock(&self.shared.queue);
        queue.is_open = false;
        let posts = mem::take(&mut queue.posts);
        // Not under the lock: dropping messages may wake other threads, which may post.
        drop(queue);
        drop(posts);
    }
}

impl<T> Poster<T> {
    /// Queues a message, and wakes the owner if it sleeps.
    ///
    /// # Errors
    /// The message, if the owner is gone.
    pub(crate) fn post(&self, post: T) -> Result<(), T> {
        let sleeps = || self.shared.sleeps.load(Ordering::Relaxed);
        let before_lock = planted("inbox_looks_before_its_lock").then(sleeps);
        let mut queue = lock(&self.shared.queue);
        if !queue.is_open {
            return Err(post);
        }
        queue.posts.push(post);
        self.shared.attention.ask();
        // Only the first of many has to wake the owner. Under the lock: see the module.
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

impl<T> Clone for Poster<T> {
    fn clone(&self) -> Self {
        Self { shared: Arc::clone(&self.shared) }
    }
}

impl<T> std::fmt::Debug for Poster<T> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Poster")
    }
}
