//! `petrel kv sim`: seeds of the key-value store in the simulator, many at once or one with a trace.

use std::io::{self, BufWriter, Write};
use std::sync::Mutex;
use std::thread;

use petrel_kv_check::{Runner, Summary, run_seeds};
use petrel_sim::Trace;
use serde::Serialize;

use crate::Outcome;
use crate::cli::KvSimArgs;
use crate::failure::Failure;
use crate::output::Output;

/// Seeds that are run unless told otherwise: some seconds of work.
const FRESH_SEEDS: u64 = 100;

/// What `--json` prints at the end.
#[derive(Serialize)]
struct Record<'a> {
    first_seed: u64,
    seeds: u64,
    /// Why histories were not checked for linearizability, if they were not.
    skipped: Option<&'static str>,
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
pub(super) fn run(args: &KvSimArgs, output: Output) -> Result<Outcome, Failure> {
    if let Some(why) = Runner::skipped() {
        output.line(format!("skipped: histories are not checked for linearizability: {why}"))?;
    }
    let (first, summary) = match args.seed {
        Some(seed) if args.trace => (seed, run_traced(seed, output)),
        seed => run_many(args, seed, output)?,
    };
    print(first, &summary, output)?;
    Ok(if summary.failures.is_empty() { Outcome::Success } else { Outcome::Failure })
}

fn run_many(
    args: &KvSimArgs,
    seed: Option<u64>,
    output: Output,
) -> Result<(u64, Summary), Failure> {
    let count = args.seeds.unwrap_or(if seed.is_some() { 1 } else { FRESH_SEEDS });
    // Of ten digits or so, which can be read out and typed.
    let first = seed.unwrap_or_else(|| super::fresh_seed() >> 32).min(u64::MAX - count);
    output.line(format!("{count} seeds from {first}"))?;
    let progress = Mutex::new(output.progress(count, "seeds"));
    let summary =
        run_seeds(first..first + count, jobs(args), args.keep_going, Runner::new, |done| {
            // A panic in another thread leaves the bar as it is, and does not stop the seeds.
            if let Ok(mut bar) = progress.lock() {
                bar.set(done);
            }
        });
    Ok((first, summary))
}

fn jobs(args: &KvSimArgs) -> usize {
    let cpus = || thread::available_parallelism().map_or(1, Into::into);
    args.jobs.map_or_else(cpus, usize::from)
}

fn run_traced(seed: u64, output: Output) -> Summary {
    let stream: Box<dyn Write> =
        if output.is_json() { Box::new(io::stderr()) } else { Box::new(io::stdout()) };
    let mut stream = BufWriter::new(stream);
    let sink = move |line: &str| {
        // A reader who has seen enough does not end the run: its verdict is still to come.
        let _ = writeln!(stream, "{line}");
    };
    let mut summary = Summary::default();
    summary.add(Runner::new().run(seed, Trace::off().with_sink(sink)));
    summary
}

fn print(first_seed: u64, summary: &Summary, output: Output) -> Result<(), Failure> {
    let broken = |failure: &petrel_kv_check::Failure| Broken {
        seed: failure.seed,
        violation: failure.violation.clone(),
        replay: failure.replay_command(),
    };
    let failures = summary.failures.iter().map(broken).collect();
    let (seeds, skipped, totals) = (summary.seeds, Runner::skipped(), &summary.totals);
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
        broken => format!("{broken} OF {seeds} SEEDS BROKE A RULE."),
    })?;
    Ok(())
}
