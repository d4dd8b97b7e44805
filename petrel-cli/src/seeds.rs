//! Seeds of simulated worlds, as text and as JSON: for `petrel sim` and `petrel kv sim`.

use std::collections::BTreeMap;
use std::io::{self, BufWriter, Write};
use std::ops::{ControlFlow, Range};
use std::sync::Mutex;
use std::thread;
use std::time::Instant;

use petrel_command::failure::Failure;
use petrel_command::interrupt;
use petrel_command::output::Output;
use petrel_command::{Outcome, fresh_seed};
use petrel_sim::Trace;
use petrel_sim::seeds::{self, Progress, Summary};
use serde::Serialize;

use crate::cli::SeedsArgs;

/// Number of seeds by default: some seconds of work.
const FRESH_SEEDS: u64 = 100;

/// The last record of `--json`.
#[derive(Serialize)]
struct Record<'a> {
    first_seed: u64,
    seeds: u64,
    /// The reason why a check was skipped, if any.
    #[serde(skip_serializing_if = "Option::is_none")]
    skipped: Option<&'static str>,
    failures: Vec<FailedSeed>,
    totals: &'a BTreeMap<&'static str, u64>,
    /// Events that no seed has met, although enough seeds ran: a failure.
    never_met: &'a [&'a str],
}

/// A seed that broke a rule.
#[derive(Serialize)]
struct FailedSeed {
    seed: u64,
    violation: String,
    replay: String,
}

impl FailedSeed {
    fn new(failure: &seeds::Failure) -> Self {
        Self {
            seed: failure.seed,
            violation: failure.violation.clone(),
            replay: failure.replay_command(),
        }
    }
}

/// Returns a random seed of about ten digits, which is easy to read out and type.
pub(crate) fn fresh_short() -> u64 {
    fresh_seed() >> 32
}

/// Advances the progress bar, and stops the run after Ctrl-C.
type Watch<'a> = dyn Fn(Progress) -> ControlFlow<()> + Sync + 'a;

/// Event counts of a seed, by name.
type SeedCounts = Vec<(&'static str, u64)>;

/// The seeds that the command line names.
pub(crate) struct Seeds<'a> {
    pub(crate) args: &'a SeedsArgs,
    /// The reason why a check is skipped, if any.
    pub(crate) skipped: Option<&'static str>,
    /// Returns the events that no seed has met, although enough seeds ran.
    pub(crate) never_met: fn(&Summary) -> Vec<&'static str>,
    pub(crate) output: Output,
}

impl Seeds<'_> {
    /// Runs one seed by `traced`, or many by `many`, which gets their range, the number of threads, and a function
    /// that advances the progress bar. Prints the results.
    pub(crate) fn run(
        &self,
        traced: impl FnOnce(u64, Trace) -> Result<SeedCounts, seeds::Failure>,
        many: impl FnOnce(Range<u64>, usize, &Watch<'_>) -> Summary,
    ) -> Result<Outcome, Failure> {
        let (first, summary) = match self.args.seed {
            Some(seed) if self.args.trace => {
                let mut summary = Summary::default();
                summary.add(traced(seed, Trace::off().with_sink(trace_sink(self.output))));
                (seed, summary)
            }
            _ => self.run_many(many)?,
        };
        let never_met =
            if summary.failures.is_empty() { (self.never_met)(&summary) } else { Vec::new() };
        self.print(first, &summary, &never_met)?;
        let is_good = summary.failures.is_empty() && never_met.is_empty();
        Ok(if is_good { Outcome::Success } else { Outcome::Failure })
    }

    /// Runs the seeds of the arguments, with a progress bar. Returns the first seed, and the results.
    fn run_many(
        &self,
        run: impl FnOnce(Range<u64>, usize, &Watch<'_>) -> Summary,
    ) -> Result<(u64, Summary), Failure> {
        // Before any thread starts.
        interrupt::note()?;
        let (args, output) = (self.args, self.output);
        let count = args.seeds.unwrap_or(if args.seed.is_some() { 1 } else { FRESH_SEEDS });
        let first = args.seed.unwrap_or_else(fresh_short).min(u64::MAX - count);
        let cpus = || thread::available_parallelism().map_or(1, Into::into);
        let jobs = args.jobs.map_or_else(cpus, usize::from);
        output.line(format!("{count} seeds from {first}"))?;
        let progress = Mutex::new(output.progress(count, "seeds"));
        let began = Instant::now();
        let summary = run(first..first + count, jobs, &|so_far| {
            // A panic in another thread leaves the bar unchanged, and does not stop the seeds.
            if let Ok(mut bar) = progress.lock() {
                bar.set(so_far.done);
            }
            if interrupt::is_noted() { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
        });
        drop(progress);
        let elapsed_s = began.elapsed().as_secs_f64();
        let rate = summary.seeds as f64 / elapsed_s.max(f64::MIN_POSITIVE);
        if summary.seeds < count && interrupt::is_noted() {
            output.line(format!("ended before the other {} seeds", count - summary.seeds))?;
        }
        output
            .line(format!("{} seeds took {elapsed_s:.1} s: {rate:.0} a second", summary.seeds))?;
        Ok((first, summary))
    }

    fn print(&self, first_seed: u64, summary: &Summary, never_met: &[&str]) -> Result<(), Failure> {
        let (output, skipped) = (self.output, self.skipped);
        let failures = summary.failures.iter().map(FailedSeed::new).collect();
        let (seeds, totals) = (summary.seeds, &summary.totals);
        output.record(&Record { first_seed, seeds, skipped, failures, totals, never_met })?;
        let mut table = output.table(&["what happened", "times"]);
        for (name, count) in totals {
            table.add_row([*name, &count.to_string()]);
        }
        output.line(table)?;
        for failure in &summary.failures {
            output.line(failure)?;
        }
        for name in never_met {
            output.line(format!("NEVER HAPPENED: {name}"))?;
        }
        output.line(match summary.failures.len() {
            0 => format!("{seeds} seeds kept all rules."),
            failed => format!("{failed} OF {seeds} SEEDS BROKE A RULE."),
        })?;
        Ok(())
    }
}

/// Prints the lines of a trace; with `--json` on standard error.
fn trace_sink(output: Output) -> impl FnMut(&str) + 'static {
    let stream: Box<dyn Write> =
        if output.is_json() { Box::new(io::stderr()) } else { Box::new(io::stdout()) };
    let mut stream = BufWriter::new(stream);
    move |line| {
        // A reader that closes the pipe early does not end the run: a result is still to be reported.
        let _ = writeln!(stream, "{line}");
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fresh_seed__differs_from_call_to_call() {
        let seeds: std::collections::BTreeSet<u64> = (0..8).map(|_| fresh_short()).collect();
        assert!(seeds.len() > 1, "{seeds:?}");
    }
}
