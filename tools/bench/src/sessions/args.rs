//! Arguments of `petrel bench sessions`, and of the process that it starts.

use clap::Args;
use petrel_command::args::{BenchTransport, ServerAddress};

use crate::args::{CallsArgs, WindowArgs};

/// Arguments of `petrel bench sessions`.
#[derive(Args, Debug)]
pub(crate) struct SessionsArgs {
    /// Transports to measure, in turn; separate several by commas
    #[arg(long, value_enum, value_delimiter = ',', default_values = ["udp", "shm"])]
    pub(crate) transport: Vec<BenchTransport>,

    /// Most sessions between the two ends; smaller numbers are measured first
    #[arg(long, value_name = "N", default_value_t = 20_000)]
    #[arg(value_parser = parse_sessions)]
    pub(crate) sessions: usize,

    #[command(flatten)]
    pub(crate) calls: CallsArgs,

    /// 2: a thread and a CPU per end; 1: the ends share a thread, which repeats better
    #[arg(long, value_name = "1|2", default_value_t = 2)]
    #[arg(value_parser = clap::value_parser!(u8).range(1..=2))]
    pub(crate) cores: u8,

    #[command(flatten)]
    pub(crate) windows: WindowArgs,
}

/// Arguments of the client's process that `petrel bench sessions` starts.
#[derive(Args, Debug)]
pub(crate) struct IdleArgs {
    /// The server's control address
    #[arg(long, value_name = "ADDR")]
    pub(crate) connect: ServerAddress,

    /// The server's process id, on this host
    #[arg(long, value_name = "PID")]
    pub(crate) server_pid: u32,

    /// How many sessions to open
    #[arg(long, value_name = "N", value_parser = parse_sessions)]
    pub(crate) sessions: usize,

    /// Transport to use
    #[arg(long, value_enum)]
    pub(crate) transport: BenchTransport,
}

/// Parses a number of sessions, up to the maximum that a connection may propose at once.
pub(crate) fn parse_sessions(text: &str) -> Result<usize, String> {
    match text.parse() {
        Ok(count @ 1..=65_000) => Ok(count),
        _ => Err(format!("'{text}' is not a number of sessions: write one from 1 to 65000")),
    }
}
