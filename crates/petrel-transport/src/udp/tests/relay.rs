//! Bursts to plain and sealed peers by turns, over a wire that refuses messages.

use std::collections::VecDeque;

use proptest::collection::vec;
use proptest::prelude::*;

use super::*;
use crate::conformance::sealed_link;
use crate::udp::detached::{Arrival, Detached, Refusal, Wire};

/// A wire that refuses messages as it is told, and keeps the others for the other end.
#[derive(Default)]
struct Relay {
    refusals: VecDeque<u8>,
    messages: VecDeque<(Vec<u8>, usize)>,
}

const NEAR: ([u8; 4], u16) = ([10, 0, 0, 1], 7);
const FAR: ([u8; 4], u16) = ([10, 0, 0, 2], 7);

/// The largest frame of every peer.
const FRAME_BYTES_MAX: usize = 17_000;

impl Wire for Relay {
    fn send(&mut self, to: SocketAddr, datagrams: &[u8], segment: usize) -> Result<(), Refusal> {
        assert_eq!(to, SocketAddr::from(FAR));
        let count = datagrams.len().div_ceil(segment);
        assert!(count <= 64 && (count == 1 || datagrams.len() <= 65_507));
        assert!(segment <= FRAME_BYTES_MAX + OVERHEAD_BYTES);
        match self.refusals.pop_front() {
            Some(0) => return Err(Refusal::NoRoom),
            Some(1) if count > 1 => return Err(Refusal::NoSegmentation),
            Some(2) => return Err(Refusal::Interrupted),
            _ => {}
        }
        self.messages.push_back((datagrams.to_vec(), segment));
        Ok(())
    }

    fn receive(&mut self, datagrams: &mut Vec<u8>) -> Option<Arrival> {
        let (bytes, segment_bytes) = self.messages.pop_front()?;
        datagrams.extend(bytes);
        Some(Arrival { from: NEAR.into(), segment_bytes, is_marked: false })
    }
}

/// Adds a plain link and two sealed ones to both ends. Returns the peers at both.
fn link_all(near: &mut Detached, far: &mut Detached, epoch_bits: u32) -> Vec<[PeerId; 2]> {
    let mut peers = vec![[
        near.add_peer(FAR.into(), FRAME_BYTES_MAX).unwrap(),
        far.add_peer(NEAR.into(), FRAME_BYTES_MAX).unwrap(),
    ]];
    for secret in 1..=2 {
        let [at_near, at_far] = sealed_link(secret, [secret as u32, 10 + secret as u32]);
        peers.push([
            near.add_sealed_peer(FAR.into(), FRAME_BYTES_MAX, at_near, epoch_bits).unwrap(),
            far.add_sealed_peer(NEAR.into(), FRAME_BYTES_MAX, at_far, epoch_bits).unwrap(),
        ]);
    }
    peers
}

fn frames() -> impl Strategy<Value = Vec<(usize, usize)>> {
    let size = prop_oneof![
        4 => 1..100usize,
        2 => 1..2_100usize,
        2 => Just(3_000usize),
        1 => 2_000..=FRAME_BYTES_MAX,
        1 => Just(FRAME_BYTES_MAX),
    ];
    let several = (0..3usize, size, prop_oneof![1..3usize, 1..40usize]);
    vec(several, 1..if cfg!(miri) { 6 } else { 30 }).prop_map(|list| {
        list.into_iter().flat_map(|(peer, size, count)| vec![(peer, size); count]).collect()
    })
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(if cfg!(miri) { 4 } else { 128 }))]

    #[test]
    fn flush__of_sealed_and_plain_frames_sends_each_once_and_in_order(
        bursts in vec(frames(), 1..4),
        refusals in vec(0..20u8, 0..100),
        has_gso: bool,
        epoch_bits in 1..6u32,
    ) {
        let mut near = Detached::new(if has_gso { 65_507 } else { 0 }).unwrap();
        let mut far = Detached::new(0).unwrap();
        let peers = link_all(&mut near, &mut far, epoch_bits);
        let mut relay = Relay { refusals: refusals.into(), ..Relay::default() };
        let (mut sent, mut came) = (vec![Vec::new(); 3], vec![Vec::new(); 3]);
        let mut next = 0u8;
        for burst in bursts {
            let mut owned: Vec<Vec<u8>> = burst
                .iter()
                .map(|(_, size)| {
                    next = (next + 1) % 0xE0;
                    vec![0x10 + next; *size]
                })
                .collect();
            for ((link, size), bytes) in burst.iter().zip(&owned) {
                let (head, body) = bytes.split_at(16.min(*size));
                // SAFETY: the frames stay until the burst is flushed.
                if unsafe { near.push(&mut relay, peers[*link][0], head, body) } {
                    sent[*link].push(bytes.clone());
                }
            }
            near.flush(&mut relay);
            owned.iter_mut().for_each(|bytes| bytes.fill(0xEE));
        }
        while near.has_backlog() {
            near.flush(&mut relay);
        }
        while relay.messages.front().is_some() || far.has_ready() {
            far.rx_burst_to(&mut relay, 24, Collect(&peers, &mut came));
        }
        prop_assert!(came == sent, "frames are lost, changed or out of order");
        let (stats, at_far) = (near.stats(), far.stats());
        let all: Vec<_> = sent.iter().flatten().collect();
        prop_assert_eq!(stats.tx_frames, all.len() as u64);
        prop_assert_eq!(stats.tx_bytes, all.iter().map(|frame| frame.len() as u64).sum::<u64>());
        prop_assert_eq!((at_far.rx_frames, at_far.rx_bytes), (stats.tx_frames, stats.tx_bytes));
        prop_assert_eq!(at_far.rx_datagrams, stats.tx_datagrams);
        prop_assert_eq!(at_far.rx_dropped_replayed + at_far.rx_dropped_forged, 0);
    }
}

/// Collects the frames of every link.
struct Collect<'a>(&'a [[PeerId; 2]], &'a mut Vec<Vec<Vec<u8>>>);

impl FrameHandler<NoReturn> for Collect<'_> {
    fn handle(&mut self, peer: PeerId, frame: &[u8], _back: Option<&mut NoReturn>) {
        let link = self.0.iter().position(|peers| peers[1] == peer).expect("a known peer");
        self.1[link].push(frame.to_vec());
    }

    fn handle_marked(&mut self, _peer: PeerId, _frame: &[u8]) {
        panic!("no datagram is marked");
    }
}

/// A burst larger than the second staging area has several calls.
#[test]
fn push__sends_a_burst_of_many_large_frames_in_parts() {
    let (mut near, mut far) = (Detached::new(65_507).unwrap(), Detached::new(0).unwrap());
    let peers = link_all(&mut near, &mut far, 4);
    let mut relay = Relay::default();
    let bytes = vec![0x10; FRAME_BYTES_MAX];
    for nth in 0..240 {
        // SAFETY: the frame stays.
        assert!(unsafe { near.push(&mut relay, peers[1 + nth % 2][0], &bytes, &[]) });
    }
    near.flush(&mut relay);
    assert_eq!(near.stats().tx_datagrams, 240);
    let mut came = vec![Vec::new(); 3];
    while relay.messages.front().is_some() || far.has_ready() {
        far.rx_burst_to(&mut relay, 24, Collect(&peers, &mut came));
    }
    assert!(came[1..].iter().all(|frames| *frames == vec![bytes.clone(); 120]));
}
