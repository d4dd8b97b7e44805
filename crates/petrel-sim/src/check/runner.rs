//! Runs seeds, one by one or many on several threads.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::ops::Range;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use petrel_proto::wire::Frame;

use super::report::{Failure, Report};
use super::world::World;
use crate::trace::Trace;

/// How seeds are run.
#[derive(Clone, Debug, Default)]
#[non_exhaustive]
pub struct Options {
    /// Whether [`run_seeds`] goes on after a failure.
    pub keep_going: bool,
}

/// Runs the world of a seed and checks everything.
///
/// # Errors
/// The first rule that was broken. A panic counts as one.
pub fn run_seed(seed: u64, options: &Options) -> Result<Report, Failure> {
    run_seed_traced(seed, options, Trace::off())
}

/// The same, with a trace that shows what every frame says. Give it a sink
/// ([`Trace::with_sink`]) to see the lines.
///
/// # Errors
/// As [`run_seed`].
pub fn run_seed_traced(seed: u64, _options: &Options, trace: Trace) -> Result<Report, Failure> {
    let trace = if trace.is_on() { trace.with_decoder(describe) } else { trace };
    let ran = catch_unwind(AssertUnwindSafe(|| World::new(seed, trace)?.run(seed)));
    let result = ran.unwrap_or_else(|panic| Err(format!("panic: {}", panic_text(&*panic))));
    result.map_err(|violation| Failure { seed, violation })
}

fn describe(frame: &[u8], line: &mut String) {
    // Writing to a string cannot fail.
    let _ = match Frame::parse(frame) {
        Ok(frame) => write!(line, "{frame}"),
        Err(error) => write!(line, "{error}"),
    };
}

fn panic_text(panic: &(dyn std::any::Any + Send)) -> &str {
    let text = panic.downcast_ref::<String>().map(String::as_str);
    text.or_else(|| panic.downcast_ref::<&str>().copied()).unwrap_or("without a message")
}

/// How far [`run_seeds`] is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Progress {
    /// Seeds that were run.
    pub done: u64,
    /// Seeds to run.
    pub all: u64,
    /// Seeds that broke a rule.
    pub failures: u64,
}

/// What many seeds found.
#[derive(Clone, Debug, Default)]
#[non_exhaustive]
pub struct Summary {
    /// Seeds that were run.
    pub seeds: u64,
    /// What happened in those that kept all rules, added up; see [`Report::iter`].
    pub totals: BTreeMap<&'static str, u64>,
    /// Those that did not, by seed.
    pub failures: Vec<Failure>,
}

impl Summary {
    fn add(&mut self, result: Result<Report, Failure>) {
        self.seeds += 1;
        match result {
            Ok(report) => {
                report
                    .iter()
                    .for_each(|(name, value)| *self.totals.entry(name).or_default() += value);
            }
            Err(failure) => self.failures.push(failure),
        }
    }
}

/// Runs seeds on `jobs` threads, at least one. `progress` is told after each.
///
/// Each seed is a world of its own, so that the order in which they run changes nothing.
pub fn run_seeds(
    seeds: Range<u64>,
    jobs: usize,
    options: &Options,
    progress: impl Fn(Progress) + Sync,
) -> Summary {
    let all = seeds.end.saturating_sub(seeds.start);
    let next = AtomicU64::new(seeds.start);
    let stops = AtomicBool::new(false);
    let summary = Mutex::new(Summary::default());
    let work = || {
        while !stops.load(Ordering::Relaxed) {
            let seed = next.fetch_add(1, Ordering::Relaxed);
            if seed >= seeds.end {
                break;
            }
            let result = run_seed(seed, options);
            if result.is_err() && !options.keep_going {
                stops.store(true, Ordering::Relaxed);
            }
            let Ok(mut summary) = summary.lock() else { break };
            summary.add(result);
            let (done, failures) = (summary.seeds, summary.failures.len() as u64);
            drop(summary);
            progress(Progress { done, all, failures });
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
