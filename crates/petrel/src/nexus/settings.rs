//! Settings of a nexus, fixed while it runs.

use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;

use super::channel::Channel;
use super::limits::{CONNECTIONS_MAX, CONNECTIONS_MAX_RANGE, Capacity};
use crate::control::AllowedTransports;
use crate::names;
use crate::nexus::net::is_within_host;
use crate::security::{Authorize, Security, SecurityError};

/// The settings that the reactor follows.
#[derive(Clone, Debug)]
pub(super) struct Settings {
    insecure: bool,
    transports: AllowedTransports,
    heartbeat: Duration,
    step_timeout: Duration,
    incarnation: u64,
    data_ip: Option<IpAddr>,
    connections_max: usize,
    source_share: Option<u8>,
    security: Option<Arc<dyn Security>>,
    authorization: Option<Arc<dyn Authorize>>,
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
            security: None,
            authorization: None,
        }
    }

    /// Sets the credentials of the process.
    pub(super) fn with_security(self, security: Option<Arc<dyn Security>>) -> Self {
        Self { security, ..self }
    }

    /// Sets the decisions about callers.
    pub(super) fn with_authorization(self, authorization: Option<Arc<dyn Authorize>>) -> Self {
        Self { authorization, ..self }
    }

    /// Returns the decisions about callers, if there are any.
    pub(super) fn authorization(&self) -> Option<&Arc<dyn Authorize>> {
        self.authorization.as_ref()
    }

    /// Returns the channel of a connection that a peer has made.
    ///
    /// # Errors
    /// The credentials cannot be used.
    pub(super) fn accepting_channel(&self, remote: SocketAddr) -> Result<Channel, SecurityError> {
        match self.security_with(remote) {
            None => Ok(Channel::default()),
            Some(security) => Ok(Channel::tls(security.accept()?, security.is_permissive())),
        }
    }

    /// Returns the channel of a connection to a peer.
    ///
    /// # Errors
    /// The credentials cannot be used.
    pub(super) fn connecting_channel(&self, remote: SocketAddr) -> Result<Channel, SecurityError> {
        match self.security_with(remote) {
            None => Ok(Channel::default()),
            Some(security) => {
                let name = names::of(remote);
                Ok(Channel::tls(security.connect(remote, name.as_deref())?, false))
            }
        }
    }

    pub(super) fn security(&self) -> Option<&dyn Security> {
        self.security.as_deref()
    }

    /// Returns true if peers may do without TLS although the process has credentials.
    pub(super) fn is_permissive(&self) -> bool {
        self.security.as_ref().is_some_and(|security| security.is_permissive())
    }

    /// Returns the credentials for connections with an address: within this process none are needed.
    fn security_with(&self, remote: SocketAddr) -> Option<&Arc<dyn Security>> {
        self.security.as_ref().filter(|_| !is_within_host(remote))
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
        self.insecure
            || self.security.is_some()
            || remote.ip().is_loopback()
            || is_within_host(remote)
    }

    /// Returns true if frames of the process must not leave its host unencrypted.
    pub(super) fn keeps_to_host(&self) -> bool {
        !self.insecure
    }

    /// Returns the media of the process.
    pub(super) fn transports(&self) -> AllowedTransports {
        self.transports
    }

    pub(super) fn heartbeat(&self) -> Duration {
        self.heartbeat
    }

    /// Returns the time for each step of another process.
    pub(super) fn step_timeout(&self) -> Duration {
        self.step_timeout
    }

    /// Returns the number that distinguishes the process from earlier processes at the address.
    pub(super) fn incarnation(&self) -> u64 {
        self.incarnation
    }
}
