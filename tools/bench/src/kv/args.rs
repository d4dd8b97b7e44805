//! Arguments of `petrel bench kv`.

use std::path::PathBuf;
use std::time::Duration;

use clap::Args;
use petrel_command::args::values::IdleChoice;
use petrel_command::args::{BenchTransport, ReadsChoice};
use petrel_command::units::parse_duration;

/// Measure replicated puts: 16 B keys, 64 B values
///
/// Three replicas in memory, a process per replica. Every answer is checked. At the end the replicas must have
/// reached the same state.
#[derive(Args, Debug)]
pub(crate) struct KvBenchArgs {
    /// Transports to measure, in turn; separate several by commas
    #[arg(long, value_enum, value_delimiter = ',', default_values = ["udp", "shm"])]
    pub(crate) transport: Vec<BenchTransport>,

    /// Clients with a single call in flight; one row per number
    #[arg(long, value_name = "N,N", value_delimiter = ',', default_values = ["1", "64"])]
    #[arg(value_parser = parse_clients)]
    pub(crate) clients: Vec<usize>,

    /// Keys that puts choose from; all keys exist before
    #[arg(long, value_name = "N", default_value_t = 1_000_000)]
    #[arg(value_parser = clap::value_parser!(u64).range(1..=1_000_000_000))]
    pub(crate) keys: u64,

    /// How long to measure, for every row
    #[arg(long, value_name = "DURATION", default_value = "3s", value_parser = parse_duration)]
    pub(crate) duration: Duration,

    /// Length of the windows; the kinds of operations take turns
    #[arg(long, value_name = "DURATION", default_value = "200ms", value_parser = parse_duration)]
    pub(crate) window: Duration,

    /// How replicas and clients wait for packets
    #[arg(long, value_enum, default_value_t = IdleChoice::Spin)]
    pub(crate) idle: IdleChoice,

    /// How the leader verifies its leadership before a get
    #[arg(long, value_enum, default_value_t = ReadsChoice::ReadIndex)]
    pub(crate) reads: ReadsChoice,

    /// Let the replicas keep their logs in this directory, synced [default: in memory]
    #[arg(long, value_name = "DIR")]
    pub(crate) data: Option<PathBuf>,

    /// Measure etcd afterwards, by the program of bench/etcd
    #[arg(long, value_name = "PROGRAM")]
    pub(crate) etcd: Option<PathBuf>,
}

fn parse_clients(text: &str) -> Result<usize, String> {
    match text.parse() {
        Ok(count @ 1..=1_000_000) => Ok(count),
        _ => Err("a number from 1 to 1000000".to_owned()),
    }
}
