//! `petrel sim`: seeds of the simulator, many at once or one with a trace; and experiments.

use petrel_command::Outcome;
use petrel_command::failure::Failure;
use petrel_command::output::Output;
use petrel_sim::Trace;
use petrel_sim::check::{Options, Summary, run_seed_traced, run_seeds};

use crate::cli::SimArgs;
#[cfg(feature = "bench")]
use crate::cli::SimCommand;
use crate::seeds;

/// Runs the seeds and prints the results.
pub(crate) fn run(args: &SimArgs, output: Output) -> Result<Outcome, Failure> {
    #[cfg(feature = "bench")]
    if let Some(SimCommand::Experiment(args)) = &args.what {
        return petrel_bench::experiment::run(args, output);
    }
    let (first, summary) = match args.seed {
        Some(seed) if args.trace => (seed, run_traced(seed, &options(args), output)),
        _ => run_many(args, output)?,
    };
    seeds::print(first, &summary, None, output)?;
    Ok(if summary.failures.is_empty() { Outcome::Success } else { Outcome::Failure })
}

fn options(args: &SimArgs) -> Options {
    let mut options = Options::default();
    options.keep_going = args.keep_going;
    options.has_everything = args.everything;
    options
}

fn run_many(args: &SimArgs, output: Output) -> Result<(u64, Summary), Failure> {
    let (first, count) = seeds::range(args.seed, args.seeds);
    let options = options(args);
    let summary = seeds::with_progress(first, count, output, |progress| {
        run_seeds(first..first + count, seeds::jobs(args.jobs), &options, progress)
    })?;
    Ok((first, summary))
}

/// Runs a seed and prints every packet and every event.
fn run_traced(seed: u64, options: &Options, output: Output) -> Summary {
    let trace = Trace::off().with_sink(seeds::trace_sink(output));
    let result = run_seed_traced(seed, options, trace);
    let mut summary = Summary::default();
    summary.add(result.map(|report| report.iter().collect::<Vec<_>>()));
    summary
}
