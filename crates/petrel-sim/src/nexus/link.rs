//! The links of endpoints without transports: what the nexus has agreed, for the checker to see.

use petrel_transport::shm::Side;
use petrel_transport::udp::UdpLink;

use crate::net::{Memory, NetLink, SimUnixConnection};

#[derive(Debug)]
pub(super) enum SimLink {
    Udp(UdpLink),
    Shm {
        memory: Memory,
        side: Side,
        /// Open as long as the link.
        _connection: SimUnixConnection,
    },
}

impl From<UdpLink> for SimLink {
    fn from(link: UdpLink) -> Self {
        Self::Udp(link)
    }
}

impl NetLink for SimLink {
    fn of_memory(memory: Memory, side: Side, connection: SimUnixConnection) -> Self {
        Self::Shm { memory, side, _connection: connection }
    }
}
