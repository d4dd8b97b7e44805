//! Runs seeds of simulated worlds of any kind, singly or many on several threads.

use std::collections::BTreeMap;
use std::fmt;
use std::ops::{ControlFlow, Range};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

/// A broken rule.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Failure {
    /// The seed of the run that broke the rule.
    pub seed: u64,
    /// The rule, and when and where it was broken.
    pub violation: String,
    /// The command that runs seeds of this kind of world.
    pub command: &'static str,
}

impl Failure {
    /// Returns the command that runs the seed again, with a trace.
    pub fn replay_command(&self) -> String {
        format!("{} --seed {} --trace", self.command, self.seed)
    }
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "seed {}: {}\nreplay: {}", self.seed, self.violation, self.replay_command())
    }
}

impl std::error::Error for Failure {}

/// The progress of [`run_many`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Progress {
    /// Number of seeds that have run.
    pub done: u64,
    /// Number of seeds to run.
    pub all: u64,
    /// Number of seeds that broke a rule.
    pub failures: u64,
}

/// The results of many seeds.
#[derive(Clone, Debug, Default)]
#[non_exhaustive]
pub struct Summary {
    /// Number of seeds that have run.
    pub seeds: u64,
    /// Event counts, added up over the seeds that kept all rules.
    pub totals: BTreeMap<&'static str, u64>,
    /// How many seeds met an event at all.
    pub met: BTreeMap<&'static str, u64>,
    /// The seeds that broke a rule, in order of seed.
    pub failures: Vec<Failure>,
}

impl Summary {
    /// Adds the result of one more seed.
    pub fn add(&mut self, result: Result<impl IntoIterator<Item = (&'static str, u64)>, Failure>) {
        self.seeds += 1;
        match result {
            Ok(counts) => counts.into_iter().for_each(|(name, value)| {
                *self.totals.entry(name).or_default() += value;
                *self.met.entry(name).or_default() += u64::from(value > 0);
            }),
            Err(failure) => self.failures.push(failure),
        }
    }
}

/// Runs the world of a seed; `command` runs it again.
///
/// # Errors
/// The violation that `world` returns. A panic counts as a violation.
pub fn run_one<R>(
    seed: u64,
    command: &'static str,
    world: impl FnOnce() -> Result<R, String>,
) -> Result<R, Failure> {
    let result = catch_unwind(AssertUnwindSafe(world))
        .unwrap_or_else(|panic| Err(format!("panic: {}", panic_text(&*panic))));
    result.map_err(|violation| Failure { seed, violation, command })
}

fn panic_text(panic: &(dyn std::any::Any + Send)) -> &str {
    let text = panic.downcast_ref::<String>().map(String::as_str);
    text.or_else(|| panic.downcast_ref::<&str>().copied()).unwrap_or("without a message")
}

/// Runs seeds on `jobs` threads (minimum 1), and stops at the first failure unless `keeps_going` is set.
/// Each thread makes its own runner. `progress` is called after each seed, and may stop the run.
///
/// Seeds are independent worlds: the order of execution changes nothing.
pub fn run_many<W, C>(
    seeds: Range<u64>,
    jobs: usize,
    keeps_going: bool,
    make: impl Fn() -> W + Sync,
    progress: impl Fn(Progress) -> ControlFlow<()> + Sync,
) -> Summary
where
    W: FnMut(u64) -> Result<C, Failure>,
    C: IntoIterator<Item = (&'static str, u64)>,
{
    let all = seeds.end.saturating_sub(seeds.start);
    let next = AtomicU64::new(seeds.start);
    let stops = AtomicBool::new(false);
    let summary = Mutex::new(Summary::default());
    let work = || {
        let mut run = make();
        while !stops.load(Ordering::Relaxed) {
            let seed = next.fetch_add(1, Ordering::Relaxed);
            if seed >= seeds.end {
                break;
            }
            let result = run(seed);
            if result.is_err() && !keeps_going {
                stops.store(true, Ordering::Relaxed);
            }
            let Ok(mut so_far) = summary.lock() else { break };
            so_far.add(result);
            let (done, failures) = (so_far.seeds, so_far.failures.len() as u64);
            drop(so_far);
            if progress(Progress { done, all, failures }).is_break() {
                stops.store(true, Ordering::Relaxed);
            }
        }
    };
    std::thread::scope(|scope| {
        for _ in 1..jobs.max(1) {
            scope.spawn(work);
        }
        work();
    });
    let mut summary = summary.into_inner().unwrap_or_default();
    summary.failures.sort_by_key(|failure| failure.seed);
    summary
}
