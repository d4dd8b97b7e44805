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
use super::spares::Spares;
use crate::inbox::WorkFlag;
use crate::panics::{Closure, PanicPayload, Panics, catch};
use crate::sync::Arc;

/// The future of a task.
pub(crate) trait TaskFuture: Future<Output = ()> {
    /// Takes a ready future, to drop the future or to keep the memory for the next task of the kind.
    fn retire(self: Pin<Box<Self>>);
}

pub(crate) type BoxedFuture = Pin<Box<dyn TaskFuture>>;

/// The largest number of entries of ended tasks that are kept.
const ENTRIES_MAX: usize = 256;

/// The references that an entry has to its task's waker.
const OWN_WAKERS: usize = 2;

/// A task. A task that is polled may leave the table meanwhile, and its entry stays until the end of the poll. The entry
/// of an ended task is used again.
struct Entry {
    /// Absent while polled.
    future: Cell<Option<BoxedFuture>>,
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
    /// Memory for the tasks of one round, kept for reuse.
    round: Vec<Key>,
}

/// The tasks of an endpoint.
pub(super) struct Tasks {
    entries: RefCell<Entries>,
    /// Entries of ended tasks, for the next tasks.
    spares: Spares<Rc<Entry>>,
    /// Tasks woken by this thread, in order.
    woken: RefCell<Vec<Key>>,
    /// Tasks woken by any thread.
    ready: Arc<Ready>,
    work_flag: WorkFlag,
    /// The task being polled.
    polled: Cell<Option<Polled>>,
    /// The deadline inherited by calls made now: the polled task's.
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
            spares: Spares::new(ENTRIES_MAX),
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

    /// Returns the polled task, if the waker is the task's.
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
        vacant.insert(self.entry(key, kind, future, deadline_ns));
        drop(entries);
        self.woken.borrow_mut().push(key);
        self.work_flag.raise();
        key
    }

    #[inline(always)]
    fn entry(
        &self,
        key: Key,
        kind: Closure,
        future: BoxedFuture,
        deadline_ns: Option<u64>,
    ) -> Rc<Entry> {
        if let Some(mut spare) = self.spares.take() {
            let entry = Rc::get_mut(&mut spare).expect("the entry of an ended task has one owner");
            entry.task.requeue_as(key);
            // The future was absent: no instruction is spent on dropping nothing.
            mem::forget(entry.future.replace(Some(future)));
            (entry.deadline_ns, entry.kind) = (deadline_ns, kind);
            return spare;
        }
        let task = Arc::new(TaskWaker::queued(key, Arc::clone(&self.ready)));
        let waker = Waker::from(Arc::clone(&task));
        Rc::new(Entry { future: Cell::new(Some(future)), waker, task, deadline_ns, kind })
    }

    /// Keeps the entry of an ended task, unless a clone of the task's waker is left.
    #[inline(always)]
    fn keep(&self, entry: Rc<Entry>) {
        if Rc::strong_count(&entry) == 1 && entry.task.is_unused(OWN_WAKERS) {
            self.spares.keep(entry);
        }
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
        // The task leaves the queue before the poll: a wake-up from now on requests another poll.
        entry.task.unqueue();
        self.polled.set(Some(Polled::new(key, &entry.waker)));
        let polled = match catch(|| future.as_mut().poll(&mut Context::from_waker(&entry.waker))) {
            Ok(polled) => polled,
            Err(payload) => return self.end_panicked(key, (entry, future), outer, payload),
        };
        if polled.is_pending() {
            // The field was empty: no instruction is spent on dropping it.
            mem::forget(entry.future.replace(Some(future)));
            if Rc::strong_count(&entry) == 1 {
                // The task has aborted itself. Dropping its contents may use the hub.
                self.set_outer(outer);
            }
            return;
        }
        let removed = self.entries.borrow_mut().tasks.remove(key);
        // Dropping an ended task may use the hub, too.
        self.set_outer(outer);
        drop(removed);
        future.retire();
        self.keep(entry);
    }

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
