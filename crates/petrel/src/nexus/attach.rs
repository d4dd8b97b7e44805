//! The description of an endpoint, for the control plane.

use std::net::SocketAddr;

use petrel_proto::control::PathPorts;
use petrel_transport::shm::ShmConfig;
use petrel_transport::udp::Mtu;
use petrel_transport::wake::Waker;

use crate::control::EndpointId;

/// An endpoint's description for the control plane, as passed to [`Nexus::attach`](super::Nexus::attach).
#[derive(Clone, Debug)]
pub struct Attach {
    /// The wanted number, or `None` for the lowest free one.
    pub id: Option<EndpointId>,
    /// How the endpoint is reached over UDP, if at all.
    pub udp: Option<UdpAttach>,
    /// How the endpoint is reached through shared memory, if at all.
    pub shm: Option<ShmAttach>,
    /// Whether the endpoint uses TCP streams.
    pub stream: bool,
    /// Wakes the endpoint when messages of the nexus wait.
    pub waker: Waker,
}

/// An endpoint's UDP side.
#[derive(Clone, Copy, Debug)]
pub struct UdpAttach {
    /// The data port's address.
    pub local: SocketAddr,
    /// The endpoint's MTU setting.
    pub mtu: Mtu,
    /// Whether the endpoint can make packets ECN-capable and reads marks, for peers that heed marks.
    pub reads_marks: bool,
    /// Whether its own sessions heed marks.
    pub heeds_marks: bool,
    /// The source ports from which the endpoint sends, besides that of `local`.
    pub further_ports: PathPorts,
    /// Whether its own sessions use several paths.
    pub uses_paths: bool,
}

/// An endpoint's shared-memory side.
#[derive(Clone, Copy, Debug)]
pub struct ShmAttach {
    /// The endpoint's settings, for the segments that it creates.
    pub config: ShmConfig,
}
