//! Flows: their times, and statistics of many flows.

use serde::Serialize;

/// A flow that has ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FlowRecord {
    bytes: u64,
    start_ns: u64,
    end_ns: u64,
    ideal_ns: u64,
}

impl FlowRecord {
    /// Makes the record of a flow of `bytes` bytes. `ideal_ns` is the time of the flow alone in the network,
    /// without any computing.
    ///
    /// # Panics
    /// If the flow took less than the ideal time, or the ideal time is zero.
    pub fn new(bytes: u64, start_ns: u64, end_ns: u64, ideal_ns: u64) -> Self {
        let is_possible = ideal_ns > 0 && end_ns.checked_sub(start_ns) >= Some(ideal_ns);
        assert!(
            is_possible,
            "{bytes} bytes from {start_ns} to {end_ns}, and at best {ideal_ns} ns"
        );
        Self { bytes, start_ns, end_ns, ideal_ns }
    }

    /// Returns the size in bytes, without headers.
    pub fn bytes(&self) -> u64 {
        self.bytes
    }

    /// Returns when the flow arrived.
    pub fn start_ns(&self) -> u64 {
        self.start_ns
    }

    /// Returns the time from the arrival of the flow to its end.
    pub fn duration_ns(&self) -> u64 {
        self.end_ns - self.start_ns
    }

    /// Returns the duration as a multiple of the ideal time, at least 1.
    pub fn slowdown(&self) -> f64 {
        self.duration_ns() as f64 / self.ideal_ns as f64
    }
}

/// A class of sizes, as in the tables of papers.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum SizeClass {
    /// All flows.
    All,
    /// Below 100 KB.
    Small,
    /// From 100 KB to 10 MB.
    Medium,
    /// Above 10 MB.
    Large,
}

impl SizeClass {
    /// Every class.
    pub const EVERY: [Self; 4] = [Self::All, Self::Small, Self::Medium, Self::Large];

    /// Returns the name.
    pub const fn name(self) -> &'static str {
        match self {
            Self::All => "all",
            Self::Small => "<100 KB",
            Self::Medium => "100 KB-10 MB",
            Self::Large => ">10 MB",
        }
    }

    /// Returns true if flows of this size belong to the class.
    pub const fn contains(self, bytes: u64) -> bool {
        match self {
            Self::All => true,
            Self::Small => bytes < 100_000,
            Self::Medium => 100_000 <= bytes && bytes <= 10_000_000,
            Self::Large => bytes > 10_000_000,
        }
    }
}

/// Times of the flows of a class.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct FlowSummary {
    /// The class.
    pub class: SizeClass,
    /// The number of flows.
    pub count: usize,
    /// Mean duration, in nanoseconds.
    pub duration_mean_ns: f64,
    /// Duration that 99 % do not exceed.
    pub duration_p99_ns: u64,
    /// Mean slowdown.
    pub slowdown_mean: f64,
    /// Slowdown that half of the flows do not exceed.
    pub slowdown_p50: f64,
    /// Slowdown that 95 % do not exceed.
    pub slowdown_p95: f64,
    /// Slowdown that 99 % do not exceed.
    pub slowdown_p99: f64,
}

impl FlowSummary {
    /// Sums up the flows of a class; `None` without any.
    pub fn of(flows: &[FlowRecord], class: SizeClass) -> Option<Self> {
        let of_class = || flows.iter().filter(|flow| class.contains(flow.bytes));
        let mut durations: Vec<u64> = of_class().map(FlowRecord::duration_ns).collect();
        let mut slowdowns: Vec<f64> = of_class().map(FlowRecord::slowdown).collect();
        durations.sort_unstable();
        slowdowns.sort_unstable_by(f64::total_cmp);
        let count = durations.len();
        let sum = durations.iter().fold(0.0, |sum, &duration| sum + duration as f64);
        let slowdown_sum = slowdowns.iter().fold(0.0, |sum, slowdown| sum + slowdown);
        Some(Self {
            class,
            count,
            duration_mean_ns: sum / count as f64,
            duration_p99_ns: *durations.get(rank(count, 99)?)?,
            slowdown_mean: slowdown_sum / count as f64,
            slowdown_p50: slowdowns[rank(count, 50)?],
            slowdown_p95: slowdowns[rank(count, 95)?],
            slowdown_p99: slowdowns[rank(count, 99)?],
        })
    }
}

/// Returns the place of a percentile among `count` sorted values: the nearest rank.
fn rank(count: usize, percent: usize) -> Option<usize> {
    (count * percent).div_ceil(100).checked_sub(1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn slowdown__compares_with_the_ideal() {
        let flow = FlowRecord::new(1_000, 100, 400, 200);
        assert_eq!((flow.duration_ns(), flow.slowdown()), (300, 1.5));
    }

    #[test]
    #[should_panic(expected = "at best 200 ns")]
    fn new__faster_than_possible_is_a_mistake_of_the_measurement() {
        FlowRecord::new(1_000, 100, 299, 200);
    }

    #[test]
    fn class__the_three_divide_all() {
        for bytes in [0, 99_999, 100_000, 10_000_000, 10_000_001] {
            let classes = SizeClass::EVERY.map(|class| u32::from(class.contains(bytes)));
            assert_eq!((classes[0], classes.iter().sum::<u32>()), (1, 2), "{bytes}");
        }
    }

    #[test]
    fn summary__by_hand() {
        let flows: Vec<FlowRecord> =
            (1..=100).map(|n| FlowRecord::new(1_000, 0, 10 * n, 10)).collect();
        let all = FlowSummary::of(&flows, SizeClass::All).unwrap();
        assert_eq!((all.count, all.duration_mean_ns, all.duration_p99_ns), (100, 505.0, 990));
        assert_eq!((all.slowdown_p50, all.slowdown_p95, all.slowdown_p99), (50.0, 95.0, 99.0));
        assert_eq!(
            FlowSummary::of(&flows, SizeClass::Small),
            Some(FlowSummary { class: SizeClass::Small, ..all })
        );
        assert_eq!(FlowSummary::of(&flows, SizeClass::Large), None);
        let one = FlowSummary::of(&flows[..1], SizeClass::All).unwrap();
        assert_eq!((one.slowdown_p50, one.slowdown_p99), (1.0, 1.0));
    }
}
