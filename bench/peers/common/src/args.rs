//! The command line of every peer.

use std::path::PathBuf;
use std::time::Duration;

use clap::{Args, Parser, ValueEnum};

use crate::content::{BULK_BYTES, SMALL_BYTES};

/// The server or the client of a peer's measurement.
#[derive(Parser, Debug)]
#[command(version, about)]
pub enum Role {
    /// Serves until it is killed; prints `ready ADDRESS` first.
    Server(ServerArgs),
    /// Runs a window and prints the result as a line of JSON.
    Client(ClientArgs),
}

/// The arguments of a server.
#[derive(Args, Clone, Debug)]
pub struct ServerArgs {
    /// Variant: the way of using the library.
    #[arg(long)]
    pub variant: String,
    /// The CPU for all threads.
    #[arg(long)]
    pub cpu: usize,
    /// Real-time priority, round robin; none if 0.
    #[arg(long, default_value_t = 0)]
    pub priority: u8,
    /// A directory in memory for this server alone, for libraries that store files; the process that
    /// starts the server removes the directory.
    #[arg(long)]
    pub scratch: PathBuf,
}

/// The arguments of a client.
#[derive(Args, Clone, Debug)]
pub struct ClientArgs {
    /// Variant: the way of using the library.
    #[arg(long)]
    pub variant: String,
    /// The CPU for all threads.
    #[arg(long)]
    pub cpu: usize,
    /// Real-time priority, round robin; none if 0.
    #[arg(long, default_value_t = 0)]
    pub priority: u8,
    /// The address that the server printed.
    #[arg(long)]
    pub address: String,
    /// The calls to measure.
    #[command(flatten)]
    pub plan: Plan,
}

/// A window: its calls, their number in flight, and its duration.
#[derive(Args, Clone, Copy, Debug)]
pub struct Plan {
    /// The workload of the calls.
    #[arg(long)]
    pub workload: Workload,
    /// Calls in flight at a time.
    #[arg(long, default_value_t = 1)]
    pub in_flight: usize,
    /// Duration of the uncounted calls at the beginning, in milliseconds.
    #[arg(long, default_value_t = 200)]
    pub warmup_ms: u64,
    /// Duration of the counted calls, in milliseconds.
    #[arg(long, default_value_t = 800)]
    pub window_ms: u64,
}

/// The workload of a window's calls.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Workload {
    /// Requests of 32 bytes; the reply is the request.
    Echo,
    /// Requests of 8 MiB; the reply is a proof of 32 bytes.
    Bulk,
}

impl Role {
    /// Returns the CPU to stay on.
    pub fn cpu(&self) -> usize {
        match self {
            Self::Server(args) => args.cpu,
            Self::Client(args) => args.cpu,
        }
    }

    /// Returns the real-time priority.
    pub fn priority(&self) -> u8 {
        match self {
            Self::Server(args) => args.priority,
            Self::Client(args) => args.priority,
        }
    }
}

impl Workload {
    /// Returns the size of the requests.
    pub fn request_bytes(self) -> usize {
        match self {
            Self::Echo => SMALL_BYTES,
            Self::Bulk => BULK_BYTES,
        }
    }
}

impl Plan {
    /// Returns the duration of the uncounted calls.
    pub fn warmup(&self) -> Duration {
        Duration::from_millis(self.warmup_ms)
    }

    /// Returns the duration of the counted calls.
    pub fn window(&self) -> Duration {
        Duration::from_millis(self.window_ms)
    }
}

/// Reads the command line; ends the program with a message if it is wrong.
pub(crate) fn parse() -> Role {
    Role::parse()
}

/// Returns the error for an unknown variant.
pub fn unknown(variant: &str) -> crate::Failure {
    format!("this peer has no variant {variant}").into()
}
