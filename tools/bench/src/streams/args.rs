//! Arguments of `petrel bench stream`.

use std::time::Duration;

use clap::Args;
use petrel_command::args::BenchTransport;
use petrel_command::units::{parse_duration, parse_size};

/// Arguments of `petrel bench stream`.
#[derive(Args, Clone, Debug)]
pub(crate) struct StreamsArgs {
    /// Transports to measure, in turn; separate several by commas
    #[arg(long, value_enum, value_delimiter = ',', default_values = ["shm", "udp"])]
    pub(crate) transport: Vec<BenchTransport>,

    /// Bytes of the messages, in turn; separate several by commas
    #[arg(long, value_name = "BYTES", value_delimiter = ',', value_parser = parse_size)]
    #[arg(default_values = ["32", "64KiB"])]
    pub(crate) size: Vec<usize>,

    /// Streams without messages
    #[arg(long, value_name = "N", default_value_t = 10_000)]
    #[arg(value_parser = clap::value_parser!(u32).range(1..=16_000))]
    pub(crate) idle: u32,

    /// Measured time of each figure
    #[arg(long, value_name = "DURATION", value_parser = parse_duration, default_value = "1s")]
    pub(crate) duration: Duration,
}
