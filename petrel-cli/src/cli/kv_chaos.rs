//! Arguments of `petrel kv chaos`.

use std::path::PathBuf;
use std::time::Duration;

use clap::Args;

use super::values::parse_seed;
use crate::units::parse_duration;

/// Kill, stop and cut off real replicas, and check what their clients are told
///
/// Replicas are processes in network namespaces of their own. In phases, each with a new cluster in memory or on
/// disk, they are killed and started again, stopped, replaced and asked to hand leadership over, links go down,
/// and packets are cut off and lost. Checked are the histories of concurrent clients for linearizability (by
/// porcupine, which Go builds), that no write is lost or applied twice, that the cluster serves again and becomes
/// whole, and that its replicas agree then.
///
/// It takes Linux with the programs ip, nft, unshare, nsenter and go, and root or user namespaces; without them
/// it says `skipped`. All that it makes goes when it ends or is interrupted, but for what belongs to a violation.
/// The exit code is then 1.
#[derive(Args, Debug)]
#[command(after_long_help = AFTER_HELP)]
pub(crate) struct KvChaosArgs {
    /// Phases begin until this is over, one at least
    #[arg(long, value_name = "DURATION", default_value = "60s", value_parser = parse_duration)]
    pub(crate) duration: Duration,

    /// Draws settings, clients and faults; without it each invocation draws what nobody has seen before
    #[arg(long, value_name = "SEED", value_parser = parse_seed)]
    pub(crate) seed: Option<u64>,

    /// Number of the phase with which it begins
    #[arg(long, value_name = "N", default_value_t = 0, requires = "seed")]
    pub(crate) phase: u32,

    /// How long things go wrong in a phase
    #[arg(long, value_name = "DURATION", default_value = "40s", value_parser = parse_duration)]
    pub(crate) phase_time: Duration,

    /// Where replicas have their files, and what belongs to a violation stays [default: the system's place for
    /// temporary files]
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

/// What the run starts replicas with.
#[derive(Args, Debug)]
pub(crate) struct KvChaosReplicaArgs {
    #[arg(trailing_var_arg = true, allow_hyphen_values = true)]
    pub(crate) arguments: Vec<String>,
}
