//! The event queue of the simulator.
//!
//! The plain algorithm is a binary heap, ordered by time and then by the order of scheduling. The heap
//! costs a walk through memory per event, deeper with more waiting events. Departures:
//!
//! 1. A wheel of slots, each an unsorted list of the events of a few nanoseconds. When the hand reaches a
//!    slot, its list is sorted and becomes the run, from which events are taken: a few, in a few cache
//!    lines. A bitmap marks the slots in use; quiet times cost nothing.
//! 2. Events scheduled for the hand's slot, or before it, come too late for the run. They go to a heap
//!    beside the run, which is nearly always empty; the earlier event of the two is taken.
//! 3. Events beyond the wheel wait in a third place, a heap too, and enter the wheel when the hand is near
//!    enough. Events are deadlines, mostly milliseconds away.
//!
//! The order equals the order of one heap: run and late heap are before the wheel, and the wheel is before
//! the far heap.

use std::cmp::Reverse;
use std::collections::BinaryHeap;

use crate::time::Time;

/// One slot is 4.1 ns wide: with 100 hosts that send small packets at 25 Gbit/s, some 50 events.
const SLOT_PS_LOG2: u32 = 12;
/// The wheel spans 16.8 µs: longer than most packets take on a link and than most poll intervals.
const SLOTS: usize = 4_096;
const _: () = assert!(SLOTS == 64 * 64, "the bitmap has two levels of 64 bits");

/// Events in order of time; events of the same time in the order of scheduling. This total order makes a
/// run repeatable.
#[derive(Debug)]
pub(crate) struct EventQueue<E> {
    /// The events of the slot that the hand reached last, latest event first.
    run: Vec<Entry<E>>,
    /// Events of the hand's slot or before it that were scheduled after the sort.
    late: Heap<E>,
    /// The events of the slots after the hand, by slot number modulo [`SLOTS`].
    slots: Box<[Vec<Entry<E>>]>,
    occupied: Bitmap,
    /// Events beyond the wheel.
    far: Heap<E>,
    /// The current slot number: time divided by the slot width.
    hand: u64,
    /// Empty lists that keep their memory for reuse by slots.
    free_list: Vec<Vec<Entry<E>>>,
    scheduled_count: u64,
    popped_count: u64,
}

type Heap<E> = BinaryHeap<Reverse<Entry<E>>>;

#[derive(Debug)]
struct Entry<E> {
    at: Time,
    sequence: u64,
    event: E,
}

impl<E> EventQueue<E> {
    pub(crate) fn new() -> Self {
        Self {
            run: Vec::new(),
            late: BinaryHeap::new(),
            slots: (0..SLOTS).map(|_| Vec::new()).collect(),
            occupied: Bitmap::default(),
            far: BinaryHeap::new(),
            hand: 0,
            free_list: Vec::new(),
            scheduled_count: 0,
            popped_count: 0,
        }
    }

    /// Schedules an event. An event at [`Time::NEVER`] is discarded.
    #[inline]
    pub(crate) fn push(&mut self, at: Time, event: E) {
        if at == Time::NEVER {
            return;
        }
        let sequence = self.scheduled_count;
        self.scheduled_count += 1;
        self.place(Entry { at, sequence, event });
    }

    /// Takes the first event if its time is at most `limit`.
    #[inline]
    pub(crate) fn pop_until(&mut self, limit: Time) -> Option<(Time, E)> {
        if self.run.is_empty() && self.late.is_empty() {
            self.turn()?;
        }
        let is_late = self.is_late_first();
        let first = if is_late { &self.late.peek()?.0 } else { self.run.last()? };
        if first.at > limit {
            return None;
        }
        let first = if is_late { self.late.pop()?.0 } else { self.run.pop()? };
        self.popped_count += 1;
        Some((first.at, first.event))
    }

    /// Returns the time of the first event; [`Time::NEVER`] without one.
    pub(crate) fn next_at(&self) -> Time {
        let near = if self.is_late_first() {
            self.late.peek().map(|late| &late.0)
        } else {
            self.run.last()
        };
        let first = near.or_else(|| {
            let slot = self.occupied.next_from(slot_index(self.hand + 1));
            slot.and_then(|slot| self.slots[slot].iter().min())
        });
        first.or_else(|| self.far.peek().map(|far| &far.0)).map_or(Time::NEVER, |first| first.at)
    }

    pub(crate) fn len(&self) -> usize {
        (self.scheduled_count - self.popped_count) as usize
    }

    /// Number of events that have been taken.
    pub(crate) fn popped_count(&self) -> u64 {
        self.popped_count
    }

    /// Returns true if the first event is in `late` rather than in `run`.
    #[inline]
    fn is_late_first(&self) -> bool {
        let Some(Reverse(late)) = self.late.peek() else { return false };
        self.run.last().is_none_or(|first| late < first)
    }

    /// Puts an entry into the late heap, the wheel or the far heap.
    #[inline]
    fn place(&mut self, entry: Entry<E>) {
        let slot = slot_number(entry.at);
        if slot <= self.hand {
            self.late.push(Reverse(entry));
        } else if slot - self.hand < SLOTS as u64 {
            let list = &mut self.slots[slot_index(slot)];
            if list.is_empty() {
                self.occupied.set(slot_index(slot));
                if list.capacity() == 0 {
                    *list = self.free_list.pop().unwrap_or_default();
                }
            }
            list.push(entry);
        } else {
            self.far.push(Reverse(entry));
        }
    }

    /// Moves the hand to the next slot in use and sorts its events. All earlier slots are empty. Returns
    /// `None` without any event.
    fn turn(&mut self) -> Option<()> {
        debug_assert!(self.run.is_empty() && self.late.is_empty());
        match self.occupied.next_from(slot_index(self.hand + 1)) {
            Some(index) => {
                let ahead = index.wrapping_sub(slot_index(self.hand)) % SLOTS;
                self.hand += ahead as u64;
                self.open(index);
            }
            None => self.hand = slot_number(self.far.peek()?.0.at),
        }
        self.draw_near();
        Some(())
    }

    fn open(&mut self, index: usize) {
        self.occupied.clear(index);
        let used = std::mem::replace(&mut self.run, std::mem::take(&mut self.slots[index]));
        if used.capacity() > 0 {
            self.free_list.push(used);
        }
        self.run.sort_unstable_by_key(|entry| Reverse(entry.key()));
    }

    /// Moves events that are now within the wheel's span out of the far heap.
    fn draw_near(&mut self) {
        while let Some(Reverse(first)) = self.far.peek()
            && slot_number(first.at) < self.hand + SLOTS as u64
            && let Some(Reverse(entry)) = self.far.pop()
        {
            self.place(entry);
        }
    }
}

fn slot_number(at: Time) -> u64 {
    at.ps() >> SLOT_PS_LOG2
}

fn slot_index(slot: u64) -> usize {
    slot as usize % SLOTS
}

/// The slots in use.
#[derive(Debug)]
struct Bitmap {
    /// A bit for each slot.
    words: [u64; 64],
    /// A bit for every non-zero word.
    summary: u64,
}

impl Default for Bitmap {
    fn default() -> Self {
        Self { words: [0; 64], summary: 0 }
    }
}

impl Bitmap {
    fn set(&mut self, index: usize) {
        self.words[index / 64] |= 1 << (index % 64);
        self.summary |= 1 << (index / 64);
    }

    fn clear(&mut self, index: usize) {
        self.words[index / 64] &= !(1 << (index % 64));
        if self.words[index / 64] == 0 {
            self.summary &= !(1 << (index / 64));
        }
    }

    /// Returns the first set bit at or after `index`, wrapping around after the last bit.
    fn next_from(&self, index: usize) -> Option<usize> {
        let word = index / 64;
        let rest = self.words[word] & (u64::MAX << (index % 64));
        if rest != 0 {
            return Some(word * 64 + rest.trailing_zeros() as usize);
        }
        if self.summary == 0 {
            return None;
        }
        // Searches words in the order of their distance. The word of `index`, with its lower bits, comes last.
        let distance = self.summary.rotate_right((word as u32 + 1) % 64).trailing_zeros() as usize;
        let word = (word + 1 + distance) % 64;
        Some(word * 64 + self.words[word].trailing_zeros() as usize)
    }
}

impl<E> Entry<E> {
    /// The order as one number: time in the high half, order of scheduling in the low half.
    fn key(&self) -> u128 {
        u128::from(self.at.ps()) << 64 | u128::from(self.sequence)
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
        self.key().cmp(&other.key())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn push__forgets_what_never_happens() {
        let mut queue = EventQueue::new();
        queue.push(Time::NEVER, ());
        assert!(queue.len() == 0);
        assert_eq!(queue.next_at(), Time::NEVER);
        assert_eq!(queue.pop_until(Time::NEVER), None);
    }

    #[test]
    fn push__before_an_event_that_was_looked_at() {
        let mut queue = EventQueue::new();
        queue.push(Time::from_ns(1_000_000), 2);
        assert_eq!(queue.pop_until(Time::from_ns(10)), None);
        queue.push(Time::from_ns(11), 1);
        assert_eq!(queue.pop_until(Time::NEVER), Some((Time::from_ns(11), 1)));
        assert_eq!(queue.pop_until(Time::NEVER), Some((Time::from_ns(1_000_000), 2)));
        assert_eq!((queue.len(), queue.popped_count()), (0, 2));
    }

    /// An operation on the queue: push at this distance from the last event, or take all events until then.
    #[derive(Clone, Debug)]
    enum Operation {
        Push(u64),
        PopUntil(u64),
    }

    fn operations() -> impl Strategy<Value = Vec<Operation>> {
        // Within a slot, within the wheel, at its end, and far beyond it.
        let span_ps = (SLOTS as u64) << SLOT_PS_LOG2;
        let distance = prop_oneof![
            0u64..10,
            0u64..20_000,
            0..span_ps,
            span_ps - 9_000..span_ps + 9_000,
            0..20 * span_ps,
        ];
        let operation = prop_oneof![
            3 => distance.clone().prop_map(Operation::Push),
            1 => distance.prop_map(Operation::PopUntil),
        ];
        prop::collection::vec(operation, 0..300)
    }

    proptest! {
        /// The naive model: a list from which the first entry by time and number is taken.
        #[test]
        fn pop_until__follows_the_naive_queue(operations in operations()) {
            let mut queue = EventQueue::new();
            let mut naive: Vec<(Time, usize)> = Vec::new();
            let mut now = Time::ZERO;
            for (number, operation) in operations.into_iter().enumerate() {
                match operation {
                    Operation::Push(ps) => {
                        queue.push(now.plus_ps(ps), number);
                        naive.push((now.plus_ps(ps), number));
                    }
                    Operation::PopUntil(ps) => {
                        now = now.plus_ps(ps);
                        while let Some(first) = queue.pop_until(now) {
                            prop_assert_eq!(Some(first), take_first(&mut naive));
                        }
                        prop_assert!(naive.iter().all(|&(at, _)| at > now));
                    }
                }
                let next_at = naive.iter().map(|&(at, _)| at).min().unwrap_or(Time::NEVER);
                prop_assert_eq!((queue.len(), queue.next_at()), (naive.len(), next_at));
            }
        }
    }

    fn take_first(naive: &mut Vec<(Time, usize)>) -> Option<(Time, usize)> {
        let index = naive.iter().enumerate().min_by_key(|(_, entry)| **entry)?.0;
        Some(naive.remove(index))
    }
}
