//! What can be set about an endpoint.

use std::net::IpAddr;
use std::str::FromStr;
use std::time::Duration;

use petrel_proto::{Config, limits};
use petrel_transport::buf::{HEAD_ROOM_BYTES, LARGEST_BLOCK_BYTES, PoolConfig, TAIL_HEADER_BYTES};
use petrel_transport::host::HostConfig;

use super::factors::Factors;
use crate::control::{AllowedTransports, EndpointId};
use crate::error::SetupError;

/// Calls of client handles on their way, unless set: far below what one session's queue holds, so that
/// the limit is met where the request can be given back.
const CLIENT_CALLS_MAX: usize = 4096;

/// What an endpoint does when it has nothing to do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum IdlePolicy {
    /// Looks again at once, for ever: the least latency, and one core.
    Poll,
    /// Looks again, but lets others who want the core run first: for several endpoints on one core, whose
    /// messages to each other then take a switch of threads instead of a wake-up.
    Yield,
    /// Looks again for this long after the last event, then sleeps until something comes. While it looks it lets
    /// others who want the core run first, as far as they give it back: beside a thread that computes it sleeps.
    SpinThenBlock(Duration),
    /// Sleeps at once.
    Block,
}

impl Default for IdlePolicy {
    /// Looks for 100 µs: one to two wake-ups of a virtual machine. Where a call has further calls behind it, whose
    /// servers sleep, it takes about as long, and an endpoint that slept by then would keep all of them slow: puts
    /// of the replicated store have a p99 of 34 µs instead of 63 µs with 20 µs. Others get the core meanwhile.
    fn default() -> Self {
        IdlePolicy::SpinThenBlock(Duration::from_micros(100))
    }
}

impl FromStr for IdlePolicy {
    type Err = SetupError;

    /// `poll`, `yield`, `block`, or `spin` for the default.
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

    /// `udp`, `shm`, or both with a comma between them.
    fn from_str(text: &str) -> Result<Self, SetupError> {
        let mut allowed = Self { udp: false, shm: false };
        for name in text.split(',') {
            match name {
                "udp" => allowed.udp = true,
                "shm" => allowed.shm = true,
                _ => return Err(SetupError::no_setting(text, "udp, shm or udp,shm")),
            }
        }
        Ok(allowed)
    }
}

/// What can be set about an endpoint. The defaults suit a laptop and a server alike.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct EndpointConfig {
    /// Number within the process, by which clients name it; `None` takes the lowest free one.
    pub id: Option<EndpointId>,
    /// Address of the data port. `None`: the address that the nexus listens on, else loopback, or
    /// any IPv4 address if the nexus is `insecure`.
    pub data_address: Option<IpAddr>,
    /// Transports that links may use: UDP, and shared memory between processes of one host.
    pub transports: AllowedTransports,
    /// Settings of the transports; the data port's address is overwritten by `data_address`.
    pub host: HostConfig,
    /// What to do when there is nothing to do: look for 100 µs, then sleep.
    pub idle: IdlePolicy,
    /// Settings of the protocol that all sessions share: timeouts, retransmissions, limits.
    pub protocol: Config,
    /// Settings of the sessions.
    pub sessions: SessionConfig,
    /// Memory for messages: up to 1 GiB, of which only what is used is mapped.
    pub memory: PoolConfig,
    /// Calls that handles for other threads ([`Client`](crate::Client)) may have on their way, all of
    /// the endpoint's together: 4 096.
    pub client_calls_max: usize,
    /// Optimisations that can be switched off, to measure what they are worth; all are on by default.
    pub factors: Factors,
}

/// What is proposed and accepted when sessions are opened.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct SessionConfig {
    /// Requests that a session has on the way at once, those that wait for an event among them; a power of
    /// two, 1 to 4 096, and 2 048 by default. Further calls wait in a queue. Slots take memory when
    /// calls have needed as many at once: 128 bytes each at the client, 64 at the server. With 64 and more one is
    /// kept for requests for the endpoint's health.
    pub slots: u16,
    /// Packets that a session may have unacknowledged, 1 to 4 096; 64 by default.
    pub credits: u16,
    /// Largest message that this endpoint takes, as request or as response, in bytes; up to
    /// 1 GiB, and 8 MiB by default.
    pub message_bytes_max: u32,
    /// Whether others may open sessions to this endpoint; so by default.
    pub accept: bool,
    /// Whether the clients of those may send requests by multicast, too: this endpoint listens at the
    /// addresses that they name then. So by default.
    pub accept_multicast: bool,
}

impl Default for SessionConfig {
    fn default() -> Self {
        Self {
            slots: limits::SLOTS_DEFAULT,
            credits: limits::CREDITS_DEFAULT,
            message_bytes_max: limits::MESSAGE_BYTES_DEFAULT,
            accept: true,
            accept_multicast: true,
        }
    }
}

impl Default for EndpointConfig {
    fn default() -> Self {
        Self {
            id: None,
            data_address: None,
            transports: AllowedTransports { udp: true, shm: true },
            host: HostConfig::default(),
            idle: IdlePolicy::default(),
            protocol: Config::default(),
            sessions: SessionConfig::default(),
            memory: PoolConfig::default(),
            client_calls_max: CLIENT_CALLS_MAX,
            factors: Factors::default(),
        }
    }
}

impl EndpointConfig {
    /// The first rule that the settings break.
    pub(crate) fn check(&self) -> Result<(), &'static str> {
        self.sessions.check()?;
        self.protocol.check()
    }
}

// Every message that can be agreed on has a block, with the headers of the smallest packets.
const _: () = assert!(
    LARGEST_BLOCK_BYTES
        >= limits::MESSAGE_BYTES_MAX as usize
            + HEAD_ROOM_BYTES
            + limits::MESSAGE_BYTES_MAX.div_ceil(limits::PACKET_BYTES_MIN) as usize
                * TAIL_HEADER_BYTES
);

impl SessionConfig {
    /// The first rule that the settings break.
    pub(crate) fn check(&self) -> Result<(), &'static str> {
        if !self.slots.is_power_of_two() || self.slots > limits::SLOTS_MAX {
            Err("the slots of a session are a power of two, 1 to 4096")
        } else if !(1..=limits::CREDITS_MAX).contains(&self.credits) {
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
        for (text, udp, shm) in
            [("udp", true, false), ("shm", false, true), ("shm,udp", true, true)]
        {
            let allowed: AllowedTransports = text.parse().unwrap();
            assert_eq!(allowed, AllowedTransports { udp, shm }, "{text}");
        }
        let error = "sleep".parse::<IdlePolicy>().unwrap_err();
        assert_eq!(error.to_string(), "\"sleep\": poll, yield, spin or block expected");
        for text in ["", "tcp", "udp,", "udp, shm"] {
            assert!(text.parse::<AllowedTransports>().is_err(), "{text}");
        }
    }
}
