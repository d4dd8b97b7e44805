//! The links of a simulated UDP transport by the specification (`docs/wire-protocol.md` §17.3): the rules of departing and of received
//! datagrams. Written from the text of the specification; only the keys are shared with the transport.

use std::collections::{BTreeMap, BTreeSet};

use petrel_transport::seal::{
    DatagramKey, HEAD_BYTES, NUMBER_END, OVERHEAD_BYTES, SEALED_MARK, SealedLink, TAG_BYTES,
};
use petrel_transport::{PeerId, TransportStats, bundle};

use crate::fabric::SimAddr;
use crate::ring::SealedPath;

/// Remembered numbers up to the highest accepted number.
const WINDOW_NUMBERS: u64 = 1_024;

#[derive(Debug, Default)]
pub(super) struct Links {
    peers: BTreeMap<PeerId, Peer>,
    /// The receiving ends of sealed links, by path.
    receiving: BTreeMap<u32, Receiving>,
    /// The sending ends of all sealed links so far, by path, the newest last: datagrams may leave after the end of their link.
    sending: BTreeMap<(SimAddr, u32), Vec<Sending>>,
}

#[derive(Debug)]
struct Peer {
    at: SimAddr,
    source: PeerId,
    /// Links of a plain peer.
    count: u32,
    /// For a sealed peer, the path of this side: a number that the transport uses for a single link.
    path: Option<u32>,
}

#[derive(Debug)]
struct Sending {
    keys: Keys,
    /// Greater than all numbers so far.
    next: u64,
    /// The path of this side.
    path: u32,
}

#[derive(Debug)]
struct Receiving {
    from: SimAddr,
    peer: PeerId,
    keys: Keys,
    accepted: BTreeSet<u64>,
}

/// The keys of a direction, by epoch.
#[derive(Debug)]
struct Keys {
    epoch_bits: u32,
    by_epoch: Vec<Box<dyn DatagramKey>>,
}

/// What becomes of a received datagram.
#[derive(Debug)]
pub(super) enum Verdict {
    /// The frames are delivered as frames of the peer.
    Deliver {
        peer: PeerId,
        contents: Vec<u8>,
        is_sealed: bool,
    },
    Drop(Why),
}

/// Why a datagram is dropped.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Why {
    UnknownPeer,
    Plain,
    Forged,
    /// Accepted before, or too old by number or epoch; with the number of later epochs.
    Replayed {
        epochs: u64,
    },
    Malformed,
}

/// Dropped datagrams by reason.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Dropped {
    unknown_peer: u64,
    plain: u64,
    forged: u64,
    replayed: u64,
    malformed: u64,
}

impl Dropped {
    pub(super) fn of(stats: &TransportStats) -> Self {
        Self {
            unknown_peer: stats.rx_dropped_unknown_peer,
            plain: stats.rx_dropped_plain,
            forged: stats.rx_dropped_forged,
            replayed: stats.rx_dropped_replayed,
            malformed: stats.rx_dropped_malformed,
        }
    }

    pub(super) fn count(&mut self, why: Why) {
        *match why {
            Why::UnknownPeer => &mut self.unknown_peer,
            Why::Plain => &mut self.plain,
            Why::Forged => &mut self.forged,
            Why::Replayed { .. } => &mut self.replayed,
            Why::Malformed => &mut self.malformed,
        } += 1;
    }

    pub(super) fn total(&self) -> u64 {
        self.unknown_peer + self.plain + self.forged + self.replayed + self.malformed
    }
}

impl Keys {
    fn new(key: Box<dyn DatagramKey>, epoch_bits: u32) -> Self {
        Self { epoch_bits, by_epoch: vec![key] }
    }

    /// Opens a sealed datagram. The caller has checked the epoch.
    fn open(&mut self, sealed: &[u8]) -> Option<Vec<u8>> {
        let (&head, body) = sealed.split_first_chunk::<HEAD_BYTES>()?;
        let number = number_of(&head);
        let epoch = (number >> self.epoch_bits) as usize;
        while self.by_epoch.len() <= epoch {
            self.by_epoch.push(self.by_epoch.last()?.next());
        }
        let mut contents = body.to_vec();
        let is_authentic = self.by_epoch[epoch].open(number, &head, &mut contents);
        contents.truncate(body.len() - TAG_BYTES);
        is_authentic.then_some(contents)
    }
}

fn path_of(head: &[u8; HEAD_BYTES]) -> u32 {
    let [_, low, middle, high, ..] = *head;
    u32::from_le_bytes([low, middle, high, 0])
}

fn number_of(head: &[u8; HEAD_BYTES]) -> u64 {
    let [_, _, _, _, number @ ..] = *head;
    u64::from_le_bytes(number)
}

impl Links {
    pub(super) fn add(&mut self, at: SimAddr, peer: PeerId, source: PeerId) {
        let new = Peer { at, source, count: 0, path: None };
        self.peers.entry(peer).or_insert(new).count += 1;
    }

    pub(super) fn add_sealed(&mut self, link: SealedPath, peer: PeerId) {
        let SealedPath { peer: at, epoch_bits, .. } = link;
        let SealedLink { local_path, remote_path, send, receive } = link.keys();
        self.peers.insert(peer, Peer { at, source: peer, count: 1, path: Some(local_path) });
        let (keys, accepted) = (Keys::new(receive, epoch_bits), BTreeSet::new());
        self.receiving.insert(local_path, Receiving { from: at, peer, keys, accepted });
        let sending = Sending { keys: Keys::new(send, epoch_bits), next: 0, path: local_path };
        self.sending.entry((at, remote_path)).or_default().push(sending);
    }

    pub(super) fn remove(&mut self, peer: PeerId) {
        let Some(known) = self.peers.get_mut(&peer) else { return };
        known.count -= 1;
        if known.count == 0 {
            known.path.map(|path| self.receiving.remove(&path));
            self.peers.remove(&peer);
        }
    }

    /// Returns the address of the peer under which frames are delivered, and the path of this side if the peer is
    /// sealed.
    pub(super) fn sender_of(&self, peer: PeerId) -> (SimAddr, Option<u32>) {
        let found = self.peers.values().find(|known| known.source == peer);
        let Some(known) = found else { panic!("a frame is delivered of {peer:?}, which is none") };
        (known.at, known.path)
    }

    /// Returns the path of this side to a sealed peer. A former link may have had the same address and path of the peer, and datagrams
    /// left to send.
    pub(super) fn path_of(&self, peer: PeerId) -> Option<u32> {
        self.peers.get(&peer)?.path
    }

    /// Returns the path of this side and the contents of a departing sealed datagram.
    pub(super) fn open_leaving(&mut self, to: SimAddr, datagram: &[u8]) -> Option<(u32, Vec<u8>)> {
        let head = datagram.first_chunk().filter(|head| head[0] == SEALED_MARK)?;
        let of_path = self.sending.get_mut(&(to, path_of(head))).into_iter().flatten().rev();
        for sending in of_path {
            let number = number_of(head);
            let is_near = number >> sending.keys.epoch_bits <= sending.keys.by_epoch.len() as u64;
            let opened = if is_near { sending.keys.open(datagram) } else { None };
            let Some(contents) = opened else { continue };
            assert!(number >= sending.next, "number {number} to {to} leaves again");
            sending.next = number + 1;
            return Some((sending.path, contents));
        }
        panic!("a datagram to {to} is sealed for no link: {head:?}");
    }

    /// Decides about a received datagram.
    pub(super) fn judge(&mut self, from: SimAddr, datagram: &[u8]) -> Verdict {
        let is_sealed = |peer: &&Peer| peer.path.is_some();
        let here = || self.peers.values().filter(|peer| peer.at == from);
        let (sealed, plain) = (here().find(is_sealed), here().find(|peer| !is_sealed(peer)));
        let has_mark = datagram.first() == Some(&SEALED_MARK) && !self.receiving.is_empty();
        match (sealed, plain) {
            // An address with only plain links: all frames go to the plain peer.
            (None, Some(peer)) => deliver(peer.source, datagram.to_vec(), false),
            _ if has_mark => self.judge_sealed(from, datagram),
            (Some(_), Some(peer)) => deliver(peer.source, datagram.to_vec(), false),
            (Some(_), None) => Verdict::Drop(Why::Plain),
            (None, None) => Verdict::Drop(Why::UnknownPeer),
        }
    }

    fn judge_sealed(&mut self, from: SimAddr, datagram: &[u8]) -> Verdict {
        let Some(head) = datagram.first_chunk().filter(|_| datagram.len() > OVERHEAD_BYTES) else {
            return Verdict::Drop(Why::Malformed);
        };
        let of_path = self.receiving.get_mut(&path_of(head)).filter(|end| end.from == from);
        let Some(end) = of_path else { return Verdict::Drop(Why::UnknownPeer) };
        let (number, highest) = (number_of(head), end.accepted.last().copied());
        let epoch_of = |number: u64| number >> end.keys.epoch_bits;
        let epoch = highest.map_or(0, epoch_of);
        let is_remembered =
            highest.is_none_or(|highest| highest.saturating_sub(number) < WINDOW_NUMBERS);
        let epochs = epoch.saturating_sub(epoch_of(number));
        if number >= NUMBER_END
            || end.accepted.contains(&number)
            || !is_remembered
            || epoch_of(number).abs_diff(epoch) > 1
        {
            return Verdict::Drop(Why::Replayed { epochs });
        }
        let Some(contents) = end.keys.open(datagram) else { return Verdict::Drop(Why::Forged) };
        end.accepted.insert(number);
        match contents.first() {
            Some(&SEALED_MARK) => Verdict::Drop(Why::Malformed),
            _ => deliver(end.peer, contents, true),
        }
    }
}

fn deliver(peer: PeerId, contents: Vec<u8>, is_sealed: bool) -> Verdict {
    match bundle::frames(&contents) {
        Some(_) => Verdict::Deliver { peer, contents, is_sealed },
        None => Verdict::Drop(Why::Malformed),
    }
}
