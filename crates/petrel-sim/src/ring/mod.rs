//! The production shared-memory code, between endpoints of the simulation: records, wrapping, full rings
//! and wake-ups are those of `petrel-transport`. Memory has no packets and loses nothing: a frame is
//! readable when its burst is published. The fabric decides when the consumer polls: a wake-up takes time,
//! may be late, or is refused by the system.
//!
//! This module panics unless the frames that come out of a ring are the written frames, byte for byte and
//! in order. No consumer may sleep over published frames, unless a wake-up is in flight. Rings are
//! abandoned if the peer broke a rule, and in no other case.

mod link;
mod ring_state;

use std::cell::RefCell;
use std::rc::Rc;

use petrel_transport::shm::Outgoing;
use petrel_transport::shm::detached::{Cord, Detached, Eye, RingViolation};
use petrel_transport::{FrameHandler, LinkError, PeerId, TransportStats};

pub use link::{DataLink, RingLink, SealedPath, WakeFaults};
pub(crate) use link::{RingPairEnd, WaitingEnds};
pub(crate) use ring_state::RingState;

use crate::fabric::{FabricHandle, SimAddr};
use crate::rng::Rng;

/// The usual latency of a wake-up, in nanoseconds: from a thread spinning in the kernel to a thread with a
/// sleeping core.
pub(crate) const WAKE_NS: (u64, u64) = (500, 30_000);

/// The first and the longest pause between polls of a full ring; each pause is twice the previous pause.
pub(crate) const FULL_PAUSE_NS: (u64, u64) = (500, 64_000);

/// After one burst in this number, on average, an endpoint polls a few more times before it sleeps.
const BURSTS_PER_SPIN: u64 = 4;
pub(crate) const SPINS_MAX: u64 = 3;
const SPIN_NS: u64 = 1_000;

/// Maximum number of rests before an unread impossible header: a burst with a small budget may not reach its ring, but the next bursts do.
const RESTS_MAX: u32 = 64;

/// Crashing peers per peer that leaves its rings intact, on average.
const CRASHES_PER_INTACT_RING: u64 = 3;

#[derive(Debug)]
pub(crate) struct Rings {
    detached: Detached<SimBell>,
    fabric: FabricHandle,
    at: SimAddr,
    /// By peer.
    pairs: Vec<Option<Pair>>,
    rng: Rng,
    is_asleep: bool,
    /// True once the process has crashed: its memory is still dropped in order, and writes nothing.
    is_crashed: bool,
    /// Polls before the next sleep.
    spins: u64,
    /// Frames for which rings had no room, counted so far, and the pause before the next poll.
    blocked: u64,
    pause_ns: u64,
}

/// State of the two rings of a peer.
#[derive(Debug)]
struct Pair {
    peer: SimAddr,
    number: u64,
    outgoing: Rc<RefCell<RingState>>,
    incoming: Rc<RefCell<RingState>>,
}

impl Rings {
    pub(crate) fn new(fabric: &FabricHandle, at: SimAddr) -> Self {
        let seed = u64::from(at.host.0) << 16 | u64::from(at.port);
        Self {
            detached: Detached::default(),
            fabric: fabric.clone(),
            at,
            pairs: Vec::new(),
            rng: Rng::new(fabric.digest() ^ seed),
            is_asleep: false,
            is_crashed: false,
            spins: 0,
            blocked: 0,
            pause_ns: 0,
        }
    }

    pub(crate) fn add_peer(&mut self, link: RingLink) -> Result<PeerId, LinkError> {
        self.wake_up();
        let pair_end = self.fabric.borrow_mut().rings.take_end(self.at, link);
        let RingPairEnd { end, outgoing, incoming } =
            pair_end.map_err(|error| LinkError::Unsupported(error.to_string()))?;
        let bell = SimBell {
            fabric: self.fabric.clone(),
            outgoing: Rc::clone(&outgoing),
            incoming: Rc::clone(&incoming),
            rng: Rng::new(self.rng.next_u64()),
        };
        let peer = self.detached.add_peer(end, bell);
        let pair = Pair { peer: link.peer, number: link.number, outgoing, incoming };
        let index = peer.0 as usize;
        if self.pairs.len() <= index {
            self.pairs.resize_with(index + 1, || None);
        }
        self.pairs[index] = Some(pair);
        Ok(peer)
    }

    pub(crate) fn remove_peer(&mut self, peer: PeerId) {
        self.wake_up();
        // The transport flushes, too; flushing here publishes the frames of the burst.
        self.flush();
        self.detached.remove_peer(peer);
        if let Some(pair) = self.pairs.get_mut(peer.0 as usize).and_then(Option::take) {
            pair.leave(&self.fabric);
        }
    }

    pub(crate) fn max_frame_bytes(&self, peer: PeerId) -> usize {
        self.detached.max_frame_bytes(peer)
    }

    pub(crate) fn path_to(&mut self, peer: PeerId) -> Option<&mut Outgoing> {
        self.show_written();
        // Frames for an abandoned ring are discarded.
        match self.is_crashed || self.detached.is_given_up(peer) {
            true => None,
            false => self.detached.path_to(peer),
        }
    }

    /// Records the frames written on the path that was lent last.
    fn show_written(&mut self) {
        let mut observer = Watching { pairs: &self.pairs, fabric: &self.fabric, at: self.at };
        self.detached.show_written(&mut observer);
    }

    pub(crate) fn push(&mut self, peer: PeerId, head: &[u8], body: &[u8]) -> bool {
        if self.is_crashed {
            return true;
        }
        self.show_written();
        let is_taken = self.detached.push(peer, head, body);
        let bytes = head.len() + body.len();
        let is_possible = (1..=self.max_frame_bytes(peer)).contains(&bytes);
        // Frames for an abandoned ring are discarded.
        if is_taken && is_possible && !self.detached.is_given_up(peer) {
            self.observer().written(peer, [head, body].concat());
        }
        is_taken
    }

    pub(crate) fn flush(&mut self) {
        if self.is_crashed {
            return;
        }
        self.show_written();
        self.detached.flush();
        let now = self.fabric.now();
        for pair in self.pairs.iter().flatten() {
            pair.outgoing.borrow_mut().publish(now);
        }
    }

    pub(crate) fn rx_burst_to<H: FrameHandler<Outgoing>>(
        &mut self,
        budget: usize,
        handler: H,
    ) -> usize {
        self.wake_up();
        self.show_written();
        let clock = self.fabric.borrow_mut().note_step();
        // For an actor that stops in this turn, later frames have not arrived yet.
        let has_later =
            self.pairs.iter().flatten().any(|pair| pair.incoming.borrow().newest() > clock);
        if has_later {
            return 0;
        }
        let mut observer = Watching { pairs: &self.pairs, fabric: &self.fabric, at: self.at };
        let count = self.detached.rx_burst_to(budget, handler, &mut observer);
        if count > 0 && self.rng.below(BURSTS_PER_SPIN) == 0 {
            self.spins = self.rng.between(1, SPINS_MAX);
        }
        self.check_given_up();
        count
    }

    /// Lets an endpoint rest that has nothing to do. Returns the time of the next poll without a wake-up; `None` if
    /// asleep.
    pub(crate) fn rest(&mut self) -> Option<u64> {
        if self.pairs.iter().all(Option::is_none) {
            return None;
        }
        let now_ns = self.fabric.now_ns();
        if let Some(pause_ns) = self.pause_before_full_ring() {
            return Some(now_ns + pause_ns);
        }
        if let Some(left) = self.spins.checked_sub(1) {
            self.spins = left;
            return Some(now_ns + SPIN_NS);
        }
        if !self.sleep() {
            return Some(now_ns);
        }
        // Earlier wake-ups take effect at once.
        let has_arrived_wakes =
            self.pairs.iter().flatten().any(|pair| pair.incoming.borrow().has_arrived_wakes());
        if has_arrived_wakes {
            self.wake_up();
            return Some(now_ns);
        }
        None
    }

    /// Returns true if the rings hold frames that the endpoint has not taken.
    pub(crate) fn has_received(&self) -> bool {
        self.pairs.iter().flatten().any(|pair| pair.incoming.borrow().published() > 0)
    }

    pub(crate) fn stats(&self) -> TransportStats {
        self.detached.stats()
    }

    /// Corrupts the rings like a crashing process.
    pub(crate) fn corrupt(&mut self) {
        let Self { detached, fabric, pairs, rng, .. } = self;
        for (pair, peer) in pairs.iter().zip(0u32..) {
            let Some(pair) = pair else { continue };
            let violation = match rng.below(8) {
                0 => RingViolation::HeadOffTheLines,
                1 => RingViolation::HeadBeyond,
                2 => RingViolation::HeaderOfElsewhere,
                3 => RingViolation::HeaderOfNothing,
                4 => RingViolation::HeaderTooLong,
                5 => RingViolation::HeaderBeyondTheEnd,
                6 => RingViolation::HalfRecord,
                _ => {
                    pair.outgoing.borrow_mut().note_violation(None);
                    let too_many = pair.outgoing.borrow().sleeps() + 1;
                    fabric.borrow_mut().ring(&pair.outgoing, WAKE_NS.1, too_many);
                    fabric.borrow_mut().stats.rings_corrupted += 1;
                    continue;
                }
            };
            let is_intact = rng.below(CRASHES_PER_INTACT_RING) == 0;
            if is_intact || !detached.misbehave(PeerId(peer), violation) {
                continue;
            }
            fabric.borrow_mut().stats.rings_corrupted += 1;
            match violation {
                // No reader ever sees this record.
                RingViolation::HalfRecord => {}
                RingViolation::HeadOffTheLines | RingViolation::HeadBeyond => {
                    pair.incoming.borrow_mut().note_violation(None);
                }
                _ => {
                    pair.outgoing.borrow_mut().note_violation(Some(violation));
                    fabric.borrow_mut().ring(&pair.outgoing, WAKE_NS.1, 1);
                }
            }
        }
    }

    pub(crate) fn crash(&mut self) {
        self.is_crashed = true;
    }

    #[cfg(test)]
    pub(crate) fn reseed(&mut self, seed: u64) {
        self.rng = Rng::new(seed);
    }

    fn observer(&self) -> Watching<'_> {
        Watching { pairs: &self.pairs, fabric: &self.fabric, at: self.at }
    }

    /// Returns the pause if a ring has had no room since the last call: its consumer does not wake producers.
    fn pause_before_full_ring(&mut self) -> Option<u64> {
        let blocked = self.detached.stats().tx_blocked;
        let before = std::mem::replace(&mut self.blocked, blocked);
        if blocked == before {
            self.pause_ns = 0;
            return None;
        }
        self.fabric.borrow_mut().stats.rings_full += 1;
        let (least_ns, most_ns) = FULL_PAUSE_NS;
        self.pause_ns = (2 * self.pause_ns).clamp(least_ns, most_ns);
        Some(self.pause_ns)
    }

    /// Goes to sleep and returns true, unless frames have arrived.
    fn sleep(&mut self) -> bool {
        for pair in self.pairs.iter().flatten() {
            pair.incoming.borrow_mut().note_sleep();
        }
        self.is_asleep = self.detached.prepare_wait();
        for (pair, peer) in self.pairs.iter().zip(0u32..) {
            let Some(pair) = pair else { continue };
            let mut incoming = pair.incoming.borrow_mut();
            incoming.set_asleep(self.is_asleep);
            let is_given_up = self.detached.is_given_up(PeerId(peer));
            assert!(
                !self.is_asleep || incoming.published() == 0 || is_given_up,
                "{} sleeps, and has not taken what {} has published",
                self.at,
                pair.peer,
            );
            assert!(
                is_given_up || incoming.rests_over_bad_header() < RESTS_MAX,
                "{} has seen an impossible header of {}, and goes on",
                self.at,
                pair.peer,
            );
        }
        self.is_asleep
    }

    fn wake_up(&mut self) {
        if !std::mem::take(&mut self.is_asleep) {
            return;
        }
        for pair in self.pairs.iter().flatten() {
            pair.incoming.borrow_mut().set_asleep(false);
        }
        self.detached.finish_wait();
        self.check_given_up();
    }

    /// Checks that rings are given up only after a side has broken a rule.
    fn check_given_up(&self) {
        if self.detached.stats().rx_broken_rings == 0 {
            return;
        }
        for (pair, peer) in self.pairs.iter().zip(0u32..) {
            let Some(pair) = pair else { continue };
            let has_reason =
                pair.incoming.borrow().is_corrupted() || pair.outgoing.borrow().is_corrupted();
            assert!(
                has_reason || !self.detached.is_given_up(PeerId(peer)),
                "{} gives up its rings to {}, which has kept the rules",
                self.at,
                pair.peer,
            );
        }
    }
}

impl Drop for Rings {
    fn drop(&mut self) {
        let pairs = std::mem::take(&mut self.pairs);
        pairs.into_iter().flatten().for_each(|pair| pair.leave(&self.fabric));
    }
}

impl Pair {
    /// Records that this end of the pair has left.
    fn leave(self, fabric: &FabricHandle) {
        self.incoming.borrow_mut().set_asleep(false);
        // A panic inside the fabric may be unwinding through the transport's owner.
        if let Ok(mut fabric) = fabric.try_borrow_mut() {
            fabric.rings.forget(self.number);
        }
    }
}

/// Sees the frames of an endpoint's rings.
struct Watching<'a> {
    pairs: &'a [Option<Pair>],
    fabric: &'a FabricHandle,
    at: SimAddr,
}

impl Watching<'_> {
    fn pair(&self, peer: PeerId) -> &Pair {
        let pair = self.pairs.get(peer.0 as usize).and_then(Option::as_ref);
        pair.unwrap_or_else(|| panic!("{} has frames of nobody's rings", self.at))
    }

    fn written(&self, peer: PeerId, frame: Vec<u8>) {
        let pair = self.pair(peer);
        self.fabric.borrow_mut().show_ring_frame(self.at, pair.peer, &frame, true);
        pair.outgoing.borrow_mut().write(frame);
    }
}

impl Eye for Watching<'_> {
    fn taken(&mut self, peer: PeerId, frame: &[u8]) {
        let pair = self.pair(peer);
        pair.incoming.borrow_mut().take(frame);
        self.fabric.borrow_mut().show_ring_frame(pair.peer, self.at, frame, false);
    }

    fn answered(&mut self, peer: PeerId, frame: &[u8]) {
        self.fabric.borrow_mut().note_step();
        self.written(peer, frame.to_vec());
    }
}

/// The wake-up channel between an endpoint and its peer.
#[derive(Debug)]
struct SimBell {
    fabric: FabricHandle,
    outgoing: Rc<RefCell<RingState>>,
    incoming: Rc<RefCell<RingState>>,
    rng: Rng,
}

impl Cord for SimBell {
    /// Wakes the consumer after a drawn delay. Returns false if the system refuses.
    fn ring(&mut self) -> bool {
        let mut fabric = self.fabric.borrow_mut();
        let WakeFaults { late, late_within_ns, refused } = fabric.rings.faults;
        if self.rng.chance(refused) {
            fabric.stats.wakes_refused += 1;
            self.outgoing.borrow_mut().note_refusal();
            return false;
        }
        let mut delay_ns = self.rng.between(WAKE_NS.0, WAKE_NS.1);
        if self.rng.chance(late) {
            fabric.stats.wakes_late += 1;
            delay_ns += self.rng.below(late_within_ns.max(1));
        }
        fabric.ring(&self.outgoing, delay_ns, 1);
        true
    }

    fn take_rung(&mut self) -> u64 {
        self.incoming.borrow_mut().take_arrived_wakes()
    }
}

#[cfg(test)]
mod tests;
