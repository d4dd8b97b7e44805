//! Mutants: small changes of the library's source, which tests should find.

mod compile;
mod copy;
mod equivalent;
mod files;
mod judge;
mod points;
mod reach;
mod render;
mod report;
mod sample;
mod steps;

pub(crate) use reach::{ReachArgs, run as run_reach};

use std::path::PathBuf;
use std::process::ExitCode;

use clap::Args;

use crate::{Outcome, build};
use compile::World;

/// Change the library's source in small ways, one at a time, and report the tests that find the changes
///
/// All mutants of petrel-proto, petrel-transport and petrel are compiled into a single build of a copy
/// of the workspace, and an environment variable chooses a mutant. For a sample of the mutants the
/// command runs unit tests, seeds of the simulator, and tests of real transports, up to the first that
/// fails, or takes much longer than without a mutant. The exit code is 1 if fewer than --bar in a
/// hundred are found.
#[derive(Debug, Args)]
pub(crate) struct MutantsArgs {
    /// How many mutants to run
    #[arg(long, value_name = "N", default_value_t = 100)]
    sample: usize,

    /// Seed of the sample
    #[arg(long, value_name = "SEED", default_value_t = 0)]
    seed: u64,

    /// Run these mutants, by their numbers in a former report of unchanged sources, in place of a sample
    #[arg(long, value_name = "ID", conflicts_with_all = ["sample", "seed"])]
    only: Vec<u32>,

    /// Also run worlds of threads under a model checker, which takes a second build
    #[arg(long)]
    threads: bool,

    /// Mutants run at a time
    #[arg(long, short, value_name = "N", default_value_t = 2)]
    jobs: usize,

    /// Required share of found mutants, in percent
    #[arg(long, value_name = "PERCENT", default_value_t = 92)]
    bar: usize,

    /// Write the results to this file, as JSON
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
}

pub(crate) fn run(args: &MutantsArgs) -> Outcome {
    let world = World::build(&build::workspace()?, args.threads)?;
    let reached = world.reach()?;
    let drawn = match args.only.is_empty() {
        true => sample::draw(&world.copy, args.sample, args.seed),
        false => args.only.clone(),
    };
    let verdicts = judge::all(&world, &reached, &drawn, args.jobs)?;
    report::print(&world.copy, &verdicts);
    if let Some(path) = &args.json {
        report::write(&world.copy, &verdicts, args.seed, path)?;
    }
    let found = verdicts.iter().filter(|verdict| verdict.is_found()).count();
    let is_enough = found * 100 >= args.bar * verdicts.len();
    Ok(if is_enough { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}
