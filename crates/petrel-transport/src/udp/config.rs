//! Settings of the UDP transport, and the capabilities the kernel grants.

use std::fmt;
use std::io;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::str::FromStr;

use crate::device::xdp::XdpConfig;
use crate::seal::SealedLink;
use crate::verbs::VerbsConfig;

/// Bytes of the receive buffer that the kernel charges for a small datagram: the data's block and its book-keeping.
pub(super) const CHARGE_BYTES: usize = 768;

/// The minimum MTU of an IPv6 link (RFC 8200 §5). Petrel requires it of IPv4 paths too, which is no
/// restriction in a datacenter.
pub const MTU_BYTES_MIN: usize = 1280;

/// The default cap of [`Mtu::Auto`]: jumbo frames.
pub const MTU_CAP_BYTES: usize = 9000;

/// The path MTU of Linux's loopback device, as an IPv4 socket has it.
const LOOPBACK_MTU_BYTES: usize = 65_535;

/// The largest packets over loopback with the default cap, so that a message of 16 KiB has one packet. Still larger ones gain
/// little, and the 64 packets of two sessions would fill the receive buffer.
const LOOPBACK_PACKET_BYTES: usize = 17_000;

/// Most bytes of a sent IP packet, headers included.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mtu {
    /// The path MTU of each peer, up to the cap. With the default cap packets over loopback have up to
    /// 17,000 bytes.
    Auto {
        /// The cap in bytes of IP packet.
        cap_bytes: usize,
    },
    /// A fixed size; a peer with a smaller path MTU is refused.
    Fixed(usize),
}

impl Mtu {
    /// Returns the largest packet to send over a path of this MTU. A fixed size may exceed it.
    pub fn on_path(self, path: usize) -> usize {
        match self {
            Self::Auto { cap_bytes: MTU_CAP_BYTES } if path >= LOOPBACK_MTU_BYTES => {
                LOOPBACK_PACKET_BYTES
            }
            Self::Auto { cap_bytes } => cap_bytes.min(path),
            Self::Fixed(bytes) => bytes,
        }
    }

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

/// The exit of datagrams.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum Device {
    /// The kernel's network stack.
    #[default]
    Kernel,
    /// A device by AF_XDP, with the kernel's socket for all that the device does not carry (`docs/kernel-bypass.md`).
    Xdp(XdpDevice),
    /// A device by DPDK, with the kernel's socket beside.
    Dpdk(DpdkDevice),
    /// An RDMA card, for peers that have one on the same network: another medium beside UDP, which a [`Host`](crate::host::Host) opens.
    Verbs(VerbsDevice),
}

impl Device {
    /// Returns true if an endpoint without the device is refused.
    pub(super) fn is_required(&self) -> bool {
        match self {
            Self::Kernel => false,
            Self::Xdp(device) => device.is_required,
            Self::Dpdk(device) => device.is_required,
            Self::Verbs(device) => device.is_required,
        }
    }
}

impl FromStr for Device {
    type Err = String;

    /// Reads `kernel`, `xdp`, or `xdp:` with an interface's name, then perhaps `@` and the socket of a helper; `dpdk:` with the arguments of
    /// DPDK; or `verbs`, or `verbs:` with a card's name. A `!` follows if the device is required.
    fn from_str(words: &str) -> Result<Self, String> {
        let (words, is_required) = match words.strip_suffix('!') {
            Some(words) => (words, true),
            None => (words, false),
        };
        if let Some(arguments) =
            words.strip_prefix("dpdk:").filter(|words| !words.trim().is_empty())
        {
            let arguments = arguments.to_owned();
            return Ok(Self::Dpdk(DpdkDevice { arguments, is_required }));
        }
        if let Some(card) = words.strip_prefix("verbs") {
            let name = match card.strip_prefix(':') {
                Some(name) if !name.is_empty() => name,
                None if card.is_empty() => "",
                _ => return Err(format!("{words:?} names no RDMA card: verbs, or verbs:CARD")),
            };
            let config = VerbsConfig { card: name.to_owned(), ..VerbsConfig::default() };
            return Ok(Self::Verbs(VerbsDevice { config, is_required }));
        }
        let (words, helper) = match words.split_once('@') {
            Some((words, path)) if !path.is_empty() => (words, Some(path.into())),
            _ => (words, None),
        };
        let interface = match words.split_once(':') {
            None if words == "kernel" && !is_required && helper.is_none() => {
                return Ok(Self::Kernel);
            }
            None if words == "xdp" => None,
            Some(("xdp", name)) if !name.is_empty() => Some(name.to_owned()),
            _ => {
                return Err(format!(
                    "{words:?} is not kernel, xdp, xdp:INTERFACE, dpdk:ARGUMENTS, verbs or verbs:CARD"
                ));
            }
        };
        Ok(Self::Xdp(XdpDevice {
            interface,
            is_required,
            config: XdpConfig { helper, ..XdpConfig::default() },
        }))
    }
}

impl fmt::Display for Device {
    /// As [`Device::from_str`] reads it.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Kernel => f.write_str("kernel")?,
            Self::Dpdk(DpdkDevice { arguments, .. }) => write!(f, "dpdk:{arguments}")?,
            Self::Verbs(VerbsDevice { config: VerbsConfig { card, .. }, .. }) => match &card[..] {
                "" => f.write_str("verbs")?,
                name => write!(f, "verbs:{name}")?,
            },
            Self::Xdp(XdpDevice { interface, config, .. }) => {
                f.write_str("xdp")?;
                if let Some(name) = interface {
                    write!(f, ":{name}")?;
                }
                if let Some(helper) = &config.helper {
                    write!(f, "@{}", helper.display())?;
                }
            }
        }
        f.write_str(if self.is_required() { "!" } else { "" })
    }
}

/// A device by AF_XDP.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct XdpDevice {
    /// The interface's name; `None`: that with the address of [`UdpConfig::bind`].
    pub interface: Option<String>,
    /// Whether an endpoint without the device is refused. Otherwise its datagrams go by the kernel's socket.
    pub is_required: bool,
    /// Modes, queues and memory.
    pub config: XdpConfig,
}

/// A device by DPDK. A process starts DPDK once, so that all its endpoints have the same arguments.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct DpdkDevice {
    /// The arguments of DPDK's environment (EAL), which choose one device.
    pub arguments: String,
    /// As [`XdpDevice::is_required`].
    pub is_required: bool,
}

/// An RDMA card.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct VerbsDevice {
    /// The card, and the lengths of its queues.
    pub config: VerbsConfig,
    /// Whether an endpoint without the card is refused. Otherwise the endpoint does without.
    pub is_required: bool,
}

/// Settings of a [`Udp`](super::Udp) transport.
#[derive(Clone, Debug)]
pub struct UdpConfig {
    /// The local address. Port 0 selects a free port. The address decides the family: an IPv6
    /// socket does not carry IPv4, unless it has all addresses (`[::]`).
    pub bind: SocketAddr,
    /// Source ports to send from besides that of `bind`, 0 to 31, each with a socket. Sessions of
    /// several paths choose among all of them (`docs/paths.md`). 0 by default.
    pub further_ports: u8,
    /// The largest packets to send.
    pub mtu: Mtu,
    /// The exit of datagrams. `None`: that of the owner's control plane, or else the kernel.
    pub device: Option<Device>,
    /// Whether the kernel may cut equal-sized datagrams from one buffer, if it can.
    pub gso: bool,
    /// Whether the kernel may deliver equal-sized datagrams in one buffer, if it can.
    pub gro: bool,
    /// Whether to send ECN-capable packets to peers that agree ([`UdpLink::ecn`]), and to read
    /// switches' marks.
    pub ecn: bool,
    /// Requested receive buffer. The kernel grants at most `net.core.rmem_max`.
    pub recv_buffer_bytes: usize,
    /// Requested send buffer. The kernel grants at most `net.core.wmem_max`.
    pub send_buffer_bytes: usize,
}

impl Default for UdpConfig {
    /// A free port on loopback; all offloads of the kernel; socket buffers of 4 MiB, which hold
    /// some 100 µs of a 100 Gbit/s link with room for the kernel's own accounting.
    fn default() -> Self {
        Self {
            bind: SocketAddr::from((Ipv4Addr::LOCALHOST, 0)),
            further_ports: 0,
            mtu: Mtu::default(),
            device: None,
            gso: true,
            gro: true,
            ecn: true,
            recv_buffer_bytes: 4 << 20,
            send_buffer_bytes: 4 << 20,
        }
    }
}

/// The part of a [`UdpConfig`] the kernel granted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct UdpCapabilities {
    /// Datagrams are sent by generic segmentation offload. May turn false while running.
    pub gso: bool,
    /// Datagrams are received by generic receive offload when several arrive together.
    pub gro: bool,
    /// Packets can be sent as ECN-capable, and marks can be read.
    pub ecn: bool,
    /// The receive buffer in the kernel's accounting, twice the data that fits.
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
        /// The requested address.
        address: SocketAddr,
        /// The system's error.
        source: io::Error,
    },
    /// The MTU is too small for Petrel.
    #[error("an MTU of {configured} bytes is below the {MTU_BYTES_MIN} that Petrel needs")]
    MtuTooSmall {
        /// The configured MTU.
        configured: usize,
    },
    /// A session has at most 32 paths.
    #[error("{configured} further source ports are more than the 31 that a session can use")]
    TooManyPorts {
        /// The configured number.
        configured: usize,
    },
    /// The settings demand a device, and there is none to use.
    #[error("cannot use the device: {0}")]
    Device(String),
    /// The operating system has no socket left, or refused a basic option.
    #[error("cannot set up the data port: {0}")]
    Io(#[from] io::Error),
}

/// How to reach a peer over UDP.
#[derive(Debug)]
pub struct UdpLink {
    /// The peer's data port.
    pub addr: SocketAddr,
    /// The largest frame the peer announced, or `None` if only the path limits frames. Counted before sealing.
    pub max_frame: Option<usize>,
    /// The two sides have agreed on ECN-capable frames (RFC 3168): the client reacts to marks, and
    /// the server echoes them. Several links to an address may differ, and then have separate
    /// peers.
    pub ecn: bool,
    /// The source address known to the peer, unless the kernel would choose the address anyway: a socket bound to the unspecified
    /// address has all addresses of the host.
    pub source: Option<IpAddr>,
    /// The keys of a sealed link (`docs/wire-protocol.md` §17.3), which has a [`PeerId`](crate::PeerId) of its own; `None` for a plain link.
    pub sealed: Option<Box<SealedLink>>,
}

impl UdpLink {
    /// Describes a plain link whose frames only the path limits, without marks of congestion.
    pub fn to(addr: SocketAddr) -> Self {
        Self { addr, max_frame: None, ecn: false, source: None, sealed: None }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn device__is_read_as_it_is_written() {
        for words in [
            "kernel",
            "xdp",
            "xdp!",
            "xdp:eth0",
            "xdp:eth0.7!",
            "xdp@/run/x.sock",
            "xdp:e1@h!",
            "dpdk:--lcores=0@1 -a 0!",
            "verbs",
            "verbs!",
            "verbs:mlx5_0!",
        ] {
            assert_eq!(words.parse::<Device>().unwrap().to_string(), words);
        }
        for words in [
            "", "!", "kernel!", "kernel@h", "xdp:", "xdp:!", "xdp@", "dpdk", "dpdk: !", "eth0",
            "XDP", "verbs:", "verbs0", "verbs:!",
        ] {
            assert!(words.parse::<Device>().is_err(), "{words}");
        }
    }

    #[test]
    fn on_path__of_loopback_has_messages_of_16_kib_in_one_packet() {
        for (mtu, path, expected) in [
            (Mtu::default(), 1500, 1500),
            (Mtu::default(), 9216, 9000),
            (Mtu::default(), 65_534, 9000),
            (Mtu::default(), 65_535, 17_000),
            (Mtu::default(), 65_536, 17_000),
            (Mtu::Auto { cap_bytes: 1500 }, 65_536, 1500),
            (Mtu::Auto { cap_bytes: 65_535 }, 65_536, 65_535),
            (Mtu::Fixed(4000), 1500, 4000),
        ] {
            assert_eq!(mtu.on_path(path), expected, "{mtu:?} over {path}");
        }
    }
}
