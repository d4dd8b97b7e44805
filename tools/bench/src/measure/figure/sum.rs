//! The sum of the counts in all windows of one side.

use petrel_command::output::latency::{Latencies, LatencySummary};

use super::super::pairs::{Pair, Pairs};
use super::super::window::Window;

/// Sums over all windows of one side. Counts of dropped windows are included; their times are not.
#[derive(Default)]
pub(super) struct Sum {
    pub(super) calls: u64,
    pub(super) checked: u64,
    pub(super) mismatched: u64,
    pub(super) lost: u64,
    pub(super) retransmissions: u64,
    pub(super) drops: u64,
    pub(super) elapsed_ns: u64,
    pub(super) latency: Option<LatencySummary>,
}

impl Sum {
    pub(super) fn of_library(pairs: &Pairs) -> Self {
        Self::of(pairs, |pair| Some(&pair.library))
    }

    pub(super) fn of_baseline(pairs: &Pairs) -> Self {
        Self::of(pairs, |pair| pair.baseline.as_ref())
    }

    fn of(pairs: &Pairs, side: impl Fn(&Pair) -> Option<&Window>) -> Self {
        let mut sum = Self::default();
        for window in pairs.kept.iter().chain(&pairs.dropped).filter_map(&side) {
            sum.calls += window.calls;
            sum.checked += window.checked;
            sum.mismatched += window.mismatched;
            sum.lost += window.lost;
            sum.retransmissions += window.traffic.retransmissions;
            sum.drops += window.traffic.drops;
            sum.elapsed_ns += window.elapsed_ns;
        }
        let mut all: Option<Latencies> = None;
        for latencies in pairs.kept.iter().filter_map(side).filter_map(|w| w.latencies.as_ref()) {
            all.get_or_insert_default().add(latencies);
        }
        sum.latency = all.and_then(|all| all.summary());
        sum
    }
}
