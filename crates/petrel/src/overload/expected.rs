//! How long a request will wait, by how many wait before it.

/// Requests that the mean remembers: after a change of what they take, it is within a seventh of the new
/// value after twice as many. Of exponential times it is within 9 % of the true mean two times in three.
const REMEMBERED: u64 = 64;

/// Below a nanosecond, so that the mean of short times does not stop short of them.
const PARTS_PER_NS: u64 = 256;

/// The mean time of service, and what it means for those that wait: with all workers busy one of them is free
/// every `service / workers`, so that the n-th in the queue waits n times as long.
#[derive(Clone, Debug)]
pub(super) struct ExpectedWait {
    workers: u64,
    /// In [`PARTS_PER_NS`].
    service: u64,
    /// Times that the mean is of, up to [`REMEMBERED`].
    count: u64,
}

impl ExpectedWait {
    pub(super) fn new(workers: usize) -> Self {
        Self { workers: workers.max(1) as u64, service: 0, count: 0 }
    }

    pub(super) fn record(&mut self, service_ns: u64) {
        let service = service_ns.saturating_mul(PARTS_PER_NS);
        self.count = (self.count + 1).min(REMEMBERED);
        match service >= self.service {
            true => self.service += (service - self.service) / self.count,
            false => self.service -= (self.service - service) / self.count,
        }
    }

    /// The mean; zero before the first.
    pub(super) fn service_ns(&self) -> u64 {
        self.service / PARTS_PER_NS
    }

    /// What a request waits behind so many others.
    pub(super) fn wait_ns(&self, waiting: usize) -> u64 {
        let all = u128::from(self.service) * waiting as u128;
        u64::try_from(all / u128::from(self.workers * PARTS_PER_NS)).unwrap_or(u64::MAX)
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
            expected.wait_ns(waiting);
        }
    }
}
