//! How endpoints attach to their rings.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::rc::Rc;

use petrel_transport::conformance::sealed_link;
use petrel_transport::seal::SealedLink;
use petrel_transport::shm::ShmError;
use petrel_transport::shm::detached::{RingEnd, pair};

use super::ring_state::RingState;
use crate::fabric::SimAddr;
use crate::rng::Probability;

/// The link to a peer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DataLink {
    /// By packets of the fabric.
    Packets {
        /// The other side.
        peer: SimAddr,
        /// The longest frame that both sides take.
        max_frame_bytes: usize,
    },
    /// By sealed packets of the fabric, between endpoints with the medium of UDP.
    Sealed(SealedPath),
    /// Through rings in shared memory.
    Ring(RingLink),
}

impl DataLink {
    /// Returns the peer's address.
    pub fn peer(&self) -> SimAddr {
        match *self {
            Self::Packets { peer, .. }
            | Self::Sealed(SealedPath { peer, .. })
            | Self::Ring(RingLink { peer, .. }) => peer,
        }
    }

    /// Returns the paths of a sealed link, as in [`SealedPath::paths`].
    pub(crate) fn key_paths(&self) -> Option<[u32; 2]> {
        match *self {
            Self::Sealed(SealedPath { paths, .. }) => Some(paths),
            Self::Packets { .. } | Self::Ring(_) => None,
        }
    }
}

/// A sealed link, from the perspective of one side. The keys are test keys ([`TestKey`](petrel_transport::conformance::TestKey)): cheap,
/// not secure, and derived from the seed. Numbers, epochs and the replay window are production code.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SealedPath {
    /// The other side.
    pub peer: SimAddr,
    /// The longest frame that both sides take, before sealing.
    pub max_frame_bytes: usize,
    /// The paths of the link: first the path of this side, then of the other side.
    pub paths: [u32; 2],
    /// The secret of both keys.
    pub secret: u64,
    /// Whether this side has opened the link.
    pub is_opener: bool,
    /// The key changes after 2 to the power of this number of datagrams.
    pub epoch_bits: u32,
}

impl SealedPath {
    /// Returns this side's keys.
    pub(crate) fn keys(&self) -> SealedLink {
        let [local, remote] = self.paths;
        let paths = if self.is_opener { [local, remote] } else { [remote, local] };
        let [opener, acceptor] = sealed_link(self.secret, paths);
        if self.is_opener { opener } else { acceptor }
    }
}

/// A link with frames as long as this side's.
impl From<SimAddr> for DataLink {
    fn from(peer: SimAddr) -> Self {
        Self::Packets { peer, max_frame_bytes: usize::MAX }
    }
}

/// A pair of rings, from the perspective of one side.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RingLink {
    /// The other side.
    pub peer: SimAddr,
    /// The number of the pair, unique and common to its sides.
    pub number: u64,
    /// Bytes of each ring: a power of two, at least 4 KiB.
    pub ring_bytes: usize,
    /// The longest frame: at most half of a ring minus 8 bytes.
    pub max_frame_bytes: usize,
}

/// The faults of wake-ups.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct WakeFaults {
    /// The share of late wake-ups.
    pub late: Probability,
    /// Their maximum delay, in nanoseconds.
    pub late_within_ns: u64,
    /// The share of wake-ups that the system refuses, for lack of memory. The next frame for the sleeper sends another.
    pub refused: Probability,
}

/// One side's half of a pair.
#[derive(Debug)]
pub(crate) struct RingPairEnd {
    pub(super) end: RingEnd,
    pub(super) outgoing: Rc<RefCell<RingState>>,
    pub(super) incoming: Rc<RefCell<RingState>>,
}

/// Pairs with one side taken, by number.
#[derive(Debug, Default)]
pub(crate) struct WaitingEnds {
    waiting: BTreeMap<u64, RingPairEnd>,
    pub(crate) faults: WakeFaults,
}

impl WaitingEnds {
    /// Takes the half of the pair that belongs to `here`. The first half taken allocates the memory.
    pub(super) fn take_end(
        &mut self,
        here: SimAddr,
        link: RingLink,
    ) -> Result<RingPairEnd, ShmError> {
        let RingLink { peer, number, ring_bytes, max_frame_bytes } = link;
        if let Some(pair_end) = self.waiting.remove(&number) {
            return Ok(pair_end);
        }
        let [near, far] = pair(ring_bytes, max_frame_bytes)?;
        let [there, back] = [peer, here].map(|to| Rc::new(RefCell::new(RingState::new(to))));
        let pair_end =
            RingPairEnd { end: far, outgoing: Rc::clone(&back), incoming: Rc::clone(&there) };
        self.waiting.insert(number, pair_end);
        Ok(RingPairEnd { end: near, outgoing: there, incoming: back })
    }

    /// Drops a half without a peer, because a side has left.
    pub(super) fn forget(&mut self, number: u64) {
        self.waiting.remove(&number);
    }
}
