//! Settings of a nexus, fixed while it runs.

use std::net::{IpAddr, SocketAddr};
use std::time::Duration;

use super::limits::{CONNECTIONS_MAX, CONNECTIONS_MAX_RANGE, Capacity};
use crate::control::AllowedTransports;
use crate::nexus::net::is_within_host;

/// The settings that the reactor follows.
#[derive(Clone, Copy, Debug)]
pub(super) struct Settings {
    insecure: bool,
    transports: AllowedTransports,
    heartbeat: Duration,
    step_timeout: Duration,
    incarnation: u64,
    data_ip: Option<IpAddr>,
    connections_max: usize,
    source_share: Option<u8>,
}

impl Settings {
    /// The settings of a process that is distinguished from others by `incarnation`.
    pub(super) fn new(
        insecure: bool,
        transports: AllowedTransports,
        (heartbeat, step_timeout): (Duration, Duration),
        incarnation: u64,
    ) -> Self {
        assert!(incarnation != 0, "peers do not know a process without a number");
        assert!(!heartbeat.is_zero(), "the builder has checked the interval of heartbeats");
        let (data_ip, connections_max, source_share) = (None, CONNECTIONS_MAX, None);
        Self {
            insecure,
            transports,
            heartbeat,
            step_timeout,
            incarnation,
            data_ip,
            connections_max,
            source_share,
        }
    }

    /// Names the address to which peers send datagrams.
    pub(super) fn with_data_ip(self, data_ip: Option<IpAddr>) -> Self {
        Self { data_ip, ..self }
    }

    /// Allows another number of accepted connections.
    pub(super) fn with_connections_max(self, connections_max: usize) -> Self {
        assert!(CONNECTIONS_MAX_RANGE.contains(&connections_max), "the builder has checked it");
        Self { connections_max, ..self }
    }

    /// Sets the share of a source, in per cent, if given.
    pub(super) fn with_source_share(self, source_share: Option<u8>) -> Self {
        Self { source_share, ..self }
    }

    /// Returns the limits of connections, by the limit of descriptors, `None` if unlimited.
    pub(super) fn capacity(&self, descriptors_max: Option<u64>) -> Capacity {
        let capacity = Capacity::of(self.connections_max, descriptors_max);
        self.source_share.map_or(capacity, |percent| capacity.with_source_share(percent))
    }

    /// Returns the address to which peers send datagrams, if not to the address of their connection's end.
    pub(super) fn data_ip(&self) -> Option<IpAddr> {
        self.data_ip
    }

    /// Returns true if the process may connect to this address.
    pub(super) fn may_connect_to(&self, remote: SocketAddr) -> bool {
        self.insecure || remote.ip().is_loopback() || is_within_host(remote)
    }

    /// Returns the media of the process.
    pub(super) fn transports(&self) -> AllowedTransports {
        self.transports
    }

    /// Returns the interval of heartbeats.
    pub(super) fn heartbeat(&self) -> Duration {
        self.heartbeat
    }

    /// Returns the time for each step of another process.
    pub(super) fn step_timeout(&self) -> Duration {
        self.step_timeout
    }

    /// Returns the number that distinguishes the process from others at its address.
    pub(super) fn incarnation(&self) -> u64 {
        self.incarnation
    }
}
