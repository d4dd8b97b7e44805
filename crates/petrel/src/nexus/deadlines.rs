//! What must be answered by when.

use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::net::SocketAddr;
use std::time::Instant;

use super::connection::ConnectionId;
use super::limits::DEADLINES_MIN;
use super::rendezvous::ExchangeId;
use crate::control::LinkId;

/// What a deadline is about. It does nothing if that is settled when it comes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Due {
    /// A link asked for before its endpoint was there, by its number in the connection.
    EarlyLink(ConnectionId, u32),
    /// A link that was asked for or agreed on, and is not up.
    Link(LinkId),
    /// A session that was proposed, by its request number.
    Session(LinkId, u32),
    /// Descriptors to be exchanged.
    Exchange(ExchangeId),
    /// A connection to be tried again.
    Redial(SocketAddr),
    /// Counters to be collected.
    Stats(u64),
}

/// Deadlines, the soonest first. Those that were settled stay until their time or until
/// they are many: so that settling costs nothing.
#[derive(Debug, Default)]
pub(super) struct Deadlines {
    heap: BinaryHeap<Reverse<(Instant, Due)>>,
    /// At this length the settled ones are thrown out.
    sweep_at: usize,
}

impl Deadlines {
    pub(super) fn add(&mut self, at: Instant, due: Due) {
        self.heap.push(Reverse((at, due)));
    }

    /// How many there are, settled ones included.
    pub(super) fn len(&self) -> usize {
        self.heap.len()
    }

    /// Whether it is time to [`sweep`](Self::sweep).
    pub(super) fn is_crowded(&self) -> bool {
        self.heap.len() >= self.sweep_at.max(DEADLINES_MIN)
    }

    /// Throws out what is settled. As many must come before the next time as remain now, so that
    /// the cost of each is constant on average.
    pub(super) fn sweep(&mut self, is_live: impl Fn(&Due) -> bool) {
        self.heap.retain(|Reverse((_, due))| is_live(due));
        self.sweep_at = 2 * self.heap.len();
    }

    pub(super) fn next(&self) -> Option<Instant> {
        self.heap.peek().map(|Reverse((at, _))| *at)
    }

    /// Takes one that is due.
    pub(super) fn take(&mut self, now: Instant) -> Option<Due> {
        let is_due = self.next().is_some_and(|at| at <= now);
        is_due.then(|| self.heap.pop()).flatten().map(|Reverse((_, due))| due)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;

    #[test]
    fn take__in_order_of_time() {
        let start = Instant::now();
        let mut deadlines = Deadlines::default();
        for (ms, id) in [(30, 3), (10, 1), (20, 2)] {
            deadlines.add(start + Duration::from_millis(ms), Due::Stats(id));
        }
        assert_eq!(deadlines.take(start), None);
        let later = start + Duration::from_millis(20);
        assert_eq!(deadlines.take(later), Some(Due::Stats(1)));
        assert_eq!(deadlines.take(later), Some(Due::Stats(2)));
        assert_eq!(deadlines.take(later), None);
        assert_eq!(deadlines.next(), Some(start + Duration::from_millis(30)));
    }

    #[test]
    fn sweep__keeps_the_live_and_waits_for_twice_as_many() {
        let now = Instant::now();
        let mut deadlines = Deadlines::default();
        (0..DEADLINES_MIN as u64).for_each(|id| deadlines.add(now, Due::Stats(id)));
        assert!(deadlines.is_crowded());
        deadlines.sweep(|due| matches!(due, Due::Stats(id) if id % 2 == 0));
        assert!(!deadlines.is_crowded());
        assert_eq!(std::iter::from_fn(|| deadlines.take(now)).count(), DEADLINES_MIN / 2);
    }

    #[test]
    fn is_crowded__at_twice_what_the_last_sweep_left() {
        let now = Instant::now();
        let mut deadlines = Deadlines::default();
        for count in [DEADLINES_MIN, 2 * DEADLINES_MIN, 4 * DEADLINES_MIN] {
            while deadlines.len() < count {
                assert!(!deadlines.is_crowded(), "{} of {count}", deadlines.len());
                deadlines.add(now, Due::Stats(0));
            }
            assert!(deadlines.is_crowded());
            deadlines.sweep(|_| true);
            assert!(!deadlines.is_crowded() && deadlines.len() == count);
        }
        deadlines.sweep(|_| false);
        (0..DEADLINES_MIN).for_each(|_| deadlines.add(now, Due::Stats(0)));
        assert!(deadlines.is_crowded());
    }
}
