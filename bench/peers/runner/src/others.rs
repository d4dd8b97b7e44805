//! The CPU time of other programs during a window. A compiler in the background worsens every figure,
//! above all for polling peers, which need their CPUs permanently.

use std::fs;
use std::thread;
use std::time::{Duration, Instant};

/// Ticks per second of the kernel's CPU accounting, on every current architecture.
const TICKS_PER_SECOND: f64 = 100.0;

/// Share of the CPUs above which a window is repeated: two ticks per window are noise.
pub(crate) const DISTURBED: f64 = 0.05;

/// Duration of the observation of the machine before a window.
const LOOK: Duration = Duration::from_millis(250);

/// The CPU time used until a moment, in ticks.
#[derive(Clone, Copy)]
struct Used {
    by_all: u64,
    /// By this process and by its ended children.
    by_us: u64,
}

/// Counts the CPU time from a moment on.
pub(crate) struct Watch {
    started: Instant,
    used: Option<Used>,
}

impl Watch {
    pub(crate) fn start() -> Self {
        Self { started: Instant::now(), used: used() }
    }

    /// Returns the share of all CPUs that other programs used since the start: 0 to 1. All children must
    /// have ended. `None` if the system keeps no accounts.
    pub(crate) fn others(&self) -> Option<f64> {
        let (before, after) = (self.used?, used()?);
        let all = after.by_all.saturating_sub(before.by_all);
        let ours = after.by_us.saturating_sub(before.by_us);
        let cpus = thread::available_parallelism().map_or(1, usize::from) as f64;
        let ticks = self.started.elapsed().as_secs_f64() * TICKS_PER_SECOND * cpus;
        Some(all.saturating_sub(ours) as f64 / ticks.max(1.0))
    }
}

/// Waits until other programs leave the CPUs, at most for `limit`.
pub(crate) fn wait_for_quiet(limit: Duration) {
    let started = Instant::now();
    while started.elapsed() < limit {
        let watch = Watch::start();
        thread::sleep(LOOK);
        if watch.others().is_none_or(|share| share <= DISTURBED) {
            return;
        }
    }
}

fn used() -> Option<Used> {
    let by_all = all_in(&fs::read_to_string("/proc/stat").ok()?)?;
    let by_us = ours_in(&fs::read_to_string("/proc/self/stat").ok()?)?;
    Some(Used { by_all, by_us })
}

/// Returns user, nice and system time. Time in interrupts belongs to no program.
fn all_in(stat: &str) -> Option<u64> {
    let line = stat.lines().find(|line| line.starts_with("cpu "))?;
    line.split_whitespace().skip(1).take(3).map(|ticks| ticks.parse::<u64>().ok()).sum()
}

/// Returns user and system time of the process and of its children: the 14th to the 17th word, where the
/// second, the program's name in brackets, may contain spaces.
fn ours_in(stat: &str) -> Option<u64> {
    let (_, after_name) = stat.rsplit_once(')')?;
    let words = after_name.split_whitespace().skip(11).take(4);
    let ticks: Vec<u64> = words.map_while(|ticks| ticks.parse().ok()).collect();
    (ticks.len() == 4).then(|| ticks.iter().sum())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn all_in__sums_what_processes_used() {
        assert_eq!(all_in("cpu  10 20 30 1000 5 6 7 8\ncpu0 1 1 1 1\n"), Some(60));
        assert_eq!(all_in("intr 5\n"), None);
    }

    #[test]
    fn ours_in__finds_its_words_after_a_strange_name() {
        let stat = "7 (a ) b) S 1 7 7 0 -1 4194560 1 2 3 4 100 20 3 400 20 0 1 0";
        assert_eq!(ours_in(stat), Some(523));
        assert_eq!(ours_in("7 (a) S 1"), None);
    }

    #[test]
    fn others__is_a_share() {
        let share = Watch::start().others();
        assert!(share.is_none_or(|share| share >= 0.0));
    }
}
