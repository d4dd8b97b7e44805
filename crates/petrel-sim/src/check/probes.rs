//! Probes: each counter of a [`Report`](super::Report) is an event that enough seeds meet. An event that no seed meets any more shows that
//! a fault, a feature or a path through the library is lost, and that no run tests the rules about it.

use crate::seeds::Summary;

/// This number of seeds meets every event that the tables below do not name: more than 15 seeds met each event.
const SEEDS: u64 = 1_000;

/// Events that need this number of seeds.
const RARE_SEEDS: u64 = 40_000;
const RARE: &[&str] = &[
    "answers_dropped_idle",
    "answers_dropped_short",
    "answers_over_share",
    "attacks_of_former_links",
    "calls_of_largest_size",
    "multicast_requests_missed",
    "nexus_accept_errors",
    "nexus_dropped_idle",
    "nexus_not_reading",
    "nexus_slow_messages",
    "packets_dropped_by_switches",
    "refused_over_share",
    "requests_dropped_idle",
    "requests_overtaken",
];

/// Events that may never happen in these worlds: frames against the rules, and faults of other worlds.
const UNSURE: &[&str] = &[
    "answers_missed",
    "dropped_beyond_window",
    "dropped_future",
    "dropped_wrong_direction",
    "multicast_adopted",
    "multicast_announced",
    "multicast_held",
    "multicast_missed",
    "multicast_sent",
    "nexus_dropped_full",
    "refused_too_large",
    "requests_dropped_short",
];

/// Returns the events that no seed of a run has met, although the run has the number of seeds for them.
pub fn never_met(summary: &Summary) -> Vec<&'static str> {
    let needed = |name: &str| match name {
        _ if UNSURE.contains(&name) => u64::MAX,
        _ if RARE.contains(&name) => RARE_SEEDS,
        _ => SEEDS,
    };
    let lost = summary.met.iter().filter(|(name, met)| **met == 0 && summary.seeds >= needed(name));
    lost.map(|(name, _)| *name).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::check::{Options, run_seed};

    /// A name that no report has would be a probe of nothing.
    #[test]
    fn tables__name_counters_of_reports() {
        let report = run_seed(1, &Options::default()).unwrap();
        let names: Vec<_> = report.iter().map(|(name, _)| name).collect();
        for name in RARE.iter().chain(UNSURE) {
            assert!(names.contains(name), "{name} is no counter");
        }
    }

    #[test]
    fn never_met__needs_enough_seeds() {
        let mut summary = Summary::default();
        summary.met.extend([("crashes", 0), ("calls", 1), (RARE[0], 0), (UNSURE[0], 0)]);
        let at = |seeds| never_met(&Summary { seeds, ..summary.clone() });
        assert!(at(SEEDS - 1).is_empty());
        assert_eq!(at(SEEDS), ["crashes"]);
        let mut both = ["crashes", RARE[0]];
        both.sort_unstable();
        assert_eq!(at(RARE_SEEDS), both);
    }
}
