//! The sessions held back by pacing, by the time at which they may send: the fine half of the wheel.
//!
//! Pacing needs three differences from timeouts. A tick is 1 µs, so that a packet is late by less than a full
//! packet takes at 10 Gbit/s. Due sessions come in the order of their times, and in one tick in the order of
//! insertion, to keep any session from being always last. And no entry is removed early: a session has at
//! most one entry, which soon comes due and is recognised as stale.

use petrel_planted::planted;

use super::TimerKey;
use super::filled::{BUCKETS, Filled};

/// Nanoseconds of a tick, as a power of two: 1.024 µs, for a horizon of 524 µs, less the up to 66 µs since
/// time was last moved forward. Later times come due at the horizon and are inserted again: at 1 Mbit/s, the
/// lowest rate, some 30 times for a full packet.
const TICK_SHIFT: u32 = 10;

const NIL: u32 = u32::MAX;

#[derive(Clone, Copy, Debug)]
struct Node {
    key: TimerKey,
    next: u32,
}

/// A list with two ends.
#[derive(Clone, Copy, Debug)]
struct List {
    first: u32,
    last: u32,
}

impl List {
    const EMPTY: Self = Self { first: NIL, last: NIL };
}

/// The fine half of the wheel.
#[derive(Debug)]
pub(super) struct Releases {
    lists: Box<[List]>,
    filled: Filled,
    /// The largest number of entries so far, free ones included.
    nodes: Vec<Node>,
    free: u32,
    /// Entries in the buckets and due entries.
    count: u32,
    /// All ticks up to this one have been handled.
    tick: u64,
    due: List,
}

impl Releases {
    pub(super) fn new(now_ns: u64) -> Self {
        Self {
            lists: vec![List::EMPTY; BUCKETS as usize].into_boxed_slice(),
            filled: Filled::default(),
            nodes: Vec::new(),
            free: NIL,
            count: 0,
            tick: now_ns >> TICK_SHIFT,
            due: List::EMPTY,
        }
    }

    /// Inserts an entry. Returns the time at which the entry comes due.
    #[inline]
    pub(super) fn insert(&mut self, now_ns: u64, key: TimerKey, release_ns: u64) -> u64 {
        if self.count == 0 {
            // Nothing has moved time forward meanwhile.
            self.tick = self.tick.max(now_ns >> TICK_SHIFT);
        }
        let (soonest, latest) = (self.tick + 1, self.tick + BUCKETS - 1);
        let tick = ((release_ns >> TICK_SHIFT) + 1).clamp(soonest, latest);
        let bucket = (tick % BUCKETS) as usize;
        let node = self.allocate(key);
        append(&mut self.nodes, &mut self.lists[bucket], List { first: node, last: node });
        self.filled.set(bucket);
        self.count += 1;
        tick << TICK_SHIFT
    }

    /// Moves the entries of all ticks up to now to the due list. Returns the time of the next tick with an
    /// entry.
    pub(super) fn collect_due(&mut self, now_ns: u64) -> Option<u64> {
        let now = now_ns >> TICK_SHIFT;
        let mut next = self.next_tick();
        while let Some(tick) = next
            && tick <= now
        {
            let bucket = (tick % BUCKETS) as usize;
            let list = core::mem::replace(&mut self.lists[bucket], List::EMPTY);
            assert_ne!(list.first, NIL, "a bucket marked as filled has an entry");
            assert!(tick > self.tick, "the time of releases does not go back");
            self.filled.clear(bucket);
            self.tick = tick;
            append(&mut self.nodes, &mut self.due, list);
            next = self.next_tick();
        }
        if !planted("proto_releases_stand_still") {
            self.tick = self.tick.max(now);
        }
        Some(next? << TICK_SHIFT)
    }

    #[inline]
    pub(super) fn pop_due(&mut self) -> Option<TimerKey> {
        let first = self.due.first;
        if first == NIL {
            return None;
        }
        assert!(self.count > 0, "each due release is counted");
        let Node { key, next } = self.nodes[first as usize];
        self.due.first = next;
        self.nodes[first as usize].next = self.free;
        self.free = first;
        self.count -= 1;
        Some(key)
    }

    /// Returns the number of entries in the buckets and due entries.
    pub(super) fn len(&self) -> usize {
        self.count as usize
    }

    pub(super) fn has_due(&self) -> bool {
        self.due.first != NIL
    }

    /// Returns the time at which the next entry comes due, apart from due entries.
    pub(super) fn next_due_ns(&self) -> Option<u64> {
        Some(self.next_tick()? << TICK_SHIFT)
    }

    fn next_tick(&self) -> Option<u64> {
        assert!(self.count as usize <= self.nodes.len(), "each release has an entry");
        if self.count == 0 { None } else { self.filled.next_after(self.tick) }
    }

    fn allocate(&mut self, key: TimerKey) -> u32 {
        let node = Node { key, next: NIL };
        let index = self.free;
        if index == NIL {
            assert_eq!(
                self.count as usize,
                self.nodes.len(),
                "each entry of a release that was taken is free again"
            );
            self.nodes.push(node);
            return self.nodes.len() as u32 - 1;
        }
        self.free = self.nodes[index as usize].next;
        self.nodes[index as usize] = node;
        index
    }
}

fn append(nodes: &mut [Node], list: &mut List, tail: List) {
    if list.first == NIL {
        *list = tail;
    } else {
        let last = &mut nodes[list.last as usize];
        assert_eq!(last.next, NIL, "the last entry of a list has none behind it");
        last.next = tail.first;
        list.last = tail.last;
    }
}

#[cfg(test)]
mod tests;
