//! `petrel kv sim`: seeds of the key-value store in the simulator, many at once or one with a trace.

use petrel_command::Outcome;
use petrel_command::failure::Failure;
use petrel_command::output::Output;
use petrel_kv_check::{Runner, run_seeds};

use crate::cli::KvSimArgs;
use crate::seeds::Seeds;

/// Runs the seeds and prints the results.
pub(super) fn run(args: &KvSimArgs, output: Output) -> Result<Outcome, Failure> {
    let skipped = Runner::skipped();
    if let Some(reason) = skipped {
        output.line(format!("skipped: histories are not checked for linearizability: {reason}"))?;
    }
    let args = &args.seeds;
    Seeds { args, skipped, never_met: |_| Vec::new(), output }.run(
        |seed, trace| Runner::new().run(seed, trace).map(|report| report.counts),
        |seeds, jobs, progress| run_seeds(seeds, jobs, args.keep_going, Runner::new, progress),
    )
}
