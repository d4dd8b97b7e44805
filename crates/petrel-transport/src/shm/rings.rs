//! The rings to and from all peers of an endpoint: bursts in both directions, and the choice of
//! peers to wake.
//!
//! A [`Doorbell`] carries a wake-up to its peer: a socket in production ([`Shm`](super::Shm)), a
//! simulator's event otherwise ([`detached`](super::detached)).

use petrel_planted::planted;

use super::bell::Doorbell;
use super::peer::{Outgoing, Peer};
use super::ring::{RingFrame, TakeFrames, sleep_fence};
use super::schedule::{COLD_RINGS_PER_BURST, Look, Schedule};
use crate::shared::PRIVATE_BYTES_MAX;
use crate::transport::{FrameHandler, PeerId, SharedFrame, TX_BURST_MAX, TransportStats};

/// No peer has this index.
const NO_PEER: u32 = u32::MAX;

/// The rings of one endpoint.
#[derive(Debug)]
pub(super) struct Rings<B> {
    peers: Vec<Option<Peer<B>>>,
    /// Free indices of `peers`.
    free: Vec<u32>,
    schedule: Schedule,
    /// The first peer with frames in the current burst of sending, or [`NO_PEER`].
    first_touched: u32,
    /// The further peers with frames, each once.
    touched: Vec<u32>,
    /// Room for a copy of the longest frame a peer may send.
    scratch: Vec<u8>,
    stats: TransportStats,
}

impl<B: Doorbell> Rings<B> {
    pub(super) fn new() -> Self {
        Self {
            peers: Vec::new(),
            free: Vec::new(),
            schedule: Schedule::default(),
            first_touched: NO_PEER,
            touched: Vec::with_capacity(TX_BURST_MAX),
            scratch: Vec::new(),
            stats: TransportStats::default(),
        }
    }

    pub(super) fn peer_count(&self) -> usize {
        self.peers.len() - self.free.len()
    }

    /// The index of the next added peer.
    pub(super) fn next_index(&self) -> u32 {
        self.free.last().copied().unwrap_or(self.peers.len() as u32)
    }

    pub(super) fn add(&mut self, peer: Peer<B>) -> PeerId {
        if self.scratch.len() < peer.max_frame_bytes() {
            // Fresh, not grown: pages of zeros cost nothing until a long frame arrives.
            self.scratch = vec![0; peer.max_frame_bytes()];
        }
        let index = self.next_index();
        if self.free.pop().is_none() {
            self.peers.push(None);
        }
        self.peers[index as usize] = Some(peer);
        self.schedule.add(index);
        PeerId(index)
    }

    /// Removes a peer, if it is in the table.
    pub(super) fn remove(&mut self, peer: PeerId) -> Option<Peer<B>> {
        // Sends the peer's frames of the current burst before the index may be reused.
        self.flush();
        let gone = self.peers.get_mut(peer.0 as usize).and_then(Option::take)?;
        self.stats = self.stats + gone.stats();
        self.schedule.remove(peer.0);
        self.free.push(peer.0);
        Some(gone)
    }

    #[inline]
    pub(super) fn get(&self, index: u32) -> Option<&Peer<B>> {
        self.peers.get(index as usize).and_then(Option::as_ref)
    }

    pub(super) fn get_mut(&mut self, index: u32) -> Option<(&mut Peer<B>, &mut TransportStats)> {
        let peer = self.peers.get_mut(index as usize).and_then(Option::as_mut)?;
        Some((peer, &mut self.stats))
    }

    pub(super) fn for_each(&mut self, mut act: impl FnMut(&mut Peer<B>, &mut TransportStats)) {
        self.peers.iter_mut().flatten().for_each(|peer| act(peer, &mut self.stats));
    }

    /// Returns the longest time since a wake-up of a peer whose frames are there, of at most `pause_ns`; 0 without one.
    pub(super) fn rung_since(&self, pause_ns: u64) -> u64 {
        let since = self.peers.iter().flatten().filter_map(|peer| peer.rung_since(pause_ns));
        since.max().unwrap_or(0)
    }

    /// The counters: the peers have their own, which join the others when a peer is removed.
    pub(super) fn stats(&self) -> TransportStats {
        self.peers.iter().flatten().fold(self.stats, |sum, peer| sum + peer.stats())
    }

    pub(super) fn stats_mut(&mut self) -> &mut TransportStats {
        &mut self.stats
    }

    #[inline]
    pub(super) fn max_frame_bytes(&self, peer: PeerId) -> usize {
        self.get(peer.0).map_or(0, Peer::max_frame_bytes)
    }

    /// Announces to all peers that the endpoint is about to sleep. Returns false if a frame has
    /// arrived: the endpoint must not sleep.
    pub(super) fn prepare_wait(&mut self) -> bool {
        self.peers.iter_mut().flatten().for_each(Peer::declare_sleep);
        sleep_fence();
        if planted("shm_no_last_look") {
            return true;
        }
        !self.peers.iter().flatten().any(Peer::has_data)
    }

    /// Revokes the announcement. The caller calls [`Rings::look_at_all`] before the next burst.
    pub(super) fn declare_awake(&mut self) {
        self.peers.iter_mut().flatten().for_each(Peer::declare_awake);
    }

    /// Makes the next burst poll every ring with frames.
    pub(super) fn look_at_all(&mut self) {
        self.warm(usize::MAX);
    }

    fn warm(&mut self, limit: usize) {
        let peers = &self.peers;
        self.schedule.warm(limit, |index| {
            peers.get(index as usize).and_then(Option::as_ref).is_some_and(Peer::has_data)
        });
    }

    /// [`Transport::may_receive`](crate::Transport::may_receive).
    #[inline]
    pub(super) fn may_receive(&self) -> bool {
        self.schedule.only_ring().is_none_or(|index| self.has_news(index))
    }

    /// [`Transport::push`](crate::Transport::push). The frame is copied here.
    #[inline(always)]
    pub(super) fn push(&mut self, peer: PeerId, head: &[u8], body: &[u8]) -> bool {
        if let Some(Some(to)) = self.peers.get_mut(peer.0 as usize) {
            if self.first_touched == NO_PEER {
                self.first_touched = peer.0;
                to.touch();
            }
            if self.first_touched == peer.0 {
                return (body.is_empty() && to.push_line(head))
                    || to.push(head, body, &mut self.stats);
            }
        }
        self.push_slowly(peer, head, body)
    }

    /// Pushes a frame to another peer than the first of the burst, or to an unknown peer.
    #[inline(never)]
    fn push_slowly(&mut self, peer: PeerId, head: &[u8], body: &[u8]) -> bool {
        let Some(to) = self.peers.get_mut(peer.0 as usize).and_then(Option::as_mut) else {
            self.stats.tx_dropped_no_peer += 1;
            return true;
        };
        if to.touch() {
            note_touched(&mut self.first_touched, &mut self.touched, peer.0);
        }
        to.push(head, body, &mut self.stats)
    }

    /// [`Transport::path_to`](crate::Transport::path_to).
    #[inline]
    pub(super) fn path_to(&mut self, peer: PeerId) -> Option<&mut Outgoing> {
        let to = self.peers.get_mut(peer.0 as usize)?.as_mut()?;
        if to.touch() {
            note_touched(&mut self.first_touched, &mut self.touched, peer.0);
        }
        to.path()
    }

    /// [`Transport::flush`](crate::Transport::flush).
    #[inline]
    pub(super) fn flush(&mut self) {
        let first = std::mem::replace(&mut self.first_touched, NO_PEER);
        if first == NO_PEER {
            return;
        }
        let may_sleep = self.publish(first);
        if may_sleep || !self.touched.is_empty() {
            self.flush_further(first, may_sleep);
        }
    }

    /// Publishes the frames of the further peers, and wakes all that sleep.
    #[inline(never)]
    fn flush_further(&mut self, first: u32, first_may_sleep: bool) {
        if self.publish_touched() || first_may_sleep {
            self.wake_touched(first);
        }
        self.touched.clear();
    }

    /// Publishes a peer's frames; returns true if the peer may sleep.
    #[inline]
    fn publish(&mut self, index: u32) -> bool {
        match self.peers.get_mut(index as usize) {
            Some(Some(peer)) => peer.publish(),
            _ => false,
        }
    }

    fn publish_touched(&mut self) -> bool {
        let mut may_sleep = false;
        for at in 0..self.touched.len() {
            may_sleep |= self.publish(self.touched[at]);
        }
        may_sleep
    }

    /// Wakes every sleeping peer that was sent a frame, starting at `first`. One fence serves all
    /// peers.
    fn wake_touched(&mut self, first: u32) {
        sleep_fence();
        for index in std::iter::once(first).chain(self.touched.iter().copied()) {
            if let Some(Some(peer)) = self.peers.get_mut(index as usize) {
                peer.wake_sleeper(&mut self.stats);
            }
        }
    }

    #[inline]
    fn has_news(&self, index: u32) -> bool {
        matches!(self.peers.get(index as usize), Some(Some(peer)) if peer.has_news())
    }

    /// [`Transport::rx_burst_to`](crate::Transport::rx_burst_to).
    #[inline]
    pub(super) fn rx_burst_to<H: FrameHandler<Outgoing>>(
        &mut self,
        budget: usize,
        mut handler: H,
    ) -> usize {
        // With a single ring there is no rotation, and an idle ring is left at once.
        let only = self.schedule.only_ring();
        let first = match only {
            Some(index) => Some(index),
            None => {
                self.warm(COLD_RINGS_PER_BURST);
                self.schedule.current()
            }
        };
        let Some(mut index) = first else { return 0 };
        let (share, mut looks) = (self.schedule.share(budget), self.schedule.hot_count());
        let mut received = 0;
        loop {
            let limit = share.min(budget - received);
            let (frames, look) = self.receive_from(index, limit, &mut handler);
            received += frames;
            if only.is_some() && look != Look::Broken {
                return received;
            }
            self.schedule.advance(look);
            looks -= 1;
            let next = self.schedule.current().filter(|_| looks > 0 && received < budget);
            let Some(next) = next else { return received };
            index = next;
        }
    }

    #[inline]
    fn receive_from<H: FrameHandler<Outgoing>>(
        &mut self,
        index: u32,
        budget: usize,
        handler: &mut H,
    ) -> (usize, Look) {
        let Some(peer) = self.peers.get_mut(index as usize).and_then(Option::as_mut) else {
            return (0, Look::Broken);
        };
        if !peer.has_news() {
            return (0, Look::Nothing);
        }
        let budget = peer.begin_burst(budget);
        if handler.looks_ahead() {
            peer.look_ahead(budget, |frame| show(frame, handler));
        }
        let scratch = &mut self.scratch;
        let (frames, is_broken) = peer.receive(budget, &mut self.stats, |outgoing| Deliver {
            peer: PeerId(index),
            handler,
            scratch,
            outgoing,
        });
        if !planted("shm_answers_not_published") && peer.has_unpublished() && peer.touch() {
            note_touched(&mut self.first_touched, &mut self.touched, index);
        }
        // `has_news` was true, so the look found something.
        (frames, if is_broken { Look::Broken } else { Look::Frames })
    }
}

/// Delivers frames of a peer, each with the return path to the peer.
struct Deliver<'a, H> {
    peer: PeerId,
    handler: &'a mut H,
    scratch: &'a mut Vec<u8>,
    outgoing: &'a mut Outgoing,
}

impl<H: FrameHandler<Outgoing>> TakeFrames for Deliver<'_, H> {
    #[inline(always)]
    fn line(&mut self, frame: RingFrame<'_>) {
        match frame.line() {
            Some(line) => self.handler.handle(self.peer, line.frame(), Some(self.outgoing)),
            None => unreachable!("a record of one line has a frame of one line"),
        }
    }

    #[inline(always)]
    fn long(&mut self, frame: RingFrame<'_>) {
        let Self { peer, handler, scratch, outgoing } = self;
        if frame.len() > PRIVATE_BYTES_MAX {
            let frame = SharedFrame::new(frame.bytes(), scratch);
            handler.handle_shared(*peer, frame, Some(outgoing));
        } else {
            deliver_copied(*peer, frame, scratch, *handler, Some(outgoing));
        }
    }
}

/// Delivers a copy of a frame of more than a line, and no more than [`PRIVATE_BYTES_MAX`]. Out of
/// line, to keep the path of shorter frames short.
#[inline(never)]
fn deliver_copied<H: FrameHandler<Outgoing>>(
    peer: PeerId,
    frame: RingFrame<'_>,
    scratch: &mut Vec<u8>,
    handler: &mut H,
    back: Option<&mut Outgoing>,
) {
    handler.handle(peer, SharedFrame::new(frame.bytes(), scratch).into_private(), back);
}

/// Announces a frame to the handler by a copy of its start.
#[inline]
fn show<H: FrameHandler<Outgoing>>(frame: RingFrame<'_>, handler: &mut H) {
    if let Some(line) = frame.line() {
        return handler.prepare(line.frame(), true);
    }
    let mut copy = [0; PRIVATE_BYTES_MAX];
    let shown = frame.len().min(PRIVATE_BYTES_MAX);
    frame.bytes().slice(0..shown).copy_to_slice(&mut copy[..shown]);
    handler.prepare(&copy[..shown], shown == frame.len());
}

/// Notes the first frame for a peer in the current burst of sending.
#[inline]
fn note_touched(first: &mut u32, others: &mut Vec<u32>, index: u32) {
    match *first {
        NO_PEER => *first = index,
        _ => others.push(index),
    }
}

#[cfg(test)]
mod tests {
    use super::super::detached::tests::Slack;
    use super::super::detached::{Detached, Eye, RingViolation, pair};
    use super::super::schedule::COOLING_POLLS;
    use super::*;

    /// Accepts and ignores all frames.
    struct Taker;

    impl FrameHandler<Outgoing> for &mut Taker {
        fn handle(&mut self, _: PeerId, _: &[u8], _: Option<&mut Outgoing>) {}

        fn handle_marked(&mut self, _: PeerId, _: &[u8]) {}

        fn handle_shared(&mut self, _: PeerId, _: SharedFrame<'_>, _: Option<&mut Outgoing>) {}
    }

    impl Eye for Taker {
        fn taken(&mut self, _: PeerId, _: &[u8]) {}

        fn answered(&mut self, _: PeerId, _: &[u8]) {}
    }

    const MAX_FRAME: usize = 2_000;

    /// An endpoint and `peers` peers; for every peer, the endpoint is peer 0.
    fn hub(peers: usize) -> (Detached<Slack>, Vec<Detached<Slack>>) {
        let mut hub = Detached::default();
        let peers = (0..peers).map(|_| {
            let [one, other] = pair(8_192, MAX_FRAME).unwrap();
            hub.add_peer(one, Slack);
            let mut peer = Detached::default();
            peer.add_peer(other, Slack);
            peer
        });
        let peers = peers.collect();
        (hub, peers)
    }

    fn receive(hub: &mut Detached<Slack>, budget: usize) -> usize {
        hub.rx_burst_to(budget, &mut Taker, &mut Taker)
    }

    /// One frame per burst keeps a ring hot.
    #[test]
    fn rx_burst_to__rings_that_have_frames_stay_hot() {
        const BUSY: usize = 3 * COLD_RINGS_PER_BURST;
        let (mut hub, mut peers) = hub(2 * BUSY);
        for burst in 0..COOLING_POLLS + 100 {
            for peer in &mut peers[..BUSY] {
                assert!(peer.push(PeerId(0), &[0x10; 40], &[]));
                peer.flush();
            }
            assert_eq!(receive(&mut hub, 1_000), BUSY, "in burst {burst}");
        }
    }

    /// A ring that is found broken on sending is polled once more, and takes no part in later
    /// bursts.
    #[test]
    fn rx_burst_to__a_ring_that_is_given_up_has_no_share() {
        let (mut hub, mut peers) = hub(2);
        assert!(hub.push(PeerId(1), &[0x10; MAX_FRAME], &[]));
        hub.flush();
        assert_eq!(receive(&mut peers[1], 64), 1);
        assert!(peers[1].misbehave(PeerId(0), RingViolation::HeadOffTheLines));
        while !hub.is_given_up(PeerId(1)) {
            assert!(hub.push(PeerId(1), &[0x10; MAX_FRAME], &[]));
        }
        hub.flush();
        for (taken, which) in [(32, "there are two rings"), (64, "there is one")] {
            (0..64).for_each(|_| assert!(peers[0].push(PeerId(0), &[0x10; 40], &[])));
            peers[0].flush();
            assert_eq!(receive(&mut hub, 64), taken, "{which}");
            while receive(&mut hub, 64) > 0 {}
        }
        assert!(!hub.may_receive(), "nothing is left to look at");
    }

    /// As above for an only ring, always next in turn, whether sending or receiving finds the
    /// break.
    #[test]
    fn rx_burst_to__the_only_ring_that_is_given_up_has_no_share() {
        for by_sending in [false, true] {
            let (mut hub, mut peers) = hub(1);
            if by_sending {
                assert!(hub.push(PeerId(0), &[0x10; MAX_FRAME], &[]));
                hub.flush();
                assert_eq!(receive(&mut peers[0], 64), 1);
                assert!(peers[0].misbehave(PeerId(0), RingViolation::HeadOffTheLines));
                while !hub.is_given_up(PeerId(0)) {
                    assert!(hub.push(PeerId(0), &[0x10; MAX_FRAME], &[]));
                }
                hub.flush();
            } else {
                assert!(peers[0].push(PeerId(0), &[0x10; 40], &[]));
                peers[0].flush();
                assert_eq!(receive(&mut hub, 64), 1);
                assert!(peers[0].misbehave(PeerId(0), RingViolation::HeaderOfNothing));
            }
            assert_eq!(receive(&mut hub, 64), 0);
            assert!(hub.is_given_up(PeerId(0)));
            let [one, other] = pair(8_192, MAX_FRAME).unwrap();
            let to_next = hub.add_peer(one, Slack);
            let mut next: Detached<Slack> = Detached::default();
            next.add_peer(other, Slack);
            (0..64).for_each(|_| assert!(next.push(PeerId(0), &[0x10; 40], &[])));
            next.flush();
            assert_eq!(receive(&mut hub, 64), 64, "there is one ring");
            assert!(!hub.may_receive() && !hub.is_given_up(to_next));
        }
    }
}
