//! How the UDP transport is set up, and what the kernel made of it.

use std::io;
use std::net::{Ipv4Addr, SocketAddr};

/// The MTU below which no IPv6 link may go (RFC 8200 §5). Petrel asks as much of IPv4 paths,
/// which in a datacenter is no restriction.
pub const MTU_BYTES_MIN: usize = 1280;

/// What [`Mtu::Auto`] uses at most by default: jumbo frames. The loopback device offers 65,536,
/// but one lost packet then costs the retransmission of as much.
pub const MTU_CAP_BYTES: usize = 9000;

/// Bytes of an IP packet, headers included, that the transport sends at most.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mtu {
    /// What the path to each peer carries, but not more than this.
    Auto {
        /// The cap in bytes of IP packet.
        cap_bytes: usize,
    },
    /// This many; a peer whose path carries less is refused.
    Fixed(usize),
}

impl Mtu {
    pub(super) fn bytes(self) -> usize {
        match self {
            Self::Auto { cap_bytes } => cap_bytes,
            Self::Fixed(bytes) => bytes,
        }
    }
}

impl Default for Mtu {
    fn default() -> Self {
        Self::Auto { cap_bytes: MTU_CAP_BYTES }
    }
}

/// How a [`Udp`](super::Udp) transport is set up.
#[derive(Clone, Debug)]
pub struct UdpConfig {
    /// The local address. Port 0 takes a free one. The address decides the family: an IPv6
    /// socket does not carry IPv4.
    pub bind: SocketAddr,
    /// The largest packets to send.
    pub mtu: Mtu,
    /// Whether to let the kernel cut equal-sized datagrams from one buffer, where it can.
    pub gso: bool,
    /// Whether to let the kernel deliver equal-sized datagrams in one buffer, where it can.
    pub gro: bool,
    /// Whether to tell switches that they may mark packets, and to read their marks, with peers that
    /// agree to it ([`UdpLink::ecn`]).
    pub ecn: bool,
    /// Socket buffer to ask for. The kernel grants at most `net.core.rmem_max`.
    pub recv_buffer_bytes: usize,
    /// Socket buffer to ask for. The kernel grants at most `net.core.wmem_max`.
    pub send_buffer_bytes: usize,
}

impl Default for UdpConfig {
    /// A free port on loopback; everything that the kernel offers; socket buffers of 4 MiB, which
    /// hold some 100 µs of a 100 Gbit/s link with room for the kernel's own accounting.
    fn default() -> Self {
        Self {
            bind: SocketAddr::from((Ipv4Addr::LOCALHOST, 0)),
            mtu: Mtu::default(),
            gso: true,
            gro: true,
            ecn: true,
            recv_buffer_bytes: 4 << 20,
            send_buffer_bytes: 4 << 20,
        }
    }
}

/// What a socket got of what its [`UdpConfig`] asked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct UdpCapabilities {
    /// Datagrams are sent by generic segmentation offload. May turn false while running.
    pub gso: bool,
    /// Datagrams are received by generic receive offload when they come in numbers.
    pub gro: bool,
    /// Packets can be sent as ECN-capable, and marks be read.
    pub ecn: bool,
    /// The receive buffer in the kernel's accounting, which is twice the data that it holds.
    pub recv_buffer_bytes: usize,
    /// The send buffer in the kernel's accounting.
    pub send_buffer_bytes: usize,
}

/// Why a UDP transport could not start.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum UdpError {
    /// The address is taken, not local, or a privileged port.
    #[error("cannot bind the data port to {address}: {source}; choose another address or port 0")]
    Bind {
        /// What was asked for.
        address: SocketAddr,
        /// What the system said.
        source: io::Error,
    },
    /// The MTU is one that no Petrel path has.
    #[error("an MTU of {configured} bytes is below the {MTU_BYTES_MIN} that Petrel needs")]
    MtuTooSmall {
        /// What was asked for.
        configured: usize,
    },
    /// The operating system has no socket to give, or refused a basic option.
    #[error("cannot set up the data port: {0}")]
    Io(#[from] io::Error),
}

/// What a peer needs to be reached over UDP.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct UdpLink {
    /// The peer's data port.
    pub addr: SocketAddr,
    /// The largest frame that the peer announced, or `None` where the path alone decides.
    pub max_frame: Option<usize>,
    /// Both sides have agreed that frames between them are ECN-capable (RFC 3168): the client heeds
    /// marks, the server echoes them. Of several links to one address, all must say so.
    pub ecn: bool,
}
