//! Requests of endpoints for links.

use std::net::SocketAddr;
use std::time::Instant;

use crate::control::{AllowedTransports, EndpointId};
use crate::nexus::media::without;

/// An endpoint's request for a link.
#[derive(Clone, Debug)]
pub(super) struct OpenRequest {
    endpoint: EndpointId,
    request: u64,
    remote: SocketAddr,
    remote_endpoint: EndpointId,
    transports: AllowedTransports,
    reverse: bool,
    give_up_at: Instant,
}

impl OpenRequest {
    /// A request with an endpoint's number of it, for a link to an endpoint of another process.
    pub(super) fn new(
        (endpoint, request): (EndpointId, u64),
        (remote, remote_endpoint): (SocketAddr, EndpointId),
        (transports, reverse): (AllowedTransports, bool),
        give_up_at: Instant,
    ) -> Self {
        Self { endpoint, request, remote, remote_endpoint, transports, reverse, give_up_at }
    }

    /// Returns the endpoint that asks.
    pub(super) fn endpoint(&self) -> EndpointId {
        self.endpoint
    }

    /// Returns the endpoint's number of the request.
    pub(super) fn number(&self) -> u64 {
        self.request
    }

    /// Returns the address of the other process.
    pub(super) fn remote(&self) -> SocketAddr {
        self.remote
    }

    pub(super) fn remote_endpoint(&self) -> EndpointId {
        self.remote_endpoint
    }

    /// Returns the media that may be used.
    pub(super) fn transports(&self) -> AllowedTransports {
        self.transports
    }

    /// Returns true if the other endpoint may propose sessions on the link.
    pub(super) fn reverse(&self) -> bool {
        self.reverse
    }

    /// Does without the medium of a kind, which could not be set up.
    pub(super) fn exclude(&mut self, kind: u8) {
        self.transports = without(self.transports, kind);
    }

    /// Returns true if a connection that breaks before the answer is tried again.
    pub(super) fn is_repeated_at(&self, now: Instant) -> bool {
        now < self.give_up_at
    }
}

#[cfg(test)]
impl OpenRequest {
    /// A request of endpoint 0 for a link over UDP to endpoint 0 of another process.
    pub(super) fn of_test(request: u64, remote: SocketAddr, give_up_at: Instant) -> Self {
        let wanted = (AllowedTransports::UDP, false);
        Self::new((EndpointId(0), request), (remote, EndpointId(0)), wanted, give_up_at)
    }
}
