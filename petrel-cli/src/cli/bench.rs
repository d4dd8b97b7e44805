//! Arguments of `petrel bench`.

use std::time::Duration;

use clap::{Args, Subcommand};

use super::address::ServerAddress;
use super::values::BenchTransport;
use crate::units::{parse_duration, parse_size};

/// Measure latency, rate or bandwidth
///
/// Without --connect both ends run in this process, a thread each: this measures Petrel and the
/// host's kernel, not a network. The threads have a CPU each where there are two. With --connect the
/// other end is a `petrel serve`. Every reply is checked; the exit code is 1 if one was wrong or
/// missing. Run it more than once: a shared machine's figures vary.
#[derive(Args, Debug)]
#[command(after_long_help = AFTER_HELP)]
pub(crate) struct BenchArgs {
    #[command(subcommand)]
    pub(crate) what: BenchCommand,
}

const AFTER_HELP: &str = "\
Examples:
  petrel bench latency
  petrel bench rate --transport udp --in-flight 60 --duration 3s
  petrel bench bandwidth --connect 10.0.0.7:31850 --size 8MiB --json

Each run prints the command that repeats it. `petrel doctor` says what holds this host back.";

/// What to measure.
#[derive(Debug, Subcommand)]
pub(crate) enum BenchCommand {
    /// How long one call takes when nothing else is in flight: p50, p99, p99.9 and maximum
    Latency(LatencyArgs),
    /// How many small calls per second are answered with many in flight
    Rate(RateArgs),
    /// How many bits per second large messages carry
    Bandwidth(BandwidthArgs),
}

/// Flags of every benchmark.
#[derive(Args, Debug)]
pub(crate) struct BenchCommon {
    /// Transports to measure, in turn; separate several by commas
    #[arg(long, value_enum, value_delimiter = ',', default_values = ["udp", "shm"])]
    pub(crate) transport: Vec<BenchTransport>,

    /// How long to measure on each transport, after a short warm-up
    #[arg(long, value_name = "DURATION", default_value = "3s", value_parser = parse_duration)]
    pub(crate) duration: Duration,

    /// A running `petrel serve` to measure against [default: a server in this process]
    #[arg(long, value_name = "ADDR")]
    pub(crate) connect: Option<ServerAddress>,

    /// Number of the server's endpoint to measure against
    #[arg(long, value_name = "N", default_value_t = 0, requires = "connect")]
    pub(crate) endpoint: u16,
}

/// Arguments of `petrel bench latency`.
#[derive(Args, Debug)]
pub(crate) struct LatencyArgs {
    /// Size of request and reply, in bytes or with a unit
    #[arg(long, value_name = "SIZE", default_value = "32", value_parser = parse_size)]
    pub(crate) size: usize,

    /// Calls in flight at a time; 1 is the unloaded latency
    #[arg(long, value_name = "N", default_value_t = 1)]
    #[arg(value_parser = clap::value_parser!(u16).range(1..=4096))]
    pub(crate) in_flight: u16,

    #[command(flatten)]
    pub(crate) common: BenchCommon,
}

/// Arguments of `petrel bench rate`.
#[derive(Args, Debug)]
pub(crate) struct RateArgs {
    /// Size of request and reply, in bytes or with a unit
    #[arg(long, value_name = "SIZE", default_value = "32", value_parser = parse_size)]
    pub(crate) size: usize,

    /// Calls in flight at a time
    #[arg(long, value_name = "N", default_value_t = 60)]
    #[arg(value_parser = clap::value_parser!(u16).range(1..=4096))]
    pub(crate) in_flight: u16,

    #[command(flatten)]
    pub(crate) common: BenchCommon,
}

/// Arguments of `petrel bench bandwidth`.
#[derive(Args, Debug)]
pub(crate) struct BandwidthArgs {
    /// Size of the requests, in bytes or with a unit; the replies are small
    #[arg(long, value_name = "SIZE", default_value = "8MiB", value_parser = parse_size)]
    pub(crate) size: usize,

    /// Calls in flight at a time
    #[arg(long, value_name = "N", default_value_t = 2)]
    #[arg(value_parser = clap::value_parser!(u16).range(1..=64))]
    pub(crate) in_flight: u16,

    #[command(flatten)]
    pub(crate) common: BenchCommon,
}
