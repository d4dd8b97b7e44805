//! Arguments of `petrel kv sim`.

use clap::Args;

use super::sim::SeedsArgs;

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
    #[command(flatten)]
    pub(crate) seeds: SeedsArgs,
}

const AFTER_HELP: &str = "\
Examples:
  petrel kv sim
  petrel kv sim --seeds 10000
  petrel kv sim --seed 1234 --trace | less";
