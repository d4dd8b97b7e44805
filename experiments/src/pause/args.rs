//! Arguments of `petrel-experiment pause`.

use std::fmt;
use std::str::FromStr;
use std::time::Duration;

use clap::{Args, ValueEnum};
use petrel::endpoint::IdlePolicy;
use petrel_command::args::BenchTransport;
use petrel_command::args::values::IdleChoice;
use petrel_command::units::{exact_duration, parse_duration};

/// Arguments of `petrel-experiment pause`.
#[derive(Args, Debug)]
pub(crate) struct PauseArgs {
    /// Transports to measure, in turn; separate several by commas
    #[arg(long, value_enum, value_delimiter = ',', default_values = ["udp", "shm"])]
    pub(crate) transport: Vec<BenchTransport>,

    /// Pauses to measure, in turn; separate several by commas
    #[arg(long, value_name = "DURATION", value_delimiter = ',', value_parser = parse_duration)]
    #[arg(default_values = ["1ms", "10ms"])]
    pub(crate) pause: Vec<Duration>,

    /// Idle policies of both ends, in turn: `poll`, `spin` (the default), `yield`, `block`, or the time for which
    /// they poll before they sleep; separate several by commas
    #[arg(long, value_name = "POLICY", value_delimiter = ',')]
    #[arg(default_values = ["spin", "20us", "200us", "block"])]
    pub(crate) idle: Vec<IdleValue>,

    /// First calls of each kind
    #[arg(long, value_name = "N", default_value_t = 100)]
    #[arg(value_parser = clap::value_parser!(u32).range(1..=100_000))]
    pub(crate) rounds: u32,
}

/// A policy of `petrel-experiment pause`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum IdleValue {
    Named(IdleChoice),
    /// Poll for this long, then sleep.
    Spin(Duration),
}

impl IdleValue {
    pub(crate) fn policy(self) -> IdlePolicy {
        match self {
            Self::Named(choice) => choice.policy(),
            Self::Spin(duration) => IdlePolicy::SpinThenBlock(duration),
        }
    }
}

impl FromStr for IdleValue {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        if text.starts_with(|first: char| first.is_ascii_digit()) {
            return parse_duration(text).map(Self::Spin);
        }
        IdleChoice::from_str(text, false)
            .map(Self::Named)
            .map_err(|_| "poll, spin, yield, block or a duration is expected".to_owned())
    }
}

impl fmt::Display for IdleValue {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Named(choice) => f.write_str(choice.name()),
            Self::Spin(duration) => f.write_str(&exact_duration(*duration)),
        }
    }
}
