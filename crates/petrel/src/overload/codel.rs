//! CoDel (RFC 8289), for requests.
//!
//! The algorithm is that of §5, except for differences between packets and requests. The last queued request is never shed, as the RFC
//! keeps the last packet's worth of bytes. The dropping loop is the worker that asks again.

/// CoDel's state (§5.3).
#[derive(Clone, Debug)]
pub(super) struct Codel {
    target_ns: u64,
    interval_ns: u64,
    /// When the wait will have exceeded the target for an interval, if it does not fall.
    first_above_ns: Option<u64>,
    /// The time of the next drop, while dropping.
    drop_next_ns: Option<u64>,
    /// Drops since dropping began.
    count: u64,
    /// The value of `count` when dropping last began.
    last_count: u64,
    /// The time for which a drop was last scheduled.
    last_next_ns: u64,
}

/// Within this number of intervals, dropping resumes at the former rate (§5.4).
const RECENT_INTERVALS: u64 = 16;

impl Codel {
    pub(super) fn new(target_ns: u64, interval_ns: u64) -> Self {
        Self {
            target_ns,
            interval_ns,
            first_above_ns: None,
            drop_next_ns: None,
            count: 0,
            last_count: 0,
            last_next_ns: 0,
        }
    }

    /// Returns true if a request that has waited for `waited_ns` must be dropped; `waiting` others remain.
    pub(super) fn sheds(&mut self, now_ns: u64, waited_ns: u64, waiting: usize) -> bool {
        let is_standing = self.is_standing(now_ns, waited_ns, waiting);
        match self.drop_next_ns {
            Some(_) if !is_standing => {
                self.drop_next_ns = None;
                false
            }
            Some(next_ns) if now_ns >= next_ns => {
                self.count += 1;
                self.drop_after(next_ns);
                true
            }
            Some(_) => false,
            None if is_standing => {
                self.begin_dropping(now_ns);
                true
            }
            None => false,
        }
    }

    /// Returns true if waits have exceeded the target for an interval (§5.6, `dodequeue`).
    fn is_standing(&mut self, now_ns: u64, waited_ns: u64, waiting: usize) -> bool {
        if waited_ns < self.target_ns || waiting == 0 {
            self.first_above_ns = None;
            return false;
        }
        let first_above_ns =
            self.first_above_ns.get_or_insert(now_ns.saturating_add(self.interval_ns));
        now_ns >= *first_above_ns
    }

    /// Begins to drop; the initial rate depends on the former one (§5.5, `dequeue`).
    fn begin_dropping(&mut self, now_ns: u64) {
        assert!(self.count >= self.last_count, "drops are counted up while dropping");
        let delta = self.count - self.last_count;
        let since_ns = now_ns.saturating_sub(self.last_next_ns);
        let is_recent = since_ns < self.interval_ns.saturating_mul(RECENT_INTERVALS);
        self.count = if is_recent { delta.max(1) } else { 1 };
        self.last_count = self.count;
        self.drop_after(now_ns);
    }

    /// §5.5, `control_law`.
    fn drop_after(&mut self, from_ns: u64) {
        assert!(self.count > 0, "the rate follows from a drop");
        let square = u128::from(self.interval_ns).pow(2) / u128::from(self.count);
        let next_ns = from_ns.saturating_add(square.isqrt() as u64);
        self.last_next_ns = next_ns;
        self.drop_next_ns = Some(next_ns);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const TARGET_NS: u64 = 50;
    const INTERVAL_NS: u64 = 1_000;

    /// The times of drops among requests every 10 ns that have all waited for `waited_ns`.
    fn drops(codel: &mut Codel, from_ns: u64, until_ns: u64, waited_ns: u64) -> Vec<u64> {
        let times = (from_ns..until_ns).step_by(10);
        times.filter(|&now_ns| codel.sheds(now_ns, waited_ns, 5)).collect()
    }

    #[test]
    fn sheds__nothing_within_the_target_and_nothing_for_an_interval() {
        let mut codel = Codel::new(TARGET_NS, INTERVAL_NS);
        assert!(drops(&mut codel, 0, 5_000, TARGET_NS - 1).is_empty());
        assert!(drops(&mut codel, 5_000, 6_000, TARGET_NS).is_empty());
        assert!(codel.sheds(6_000, TARGET_NS, 5), "after an interval");
    }

    #[test]
    fn sheds__ever_more_often_while_the_queue_stands() {
        let mut codel = Codel::new(TARGET_NS, INTERVAL_NS);
        // The interval divided by the roots of 1, 2, 3: 1000, 707, 577 after one another.
        assert_eq!(drops(&mut codel, 0, 3_500, 100), [1_000, 2_000, 2_710, 3_290]);
    }

    #[test]
    fn sheds__stops_with_the_queue_and_goes_on_where_it_was_if_that_is_recent() {
        let mut codel = Codel::new(TARGET_NS, INTERVAL_NS);
        assert_eq!(drops(&mut codel, 0, 10_000, 100).len(), 27);
        assert!(!codel.sheds(10_000, 0, 5));
        let again = drops(&mut codel, 10_010, 12_000, 100);
        assert_eq!(again[0], 11_010, "after an interval");
        assert!(again.len() > 3, "as often as before: {again:?}");
        assert!(!codel.sheds(12_000, 0, 5));
        let later = drops(&mut codel, 40_000, 42_010, 100);
        assert_eq!(later, [41_000, 42_000], "slowly again");
    }

    /// Lets the queue stand for an interval, which begins the dropping.
    fn begin(codel: &mut Codel, now_ns: u64) {
        assert!(!codel.sheds(now_ns - INTERVAL_NS, 100, 5));
        assert!(codel.sheds(now_ns, 100, 5));
    }

    /// Drops `times` more requests, each when due, then empties the queue. Returns the time.
    fn drop_and_end(codel: &mut Codel, times: u64) -> u64 {
        for _ in 0..times {
            let next_ns = codel.drop_next_ns.expect("it drops");
            assert!(!codel.sheds(next_ns - 1, 100, 5) && codel.sheds(next_ns, 100, 5));
        }
        let now_ns = codel.drop_next_ns.expect("it drops");
        assert!(!codel.sheds(now_ns, 0, 5));
        now_ns
    }

    #[test]
    fn begin_dropping__goes_on_with_as_many_as_since_the_last_beginning() {
        let mut codel = Codel::new(TARGET_NS, INTERVAL_NS);
        let mut now_ns = 1_000_000;
        for (expected, times) in [(1, 3), (3, 2), (2, 1), (1, 0), (1, 5), (5, 0), (1, 0)] {
            begin(&mut codel, now_ns);
            assert_eq!((codel.count, codel.last_count), (expected, expected));
            let interval_ns = (INTERVAL_NS.pow(2) / expected).isqrt();
            assert_eq!(codel.drop_next_ns, Some(now_ns + interval_ns));
            now_ns = drop_and_end(&mut codel, times) + 2 * INTERVAL_NS;
        }
    }

    #[test]
    fn begin_dropping__is_slow_again_after_sixteen_intervals() {
        for (since_ns, expected) in [(16 * INTERVAL_NS - 1, 3), (16 * INTERVAL_NS, 1)] {
            let mut codel = Codel::new(TARGET_NS, INTERVAL_NS);
            begin(&mut codel, 1_000_000);
            let now_ns = drop_and_end(&mut codel, 3) + since_ns;
            begin(&mut codel, now_ns);
            assert_eq!(codel.count, expected, "{since_ns} ns later");
        }
    }

    #[test]
    fn sheds__never_the_last_one() {
        let mut codel = Codel::new(TARGET_NS, INTERVAL_NS);
        assert!((0..10_000).step_by(10).all(|now_ns| !codel.sheds(now_ns, 5_000, 0)));
    }
}
