//! A bound on waits that depends on whether the queue stands (Maurer, "Fail at Scale", ACM Queue 2015).
//!
//! The article also takes the newest request first while the queue stands. Here requests run in order of arrival: the bound keeps waits
//! short, and a ring has a single end to take from.

/// The bound on waits, chosen by the time when the queue was last empty.
#[derive(Clone, Debug)]
pub(super) struct ControlledDelay {
    target_ns: u64,
    interval_ns: u64,
    empty_ns: u64,
}

impl ControlledDelay {
    pub(super) fn new(target_ns: u64, interval_ns: u64) -> Self {
        Self { target_ns, interval_ns, empty_ns: 0 }
    }

    /// Returns true if a request that has waited for `waited_ns` must be dropped; `waiting` others remain.
    pub(super) fn sheds(&mut self, now_ns: u64, waited_ns: u64, waiting: usize) -> bool {
        let stands = now_ns.saturating_sub(self.empty_ns) > self.interval_ns;
        if waiting == 0 {
            self.empty_ns = now_ns;
        }
        waited_ns > if stands { self.target_ns } else { self.interval_ns }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sheds__beyond_the_target_only_when_the_queue_stands() {
        let mut delay = ControlledDelay::new(50, 1_000);
        assert!(!delay.sheds(900, 900, 3), "empty less than an interval ago");
        assert!(delay.sheds(1_001, 51, 3));
        assert!(!delay.sheds(1_001, 50, 3));
        assert!(delay.sheds(1_002, 51, 0), "it stood until now");
        assert!(!delay.sheds(2_002, 1_000, 3), "now it was empty");
        assert!(delay.sheds(2_002, 1_001, 3), "that long nothing waits");
    }
}
