//! Arguments of `petrel bench regions`.

use std::time::Duration;

use clap::Args;
use petrel_command::args::BenchTransport;
use petrel_command::units::parse_duration;

/// Arguments of `petrel bench regions`.
#[derive(Args, Debug)]
pub(crate) struct RegionsArgs {
    /// Transports to measure, in turn; separate several by commas
    #[arg(long, value_enum, value_delimiter = ',', default_values = ["udp", "shm"])]
    pub(crate) transport: Vec<BenchTransport>,

    /// Windows of every kind, taken in turn
    #[arg(long, value_name = "N", default_value_t = 5)]
    #[arg(value_parser = clap::value_parser!(u32).range(1..=1000))]
    pub(crate) rounds: u32,

    /// Length of a window
    #[arg(long, value_name = "DURATION", default_value = "200ms", value_parser = parse_duration)]
    pub(crate) window: Duration,
}
