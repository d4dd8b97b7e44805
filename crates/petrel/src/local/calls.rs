//! The calls of an endpoint's futures, from the start until the outcome is taken.

use std::cell::RefCell;
use std::collections::VecDeque;
use std::mem;
use std::rc::Rc;
use std::task::{Poll, Waker};

use petrel_proto::SessionId;

use super::completions::{Completions, Outcome};
use super::slab::{Key, Slab};
use super::tasks::Tasks;
use crate::error::Error;
use crate::msgbuf::MsgBuf;

/// A call started by a future and not yet made by the event loop.
#[derive(Debug)]
pub(crate) struct Start {
    pub(crate) key: u64,
    pub(crate) session: SessionId,
    pub(crate) method: u16,
    pub(crate) request: MsgBuf,
    pub(crate) response: MsgBuf,
    pub(crate) deadline_ns: Option<u64>,
    /// Whether it runs only after all earlier calls of the session.
    pub(crate) ordered: bool,
}

/// The progress of a call, with the task that awaits its end.
#[derive(Debug)]
enum Progress {
    /// No task awaits it yet.
    Begun,
    AwaitedBy(Waker),
    /// A task of the endpoint awaits the call, and is woken without its waker.
    AwaitedByOwn(Key),
    Collected(Rc<Completions>, u64),
    Ended(Outcome),
}

impl Progress {
    /// Replaces a progress that owns nothing by `next`, without instructions to drop it.
    #[inline(always)]
    fn set(&mut self, next: Self) {
        debug_assert!(matches!(self, Progress::Begun | Progress::AwaitedByOwn(_)));
        mem::forget(mem::replace(self, next));
    }
}

/// A call that has not ended, or with an outcome not taken yet.
#[derive(Debug)]
struct PendingCall {
    session: SessionId,
    progress: Progress,
}

impl PendingCall {
    /// Records the awaiting task: a task of the endpoint, or another, by its waker.
    #[inline(never)]
    fn await_by(&mut self, own: Option<Key>, waker: &Waker) {
        assert!(
            !matches!(self.progress, Progress::Collected(..)),
            "the outcome of a call goes to one receiver"
        );
        match (own, &mut self.progress) {
            (Some(task), progress) => *progress = Progress::AwaitedByOwn(task),
            (None, Progress::AwaitedBy(before)) => before.clone_from(waker),
            (None, progress) => *progress = Progress::AwaitedBy(waker.clone()),
        }
    }

    #[inline]
    fn has_ended(&self) -> bool {
        matches!(self.progress, Progress::Ended(_))
    }
}

#[inline(always)]
fn take_ended(calls: &mut Slab<PendingCall>, key: Key) -> Outcome {
    let Some(PendingCall { progress: Progress::Ended(outcome), .. }) = calls.remove(key) else {
        panic!("the outcome of a call is taken once, after the end");
    };
    outcome
}

/// The calls of an endpoint's futures.
#[derive(Default)]
pub(super) struct Calls {
    entries: RefCell<Slab<PendingCall>>,
    /// Calls that the event loop has to make.
    starts: RefCell<VecDeque<Start>>,
    /// Calls dropped after the event loop has made them.
    cancels: RefCell<Vec<(SessionId, u64)>>,
}

impl Calls {
    #[inline]
    pub(super) fn begin(&self, session: SessionId) -> Key {
        self.entries.borrow_mut().insert(PendingCall { session, progress: Progress::Begun })
    }

    /// Queues a call for the event loop.
    pub(super) fn queue(&self, start: Start) {
        assert!(
            self.entries.borrow().get(Key::from_bits(start.key)).is_some_and(|c| !c.has_ended()),
            "a call is made after its begin, and before its end"
        );
        self.starts.borrow_mut().push_back(start);
    }

    pub(super) fn next_start(&self) -> Option<Start> {
        self.starts.borrow_mut().pop_front()
    }

    pub(super) fn next_cancel(&self) -> Option<(SessionId, u64)> {
        self.cancels.borrow_mut().pop()
    }

    /// Ends a call. The future may have dropped it.
    pub(super) fn finish(&self, tasks: &Tasks, key: Key, outcome: Outcome) {
        let mut calls = self.entries.borrow_mut();
        let Some(call) = calls.get_mut(key) else { return };
        match mem::replace(&mut call.progress, Progress::Ended(outcome)) {
            Progress::Begun => {}
            Progress::Ended(_) => panic!("a call of a future ends once"),
            Progress::AwaitedByOwn(task) => {
                drop(calls);
                tasks.wake(task);
            }
            Progress::AwaitedBy(waker) => {
                drop(calls);
                waker.wake();
            }
            Progress::Collected(completions, label) => {
                let outcome = take_ended(&mut calls, key);
                drop(calls);
                completions.put(key, label, outcome);
            }
        }
    }

    /// Ends a call, on a fast path for calls awaited by a task of the endpoint, as most are.
    #[inline(always)]
    pub(super) fn finish_awaited(&self, tasks: &Tasks, key: Key, outcome: Outcome) {
        let mut calls = self.entries.borrow_mut();
        if let Some(call) = calls.get_mut(key)
            && let Progress::AwaitedByOwn(task) = call.progress
        {
            call.progress.set(Progress::Ended(outcome));
            drop(calls);
            tasks.wake(task);
        } else {
            drop(calls);
            self.finish(tasks, key, outcome);
        }
    }

    /// Ends all calls that have not ended, with errors made by `failure`.
    pub(super) fn finish_all(&self, tasks: &Tasks, failure: impl Fn() -> Error) {
        self.starts.borrow_mut().clear();
        let keys = self.entries.borrow().keys();
        for key in keys {
            let is_pending = self.entries.borrow().get(key).is_some_and(|call| !call.has_ended());
            if is_pending {
                self.finish(tasks, key, Err(failure()));
            }
        }
        assert!(self.starts.borrow().is_empty(), "no call is made at an endpoint that ends");
    }

    pub(super) fn take_outcome(&self, key: Key) -> Option<Outcome> {
        let mut calls = self.entries.borrow_mut();
        calls.get(key).filter(|call| call.has_ended())?;
        Some(take_ended(&mut calls, key))
    }

    /// Returns the outcome, if there; otherwise registers the waker, or the task `own` of the endpoint.
    #[inline(always)]
    pub(super) fn poll(&self, tasks: &Tasks, key: Key, waker: &Waker) -> Poll<Outcome> {
        let mut calls = self.entries.borrow_mut();
        let Some(call) = calls.get_mut(key) else { return Poll::Pending };
        if call.has_ended() {
            return Poll::Ready(take_ended(&mut calls, key));
        }
        let own = tasks.task_of(waker);
        match (&call.progress, own) {
            (Progress::Begun | Progress::AwaitedByOwn(_), Some(task)) => {
                call.progress.set(Progress::AwaitedByOwn(task));
            }
            _ => call.await_by(own, waker),
        }
        Poll::Pending
    }

    /// Sends the outcome of a call to a collection.
    pub(super) fn redirect(&self, key: Key, to: &Rc<Completions>, label: u64) {
        if let Some(outcome) = self.take_outcome(key) {
            to.put_ended(label, outcome);
        } else if let Some(call) = self.entries.borrow_mut().get_mut(key) {
            assert!(
                !matches!(call.progress, Progress::Collected(..)),
                "the outcome of a call goes to one collection"
            );
            call.progress = Progress::Collected(Rc::clone(to), label);
            to.expect(key);
        }
    }

    /// Drops a call without its outcome. Returns true if the event loop has to cancel the call.
    pub(super) fn abandon(&self, key: Key) -> bool {
        let Some(call) = self.entries.borrow_mut().remove(key) else { return false };
        if call.has_ended() {
            return false;
        }
        let key = key.to_bits();
        let mut starts = self.starts.borrow_mut();
        // The latest is the most likely.
        if let Some(place) = starts.iter().rposition(|start| start.key == key) {
            starts.remove(place);
            return false;
        }
        self.cancels.borrow_mut().push((call.session, key));
        true
    }

    pub(super) fn len(&self) -> usize {
        self.entries.borrow().len()
    }

    /// Returns the number of orders for the event loop.
    pub(super) fn orders(&self) -> usize {
        self.starts.borrow().len() + self.cancels.borrow().len()
    }
}
