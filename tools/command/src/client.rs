//! A client's end: an endpoint of its own nexus, with sessions to a server; and clients of services.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::time::{Duration, Instant};

use petrel::client::Background;
use petrel::endpoint::{AllowedTransports, EndpointId, Reason};
use petrel::endpoint::{EndpointConfig, IdlePolicy, SessionId, SessionState};
use petrel::{Endpoint, Nexus, Status};
use petrel_proto::limits::{CREDITS_DEFAULT, MESSAGE_BYTES_DEFAULT, WINDOW_PACKETS};
use petrel_transport::Transport;

use crate::args::ServerAddress;
use crate::credentials;
use crate::failure::Failure;

/// How long the event loop runs between two checks of the clock and of the session's state.
const SLICE: Duration = Duration::from_millis(1);

/// Memory for messages in bytes, mapped on demand: 64 requests of 8 MiB in flight, and their responses,
/// twice.
const MEMORY_BYTES_MAX: usize = 2 << 30;

/// Concurrent calls of the largest size that memory is sized for.
const LARGE_CALLS_MAX: usize = 4;

/// Parameters of a client.
#[derive(Clone, Copy, Debug)]
pub struct ClientConfig {
    /// Number of the server's endpoint.
    pub endpoint: u16,
    /// Transports that the session may use.
    pub transports: AllowedTransports,
    /// Calls in flight at a time.
    pub in_flight: u16,
    /// How long to wait for the connection.
    pub timeout: Duration,
    /// The event loop's policy without work.
    pub idle: IdlePolicy,
    /// Largest message, as request and as response.
    pub message_bytes_max: u32,
}

impl ClientConfig {
    /// Describes a client with one call in flight and messages of the default size.
    pub fn new(endpoint: u16, transports: AllowedTransports, timeout: Duration) -> Self {
        let (idle, message_bytes_max) = (IdlePolicy::default(), MESSAGE_BYTES_DEFAULT);
        Self { endpoint, transports, in_flight: 1, timeout, idle, message_bytes_max }
    }
}

/// An endpoint with one or more sessions to a server, and with the state of its calls.
pub struct Client<S: 'static = ()> {
    /// The endpoint.
    pub endpoint: Endpoint<S>,
    /// Its sessions to the server, all open.
    pub sessions: Vec<SessionId>,
    /// The address at which the server answered.
    pub address: SocketAddr,
}

impl<S: Default + 'static> Client<S> {
    /// Connects to the first address of the server that answers.
    pub fn connect(server: &ServerAddress, config: &ClientConfig) -> Result<Self, Failure> {
        server.first_that(|address| Self::connect_to(address, config))
    }

    /// Connects to a server.
    pub fn connect_to(address: SocketAddr, config: &ClientConfig) -> Result<Self, Failure> {
        let builder =
            Nexus::builder().transports(config.transports).connect_timeout(config.timeout);
        // Naming another host expresses the wish to call it; no host can call this process through
        // the session.
        let is_far = !address.ip().to_canonical().is_loopback();
        let nexus = credentials::apply(builder, is_far).start()?;
        let endpoint = nexus.endpoint_with(endpoint_config(address, config), S::default());
        let endpoint = endpoint.map_err(Failure::because)?;
        let mut client = Self { endpoint, sessions: Vec::new(), address };
        for _ in 0..config.in_flight.div_ceil(CALLS_PER_SESSION) {
            let id = client.endpoint.connect_to(address, EndpointId(config.endpoint))?;
            client.sessions.push(id);
        }
        let turn = |endpoint: &mut Endpoint<S>| _ = endpoint.run_for(SLICE, |_, _| false);
        wait_until_open(&mut client.endpoint, &client.sessions, address, config.timeout, turn)?;
        Ok(client)
    }

    /// Returns the transport that the sessions use.
    pub fn transport(&self) -> &'static str {
        let peer = self.endpoint.session_peer_id(self.sessions[0]);
        peer.map_or("udp", |peer| self.endpoint.transport().medium_of(peer))
    }

    /// Returns the largest payload of one packet, as agreed; `None` once the session has ended.
    pub fn packet_bytes(&self) -> Option<u32> {
        Some(self.endpoint.core().agreed(self.sessions[0])?.packet_bytes)
    }

    /// Returns the number of retransmitted packets so far.
    pub fn retransmissions(&self) -> u64 {
        self.endpoint.stats().protocol.packets_retransmitted
    }
}

/// Connects to a service at the server's first address that answers, by a client with a separate thread.
/// Connecting may take as long as a call.
pub fn connect_service(
    server: &ServerAddress,
    endpoint: u16,
    transports: AllowedTransports,
    config: &petrel::client::ClientConfig,
) -> Result<petrel::Client, Failure> {
    server.first_that(|address| {
        // As in `Client::connect_to`: naming another host expresses the wish to call it.
        let is_far = !address.ip().to_canonical().is_loopback();
        let nexus = Nexus::builder().connect_timeout(config.timeout);
        let nexus = credentials::apply(nexus, is_far);
        let mut own = EndpointConfig::default();
        own.transports = transports;
        let background = Background::builder().nexus(nexus).endpoint(own).start()?;
        let client = petrel::Client::builder().config(config.clone()).background(&background);
        Ok(client.connect_wait((address, EndpointId(endpoint)))?)
    })
}

/// Runs turns of an endpoint until sessions to a server are open.
///
/// # Errors
/// The server's refusal, or none within the time limit.
pub fn wait_until_open<S: 'static>(
    endpoint: &mut Endpoint<S>,
    sessions: &[SessionId],
    server: SocketAddr,
    timeout: Duration,
    mut turn: impl FnMut(&mut Endpoint<S>),
) -> Result<(), Failure> {
    let end = Instant::now() + timeout;
    for &session in sessions {
        loop {
            match endpoint.session_state(session) {
                SessionState::Open | SessionState::Draining => break,
                SessionState::Ended(reason) => {
                    let ended = || Reason::new(Status::Unknown, "the session ended");
                    let Reason { status, message, .. } = reason.unwrap_or_else(ended);
                    let text = format!("cannot connect to {server}: {message}");
                    return Err(Failure::new(status, text));
                }
                SessionState::Opening if Instant::now() >= end => {
                    let text = format!("cannot connect to {server}: no answer within {timeout:?}");
                    return Err(Failure::new(Status::DeadlineExceeded, text));
                }
                SessionState::Opening => turn(endpoint),
            }
        }
    }
    Ok(())
}

fn endpoint_config(address: SocketAddr, config: &ClientConfig) -> EndpointConfig {
    let mut endpoint = EndpointConfig::default();
    endpoint.data_address = Some(data_address(address.ip()));
    endpoint.transports = config.transports;
    endpoint.idle = config.idle;
    endpoint.sessions.message_bytes_max = config.message_bytes_max;
    endpoint.memory.max_bytes = memory_bytes_max(config);
    endpoint.sessions.accept = false;
    endpoint.sessions.credits = credits(config.in_flight);
    endpoint
}

/// The memory limit: room for a request and a response of the largest size per call, twice, because
/// blocks may be larger than their contents. At least `MEMORY_BYTES_MAX`.
fn memory_bytes_max(config: &ClientConfig) -> usize {
    let calls = usize::from(config.in_flight);
    MEMORY_BYTES_MAX.max(4 * config.message_bytes_max as usize * calls.min(LARGE_CALLS_MAX))
}

/// Returns the local data address: of the server's family, and on loopback only if the server is.
pub fn data_address(server: IpAddr) -> IpAddr {
    match (server.to_canonical(), server.to_canonical().is_loopback()) {
        (IpAddr::V4(_), true) => Ipv4Addr::LOCALHOST.into(),
        (IpAddr::V4(_), false) => Ipv4Addr::UNSPECIFIED.into(),
        (IpAddr::V6(_), true) => Ipv6Addr::LOCALHOST.into(),
        (IpAddr::V6(_), false) => Ipv6Addr::UNSPECIFIED.into(),
    }
}

/// Calls in flight per session: with more, a session would have fewer credits than calls.
const CALLS_PER_SESSION: u16 = WINDOW_PACKETS as u16;

/// Returns a credit per call of one packet, and at least the default.
fn credits(in_flight: u16) -> u16 {
    in_flight.clamp(CREDITS_DEFAULT, WINDOW_PACKETS as u16)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn data_address__follows_the_servers_family_and_reach() {
        for (server, data) in [
            ("127.0.0.1", "127.0.0.1"),
            ("::1", "::1"),
            ("10.0.0.7", "0.0.0.0"),
            ("2001:db8::7", "::"),
            ("::ffff:127.0.0.1", "127.0.0.1"),
        ] {
            assert_eq!(data_address(server.parse().unwrap()).to_string(), data, "{server}");
        }
    }

    #[test]
    fn credits__are_for_all_calls_of_a_session() {
        assert_eq!([credits(1), credits(65), credits(4096)], [64, 65, 256]);
    }
}
