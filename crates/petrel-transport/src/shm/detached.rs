//! The transport without segments, sockets and sleep, for simulators. Rings, bursts and the choice
//! of peers to wake are those of [`Shm`](super::Shm). The memory of a pair is on the heap of one
//! process, which has the two ends. A [`Cord`] replaces the system's wake-ups.

use std::sync::Arc;

use super::bell::{Doorbell, Heard, Tally};
use super::config::Geometry;
use super::error::ShmError;
use super::layout::segment_bytes;
use super::link::OpenLink;
use super::mapping::{Mapping, RingMemory};
pub use super::peer::RingViolation;
use super::peer::{Outgoing, Peer};
use super::ring::{Consumer, Producer};
use super::rings::Rings;
use super::segment::{Side, ends_of};
use crate::transport::{FrameHandler, PeerId, SharedFrame, TransportStats};

/// Carries wake-ups between an endpoint and a peer.
pub trait Cord {
    /// Wakes the peer. Returns false if the system could not now, and may later.
    fn ring(&mut self) -> bool;

    /// Returns the number of wake-ups from the peer since the last call.
    fn take_rung(&mut self) -> u64;
}

/// Observes frames outside [`Transport::push`](crate::Transport::push): received frames, and frames
/// written by handlers into the return path.
pub trait Eye {
    /// Called for each frame delivered to the endpoint.
    fn taken(&mut self, peer: PeerId, frame: &[u8]);

    /// Called for every frame written by the endpoint while handling a frame of `peer`.
    fn answered(&mut self, peer: PeerId, frame: &[u8]);
}

/// One side of a pair of rings.
#[derive(Debug)]
pub struct RingEnd {
    outgoing: Producer<RingMemory>,
    incoming: Consumer<RingMemory>,
    max_frame_bytes: usize,
}

/// Creates rings for two endpoints of this process, small ones if desired.
///
/// # Errors
/// When the sizes are impossible, or memory is lacking.
pub fn pair(ring_bytes: usize, max_frame_bytes: usize) -> Result<[RingEnd; 2], ShmError> {
    let geometry = Geometry::detached(ring_bytes, max_frame_bytes)?;
    let mapping = Arc::new(Mapping::on_heap(segment_bytes(geometry))?);
    Ok([Side::Creator, Side::Opener].map(|side| {
        let (outgoing, incoming) = ends_of(&mapping, geometry, side);
        RingEnd { outgoing, incoming, max_frame_bytes }
    }))
}

/// See the [module](self). The methods are those of [`Transport`](crate::Transport) and of
/// [`Shm`](super::Shm).
#[derive(Debug)]
pub struct Detached<C> {
    rings: Rings<Rope<C>>,
    /// The path returned last, by its peer, and the position of its next frame then.
    lent: Option<(PeerId, u64)>,
}

impl<C: Cord> Default for Detached<C> {
    fn default() -> Self {
        Self { rings: Rings::new(), lent: None }
    }
}

impl<C: Cord> Detached<C> {
    /// Adds the peer at the other end of a pair.
    pub fn add_peer(&mut self, end: RingEnd, cord: C) -> PeerId {
        let RingEnd { outgoing, incoming, max_frame_bytes } = end;
        let bell = Rope { cord, tally: Tally::default() };
        self.rings.add(Peer::new(OpenLink { outgoing, incoming, bell, max_frame_bytes }, false))
    }

    /// See [`Transport::remove_peer`](crate::Transport::remove_peer).
    pub fn remove_peer(&mut self, peer: PeerId) {
        self.rings.remove(peer);
    }

    /// See [`Transport::max_frame_bytes`](crate::Transport::max_frame_bytes).
    pub fn max_frame_bytes(&self, peer: PeerId) -> usize {
        self.rings.max_frame_bytes(peer)
    }

    /// See [`Transport::push`](crate::Transport::push). The frame is copied at once.
    pub fn push(&mut self, peer: PeerId, head: &[u8], body: &[u8]) -> bool {
        self.rings.push(peer, head, body)
    }

    /// See [`Transport::path_to`](crate::Transport::path_to). Before any other method that sends or receives, call
    /// [`Detached::show_written`].
    pub fn path_to(&mut self, peer: PeerId) -> Option<&mut Outgoing> {
        assert!(self.lent.is_none(), "frames on the former path were shown");
        let path = self.rings.path_to(peer)?;
        self.lent = Some((peer, path.position()));
        Some(path)
    }

    /// Shows `eye` the frames written on the path returned last.
    pub fn show_written<E: Eye>(&mut self, eye: &mut E) {
        if let Some((peer, position)) = self.lent.take()
            && let Some(path) = self.rings.path_to(peer)
        {
            path.look_back(position, |frame| eye.answered(peer, &frame.to_vec()));
        }
    }

    /// See [`Transport::flush`](crate::Transport::flush).
    pub fn flush(&mut self) {
        self.rings.flush();
    }

    /// See [`Transport::rx_burst_to`](crate::Transport::rx_burst_to).
    pub fn rx_burst_to<H: FrameHandler<Outgoing>, E: Eye>(
        &mut self,
        budget: usize,
        handler: H,
        eye: &mut E,
    ) -> usize {
        self.rings.rx_burst_to(budget, Seen { handler, eye })
    }

    /// See [`Shm::prepare_wait`](super::Shm::prepare_wait).
    pub fn prepare_wait(&mut self) -> bool {
        let may_sleep = self.rings.prepare_wait();
        if !may_sleep {
            self.rings.declare_awake();
        }
        may_sleep
    }

    /// See [`Shm::finish_wait`](super::Shm::finish_wait).
    pub fn finish_wait(&mut self) {
        self.rings.declare_awake();
        self.rings.for_each(|peer, stats| _ = peer.answer(stats));
        self.rings.look_at_all();
    }

    /// See [`Transport::may_receive`](crate::Transport::may_receive).
    pub fn may_receive(&self) -> bool {
        self.rings.may_receive()
    }

    /// Returns true if the rings to and from a peer are abandoned because the peer broke a rule.
    pub fn is_given_up(&self, peer: PeerId) -> bool {
        self.rings.get(peer.0).is_some_and(Peer::is_given_up)
    }

    /// Breaks a rule towards a peer. Send no frames to the peer afterwards. Returns false if the
    /// rule cannot be broken at this place of the ring.
    pub fn misbehave(&mut self, peer: PeerId, violation: RingViolation) -> bool {
        match self.rings.get_mut(peer.0) {
            Some((peer, _)) => peer.misbehave(violation),
            None => false,
        }
    }

    /// See [`Transport::stats`](crate::Transport::stats).
    pub fn stats(&self) -> TransportStats {
        self.rings.stats()
    }
}

/// The doorbell at the end of a cord.
#[derive(Debug)]
struct Rope<C> {
    cord: C,
    tally: Tally,
}

impl<C: Cord> Doorbell for Rope<C> {
    fn ring(&mut self) -> bool {
        self.cord.ring()
    }

    fn answer(&mut self, sleeps: u64) -> Heard {
        self.tally.add(self.cord.take_rung(), sleeps)
    }
}

/// Shows an eye the frames a handler receives and writes.
struct Seen<'a, H, E> {
    handler: H,
    eye: &'a mut E,
}

impl<H: FrameHandler<Outgoing>, E: Eye> Seen<'_, H, E> {
    fn hand_over(
        &mut self,
        peer: PeerId,
        back: Option<&mut Outgoing>,
        act: impl FnOnce(&mut H, Option<&mut Outgoing>),
    ) {
        let Some(outgoing) = back else { return act(&mut self.handler, None) };
        let position = outgoing.position();
        act(&mut self.handler, Some(outgoing));
        outgoing.look_back(position, |frame| self.eye.answered(peer, &frame.to_vec()));
    }
}

impl<H: FrameHandler<Outgoing>, E: Eye> FrameHandler<Outgoing> for Seen<'_, H, E> {
    fn handle(&mut self, peer: PeerId, frame: &[u8], back: Option<&mut Outgoing>) {
        self.eye.taken(peer, frame);
        self.hand_over(peer, back, |handler, back| handler.handle(peer, frame, back));
    }

    fn handle_marked(&mut self, peer: PeerId, frame: &[u8]) {
        self.eye.taken(peer, frame);
        self.handler.handle_marked(peer, frame);
    }

    fn handle_shared(&mut self, peer: PeerId, frame: SharedFrame<'_>, back: Option<&mut Outgoing>) {
        self.eye.taken(peer, &frame.bytes().to_vec());
        self.hand_over(peer, back, |handler, back| handler.handle_shared(peer, frame, back));
    }

    fn looks_ahead(&self) -> bool {
        self.handler.looks_ahead()
    }

    fn prepare(&mut self, frame: &[u8], is_whole: bool) {
        self.handler.prepare(frame, is_whole);
    }
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;

    /// A cord without wake-ups: all ends are polled.
    pub(crate) struct Slack;

    impl Cord for Slack {
        fn ring(&mut self) -> bool {
            true
        }

        fn take_rung(&mut self) -> u64 {
            0
        }
    }

    /// An eye that ignores all frames.
    struct Blind;

    impl Eye for Blind {
        fn taken(&mut self, _: PeerId, _: &[u8]) {}

        fn answered(&mut self, _: PeerId, _: &[u8]) {}
    }

    /// Accepts and ignores all frames.
    struct Taker;

    impl FrameHandler<Outgoing> for &mut Taker {
        fn handle(&mut self, _: PeerId, _: &[u8], _: Option<&mut Outgoing>) {}

        fn handle_marked(&mut self, _: PeerId, _: &[u8]) {}

        fn handle_shared(&mut self, _: PeerId, _: SharedFrame<'_>, _: Option<&mut Outgoing>) {}
    }

    const PEER: PeerId = PeerId(0);
    const MAX_FRAME: usize = 2_000;

    /// Two endpoints; the second has received `count` frames of `bytes` bytes from the first.
    fn ends(count: usize, bytes: usize) -> [Detached<Slack>; 2] {
        let [mut one, mut other] = pair(8_192, MAX_FRAME).unwrap().map(|end| {
            let mut detached = Detached::default();
            assert_eq!(detached.add_peer(end, Slack), PEER);
            detached
        });
        for _ in 0..count {
            assert!(one.push(PEER, &vec![0x10; bytes], &[]));
            one.flush();
            assert_eq!(receive(&mut other), 1);
        }
        [one, other]
    }

    #[test]
    fn pair__takes_sizes_of_its_range_alone() {
        use crate::MIN_FRAME_BYTES;
        use crate::shm::config::DETACHED_RING_BYTES;
        use crate::shm::ring::max_frame_limit;
        let (least, most) = DETACHED_RING_BYTES.into_inner();
        let refused = |ring_bytes, frame_bytes| match pair(ring_bytes, frame_bytes) {
            Ok(_) => None,
            Err(ShmError::Config { setting, value, .. }) => Some((setting, value)),
            Err(error) => panic!("{error}"),
        };
        for ring_bytes in [least, 2 * least, most] {
            let limit = max_frame_limit(ring_bytes);
            for frame_bytes in [MIN_FRAME_BYTES, limit] {
                assert_eq!(refused(ring_bytes, frame_bytes), None);
            }
            for frame_bytes in [0, MIN_FRAME_BYTES - 1, limit + 1, usize::MAX] {
                let expected = Some(("max_frame_bytes", frame_bytes));
                assert_eq!(refused(ring_bytes, frame_bytes), expected);
            }
        }
        for ring_bytes in [0, 1, least / 2, least - 1, least + 1, 3 * least, 2 * most, usize::MAX] {
            assert_eq!(refused(ring_bytes, MIN_FRAME_BYTES), Some(("ring_bytes", ring_bytes)));
        }
    }

    fn receive(at: &mut Detached<Slack>) -> usize {
        at.rx_burst_to(64, &mut Taker, &mut Blind)
    }

    #[test]
    fn misbehave__tells_whether_the_rule_was_broken_and_the_peer_sees_it() {
        // The first case leaves room for the largest frame, the second less than a frame before the
        // ring's end.
        for (count, is_near_end) in [(1, false), (4, true)] {
            for violation in [
                RingViolation::HeaderOfElsewhere,
                RingViolation::HeaderOfNothing,
                RingViolation::HeaderTooLong,
                RingViolation::HeaderBeyondTheEnd,
            ] {
                let [mut bad, mut good] = ends(count, 1_700);
                let can = is_near_end || violation != RingViolation::HeaderBeyondTheEnd;
                assert_eq!(bad.misbehave(PEER, violation), can, "{violation:?}");
                assert_eq!(receive(&mut good), 0);
                assert_eq!(good.is_given_up(PEER), can, "{violation:?}");
                assert_eq!(good.stats().rx_broken_rings, u64::from(can));
            }
        }
    }

    #[test]
    fn misbehave__with_its_head_is_seen_when_the_ring_is_full() {
        for violation in [RingViolation::HeadOffTheLines, RingViolation::HeadBeyond] {
            let [mut good, mut bad] = ends(2, MAX_FRAME);
            assert!(bad.misbehave(PEER, violation));
            let pushed = (0..10).take_while(|_| good.push(PEER, &[0x10; MAX_FRAME], &[])).count();
            assert!(good.is_given_up(PEER) && good.stats().rx_broken_rings == 1, "{violation:?}");
            // Later frames to the peer are dropped.
            assert_eq!((pushed, good.stats().tx_dropped_error > 0), (10, true));
        }
    }

    #[test]
    fn push__drops_what_is_no_frame_and_counts_it() {
        let [mut one, mut other] = ends(1, 40);
        assert!(one.push(PEER, &[], &[]) && one.push(PEER, &[0x10; MAX_FRAME], &[0x10]));
        assert!(one.push(PeerId(7), &[0x10], &[]) && one.push(PEER, &[0x10], &[]));
        one.flush();
        assert_eq!(receive(&mut other), 1);
        let stats = one.stats();
        let dropped = (stats.tx_dropped_error, stats.tx_dropped_oversize, stats.tx_dropped_no_peer);
        assert_eq!((dropped, stats.tx_frames, stats.tx_bytes), ((1, 1, 1), 2, 41));
    }

    #[test]
    fn misbehave__with_half_a_record_is_never_seen() {
        let [mut bad, mut good] = ends(1, 40);
        assert!(bad.misbehave(PEER, RingViolation::HalfRecord));
        assert!(!bad.misbehave(PEER, RingViolation::HeaderTooLong), "the consumer looks elsewhere");
        assert!(!bad.misbehave(PeerId(7), RingViolation::HalfRecord), "there is no such peer");
        assert_eq!((receive(&mut good), good.is_given_up(PEER)), (0, false));
    }
}
