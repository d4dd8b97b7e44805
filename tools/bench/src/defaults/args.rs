//! Arguments of `petrel bench defaults`, and of the processes that it starts.

use std::net::SocketAddr;
use std::time::Duration;

use clap::Args;
use petrel_command::args::BenchTransport;
use petrel_command::units::parse_duration;

/// Arguments of `petrel bench defaults`.
#[derive(Args, Debug)]
pub(crate) struct DefaultsArgs {
    /// Transports to measure, in turn; separate several by commas
    #[arg(long, value_enum, value_delimiter = ',', default_values = ["shm", "udp"])]
    pub(crate) transport: Vec<BenchTransport>,

    /// Measured time of each row in a round
    #[arg(long, value_name = "DURATION", value_parser = parse_duration, default_value = "500ms")]
    pub(crate) duration: Duration,

    /// Rounds, in which all rows take turns
    #[arg(long, value_name = "N", default_value_t = 5)]
    #[arg(value_parser = clap::value_parser!(u32).range(1..=1_000))]
    pub(crate) rounds: u32,

    /// Measure two server threads beside one as well, with 16 clients over the first transport
    #[arg(long)]
    pub(crate) threads: bool,

    /// Time for which the handler computes, for --threads; separate several by commas
    #[arg(long, value_name = "DURATION", value_delimiter = ',', value_parser = parse_duration)]
    #[arg(default_values = ["50us", "200us", "1ms"])]
    pub(crate) work: Vec<Duration>,

    /// Measure an idle server with this number of client processes as well, and connections
    #[arg(long, value_name = "N", default_value_t = 0)]
    pub(crate) processes: usize,

    /// Time without calls, for --processes: a connection gives a sign of life in 48 s
    #[arg(long, value_name = "DURATION", value_parser = parse_duration, default_value = "48s")]
    pub(crate) idle: Duration,

    /// Measure no other rows than those of --processes
    #[arg(long, requires = "processes", conflicts_with = "threads")]
    pub(crate) only_processes: bool,
}

/// Arguments of the client processes that `petrel bench defaults` starts.
#[derive(Args, Debug)]
pub(crate) struct DefaultsClientsArgs {
    /// Server to connect to
    #[arg(long)]
    pub(crate) server: SocketAddr,

    /// Transport to use
    #[arg(long, value_enum)]
    pub(crate) transport: BenchTransport,

    /// Client processes
    #[arg(long)]
    pub(crate) processes: usize,

    /// Milliseconds without calls
    #[arg(long)]
    pub(crate) time_ms: u64,
}

/// Arguments of the server's process that `petrel bench defaults` starts.
#[derive(Args, Debug)]
pub(crate) struct DefaultsServerArgs {
    /// Threads of the server
    #[arg(long, value_name = "N", default_value_t = 1)]
    pub(crate) threads: usize,

    /// Poll, and never sleep
    #[arg(long)]
    pub(crate) poll: bool,

    /// Sleep at once when nothing is to do
    #[arg(long, conflicts_with = "poll")]
    pub(crate) block: bool,
}
