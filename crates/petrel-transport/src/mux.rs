//! Two media as one transport.
//!
//! The control plane chooses the medium per peer, by the link it hands over. A bit of a [`PeerId`]
//! is set for peers of the *near* medium. A `Mux` may be a medium of another, with another bit.
//!
//! A look at a near medium costs a few instructions, as at a ring, and a look at a far medium a
//! system call. Therefore `rx_burst` skips the far medium while it has no peer, and for up to seven
//! calls in a row while the near medium has frames. If both media have peers, a polled medium gets
//! at least half of the budget, rounded up. A flood on one medium thus does not starve the second.

use std::marker::PhantomData;
use std::net::SocketAddr;
use std::rc::Rc;

use crate::buf::RegionWatch;
use crate::clock::Clock;
use crate::transport::{
    FrameHandler, LinkError, PeerId, PeerProcess, RX_BURST_MAX, ReceiveQueue, SharedFrame,
    Transport, TransportStats,
};
use crate::wake::{Waker, Watch, Woken};

/// Calls in a row that skip the far medium while the near one is busy. An empty receive from a
/// socket costs some 200 ns, like a call that finds frames in a ring. The socket thus takes an
/// eighth of the time, and a datagram waits for some microseconds, less than its travel time.
pub(crate) const FAR_SKIPS_MAX: u32 = 7;

/// A transport that can share an endpoint, and the sleep, with other transports.
///
/// The methods are called in this order for one sleep: [`prepare_wait`](Member::prepare_wait), and
/// if it returns true [`watch`](Member::watch) and [`finish_wait`](Member::finish_wait). All are
/// called only while there are peers. All members of an endpoint share a [`Waker`].
pub trait Member: Transport {
    /// Returns true if there is a peer. Without peers the medium is not looked at, and what
    /// strangers send does not end a sleep.
    fn has_peers(&self) -> bool;

    /// Announces a sleep. Returns false if the endpoint must not sleep, because a frame has arrived
    /// or the configuration forbids sleep; there is then nothing to end.
    fn prepare_wait(&mut self) -> bool {
        true
    }

    /// Adds the descriptors that end a sleep.
    fn watch<'a>(&'a self, watch: &mut Watch<'a>);

    /// Ends a sleep, with the descriptors that were ready.
    fn finish_wait(&mut self, woken: &Woken) {
        let _ = woken;
    }

    /// [`Transport::wait`], by the methods above.
    fn wait_as_member(&mut self, timeout_ns: Option<u64>) {
        if self.prepare_wait() {
            let waker = self.waker();
            let mut watch = Watch::new(&waker);
            self.watch(&mut watch);
            let woken = watch.sleep(timeout_ns);
            self.finish_wait(&woken);
        }
    }
}

/// How a peer of a [`Mux`] is reached.
#[derive(Debug)]
pub enum MuxLink<A, B> {
    /// By the near medium.
    Near(A),
    /// By the far medium.
    Far(B),
}

/// Two media as one transport: `A` is the near medium. The peers of the near medium have the bit
/// with the number `BIT` set in their id; neither medium uses this bit in ids of its own.
///
/// Return paths are those of the near medium: answers over the far medium wait for the end of the
/// burst.
pub struct Mux<A, B, const BIT: u32> {
    near: A,
    far: B,
    waker: Waker,
    near_peers: usize,
    /// Whether the far medium has peers: asking takes several comparisons if that medium has two of its own.
    far_has_peers: bool,
    /// Whether the last poll of the near medium found frames.
    near_is_busy: bool,
    /// Calls since the last poll of the far medium.
    far_skips: u32,
}

impl<A: Member, B: Member, const BIT: u32> Mux<A, B, BIT> {
    const NEAR: u32 = 1 << BIT;

    /// Joins two media without peers that share `waker`.
    pub fn of(near: A, far: B, waker: Waker) -> Self {
        assert!(!near.has_peers() && !far.has_peers(), "the peers have ids without the bit");
        Self {
            near,
            far,
            waker,
            near_peers: 0,
            far_has_peers: false,
            near_is_busy: false,
            far_skips: 0,
        }
    }

    /// The near medium.
    pub fn near(&self) -> &A {
        &self.near
    }

    /// The far medium.
    pub fn far(&self) -> &B {
        &self.far
    }

    #[cfg(test)]
    pub(crate) fn far_mut(&mut self) -> &mut B {
        &mut self.far
    }

    /// Returns true if the peer is reached by the near medium.
    #[inline]
    pub fn is_near(peer: PeerId) -> bool {
        peer.0 & Self::NEAR != 0
    }

    #[inline]
    fn to_near(peer: PeerId) -> PeerId {
        PeerId(peer.0 & !Self::NEAR)
    }

    #[inline]
    fn from_near(peer: PeerId) -> PeerId {
        from_near::<BIT>(peer)
    }

    /// Returns true if this call polls the far medium.
    #[inline]
    fn take_far_turn(&mut self) -> bool {
        if !self.far_has_peers {
            return false;
        }
        let is_due = !self.near_is_busy || self.far_skips >= FAR_SKIPS_MAX;
        self.far_skips = if is_due { 0 } else { self.far_skips + 1 };
        is_due
    }
}

#[inline]
fn from_near<const BIT: u32>(peer: PeerId) -> PeerId {
    debug_assert!(peer.0 & (1 << BIT) == 0);
    PeerId(peer.0 | (1 << BIT))
}

impl<A: Member, B: Member, const BIT: u32> Transport for Mux<A, B, BIT> {
    type Link = MuxLink<A::Link, B::Link>;
    type Return = A::Return;

    #[inline]
    fn now(&self) -> u64 {
        self.far.now()
    }

    fn clock(&self) -> Clock {
        self.far.clock()
    }

    fn add_peer(&mut self, link: Self::Link) -> Result<PeerId, LinkError> {
        match link {
            MuxLink::Far(link) => {
                let peer = self.far.add_peer(link)?;
                self.far_has_peers = true;
                assert!(!Self::is_near(peer), "an id of the far medium has the bit");
                Ok(peer)
            }
            MuxLink::Near(link) => {
                let peer = self.near.add_peer(link)?;
                assert!(!Self::is_near(peer), "an id of the near medium has the bit already");
                self.near_peers += 1;
                Ok(Self::from_near(peer))
            }
        }
    }

    fn remove_peer(&mut self, peer: PeerId) {
        if !Self::is_near(peer) {
            self.far.remove_peer(peer);
            self.far_has_peers = self.far.has_peers();
        } else if self.max_frame_bytes(peer) > 0 {
            assert!(self.near_peers > 0, "a peer that was not added");
            self.near_peers -= 1;
            self.near.remove_peer(Self::to_near(peer));
        }
    }

    fn open_group(
        &mut self,
        address: SocketAddr,
        towards: PeerId,
        hops: u32,
    ) -> Result<PeerId, LinkError> {
        if Self::is_near(towards) {
            let group = self.near.open_group(address, Self::to_near(towards), hops)?;
            self.near_peers += 1;
            return Ok(Self::from_near(group));
        }
        let group = self.far.open_group(address, towards, hops);
        self.far_has_peers = self.far.has_peers();
        group
    }

    fn join_group(&mut self, address: SocketAddr, from: PeerId) -> Result<(), LinkError> {
        if Self::is_near(from) {
            return self.near.join_group(address, Self::to_near(from));
        }
        self.far.join_group(address, from)
    }

    fn leave_group(&mut self, address: SocketAddr, from: PeerId) {
        if Self::is_near(from) {
            self.near.leave_group(address, Self::to_near(from));
        } else {
            self.far.leave_group(address, from);
        }
    }

    fn source_of(&self, peer: PeerId) -> PeerId {
        if Self::is_near(peer) {
            Self::from_near(self.near.source_of(Self::to_near(peer)))
        } else {
            self.far.source_of(peer)
        }
    }

    #[inline]
    fn max_frame_bytes(&self, peer: PeerId) -> usize {
        if Self::is_near(peer) {
            self.near.max_frame_bytes(Self::to_near(peer))
        } else {
            self.far.max_frame_bytes(peer)
        }
    }

    fn is_networked(&self, peer: PeerId) -> bool {
        if Self::is_near(peer) {
            self.near.is_networked(Self::to_near(peer))
        } else {
            self.far.is_networked(peer)
        }
    }

    fn medium_of(&self, peer: PeerId) -> &'static str {
        if Self::is_near(peer) {
            self.near.medium_of(Self::to_near(peer))
        } else {
            self.far.medium_of(peer)
        }
    }

    #[inline(always)]
    fn has_broken(&self) -> bool {
        self.near.has_broken() || self.far.has_broken()
    }

    fn take_broken(&mut self) -> Option<(PeerId, String)> {
        let near = self.near.take_broken().map(|(peer, why)| (Self::from_near(peer), why));
        near.or_else(|| self.far.take_broken())
    }

    fn take_notice(&mut self) -> Option<String> {
        self.near.take_notice().or_else(|| self.far.take_notice())
    }

    fn take_ended(&mut self) -> Option<PeerId> {
        let near = self.near.take_ended().map(Self::from_near);
        near.or_else(|| self.far.take_ended())
    }

    fn process_of(&self, peer: PeerId) -> Option<PeerProcess> {
        if Self::is_near(peer) {
            self.near.process_of(Self::to_near(peer))
        } else {
            self.far.process_of(peer)
        }
    }

    #[inline]
    fn may_receive(&self) -> bool {
        (self.far_has_peers && self.far.may_receive())
            || (self.near_peers > 0 && self.near.may_receive())
    }

    fn waited_ns(&mut self, pause_ns: u64, awake_ns: u64) -> (u64, usize) {
        let (mut far, mut near) = ((0, RX_BURST_MAX), (0, RX_BURST_MAX));
        if self.far_has_peers {
            far = self.far.waited_ns(pause_ns, awake_ns);
        }
        if self.near_peers > 0 {
            near = self.near.waited_ns(pause_ns, awake_ns);
        }
        (far.0.max(near.0), far.1.min(near.1))
    }

    #[inline(always)]
    unsafe fn push(&mut self, peer: PeerId, head: &[u8], body: &[u8]) -> bool {
        // SAFETY: the media have the caller's contract, and `flush` flushes both media.
        unsafe {
            if Self::is_near(peer) {
                self.near.push(Self::to_near(peer), head, body)
            } else {
                push_far(&mut self.far, peer, head, body)
            }
        }
    }

    /// The receive queue of the far medium: peers over the network are there.
    fn receive_queue(&self) -> Option<ReceiveQueue> {
        self.far.receive_queue()
    }

    /// The ports of the far medium: paths of a network lead to its peers.
    fn further_ports(&self) -> &[u16] {
        self.far.further_ports()
    }

    fn accept_ports(&mut self, peer: PeerId, ports: &[u16]) -> Result<PeerId, LinkError> {
        if Self::is_near(peer) {
            return self.near.accept_ports(Self::to_near(peer), ports).map(Self::from_near);
        }
        self.far.accept_ports(peer, ports)
    }

    #[inline]
    unsafe fn push_from(&mut self, source: u8, peer: PeerId, head: &[u8], body: &[u8]) -> bool {
        // SAFETY: the contract is the same.
        unsafe {
            if Self::is_near(peer) {
                self.near.push_from(source, Self::to_near(peer), head, body)
            } else {
                self.far.push_from(source, peer, head, body)
            }
        }
    }

    #[inline]
    fn path_to(&mut self, peer: PeerId) -> Option<&mut A::Return> {
        if Self::is_near(peer) { self.near.path_to(Self::to_near(peer)) } else { None }
    }

    #[inline(always)]
    fn flush(&mut self) {
        // The near medium first: its peers are microseconds nearer.
        self.near.flush();
        if self.far_has_peers {
            self.far.flush();
        }
    }

    #[inline(always)]
    fn wait_at_flush(&mut self) {
        self.near.wait_at_flush();
        self.far.wait_at_flush();
    }

    /// The object of a medium, where needed.
    ///
    /// # Panics
    /// When both media need one.
    fn region_watch(&self) -> Option<Rc<dyn RegionWatch>> {
        match (self.near.region_watch(), self.far.region_watch()) {
            (Some(_), Some(_)) => panic!("two media of a Mux cannot both register memory"),
            (near, far) => near.or(far),
        }
    }

    #[inline]
    fn rx_burst_to<H: FrameHandler<A::Return>>(&mut self, budget: usize, mut handler: H) -> usize {
        let shares = self.near_peers > 0;
        let (mut received, mut left) = (0, budget);
        if self.take_far_turn() {
            let half = budget.div_ceil(2);
            let far_budget = if shares { half } else { budget };
            received += self.far.rx_burst_to(far_budget, ByFar::new(&mut handler));
            // The datagrams of a far medium may exceed its half, and a budget of one frame has two.
            left = budget.saturating_sub(received).max(half);
        }
        if shares {
            let count = self.near.rx_burst_to(left, ByNear::<_, BIT>(&mut handler));
            self.near_is_busy = count > 0;
            received += count;
        }
        received
    }

    fn wait(&mut self, timeout_ns: Option<u64>) {
        self.wait_as_member(timeout_ns);
    }

    fn waker(&self) -> Waker {
        self.waker.clone()
    }

    fn stats(&self) -> TransportStats {
        self.far.stats() + self.near.stats()
    }
}

impl<A: Member, B: Member, const BIT: u32> Member for Mux<A, B, BIT> {
    fn has_peers(&self) -> bool {
        self.near_peers > 0 || self.far_has_peers
    }

    fn prepare_wait(&mut self) -> bool {
        // Makes the next `rx_burst` poll the far medium as well.
        self.near_is_busy = false;
        if self.far_has_peers && !self.far.prepare_wait() {
            return false;
        }
        let may_sleep = self.near_peers == 0 || self.near.prepare_wait();
        if !may_sleep && self.far_has_peers {
            self.far.finish_wait(&Woken::NONE);
        }
        may_sleep
    }

    fn watch<'a>(&'a self, watch: &mut Watch<'a>) {
        if self.far_has_peers {
            self.far.watch(watch);
        }
        if self.near_peers > 0 {
            self.near.watch(watch);
        }
    }

    fn finish_wait(&mut self, woken: &Woken) {
        if self.far_has_peers {
            self.far.finish_wait(woken);
        }
        if self.near_peers > 0 {
            self.near.finish_wait(woken);
        }
    }
}

/// Out of line, so the path through the near medium stays short.
///
/// # Safety
/// As for [`Transport::push`].
#[inline(never)]
unsafe fn push_far<B: Transport>(far: &mut B, peer: PeerId, head: &[u8], body: &[u8]) -> bool {
    // SAFETY: the contract is the same.
    unsafe { far.push(peer, head, body) }
}

/// Forwards frames of the near medium, under their peers' ids in the `Mux`.
struct ByNear<'a, H, const BIT: u32>(&'a mut H);

impl<R, H: FrameHandler<R>, const BIT: u32> FrameHandler<R> for ByNear<'_, H, BIT> {
    fn handle_marked(&mut self, peer: PeerId, frame: &[u8]) {
        self.0.handle_marked(from_near::<BIT>(peer), frame);
    }

    fn handle_from(&mut self, peer: PeerId, source: u8, frame: &[u8], is_marked: bool) {
        self.0.handle_from(from_near::<BIT>(peer), source, frame, is_marked);
    }

    #[inline(always)]
    fn handle(&mut self, peer: PeerId, frame: &[u8], back: Option<&mut R>) {
        self.0.handle(from_near::<BIT>(peer), frame, back);
    }

    #[inline]
    fn handle_shared(&mut self, peer: PeerId, frame: SharedFrame<'_>, back: Option<&mut R>) {
        self.0.handle_shared(from_near::<BIT>(peer), frame, back);
    }

    #[inline(always)]
    fn looks_ahead(&self) -> bool {
        self.0.looks_ahead()
    }

    #[inline(always)]
    fn prepare(&mut self, frame: &[u8], is_whole: bool) {
        self.0.prepare(frame, is_whole);
    }
}

/// Forwards frames of the far medium, without their return paths, to a handler for paths of type
/// `R`.
struct ByFar<'a, H, R> {
    handler: &'a mut H,
    path: PhantomData<fn(R)>,
}

impl<'a, H: FrameHandler<R>, R> ByFar<'a, H, R> {
    #[inline(always)]
    fn new(handler: &'a mut H) -> Self {
        Self { handler, path: PhantomData }
    }
}

impl<F, R, H: FrameHandler<R>> FrameHandler<F> for ByFar<'_, H, R> {
    fn handle_marked(&mut self, peer: PeerId, frame: &[u8]) {
        self.handler.handle_marked(peer, frame);
    }

    fn handle_from(&mut self, peer: PeerId, source: u8, frame: &[u8], is_marked: bool) {
        self.handler.handle_from(peer, source, frame, is_marked);
    }

    /// Out of line, so the handler is inlined once only.
    #[inline(never)]
    fn handle(&mut self, peer: PeerId, frame: &[u8], _back: Option<&mut F>) {
        self.handler.handle(peer, frame, None);
    }

    fn handle_shared(&mut self, peer: PeerId, frame: SharedFrame<'_>, _back: Option<&mut F>) {
        self.handler.handle_shared(peer, frame, None);
    }

    #[inline(always)]
    fn looks_ahead(&self) -> bool {
        self.handler.looks_ahead()
    }

    #[inline(always)]
    fn prepare(&mut self, frame: &[u8], is_whole: bool) {
        self.handler.prepare(frame, is_whole);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::transport::NoReturn;

    const BIT: u32 = 31;

    /// A medium with a queue of frames from its peer.
    struct Queue {
        peers: usize,
        frames: usize,
        /// Frames beyond the budget that a burst delivers: the rest of a datagram.
        excess: usize,
        waker: Waker,
    }

    impl Transport for Queue {
        type Link = ();
        type Return = NoReturn;

        fn now(&self) -> u64 {
            0
        }

        fn clock(&self) -> Clock {
            Clock::of(|| 0)
        }

        fn add_peer(&mut self, (): ()) -> Result<PeerId, LinkError> {
            self.peers += 1;
            Ok(PeerId(0))
        }

        fn remove_peer(&mut self, _: PeerId) {
            self.peers -= 1;
        }

        fn max_frame_bytes(&self, _: PeerId) -> usize {
            crate::MIN_FRAME_BYTES
        }

        unsafe fn push(&mut self, _: PeerId, _: &[u8], _: &[u8]) -> bool {
            true
        }

        fn flush(&mut self) {}

        fn may_receive(&self) -> bool {
            assert!(self.peers > 0, "a medium without peers is not looked at");
            self.frames > 0
        }

        fn rx_burst_to<H: FrameHandler<NoReturn>>(&mut self, budget: usize, mut by: H) -> usize {
            let count = if budget == 0 { 0 } else { self.frames.min(budget + self.excess) };
            (0..count).for_each(|_| by.handle(PeerId(0), &[0], None));
            self.frames -= count;
            count
        }

        fn wait(&mut self, _: Option<u64>) {}

        fn waker(&self) -> Waker {
            self.waker.clone()
        }

        fn stats(&self) -> TransportStats {
            TransportStats::default()
        }
    }

    impl Member for Queue {
        fn has_peers(&self) -> bool {
            self.peers > 0
        }

        fn watch<'a>(&'a self, _: &mut Watch<'a>) {}
    }

    fn queues() -> Mux<Queue, Queue, BIT> {
        let waker = Waker::new().unwrap();
        let queue = |excess| Queue { peers: 0, frames: 0, excess, waker: waker.clone() };
        Mux::of(queue(0), queue(64), waker.clone())
    }

    #[test]
    fn rx_burst_to__with_a_flood_by_the_far_medium_serves_the_near_one() {
        for budget in [1, 2, 24] {
            let mut mux = queues();
            mux.add_peer(MuxLink::Near(())).unwrap();
            mux.add_peer(MuxLink::Far(())).unwrap();
            (mux.near.frames, mux.far.frames) = (10, 10_000);
            for _ in 0..10 {
                mux.rx_burst(budget, |_, _| {});
            }
            assert_eq!(mux.near.frames, 0, "budget {budget}");
            assert!(mux.far.frames < 10_000, "budget {budget}");
        }
    }

    #[test]
    fn may_receive__asks_media_with_peers_alone() {
        let mut mux = queues();
        assert!(!mux.may_receive());
        mux.add_peer(MuxLink::Far(())).unwrap();
        assert!(!mux.may_receive());
        mux.far.frames = 1;
        assert!(mux.may_receive());
        let mut mux = queues();
        let near = mux.add_peer(MuxLink::Near(())).unwrap();
        assert!(!mux.may_receive());
        mux.near.frames = 1;
        assert!(mux.may_receive());
        mux.remove_peer(near);
        assert!(!mux.may_receive());
    }

    /// Logs each call as a string. The flag is the result of `looks_ahead`.
    struct Heard(bool, Vec<String>);

    impl FrameHandler<NoReturn> for Heard {
        fn handle(&mut self, peer: PeerId, frame: &[u8], back: Option<&mut NoReturn>) {
            assert!(back.is_none());
            self.1.push(format!("{} {frame:?}", peer.0));
        }

        fn handle_marked(&mut self, peer: PeerId, frame: &[u8]) {
            self.1.push(format!("{} {frame:?} marked", peer.0));
        }

        fn handle_shared(
            &mut self,
            peer: PeerId,
            frame: SharedFrame<'_>,
            back: Option<&mut NoReturn>,
        ) {
            assert!(back.is_none());
            self.1.push(format!("{} {:?} shared", peer.0, frame.into_private()));
        }

        fn handle_from(&mut self, peer: PeerId, source: u8, frame: &[u8], is_marked: bool) {
            self.1.push(format!("{} {frame:?} from {source}, {is_marked}", peer.0));
        }

        fn looks_ahead(&self) -> bool {
            self.0
        }

        fn prepare(&mut self, frame: &[u8], is_whole: bool) {
            self.1.push(format!("{frame:?} ahead, {is_whole}"));
        }
    }

    /// Calls each method of a handler, as for peer 3.
    fn hand_all<H: FrameHandler<NoReturn>>(mut by: H) {
        by.handle(PeerId(3), &[1], None);
        by.handle_marked(PeerId(3), &[2]);
        by.handle_shared(
            PeerId(3),
            SharedFrame::new(crate::SharedBytes::from(&[3][..]), &mut vec![0]),
            None,
        );
        by.prepare(&[4], true);
        by.prepare(&[5], false);
        by.handle_from(PeerId(3), 7, &[6], true);
    }

    fn looks_ahead<H: FrameHandler<NoReturn>>(by: &H) -> bool {
        by.looks_ahead()
    }

    #[test]
    fn handlers_of_either_medium__hear_all_and_by_the_ids_of_the_mux() {
        for ahead in [false, true] {
            let mut heard = Heard(ahead, Vec::new());
            assert_eq!(looks_ahead(&ByNear::<_, BIT>(&mut heard)), ahead);
            assert_eq!(looks_ahead(&ByFar::new(&mut heard)), ahead);
            for (is_near, peer) in [(true, from_near::<BIT>(PeerId(3)).0), (false, 3)] {
                assert_eq!(is_near, peer != 3);
                match is_near {
                    true => hand_all(ByNear::<_, BIT>(&mut heard)),
                    false => hand_all(ByFar::new(&mut heard)),
                }
                let frames = [
                    format!("{peer} [1]"),
                    format!("{peer} [2] marked"),
                    format!("{peer} [3] shared"),
                ];
                let ahead = ["[4] ahead, true".to_owned(), "[5] ahead, false".to_owned()];
                let further = [format!("{peer} [6] from 7, true")];
                assert_eq!(heard.1, [&frames[..], &ahead, &further].concat());
                heard.1.clear();
            }
        }
    }
}
