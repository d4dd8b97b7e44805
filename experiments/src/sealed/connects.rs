//! Connections with their first call: the CPU time of the server for each, and the server's memory.
//!
//! A figure is the number of connections divided by the CPU time of the server's process, of all threads: the connections that a core of a busy
//! server takes in a second. Clients of this process connect, four at a time, make a call and go. The server sleeps when nothing is to do: at
//! defaults an endpoint polls for 100 µs after each event, and beside so few clients this would be most of the CPU time.

use std::net::SocketAddr;
use std::path::Path;
use std::process::Command;
use std::sync::Arc;
use std::thread;

use petrel::Nexus;
use petrel::nexus::NexusBuilder;
use petrel_command::args::BenchTransport;
use petrel_command::credentials;
use petrel_command::failure::Failure;
use petrel_tls::Credentials;
use serde::Deserialize;

use petrel_bench::attacks::{MANAGEMENT, threads_ns};
use petrel_bench::defaults::connect_anew;
use petrel_bench::measure::process::{Process, parse};
use petrel_bench::sessions::private_bytes;

/// Connections of a round, and those at a time: fewer than the tickets that a process keeps of a server.
const CONNECTS: u32 = 400;
const CLIENTS: u32 = 4;

/// Connections that stay, for their memory, and those before, for which tables and the allocator have grown.
const KEPT: u32 = 200;
const WARM: u32 = 20;

/// How the clients of a server prove who they are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Handshake {
    /// There is no TLS.
    None,
    /// Each client is a process without a ticket.
    Full,
    /// The clients share the tickets of a process.
    Resumed,
}

impl Handshake {
    /// Returns a new client's control plane.
    fn nexus(self, folder: &Path) -> Result<NexusBuilder, Failure> {
        Ok(match self {
            Self::None => Nexus::builder(),
            Self::Full => Nexus::builder().credentials(Arc::new(Credentials::from_dir(folder)?)),
            Self::Resumed => credentials::apply(Nexus::builder(), false),
        })
    }
}

/// Connections that a core of the server takes in a second: TCP, the handshake, HELLO, a link, a session and a call, and the end of all.
#[derive(Clone, Copy, Debug)]
pub(super) struct PerSecond {
    /// By the CPU time of the whole process.
    pub(super) process: f64,
    /// By the CPU time of the control plane's thread alone.
    pub(super) control_plane: f64,
}

pub(super) fn per_second(
    petrel: &Path,
    folder: &Path,
    handshake: Handshake,
) -> Result<PerSecond, Failure> {
    let (process, server) = start(petrel, folder, handshake)?;
    let spent = || {
        let threads = threads_ns(process.id());
        let threads = threads.ok_or_else(|| Failure::because("no CPU time"))?;
        let sum = |of: fn(&str) -> bool| -> u64 {
            threads.iter().filter(|(name, _)| of(name)).map(|(_, ns)| ns).sum()
        };
        Ok::<_, Failure>([sum(|_| true), sum(|name| name == MANAGEMENT)])
    };
    let connect = || connect_anew(server, handshake.nexus(folder)?).map(drop);
    // The first connection has no ticket, and each brings two.
    (0..2 * CLIENTS).try_for_each(|_| connect())?;
    let before = spent()?;
    thread::scope(|scope| {
        let client = || (0..CONNECTS / CLIENTS).try_for_each(|_| connect());
        let clients: Vec<_> = (0..CLIENTS).map(|_| scope.spawn(client)).collect();
        let mut ended = clients.into_iter().map(|client| client.join());
        ended.try_for_each(|end| end.unwrap_or_else(|_| Err(Failure::because("a client panicked"))))
    })?;
    let after = spent()?;
    let rate = |at: usize| 1e9 * f64::from(CONNECTS) / (after[at] - before[at]) as f64;
    Ok(PerSecond { process: rate(0), control_plane: rate(1) })
}

/// Returns the bytes of a connection with its link and session at the server.
pub(super) fn memory(petrel: &Path, folder: &Path, handshake: Handshake) -> Result<f64, Failure> {
    let (process, server) = start(petrel, folder, handshake)?;
    let pid = process.id().to_string();
    let connect = |_| connect_anew(server, handshake.nexus(folder)?);
    let _warm = (0..WARM).map(connect).collect::<Result<Vec<_>, Failure>>()?;
    let before = private_bytes(&pid)?;
    let _kept = (0..KEPT).map(connect).collect::<Result<Vec<_>, Failure>>()?;
    Ok((private_bytes(&pid)? as f64 - before as f64) / f64::from(KEPT))
}

type Server = (Process, (SocketAddr, BenchTransport));

/// The record that a server prints when it listens.
#[derive(Deserialize)]
struct Ready {
    address: SocketAddr,
}

/// Starts a server at defaults that sleeps when nothing is to do.
fn start(petrel: &Path, folder: &Path, handshake: Handshake) -> Result<Server, Failure> {
    let credentials = (handshake != Handshake::None).then_some(folder);
    let mut command = Command::new(petrel);
    command.args(["bench", "defaults-server", "--json", "--block"]);
    command.env_remove("PETREL_CREDENTIALS");
    command.envs(credentials.map(|folder| ("PETREL_CREDENTIALS", folder)));
    let mut process = Process::spawn(&mut command)?;
    let Ready { address } = parse(&process.line()?)?;
    Ok((process, (address, BenchTransport::Udp)))
}
