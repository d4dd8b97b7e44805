//! The set of a wheel's non-empty buckets.

/// Buckets of a wheel.
pub(super) const BUCKETS: u64 = 512;

const WORDS: usize = (BUCKETS / 64) as usize;

/// A bit per bucket.
#[derive(Clone, Debug, Default)]
pub(super) struct Filled([u64; WORDS]);

impl Filled {
    #[inline(always)]
    pub(super) fn set(&mut self, bucket: usize) {
        self.0[bucket / 64] |= 1 << (bucket % 64);
    }

    #[inline(always)]
    pub(super) fn clear(&mut self, bucket: usize) {
        assert!(self.contains(bucket), "a bucket is emptied that has entries");
        self.0[bucket / 64] &= !(1 << (bucket % 64));
    }

    #[inline(always)]
    pub(super) fn contains(&self, bucket: usize) -> bool {
        self.0[bucket / 64] >> (bucket % 64) & 1 == 1
    }

    /// Returns the first tick after `tick`, at most a turn of the wheel later, whose bucket has entries.
    #[inline]
    pub(super) fn next_after(&self, tick: u64) -> Option<u64> {
        let first = tick + 1;
        let start = (first % BUCKETS) as usize;
        let bits = self.0[start / 64] >> (start % 64);
        if bits != 0 {
            return Some(first + u64::from(bits.trailing_zeros()));
        }
        self.next_in_other_words(first)
    }

    /// Searches the words after the word of `first`, and last the word of `first` again, for the bits below `first`.
    fn next_in_other_words(&self, first: u64) -> Option<u64> {
        let start = (first % BUCKETS) as usize;
        let later = (1..=WORDS).find(|step| self.0[(start / 64 + step) % WORDS] != 0)?;
        let bits = self.0[(start / 64 + later) % WORDS];
        let word = first - (start % 64) as u64 + 64 * later as u64;
        let next = word + u64::from(bits.trailing_zeros());
        assert!(
            (first..first + BUCKETS).contains(&next),
            "a bucket with entries comes within a turn of the wheel"
        );
        Some(next)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn next_after__finds_every_bucket_from_everywhere() {
        for at in 0..BUCKETS {
            let mut filled = Filled::default();
            filled.set(at as usize);
            for tick in (0..BUCKETS).map(|tick| 7 * BUCKETS + tick) {
                let naive = (tick + 1..=tick + BUCKETS).find(|tick| tick % BUCKETS == at);
                assert_eq!(filled.next_after(tick), naive, "{at} after {tick}");
            }
            filled.clear(at as usize);
            assert_eq!(filled.next_after(at), None);
        }
    }

    panics! {
        clear__of_an_empty_bucket: "a bucket is emptied that has entries"
            => Filled::default().clear(7);
    }

    #[test]
    fn next_after__takes_the_nearest() {
        let mut filled = Filled::default();
        [3, 64, 511].into_iter().for_each(|bucket| filled.set(bucket));
        assert_eq!([0, 3, 64, 511].map(|tick| filled.next_after(tick).unwrap()), [3, 64, 511, 515]);
    }
}
