//! The handle of a spawned task.

use std::cell::{Cell, RefCell};
use std::fmt;
use std::future::Future;
use std::mem;
use std::pin::Pin;
use std::rc::Rc;
use std::task::{Context, Poll, Waker, ready};

use super::hub::Hub;
use super::slab::Key;
use super::tasks::TaskFuture;
use crate::panics::Closure;

/// A task's result, and the waker of its waiter.
struct TaskResult<T> {
    value: RefCell<Option<T>>,
    waker: RefCell<Option<Waker>>,
    /// The task has panicked, and there will be no value.
    has_panicked: Cell<bool>,
}

impl<T> TaskResult<T> {
    fn put(&self, value: T) {
        let before = self.value.borrow_mut().replace(value);
        assert!(before.is_none(), "a task has one result");
        self.wake();
    }

    fn wake(&self) {
        if let Some(waker) = self.waker.borrow_mut().take() {
            waker.wake();
        }
    }
}

/// A future whose output is a task's result. An async block would keep the future twice, and a state of its own.
struct Reported<F, T> {
    future: F,
    to: Rc<TaskResult<T>>,
}

/// Tells the waiter of a task that there will be no result.
struct OnPanic<'a, T>(&'a TaskResult<T>);

impl<T> Drop for OnPanic<'_, T> {
    fn drop(&mut self) {
        self.0.has_panicked.set(true);
        self.0.wake();
    }
}

impl<T, F: Future<Output = T>> Future for Reported<F, T> {
    type Output = ();

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<()> {
        // SAFETY: the future is pinned with the whole, from which it is not moved. It has no other access.
        let (future, to) = unsafe {
            let this = self.get_unchecked_mut();
            (Pin::new_unchecked(&mut this.future), &this.to)
        };
        let on_panic = OnPanic(to);
        let polled = future.poll(cx);
        mem::forget(on_panic);
        to.put(ready!(polled));
        Poll::Ready(())
    }
}

impl<T, F: Future<Output = T>> TaskFuture for Reported<F, T> {
    fn retire(self: Pin<Box<Self>>) {}
}

/// A spawned task: a future of its result. Dropping it leaves the task running.
///
/// An aborted task, or a task whose endpoint is gone, never returns a result. Where [panics of tasks are
/// caught](crate::endpoint::PanicPolicy), a task that awaits a panicked task panics as well.
pub struct Task<T> {
    hub: Rc<Hub>,
    key: Cell<Option<Key>>,
    result: Rc<TaskResult<T>>,
}

impl Hub {
    /// Spawns a future of the library, without a deadline, that nothing waits for.
    pub(crate) fn spawn_unwatched(self: &Rc<Self>, future: impl Future<Output = ()> + 'static) {
        drop(Task::spawn(self, Closure::Task, None, future));
    }
}

impl<T: 'static> Task<T> {
    /// Spawns a future, whose calls inherit `deadline_ns`.
    pub(super) fn spawn(
        hub: &Rc<Hub>,
        kind: Closure,
        deadline_ns: Option<u64>,
        future: impl Future<Output = T> + 'static,
    ) -> Self {
        let result = Rc::new(TaskResult {
            value: RefCell::default(),
            waker: RefCell::default(),
            has_panicked: Cell::new(false),
        });
        let reported = Reported { future, to: Rc::clone(&result) };
        let key = hub.spawn(kind, Box::pin(reported), deadline_ns);
        Self { hub: Rc::clone(hub), key: Cell::new(key), result }
    }
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

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<T> {
        if let Some(value) = self.try_take() {
            return Poll::Ready(value);
        }
        assert!(!self.result.has_panicked.get(), "the awaited task panicked");
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
