//! The tasks to be polled: the only part of a [`Hub`](super::Hub) that other threads access, since a waker may be used
//! from any thread.

use std::sync::atomic::fence;
use std::task::Wake;

use petrel_transport::wake::Waker as EndpointWaker;

use super::slab::Key;
use crate::inbox::WorkFlag;
use crate::sync::thread::{self, ThreadId};
use crate::sync::{Arc, AtomicBool, AtomicU64, Mutex, Ordering, lock};

/// The woken tasks, in order.
#[derive(Debug)]
pub(crate) struct Ready {
    tasks: Mutex<Vec<Key>>,
    /// Raised after a task was added, and before the endpoint is woken.
    work_flag: WorkFlag,
    owner: ThreadId,
    endpoint: EndpointWaker,
}

impl Ready {
    pub(super) fn new(work_flag: WorkFlag, endpoint: EndpointWaker) -> Self {
        let owner = thread::current().id();
        Self { tasks: Mutex::default(), work_flag, owner, endpoint }
    }

    /// Moves the ready tasks to `into`.
    pub(super) fn take(&self, into: &mut Vec<Key>) {
        let mut tasks = lock(&self.tasks);
        into.append(&mut tasks);
    }

    pub(super) fn push(&self, task: Key) {
        let mut tasks = lock(&self.tasks);
        tasks.push(task);
        // Under the lock: a reader that lowers the flag afterwards finds the task.
        self.work_flag.raise();
        drop(tasks);
        self.wake_endpoint();
    }

    /// Ends the endpoint's sleep, unless called on its own, awake thread.
    pub(super) fn wake_endpoint(&self) {
        if thread::current().id() != self.owner {
            self.endpoint.wake();
        }
    }
}

/// Wakes a task: adds it to the ready tasks, unless already there.
#[derive(Debug)]
pub(super) struct TaskWaker {
    /// The key's bits. Another task gets the waker when the task has ended and no clone is left.
    task: AtomicU64,
    is_queued: AtomicBool,
    ready: Arc<Ready>,
}

impl TaskWaker {
    /// Creates the waker of a task that is among the tasks to be polled.
    pub(super) fn queued(task: Key, ready: Arc<Ready>) -> Self {
        Self { task: AtomicU64::new(task.to_bits()), is_queued: AtomicBool::new(true), ready }
    }

    /// Returns true if the `own` references are the only ones: no clone of the waker will wake the task any more.
    #[inline(always)]
    pub(super) fn is_unused(self: &Arc<Self>, own: usize) -> bool {
        if Arc::strong_count(self) != own {
            return false;
        }
        // The accesses of former clones' threads come before the next task's.
        fence(Ordering::Acquire);
        true
    }

    /// Gives the waker to another task, which is among the tasks to be polled.
    #[inline(always)]
    pub(super) fn requeue_as(&self, task: Key) {
        self.task.store(task.to_bits(), Ordering::Relaxed);
        self.is_queued.store(true, Ordering::Relaxed);
    }

    /// Returns true if the task is to be added to the tasks to be polled: it was not there.
    #[inline(always)]
    pub(super) fn queue(&self) -> bool {
        !self.is_queued.swap(true, Ordering::AcqRel)
    }

    /// Records that the task is polled now.
    #[inline(always)]
    pub(super) fn unqueue(&self) {
        self.is_queued.store(false, Ordering::Release);
    }
}

impl Wake for TaskWaker {
    fn wake(self: Arc<Self>) {
        self.wake_by_ref();
    }

    fn wake_by_ref(self: &Arc<Self>) {
        if self.queue() {
            self.ready.push(Key::from_bits(self.task.load(Ordering::Relaxed)));
        }
    }
}

/// Wakes the future of [`Endpoint::block_on`](crate::Endpoint::block_on).
#[derive(Debug)]
pub(crate) struct MainWaker {
    woken: AtomicBool,
    ready: Arc<Ready>,
}

impl MainWaker {
    /// Makes a waker that counts as woken: a future is first polled without a wake-up.
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
