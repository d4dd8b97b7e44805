//! Settings of an endpoint.

use std::net::IpAddr;
use std::str::FromStr;
use std::time::Duration;

use petrel_proto::path::PathPolicy;
use petrel_proto::{Config, Recovery, limits};
use petrel_transport::buf::{HEAD_ROOM_BYTES, LARGEST_BLOCK_BYTES, PoolConfig, TAIL_HEADER_BYTES};
use petrel_transport::host::HostConfig;

#[cfg(feature = "factors")]
use super::burst::Optimisations;
use super::description::ServiceDescription;
use crate::control::{AllowedTransports, EndpointId};
use crate::error::SetupError;
use crate::panics::PanicPolicy;
use crate::values::StreamConfig;

/// Default limit of outstanding calls of clients: far below the capacity of one session's queue, so the limit applies
/// where the request can be returned.
const CLIENT_CALLS_MAX: usize = 4096;

/// Default credits of a session of several paths. 32 were too few for four paths of 10 Gbit/s in the packet model
/// (`docs/paths.md`), and half of the message window is in flight at most.
const PATH_CREDITS_DEFAULT: u16 = limits::WINDOW_PACKETS as u16;

/// How an endpoint waits when it is idle.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum IdlePolicy {
    /// Polls forever: the least latency, and one core.
    Poll,
    /// Polls, but yields to other threads: for several endpoints on a core, whose messages to each other then cost a
    /// switch of threads instead of a wake-up.
    Yield,
    /// Polls for this long after the last event, then sleeps until the next. While polling it yields to other threads,
    /// as long as they return the core: beside a computing thread the endpoint sleeps.
    SpinThenBlock(Duration),
    /// Sleeps at once.
    Block,
}

impl Default for IdlePolicy {
    /// Polls for 100 µs: one to two wake-ups of a virtual machine. A call whose handler calls sleeping servers takes about as long; a
    /// caller asleep by then would make it slower still. Puts of the replicated store have a p99 of 34 µs instead of 63 µs with 20 µs.
    /// Other threads get the core meanwhile.
    fn default() -> Self {
        IdlePolicy::SpinThenBlock(Duration::from_micros(100))
    }
}

impl FromStr for IdlePolicy {
    type Err = SetupError;

    /// Parses `poll`, `yield`, `block`, or `spin` for the default.
    fn from_str(text: &str) -> Result<Self, SetupError> {
        match text {
            "poll" => Ok(Self::Poll),
            "yield" => Ok(Self::Yield),
            "spin" => Ok(Self::default()),
            "block" => Ok(Self::Block),
            _ => Err(SetupError::no_setting(text, "poll, yield, spin or block")),
        }
    }
}

impl FromStr for AllowedTransports {
    type Err = SetupError;

    /// Parses `auto` for all, or some of `udp`, `shm`, `stream` and `verbs` with commas between them.
    fn from_str(text: &str) -> Result<Self, SetupError> {
        if text == "auto" {
            return Ok(Self::ALL);
        }
        let mut allowed = Self { udp: false, shm: false, verbs: false, stream: false };
        for name in text.split(',') {
            match name {
                "udp" => allowed.udp = true,
                "shm" => allowed.shm = true,
                "stream" => allowed.stream = true,
                "verbs" => allowed.verbs = true,
                _ => {
                    let expected =
                        "auto, or some of udp, shm, stream and verbs with commas between,";
                    return Err(SetupError::no_setting(text, expected));
                }
            }
        }
        Ok(allowed)
    }
}

/// Settings of an endpoint. The defaults suit a laptop and a server alike.
///
/// ```
/// use petrel::endpoint::{EndpointConfig, IdlePolicy};
/// use petrel::{Nexus, Server};
///
/// let mut config = EndpointConfig::default();
/// config.idle = IdlePolicy::Block;
/// config.client_calls_max = 16_384;
/// let endpoint = Nexus::builder().start()?.endpoint(config.clone())?;   // on this thread
/// let server = Server::bind("127.0.0.1:0").endpoint(config);            // or on each thread of a server
/// # drop((endpoint, server));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct EndpointConfig {
    /// Number within the process, used by clients to name the endpoint; `None` takes the lowest free number.
    pub id: Option<EndpointId>,
    /// Address of the data port. `None`: the nexus's listening address, else loopback, or any IPv4 address if the nexus
    /// is `insecure`.
    pub data_address: Option<IpAddr>,
    /// Transports allowed for links: all.
    pub transports: AllowedTransports,
    /// Settings of the transports; `data_address` overrides the data port's address.
    pub host: HostConfig,
    /// How to wait when idle: poll for 100 µs, then sleep.
    pub idle: IdlePolicy,
    /// Settings of the protocol common to all sessions: timeouts, retransmissions, limits.
    pub protocol: Config,
    /// Settings of the sessions.
    pub sessions: SessionConfig,
    /// The description for clients that connect: no name, and this endpoint alone.
    pub service: ServiceDescription,
    /// Which panics of handlers and continuations end the event loop: by default, a handler's panic ends its call alone.
    pub panics: PanicPolicy,
    /// Memory for messages: up to 1 GiB, mapped as it is used.
    pub memory: PoolConfig,
    /// Limit of outstanding calls from other threads ([`Client`](crate::Client)), for all clients of the endpoint
    /// together: 4 096.
    pub client_calls_max: usize,
    /// Limits of the streams of typed services.
    pub streams: StreamConfig,
    /// Optimisations that can be switched off, to measure their effect; all are on by default.
    #[cfg(feature = "factors")]
    pub optimisations: Optimisations,
}

/// The values proposed and accepted when sessions are opened.
///
/// ```
/// use petrel::endpoint::EndpointConfig;
///
/// let mut config = EndpointConfig::default();
/// config.sessions.message_bytes_max = 64 << 20; // requests and responses up to 64 MiB
/// config.sessions.slots = 4_096;
/// let endpoint = petrel::Nexus::builder().start()?.endpoint(config)?;
/// # drop(endpoint);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct SessionConfig {
    /// Outstanding requests of a session, including requests that wait for an event; a power of two, 1 to 4 096, and 2
    /// 048 by default. Further calls wait in a queue. Slots take memory once calls have needed them simultaneously: per
    /// slot, 128 bytes at the client and 64 at the server. With 64 slots and more, one is reserved for health queries.
    pub slots: u16,
    /// Packets that a session may have unacknowledged, 1 to 4 096; 64 by default.
    pub credits: u16,
    /// Largest request or response accepted by the endpoint, in bytes; up to 1 GiB, and 8 MiB by default.
    pub message_bytes_max: u32,
    /// Whether other endpoints may open sessions to the endpoint; true by default.
    pub accept: bool,
    /// Whether the servers of the endpoint's sessions may call the endpoint's handlers, on sessions that they open back to it; false by
    /// default. A [`Client`](crate::Client) with [callbacks](crate::client::ClientBuilder::serve) needs no setting.
    pub reverse: bool,
    /// Whether clients of the endpoint's sessions may send requests by multicast, too: the endpoint then listens at the
    /// clients' multicast addresses. True by default.
    pub accept_multicast: bool,
    /// Whether the endpoint's sessions to servers keep an order, for [ordered calls](super::CallBuilder::ordered); false
    /// by default. All calls of such sessions carry 12 bytes more and take a longer path: an endpoint for ordered calls
    /// should make no others. Servers need no setting.
    pub ordered: bool,
    /// How the endpoint's sessions to servers choose among the paths of a link that has several
    /// (`docs/paths.md`); by default they keep to one.
    pub path_policy: PathPolicy,
    /// Packets that a session of several paths may have unacknowledged, in place of `credits`; 1 to 4 096, and 256 by
    /// default: with a path's packets in flight on each of its paths, a session needs more of them.
    pub path_credits: u16,
}

impl Default for SessionConfig {
    fn default() -> Self {
        Self {
            slots: limits::SLOTS_DEFAULT,
            credits: limits::CREDITS_DEFAULT,
            message_bytes_max: limits::MESSAGE_BYTES_DEFAULT,
            accept: true,
            reverse: false,
            accept_multicast: true,
            ordered: false,
            path_policy: PathPolicy::Single,
            path_credits: PATH_CREDITS_DEFAULT,
        }
    }
}

impl Default for EndpointConfig {
    fn default() -> Self {
        Self {
            id: None,
            data_address: None,
            transports: AllowedTransports::ALL,
            host: HostConfig::default(),
            idle: IdlePolicy::default(),
            protocol: Config::default(),
            sessions: SessionConfig::default(),
            service: ServiceDescription::default(),
            panics: PanicPolicy::default(),
            memory: PoolConfig::default(),
            client_calls_max: CLIENT_CALLS_MAX,
            streams: StreamConfig::default(),
            #[cfg(feature = "factors")]
            optimisations: Optimisations::default(),
        }
    }
}

impl EndpointConfig {
    /// Checks the settings; the error is the first violated rule.
    pub(crate) fn check(&self) -> Result<(), &'static str> {
        self.sessions.check()?;
        self.service.check()?;
        self.streams.check()?;
        self.protocol.check()
    }

    /// Returns true if the endpoint's sessions to servers use several paths where a link has them. With go-back-N they
    /// have no evidence of loss by path.
    pub(crate) fn uses_paths(&self) -> bool {
        self.sessions.path_policy != PathPolicy::Single
            && self.protocol.recovery == Recovery::Selective
    }
}

// Every possible message has a block, with the headers of the smallest packets.
const _: () = assert!(
    LARGEST_BLOCK_BYTES
        >= limits::MESSAGE_BYTES_MAX as usize
            + HEAD_ROOM_BYTES
            + limits::MESSAGE_BYTES_MAX.div_ceil(limits::PACKET_BYTES_MIN) as usize
                * TAIL_HEADER_BYTES
);

impl SessionConfig {
    /// Checks the settings; the error is the first violated rule.
    pub(crate) fn check(&self) -> Result<(), &'static str> {
        if !self.slots.is_power_of_two() || self.slots > limits::SLOTS_MAX {
            Err("the slots of a session are a power of two, 1 to 4096")
        } else if [self.credits, self.path_credits]
            .iter()
            .any(|credits| !(1..=limits::CREDITS_MAX).contains(credits))
        {
            Err("the credits of a session are 1 to 4096")
        } else if self.message_bytes_max > limits::MESSAGE_BYTES_MAX {
            Err("the largest message is at most 1 GiB")
        } else {
            Ok(())
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn from_str__takes_the_names_and_says_which_there_are() {
        for (text, policy) in [
            ("poll", IdlePolicy::Poll),
            ("yield", IdlePolicy::Yield),
            ("spin", IdlePolicy::default()),
            ("block", IdlePolicy::Block),
        ] {
            assert_eq!(text.parse::<IdlePolicy>().unwrap(), policy, "{text}");
        }
        for (text, expected) in [
            ("udp", AllowedTransports::UDP),
            ("shm", AllowedTransports::SHM),
            ("stream", AllowedTransports::STREAM),
            ("shm,udp", AllowedTransports { shm: true, ..AllowedTransports::UDP }),
            ("verbs", AllowedTransports::VERBS),
            ("stream,verbs,shm,udp", AllowedTransports::ALL),
            ("auto", AllowedTransports::ALL),
        ] {
            assert_eq!(text.parse::<AllowedTransports>().unwrap(), expected, "{text}");
        }
        let error = "sleep".parse::<IdlePolicy>().unwrap_err();
        assert_eq!(error.to_string(), "\"sleep\": poll, yield, spin or block expected");
        for text in ["", "tcp", "udp,", "udp, shm", "auto,udp"] {
            assert!(text.parse::<AllowedTransports>().is_err(), "{text}");
        }
    }
}
