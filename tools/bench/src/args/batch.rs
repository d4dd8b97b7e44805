//! Arguments of `petrel bench batch`.

use std::path::PathBuf;
use std::time::Duration;

use clap::{Args, ValueEnum};
use petrel_command::args::values::parse_plot;
use petrel_command::units::parse_duration;

use super::BenchTransport;

/// The table of a server.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum LookupTable {
    /// The longest prefix of an IPv4 address among 500 000: 64 MiB
    Ipv4,
    /// The longest prefix of an IPv6 address among 200 000: 924 MiB
    Ipv6,
    /// The port of an Ethernet address among 67 million: 1 GiB
    Switch,
    /// The longest prefix of a name among 10 million: 433 MiB
    Ndn,
}

/// Arguments of `petrel bench batch`.
#[derive(Args, Clone, Debug)]
pub(crate) struct BatchArgs {
    /// Tables to look up in, in turn; separate several by commas
    #[arg(long, value_enum, value_delimiter = ',')]
    #[arg(default_values = ["ipv4", "ipv6", "switch", "ndn"])]
    pub(crate) table: Vec<LookupTable>,

    /// Transports to measure, in turn; separate several by commas
    #[arg(long, value_enum, value_delimiter = ',', default_values = ["udp", "shm"])]
    pub(crate) transport: Vec<BenchTransport>,

    /// Divides the number of entries and of requests: smaller tables for a quick look
    #[arg(long, value_name = "N", default_value_t = 1)]
    #[arg(value_parser = clap::value_parser!(u16).range(1..=256))]
    pub(crate) smaller: u16,

    /// Calls in flight at a time, over 8 sessions
    #[arg(long, value_name = "N", default_value_t = 60)]
    #[arg(value_parser = clap::value_parser!(u16).range(1..=256))]
    pub(crate) in_flight: u16,

    /// Windows of every form, taken in turn
    #[arg(long, value_name = "N", default_value_t = 21)]
    #[arg(value_parser = clap::value_parser!(u32).range(1..=1000))]
    pub(crate) rounds: u32,

    /// Length of a window
    #[arg(long, value_name = "DURATION", default_value = "50ms", value_parser = parse_duration)]
    pub(crate) window: Duration,

    /// Draw the ratios into an SVG file
    #[arg(long, value_name = "FILE.svg", value_parser = parse_plot)]
    pub(crate) plot: Option<PathBuf>,
}
