//! Timers of futures.
//!
//! Separate from the core's wheel, which has ticks of 66 µs and handles slots only. A timer dropped before its time
//! leaves its entry behind, to be skipped; when most entries are left behind, all are removed. A timeout around each of
//! a million calls a second thus costs a push, and no growing memory.

use super::slab::{Key, Slab};
use std::cmp::Reverse;
use std::collections::BinaryHeap;

/// The number of entries from which entries left behind are removed.
const TIDY_COUNT: usize = 64;

/// The name of a timer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct TimerId(Key);

/// Timers that return a `T` when due.
#[derive(Debug)]
pub(crate) struct Timers<T> {
    /// The timers by time, then by a number in the order of their insertion.
    by_time: BinaryHeap<Reverse<(u64, u64, Key)>>,
    waiting: Slab<T>,
    next_number: u64,
}

impl<T> Default for Timers<T> {
    fn default() -> Self {
        Self { by_time: BinaryHeap::new(), waiting: Slab::default(), next_number: 0 }
    }
}

impl<T> Timers<T> {
    pub(super) fn len(&self) -> usize {
        self.waiting.len()
    }

    /// Adds a timer that returns `due` at `at_ns`, or at the next check afterwards.
    pub(crate) fn insert(&mut self, at_ns: u64, due: T) -> TimerId {
        self.tidy();
        let key = self.waiting.insert(due);
        self.by_time.push(Reverse((at_ns, self.next_number, key)));
        self.next_number += 1;
        TimerId(key)
    }

    /// Returns the value of a timer that is not due yet.
    pub(super) fn get_mut(&mut self, id: TimerId) -> Option<&mut T> {
        self.waiting.get_mut(id.0)
    }

    pub(crate) fn remove(&mut self, id: TimerId) {
        self.waiting.remove(id.0);
    }

    /// Returns when the next timer is due; [`u64::MAX`] without one.
    pub(crate) fn next_ns(&mut self) -> u64 {
        while let Some(Reverse((at_ns, _, key))) = self.by_time.peek() {
            if self.waiting.get_mut(*key).is_some() {
                return *at_ns;
            }
            self.by_time.pop();
        }
        u64::MAX
    }

    /// Takes a timer that is due by now, in the order of their times.
    pub(crate) fn pop_due(&mut self, now_ns: u64) -> Option<T> {
        if self.next_ns() > now_ns {
            return None;
        }
        let Reverse((.., key)) = self.by_time.pop()?;
        let due = self.waiting.remove(key);
        assert!(due.is_some(), "a timer comes due once");
        due
    }

    fn tidy(&mut self) {
        if self.by_time.len() > TIDY_COUNT + 2 * self.waiting.len() {
            let waiting = &mut self.waiting;
            self.by_time.retain(|Reverse((.., key))| waiting.get_mut(*key).is_some());
            assert_eq!(
                self.by_time.len(),
                self.waiting.len(),
                "each timer that waits has one place in the order"
            );
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::task::Waker;

    use proptest::prelude::*;

    use super::*;
    use crate::local::wakes::Wakes;

    #[test]
    fn timers_that_are_dropped_early_do_not_pile_up() {
        let mut timers = Timers::default();
        for at_ns in 0..100_000 {
            let id = timers.insert(1_000_000 + at_ns, Waker::noop().clone());
            timers.remove(id);
        }
        assert!(timers.by_time.len() <= TIDY_COUNT + 1, "{}", timers.by_time.len());
        assert_eq!(timers.next_ns(), u64::MAX);
    }

    proptest! {
        /// Compared with the naive model: a list of times.
        #[test]
        fn each_comes_due_once_and_in_order(
            steps in prop::collection::vec((0u64..100, prop::option::of(any::<prop::sample::Index>()), 0u64..40), 1..200),
        ) {
            let mut timers = Timers::<Waker>::default();
            let mut model: Vec<(u64, TimerId, Arc<Wakes>)> = Vec::new();
            let mut now_ns = 0;
            for (ahead, removed, passes) in steps {
                let count = Arc::new(Wakes::default());
                let id = timers.insert(now_ns + ahead, Arc::clone(&count).into());
                model.push((now_ns + ahead, id, count));
                if let Some(index) = removed {
                    let (_, id, count) = model.swap_remove(index.index(model.len()));
                    timers.remove(id);
                    prop_assert_eq!(count.count(), 0);
                }
                now_ns += passes;
                while let Some(waker) = timers.pop_due(now_ns) {
                    waker.wake();
                }
                for (at_ns, _, count) in &model {
                    prop_assert_eq!(count.count(), u32::from(*at_ns <= now_ns));
                }
                model.retain(|(at_ns, ..)| *at_ns > now_ns);
                let next_ns = model.iter().map(|(at_ns, ..)| *at_ns).min();
                prop_assert_eq!(timers.next_ns(), next_ns.unwrap_or(u64::MAX));
            }
        }
    }

    panics! {
        tidy__of_a_timer_without_a_place: "each timer that waits has one place in the order" => {
            let mut timers = Timers::default();
            let ids: Vec<_> = (0..=TIDY_COUNT as u64)
                .map(|at_ns| timers.insert(at_ns, Waker::noop().clone()))
                .collect();
            ids.into_iter().for_each(|id| timers.remove(id));
            timers.waiting.insert(Waker::noop().clone());
            (0..4).for_each(|_| timers.by_time.push(Reverse((0, 0, Key::from_bits(7)))));
            timers.tidy();
        };
    }
}
