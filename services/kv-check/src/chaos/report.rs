//! The results of a phase, and of a run.

use std::collections::BTreeMap;
use std::fmt;

use serde::Serialize;

use super::replica::Settings;

/// Violations shown in a line; a violation often causes many more.
const SHOWN_MAX: usize = 3;

/// The results of a phase.
#[derive(Clone, Debug, Serialize)]
pub struct ChaosReport {
    pub(super) phase: u64,
    pub(super) seed: u64,
    #[serde(flatten)]
    pub(super) settings: Settings,
    pub(super) is_on_disk: bool,
    pub(super) clients: u32,
    #[serde(flatten)]
    pub(super) counts: Counts,
    /// Time from the end of all faults until a write is answered.
    pub(super) serves_after_s: f64,
    /// Time until all replicas vote and have the same state.
    pub(super) recovered_after_s: f64,
    pub(super) violations: Vec<String>,
}

/// The results of a run.
#[derive(Clone, Debug, Default, Serialize)]
pub struct ChaosSummary {
    phases: u64,
    pub(super) seconds: f64,
    #[serde(flatten)]
    counts: Counts,
    serves_after_max_s: f64,
    recovered_after_max_s: f64,
    violations: usize,
}

#[derive(Clone, Debug, Default, Serialize)]
pub(super) struct Counts {
    pub(super) operations: u64,
    pub(super) done: u64,
    pub(super) failed: u64,
    pub(super) unknown: u64,
    /// Scans that read a whole save.
    pub(super) saves: u64,
    /// Leases that were left to end, and the longest time that a key was found after the end of its lease.
    pub(super) leases: u64,
    pub(super) lease_late_max_s: f64,
    /// Revisions that a watch showed, and how often it began anew since its next changes were gone.
    pub(super) changes_watched: u64,
    pub(super) watches_compacted: u64,
    pub(super) faults: BTreeMap<&'static str, u64>,
    /// Linearizable histories, of a group of keys each.
    pub(super) linearizable: u64,
    /// Histories whose check timed out.
    pub(super) too_hard: u64,
}

impl ChaosReport {
    /// Returns true if all rules were kept.
    pub fn is_fine(&self) -> bool {
        self.violations.is_empty()
    }
}

impl ChaosSummary {
    /// Returns true if all rules were kept.
    pub fn is_fine(&self) -> bool {
        self.violations == 0
    }

    pub(super) fn add(&mut self, report: &ChaosReport) {
        self.phases += 1;
        self.counts.add(&report.counts);
        self.serves_after_max_s = self.serves_after_max_s.max(report.serves_after_s);
        self.recovered_after_max_s = self.recovered_after_max_s.max(report.recovered_after_s);
        self.violations += report.violations.len();
    }
}

impl Counts {
    fn add(&mut self, other: &Counts) {
        self.operations += other.operations;
        self.done += other.done;
        self.failed += other.failed;
        self.unknown += other.unknown;
        self.saves += other.saves;
        self.leases += other.leases;
        self.lease_late_max_s = self.lease_late_max_s.max(other.lease_late_max_s);
        self.changes_watched += other.changes_watched;
        self.watches_compacted += other.watches_compacted;
        self.linearizable += other.linearizable;
        self.too_hard += other.too_hard;
        for (name, count) in &other.faults {
            *self.faults.entry(name).or_default() += count;
        }
    }
}

impl fmt::Display for Counts {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { operations, done, failed, unknown, saves, linearizable, too_hard, .. } = self;
        write!(f, "{operations} operations ({done} ok, {failed} failed, {unknown} unknown); ")?;
        write!(f, "{saves} saves; ")?;
        write!(f, "{} leases, {:.2} s late at most; ", self.leases, self.lease_late_max_s)?;
        let (watched, compacted) = (self.changes_watched, self.watches_compacted);
        write!(f, "{watched} changes watched, {compacted} new begins; ")?;
        let faults: Vec<_> =
            self.faults.iter().map(|(name, count)| format!("{name} {count}")).collect();
        write!(f, "{}; ", faults.join(", "))?;
        write!(f, "{linearizable} histories linearizable, {too_hard} too hard; ")
    }
}

impl fmt::Display for ChaosReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Settings { nodes, has_leases, election_ms, log_entries_max } = self.settings;
        let place = if self.is_on_disk { "disk" } else { "memory" };
        let reads = if has_leases { "leases" } else { "read index" };
        write!(f, "phase {} of seed {}: {nodes} nodes, {place}, {reads}, ", self.phase, self.seed)?;
        write!(f, "election {election_ms} ms, log of {log_entries_max}; {}", self.counts)?;
        write!(f, "serves after {:.2} s, ", self.serves_after_s)?;
        write!(f, "recovered after {:.2} s: ", self.recovered_after_s)?;
        match &self.violations[..] {
            [] => f.write_str("ok"),
            violations => {
                let shown = &violations[..violations.len().min(SHOWN_MAX)];
                write!(f, "{} VIOLATIONS {}", violations.len(), shown.join("; "))
            }
        }
    }
}

impl fmt::Display for ChaosSummary {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} phases in {:.0} s: {}", self.phases, self.seconds, self.counts)?;
        write!(f, "serves after {:.2} s at most, ", self.serves_after_max_s)?;
        write!(f, "recovered after {:.2} s at most; ", self.recovered_after_max_s)?;
        write!(f, "{} violations", self.violations)
    }
}
