//! Kernel UDP, between the addresses of a control connection's two ends.

use std::net::SocketAddr;

use petrel_proto::control::{MAX_FRAME_BYTES_MAX, MAX_FRAME_BYTES_MIN, Offer, PathPorts};
use petrel_transport::seal::OVERHEAD_BYTES;
use petrel_transport::udp::{Mtu, UdpLink};

use super::{Agreed, Ends, Medium, Obstacle, ObstacleAt, Opening};
use crate::nexus::attach::UdpAttach;

/// The kind of offers of UDP.
pub(in crate::nexus) const KIND: u8 = 1;

/// IP and UDP header of a datagram, without options.
const HEADER_BYTES_V4: usize = 20 + 8;
const HEADER_BYTES_V6: usize = 40 + 8;

/// The largest IP packet that fits the 16-bit length field.
const IP_PACKET_BYTES_MAX: usize = 65_535;

/// An endpoint's data port, if any.
#[derive(Debug)]
pub(in crate::nexus) struct Datagrams {
    attach: Option<UdpAttach>,
}

impl Datagrams {
    pub(super) fn new(attach: Option<UdpAttach>) -> Self {
        Self { attach }
    }

    fn check(&self, ends: &Ends<'_>) -> Result<Offer, String> {
        if !ends.process.udp {
            return Err("UDP is off in the process".to_owned());
        }
        let udp = self.attach.ok_or("the endpoint does not use UDP")?;
        if udp.local.port() == 0 {
            return Err("the endpoint's UDP port is 0".to_owned());
        }
        check_address(udp.local, ends.local)?;
        let path = ends.path_mtu();
        let path = path.map_err(|error| format!("no UDP path to {}: {error}", ends.remote))?;
        let mut max_frame = max_frame(udp.mtu, path, ends.remote)?;
        if ends.is_secured() {
            max_frame -= OVERHEAD_BYTES as u32;
        }
        Ok(Offer::Udp { port: udp.local.port(), max_frame })
    }
}

impl<L: From<UdpLink>> Medium<L> for Datagrams {
    fn name(&self) -> &'static str {
        "udp"
    }

    fn title(&self) -> &'static str {
        "UDP"
    }

    fn kind(&self) -> u8 {
        KIND
    }

    fn offer(&self, ends: &Ends<'_>) -> Result<Offer, Obstacle> {
        self.check(ends).map_err(|text| Obstacle::new(ObstacleAt::Endpoint, text))
    }

    fn asks_for_marks(&self) -> bool {
        self.attach.is_some_and(|udp| udp.reads_marks && udp.heeds_marks)
    }

    fn reads_marks(&self) -> bool {
        self.attach.is_some_and(|udp| udp.reads_marks)
    }

    fn further_ports(&self) -> PathPorts {
        self.attach.map_or(PathPorts::NONE, |udp| udp.further_ports)
    }

    fn asks_for_paths(&self) -> bool {
        self.attach.is_some_and(|udp| udp.uses_paths)
    }

    fn chooses_source(&self) -> bool {
        self.attach.is_some_and(|udp| udp.local.ip().is_unspecified())
    }

    /// Opens the link to the address of the connection, with the offered port.
    fn open(&self, agreed: Agreed) -> Opening<L> {
        let Offer::Udp { port, .. } = agreed.offer else {
            unreachable!("offers are chosen by their kind: {agreed:?}")
        };
        let mut addr = agreed.remote;
        addr.set_port(port);
        let max_frame = Some(agreed.max_frame as usize);
        let Agreed { ecn, source, sealed, .. } = agreed;
        Opening::Link(UdpLink { addr, max_frame, ecn, source, sealed }.into())
    }
}

/// Checks that an endpoint uses the address of the connection's end: the peer sends to it, and accepts data from it
/// alone (§8.4).
fn check_address(endpoint: SocketAddr, connection: SocketAddr) -> Result<(), String> {
    // A port of all IPv6 addresses carries IPv4, too.
    let is_all = endpoint.is_ipv6() && endpoint.ip().is_unspecified();
    let same_family = endpoint.is_ipv4() == connection.is_ipv4();
    let fits = (same_family || is_all)
        && (endpoint.ip().is_unspecified() || endpoint.ip() == connection.ip());
    if fits {
        return Ok(());
    }
    Err(format!(
        "the endpoint's UDP address {} is not the address {} that the control connection uses: \
         bind the endpoint to that one or connect by another",
        endpoint.ip(),
        connection.ip()
    ))
}

/// Returns the largest frame for a path, computed as in the UDP transport.
fn max_frame(mtu: Mtu, path: usize, peer: SocketAddr) -> Result<u32, String> {
    let mtu = match mtu {
        Mtu::Auto { .. } => mtu.on_path(path),
        Mtu::Fixed(configured) if configured > path => {
            return Err(format!(
                "the configured MTU of {configured} bytes exceeds the path MTU of {path} bytes to \
                 {peer}; lower it or leave it on automatic"
            ));
        }
        Mtu::Fixed(configured) => configured,
    };
    let header = if peer.is_ipv6() { HEADER_BYTES_V6 } else { HEADER_BYTES_V4 };
    let frame = mtu.min(IP_PACKET_BYTES_MAX).saturating_sub(header);
    let frame = (frame as u32).min(MAX_FRAME_BYTES_MAX);
    if frame < MAX_FRAME_BYTES_MIN {
        return Err(format!("the path to {peer} carries packets of only {mtu} bytes"));
    }
    Ok(frame)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn address(text: &str) -> SocketAddr {
        text.parse().unwrap()
    }

    fn frame(mtu: Mtu, path: usize, peer: &str) -> Result<u32, String> {
        max_frame(mtu, path, address(peer))
    }

    #[test]
    fn max_frame__by_mtu_path_and_family() {
        let auto = Mtu::Auto { cap_bytes: 9_000 };
        assert_eq!(frame(auto, 1_500, "10.0.0.1:1"), Ok(1_472));
        assert_eq!(frame(auto, 1_500, "[fd00::1]:1"), Ok(1_452));
        assert_eq!(frame(auto, 65_536, "127.0.0.1:1"), Ok(16_972));
        assert_eq!(frame(Mtu::Fixed(1_280), 1_280, "[fd00::1]:1"), Ok(1_232));
        assert_eq!(frame(Mtu::Fixed(65_536), 65_536, "127.0.0.1:1"), Ok(65_507));
        assert!(frame(Mtu::Fixed(9_000), 1_500, "10.0.0.1:1").unwrap_err().contains("exceeds"));
        assert!(frame(auto, 1_200, "10.0.0.1:1").unwrap_err().contains("only 1200"));
    }

    #[test]
    fn check_address__of_the_connections_end_or_any() {
        let end = address("10.0.0.1:5");
        assert!(check_address(address("10.0.0.1:9"), end).is_ok());
        assert!(check_address(address("0.0.0.0:9"), end).is_ok());
        assert!(check_address(address("127.0.0.1:9"), end).is_err());
        assert!(check_address(address("[::]:9"), end).is_ok());
        assert!(check_address(address("[::1]:9"), end).is_err());
        assert!(check_address(address("0.0.0.0:9"), address("[::1]:5")).is_err());
        assert!(check_address(address("[::]:9"), address("[::1]:5")).is_ok());
    }
}
