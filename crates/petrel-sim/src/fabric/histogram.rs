//! A histogram of times.

/// Binary logarithm of the number of equal parts of a power of two.
const PARTS_LOG2: u32 = 6;
const PARTS: u64 = 1 << PARTS_LOG2;

/// Times in picoseconds, in buckets that are at most a 64th of their value wide: a percentile is off by
/// less than 0.8 %. Count, mean, least and most are exact.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Histogram {
    buckets: Vec<u64>,
    count: u64,
    sum_ps: u128,
    min_ps: u64,
    max_ps: u64,
}

impl Histogram {
    /// Makes an empty histogram.
    pub fn new() -> Self {
        Self::default()
    }

    /// Records a time.
    #[inline]
    pub fn record(&mut self, ps: u64) {
        let bucket = bucket_of(ps);
        if bucket >= self.buckets.len() {
            self.buckets.resize(bucket + 1, 0);
        }
        self.buckets[bucket] += 1;
        self.min_ps = if self.count == 0 { ps } else { self.min_ps.min(ps) };
        self.max_ps = self.max_ps.max(ps);
        self.count += 1;
        self.sum_ps += u128::from(ps);
    }

    /// Adds all times of another histogram.
    pub fn add(&mut self, other: &Self) {
        if other.count == 0 {
            return;
        }
        self.buckets.resize(self.buckets.len().max(other.buckets.len()), 0);
        for (own, others) in self.buckets.iter_mut().zip(&other.buckets) {
            *own += others;
        }
        self.min_ps = if self.count == 0 { other.min_ps } else { self.min_ps.min(other.min_ps) };
        self.max_ps = self.max_ps.max(other.max_ps);
        self.count += other.count;
        self.sum_ps += other.sum_ps;
    }

    /// Returns the number of times.
    pub fn count(&self) -> u64 {
        self.count
    }

    /// Returns the average; zero if empty.
    pub fn mean_ps(&self) -> f64 {
        self.sum_ps as f64 / (self.count as f64).max(1.0)
    }

    /// Returns the shortest time; zero if empty.
    pub fn min_ps(&self) -> u64 {
        self.min_ps
    }

    /// Returns the longest time; zero if empty.
    pub fn max_ps(&self) -> u64 {
        self.max_ps
    }

    /// Returns how many recorded times are above this time, by whole buckets: times in the same bucket do not count.
    pub fn count_above_ps(&self, ps: u64) -> u64 {
        self.buckets.iter().skip(bucket_of(ps) + 1).sum()
    }

    /// Returns the time that the given part of all times (0 to 1) does not exceed; zero if empty.
    pub fn quantile_ps(&self, part: f64) -> u64 {
        let rank = ((part * self.count as f64).ceil() as u64).clamp(1, self.count.max(1));
        let mut seen = 0;
        for (bucket, &count) in self.buckets.iter().enumerate() {
            seen += count;
            if seen >= rank {
                return middle_of(bucket).clamp(self.min_ps, self.max_ps);
            }
        }
        0
    }
}

/// Returns the bucket of a time. Small numbers have one bucket each. For larger ones, the bits after the first one
/// choose the bucket.
fn bucket_of(ps: u64) -> usize {
    let Some(shift) = (ps | 1).ilog2().checked_sub(PARTS_LOG2) else { return ps as usize };
    (u64::from(shift) * PARTS + (ps >> shift)) as usize
}

/// Returns a number in the middle of a bucket.
fn middle_of(bucket: usize) -> u64 {
    let bucket = bucket as u64;
    let Some(shift) = (bucket / PARTS).checked_sub(1) else { return bucket };
    let first = (bucket - shift * PARTS) << shift;
    first + ((1u64 << shift) - 1) / 2
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn count_above_ps__leaves_out_shorter_times_and_the_same_bucket() {
        let mut times = Histogram::new();
        for ps in [10, 1_000_000, 1_000_001, 2_000_000, 5_000_000] {
            times.record(ps);
        }
        assert_eq!(times.count_above_ps(1_000_000), 2);
        assert_eq!([0, 4_000_000, 9_000_000].map(|ps| times.count_above_ps(ps)), [5, 1, 0]);
    }

    #[test]
    fn empty__is_zero() {
        let empty = Histogram::new();
        assert_eq!((empty.count(), empty.quantile_ps(0.5), empty.max_ps()), (0, 0, 0));
        assert_eq!(empty.mean_ps(), 0.0);
    }

    #[test]
    fn bucket_of__covers_everything_in_order() {
        let mut last = 0;
        for exponent in 0..64 {
            for ps in [1u64 << exponent, (1 << exponent) + (1 << exponent) / 3] {
                let bucket = bucket_of(ps);
                assert!(bucket >= last && bucket < 64 * 64);
                let error = middle_of(bucket).abs_diff(ps) as f64;
                assert!(error <= ps as f64 / 128.0, "{ps}");
                last = bucket;
            }
        }
        bucket_of(u64::MAX);
    }

    proptest! {
        /// The naive model: a sorted list.
        #[test]
        fn quantile_ps__is_near_the_sorted_one(
            mut times in prop::collection::vec(0u64..1 << 40, 1..300),
            part in 0.0f64..=1.0,
            split in 0usize..300,
        ) {
            let (mut histogram, mut other) = (Histogram::new(), Histogram::new());
            for (index, &ps) in times.iter().enumerate() {
                if index < split { histogram.record(ps) } else { other.record(ps) }
            }
            histogram.add(&other);
            times.sort_unstable();
            let rank = ((part * times.len() as f64).ceil() as usize).clamp(1, times.len());
            let exact = times[rank - 1];
            let found = histogram.quantile_ps(part);
            prop_assert!(found.abs_diff(exact) as f64 <= exact as f64 / 128.0 + 1.0);
            prop_assert_eq!(histogram.count(), times.len() as u64);
            prop_assert_eq!((histogram.min_ps(), histogram.max_ps()), (times[0], times[times.len() - 1]));
            let mean = times.iter().map(|&ps| ps as f64).sum::<f64>() / times.len() as f64;
            prop_assert!((histogram.mean_ps() - mean).abs() <= mean * 1e-9);
        }
    }
}
