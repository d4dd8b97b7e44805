//! Which tasks are to be polled: the one thing of a [`Hub`](super::Hub) that other threads reach, for
//! a waker may be used from any of them.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::task::Wake;
use std::thread::ThreadId;

use petrel_transport::wake::Waker as EndpointWaker;

use super::slab::Key;

/// When there is something to do for futures, and the tasks that were woken, in that order.
#[derive(Debug)]
pub(crate) struct Ready {
    /// When the event loop is to look, in nanoseconds: what it compares with its time in every turn. 0
    /// while there may be tasks. Set before the endpoint is woken, and read by it after its sleep.
    due_ns: AtomicU64,
    tasks: Mutex<Vec<Key>>,
    owner: ThreadId,
    endpoint: EndpointWaker,
}

impl Ready {
    pub(super) fn new(endpoint: EndpointWaker) -> Self {
        Self {
            due_ns: AtomicU64::new(u64::MAX),
            tasks: Mutex::default(),
            owner: std::thread::current().id(),
            endpoint,
        }
    }

    #[inline]
    pub(crate) fn due_ns(&self) -> u64 {
        self.due_ns.load(Ordering::Acquire)
    }

    /// Has the event loop look at that time, unless it does before.
    pub(super) fn make_due(&self, at_ns: u64) {
        self.due_ns.fetch_min(at_ns, Ordering::Release);
    }

    /// Has the event loop look at that time and not before, unless tasks were woken.
    pub(super) fn set_due(&self, at_ns: u64) {
        let tasks = self.tasks.lock().unwrap_or_else(PoisonError::into_inner);
        // Under the lock, under which they are woken.
        self.due_ns.store(if tasks.is_empty() { at_ns } else { 0 }, Ordering::Release);
    }

    /// Moves the tasks that are ready to `into`.
    pub(super) fn take(&self, into: &mut Vec<Key>) {
        let mut tasks = self.tasks.lock().unwrap_or_else(PoisonError::into_inner);
        into.append(&mut tasks);
    }

    pub(super) fn push(&self, task: Key) {
        let mut tasks = self.tasks.lock().unwrap_or_else(PoisonError::into_inner);
        tasks.push(task);
        self.due_ns.store(0, Ordering::Release);
        drop(tasks);
        self.wake_endpoint();
    }

    /// Ends the endpoint's sleep, unless its own thread asks, which is awake.
    pub(super) fn wake_endpoint(&self) {
        if std::thread::current().id() != self.owner {
            self.endpoint.wake();
        }
    }
}

/// Wakes a task: puts it among the ready ones, unless it is there.
#[derive(Debug)]
pub(super) struct TaskWaker {
    pub(super) task: Key,
    pub(super) queued: AtomicBool,
    pub(super) ready: Arc<Ready>,
}

impl Wake for TaskWaker {
    fn wake(self: Arc<Self>) {
        self.wake_by_ref();
    }

    fn wake_by_ref(self: &Arc<Self>) {
        if !self.queued.swap(true, Ordering::AcqRel) {
            self.ready.push(self.task);
        }
    }
}

/// Wakes the future that [`Endpoint::block_on`](crate::Endpoint::block_on) waits for.
#[derive(Debug)]
pub(crate) struct MainWaker {
    woken: AtomicBool,
    ready: Arc<Ready>,
}

impl MainWaker {
    /// Woken already, as a future is polled without being asked the first time.
    pub(crate) fn new(ready: Arc<Ready>) -> Self {
        Self { woken: AtomicBool::new(true), ready }
    }

    pub(crate) fn take(&self) -> bool {
        self.woken.swap(false, Ordering::AcqRel)
    }
}

impl Wake for MainWaker {
    fn wake(self: Arc<Self>) {
        self.wake_by_ref();
    }

    fn wake_by_ref(self: &Arc<Self>) {
        self.woken.store(true, Ordering::Release);
        self.ready.wake_endpoint();
    }
}
