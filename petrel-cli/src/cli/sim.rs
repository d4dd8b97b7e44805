//! Arguments of `petrel sim`.

use clap::Args;

use super::values::parse_seed;

/// Run real endpoints over a simulated network that fails in every way it can
///
/// Each seed is a world of its own: hosts, links and switches with loss, duplication, reordering,
/// corruption, delay, partitions, pauses, crashes and restarts, under a load of small, large and
/// nested calls. After each run checkers look whether every call ended exactly once, every handler
/// ran at most once, every byte arrived, and nothing leaked. The clock is virtual, so a seed gives
/// the same run everywhere.
///
/// A seed that fails is printed with the command that replays it. The exit code is then 1.
#[derive(Args, Debug)]
#[command(after_long_help = AFTER_HELP)]
pub(crate) struct SimArgs {
    /// How many fresh seeds to run; each invocation draws new ones
    #[arg(long, value_name = "N", default_value_t = 100, conflicts_with = "seed")]
    #[arg(value_parser = clap::value_parser!(u64).range(1..))]
    pub(crate) seeds: u64,

    /// Run this one seed and print a trace of what happens
    #[arg(long, value_name = "SEED", value_parser = parse_seed)]
    pub(crate) seed: Option<u64>,

    /// Worlds simulated at a time, a thread each [default: the number of CPUs]
    #[arg(long, short, value_name = "N", value_parser = clap::value_parser!(u16).range(1..=1024))]
    pub(crate) jobs: Option<u16>,
}

const AFTER_HELP: &str = "\
Examples:
  petrel sim
  petrel sim --seeds 10000
  petrel sim --seed 0x5eed1234";
