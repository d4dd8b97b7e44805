//! A data port of all IPv6 addresses carries both families.

use super::ecn::{Heard, set_codepoint};
use super::*;

/// A hub of all addresses, with a leaf of each family.
struct Both {
    ecn: bool,
}

impl Harness for Both {
    type T = Udp;

    fn medium(&self) -> Medium {
        Medium::lossy_when_full().with_capacity(70_000)
    }

    fn star(&mut self) -> Star<Udp> {
        let mut hub = Udp::bind(bind_to("::")).unwrap();
        let port = hub.local_addr().port();
        let mut peers = Vec::new();
        let leaves = ["127.0.0.1", "::1"].map(|ip| {
            let mut leaf = Udp::bind(bind_to(ip)).unwrap();
            peers.push(hub.add_peer(UdpLink { ecn: self.ecn, ..link(&leaf) }).unwrap());
            let addr = SocketAddr::new(ip.parse().unwrap(), port);
            let to_hub = UdpLink { ecn: self.ecn, ..UdpLink::to(addr) };
            let peer = leaf.add_peer(to_hub).unwrap();
            End { transport: leaf, peer }
        });
        Star { hub, peers: [peers[0], peers[1]], leaves }
    }
}

#[test]
fn conformance__of_both_families() {
    for ecn in [false, true] {
        conformance::run_all(&mut Both { ecn });
    }
}

#[test]
fn marks__are_read_and_sent_in_both_families() {
    for ip in ["127.0.0.1", "::1"] {
        let mut udp = Udp::bind(bind_to("::")).unwrap();
        let socket = UdpSocket::bind((ip, 0)).unwrap();
        let addr = socket.local_addr().unwrap();
        let link = UdpLink { ecn: true, ..UdpLink::to(addr) };
        let peer = udp.add_peer(link).unwrap();
        let port = udp.local_addr().port();
        set_codepoint(&socket, 0b11);
        let mut heard = Heard::default();
        while heard.0.last().is_none_or(|(_, is_marked)| !is_marked) {
            socket.send_to(b"\x1Amarked", (ip, port)).unwrap();
            udp.wait(Some(1_000_000_000));
            udp.rx_burst_to(64, &mut heard);
        }
        assert!(heard.0.iter().all(|(frame, _)| frame == b"\x1Amarked"), "{ip}");
        assert_eq!(udp.tx_burst(&[frame(peer, b"\x1Aback")]), 0);
        let mut bytes = [0; 64];
        let (len, _) = socket.recv_from(&mut bytes).unwrap();
        assert_eq!(&bytes[..len], b"\x1Aback");
    }
}
