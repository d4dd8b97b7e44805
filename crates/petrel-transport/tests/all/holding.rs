//! A transport that reads frames late keeps the promises of all, and shows who changes them early.
#![cfg(not(loom))]

use petrel_transport::conformance::{self, End, Harness, Holding, Medium, Star};
use petrel_transport::udp::{Udp, UdpConfig, UdpLink};
use petrel_transport::{PeerId, Transport};

struct Late;

fn end() -> Holding<Udp> {
    Holding::new(Udp::bind(UdpConfig::default()).unwrap())
}

fn link_to(end: &Holding<Udp>) -> UdpLink {
    UdpLink {
        addr: end.inner().local_addr(),
        max_frame: None,
        ecn: false,
        source: None,
        sealed: None,
    }
}

impl Harness for Late {
    type T = Holding<Udp>;

    fn medium(&self) -> Medium {
        Medium::lossy_when_full().with_capacity(60_000)
    }

    fn star(&mut self) -> Star<Holding<Udp>> {
        let mut hub = end();
        let leaves = [end(), end()].map(|mut leaf| {
            let peer = leaf.add_peer(link_to(&hub)).unwrap();
            End { transport: leaf, peer }
        });
        let peers =
            [&leaves[0], &leaves[1]].map(|leaf| hub.add_peer(link_to(&leaf.transport)).unwrap());
        Star { hub, peers, leaves }
    }
}

#[test]
fn conformance__of_a_transport_that_holds_frames() {
    conformance::run_all(&mut Late);
}

/// Sends a frame of zeros, changes its bytes after `looks` calls of `released`, and returns what arrives.
fn arrived(looks: u32) -> (bool, Vec<u8>) {
    let [mut a, mut b] = Late.pair();
    let mut frame = vec![0; 100];
    // SAFETY: the frame lives until it is released; the test changes it early, as a faulty user does.
    let is_taken = unsafe { a.transport.push(a.peer, &frame, &[]) };
    assert!(is_taken);
    a.transport.flush();
    let is_released = (0..looks).any(|_| a.transport.released());
    frame.fill(0xEE);
    while !a.transport.released() {}
    let mut got = Vec::new();
    while got.is_empty() {
        b.transport.wait(None);
        b.transport.rx_burst(1, |_: PeerId, frame| got = frame.to_vec());
    }
    (is_released, got)
}

#[test]
fn released__only_when_a_change_has_no_effect_any_more() {
    assert_eq!(arrived(0), (false, vec![0xEE; 100]));
    assert_eq!(arrived(2), (false, vec![0xEE; 100]));
    assert_eq!(arrived(3), (true, vec![0; 100]));
}
