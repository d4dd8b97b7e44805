//! UDP, and TCP streams to peers that datagrams do not reach, as one transport.
//!
//! UDP is the common case, and pays a comparison or two in each method: the ids of its peers are unchanged, and its frames go to the
//! handler without a wrapper. A [`Mux`](crate::mux::Mux) of both would cost a call over UDP 3 % more instructions.

use std::net::SocketAddr;
use std::rc::Rc;

use crate::buf::RegionWatch;
use crate::clock::Clock;
use crate::mux::{Member, MuxLink};
use crate::stream::{Stream, StreamLink};
use crate::transport::{
    FrameHandler, LinkError, NoReturn, PeerId, PeerProcess, RX_BURST_MAX, ReceiveQueue,
    SharedFrame, Transport, TransportStats,
};
use crate::udp::{Udp, UdpLink};
use crate::wake::{Waker, Watch, Woken};

/// The bit of peers that are reached by a stream.
const STREAM: u32 = 1 << 30;

/// UDP and streams as one transport.
pub struct Far {
    udp: Udp,
    stream: Stream,
    waker: Waker,
    has_udp: bool,
    has_streams: bool,
}

impl Far {
    /// Joins the two media, which have no peers and share `waker`.
    pub(crate) fn new(udp: Udp, waker: Waker) -> Self {
        assert!(!udp.has_peers(), "the media are joined before their first peer");
        let stream = Stream::new(waker.clone());
        Self { udp, stream, waker, has_udp: false, has_streams: false }
    }

    /// The UDP part.
    pub fn udp(&self) -> &Udp {
        &self.udp
    }

    #[inline]
    fn is_stream(peer: PeerId) -> bool {
        peer.0 & STREAM != 0
    }

    fn to_stream(peer: PeerId) -> PeerId {
        PeerId(peer.0 & !STREAM)
    }

    fn from_stream(peer: PeerId) -> PeerId {
        PeerId(peer.0 | STREAM)
    }

    #[cold]
    #[inline(never)]
    fn push_to_stream(&mut self, peer: PeerId, head: &[u8], body: &[u8]) -> bool {
        // SAFETY: a stream copies the bytes before it returns.
        unsafe { self.stream.push(Self::to_stream(peer), head, body) }
    }

    /// Receives frames of streams. UDP has at least half of the budget, unless it has no peer.
    #[cold]
    #[inline(never)]
    fn receive_from_streams<H: FrameHandler<NoReturn>>(
        &mut self,
        budget: usize,
        handler: &mut H,
    ) -> usize {
        let own = if self.has_udp { budget.div_ceil(2) } else { budget };
        self.stream.rx_burst_to(own, ByStream(handler))
    }

    fn note_peers(&mut self) {
        (self.has_udp, self.has_streams) = (self.udp.has_peers(), self.stream.has_peers());
    }
}

impl Transport for Far {
    type Link = MuxLink<UdpLink, StreamLink>;
    type Return = NoReturn;

    #[inline]
    fn now(&self) -> u64 {
        self.udp.now()
    }

    fn clock(&self) -> Clock {
        self.udp.clock()
    }

    fn add_peer(&mut self, link: Self::Link) -> Result<PeerId, LinkError> {
        let peer = match link {
            MuxLink::Near(link) => self.udp.add_peer(link)?,
            MuxLink::Far(link) => Self::from_stream(self.stream.add_peer(link)?),
        };
        self.note_peers();
        Ok(peer)
    }

    fn waited_ns(&mut self, pause_ns: u64, awake_ns: u64) -> (u64, usize) {
        match self.has_udp {
            true => self.udp.waited_ns(pause_ns, awake_ns),
            false => (0, RX_BURST_MAX),
        }
    }

    fn remove_peer(&mut self, peer: PeerId) {
        match Self::is_stream(peer) {
            true => self.stream.remove_peer(Self::to_stream(peer)),
            false => self.udp.remove_peer(peer),
        }
        self.note_peers();
    }

    fn open_group(
        &mut self,
        address: SocketAddr,
        towards: PeerId,
        hops: u32,
    ) -> Result<PeerId, LinkError> {
        if Self::is_stream(towards) {
            return self.stream.open_group(address, Self::to_stream(towards), hops);
        }
        let group = self.udp.open_group(address, towards, hops);
        self.note_peers();
        group
    }

    fn join_group(&mut self, address: SocketAddr, from: PeerId) -> Result<(), LinkError> {
        match Self::is_stream(from) {
            true => self.stream.join_group(address, Self::to_stream(from)),
            false => self.udp.join_group(address, from),
        }
    }

    fn leave_group(&mut self, address: SocketAddr, from: PeerId) {
        if !Self::is_stream(from) {
            self.udp.leave_group(address, from);
        }
    }

    fn source_of(&self, peer: PeerId) -> PeerId {
        if Self::is_stream(peer) { peer } else { self.udp.source_of(peer) }
    }

    #[inline]
    fn max_frame_bytes(&self, peer: PeerId) -> usize {
        match Self::is_stream(peer) {
            true => self.stream.max_frame_bytes(Self::to_stream(peer)),
            false => self.udp.max_frame_bytes(peer),
        }
    }

    fn is_networked(&self, peer: PeerId) -> bool {
        !Self::is_stream(peer)
    }

    fn medium_of(&self, peer: PeerId) -> &'static str {
        match Self::is_stream(peer) {
            true => self.stream.medium_of(Self::to_stream(peer)),
            false => self.udp.medium_of(peer),
        }
    }

    #[inline]
    fn has_broken(&self) -> bool {
        self.stream.has_broken()
    }

    fn take_broken(&mut self) -> Option<(PeerId, String)> {
        self.stream.take_broken().map(|(peer, why)| (Self::from_stream(peer), why))
    }

    fn take_notice(&mut self) -> Option<String> {
        self.udp.take_notice()
    }

    fn take_ended(&mut self) -> Option<PeerId> {
        self.udp.take_ended()
    }

    fn process_of(&self, peer: PeerId) -> Option<PeerProcess> {
        if Self::is_stream(peer) { None } else { self.udp.process_of(peer) }
    }

    fn receive_queue(&self) -> Option<ReceiveQueue> {
        self.udp.receive_queue()
    }

    #[inline(always)]
    unsafe fn push(&mut self, peer: PeerId, head: &[u8], body: &[u8]) -> bool {
        if Self::is_stream(peer) {
            return self.push_to_stream(peer, head, body);
        }
        // SAFETY: the contract is the same.
        unsafe { self.udp.push(peer, head, body) }
    }

    fn further_ports(&self) -> &[u16] {
        self.udp.further_ports()
    }

    fn accept_ports(&mut self, peer: PeerId, ports: &[u16]) -> Result<PeerId, LinkError> {
        match Self::is_stream(peer) {
            // A stream has one path.
            true => self.stream.accept_ports(Self::to_stream(peer), ports).map(|_| peer),
            false => self.udp.accept_ports(peer, ports),
        }
    }

    #[inline]
    unsafe fn push_from(&mut self, source: u8, peer: PeerId, head: &[u8], body: &[u8]) -> bool {
        assert!(!Self::is_stream(peer), "a stream has one path");
        // SAFETY: the contract is the same.
        unsafe { self.udp.push_from(source, peer, head, body) }
    }

    #[inline]
    fn flush(&mut self) {
        self.udp.flush();
        if self.has_streams {
            self.stream.flush();
        }
    }

    fn wait_at_flush(&mut self) {
        self.udp.wait_at_flush();
    }

    fn region_watch(&self) -> Option<Rc<dyn RegionWatch>> {
        self.udp.region_watch()
    }

    #[inline]
    fn rx_burst_to<H: FrameHandler<NoReturn>>(&mut self, budget: usize, mut handler: H) -> usize {
        let mut left = budget;
        if self.has_streams {
            left -= self.receive_from_streams(budget, &mut handler);
            if !self.has_udp {
                return budget - left;
            }
        }
        budget - left + self.udp.rx_burst_to(left, handler)
    }

    fn wait(&mut self, timeout_ns: Option<u64>) {
        if self.prepare_wait() {
            let mut watch = Watch::new(&self.waker);
            self.watch(&mut watch);
            let woken = watch.sleep(timeout_ns);
            self.finish_wait(&woken);
        }
    }

    fn waker(&self) -> Waker {
        self.waker.clone()
    }

    fn stats(&self) -> TransportStats {
        self.udp.stats() + self.stream.stats()
    }
}

impl Member for Far {
    #[inline]
    fn has_peers(&self) -> bool {
        self.has_udp || self.has_streams
    }

    fn prepare_wait(&mut self) -> bool {
        (!self.has_streams || self.stream.prepare_wait())
            && (!self.has_udp || self.udp.prepare_wait())
    }

    fn watch<'a>(&'a self, watch: &mut Watch<'a>) {
        if self.has_udp {
            self.udp.watch(watch);
        }
        if self.has_streams {
            self.stream.watch(watch);
        }
    }

    fn finish_wait(&mut self, woken: &Woken) {
        if self.has_udp {
            self.udp.finish_wait(woken);
        }
        if self.has_streams {
            self.stream.finish_wait(woken);
        }
    }
}

/// Forwards frames of streams, under their peers' ids here.
struct ByStream<'a, H>(&'a mut H);

impl<H: FrameHandler<NoReturn>> FrameHandler<NoReturn> for ByStream<'_, H> {
    #[inline(never)]
    fn handle(&mut self, peer: PeerId, frame: &[u8], _: Option<&mut NoReturn>) {
        self.0.handle(Far::from_stream(peer), frame, None);
    }

    fn handle_marked(&mut self, peer: PeerId, frame: &[u8]) {
        self.0.handle_marked(Far::from_stream(peer), frame);
    }

    fn handle_shared(&mut self, peer: PeerId, frame: SharedFrame<'_>, _: Option<&mut NoReturn>) {
        self.0.handle_shared(Far::from_stream(peer), frame, None);
    }
}
