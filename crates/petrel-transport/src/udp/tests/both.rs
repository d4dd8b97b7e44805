//! A data port of all IPv6 addresses carries both families.

use super::ecn::set_codepoint;
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
            let to_hub =
                UdpLink { addr, max_frame: None, ecn: self.ecn, source: None, sealed: None };
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
        let link = UdpLink { addr, max_frame: None, ecn: true, source: None, sealed: None };
        let peer = udp.add_peer(link).unwrap();
        let port = udp.local_addr().port();
        set_codepoint(&socket, 0b11);
        let mut marked = Vec::new();
        while marked.is_empty() {
            socket.send_to(b"\x1Amarked", (ip, port)).unwrap();
            udp.wait(Some(1_000_000_000));
            udp.rx_burst_to(64, Marked(&mut marked));
        }
        assert_eq!(marked[0], b"\x1Amarked", "{ip}");
        assert_eq!(udp.tx_burst(&[frame(peer, b"\x1Aback")]), 0);
        let mut bytes = [0; 64];
        let (len, _) = socket.recv_from(&mut bytes).unwrap();
        assert_eq!(&bytes[..len], b"\x1Aback");
    }
}

/// Keeps the marked frames.
struct Marked<'a>(&'a mut Vec<Vec<u8>>);

impl FrameHandler<NoReturn> for Marked<'_> {
    fn handle(&mut self, _: PeerId, _: &[u8], _: Option<&mut NoReturn>) {}

    fn handle_marked(&mut self, _: PeerId, frame: &[u8]) {
        self.0.push(frame.to_vec());
    }
}
