//! Deadlines of the nexus's outstanding requests.

use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::net::SocketAddr;
use std::time::Instant;

use super::ids::{ConnectionId, ExchangeId};
use super::limits::DEADLINES_MIN;
use super::link::ProposalName;
use crate::control::LinkId;

/// The subject of a deadline. A deadline of a settled subject does nothing.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Due {
    /// A link requested before its endpoint was attached, by number in the connection.
    EarlyLink(ConnectionId, u32),
    /// A requested or agreed link that is not up.
    Link(LinkId),
    /// A proposed session.
    Session(LinkId, ProposalName),
    /// An exchange of descriptors.
    Exchange(ExchangeId),
    /// A connection to be tried again.
    Redial(SocketAddr),
    /// Counters to be collected.
    Stats(u64),
    /// Certificates about to end, and revoked peers.
    Trust,
    /// A look whether the decisions about callers have changed.
    Grants,
}

/// Deadlines, the soonest first. Settled deadlines stay until their time or the next sweep: settling costs nothing.
#[derive(Debug, Default)]
pub(super) struct Deadlines {
    heap: BinaryHeap<Reverse<(Instant, Due)>>,
    /// The length at which the settled ones are swept.
    sweep_at: usize,
}

impl Deadlines {
    pub(super) fn add(&mut self, at: Instant, due: Due) {
        self.heap.push(Reverse((at, due)));
    }

    /// Returns the number of deadlines, including settled ones.
    pub(super) fn len(&self) -> usize {
        self.heap.len()
    }

    /// Returns true if it is time to [`sweep`](Self::sweep).
    pub(super) fn is_crowded(&self) -> bool {
        self.heap.len() >= self.sweep_at.max(DEADLINES_MIN)
    }

    /// Removes settled deadlines. The next sweep comes once the heap has doubled, for a constant amortised cost per
    /// deadline.
    pub(super) fn sweep(&mut self, is_live: impl Fn(&Due) -> bool) {
        self.heap.retain(|Reverse((_, due))| is_live(due));
        self.sweep_at = 2 * self.heap.len();
        assert!(!self.is_crowded(), "deadlines are swept once before they double");
    }

    pub(super) fn next(&self) -> Option<Instant> {
        self.heap.peek().map(|Reverse((at, _))| *at)
    }

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
    fn is_crowded__at_twice_the_length_after_a_sweep() {
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
