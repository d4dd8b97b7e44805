//! The command line of every peer.

use std::path::PathBuf;
use std::time::Duration;

use clap::{Args, Parser, ValueEnum};

use crate::content::{BULK_BYTES, SMALL_BYTES};

/// One end of a measurement of one peer.
#[derive(Parser, Debug)]
#[command(version, about)]
pub enum Role {
    /// Serves until it is killed; prints `ready ADDRESS` first.
    Server(ServerArgs),
    /// Runs one window and prints its result as a line of JSON.
    Client(ClientArgs),
}

/// What a server is told.
#[derive(Args, Clone, Debug)]
pub struct ServerArgs {
    /// Which way of using the library.
    #[arg(long)]
    pub variant: String,
    /// The CPU for all threads.
    #[arg(long)]
    pub cpu: usize,
    /// Real-time priority, round robin; none if 0.
    #[arg(long, default_value_t = 0)]
    pub priority: u8,
    /// A directory in memory for this server alone, for libraries that keep files; whoever starts
    /// the server removes it.
    #[arg(long)]
    pub scratch: PathBuf,
}

/// What a client is told.
#[derive(Args, Clone, Debug)]
pub struct ClientArgs {
    /// Which way of using the library.
    #[arg(long)]
    pub variant: String,
    /// The CPU for all threads.
    #[arg(long)]
    pub cpu: usize,
    /// Real-time priority, round robin; none if 0.
    #[arg(long, default_value_t = 0)]
    pub priority: u8,
    /// What the server printed.
    #[arg(long)]
    pub address: String,
    /// What to measure.
    #[command(flatten)]
    pub plan: Plan,
}

/// A window: what is called, how often at a time, and for how long.
#[derive(Args, Clone, Copy, Debug)]
pub struct Plan {
    /// What the calls do.
    #[arg(long)]
    pub workload: Workload,
    /// Calls in flight at a time.
    #[arg(long, default_value_t = 1)]
    pub in_flight: usize,
    /// Calls before they count, in milliseconds.
    #[arg(long, default_value_t = 200)]
    pub warmup_ms: u64,
    /// How long calls count, in milliseconds.
    #[arg(long, default_value_t = 800)]
    pub window_ms: u64,
}

/// What the calls of a window do.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Workload {
    /// 32 bytes go and come back.
    Echo,
    /// 8 MiB go, 32 bytes that prove it come back.
    Bulk,
}

impl Role {
    /// The CPU that it shall stay on.
    pub fn cpu(&self) -> usize {
        match self {
            Self::Server(args) => args.cpu,
            Self::Client(args) => args.cpu,
        }
    }

    /// The real-time priority that it shall have.
    pub fn priority(&self) -> u8 {
        match self {
            Self::Server(args) => args.priority,
            Self::Client(args) => args.priority,
        }
    }
}

impl Workload {
    /// Size of the requests.
    pub fn request_bytes(self) -> usize {
        match self {
            Self::Echo => SMALL_BYTES,
            Self::Bulk => BULK_BYTES,
        }
    }
}

impl Plan {
    /// Calls before they count.
    pub fn warmup(&self) -> Duration {
        Duration::from_millis(self.warmup_ms)
    }

    /// How long calls count.
    pub fn window(&self) -> Duration {
        Duration::from_millis(self.window_ms)
    }
}

/// Reads the command line; ends the program with a message if it is wrong.
pub(crate) fn parse() -> Role {
    Role::parse()
}

/// Says that the peer has no such variant.
pub fn unknown(variant: &str) -> crate::Failure {
    format!("this peer has no variant {variant}").into()
}
