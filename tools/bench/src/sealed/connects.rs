//! Connections with their first call: the CPU time of the server's control plane for each, and the server's memory.

use std::net::SocketAddr;
use std::path::Path;
use std::sync::Arc;

use petrel::Nexus;
use petrel::nexus::NexusBuilder;
use petrel_command::args::BenchTransport;
use petrel_command::credentials;
use petrel_command::failure::Failure;
use petrel_tls::Credentials;

use crate::attacks::management_ns;
use crate::defaults::{connect_anew, start_defaults_server};
use crate::measure::process::Process;
use crate::sessions::private_bytes;

/// Connections of a round, one after another.
const CONNECTS: u32 = 300;

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

/// Returns the connections that a core makes in a second at the server's control plane: TCP, the handshake, HELLO, a link and a session, and
/// the end of all.
pub(super) fn per_second(folder: &Path, handshake: Handshake) -> Result<f64, Failure> {
    let (process, server) = start(folder, handshake)?;
    let spent = || management_ns(process.id()).ok_or_else(|| Failure::because("no CPU time"));
    // The first connection has no ticket.
    connect_anew(server, handshake.nexus(folder)?)?;
    let before = spent()?;
    for _ in 0..CONNECTS {
        connect_anew(server, handshake.nexus(folder)?)?;
    }
    Ok(1e9 * f64::from(CONNECTS) / (spent()? - before) as f64)
}

/// Returns the bytes of a connection with its link and session at the server.
pub(super) fn memory(folder: &Path, handshake: Handshake) -> Result<f64, Failure> {
    let (process, server) = start(folder, handshake)?;
    let pid = process.id().to_string();
    let connect = |_| connect_anew(server, handshake.nexus(folder)?);
    let _warm = (0..WARM).map(connect).collect::<Result<Vec<_>, Failure>>()?;
    let before = private_bytes(&pid)?;
    let _kept = (0..KEPT).map(connect).collect::<Result<Vec<_>, Failure>>()?;
    Ok((private_bytes(&pid)? as f64 - before as f64) / f64::from(KEPT))
}

type Server = (Process, (SocketAddr, BenchTransport));

fn start(folder: &Path, handshake: Handshake) -> Result<Server, Failure> {
    let credentials = (handshake != Handshake::None).then_some(folder);
    let (process, address) = start_defaults_server(credentials)?;
    Ok((process, (address, BenchTransport::Udp)))
}
