//! Tasks that wait for a resource with less room than there are tasks.

use std::cell::{Cell, RefCell};
use std::collections::VecDeque;
use std::future::Future;
use std::pin::Pin;
use std::rc::Rc;
use std::task::{Context, Poll, Waker};

use petrel_planted::planted;

/// Tasks in the order in which they came. Each event wakes the first task only, so that the cost of an event does not grow with
/// the number of tasks. Where each event woke all tasks, the client spent its time on wake-ups, and calls to a server that was
/// back after a short outage timed out.
#[derive(Default)]
pub(super) struct WaitQueue {
    waiting: RefCell<VecDeque<Rc<Waiting>>>,
    /// How many entries belong to tasks that gave up.
    gone: Cell<usize>,
}

#[derive(Default)]
struct Waiting {
    waker: RefCell<Option<Waker>>,
    /// Whether it is not in the queue any more.
    is_called: Cell<bool>,
    is_gone: Cell<bool>,
}

/// Gone tasks that the queue keeps in any case.
const GONE_MIN: usize = 32;

impl WaitQueue {
    /// A place at the end of the queue.
    pub(super) fn join(&self) -> Place<'_> {
        let waiting = Rc::<Waiting>::default();
        self.waiting.borrow_mut().push_back(Rc::clone(&waiting));
        Place { queue: self, waiting }
    }

    /// Whether no task waits.
    pub(super) fn is_empty(&self) -> bool {
        self.waiting.borrow().len() == self.gone.get()
    }

    /// Calls the first.
    pub(super) fn call_first(&self) {
        while let Some(first) = self.pop() {
            if first.is_gone.get() {
                self.gone.set(self.gone.get() - 1);
                continue;
            }
            first.is_called.set(true);
            if let Some(waker) = first.waker.take() {
                waker.wake();
            }
            return;
        }
    }

    fn pop(&self) -> Option<Rc<Waiting>> {
        self.waiting.borrow_mut().pop_front()
    }

    fn is_first(&self, waiting: &Rc<Waiting>) -> bool {
        let queue = self.waiting.borrow();
        let first = queue.iter().find(|waiting| !waiting.is_gone.get());
        first.is_some_and(|first| Rc::ptr_eq(first, waiting))
    }

    /// Puts a task that was called in vain back before all others.
    fn put_back(&self, waiting: &Rc<Waiting>) {
        assert!(waiting.is_called.replace(false), "it was called");
        self.waiting.borrow_mut().push_front(Rc::clone(waiting));
    }

    /// Forgets a task that waits no more.
    fn leave(&self, waiting: &Waiting) {
        waiting.is_gone.set(true);
        self.gone.set(self.gone.get() + 1);
        let mut queue = self.waiting.borrow_mut();
        // The queue may go long without an event: entries of tasks that gave up must not pile up meanwhile.
        if self.gone.get() >= GONE_MIN && 2 * self.gone.get() > queue.len() {
            queue.retain(|waiting| !waiting.is_gone.get());
            self.gone.set(0);
        }
    }
}

/// A task's place in the queue. As a future, it ends when the task is called. A task that is called and then dropped before it
/// took the resource passes the call on to the next task.
pub(super) struct Place<'a> {
    queue: &'a WaitQueue,
    waiting: Rc<Waiting>,
}

impl Place<'_> {
    /// Whether it is called next. One that comes to be that without being called is not told, but for one whose predecessor
    /// gave up: that is called.
    pub(super) fn is_first(&self) -> bool {
        self.queue.is_first(&self.waiting)
    }

    /// The call was in vain: the task waits again, before all others.
    pub(super) fn wait_on(&mut self) {
        self.queue.put_back(&self.waiting);
    }

    /// The task has taken the resource.
    pub(super) fn has_had(self) {
        self.waiting.is_gone.set(true);
    }
}

impl Future for &mut Place<'_> {
    type Output = ();

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<()> {
        if self.waiting.is_called.get() {
            return Poll::Ready(());
        }
        *self.waiting.waker.borrow_mut() = Some(cx.waker().clone());
        Poll::Pending
    }
}

impl Drop for Place<'_> {
    fn drop(&mut self) {
        match (self.waiting.is_gone.get(), self.waiting.is_called.get()) {
            (true, _) => {}
            (false, true) if planted("channel_called_place_lost") => {}
            (false, true) => self.queue.call_first(),
            (false, false) => {
                let was_first = self.is_first();
                self.queue.leave(&self.waiting);
                if was_first {
                    self.queue.call_first();
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::pin::pin;
    use std::sync::Arc;

    use super::*;
    use crate::local::wakes::Wakes;

    /// Polls a place; tells whether it was called.
    fn is_called(mut place: &mut Place<'_>, count: &Arc<Wakes>) -> bool {
        let waker = Arc::clone(count).into();
        pin!(&mut place).as_mut().poll(&mut Context::from_waker(&waker)).is_ready()
    }

    #[test]
    fn call_first__wakes_one_in_the_order_of_coming() {
        let queue = WaitQueue::default();
        assert!(queue.is_empty());
        let counts: [Arc<Wakes>; 3] = Default::default();
        let mut places = [(); 3].map(|()| queue.join());
        for (place, count) in places.iter_mut().zip(&counts) {
            assert!(!is_called(place, count));
        }
        queue.call_first();
        let woken = counts.each_ref().map(|count| count.count());
        assert_eq!(woken, [1, 0, 0]);
        let [first, second, third] = &mut places;
        assert!(is_called(first, &counts[0]) && !is_called(second, &counts[1]));
        // In vain: it comes before the others again.
        first.wait_on();
        assert!(!is_called(first, &counts[0]));
        queue.call_first();
        assert!(is_called(first, &counts[0]) && !is_called(second, &counts[1]));
        queue.call_first();
        assert!(is_called(second, &counts[1]) && !is_called(third, &counts[2]));
        assert!(!queue.is_empty());
        let [first, second, third] = places;
        first.has_had();
        second.has_had();
        drop(third);
        assert!(queue.is_empty());
        queue.call_first();
    }

    #[test]
    fn drop__of_one_that_was_called_calls_the_next() {
        let queue = WaitQueue::default();
        let (first, mut second) = (queue.join(), queue.join());
        queue.call_first();
        drop(first);
        assert!(is_called(&mut second, &Arc::default()));
        second.has_had();
        assert!(queue.is_empty());
    }

    /// The first may have looked after something that the others left to it.
    #[test]
    fn drop__of_the_first_calls_the_next_and_that_of_another_none() {
        let queue = WaitQueue::default();
        let (first, second, mut third) = (queue.join(), queue.join(), queue.join());
        assert!(first.is_first() && !second.is_first());
        drop(second);
        assert!(!third.is_first() && !is_called(&mut third, &Arc::default()));
        drop(first);
        assert!(is_called(&mut third, &Arc::default()));
        third.wait_on();
        assert!(third.is_first());
    }

    #[test]
    fn drop__of_those_that_give_up_leaves_nothing_behind() {
        let queue = WaitQueue::default();
        let mut stays = queue.join();
        for _ in 0..10_000 {
            drop(queue.join());
            assert!(queue.waiting.borrow().len() <= GONE_MIN + 1);
        }
        assert!(!queue.is_empty());
        queue.call_first();
        assert!(is_called(&mut stays, &Arc::default()));
        drop(stays);
        queue.call_first();
        assert!(queue.is_empty() && queue.gone.get() == 0);
    }
}
