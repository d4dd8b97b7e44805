//! The handle of a spawned task.

use std::cell::{Cell, RefCell};
use std::fmt;
use std::future::Future;
use std::pin::Pin;
use std::rc::Rc;
use std::task::{Context, Poll, Waker, ready};

use super::hub::Hub;
use super::slab::Key;

/// A task's result, and the waker of its waiter.
struct TaskResult<T> {
    value: RefCell<Option<T>>,
    waker: RefCell<Option<Waker>>,
}

impl<T> TaskResult<T> {
    fn put(&self, value: T) {
        let before = self.value.borrow_mut().replace(value);
        assert!(before.is_none(), "a task has one result");
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

impl<T, F: Future<Output = T>> Future for Reported<F, T> {
    type Output = ();

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<()> {
        // SAFETY: the future is pinned with the whole, from which it is not moved. It has no other access.
        let (future, to) = unsafe {
            let this = self.get_unchecked_mut();
            (Pin::new_unchecked(&mut this.future), &this.to)
        };
        to.put(ready!(future.poll(cx)));
        Poll::Ready(())
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

impl<T: 'static> Task<T> {
    /// Spawns a future, whose calls inherit `deadline_ns`.
    pub(super) fn spawn(
        hub: &Rc<Hub>,
        deadline_ns: Option<u64>,
        future: impl Future<Output = T> + 'static,
    ) -> Self {
        let result = Rc::new(TaskResult { value: RefCell::default(), waker: RefCell::default() });
        let reported = Reported { future, to: Rc::clone(&result) };
        let key = hub.spawn(Box::pin(reported), deadline_ns);
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
