//! `petrel kv chaos`: real replicas under faults, and a check of the answers that their clients get.

use petrel_command::Outcome;
use petrel_command::failure::Failure;
use petrel_command::output::Output;
use petrel_kv_check::{ChaosOptions, ChaosOutcome, run_chaos, serve_chaos_replica};
use serde::Serialize;

use crate::cli::{KvChaosArgs, KvChaosReplicaArgs};
use crate::seeds;

/// The subcommand by which the run starts a replica.
const REPLICA: [&str; 2] = ["kv", "chaos-replica"];

#[derive(Serialize)]
struct Skipped {
    skipped: String,
}

/// Runs the phases and prints the report of each.
pub(super) fn run(args: &KvChaosArgs, output: Output) -> Result<Outcome, Failure> {
    let mut printed = Ok(());
    let outcome = run_chaos(&options(args), &REPLICA, |report| {
        let line = output.line(report).and_then(|()| output.record(report));
        printed = std::mem::replace(&mut printed, Ok(())).and(line);
    });
    let outcome = outcome.map_err(Failure::because)?;
    printed?;
    let is_fine = match outcome {
        ChaosOutcome::Skipped(skipped) => {
            output.line(format!("skipped: {skipped}"))?;
            output.record(&Skipped { skipped })?;
            true
        }
        ChaosOutcome::DoneByChild(is_fine) => is_fine,
        ChaosOutcome::Done(summary) => {
            output.line(&summary)?;
            output.record(&summary)?;
            summary.is_fine()
        }
    };
    Ok(if is_fine { Outcome::Success } else { Outcome::Failure })
}

fn options(args: &KvChaosArgs) -> ChaosOptions {
    // A seed of about ten digits, which is easy to read out and type.
    let mut options = ChaosOptions::new(args.seed.unwrap_or_else(seeds::fresh_short));
    options.duration = args.duration;
    options.first_phase = args.phase.into();
    options.phase_time = args.phase_time;
    options.keeps_going = args.keep_going;
    if let Some(directory) = &args.directory {
        options.directory.clone_from(directory);
    }
    options
}

/// Runs one of the run's replicas.
pub(super) fn serve_replica(args: &KvChaosReplicaArgs) -> Result<Outcome, Failure> {
    serve_chaos_replica(&args.arguments).map_err(Failure::because)?;
    Ok(Outcome::Success)
}
