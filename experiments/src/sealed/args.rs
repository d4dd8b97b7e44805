//! Arguments of `petrel-experiment sealed`.

use std::path::PathBuf;
use std::time::Duration;

use clap::{Args, ValueEnum};
use petrel_command::units::parse_duration;

/// Arguments of `petrel-experiment sealed`.
#[derive(Args, Clone, Debug)]
pub(crate) struct SealedArgs {
    /// Parts to measure; separate several by commas
    #[arg(long, value_enum, value_delimiter = ',')]
    #[arg(default_values = ["cipher", "polling", "calls", "large", "connects", "store", "flood", "quota"])]
    pub(crate) part: Vec<Part>,

    /// Rounds, in which the plain and the sealed side take turns
    #[arg(long, value_name = "N", default_value_t = 5)]
    #[arg(value_parser = clap::value_parser!(u16).range(1..=100))]
    pub(crate) rounds: u16,

    /// Measured time of each side in a round
    #[arg(long, value_name = "DURATION", value_parser = parse_duration, default_value = "1s")]
    pub(crate) duration: Duration,

    /// The command `petrel`, whose benchmarks and servers all parts run but `cipher`, `polling` and `large`
    #[arg(long, value_name = "PROGRAM", default_value = "petrel")]
    pub(crate) petrel: PathBuf,
}

/// A part of the measurement.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum Part {
    /// To seal and to open a burst of datagrams, beside the cipher alone
    Cipher,
    /// Small calls over UDP between two threads that poll
    Polling,
    /// Small calls over UDP between two processes at defaults
    Calls,
    /// Calls of 8 MiB over UDP between two namespaces with jumbo frames; needs root and `ip`
    Large,
    /// Connections with their first call, and the memory of each
    Connects,
    /// Puts into three replicas
    Store,
    /// Honest calls beside 10 000 connections a second that begin a handshake
    Flood,
    /// Honest calls beside another identity that takes more than its share of the server
    Quota,
}

impl Part {
    pub(super) fn name(self) -> &'static str {
        match self {
            Self::Cipher => "cipher",
            Self::Polling => "polling",
            Self::Calls => "calls",
            Self::Large => "large",
            Self::Connects => "connects",
            Self::Store => "store",
            Self::Flood => "flood",
            Self::Quota => "quota",
        }
    }
}
