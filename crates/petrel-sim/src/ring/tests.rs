//! Rings between two transports, step by step.

use petrel_transport::{PeerId, RX_BURST_MAX, Transport, TxFrame};

use super::*;
use crate::fabric::{FabricConfig, HostId, Topology};
use crate::rng::Probability;
use crate::transport::{SimTransport, SimTransportConfig};

const RING_BYTES: usize = 4 << 10;
const FRAME_BYTES: usize = 1_232;

struct Two {
    fabric: FabricHandle,
    ends: [SimTransport; 2],
    peers: [PeerId; 2],
}

impl Two {
    fn new() -> Self {
        let topology = Topology::pair(Default::default(), Default::default());
        let fabric = FabricHandle::new(&topology, FabricConfig::default(), 5).unwrap();
        let at = |host| SimAddr::new(HostId(host), 1);
        let config = SimTransportConfig::default();
        let mut ends = [0, 1].map(|host| SimTransport::bind(&fabric, at(host), config).unwrap());
        let peers = [0, 1].map(|side| ends[side].add_peer(link(at(1 - side as u16))).unwrap());
        Self { fabric, ends, peers }
    }

    /// Returns how many of these frames fit into a side's ring.
    fn send(&mut self, side: usize, frames: &[&[u8]]) -> usize {
        let peer = self.peers[side];
        let frames: Vec<_> = frames.iter().map(|head| TxFrame { peer, head, body: &[] }).collect();
        frames.len() - self.ends[side].tx_burst(&frames).count_ones() as usize
    }

    fn receive(&mut self, side: usize) -> Vec<Vec<u8>> {
        let mut frames = Vec::new();
        while self.ends[side].rx_burst(RX_BURST_MAX, |_, frame| frames.push(frame.to_vec())) > 0 {}
        frames
    }

    /// Polls a side until it sleeps.
    fn sleep(&mut self, side: usize) {
        for _ in 0..10 {
            if self.ends[side].rest().is_none() {
                return;
            }
            assert!(self.receive(side).is_empty());
        }
        panic!("it never comes to rest");
    }

    fn broken_rings(&self, side: usize) -> u64 {
        self.ends[side].stats().rx_broken_rings
    }
}

fn link(peer: SimAddr) -> DataLink {
    let (number, ring_bytes, max_frame_bytes) = (1, RING_BYTES, FRAME_BYTES);
    DataLink::Ring(RingLink { peer, number, ring_bytes, max_frame_bytes })
}

#[test]
fn push__over_many_laps_arrives_in_order() {
    let mut two = Two::new();
    assert!(!two.ends[0].is_networked(two.peers[0]));
    for round in 0..200u8 {
        let lengths = [1, 56, 57, usize::from(round) * 6 + 1, FRAME_BYTES];
        let frames: Vec<Vec<u8>> = lengths.iter().map(|&len| vec![round; len]).collect();
        let slices: Vec<&[u8]> = frames.iter().map(Vec::as_slice).collect();
        let sent = two.send(usize::from(round % 2), &slices);
        assert!(sent >= 3, "{sent} fit");
        assert_eq!(two.receive(usize::from(1 - round % 2)), frames[..sent]);
    }
}

#[test]
fn push__to_a_consumer_that_does_not_poll_ends_with_a_full_ring() {
    let mut two = Two::new();
    let frame = [7; FRAME_BYTES];
    assert_eq!(two.send(0, &[&frame[..]; 10]), 3, "three records of 1280 bytes, and a free line");
    let first_ns = two.ends[0].rest().expect("nobody wakes a producer");
    assert_eq!(first_ns, FULL_PAUSE_NS.0);
    assert_eq!(two.send(0, &[&frame]), 0);
    assert_eq!(two.ends[0].rest(), Some(2 * FULL_PAUSE_NS.0));
    assert_eq!(two.receive(1).len(), 3);
    assert_eq!(two.send(0, &[&frame]), 1);
    assert_eq!(two.fabric.stats().rings_full, 2);
}

#[test]
fn flush__wakes_a_sleeper_once_for_each_sleep() {
    let mut two = Two::new();
    for sleep in 1..=20 {
        two.sleep(1);
        (0..3).for_each(|_| assert_eq!(two.send(0, &[b"a frame"]), 1));
        assert_eq!(two.fabric.stats().wakes, sleep);
        two.fabric.advance(WAKE_NS.1);
        assert_eq!(two.receive(1).len(), 3);
        assert_eq!(two.send(0, &[b"awake"]), 1);
        assert_eq!(two.fabric.stats().wakes, sleep, "it did not sleep");
        assert_eq!(two.receive(1).len(), 1);
    }
    assert_eq!(two.broken_rings(1), 0);
}

/// The kernel may be out of memory for a byte. A sleep without a successful wake-up is not over: the next
/// frame, which the protocol sends when no response comes, rings again.
#[test]
fn flush__rings_again_where_the_system_has_refused() {
    let mut two = Two::new();
    two.sleep(1);
    let refused = Probability::ALWAYS;
    two.fabric.set_wake_faults(WakeFaults { refused, ..WakeFaults::default() });
    assert_eq!(two.send(0, &[b"refused"]), 1);
    two.fabric.set_wake_faults(WakeFaults::default());
    assert_eq!((two.fabric.stats().wakes, two.fabric.stats().wakes_refused), (0, 1));
    assert_eq!(two.send(0, &[b"again"]), 1);
    assert_eq!(two.fabric.stats().wakes, 1);
    two.fabric.advance(WAKE_NS.1);
    assert_eq!(two.receive(1), [b"refused".to_vec(), b"again".to_vec()]);
}

#[test]
fn rest__is_not_granted_over_a_frame() {
    let mut two = Two::new();
    assert_eq!(two.send(0, &[b"a frame"]), 1);
    assert_eq!(two.ends[1].rest(), Some(0));
    assert_eq!(two.receive(1).len(), 1);
}

/// Whatever a crashing process does to its rings, the peer detects the damage or is not harmed. Earlier frames arrive.
#[test]
fn corrupt__ends_the_link_and_nothing_else() {
    let (mut given_up, mut kept) = (0, 0);
    for seed in 0..200 {
        let mut two = Two::new();
        let warm_up = seed as usize % 60;
        (0..warm_up).for_each(|_| {
            two.send(0, &[&[1; 100]]);
            two.receive(1);
        });
        two.sleep(1);
        assert_eq!(two.send(0, &[b"last words"]), 1);
        two.ends[0].reseed_rings(seed);
        two.ends[0].crash(true);
        two.fabric.advance(10 * WAKE_NS.1);
        assert!(two.receive(1) == [b"last words"] || two.broken_rings(1) == 1);
        // Full, so that the head is read.
        two.send(1, &[&[2; FRAME_BYTES][..]; 4]);
        for _ in 0..4 {
            two.ends[1].rest();
            assert!(two.receive(1).is_empty());
            two.send(1, &[&[2; FRAME_BYTES]]);
        }
        match two.broken_rings(1) {
            0 => kept += 1,
            1 => given_up += 1,
            more => panic!("{more} rings of one peer"),
        }
    }
    assert!(given_up > 60 && kept > 20, "{given_up} rings were given up, {kept} were kept");
}

#[test]
fn add_peer__with_impossible_sizes_is_refused() {
    let mut two = Two::new();
    let bad = RingLink {
        peer: SimAddr::new(HostId(1), 1),
        number: 9,
        ring_bytes: 5_000,
        max_frame_bytes: FRAME_BYTES,
    };
    let error = two.ends[0].add_peer(DataLink::Ring(bad)).unwrap_err();
    assert!(error.to_string().contains("ring_bytes is 5000"), "{error}");
}
