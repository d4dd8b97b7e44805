//! Requests of endpoints for links.

use std::net::SocketAddr;
use std::time::Instant;

use crate::control::{AllowedTransports, EndpointId};

/// An endpoint's request for a link.
#[derive(Clone, Debug)]
pub(super) struct OpenRequest {
    pub(super) endpoint: EndpointId,
    /// The endpoint's number of the request.
    pub(super) request: u64,
    pub(super) remote: SocketAddr,
    pub(super) remote_endpoint: EndpointId,
    pub(super) transports: AllowedTransports,
    /// Until then a connection that breaks before the answer is tried again.
    pub(super) give_up_at: Instant,
}
