//! Arguments of `petrel kv sim`.

use clap::Args;
use petrel_command::args::values::parse_seed;

/// Run real replicas over a simulated network that fails, and check the answers that clients get
///
/// Every seed is a separate cluster, with clients that write and read a few keys. Meanwhile replicas
/// crash, with their disks and without, the network is cut or loses packets, disks are slow, clocks
/// differ, and nodes join and leave. The run checks the histories for linearizability (by porcupine, if
/// Go can build it). Other checks: no write is lost or applied twice, replicas agree, and the cluster
/// recovers when the faults have ended.
///
/// A failed seed is printed with the command for its replay. The exit code is then 1.
#[derive(Args, Debug)]
#[command(after_long_help = AFTER_HELP)]
pub(crate) struct KvSimArgs {
    /// How many seeds to run [default: 100, or the seed that --seed names]
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

    /// Clusters simulated at a time, one per thread [default: the number of CPUs]
    #[arg(long, short, value_name = "N", value_parser = clap::value_parser!(u16).range(1..=1024))]
    pub(crate) jobs: Option<u16>,
}

const AFTER_HELP: &str = "\
Examples:
  petrel kv sim
  petrel kv sim --seeds 10000
  petrel kv sim --seed 1234 --trace | less";
