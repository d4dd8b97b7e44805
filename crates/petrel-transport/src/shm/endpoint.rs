//! The transport itself: the rings of one endpoint.

use std::os::fd::{AsFd, BorrowedFd};

use super::bell::Bells;
use super::config::ShmConfig;
use super::link::ShmLink;
use super::peer::Peer;
use super::ring::{RingFrame, sleep_fence};
use super::schedule::{COLD_RINGS_PER_BURST, Look, Schedule};
use crate::clock::{Clock, now_ns};
use crate::shared::PRIVATE_BYTES_MAX;
use crate::transport::{
    FrameHandler, LinkError, PeerId, ReturnPath, SharedFrame, TX_BURST_MAX, Transport,
    TransportStats,
};
use crate::wake::Waker;

/// No peer has this index.
const NOBODY: u32 = u32::MAX;

/// The shared-memory transport of one endpoint. See the [module](super).
#[derive(Debug)]
pub struct Shm {
    max_peers: usize,
    never_sleeps: bool,
    waker: Waker,
    /// Made with the first peer; never, if the endpoint never sleeps.
    bells: Option<Bells>,
    peers: Vec<Option<Peer>>,
    /// Free indices of `peers`.
    free: Vec<u32>,
    schedule: Schedule,
    /// The first peer with frames in the current burst of sending, or [`NOBODY`].
    first_touched: u32,
    /// The others, each once.
    touched: Vec<u32>,
    /// Room for a copy of the longest frame that a peer may send.
    scratch: Vec<u8>,
    stats: TransportStats,
}

impl Shm {
    /// A transport without peers. This process's own threads wake it by `waker`, and its peers by
    /// their links.
    pub fn new(config: &ShmConfig, waker: Waker) -> Self {
        Self {
            max_peers: config.max_peers,
            never_sleeps: config.never_sleeps,
            waker,
            bells: None,
            peers: Vec::new(),
            free: Vec::new(),
            schedule: Schedule::default(),
            first_touched: NOBODY,
            touched: Vec::with_capacity(TX_BURST_MAX),
            scratch: Vec::new(),
            stats: TransportStats::default(),
        }
    }

    /// Announces to all peers that this endpoint is about to sleep. Returns false if it must not: a
    /// frame has come in, or it was configured to never sleep.
    ///
    /// After true, a peer that publishes a frame makes [`Shm::bells`] readable. The caller sleeps until that
    /// or its [`Waker`] is, and calls [`Shm::finish_wait`]. For transports that combine this one with
    /// others; [`Transport::wait`] does all of it.
    pub fn prepare_wait(&mut self) -> bool {
        if self.never_sleeps {
            return false;
        }
        self.peers.iter_mut().flatten().for_each(Peer::declare_sleep);
        sleep_fence();
        let must_not = self.peers.iter().flatten().any(Peer::has_data);
        if must_not {
            self.finish_wait(false);
        }
        !must_not
    }

    /// What a sleeping endpoint's peers make readable to wake it.
    pub fn bells(&self) -> Option<BorrowedFd<'_>> {
        self.bells.as_ref().map(Bells::as_fd)
    }

    /// Ends what [`Shm::prepare_wait`] began, so that peers save their wake-ups again; `has_rung` if
    /// [`Shm::bells`] was readable. The next [`Transport::rx_burst`] looks at every ring that has
    /// something.
    pub fn finish_wait(&mut self, has_rung: bool) {
        self.peers.iter_mut().flatten().for_each(Peer::declare_awake);
        if has_rung {
            self.answer_bells();
        }
        self.warm(usize::MAX);
    }

    fn answer_bells(&mut self) {
        let Self { bells: Some(bells), peers, stats, .. } = self else { return };
        stats.rx_syscalls += 1;
        for index in bells.rung() {
            if let Some(Some(peer)) = peers.get_mut(index as usize) {
                // To look, and to take.
                stats.rx_syscalls += 2;
                peer.answer(bells, stats);
            }
        }
    }

    /// Listens to a new peer's wake-ups.
    fn listen(&mut self, peer: &Peer, index: u32) -> Result<(), LinkError> {
        if self.never_sleeps {
            return Ok(());
        }
        let bells = match &mut self.bells {
            Some(bells) => bells,
            none => none.insert(Bells::new()?),
        };
        peer.listen(bells, index)
    }

    fn warm(&mut self, limit: usize) {
        let peers = &self.peers;
        self.schedule.warm(limit, |index| {
            peers.get(index as usize).and_then(Option::as_ref).is_some_and(Peer::has_data)
        });
    }

    /// A frame to another peer than the first of the burst, or to none.
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

    /// Shows a peer its frames; true if it may sleep.
    #[inline]
    fn publish(&mut self, index: u32) -> bool {
        match self.peers.get_mut(index as usize) {
            Some(Some(peer)) => peer.publish(&mut self.stats),
            _ => false,
        }
    }

    #[inline(never)]
    fn publish_touched(&mut self) -> bool {
        let mut may_sleep = false;
        for at in 0..self.touched.len() {
            may_sleep |= self.publish(self.touched[at]);
        }
        may_sleep
    }

    /// Wakes those that sleep of the peers that got frames, of whom `first` is one. One fence
    /// serves them all.
    #[inline(never)]
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

    #[inline]
    fn receive_from<H: FrameHandler>(
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
        if handler.looks_ahead() {
            peer.look_ahead(budget, |frame| show(frame, handler));
        }
        let scratch = &mut self.scratch;
        let received = peer.receive(budget, &mut self.stats, |frame, outgoing| {
            let back = ReturnPath::by_ring(outgoing);
            match frame.line() {
                Some(line) => handler.handle(PeerId(index), line.frame(), back),
                None if frame.len() > PRIVATE_BYTES_MAX => {
                    let frame = SharedFrame::new(frame.bytes(), scratch);
                    handler.handle_shared(PeerId(index), frame, back);
                }
                None => deliver_copied(PeerId(index), frame, scratch, handler, back),
            }
        });
        if peer.has_unpublished() && peer.touch() {
            note_touched(&mut self.first_touched, &mut self.touched, index);
        }
        let look = match received {
            _ if received.is_broken => Look::Broken,
            _ if received.frames > 0 => Look::Frames,
            _ => Look::Nothing,
        };
        (received.frames, look)
    }

    fn sleep(&mut self, timeout_ns: Option<u64>) -> bool {
        self.stats.rx_syscalls += 1;
        self.waker.sleep_with(None, [None, self.bells()], timeout_ns)
    }
}

impl Transport for Shm {
    type Link = ShmLink;

    #[inline]
    fn now(&self) -> u64 {
        now_ns()
    }

    fn clock(&self) -> Clock {
        Clock::machine()
    }

    fn add_peer(&mut self, link: ShmLink) -> Result<PeerId, LinkError> {
        if self.peers.len() - self.free.len() >= self.max_peers {
            return Err(LinkError::TooManyPeers { limit: self.max_peers });
        }
        let peer = Peer::new(link.open()?, self.never_sleeps);
        if self.scratch.len() < peer.max_frame_bytes() {
            // Fresh, not grown: pages of zeros cost nothing until a long frame comes.
            self.scratch = vec![0; peer.max_frame_bytes()];
        }
        let index = self.free.last().copied().unwrap_or(self.peers.len() as u32);
        self.listen(&peer, index)?;
        if self.free.pop().is_none() {
            self.peers.push(None);
        }
        self.peers[index as usize] = Some(peer);
        self.schedule.add(index);
        Ok(PeerId(index))
    }

    fn remove_peer(&mut self, peer: PeerId) {
        // What the current burst has for it goes out before its index may be another's.
        self.flush();
        if let Some(mut gone) = self.peers.get_mut(peer.0 as usize).and_then(Option::take) {
            if let Some(bells) = &self.bells {
                gone.hang_up(bells);
            }
            self.schedule.remove(peer.0);
            self.free.push(peer.0);
        }
    }

    #[inline]
    fn max_frame_bytes(&self, peer: PeerId) -> usize {
        let peer = self.peers.get(peer.0 as usize).and_then(Option::as_ref);
        peer.map_or(0, Peer::max_frame_bytes)
    }

    fn is_networked(&self, _peer: PeerId) -> bool {
        false
    }

    #[inline]
    fn may_receive(&self) -> bool {
        self.schedule.only_ring().is_none_or(|index| self.has_news(index))
    }

    #[inline(always)]
    unsafe fn push(&mut self, peer: PeerId, head: &[u8], body: &[u8]) -> bool {
        if let Some(Some(to)) = self.peers.get_mut(peer.0 as usize) {
            if self.first_touched == NOBODY {
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

    #[inline]
    fn flush(&mut self) {
        let first = std::mem::replace(&mut self.first_touched, NOBODY);
        if first == NOBODY {
            return;
        }
        let mut may_sleep = self.publish(first);
        if !self.touched.is_empty() {
            may_sleep |= self.publish_touched();
        }
        if may_sleep {
            self.wake_touched(first);
        }
        self.touched.clear();
    }

    #[inline]
    fn rx_burst_to<H: FrameHandler>(&mut self, budget: usize, mut handler: H) -> usize {
        // Who has one ring keeps no turns, and an idle one is left at once.
        let only = self.schedule.only_ring();
        match only {
            None => self.warm(COLD_RINGS_PER_BURST),
            Some(index) if !self.has_news(index) => return 0,
            Some(_) => {}
        }
        let share = self.schedule.share(budget);
        let mut received = 0;
        for _ in 0..self.schedule.hot_count() {
            let limit = share.min(budget - received);
            let Some(index) = only.or_else(|| self.schedule.current()) else { break };
            if limit == 0 {
                break;
            }
            let (frames, look) = self.receive_from(index, limit, &mut handler);
            received += frames;
            if only.is_none() || look == Look::Broken {
                self.schedule.advance(look);
            }
        }
        received
    }

    fn wait(&mut self, timeout_ns: Option<u64>) {
        if self.never_sleeps {
            // Nobody would wake us: let others run, and look again.
            std::thread::yield_now();
        } else if self.prepare_wait() {
            let has_rung = self.sleep(timeout_ns);
            self.finish_wait(has_rung);
        }
    }

    fn waker(&self) -> Waker {
        self.waker.clone()
    }

    fn stats(&self) -> TransportStats {
        self.stats
    }
}

/// Delivers a copy of a frame of more than a line, and no more than [`PRIVATE_BYTES_MAX`]. Out of line, so that the way
/// of shorter frames stays short.
#[inline(never)]
fn deliver_copied<H: FrameHandler>(
    peer: PeerId,
    frame: RingFrame<'_>,
    scratch: &mut Vec<u8>,
    handler: &mut H,
    back: ReturnPath<'_>,
) {
    handler.handle(peer, SharedFrame::new(frame.bytes(), scratch).into_private(), back);
}

/// Shows a frame that will come in: a copy of its start.
#[inline]
fn show<H: FrameHandler>(frame: RingFrame<'_>, handler: &mut H) {
    if let Some(line) = frame.line() {
        return handler.prepare(line.frame(), true);
    }
    let mut copy = [0; PRIVATE_BYTES_MAX];
    let shown = frame.len().min(PRIVATE_BYTES_MAX);
    frame.bytes().slice(0..shown).copy_to_slice(&mut copy[..shown]);
    handler.prepare(&copy[..shown], shown == frame.len());
}

/// Notes that the current burst of sending has frames for a peer, for the first time.
#[inline]
fn note_touched(first: &mut u32, others: &mut Vec<u32>, index: u32) {
    match *first {
        NOBODY => *first = index,
        _ => others.push(index),
    }
}
