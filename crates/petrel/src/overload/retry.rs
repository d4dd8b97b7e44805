//! The number of retries a client may make.

/// Settings of a [`RetryBudget`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RetryBudgetConfig {
    /// Retries per thousand successful calls: 100.
    pub per_thousand: u32,
    /// Retries per second without preceding successes, for clients with few calls: 10.
    pub reserve_per_s: u32,
    /// The most retries in store, and the initial number: 100.
    pub saved_max: u32,
}

impl Default for RetryBudgetConfig {
    /// Allows retries for a tenth of the successes (gRPC's examples and Linkerd: a tenth to a fifth), ten more per
    /// second (as Finagle), and at most a hundred at once.
    fn default() -> Self {
        Self { per_thousand: 100, reserve_per_s: 10, saved_max: 100 }
    }
}

/// A token bucket with one token per retry: bounds the load that retries add to a failing server, however many calls
/// fail.
///
/// Each success adds a fraction of a token, and so does time. Any stretch of time has at most `saved_max` +
/// `per_thousand` / 1000 × successes + `reserve_per_s` × seconds retries. A recovering server therefore does not face a
/// multiple of its load: with retries of retries, three attempts in each of three layers would be 27 ("Retry
/// Throttling", gRPC proposal A6; `RetryBudget`, Finagle).
///
/// ```
/// use petrel::overload::{RetryBudget, RetryBudgetConfig};
///
/// let config = RetryBudgetConfig { per_thousand: 500, reserve_per_s: 0, saved_max: 1 };
/// let mut budget = RetryBudget::new(config, 0);
/// assert!(budget.try_retry(0), "what is saved up at first");
/// assert!(!budget.try_retry(0));
/// budget.on_success();
/// assert!(!budget.try_retry(0), "half a retry");
/// budget.on_success();
/// assert!(budget.try_retry(0));
/// ```
#[derive(Clone, Debug)]
pub struct RetryBudget {
    /// In units of 1/[`TOKEN`].
    saved: u64,
    saved_max: u64,
    per_success: u64,
    reserve_per_s: u64,
    /// The time up to which the reserve was added.
    filled_ns: u64,
}

/// One retry. This unit makes the reserve's share for a nanosecond, and a thousandth of a token, whole numbers.
const TOKEN: u64 = NS_PER_S;
const NS_PER_S: u64 = 1_000_000_000;

impl RetryBudget {
    /// Creates a full budget.
    pub fn new(config: RetryBudgetConfig, now_ns: u64) -> Self {
        let saved_max = u64::from(config.saved_max) * TOKEN;
        Self {
            saved: saved_max,
            saved_max,
            per_success: u64::from(config.per_thousand) * (TOKEN / 1_000),
            reserve_per_s: config.reserve_per_s.into(),
            filled_ns: now_ns,
        }
    }

    /// Records a success, at the first or at a later attempt.
    pub fn on_success(&mut self) {
        self.put_in(self.per_success);
    }

    /// Returns true if a call may be repeated now, and takes a token for it.
    pub fn try_retry(&mut self, now_ns: u64) -> bool {
        assert!(self.saved <= self.saved_max, "no more retries are saved than the most");
        let elapsed_ns = now_ns.saturating_sub(self.filled_ns);
        self.filled_ns = self.filled_ns.max(now_ns);
        // A token has as many parts as a second has nanoseconds.
        self.put_in(elapsed_ns.saturating_mul(self.reserve_per_s));
        let is_enough = self.saved >= TOKEN;
        if is_enough {
            self.saved -= TOKEN;
        }
        is_enough
    }

    /// Returns the retries in store, without the reserve since the last retry.
    pub fn saved(&self) -> u32 {
        u32::try_from(self.saved / TOKEN).unwrap_or(u32::MAX)
    }

    fn put_in(&mut self, parts: u64) {
        self.saved = self.saved.saturating_add(parts).min(self.saved_max);
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn try_retry__with_the_defaults_is_a_tenth_of_the_successes() {
        let mut budget = RetryBudget::new(RetryBudgetConfig::default(), 5);
        assert_eq!((0..200).filter(|_| budget.try_retry(5)).count(), 100);
        (0..1_000).for_each(|_| budget.on_success());
        assert_eq!((0..200).filter(|_| budget.try_retry(5)).count(), 100);
        (0..10).for_each(|_| budget.on_success());
        assert!(budget.try_retry(5) && !budget.try_retry(5));
        let second = 5 + NS_PER_S;
        assert_eq!((0..200).filter(|_| budget.try_retry(second)).count(), 10, "without a success");
    }

    #[test]
    fn try_retry__without_a_success_lives_on_its_reserve() {
        let config = RetryBudgetConfig { per_thousand: 0, reserve_per_s: 10, saved_max: 3 };
        let mut budget = RetryBudget::new(config, 0);
        assert_eq!((0..9).filter(|_| budget.try_retry(0)).count(), 3);
        assert!(!budget.try_retry(99_999_999));
        assert!(budget.try_retry(100_000_000) && !budget.try_retry(100_000_000));
        // A minute saves no more than the maximum.
        assert_eq!((0..9).filter(|_| budget.try_retry(60 * NS_PER_S)).count(), 3);
        assert!(!budget.try_retry(0), "a time before the last one adds nothing");
    }

    #[test]
    fn try_retry__that_is_never_allowed() {
        let config = RetryBudgetConfig { per_thousand: 1_000, reserve_per_s: 9, saved_max: 0 };
        let mut budget = RetryBudget::new(config, 0);
        budget.on_success();
        assert!(!budget.try_retry(u64::MAX));
        assert_eq!(budget.saved(), 0);
    }

    proptest! {
        #[test]
        fn try_retry__is_bounded_by_successes_and_time(
            per_thousand in 0..2_000u32, reserve_per_s in 0..1_000u32, saved_max in 0..50u32,
            steps in prop::collection::vec((0..20_000_000u64, 0..5u32, 0..5u32), 1..200),
        ) {
            let config = RetryBudgetConfig { per_thousand, reserve_per_s, saved_max };
            let mut budget = RetryBudget::new(config, 0);
            let (mut now_ns, mut successes, mut retries) = (0u64, 0u64, 0u64);
            for (pause_ns, succeed, retry) in steps {
                now_ns += pause_ns;
                (0..succeed).for_each(|_| budget.on_success());
                successes += u64::from(succeed);
                retries += (0..retry).filter(|_| budget.try_retry(now_ns)).count() as u64;
                let earned = f64::from(per_thousand) / 1e3 * successes as f64
                    + f64::from(reserve_per_s) * now_ns as f64 / 1e9;
                prop_assert!(retries as f64 <= f64::from(saved_max) + earned + 1e-6);
                prop_assert!(budget.saved() <= saved_max);
            }
        }
    }

    panics! {
        try_retry__with_more_saved_than_the_most: "no more retries are saved than the most" => {
            let mut budget = RetryBudget::new(RetryBudgetConfig::default(), 0);
            budget.saved = budget.saved_max + 1;
            budget.try_retry(0);
        };
    }
}
