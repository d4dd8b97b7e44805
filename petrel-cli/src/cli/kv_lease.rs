//! Arguments of `petrel kv lease`.

use std::time::Duration;

use clap::{Args, Subcommand};
use petrel_command::units::parse_duration;

use super::kv::{ClusterArgs, FormatArgs};

/// Grant, keep alive, look at and end leases: keys with a lease go when it ends
///
/// A lease ends its time after the last keep-alive, never earlier. `petrel kv put --lease` gives it keys.
#[derive(Args, Debug)]
#[command(after_long_help = LEASE_AFTER_HELP)]
pub(crate) struct KvLeaseArgs {
    #[command(subcommand)]
    pub(crate) what: KvLeaseCommand,
}

#[derive(Debug, Subcommand)]
pub(crate) enum KvLeaseCommand {
    /// Grant a lease, and print its number
    #[command(after_long_help = LEASE_AFTER_HELP)]
    Grant(KvLeaseGrantArgs),
    /// Keep a lease alive until interrupted, or until the lease has ended
    #[command(after_long_help = LEASE_AFTER_HELP)]
    KeepAlive(KvLeaseKeepAliveArgs),
    /// End a lease, and remove its keys
    #[command(after_long_help = LEASE_AFTER_HELP)]
    Revoke(KvLeaseOfArgs),
    /// List the leases with their times
    #[command(after_long_help = LEASE_AFTER_HELP)]
    List(KvLeaseListArgs),
    /// Print the time left of a lease, and its keys
    #[command(after_long_help = LEASE_AFTER_HELP)]
    Ttl(KvLeaseTtlArgs),
}

const LEASE_AFTER_HELP: &str = "\
Examples:
  petrel kv lease grant 10s --servers 127.0.0.1:7001
  petrel kv put worker-7 10.0.0.7 --lease 42 --servers 127.0.0.1:7001
  petrel kv lease keep-alive 42 --servers 127.0.0.1:7001
  petrel kv lease ttl 42 --json --servers 127.0.0.1:7001

With --json: {lease, ttl_ms}, of each keep-alive too; {lease, keys} of revoke; an object for each lease of list,
{lease, ttl_ms, left_ms, keys}; and the same with `names`, the keys, of ttl. The exit code is 1 if there is no such
lease.";

#[derive(Args, Debug)]
pub(crate) struct KvLeaseGrantArgs {
    /// The time that the lease lasts after each keep-alive
    #[arg(value_name = "DURATION", value_parser = parse_duration)]
    pub(crate) ttl: Duration,

    #[command(flatten)]
    pub(crate) cluster: ClusterArgs,
}

#[derive(Args, Debug)]
pub(crate) struct KvLeaseOfArgs {
    /// The number of the lease
    #[arg(value_name = "N")]
    pub(crate) lease: u64,

    #[command(flatten)]
    pub(crate) cluster: ClusterArgs,
}

#[derive(Args, Debug)]
pub(crate) struct KvLeaseKeepAliveArgs {
    #[command(flatten)]
    pub(crate) of: KvLeaseOfArgs,

    /// A single keep-alive
    #[arg(long)]
    pub(crate) once: bool,
}

#[derive(Args, Debug)]
pub(crate) struct KvLeaseListArgs {
    #[command(flatten)]
    pub(crate) cluster: ClusterArgs,
}

#[derive(Args, Debug)]
pub(crate) struct KvLeaseTtlArgs {
    #[command(flatten)]
    pub(crate) of: KvLeaseOfArgs,

    #[command(flatten)]
    pub(crate) format: FormatArgs,
}
