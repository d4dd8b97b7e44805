//! `petrel sim`: seeds of the simulator, many at once or one with a trace.

use petrel_command::Outcome;
use petrel_command::failure::Failure;
use petrel_command::output::Output;
use petrel_sim::Trace;
use petrel_sim::check::{Options, Summary, never_met, run_seed_traced, run_seeds};

use crate::cli::SimArgs;
use crate::seeds::Seeds;

/// Runs the seeds and prints the results.
pub(crate) fn run(args: &SimArgs, output: Output) -> Result<Outcome, Failure> {
    let mut options = Options::default();
    options.keep_going = args.seeds.keep_going;
    options.has_everything = args.everything;
    let traced = |seed, trace: Trace| {
        run_seed_traced(seed, &options, trace).map(|report| report.iter().collect())
    };
    // Worlds with all features lack the features that were added later.
    let never_met = if args.everything { |_: &Summary| Vec::new() } else { never_met };
    Seeds { args: &args.seeds, skipped: None, never_met, output }
        .run(traced, |seeds, jobs, progress| run_seeds(seeds, jobs, &options, progress))
}
