//! Arguments of `petrel kv chaos`.

use std::path::PathBuf;
use std::time::Duration;

use clap::Args;
use petrel_command::args::values::parse_seed;
use petrel_command::units::parse_duration;

/// Kill, stop and cut off real replicas, and check the answers that their clients get
///
/// Replicas are processes in separate network namespaces. Every phase runs a new cluster, in memory or
/// on disk. Its replicas are killed and restarted, stopped, replaced and asked to hand leadership over;
/// links go down, and packets are cut off and lost. The run checks the histories of concurrent clients
/// for linearizability (by porcupine, which Go builds). Other checks: no write is lost or applied twice,
/// the cluster serves again and becomes whole, and its replicas then agree.
///
/// The command needs Linux with the programs ip, nft, unshare, nsenter and go, and root or user
/// namespaces; otherwise it says `skipped`. At its end or interruption all remains are removed, except
/// the files of a violation. The exit code is then 1.
#[derive(Args, Debug)]
#[command(after_long_help = AFTER_HELP)]
pub(crate) struct KvChaosArgs {
    /// Phases begin until this time is over; at least one runs
    #[arg(long, value_name = "DURATION", default_value = "60s", value_parser = parse_duration)]
    pub(crate) duration: Duration,

    /// Seed of settings, clients and faults [default: a new seed for every invocation]
    #[arg(long, value_name = "SEED", value_parser = parse_seed)]
    pub(crate) seed: Option<u64>,

    /// Number of the phase to begin with
    #[arg(long, value_name = "N", default_value_t = 0, requires = "seed")]
    pub(crate) phase: u32,

    /// Time during which faults are injected in a phase
    #[arg(long, value_name = "DURATION", default_value = "40s", value_parser = parse_duration)]
    pub(crate) phase_time: Duration,

    /// Directory for the files of replicas; those of a violation stay there [default: the system's place
    /// for temporary files]
    #[arg(long, value_name = "DIR")]
    pub(crate) directory: Option<PathBuf>,

    /// Go on after a violation
    #[arg(long)]
    pub(crate) keep_going: bool,
}

const AFTER_HELP: &str = "\
Examples:
  petrel kv chaos
  petrel kv chaos --duration 3600s --keep-going
  petrel kv chaos --seed 1234 --phase 7";

/// The arguments with which the run starts a replica.
#[derive(Args, Debug)]
pub(crate) struct KvChaosReplicaArgs {
    #[arg(trailing_var_arg = true, allow_hyphen_values = true)]
    pub(crate) arguments: Vec<String>,
}
