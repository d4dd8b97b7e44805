//! Arguments of `petrel-experiment overload-measured`, and of the server that it starts.

use std::time::Duration;

use clap::Args;
use petrel_command::args::BenchTransport;
use petrel_command::units::parse_duration;

use super::Policy;

/// Arguments of `petrel-experiment overload-measured`.
#[derive(Args, Clone, Debug)]
pub(crate) struct OverloadMeasuredArgs {
    /// Transport between the two processes
    #[arg(long, value_enum, default_value = "udp")]
    pub(crate) transport: BenchTransport,

    /// Offered load, in percent of the measured capacity of the server, separated by commas
    #[arg(long, value_name = "PERCENT", value_delimiter = ',')]
    #[arg(default_values_t = [50, 80, 100, 150, 200, 300])]
    #[arg(value_parser = clap::value_parser!(u16).range(1..=1000))]
    pub(crate) load: Vec<u16>,

    /// The server's overload policy, separated by commas: none, deadlines, expected, default
    #[arg(long, value_name = "NAME", value_delimiter = ',')]
    #[arg(default_values = ["none", "deadlines", "default"])]
    pub(crate) policy: Vec<Policy>,

    /// Time within which an answer is still useful
    #[arg(long, value_name = "DURATION", default_value = "8ms", value_parser = parse_duration)]
    pub(crate) slo: Duration,

    /// Number of sessions; with back-pressure, every session has a separate limit
    #[arg(long, value_name = "N", default_value_t = 32)]
    #[arg(value_parser = clap::value_parser!(u16).range(1..=1024))]
    pub(crate) sessions: u16,

    /// How long to measure every figure
    #[arg(long, value_name = "DURATION", default_value = "2s", value_parser = parse_duration)]
    pub(crate) duration: Duration,

    #[command(flatten)]
    pub(crate) work: WorkArgs,
}

/// The work that the server of `petrel-experiment overload-measured` does for a request.
#[derive(Args, Clone, Debug)]
pub(crate) struct WorkArgs {
    /// Requests that the server executes at once
    #[arg(long, value_name = "N", default_value_t = 4)]
    #[arg(value_parser = clap::value_parser!(u16).range(1..=256))]
    pub(crate) workers: u16,

    /// How long the server sleeps for every request
    #[arg(long, value_name = "DURATION", default_value = "400us", value_parser = parse_duration)]
    pub(crate) service: Duration,

    /// The queueing delay that policies with a target aim at, at most
    #[arg(long, value_name = "DURATION", default_value = "2ms", value_parser = parse_duration)]
    pub(crate) target: Duration,
}

/// Arguments of the server's process that `petrel-experiment overload-measured` starts.
#[derive(Args, Debug)]
pub(crate) struct OverloadServerArgs {
    /// Transport to offer
    #[arg(long, value_enum)]
    pub(crate) transport: BenchTransport,

    /// Overload policy
    #[arg(long, value_name = "NAME")]
    pub(crate) policy: Policy,

    #[command(flatten)]
    pub(crate) work: WorkArgs,
}
