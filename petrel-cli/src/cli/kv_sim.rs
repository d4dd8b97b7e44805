//! Arguments of `petrel kv sim`.

use clap::Args;

use super::values::parse_seed;

/// Run real replicas over a simulated network that fails, and check what clients are told
///
/// Each seed is a cluster of its own, with clients that write and read a few keys while replicas crash, with their
/// disks and without, the network is cut or loses, disks are slow, clocks differ, and nodes come and go. Checked are
/// the histories for linearizability (by porcupine, where there is Go to build it), that no write is lost or applied
/// twice, that replicas agree, and that all is well again when the troubles have ended.
///
/// A seed that fails is printed with the command that replays it. The exit code is then 1.
#[derive(Args, Debug)]
#[command(after_long_help = AFTER_HELP)]
pub(crate) struct KvSimArgs {
    /// How many seeds to run [default: 100, or the one that --seed names]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..))]
    pub(crate) seeds: Option<u64>,

    /// The first seed to run; without it each invocation draws seeds that nobody has seen before
    #[arg(long, visible_alias = "first", value_name = "SEED", value_parser = parse_seed)]
    pub(crate) seed: Option<u64>,

    /// Print every packet and every event of the one seed; with --json on standard error
    #[arg(long, requires = "seed", conflicts_with_all = ["seeds", "jobs"])]
    pub(crate) trace: bool,

    /// Go on after a seed that failed
    #[arg(long)]
    pub(crate) keep_going: bool,

    /// Clusters simulated at a time, a thread each [default: the number of CPUs]
    #[arg(long, short, value_name = "N", value_parser = clap::value_parser!(u16).range(1..=1024))]
    pub(crate) jobs: Option<u16>,
}

const AFTER_HELP: &str = "\
Examples:
  petrel kv sim
  petrel kv sim --seeds 10000
  petrel kv sim --seed 1234 --trace | less";
