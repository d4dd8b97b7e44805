//! Tasks: futures that the event loop polls when woken.

use std::cell::{Cell, RefCell};
use std::fmt;
use std::future::Future;
use std::pin::Pin;
use std::ptr;
use std::rc::Rc;
use std::task::{Context as TaskContext, Poll, RawWakerVTable, Waker};

use super::hub::Hub;
use super::ready::TaskWaker;
use super::slab::{Key, Slab};
use crate::sync::{Arc, AtomicBool, Ordering};

type BoxedFuture = Pin<Box<dyn Future<Output = ()>>>;

struct Entry {
    /// Absent while polled, with the waker for polling.
    future: Option<(BoxedFuture, Waker)>,
    /// The target of the waker.
    task: Arc<TaskWaker>,
    /// The deadline inherited by the task's calls and spawned tasks.
    deadline_ns: Option<u64>,
}

/// The tasks of an endpoint.
#[derive(Default)]
pub(super) struct Tasks {
    entries: Slab<Entry>,
    /// For the tasks of one round, kept for reuse.
    round: Vec<Key>,
}

/// The task being polled, and the identity of its waker.
#[derive(Clone, Copy)]
pub(super) struct Polled {
    task: Key,
    waker: (*const (), &'static RawWakerVTable),
}

/// The values in effect outside of the polled tasks.
struct Outer {
    polled: Option<Polled>,
    inherited_ns: Option<u64>,
}

impl Polled {
    fn new(task: Key, waker: &Waker) -> Self {
        Self { task, waker: (waker.data(), waker.vtable()) }
    }

    /// Returns the task, if `waker` is its own, not a combinator's.
    #[inline]
    pub(super) fn task_of(&self, waker: &Waker) -> Option<Key> {
        let (data, vtable) = self.waker;
        let is_it = waker.data() == data && ptr::eq(waker.vtable(), vtable);
        is_it.then_some(self.task)
    }
}

impl Tasks {
    pub(super) fn len(&self) -> usize {
        self.entries.len()
    }

    /// Takes all futures, to be dropped when nothing is borrowed.
    pub(super) fn take_all(&mut self) -> Vec<BoxedFuture> {
        let futures = self.entries.drain().into_iter().filter_map(|entry| entry.future);
        futures.map(|(future, _)| future).collect()
    }
}

impl Hub {
    /// Spawns a future, whose calls inherit `deadline_ns`.
    pub(super) fn spawn<T: 'static>(
        self: &Rc<Self>,
        deadline_ns: Option<u64>,
        future: impl Future<Output = T> + 'static,
    ) -> Task<T> {
        let result = Rc::new(TaskResult::default());
        let task = Task { hub: Rc::clone(self), key: Cell::new(None), result: Rc::clone(&result) };
        if self.is_closed() {
            return task;
        }
        let future = Box::pin(async move { result.put(future.await) });
        let key = self.insert(future, deadline_ns);
        task.key.set(Some(key));
        task
    }

    fn insert(&self, future: BoxedFuture, deadline_ns: Option<u64>) -> Key {
        let ready = Arc::clone(&self.ready);
        let mut tasks = self.tasks.borrow_mut();
        let vacant = tasks.entries.vacant();
        let key = vacant.key();
        let task = Arc::new(TaskWaker { task: key, queued: AtomicBool::new(true), ready });
        let waker = Waker::from(Arc::clone(&task));
        vacant.insert(Entry { future: Some((future, waker)), task, deadline_ns });
        drop(tasks);
        self.woken.borrow_mut().push(key);
        self.ask();
        key
    }

    /// Wakes a task from its endpoint's own thread.
    #[inline]
    pub(crate) fn wake(&self, task: Key) {
        let tasks = self.tasks.borrow();
        let Some(entry) = tasks.entries.get(task) else { return };
        if !entry.task.queued.swap(true, Ordering::AcqRel) {
            self.woken.borrow_mut().push(task);
            self.ask();
        }
    }

    /// Wakes a task from its endpoint's own thread, in the order of its waker.
    #[inline(always)]
    pub(crate) fn wake_in_order(&self, task: Key) {
        let tasks = self.tasks.borrow();
        let Some(entry) = tasks.entries.get(task) else { return };
        if !entry.task.queued.swap(true, Ordering::AcqRel) {
            self.ready.push_own(task);
        }
    }

    /// Polls the ready tasks; tasks woken meanwhile wait for the next round.
    pub(crate) fn poll_tasks(&self) -> bool {
        let mut round = std::mem::take(&mut self.tasks.borrow_mut().round);
        round.append(&mut self.woken.borrow_mut());
        self.ready.take(&mut round);
        let any = !round.is_empty();
        let outer = Outer { polled: self.polled.get(), inherited_ns: self.inherited_ns.get() };
        for key in round.drain(..) {
            self.poll_task(key, &outer);
        }
        self.set_outer(&outer);
        self.tasks.borrow_mut().round = round;
        any
    }

    /// Polls a task. The caller restores the outer values after the last task of a round.
    fn poll_task(&self, key: Key, outer: &Outer) {
        let mut tasks = self.tasks.borrow_mut();
        let Some(entry) = tasks.entries.get_mut(key) else { return };
        let Some((mut future, waker)) = entry.future.take() else { return };
        self.inherited_ns.set(entry.deadline_ns);
        // Before the poll: a wake-up from now on requests another.
        entry.task.queued.store(false, Ordering::Release);
        drop(tasks);
        self.polled.set(Some(Polled::new(key, &waker)));
        let polled = future.as_mut().poll(&mut TaskContext::from_waker(&waker));
        let mut tasks = self.tasks.borrow_mut();
        if polled.is_ready() {
            tasks.entries.remove(key);
        } else if let Some(entry) = tasks.entries.get_mut(key) {
            entry.future = Some((future, waker));
            return;
        }
        // The task may have ended, or aborted itself; dropping its contents may use the hub.
        drop(tasks);
        self.set_outer(outer);
        drop(future);
    }

    fn set_outer(&self, outer: &Outer) {
        self.polled.set(outer.polled);
        self.inherited_ns.set(outer.inherited_ns);
    }

    fn abort(&self, key: Key) {
        let entry = self.tasks.borrow_mut().entries.remove(key);
        drop(entry);
    }
}

/// A task's result, and the waker of its waiter.
struct TaskResult<T> {
    value: RefCell<Option<T>>,
    waker: RefCell<Option<Waker>>,
}

impl<T> Default for TaskResult<T> {
    fn default() -> Self {
        Self { value: RefCell::default(), waker: RefCell::default() }
    }
}

impl<T> TaskResult<T> {
    fn put(&self, value: T) {
        *self.value.borrow_mut() = Some(value);
        if let Some(waker) = self.waker.borrow_mut().take() {
            waker.wake();
        }
    }
}

/// A spawned task: a future of its result. Dropping it leaves the task running.
///
/// An aborted task, or a task whose endpoint is gone, never returns a result.
pub struct Task<T> {
    hub: Rc<Hub>,
    key: Cell<Option<Key>>,
    result: Rc<TaskResult<T>>,
}

impl<T> Task<T> {
    /// Drops the task's future at its current state, and cancels the calls awaited in it.
    pub fn abort(&self) {
        if let Some(key) = self.key.take() {
            self.hub.abort(key);
        }
    }

    /// Returns the task's result, if the task has ended and its result was not taken before.
    pub fn try_take(&self) -> Option<T> {
        self.result.value.borrow_mut().take()
    }
}

impl<T> Future for Task<T> {
    type Output = T;

    fn poll(self: Pin<&mut Self>, cx: &mut TaskContext<'_>) -> Poll<T> {
        if let Some(value) = self.try_take() {
            return Poll::Ready(value);
        }
        *self.result.waker.borrow_mut() = Some(cx.waker().clone());
        Poll::Pending
    }
}

impl<T> fmt::Debug for Task<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let has_ended = self.result.value.borrow().is_some();
        f.debug_struct("Task").field("has_ended", &has_ended).finish_non_exhaustive()
    }
}

impl fmt::Debug for Tasks {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Tasks({})", self.len())
    }
}
