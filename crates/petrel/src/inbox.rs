//! What other threads post to an endpoint: a queue that many fill and one empties, whole.
//!
//! # No post is lost
//!
//! A post is put into the queue, and the flag raised, under one lock. The owner looks at the flag
//! alone, once per turn; if it is up it takes it down *first* and then the queue, under the lock:
//! who posts later raises the flag again, and who posts at that moment holds the lock, so that the
//! owner, which never waits for it, puts the flag back up and comes again.
//!
//! # No sleep is overslept
//!
//! Before it sleeps, the owner looks into the queue and says that it sleeps, under the lock. A post
//! comes either before, and there is no sleep, or after, and wakes it. The waker remembers
//! (`petrel_transport::wake`), so that it does not matter whether the sleep has begun.
//!
//! The queue has no limit of its own. What is posted has: calls by their [`Places`], answers
//! by the requests that they are for.
//!
//! A `crossbeam` queue would spare posters each other's lock, and cost the owner one atomic operation
//! for each post instead of one for all.
//!
//! [`Places`]: crate::client::places::Places

use std::mem;

use petrel_planted::planted;

use crate::sync::{Arc, AtomicBool, AtomicU64, Mutex, Ordering, TryLockError, lock};

/// Says to an endpoint that there is something to look at that did not come as a frame, or when there
/// will be. It is all that the event loop looks at in every turn.
#[derive(Clone, Debug)]
pub(crate) struct Attention(Arc<AtomicU64>);

/// When there is nothing to look at.
pub(crate) const NEVER_NS: u64 = u64::MAX;

impl Attention {
    pub(crate) fn new() -> Self {
        Self(Arc::new(AtomicU64::new(NEVER_NS)))
    }

    /// When to look, in nanoseconds of the endpoint's clock; 0 for now.
    #[inline]
    pub(crate) fn due_ns(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }

    /// Whether to look now.
    pub(crate) fn is_asked(&self) -> bool {
        self.due_ns() == 0
    }

    /// Asks for a look now.
    pub(crate) fn ask(&self) {
        self.0.store(0, Ordering::Relaxed);
    }

    /// Asks for a look at that time, if not before.
    pub(crate) fn ask_at(&self, at_ns: u64) {
        self.0.fetch_min(at_ns, Ordering::Relaxed);
    }

    /// Before a look: who asks from now on wants another.
    pub(crate) fn clear(&self) {
        self.0.swap(NEVER_NS, Ordering::Relaxed);
    }
}

/// The owner's end. When it is dropped, what was not taken is dropped, and posters get back what
/// they post.
pub(crate) struct Inbox<T> {
    shared: Arc<Shared<T>>,
    /// What was taken the last time, for its memory.
    emptied: Vec<T>,
}

/// The end of those who post.
pub(crate) struct Poster<T> {
    shared: Arc<Shared<T>>,
}

struct Shared<T> {
    queue: Mutex<Queue<T>>,
    attention: Attention,
    /// Set under the lock; taken back by the one who wakes, or by the owner when it is awake.
    sleeps: AtomicBool,
    wake: Box<dyn Fn() + Send + Sync>,
}

struct Queue<T> {
    posts: Vec<T>,
    is_open: bool,
}

impl<T> Inbox<T> {
    /// An inbox whose posts raise `attention`, and that has `wake` called when its owner sleeps.
    pub(crate) fn new(attention: Attention, wake: impl Fn() + Send + Sync + 'static) -> Self {
        let queue = Mutex::new(Queue { posts: Vec::new(), is_open: true });
        let sleeps = AtomicBool::new(false);
        let shared = Shared { queue, attention, sleeps, wake: Box::new(wake) };
        Self { shared: Arc::new(shared), emptied: Vec::new() }
    }

    pub(crate) fn poster(&self) -> Poster<T> {
        Poster { shared: Arc::clone(&self.shared) }
    }

    /// All that was posted, oldest first; give the empty vector back to [`Inbox::put_back`]. The
    /// attention was cleared before. Does not wait: where a poster is at it, it is asked for again.
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

    /// The memory of what was taken.
    pub(crate) fn put_back(&mut self, emptied: Vec<T>) {
        debug_assert!(emptied.is_empty());
        self.emptied = emptied;
    }

    /// Says that the owner is about to sleep; false if it must not, because something is there.
    pub(crate) fn may_sleep(&self) -> bool {
        let queue = lock(&self.shared.queue);
        if queue.posts.is_empty() {
            self.shared.sleeps.store(true, Ordering::Relaxed);
        }
        queue.posts.is_empty()
    }

    /// Says that the owner is awake, so that nobody wakes it for nothing.
    pub(crate) fn is_awake(&self) {
        self.shared.sleeps.store(false, Ordering::Relaxed);
    }
}

impl<T> Drop for Inbox<T> {
    fn drop(&mut self) {
        let mut queue = lock(&self.shared.queue);
        queue.is_open = false;
        let posts = mem::take(&mut queue.posts);
        // Not under the lock: what is dropped may wake others, who may post.
        drop(queue);
        drop(posts);
    }
}

impl<T> Poster<T> {
    /// Posts, and wakes the owner if it sleeps.
    ///
    /// # Errors
    /// The post, when the owner is gone.
    pub(crate) fn post(&self, post: T) -> Result<(), T> {
        let sleeps = || self.shared.sleeps.load(Ordering::Relaxed);
        let before_lock = planted("inbox_looks_before_its_lock").then(sleeps);
        let mut queue = lock(&self.shared.queue);
        if !queue.is_open {
            return Err(post);
        }
        queue.posts.push(post);
        self.shared.attention.ask();
        // Only the first of many has to. Under the lock: see the module.
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

    /// Whether the owner is still there.
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
