//! The fuzz target `sealed`: datagrams, honest and forged, to a transport with sealed links and a plain one.

use std::collections::BTreeSet;
use std::net::SocketAddr;

use super::super::addr::{AddrKey, RawAddr};
use super::super::deliver::deliver_train;
use super::super::peers::PeerTable;
use super::super::receive::Receiver;
use super::Input;
use crate::bundle;
use crate::conformance::sealed_link;
use crate::seal::{Epochs, HEAD_BYTES, SEALED_MARK, Sender, TAG_BYTES};
use crate::transport::{FrameHandler, NoReturn, PeerId, TransportStats};

/// Short epochs: the numbers of an input are in many.
const EPOCH_BITS: u32 = 3;

const WINDOW_NUMBERS: u64 = 1_024;

/// Most datagrams of an input.
const DATAGRAMS_MAX: usize = 3_000;

/// The links' paths. The first two are from one address, which has a plain peer, too.
const PATHS: [u32; 3] = [1, 0x00AB_CDEF, 3];

/// The port from which links send, and the announced one of the first link.
const PORTS: [u16; 3] = [1, 1, 2];
const FURTHER_PORT: u16 = 3;

fn address(port: u16) -> SocketAddr {
    SocketAddr::from(([10, 0, 0, 1], port))
}

/// Sends datagrams that links have sealed: each as it is or changed, at any time, from any address, any number of times. Sends other bytes,
/// too. The frames delivered must be those of unchanged datagrams from an address of their link, each once, and those of plain datagrams for
/// the plain peer.
pub fn check(data: &[u8]) {
    let mut input = Input(data);
    let mut world = World::new();
    for _ in 0..DATAGRAMS_MAX {
        if input.is_empty() {
            break;
        }
        match input.below(3) {
            0 => world.seal(&mut input),
            _ => world.receive(&mut input),
        }
    }
}

/// A link, seen from outside.
struct Link {
    peer: PeerId,
    sender: Sender,
    /// The datagrams so far, by number, with their contents.
    sealed: Vec<(Vec<u8>, Vec<u8>)>,
    accepted: BTreeSet<u64>,
}

struct World {
    receiver: Receiver,
    peers: PeerTable,
    plain: PeerId,
    links: [Link; PATHS.len()],
    stats: TransportStats,
}

/// The received frames, with their peer and the number of its port.
#[derive(Debug, Default, PartialEq)]
struct Came(Vec<(PeerId, u8, Vec<u8>)>);

impl FrameHandler<NoReturn> for Came {
    fn handle(&mut self, peer: PeerId, frame: &[u8], _back: Option<&mut NoReturn>) {
        self.0.push((peer, 0, frame.to_vec()));
    }

    fn handle_marked(&mut self, peer: PeerId, frame: &[u8]) {
        self.0.push((peer, 0, frame.to_vec()));
    }

    fn handle_from(&mut self, peer: PeerId, source: u8, frame: &[u8], _is_marked: bool) {
        self.0.push((peer, source, frame.to_vec()));
    }
}

impl World {
    fn new() -> Self {
        let epochs = Epochs::of_bits(EPOCH_BITS);
        let mut peers = PeerTable::new();
        let plain = peers.add(address(PORTS[0]), 9_000, (false, None)).expect("a first peer");
        let links = [0, 1, 2].map(|nth| {
            let [here, there] = sealed_link(nth as u64, [PATHS[nth], 7]);
            let terms = (false, None);
            let peer = peers.add_sealed(address(PORTS[nth]), 9_000, terms, here, epochs);
            Link {
                peer: peer.expect("four peers fit"),
                sender: Sender::new(there.remote_path, there.send, epochs),
                sealed: Vec::new(),
                accepted: BTreeSet::new(),
            }
        });
        peers.accept_ports(links[0].peer, &[9, FURTHER_PORT]).expect("room for ports");
        let receiver = Receiver::new(true).expect("memory for buffers");
        Self { receiver, peers, plain, links, stats: TransportStats::default() }
    }

    /// Seals a frame, a bundle, or other bytes.
    fn seal(&mut self, input: &mut Input<'_>) {
        let link = &mut self.links[input.below(PATHS.len())];
        let len = 1 + input.below(40);
        let mut plain = input.take(len).to_vec();
        plain.resize(len, 0x10);
        if input.below(4) > 0 {
            plain[0] |= 0x10;
        }
        let mut datagram = [&[0; HEAD_BYTES], &plain[..], &[0; TAG_BYTES]].concat();
        link.sender.seal(&mut datagram);
        link.sealed.push((datagram, plain));
    }

    /// Receives one datagram, or several of a size.
    fn receive(&mut self, input: &mut Input<'_>) {
        let mut train = Vec::new();
        let mut segment = None;
        for _ in 0..=input.below(4) {
            let mut datagram = self.datagram(input);
            let size = *segment.get_or_insert(datagram.len());
            let is_last = datagram.len() < size;
            datagram.truncate(size);
            train.extend(datagram);
            if is_last {
                break;
            }
        }
        let from = address([1, 1, 1, 2, 2, FURTHER_PORT, 6, 5][input.below(8)]);
        let size = segment.unwrap_or(0).max(1);
        let is_joined = size < train.len();
        let joined = is_joined.then_some(size as u32);
        self.receiver.fill_with_any(&RawAddr::from(from), &train, joined, 0);
        let (mut came, mut expected) = (Came::default(), Came::default());
        train.chunks(size).for_each(|datagram| self.expect(from, datagram, &mut expected));
        let budget = 1 + input.below(5);
        let Self { receiver, peers, stats, .. } = self;
        while receiver.has_ready() {
            let (_, work) = deliver_train(receiver, peers, stats, budget, &mut came);
            assert!(work > 0, "a turn without work would have no end");
        }
        assert_eq!(came, expected);
    }

    /// A sealed datagram, perhaps changed, or any bytes.
    fn datagram(&self, input: &mut Input<'_>) -> Vec<u8> {
        let link = &self.links[input.below(PATHS.len())];
        // Mostly the latest.
        let back = if input.below(4) == 0 { input.number() } else { input.below(4) };
        let Some((sealed, _)) = link.sealed.iter().rev().nth(back) else {
            let len = input.below(64);
            return input.take(len).to_vec();
        };
        let mut datagram = sealed.clone();
        match input.below(8) {
            0 => {
                let bit = input.number() % (datagram.len() * 8);
                datagram[bit / 8] ^= 1 << (bit % 8);
            }
            1 => datagram.truncate(input.below(80)),
            2 => datagram.extend(input.take(3)),
            3 => {
                let path = PATHS[input.below(PATHS.len())].to_le_bytes();
                datagram[1..4].copy_from_slice(&path[..3]);
            }
            4 => datagram[4] = input.below(256) as u8,
            _ => {}
        }
        datagram
    }

    /// The specification, read literally.
    fn expect(&mut self, from: SocketAddr, datagram: &[u8], expected: &mut Came) {
        if datagram.first() != Some(&SEALED_MARK) {
            let is_heard = from == address(PORTS[0]);
            let frames = bundle::frames(datagram).filter(|_| is_heard).into_iter().flatten();
            expected.0.extend(frames.map(|frame| (self.plain, 0, frame.to_vec())));
            return;
        }
        for (nth, link) in self.links.iter_mut().enumerate() {
            let own = AddrKey::from(address(PORTS[nth])) == AddrKey::from(from);
            let further = nth == 0 && from == address(FURTHER_PORT);
            let number = link.sealed.iter().position(|(sealed, _)| sealed == datagram);
            let Some(number) = number.filter(|_| own || further) else { continue };
            let (number, contents) = (number as u64, &link.sealed[number].1);
            let highest = link.accepted.last().copied();
            let epoch = highest.unwrap_or(0) >> EPOCH_BITS;
            let has_key = (number >> EPOCH_BITS).abs_diff(epoch) <= 1;
            let is_remembered = highest.is_none_or(|highest| number + WINDOW_NUMBERS > highest);
            if !has_key || !is_remembered || !link.accepted.insert(number) {
                continue;
            }
            let source = if further { 2 } else { 0 };
            let frames = bundle::frames(contents).filter(|_| contents[0] != SEALED_MARK);
            let frames = frames.into_iter().flatten();
            expected.0.extend(frames.map(|frame| (link.peer, source, frame.to_vec())));
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::collection::vec;
    use proptest::prelude::*;

    #[test]
    fn sealed__corpus() {
        super::super::tests::check_corpus("sealed", 8, super::check);
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(if cfg!(miri) { 4 } else { 256 }))]

        #[test]
        fn sealed__of_any_input(data in vec(any::<u8>(), 0..4_000)) {
            super::check(&data);
        }
    }
}
