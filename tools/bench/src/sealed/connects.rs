//! Connections with their first call: the server's CPU time for each, and its memory.

use std::path::Path;
use std::sync::Arc;

use petrel::Nexus;
use petrel::nexus::NexusBuilder;
use petrel_command::args::BenchTransport;
use petrel_command::credentials;
use petrel_command::failure::Failure;
use petrel_tls::Credentials;

use crate::defaults::{connect_anew, connect_by, server_cpu_ns, start_defaults_server};
use crate::sessions::private_bytes;

/// Connections of a round, one after another.
const CONNECTS: u32 = 300;

/// Connections that stay, for their memory.
const KEPT: u32 = 200;

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

/// Returns the connections that a core of the server makes in a second, each with its first call.
pub(super) fn per_second(folder: &Path, handshake: Handshake) -> Result<f64, Failure> {
    let (_server, server) = start(folder, handshake)?;
    let control = connect_by(server, handshake.nexus(folder)?)?;
    let before = server_cpu_ns(&control)?;
    for _ in 0..CONNECTS {
        connect_anew(server, handshake.nexus(folder)?)?;
    }
    let each_ns = (server_cpu_ns(&control)? - before) as f64 / f64::from(CONNECTS);
    Ok(1e9 / each_ns)
}

/// Returns the bytes of a connection with its link and session at the server, and at the client.
pub(super) fn memory(folder: &Path, handshake: Handshake) -> Result<[f64; 2], Failure> {
    let (process, server) = start(folder, handshake)?;
    let pid = process.id().to_string();
    let read = || Ok::<_, Failure>([private_bytes(&pid)?, private_bytes("self")?]);
    let mut kept = vec![connect_anew(server, handshake.nexus(folder)?)?];
    let before = read()?;
    for _ in 0..KEPT {
        kept.push(connect_anew(server, handshake.nexus(folder)?)?);
    }
    let after = read()?;
    Ok([0, 1].map(|side| (after[side] as f64 - before[side] as f64) / f64::from(KEPT)))
}

type Server = (crate::measure::process::Process, (std::net::SocketAddr, BenchTransport));

fn start(folder: &Path, handshake: Handshake) -> Result<Server, Failure> {
    let credentials = (handshake != Handshake::None).then_some(folder);
    let (process, address) = start_defaults_server(credentials)?;
    Ok((process, (address, BenchTransport::Udp)))
}
