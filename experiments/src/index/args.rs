//! The arguments of `petrel-experiment index`.

use std::time::Duration;

use clap::Args;
use petrel_command::args::BenchTransport;
use petrel_command::units::parse_duration;
use petrel_index::limits;

/// Measure lookups beside an echo, and the cost of scans for them, with workers and without
///
/// Puts random words into a server in a separate process, and measures in turn an echo of 8 bytes and
/// GETs: many at a time, and one at a time. Then clients and dispatch endpoint take turns on one CPU,
/// and workers run on the other. GETs are measured with some SCANs among them (the sum of the 128 next
/// values): with scans in workers, and in the dispatch endpoint. Every answer is checked. One thread
/// makes all calls, with a session per client.
#[derive(Args, Debug)]
pub(crate) struct IndexArgs {
    /// Transports to measure
    #[arg(long, value_enum, value_delimiter = ',', default_values_t = [BenchTransport::Udp, BenchTransport::Shm])]
    pub(crate) transport: Vec<BenchTransport>,

    /// Words to put
    #[arg(long, value_name = "N", default_value_t = 1_000_000)]
    #[arg(value_parser = clap::value_parser!(u32).range(1_000..=100_000_000))]
    pub(crate) keys: u32,

    /// Clients, each with a session
    #[arg(long, value_name = "N", default_value_t = 32)]
    #[arg(value_parser = clap::value_parser!(u16).range(1..=4096))]
    pub(crate) clients: u16,

    /// Calls in flight per client
    #[arg(long, value_name = "N", default_value_t = 2)]
    #[arg(value_parser = clap::value_parser!(u16).range(1..=8))]
    pub(crate) outstanding: u16,

    /// SCANs per hundred calls
    #[arg(long, value_name = "PERCENT", default_value_t = 1)]
    #[arg(value_parser = clap::value_parser!(u8).range(0..=100))]
    pub(crate) scans: u8,

    /// Worker threads
    #[arg(long, value_name = "N", default_value_t = 1)]
    #[arg(value_parser = clap::value_parser!(u16).range(1..=i64::from(limits::WORKERS_MAX)))]
    pub(crate) workers: u16,

    /// How long an idle worker polls for work before sleeping
    #[arg(long, value_name = "DURATION", default_value = "200us", value_parser = parse_duration)]
    pub(crate) worker_spin: Duration,

    /// Rounds with a window of every kind
    #[arg(long, value_name = "N", default_value_t = 15)]
    #[arg(value_parser = clap::value_parser!(u32).range(1..))]
    pub(crate) rounds: u32,

    /// Length of a window
    #[arg(long, value_name = "DURATION", default_value = "300ms", value_parser = parse_duration)]
    pub(crate) window: Duration,

    /// Prefetch no memory for lookups, to see what prefetching is worth
    #[arg(long)]
    pub(crate) no_prefetch: bool,
}

/// Arguments of the server's process that `petrel-experiment index` starts.
#[derive(Args, Debug)]
pub(crate) struct IndexServerArgs {
    /// Transport to offer
    #[arg(long, value_enum)]
    pub(crate) transport: BenchTransport,

    /// Worker threads
    #[arg(long, value_name = "N")]
    pub(crate) workers: u16,

    /// Words that the table is sized for
    #[arg(long, value_name = "N")]
    pub(crate) words: u64,

    /// CPU of the dispatch thread
    #[arg(long, value_name = "CPU")]
    pub(crate) cpu: Option<usize>,

    /// CPU of the workers
    #[arg(long, value_name = "CPU")]
    pub(crate) worker_cpu: Option<usize>,

    /// Prefetch no memory for lookups
    #[arg(long)]
    pub(crate) no_prefetch: bool,
}
