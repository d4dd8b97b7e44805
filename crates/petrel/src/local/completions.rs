//! The outcomes of many calls, in the order of their ends.

use std::cell::RefCell;
use std::collections::{BTreeSet, VecDeque};
use std::task::{Context, Poll, Waker};

use super::slab::Key;
use crate::error::Error;
use crate::msgbuf::MsgBuf;

/// The outcome of a call: the response, or the failure.
pub(super) type Outcome = Result<MsgBuf, Error>;

/// Collects the outcomes of calls: calls that have not ended are not polled.
#[derive(Debug, Default)]
pub(super) struct Completions {
    ended: RefCell<VecDeque<(u64, Outcome)>>,
    waker: RefCell<Option<Waker>>,
    /// The outstanding calls, for cancellation; in an order that a simulation can repeat.
    outstanding: RefCell<BTreeSet<Key>>,
}

impl Completions {
    pub(super) fn expect(&self, key: Key) {
        let is_new = self.outstanding.borrow_mut().insert(key);
        assert!(is_new, "a call is added to a collection once");
    }

    /// Records the end of an outstanding call. After a detach the outcome is dropped with the collection.
    pub(super) fn put(&self, key: Key, label: u64, outcome: Outcome) {
        self.outstanding.borrow_mut().remove(&key);
        self.put_ended(label, outcome);
    }

    /// Records the outcome of a call that had ended before.
    pub(super) fn put_ended(&self, label: u64, outcome: Outcome) {
        self.ended.borrow_mut().push_back((label, outcome));
        if let Some(waker) = self.waker.borrow_mut().take() {
            waker.wake();
        }
    }

    pub(super) fn take_next(&self) -> Option<(u64, Outcome)> {
        self.ended.borrow_mut().pop_front()
    }

    /// Takes the keys of the outstanding calls, which are not outstanding here any more.
    pub(super) fn take_outstanding(&self) -> BTreeSet<Key> {
        std::mem::take(&mut *self.outstanding.borrow_mut())
    }

    pub(super) fn outstanding(&self) -> usize {
        self.outstanding.borrow().len()
    }

    /// Returns true if an outcome can be taken.
    pub(super) fn has_next(&self) -> bool {
        !self.ended.borrow().is_empty()
    }

    /// Is ready once `is_over` returns true.
    pub(super) fn poll_until(&self, cx: &Context<'_>, is_over: impl Fn() -> bool) -> Poll<()> {
        if is_over() {
            return Poll::Ready(());
        }
        *self.waker.borrow_mut() = Some(cx.waker().clone());
        Poll::Pending
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    panics! {
        expect__of_the_same_call_again: "added to a collection once" => {
            let completions = Completions::default();
            completions.expect(Key::from_bits(3));
            completions.expect(Key::from_bits(3));
        };
    }
}
