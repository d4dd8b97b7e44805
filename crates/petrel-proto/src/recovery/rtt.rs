//! Round-trip estimation and the retransmission timeout (RFC 6298, `docs/wire-protocol.md` §7).

use crate::limits::RTO_NS_MAX;

/// Bounds of the retransmission timeout, in nanoseconds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RtoBounds {
    /// Least timeout. RFC 6298 asks for a second, for the Internet. A datacenter round trip is some
    /// microseconds, and the timeout only has to cover the scheduling noise of the hosts.
    pub min_ns: u64,
    /// Largest timeout, doublings included.
    pub max_ns: u64,
    /// Timeout before the first measurement, for a path of unknown length.
    pub initial_ns: u64,
    /// Least time until a *probe*: one search for loss at the tail of a transmission before the timeout (RFC
    /// 9002 §6.2, RFC 8985 §7). An unnecessary probe costs two small frames and is no sign of congestion, so
    /// it may be early. Values from `min_ns` on disable probes.
    pub probe_min_ns: u64,
}

impl RtoBounds {
    /// Checks that the bounds are consistent.
    ///
    /// # Errors
    /// The violated rule.
    pub fn check(&self) -> Result<(), &'static str> {
        if self.min_ns == 0 {
            Err("the least retransmission timeout is at least a nanosecond")
        } else if self.min_ns > self.max_ns {
            Err("the least retransmission timeout is at most the largest one")
        } else if self.max_ns > RTO_NS_MAX {
            Err("the largest retransmission timeout is at most an hour")
        } else {
            Ok(())
        }
    }

    /// Returns true if probes are enabled.
    #[inline]
    pub fn has_probes(&self) -> bool {
        self.probe_min_ns < self.min_ns
    }

    /// Returns the time of a near timer: a timer set for at most this time is about as near as any.
    #[inline]
    pub fn soon_ns(&self) -> u64 {
        2 * self.probe_min_ns.min(self.min_ns)
    }
}

impl Default for RtoBounds {
    fn default() -> Self {
        Self {
            min_ns: 1_000_000,
            max_ns: 500_000_000,
            initial_ns: 10_000_000,
            probe_min_ns: 100_000,
        }
    }
}

/// Smoothed round-trip time and variation, scaled by 8 and by 4, so that the gains of RFC 6298 §2 (1/8 and
/// 1/4) are shifts. Before the first measurement the second may hold an [expected](RttEstimator::expect)
/// timeout.
#[derive(Clone, Copy, Debug, Default)]
pub struct RttEstimator {
    srtt_ns_times_8: u64,
    rttvar_ns_times_4: u64,
}

impl RttEstimator {
    /// Makes an estimator without measurements.
    pub const fn new() -> Self {
        Self { srtt_ns_times_8: 0, rttvar_ns_times_4: 0 }
    }

    /// Sets the timeout from a round trip measured by other means, as if it were the first measurement (RFC
    /// 6298 §2.2). Without effect after a measurement.
    pub fn expect(&mut self, path_ns: u64) {
        if self.srtt_ns_times_8 == 0 {
            self.rttvar_ns_times_4 = path_ns.saturating_mul(3);
        }
    }

    /// Adds a measurement.
    #[inline]
    pub fn sample(&mut self, rtt_ns: u64) {
        if self.srtt_ns_times_8 == 0 {
            self.srtt_ns_times_8 = (rtt_ns * 8).max(1);
            self.rttvar_ns_times_4 = rtt_ns * 2;
            return;
        }
        let error = (self.srtt_ns_times_8 / 8).abs_diff(rtt_ns);
        self.rttvar_ns_times_4 = self.rttvar_ns_times_4 - self.rttvar_ns_times_4 / 4 + error;
        self.srtt_ns_times_8 = (self.srtt_ns_times_8 - self.srtt_ns_times_8 / 8 + rtt_ns).max(1);
    }

    /// Returns the smoothed round-trip time in nanoseconds, once measured.
    pub fn srtt_ns(&self) -> Option<u64> {
        (self.srtt_ns_times_8 != 0).then_some(self.srtt_ns_times_8 / 8)
    }

    /// Returns the time in nanoseconds until a probe: never later than the timeout.
    #[inline]
    pub fn probe_ns(&self, bounds: &RtoBounds) -> u64 {
        let rto_ns = self.rto_ns(bounds, 0);
        match self.srtt_ns() {
            Some(srtt) if bounds.has_probes() => {
                let probe_ns = srtt + self.rttvar_ns_times_4.max(1_000);
                probe_ns.max(bounds.probe_min_ns).min(rto_ns)
            }
            _ => rto_ns,
        }
    }

    /// Returns the timeout in nanoseconds after `backoff` doublings.
    #[inline]
    pub fn rto_ns(&self, bounds: &RtoBounds, backoff: u32) -> u64 {
        let base = match self.srtt_ns() {
            None if self.rttvar_ns_times_4 != 0 => self.rttvar_ns_times_4,
            None => bounds.initial_ns,
            Some(srtt) => srtt + self.rttvar_ns_times_4.max(1_000),
        };
        let base = base.clamp(bounds.min_ns, bounds.max_ns);
        (base << backoff.min(20)).min(bounds.max_ns)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const WIDE: RtoBounds =
        RtoBounds { min_ns: 1, max_ns: u64::MAX >> 24, initial_ns: 7, probe_min_ns: 1 };

    #[test]
    fn check__names_the_rule_that_is_broken() {
        assert_eq!(RtoBounds::default().check(), Ok(()));
        let equal = RtoBounds { min_ns: 5, max_ns: 5, ..WIDE };
        assert_eq!(equal.check(), Ok(()));
        assert_eq!(equal.rto_ns_after(9), 5);
        let longest = RtoBounds { min_ns: RTO_NS_MAX, max_ns: RTO_NS_MAX, ..WIDE };
        assert_eq!(longest.check(), Ok(()));
        assert_eq!(longest.rto_ns_after(20), RTO_NS_MAX);
        for (min_ns, max_ns, word) in
            [(0, 5, "nanosecond"), (6, 5, "at most the largest"), (1, RTO_NS_MAX + 1, "hour")]
        {
            let error = RtoBounds { min_ns, max_ns, ..WIDE }.check().unwrap_err();
            assert!(error.contains(word), "{error}");
        }
    }

    impl RtoBounds {
        fn rto_ns_after(&self, backoff: u32) -> u64 {
            RttEstimator::new().rto_ns(self, backoff)
        }
    }

    #[test]
    fn first_sample_sets_srtt_and_half_of_it_as_variation() {
        let mut rtt = RttEstimator::new();
        assert_eq!(rtt.rto_ns(&WIDE, 0), 7);
        rtt.sample(10_000);
        assert_eq!(rtt.srtt_ns(), Some(10_000));
        assert_eq!(rtt.rto_ns(&WIDE, 0), 10_000 + 4 * 5_000);
    }

    #[test]
    fn expected_path__counts_until_the_first_sample() {
        let mut rtt = RttEstimator::new();
        rtt.expect(5_000);
        assert_eq!((rtt.rto_ns(&WIDE, 0), rtt.rto_ns(&WIDE, 1)), (15_000, 30_000));
        assert_eq!((rtt.srtt_ns(), rtt.probe_ns(&WIDE)), (None, 15_000));
        assert_eq!(rtt.rto_ns(&RtoBounds::default(), 0), RtoBounds::default().min_ns);
        rtt.sample(10_000);
        assert_eq!(rtt.rto_ns(&WIDE, 0), 10_000 + 4 * 5_000, "as without");
        rtt.expect(1);
        assert_eq!(rtt.rto_ns(&WIDE, 0), 10_000 + 4 * 5_000);
    }

    #[test]
    fn steady_samples_converge() {
        let mut rtt = RttEstimator::new();
        rtt.sample(80_000);
        for _ in 0..200 {
            rtt.sample(20_000);
        }
        let srtt = rtt.srtt_ns().unwrap();
        assert!((20_000..20_100).contains(&srtt), "{srtt}");
        assert!(rtt.rto_ns(&WIDE, 0) < 22_000);
    }

    #[test]
    fn rto_doubles_within_bounds() {
        let bounds =
            RtoBounds { min_ns: 1_000, max_ns: 9_000, initial_ns: 2_000, probe_min_ns: 100 };
        let mut rtt = RttEstimator::new();
        assert_eq!(
            [0, 1, 2, 3, 63].map(|b| rtt.rto_ns(&bounds, b)),
            [2_000, 4_000, 8_000, 9_000, 9_000]
        );
        rtt.sample(1);
        assert_eq!(rtt.rto_ns(&bounds, 0), 1_001);
    }

    #[test]
    fn probe__comes_before_the_timeout_once_a_round_trip_is_known() {
        let bounds = RtoBounds::default();
        let mut rtt = RttEstimator::new();
        assert_eq!(rtt.probe_ns(&bounds), bounds.initial_ns);
        rtt.sample(10_000);
        assert_eq!(rtt.probe_ns(&bounds), 100_000);
        let mut far = RttEstimator::new();
        far.sample(200_000);
        assert_eq!(far.probe_ns(&bounds), 200_000 + 4 * 100_000);
        far.sample(2_000_000);
        assert_eq!(far.probe_ns(&bounds), far.rto_ns(&bounds, 0));
        let without = RtoBounds { probe_min_ns: bounds.min_ns, ..bounds };
        assert_eq!(rtt.probe_ns(&without), without.min_ns);
    }

    #[test]
    fn zero_round_trips_are_legal() {
        let mut rtt = RttEstimator::new();
        rtt.sample(0);
        rtt.sample(0);
        assert_eq!(rtt.srtt_ns(), Some(0));
    }
}
