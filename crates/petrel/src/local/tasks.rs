//! Tasks: futures that the event loop polls when woken.

use std::cell::{Cell, RefCell};
use std::future::Future;
use std::mem;
use std::pin::Pin;
use std::ptr;
use std::rc::Rc;
use std::task::{Context, RawWakerVTable, Waker};

use super::ready::{Ready, TaskWaker};
use super::slab::{Key, Slab};
use crate::inbox::WorkFlag;
use crate::panics::{Closure, PanicPayload, Panics, catch};
use crate::sync::Arc;

pub(super) type BoxedFuture = Pin<Box<dyn Future<Output = ()>>>;

/// A task. A task that is polled may leave the table meanwhile, and its entry stays until the end of the poll.
struct Entry {
    /// Absent while polled.
    future: Cell<Option<BoxedFuture>>,
    /// For polling.
    waker: Waker,
    /// The target of the waker.
    task: Arc<TaskWaker>,
    /// The deadline inherited by the task's calls and spawned tasks.
    deadline_ns: Option<u64>,
    /// Whether the task is a handler.
    kind: Closure,
}

#[derive(Default)]
struct Entries {
    tasks: Slab<Rc<Entry>>,
    /// For the tasks of one round, kept for reuse.
    round: Vec<Key>,
}

/// The tasks of an endpoint.
pub(super) struct Tasks {
    entries: RefCell<Entries>,
    /// Tasks woken by this thread, in order.
    woken: RefCell<Vec<Key>>,
    /// Tasks woken by any thread.
    ready: Arc<Ready>,
    work_flag: WorkFlag,
    /// The task being polled.
    polled: Cell<Option<Polled>>,
    /// The deadline inherited by calls made now: that of the task being polled.
    inherited_ns: Cell<Option<u64>>,
    panics: Rc<Panics>,
}

/// The task being polled, and the identity of its waker.
#[derive(Clone, Copy)]
struct Polled {
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
    fn task_of(&self, waker: &Waker) -> Option<Key> {
        let (data, vtable) = self.waker;
        let is_it = waker.data() == data && ptr::eq(waker.vtable(), vtable);
        is_it.then_some(self.task)
    }
}

impl Tasks {
    pub(super) fn new(ready: Arc<Ready>, work_flag: WorkFlag, panics: Rc<Panics>) -> Self {
        Self {
            entries: RefCell::default(),
            woken: RefCell::default(),
            ready,
            work_flag,
            polled: Cell::new(None),
            inherited_ns: Cell::new(None),
            panics,
        }
    }

    pub(super) fn len(&self) -> usize {
        self.entries.borrow().tasks.len()
    }

    pub(super) fn ready(&self) -> &Arc<Ready> {
        &self.ready
    }

    /// Returns the deadline inherited by calls made now.
    #[inline]
    pub(super) fn inherited_ns(&self) -> Option<u64> {
        self.inherited_ns.get()
    }

    /// Returns the task that is being polled, if this is its waker.
    #[inline]
    pub(super) fn task_of(&self, waker: &Waker) -> Option<Key> {
        self.polled.get().and_then(|polled| polled.task_of(waker))
    }

    /// Adds a task, to be polled in the next round. Its calls inherit `deadline_ns`.
    pub(super) fn insert(
        &self,
        kind: Closure,
        future: BoxedFuture,
        deadline_ns: Option<u64>,
    ) -> Key {
        let mut entries = self.entries.borrow_mut();
        let vacant = entries.tasks.vacant();
        let key = vacant.key();
        let task = Arc::new(TaskWaker::queued(key, Arc::clone(&self.ready)));
        let waker = Waker::from(Arc::clone(&task));
        let future = Cell::new(Some(future));
        vacant.insert(Rc::new(Entry { future, waker, task, deadline_ns, kind }));
        drop(entries);
        self.woken.borrow_mut().push(key);
        self.work_flag.raise();
        key
    }

    /// Wakes a task from its endpoint's own thread.
    #[inline(always)]
    pub(super) fn wake(&self, task: Key) {
        let entries = self.entries.borrow();
        let Some(entry) = entries.tasks.get(task) else { return };
        if entry.task.queue() {
            self.woken.borrow_mut().push(task);
            self.work_flag.raise();
        }
    }

    /// Polls the ready tasks; tasks woken meanwhile wait for the next round.
    pub(super) fn poll_round(&self) -> bool {
        let mut round = mem::take(&mut self.entries.borrow_mut().round);
        round.append(&mut self.woken.borrow_mut());
        self.ready.take(&mut round);
        let any = !round.is_empty();
        let outer = Outer { polled: self.polled.get(), inherited_ns: self.inherited_ns.get() };
        for key in round.drain(..) {
            self.poll_task(key, &outer);
        }
        self.set_outer(&outer);
        self.entries.borrow_mut().round = round;
        any
    }

    /// Polls a task. The caller restores the outer values after the last task of a round.
    fn poll_task(&self, key: Key, outer: &Outer) {
        let Some(entry) = self.entries.borrow().tasks.get(key).map(Rc::clone) else { return };
        let Some(mut future) = entry.future.take() else { return };
        self.inherited_ns.set(entry.deadline_ns);
        // Before the poll: a wake-up from now on requests another.
        entry.task.unqueue();
        self.polled.set(Some(Polled::new(key, &entry.waker)));
        let polled = match catch(|| future.as_mut().poll(&mut Context::from_waker(&entry.waker))) {
            Ok(polled) => polled,
            Err(payload) => return self.end_panicked(key, (entry, future), outer, payload),
        };
        if polled.is_pending() {
            // It was absent: no instruction is spent on dropping it.
            mem::forget(entry.future.replace(Some(future)));
            if Rc::strong_count(&entry) == 1 {
                // The task has aborted itself. Dropping its contents may use the hub.
                self.set_outer(outer);
            }
            return;
        }
        let removed = self.entries.borrow_mut().tasks.remove(key);
        // The same for an ended task.
        self.set_outer(outer);
        drop((removed, future));
    }

    /// Ends a task whose future has panicked.
    #[cold]
    fn end_panicked(
        &self,
        key: Key,
        (entry, future): (Rc<Entry>, BoxedFuture),
        outer: &Outer,
        payload: PanicPayload,
    ) {
        let kind = entry.kind;
        let removed = self.entries.borrow_mut().tasks.remove(key);
        self.set_outer(outer);
        // The drop of the rest of the future may panic as well.
        if catch(|| drop((removed, entry, future))).is_err() {
            self.panics.settle(kind, Box::new("the drop of a panicked task"));
        }
        self.panics.settle(kind, payload);
    }

    fn set_outer(&self, outer: &Outer) {
        self.polled.set(outer.polled);
        self.inherited_ns.set(outer.inherited_ns);
    }

    /// Removes a task and its future.
    pub(super) fn abort(&self, key: Key) {
        let entry = self.entries.borrow_mut().tasks.remove(key);
        // Dropping the future may use the tasks.
        drop(entry);
    }

    /// Removes all tasks and their futures.
    pub(super) fn abort_all(&self) {
        let entries = self.entries.borrow_mut().tasks.drain();
        drop(entries);
    }
}
