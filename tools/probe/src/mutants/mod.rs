//! Mutants: small changes of the library and the services, which tests should find.

mod compile;
mod copy;
mod crates;
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
use clap::builder::PossibleValuesParser;

use crate::failure::Failure;
use crate::{Outcome, build};
use compile::World;
use crates::CRATES;
use steps::Chosen;

/// Change the source in small ways, one at a time, and report the tests that find the changes
///
/// All mutants of the chosen crates are compiled into a single build of a copy of the workspace, and an
/// environment variable chooses a mutant. For a sample of the mutants the command runs the tests of the
/// mutant's crate, up to the first that fails, or takes much more CPU time than without a mutant. The
/// exit code is 1 if fewer than --bar in a hundred are found.
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

    /// Only mutants of the named crate; may be repeated. The default is all crates
    #[arg(long = "crate", value_name = "NAME",
        value_parser = PossibleValuesParser::new(CRATES.map(|one| one.name)))]
    crates: Vec<String>,

    /// Run all steps against every mutant, and print how many each step finds, and alone finds
    #[arg(long)]
    matrix: bool,

    #[command(flatten)]
    chosen: Chosen,

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
    let crates: Vec<&str> = match args.crates.is_empty() {
        true => CRATES.iter().map(|one| one.name).collect(),
        false => args.crates.iter().map(String::as_str).collect(),
    };
    let world = World::build(&build::workspace()?, &crates, &args.chosen)?;
    let is_built = |id: &&u32| world.copy.built().any(|mutant| mutant.id == **id);
    if let Some(unknown) = args.only.iter().find(|id| !is_built(id)) {
        return Err(Failure::UnknownMutant(*unknown));
    }
    let reached = world.reach()?;
    let drawn = match args.only.is_empty() {
        true => sample::draw(&world.copy, args.sample, args.seed),
        false => args.only.clone(),
    };
    let verdicts = judge::all(&world, &reached, &drawn, args.jobs, args.matrix)?;
    report::print(&world.copy, &verdicts);
    if args.matrix {
        report::print_matrix(world.steps(), &verdicts);
    }
    if let Some(path) = &args.json {
        report::write(&world.copy, &verdicts, args.seed, path)?;
    }
    let found = verdicts.iter().filter(|verdict| verdict.is_found()).count();
    let is_enough = found * 100 >= args.bar * verdicts.len();
    Ok(if is_enough { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}
