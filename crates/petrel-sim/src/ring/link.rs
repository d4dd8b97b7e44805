//! How endpoints come to their rings.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::rc::Rc;

use petrel_transport::shm::ShmError;
use petrel_transport::shm::detached::{RingEnd, pair};

use super::lane::Lane;
use crate::fabric::SimAddr;
use crate::rng::{Probability, Rng};

/// How a peer is reached.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DataLink {
    /// By packets of the fabric.
    Packets(SimAddr),
    /// Through rings in memory that both share.
    Ring(RingLink),
}

impl DataLink {
    /// Where the peer is.
    pub fn peer(&self) -> SimAddr {
        match *self {
            Self::Packets(peer) | Self::Ring(RingLink { peer, .. }) => peer,
        }
    }
}

impl From<SimAddr> for DataLink {
    fn from(peer: SimAddr) -> Self {
        Self::Packets(peer)
    }
}

/// A pair of rings, as one of its sides sees it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RingLink {
    /// The other side.
    pub peer: SimAddr,
    /// What both sides call the pair, and nobody any other.
    pub number: u64,
    /// Bytes of each ring: a power of two from 4 KiB on.
    pub ring_bytes: usize,
    /// The longest frame: no more than half of a ring, less 8 bytes.
    pub max_frame_bytes: usize,
}

/// Links of processes that share memory, of which one in so many goes by packets all the same.
const LINKS_PER_FALLBACK: u64 = 8;

impl RingLink {
    /// How two endpoints whose processes share memory reach each other: both are told the same of one number. The rings
    /// are small, so that they are full now and then.
    pub(crate) fn draw(peer: SimAddr, number: u64) -> DataLink {
        let rng = &mut Rng::new(number);
        if rng.below(LINKS_PER_FALLBACK) == 0 {
            return DataLink::Packets(peer);
        }
        let ring_bytes = 4_096 << rng.below(3);
        let most = (ring_bytes / 2 - 8) as u64;
        let max_frame_bytes = if rng.below(2) == 0 { 1_472 } else { rng.between(1_232, most) };
        DataLink::Ring(Self { peer, number, ring_bytes, max_frame_bytes: max_frame_bytes as usize })
    }
}

/// What may go wrong with wake-ups.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct WakeFaults {
    /// How many come late.
    pub late: Probability,
    /// By so many nanoseconds at most.
    pub late_within_ns: u64,
    /// How many the system refuses, for lack of memory. The next frame for the sleeper brings another.
    pub refused: Probability,
}

/// What one side holds of a pair.
#[derive(Debug)]
pub(crate) struct Half {
    pub(super) end: RingEnd,
    pub(super) outgoing: Rc<RefCell<Lane>>,
    pub(super) incoming: Rc<RefCell<Lane>>,
}

/// Pairs of which one side is taken, by their numbers.
#[derive(Debug, Default)]
pub(crate) struct Halves {
    waiting: BTreeMap<u64, Half>,
    pub(crate) faults: WakeFaults,
}

impl Halves {
    /// The half of the pair that belongs to `here`: its memory is made when the first is taken.
    pub(super) fn take_half(&mut self, here: SimAddr, link: RingLink) -> Result<Half, ShmError> {
        let RingLink { peer, number, ring_bytes, max_frame_bytes } = link;
        if let Some(half) = self.waiting.remove(&number) {
            return Ok(half);
        }
        let [near, far] = pair(ring_bytes, max_frame_bytes)?;
        let [there, back] = [peer, here].map(|to| Rc::new(RefCell::new(Lane::new(to))));
        let half = Half { end: far, outgoing: Rc::clone(&back), incoming: Rc::clone(&there) };
        self.waiting.insert(number, half);
        Ok(Half { end: near, outgoing: there, incoming: back })
    }

    /// One side has left: nobody is waited for.
    pub(super) fn forget(&mut self, number: u64) {
        self.waiting.remove(&number);
    }
}
