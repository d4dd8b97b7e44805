//! Pauses before another attempt.

use std::time::Duration;

use crate::time::as_ns;

/// Bounds of a [`Backoff`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BackoffConfig {
    /// Longest pause before the second attempt: 1 ms.
    pub first: Duration,
    /// Longest of all pauses: 1 s.
    pub max: Duration,
    /// Upper bound of the next pause, in per cent of the previous bound; 200 by default. A client notices the end of an
    /// outage late by up to the excess of this value over 100, in per cent of the outage.
    pub growth_percent: u32,
}

impl Default for BackoffConfig {
    /// Pauses from 1 ms, about the least time to notice a lost packet, to 1 s: a server that is back is found within half a second on
    /// average.
    fn default() -> Self {
        Self { first: Duration::from_millis(1), max: Duration::from_secs(1), growth_percent: 200 }
    }
}

/// Pauses between attempts: exponential, with full jitter.
///
/// Each pause is drawn evenly between zero and a bound: `first`, then growing by `growth_percent` each time, up to
/// `max`. Clients that failed together thus return apart ("Exponential Backoff And Jitter", AWS Architecture Blog,
/// 2015; of the variants compared there, full jitter makes the fewest calls).
///
/// ```
/// use petrel::overload::{Backoff, BackoffConfig};
///
/// let mut backoff = Backoff::new(BackoffConfig::default());
/// // u64::MAX is the largest random number: these are the longest pauses.
/// assert_eq!(backoff.next_ns(u64::MAX), 1_000_000);
/// assert_eq!(backoff.next_ns(u64::MAX), 2_000_000);
/// backoff.reset();
/// assert_eq!(backoff.next_ns(u64::MAX / 2), 500_000);
/// ```
#[derive(Clone, Debug)]
pub struct Backoff {
    first_ns: u64,
    max_ns: u64,
    growth_percent: u32,
    pauses: u32,
    /// The upper bound of the next pause.
    bound_ns: u64,
}

impl Backoff {
    /// Creates a backoff without failures.
    pub fn new(config: BackoffConfig) -> Self {
        let (first_ns, max_ns) = (as_ns(config.first), as_ns(config.max));
        let (growth_percent, bound_ns) = (config.growth_percent, first_ns.min(max_ns));
        Self { first_ns, max_ns, growth_percent, pauses: 0, bound_ns }
    }

    /// Returns the next pause in nanoseconds, from evenly distributed random bits.
    pub fn next_ns(&mut self, random: u64) -> u64 {
        let bound_ns = u128::from(self.bound_ns);
        self.pauses = self.pauses.saturating_add(1);
        let grown_ns = (bound_ns * u128::from(self.growth_percent)).div_ceil(100);
        self.bound_ns = grown_ns.min(u128::from(self.max_ns)) as u64;
        // The high half of a product: evenly from 0 to the bound, both included.
        let pause_ns = ((u128::from(random) * (bound_ns + 1)) >> 64) as u64;
        assert!(u128::from(pause_ns) <= bound_ns, "a pause is drawn below its bound");
        pause_ns
    }

    /// Records a success: the next pause is a first one.
    pub fn reset(&mut self) {
        self.pauses = 0;
        self.bound_ns = self.first_ns.min(self.max_ns);
    }

    /// Returns the pauses since the last success.
    pub fn pauses(&self) -> u32 {
        self.pauses
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn backoff(first_ns: u64, max_ns: u64) -> Backoff {
        let (first, max) = (Duration::from_nanos(first_ns), Duration::from_nanos(max_ns));
        Backoff::new(BackoffConfig { first, max, ..BackoffConfig::default() })
    }

    #[test]
    fn next_ns__doubles_up_to_the_most_and_begins_anew() {
        let mut backoff = backoff(100, 500);
        let longest: Vec<_> = (0..5).map(|_| backoff.next_ns(u64::MAX)).collect();
        assert_eq!(longest, [100, 200, 400, 500, 500]);
        assert_eq!(backoff.pauses(), 5);
        backoff.reset();
        assert_eq!((backoff.pauses(), backoff.next_ns(u64::MAX)), (0, 100));
    }

    #[test]
    fn next_ns__grows_by_the_configured_percentage() {
        let (first, max) = (Duration::from_nanos(100), Duration::from_nanos(180));
        let mut backoff = Backoff::new(BackoffConfig { first, max, growth_percent: 125 });
        let longest: Vec<_> = (0..5).map(|_| backoff.next_ns(u64::MAX)).collect();
        assert_eq!(longest, [100, 125, 157, 180, 180], "each rounded up");
    }

    #[test]
    fn next_ns__of_the_most_and_of_nothing_after_any_failures() {
        let mut backoff = backoff(u64::MAX / 2, u64::MAX);
        assert!((0..1_000).all(|_| backoff.next_ns(0) == 0));
        assert_eq!(backoff.next_ns(u64::MAX), u64::MAX);
        assert_eq!(self::backoff(0, 500).next_ns(u64::MAX), 0);
        assert_eq!(self::backoff(100, 0).next_ns(u64::MAX), 0);
    }

    #[test]
    fn next_ns__is_spread_evenly() {
        // Evenly spaced random numbers put a tenth of the pauses into each tenth of the range.
        let mut tenths = [0; 10];
        for step in 0..1_000u64 {
            let pause = backoff(999, 999).next_ns(step * (u64::MAX / 1_000));
            tenths[pause as usize / 100] += 1;
        }
        assert!(tenths.iter().all(|&count| (99..=101).contains(&count)), "{tenths:?}");
    }

    proptest! {
        #[test]
        fn next_ns__is_never_beyond_its_bound(
            first in 0..u64::MAX, max in 0..u64::MAX,
            random in prop::collection::vec(any::<u64>(), 1..100),
        ) {
            let mut backoff = backoff(first, max);
            for (pauses, random) in random.into_iter().enumerate() {
                let bound = u128::from(first) << pauses.min(63);
                prop_assert!(u128::from(backoff.next_ns(random)) <= bound.min(max.into()));
            }
        }
    }
}
