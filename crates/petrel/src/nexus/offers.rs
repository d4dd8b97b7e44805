//! Which transports an endpoint can offer to a peer (`docs/wire-protocol.md` §8.4).

use std::net::SocketAddr;

use petrel_proto::control::{MAX_FRAME_BYTES_MAX, MAX_FRAME_BYTES_MIN, Offer};
use petrel_transport::udp::Mtu;

use super::connection::Connection;
use super::net::Network;
use super::port::Attach;
use super::reactor::Reactor;
use crate::control::AllowedTransports;
use crate::events;

/// Why a link does without shared memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub(super) enum NoShm {
    #[error("shared memory is not asked for")]
    NotRequested,
    #[error("the endpoint does not use shared memory")]
    EndpointWithout,
    #[error("shared memory is off or impossible in the process")]
    ProcessWithout,
    #[error("the peer has not said HELLO")]
    NoHello,
    #[error("the two processes are not of one host and user, or one has no shared memory")]
    Elsewhere,
    #[error("shared memory with frames of only {0} bytes")]
    SmallFrames(u32),
}

/// IP and UDP header of a datagram, without options.
const HEADER_BYTES_V4: usize = 20 + 8;
const HEADER_BYTES_V6: usize = 40 + 8;

/// The largest IP packet that fits the 16-bit length field.
const IP_PACKET_BYTES_MAX: usize = 65_535;

impl<N: Network> Reactor<N> {
    /// Returns an endpoint's possible offers over a connection, the preferred first, or the obstacles.
    pub(super) fn offers(
        &self,
        connection: &Connection<N>,
        endpoint: &Attach,
        allowed: AllowedTransports,
    ) -> Result<Vec<Offer>, String> {
        let shm = if allowed.shm {
            self.shm_offer(connection, endpoint)
        } else {
            Err(NoShm::NotRequested)
        };
        let udp = if allowed.udp {
            self.udp_offer(connection, endpoint)
        } else {
            Err("UDP is not asked for".to_owned())
        };
        match (shm, udp) {
            (Err(no_shm), Err(no_udp)) => Err(format!("{no_shm}; {no_udp}")),
            (Err(no_shm), Ok(udp)) => {
                self.report_no_shm(connection, no_shm);
                Ok(vec![udp])
            }
            (shm, udp) => Ok([shm.ok(), udp.ok()].into_iter().flatten().collect()),
        }
    }

    /// Returns the first suitable offer of the peer's, or the obstacles.
    pub(super) fn choose(
        &self,
        connection: &Connection<N>,
        endpoint: &Attach,
        offered: &[Offer],
    ) -> Result<Offer, String> {
        let (mut obstacles, mut no_shm) = (Vec::new(), None);
        for offer in offered {
            let own = match offer {
                Offer::Udp { .. } => self.udp_offer(connection, endpoint),
                Offer::Shm { .. } => {
                    let own = self.shm_offer(connection, endpoint);
                    no_shm = own.as_ref().err().copied();
                    own.map_err(|obstacle| obstacle.to_string())
                }
            };
            match own {
                Ok(own) => {
                    if let Some(no_shm) = no_shm {
                        self.report_no_shm(connection, no_shm);
                    }
                    return Ok(own);
                }
                Err(obstacle) => obstacles.push(obstacle),
            }
        }
        if obstacles.is_empty() {
            obstacles.push("none of the offered transports is known".to_owned());
        }
        Err(obstacles.join("; "))
    }

    /// Counts and logs why a link does without shared memory.
    fn report_no_shm(&self, connection: &Connection<N>, obstacle: NoShm) {
        let counter = match obstacle {
            NoShm::NotRequested | NoShm::EndpointWithout => &self.counters.no_shm_endpoint,
            NoShm::ProcessWithout | NoShm::SmallFrames(_) => &self.counters.no_shm_process,
            NoShm::NoHello | NoShm::Elsewhere => &self.counters.no_shm_peer,
        };
        counter.increment();
        events::shm_not_used(connection.remote, &obstacle);
    }

    /// Returns the text to add to the refusal of a link for which shared memory was not offered.
    pub(super) fn why_no_shm(
        &self,
        connection: &Connection<N>,
        endpoint: &Attach,
        offers: &[Offer],
    ) -> String {
        let was_offered = offers.iter().any(|offer| matches!(offer, Offer::Shm { .. }));
        match self.shm_offer(connection, endpoint) {
            Err(obstacle) if !was_offered => {
                format!("; shared memory was not offered: {obstacle}")
            }
            _ => String::new(),
        }
    }

    /// Offers shared memory to a peer of this host and user.
    fn shm_offer(&self, connection: &Connection<N>, endpoint: &Attach) -> Result<Offer, NoShm> {
        let shm = endpoint.shm.ok_or(NoShm::EndpointWithout)?;
        let rendezvous = self.local_rendezvous.as_ref().ok_or(NoShm::ProcessWithout)?;
        let peer = connection.peer().ok_or(NoShm::NoHello)?;
        if peer.host_identity != Some(rendezvous.host_identity) || peer.rendezvous.is_none() {
            return Err(NoShm::Elsewhere);
        }
        let max_frame = shm.config.max_frame_bytes.min(MAX_FRAME_BYTES_MAX as usize) as u32;
        if max_frame < MAX_FRAME_BYTES_MIN {
            return Err(NoShm::SmallFrames(max_frame));
        }
        Ok(Offer::Shm { max_frame })
    }

    /// Offers UDP between the addresses of the connection's two ends.
    fn udp_offer(&self, connection: &Connection<N>, endpoint: &Attach) -> Result<Offer, String> {
        if !self.settings.transports.udp {
            return Err("UDP is off in the process".to_owned());
        }
        let udp = endpoint.udp.ok_or("the endpoint does not use UDP")?;
        if udp.local.port() == 0 {
            return Err("the endpoint's UDP port is 0".to_owned());
        }
        check_address(udp.local, connection.local)?;
        let path = self.net.path_mtu(connection.local.ip(), connection.remote);
        let path =
            path.map_err(|error| format!("no UDP path to {}: {error}", connection.remote))?;
        let max_frame = max_frame(udp.mtu, path, connection.remote)?;
        Ok(Offer::Udp { port: udp.local.port(), max_frame })
    }
}

/// The peer sends to, and accepts data from, the address of the connection's end (§8.4).
fn check_address(endpoint: SocketAddr, connection: SocketAddr) -> Result<(), String> {
    let same_family = endpoint.is_ipv4() == connection.is_ipv4();
    let fits = same_family && (endpoint.ip().is_unspecified() || endpoint.ip() == connection.ip());
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
        Mtu::Auto { cap_bytes } => cap_bytes.min(path),
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
        assert_eq!(frame(auto, 65_536, "127.0.0.1:1"), Ok(8_972));
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
        assert!(check_address(address("[::]:9"), end).is_err());
        assert!(check_address(address("[::]:9"), address("[::1]:5")).is_ok());
    }
}
