//! Waiting calls, in order of arrival.

use std::collections::VecDeque;

use crate::local::Key;

/// A queue of calls. A call that ends in the queue leaves an entry behind, to be skipped. When half of the entries are
/// left behind, all are removed: ended calls do not pile up in a stalled queue.
#[derive(Debug, Default)]
pub(super) struct CallQueue {
    entries: VecDeque<Key>,
    /// Entries of calls that do not wait any more.
    stale: usize,
}

/// Stale entries that the queue always tolerates.
const STALE_MIN: usize = 32;

impl CallQueue {
    /// Returns true if no call waits.
    pub(super) fn is_empty(&self) -> bool {
        self.entries.len() == self.stale
    }

    pub(super) fn push(&mut self, call: Key) {
        self.entries.push_back(call);
    }

    /// Returns the first call for which `waits` is true.
    pub(super) fn first(&mut self, waits: impl Fn(Key) -> bool) -> Option<Key> {
        while let Some(&first) = self.entries.front() {
            if waits(first) {
                return Some(first);
            }
            self.entries.pop_front();
            assert!(self.stale > 0, "a call that does not wait any more was counted");
            self.stale -= 1;
        }
        None
    }

    /// Removes the call returned by [`first`](Self::first).
    pub(super) fn pop(&mut self) {
        self.entries.pop_front().expect("the first call is there");
        assert!(self.stale <= self.entries.len(), "the first call of a queue waits");
    }

    /// Records that a queued call no longer waits.
    pub(super) fn leave(&mut self, waits: impl Fn(Key) -> bool) {
        self.stale += 1;
        assert!(self.stale <= self.entries.len(), "a call leaves a queue that it is in");
        if self.stale >= STALE_MIN && 2 * self.stale > self.entries.len() {
            self.entries.retain(|&call| waits(call));
            self.stale = 0;
        }
    }

    /// Takes all entries, including ones left behind.
    pub(super) fn take_all(&mut self) -> VecDeque<Key> {
        self.stale = 0;
        std::mem::take(&mut self.entries)
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    fn key(number: u64) -> Key {
        Key::from_bits(number)
    }

    #[test]
    fn first__is_the_oldest_waiting_call() {
        let mut queue = CallQueue::default();
        let mut waiting: BTreeSet<Key> = (0..4).map(key).collect();
        waiting.iter().for_each(|&call| queue.push(call));
        assert_eq!(queue.first(|call| waiting.contains(&call)), Some(key(0)));
        queue.pop();
        waiting.remove(&key(0));
        for gone in [1, 3] {
            waiting.remove(&key(gone));
            queue.leave(|call| waiting.contains(&call));
        }
        assert!(!queue.is_empty());
        assert_eq!(queue.first(|call| waiting.contains(&call)), Some(key(2)));
        queue.pop();
        waiting.remove(&key(2));
        assert!(queue.is_empty(), "what is left of the others does not wait");
        assert_eq!(queue.first(|call| waiting.contains(&call)), None);
        assert!(queue.is_empty() && queue.entries.is_empty());
    }

    #[test]
    fn leave__does_not_let_entries_pile_up() {
        let mut queue = CallQueue::default();
        queue.push(key(0));
        for number in 1..10_000 {
            queue.push(key(number));
            queue.leave(|call| call == key(0));
            assert!(queue.entries.len() <= STALE_MIN + 1, "{}", queue.entries.len());
            assert!(!queue.is_empty());
        }
        assert_eq!(queue.first(|call| call == key(0)), Some(key(0)));
        assert_eq!(queue.take_all().front(), Some(&key(0)));
        assert!(queue.is_empty());
    }

    panics! {
        leave__of_an_empty_queue: "a call leaves a queue that it is in" =>
            CallQueue::default().leave(|_| false);
    }
}
