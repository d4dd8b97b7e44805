//! Arguments of `petrel sim`.

use clap::Args;
use petrel_command::args::values::parse_seed;

/// Run real endpoints over a simulated network that fails in every way it can
///
/// Every seed is a separate world: hosts, links and switches with loss, duplication, reordering,
/// corruption, delay, partitions, pauses, crashes and restarts, under a load of small, large and nested
/// calls. After every run checkers verify that every call ended exactly once, every handler ran at most
/// once, every byte arrived, and nothing leaked. The clock is virtual, so a seed yields the same run
/// everywhere.
///
/// A failed seed is printed with the command for its replay. The exit code is then 1. The last lines sum
/// up the events of all worlds, as evidence that many faults occurred.
#[derive(Args, Debug)]
#[command(after_long_help = AFTER_HELP)]
pub(crate) struct SimArgs {
    #[command(flatten)]
    pub(crate) seeds: SeedsArgs,

    /// Enable all features in every world; otherwise half of the worlds go without half of the features,
    /// and one in a thousand is large
    #[arg(long)]
    pub(crate) everything: bool,
}

/// The seeds to run, and how.
#[derive(Args, Debug)]
pub(crate) struct SeedsArgs {
    /// How many seeds to run [default: 100 fresh seeds, or the seed that --seed names]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..))]
    pub(crate) seeds: Option<u64>,

    /// The first seed to run [default: new random seeds for every invocation]
    #[arg(long, visible_alias = "first", value_name = "SEED", value_parser = parse_seed)]
    pub(crate) seed: Option<u64>,

    /// Print every packet and every event of the single seed; with --json on standard error
    #[arg(long, requires = "seed", conflicts_with_all = ["seeds", "jobs"])]
    pub(crate) trace: bool,

    /// Go on after a seed that failed
    #[arg(long)]
    pub(crate) keep_going: bool,

    /// Worlds simulated at a time, one per thread [default: the number of CPUs]
    #[arg(long, short, value_name = "N", value_parser = clap::value_parser!(u16).range(1..=1024))]
    pub(crate) jobs: Option<u16>,
}

const AFTER_HELP: &str = "\
Examples:
  petrel sim
  petrel sim --seeds 10000
  petrel sim --seed 1234
  petrel sim --seed 1234 --trace | less";
