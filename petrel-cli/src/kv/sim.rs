//! `petrel kv sim`: seeds of the key-value store in the simulator, many at once or one with a trace.

use petrel_command::Outcome;
use petrel_command::failure::Failure;
use petrel_command::output::Output;
use petrel_kv_check::{Runner, Summary, run_seeds};
use petrel_sim::Trace;

use crate::cli::KvSimArgs;
use crate::seeds;

/// Runs the seeds and prints the results.
pub(super) fn run(args: &KvSimArgs, output: Output) -> Result<Outcome, Failure> {
    let skipped = Runner::skipped();
    if let Some(reason) = skipped {
        output.line(format!("skipped: histories are not checked for linearizability: {reason}"))?;
    }
    let (first, summary) = match args.seed {
        Some(seed) if args.trace => (seed, run_traced(seed, output)),
        _ => run_many(args, output)?,
    };
    seeds::print(first, &summary, skipped, output)?;
    Ok(if summary.failures.is_empty() { Outcome::Success } else { Outcome::Failure })
}

fn run_many(args: &KvSimArgs, output: Output) -> Result<(u64, Summary), Failure> {
    let (first, count) = seeds::range(args.seed, args.seeds);
    let summary = seeds::with_progress(first, count, output, |progress| {
        let jobs = seeds::jobs(args.jobs);
        run_seeds(first..first + count, jobs, args.keep_going, Runner::new, progress)
    })?;
    Ok((first, summary))
}

fn run_traced(seed: u64, output: Output) -> Summary {
    let trace = Trace::off().with_sink(seeds::trace_sink(output));
    let mut summary = Summary::default();
    summary.add(Runner::new().run(seed, trace).map(|report| report.counts));
    summary
}
