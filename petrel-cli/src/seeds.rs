//! Seeds of simulated worlds, as text and as JSON: for `petrel sim` and `petrel kv sim`.

use std::collections::BTreeMap;
use std::io::{self, BufWriter, Write};
use std::sync::Mutex;
use std::thread;
use std::time::Instant;

use petrel_command::failure::Failure;
use petrel_command::fresh_seed;
use petrel_command::output::Output;
use petrel_sim::seeds::{self, Progress, Summary};
use serde::Serialize;

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

/// Returns the requested seeds: the first, and their number.
pub(crate) fn range(seed: Option<u64>, count: Option<u64>) -> (u64, u64) {
    let count = count.unwrap_or(if seed.is_some() { 1 } else { FRESH_SEEDS });
    (seed.unwrap_or_else(fresh_short).min(u64::MAX - count), count)
}

/// Returns the number of threads that run seeds.
pub(crate) fn jobs(requested: Option<u16>) -> usize {
    let cpus = || thread::available_parallelism().map_or(1, Into::into);
    requested.map_or_else(cpus, usize::from)
}

/// Runs seeds with a progress bar; `run` gets the function that advances the bar.
pub(crate) fn with_progress(
    first: u64,
    count: u64,
    output: Output,
    run: impl FnOnce(&(dyn Fn(Progress) + Sync)) -> Summary,
) -> Result<Summary, Failure> {
    output.line(format!("{count} seeds from {first}"))?;
    let progress = Mutex::new(output.progress(count, "seeds"));
    let began = Instant::now();
    let summary = run(&|so_far| {
        // A panic in another thread leaves the bar unchanged, and does not stop the seeds.
        if let Ok(mut bar) = progress.lock() {
            bar.set(so_far.done);
        }
    });
    drop(progress);
    let elapsed_s = began.elapsed().as_secs_f64();
    let rate = summary.seeds as f64 / elapsed_s.max(f64::MIN_POSITIVE);
    output.line(format!("{} seeds took {elapsed_s:.1} s: {rate:.0} a second", summary.seeds))?;
    Ok(summary)
}

/// Prints the lines of a trace; with `--json` on standard error.
pub(crate) fn trace_sink(output: Output) -> impl FnMut(&str) + 'static {
    let stream: Box<dyn Write> =
        if output.is_json() { Box::new(io::stderr()) } else { Box::new(io::stdout()) };
    let mut stream = BufWriter::new(stream);
    move |line| {
        // A reader that closes the pipe early does not end the run: a result is still to be reported.
        let _ = writeln!(stream, "{line}");
    }
}

/// Prints the results of seeds.
pub(crate) fn print(
    first_seed: u64,
    summary: &Summary,
    skipped: Option<&'static str>,
    output: Output,
) -> Result<(), Failure> {
    let failures = summary.failures.iter().map(FailedSeed::new).collect();
    let (seeds, totals) = (summary.seeds, &summary.totals);
    output.record(&Record { first_seed, seeds, skipped, failures, totals })?;
    let mut table = output.table(&["what happened", "times"]);
    for (name, count) in totals {
        table.add_row([*name, &count.to_string()]);
    }
    output.line(table)?;
    for failure in &summary.failures {
        output.line(failure)?;
    }
    output.line(match summary.failures.len() {
        0 => format!("{seeds} seeds kept all rules."),
        failed => format!("{failed} OF {seeds} SEEDS BROKE A RULE."),
    })?;
    Ok(())
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
