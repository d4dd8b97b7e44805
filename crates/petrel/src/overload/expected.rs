//! The expected wait of a request by the queue length, and its expected service time.

/// Requests averaged by the means. After a change of service times, the means are within a seventh of the new value
/// after twice as many requests. For exponential times the mean is within 9 % of the true value two times in three.
const REMEMBERED: u64 = 64;

/// A resolution below a nanosecond: otherwise the mean of short times would not reach them.
const PARTS_PER_NS: u64 = 256;

/// Mean deviations above the mean that a slow request may take: as many as in TCP's retransmission timeout (RFC 6298
/// §2). Of exponential times 98 % are shorter.
const DEVIATIONS: u64 = 4;

/// The mean service time, and the waits derived from it. With all workers busy, a worker becomes free every `service /
/// workers`, and the n-th request in the queue waits n times as long.
#[derive(Clone, Debug)]
pub(super) struct ExpectedWait {
    workers: u64,
    service: Mean,
    deviation: Mean,
}

/// The mean of the first times, and then of the most recent.
#[derive(Clone, Debug, Default)]
struct Mean {
    /// In units of 1/[`PARTS_PER_NS`] ns.
    parts: u64,
    /// The number of averaged times, up to [`REMEMBERED`].
    count: u64,
}

impl ExpectedWait {
    pub(super) fn new(workers: usize) -> Self {
        let (service, deviation) = Default::default();
        Self { workers: workers.max(1) as u64, service, deviation }
    }

    pub(super) fn record(&mut self, service_ns: u64) {
        self.deviation.record(service_ns.abs_diff(self.service_ns()));
        self.service.record(service_ns);
    }

    /// Returns true if a service time was recorded.
    pub(super) fn is_known(&self) -> bool {
        self.service.count > 0
    }

    /// Returns the mean; zero before the first record.
    pub(super) fn service_ns(&self) -> u64 {
        self.service.parts / PARTS_PER_NS
    }

    /// Returns the service time of a slow request.
    pub(super) fn long_service_ns(&self) -> u64 {
        let deviations = self.deviation.parts.saturating_mul(DEVIATIONS);
        self.service.parts.saturating_add(deviations) / PARTS_PER_NS
    }

    /// Returns the wait of a request behind `waiting` requests.
    pub(super) fn wait_ns(&self, waiting: usize) -> u64 {
        let all = u128::from(self.service.parts) * waiting as u128;
        let parts = u128::from(self.workers) * u128::from(PARTS_PER_NS);
        u64::try_from(all / parts).unwrap_or(u64::MAX)
    }
}

impl Mean {
    fn record(&mut self, ns: u64) {
        let parts = ns.saturating_mul(PARTS_PER_NS);
        self.count = (self.count + 1).min(REMEMBERED);
        match parts >= self.parts {
            true => self.parts += (parts - self.parts) / self.count,
            false => self.parts -= (self.parts - parts) / self.count,
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn wait_ns__is_that_of_the_requests_before_it() {
        let mut expected = ExpectedWait::new(4);
        assert_eq!(expected.wait_ns(1_000), 0, "nothing is known");
        expected.record(10_000);
        assert_eq!((expected.service_ns(), expected.wait_ns(8)), (10_000, 20_000));
        assert_eq!(expected.wait_ns(0), 0);
        expected.record(20_000);
        assert_eq!(expected.service_ns(), 15_000, "of few it is their mean");
        assert_eq!(ExpectedWait::new(0).workers, 1);
    }

    #[test]
    fn record__follows_a_change() {
        let mut expected = ExpectedWait::new(1);
        (0..1_000).for_each(|_| expected.record(1_000));
        (0..2 * REMEMBERED).for_each(|_| expected.record(100_000));
        assert!(expected.service_ns() > 85_000, "{}", expected.service_ns());
        (0..20 * REMEMBERED).for_each(|_| expected.record(3));
        assert_eq!(expected.service_ns(), 3, "rounding leaves nothing over");
    }

    #[test]
    fn long_service_ns__is_the_mean_where_all_take_the_same() {
        let mut expected = ExpectedWait::new(1);
        (0..20 * REMEMBERED).for_each(|_| expected.record(10_000));
        // The first time had a large deviation.
        assert!((10_000..10_010).contains(&expected.long_service_ns()));
        (0..20 * REMEMBERED).for_each(|number| expected.record(5_000 + number % 2 * 10_000));
        let long_ns = expected.long_service_ns();
        assert!(long_ns.abs_diff(10_000 + 4 * 5_000) < 500, "{long_ns}");
    }

    proptest! {
        #[test]
        fn service_ns__is_between_the_least_and_the_most(
            times in prop::collection::vec(any::<u64>(), 1..300), waiting in any::<usize>(),
        ) {
            let mut expected = ExpectedWait::new(3);
            times.iter().for_each(|&time| expected.record(time));
            let bounded = times.iter().map(|&time| time.min(u64::MAX / PARTS_PER_NS));
            let (least, most) = (bounded.clone().min().unwrap(), bounded.max().unwrap());
            prop_assert!((least..=most).contains(&expected.service_ns()));
            prop_assert!(expected.long_service_ns() >= expected.service_ns());
            expected.wait_ns(waiting);
        }
    }
}
