//! A server that a client may call.

use std::net::SocketAddr;

use crate::control::EndpointId;

/// A server that a client may call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Target {
    /// Control address of its process.
    pub address: SocketAddr,
    /// The endpoint there: by default [any](EndpointId::ANY), and then calls are spread over all that the process names.
    pub endpoint: EndpointId,
    /// The share of the load relative to other servers; 1 by default.
    pub weight: u32,
}

impl Target {
    /// Returns the same server with another weight.
    ///
    /// # Panics
    /// When `weight` is 0.
    #[must_use]
    pub fn weighing(self, weight: u32) -> Self {
        assert!(weight > 0, "a server without any load is no target");
        Self { weight, ..self }
    }

    /// Returns the endpoint to ask: the first, if any will do.
    pub(crate) fn asked(&self) -> EndpointId {
        if self.endpoint == EndpointId::ANY { EndpointId(0) } else { self.endpoint }
    }

    /// Returns true for the same server, whatever the weights. A server without a named endpoint is asked at the first.
    pub(crate) fn is_server(&self, other: &Self) -> bool {
        (self.address, self.asked()) == (other.address, other.asked())
    }
}

impl From<SocketAddr> for Target {
    /// All endpoints of the process that serve.
    fn from(address: SocketAddr) -> Self {
        Self { address, endpoint: EndpointId::ANY, weight: 1 }
    }
}

impl From<(SocketAddr, EndpointId)> for Target {
    fn from((address, endpoint): (SocketAddr, EndpointId)) -> Self {
        Self { address, endpoint, weight: 1 }
    }
}
