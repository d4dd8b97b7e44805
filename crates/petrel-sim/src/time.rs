//! Virtual time, and the queue of what happens when.

use std::cmp::Reverse;
use std::collections::BinaryHeap;

/// A point in virtual time, in picoseconds since the start of the run.
///
/// Picoseconds, because one byte takes 80 of them at 100 Gbit/s: with nanoseconds a link would
/// gain or lose rate by rounding. 64 bits of them last 213 days. Outside of the fabric, time is in
/// nanoseconds, as everywhere in Petrel.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Time(u64);

const PS_PER_NS: u64 = 1_000;

impl Time {
    /// The start of the run.
    pub const ZERO: Self = Self(0);
    /// Later than everything that happens.
    pub const NEVER: Self = Self(u64::MAX);

    /// A time in nanoseconds. What is beyond the range is [`Time::NEVER`].
    pub const fn from_ns(ns: u64) -> Self {
        Self(ns.saturating_mul(PS_PER_NS))
    }

    /// Whole nanoseconds since the start.
    pub const fn ns(self) -> u64 {
        self.0 / PS_PER_NS
    }

    /// Picoseconds since the start.
    pub const fn ps(self) -> u64 {
        self.0
    }

    /// `ns` nanoseconds later.
    #[must_use]
    pub const fn plus_ns(self, ns: u64) -> Self {
        self.plus_ps(ns.saturating_mul(PS_PER_NS))
    }

    /// `ps` picoseconds later.
    #[must_use]
    pub const fn plus_ps(self, ps: u64) -> Self {
        Self(self.0.saturating_add(ps))
    }
}

/// Shows nanoseconds with the picoseconds behind the point.
impl std::fmt::Display for Time {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}.{:03}", self.ns(), self.0 % PS_PER_NS)
    }
}

/// Events in order of time; those of one time in the order in which they were scheduled. This
/// total order is what makes a run repeatable.
#[derive(Debug)]
pub(crate) struct EventQueue<E> {
    heap: BinaryHeap<Reverse<Entry<E>>>,
    scheduled_count: u64,
}

#[derive(Debug)]
struct Entry<E> {
    at: Time,
    sequence: u64,
    event: E,
}

impl<E> EventQueue<E> {
    pub(crate) fn new() -> Self {
        Self { heap: BinaryHeap::new(), scheduled_count: 0 }
    }

    /// Schedules an event. One for [`Time::NEVER`] is forgotten.
    pub(crate) fn push(&mut self, at: Time, event: E) {
        if at == Time::NEVER {
            return;
        }
        self.heap.push(Reverse(Entry { at, sequence: self.scheduled_count, event }));
        self.scheduled_count += 1;
    }

    /// Takes the first event if it happens at `limit` or before.
    pub(crate) fn pop_until(&mut self, limit: Time) -> Option<(Time, E)> {
        let Reverse(first) = self.heap.peek()?;
        if first.at > limit {
            return None;
        }
        self.heap.pop().map(|Reverse(entry)| (entry.at, entry.event))
    }

    /// When the first event happens; [`Time::NEVER`] without one.
    pub(crate) fn next_at(&self) -> Time {
        self.heap.peek().map_or(Time::NEVER, |Reverse(first)| first.at)
    }

    pub(crate) fn len(&self) -> usize {
        self.heap.len()
    }

    /// Events that have been taken.
    pub(crate) fn popped_count(&self) -> u64 {
        self.scheduled_count - self.heap.len() as u64
    }
}

impl<E> PartialEq for Entry<E> {
    fn eq(&self, other: &Self) -> bool {
        self.sequence == other.sequence
    }
}

impl<E> Eq for Entry<E> {}

impl<E> PartialOrd for Entry<E> {
    fn partial_cmp(&self, other: &Self) -> Option<std::cmp::Ordering> {
        Some(self.cmp(other))
    }
}

impl<E> Ord for Entry<E> {
    fn cmp(&self, other: &Self) -> std::cmp::Ordering {
        (self.at, self.sequence).cmp(&(other.at, other.sequence))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn time__converts_and_saturates() {
        assert_eq!(Time::from_ns(3).ps(), 3_000);
        assert_eq!(Time::from_ns(3).plus_ps(999).ns(), 3);
        assert_eq!(Time::from_ns(u64::MAX), Time::NEVER);
        assert_eq!(Time::NEVER.plus_ns(1), Time::NEVER);
        assert_eq!(Time::from_ns(12).plus_ps(34).to_string(), "12.034");
    }

    #[test]
    fn push__forgets_what_never_happens() {
        let mut queue = EventQueue::new();
        queue.push(Time::NEVER, ());
        assert!(queue.len() == 0);
    }

    proptest! {
        /// The naive model: a stable sort by time.
        #[test]
        fn pop_until__is_a_stable_sort(times in prop::collection::vec(0u64..20, 0..200)) {
            let mut queue = EventQueue::new();
            for (index, &ns) in times.iter().enumerate() {
                queue.push(Time::from_ns(ns), index);
            }
            let mut expected: Vec<(u64, usize)> =
                times.iter().copied().enumerate().map(|(index, ns)| (ns, index)).collect();
            expected.sort_by_key(|&(ns, _)| ns);
            let early: Vec<(u64, usize)> = drain(&mut queue, Time::from_ns(9));
            prop_assert!(early.iter().all(|&(ns, _)| ns <= 9));
            let late = drain(&mut queue, Time::NEVER);
            prop_assert_eq!([early, late].concat(), expected);
        }
    }

    fn drain(queue: &mut EventQueue<usize>, limit: Time) -> Vec<(u64, usize)> {
        std::iter::from_fn(|| queue.pop_until(limit)).map(|(at, event)| (at.ns(), event)).collect()
    }
}
