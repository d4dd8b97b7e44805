//! `petrel sim`: seeds of the simulator, many at once or one with a trace; and experiments.

mod experiment;

use std::hash::{BuildHasher, RandomState};
use std::io::{self, BufWriter, Write};
use std::sync::Mutex;
use std::thread;

use petrel_sim::Trace;
use petrel_sim::check::{self, Options, Summary, run_seed_traced, run_seeds};
use serde::Serialize;

use crate::Outcome;
use crate::cli::{SimArgs, SimCommand};
use crate::failure::Failure;
use crate::output::Output;

/// What `--json` prints at the end.
#[derive(Serialize)]
struct Record<'a> {
    first_seed: u64,
    seeds: u64,
    failures: Vec<Broken>,
    totals: &'a std::collections::BTreeMap<&'static str, u64>,
}

/// A seed that broke a rule.
#[derive(Serialize)]
struct Broken {
    seed: u64,
    violation: String,
    replay: String,
}

/// Runs the seeds and prints what they found.
pub(crate) fn run(args: &SimArgs, output: Output) -> Result<Outcome, Failure> {
    if let Some(SimCommand::Experiment(args)) = &args.what {
        return experiment::run(args, output);
    }
    match args.seed {
        Some(seed) if args.trace => trace(seed, output),
        seed => run_many(args, seed, output),
    }
}

fn run_many(args: &SimArgs, seed: Option<u64>, output: Output) -> Result<Outcome, Failure> {
    let count = args.seeds.unwrap_or(if seed.is_some() { 1 } else { FRESH_SEEDS });
    let first = seed.unwrap_or_else(fresh_seed).min(u64::MAX - count);
    let mut options = Options::default();
    options.keep_going = args.keep_going;
    output.line(format!("{count} seeds from {first}"))?;
    let progress = Mutex::new(output.progress(count, "seeds"));
    let summary = run_seeds(first..first + count, jobs(args), &options, |so_far| {
        // A panic in another thread leaves the bar as it is, and does not stop the seeds.
        if let Ok(mut bar) = progress.lock() {
            bar.set(so_far.done);
        }
    });
    drop(progress);
    print(first, &summary, output)?;
    Ok(if summary.failures.is_empty() { Outcome::Success } else { Outcome::Failure })
}

/// Seeds that are run unless told otherwise: some seconds of work.
const FRESH_SEEDS: u64 = 100;

/// A seed that nobody has seen before, of ten digits or so, which can be read out and typed.
fn fresh_seed() -> u64 {
    // The standard library's hash keys come from the system's randomness.
    RandomState::new().hash_one(0) >> 32
}

fn jobs(args: &SimArgs) -> usize {
    let cpus = || thread::available_parallelism().map_or(1, Into::into);
    args.jobs.map_or_else(cpus, usize::from)
}

fn print(first_seed: u64, summary: &Summary, output: Output) -> Result<(), Failure> {
    let failures = summary.failures.iter().map(Broken::new).collect();
    let totals = &summary.totals;
    output.record(&Record { first_seed, seeds: summary.seeds, failures, totals })?;
    let mut table = output.table(&["what happened", "times"]);
    for (name, count) in totals {
        table.add_row([*name, &count.to_string()]);
    }
    output.line(table)?;
    for failure in &summary.failures {
        output.line(failure)?;
    }
    output.line(verdict(summary))?;
    Ok(())
}

fn verdict(summary: &Summary) -> String {
    let seeds = summary.seeds;
    match summary.failures.len() {
        0 => format!("{seeds} seeds kept all rules."),
        broken => format!("{broken} OF {seeds} SEEDS BROKE A RULE."),
    }
}

impl Broken {
    fn new(failure: &check::Failure) -> Self {
        Self {
            seed: failure.seed,
            violation: failure.violation.clone(),
            replay: failure.replay_command(),
        }
    }
}

/// Runs one seed and prints every packet and every event; with `--json` on standard error.
fn trace(seed: u64, output: Output) -> Result<Outcome, Failure> {
    let result = run_seed_traced(seed, &Options::default(), Trace::off().with_sink(sink(output)));
    let mut summary = Summary::default();
    summary.seeds = 1;
    match result {
        Ok(report) => summary.totals.extend(report.iter()),
        Err(failure) => summary.failures.push(failure),
    }
    print(seed, &summary, output)?;
    Ok(if summary.failures.is_empty() { Outcome::Success } else { Outcome::Failure })
}

fn sink(output: Output) -> impl FnMut(&str) + 'static {
    let stream: Box<dyn Write> =
        if output.is_json() { Box::new(io::stderr()) } else { Box::new(io::stdout()) };
    let mut stream = BufWriter::new(stream);
    move |line| {
        // A reader who has seen enough does not end the run: its verdict is still to come.
        let _ = writeln!(stream, "{line}");
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fresh_seed__differs_from_call_to_call() {
        let seeds: std::collections::BTreeSet<u64> = (0..8).map(|_| fresh_seed()).collect();
        assert!(seeds.len() > 1, "{seeds:?}");
    }
}
