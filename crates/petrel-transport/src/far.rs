//! UDP, TCP streams to peers that datagrams do not reach, and an RDMA card to peers with a card, as one transport.
//!
//! UDP is the common case, and pays a comparison or two in each method: the ids of its peers are unchanged, and its frames go to the
//! handler without a wrapper. A [`Mux`](crate::mux::Mux) would cost a call over UDP 3 % more instructions.

use std::net::SocketAddr;
use std::rc::Rc;

use crate::buf::RegionWatch;
use crate::clock::Clock;
use crate::mux::{FAR_SKIPS_MAX, Member, MuxLink};
use crate::stream::{Stream, StreamLink};
use crate::transport::{
    FrameHandler, LinkError, NoReturn, PeerId, PeerProcess, RX_BURST_MAX, ReceiveQueue,
    SharedFrame, Transport, TransportStats,
};
use crate::udp::{Udp, UdpLink};
use crate::verbs::{Verbs, VerbsLink};
use crate::wake::{Waker, Watch, Woken};

/// The bit of peers that are reached by a stream.
const STREAM: u32 = 1 << 30;

/// The bit of peers that are reached by an RDMA card. Bit 29 is that of a medium beside a [`Host`](crate::host::Host).
const CARD: u32 = 1 << 28;

/// UDP, streams and an RDMA card as one transport.
pub struct Far {
    udp: Udp,
    stream: Stream,
    /// The card, or why there is none; `None` if no card was asked for.
    card: Option<Result<Box<Verbs>, String>>,
    waker: Waker,
    has_udp: bool,
    has_streams: bool,
    has_card_peers: bool,
    /// Whether streams or the card have peers.
    has_others: bool,
    /// Bursts in which the card was busy since the last look at UDP, which costs a system call.
    udp_skips: u32,
}

/// How a peer is reached.
enum Way {
    Udp,
    Stream(PeerId),
    Card(PeerId),
}

impl Far {
    /// Joins the media, which have no peers and share `waker`.
    pub(crate) fn new(udp: Udp, card: Option<Result<Verbs, String>>, waker: Waker) -> Self {
        assert!(!udp.has_peers(), "the media are joined before their first peer");
        let stream = Stream::new(waker.clone());
        Self {
            udp,
            stream,
            card: card.map(|card| card.map(Box::new)),
            waker,
            has_udp: false,
            has_streams: false,
            has_card_peers: false,
            has_others: false,
            udp_skips: 0,
        }
    }

    /// The RDMA card, or the reason why there is none, if the settings ask for a card.
    pub fn card(&self) -> Option<Result<&Verbs, &String>> {
        self.card.as_ref().map(|card| card.as_deref())
    }

    /// Waits for the places of the card's peers.
    #[cfg(test)]
    pub(crate) fn settle(&mut self) {
        self.card_mut().settle();
    }

    fn verbs(&self) -> Option<&Verbs> {
        self.card()?.ok()
    }

    fn verbs_mut(&mut self) -> Option<&mut Verbs> {
        self.card.as_mut()?.as_deref_mut().ok()
    }

    /// The UDP part.
    pub fn udp(&self) -> &Udp {
        &self.udp
    }

    /// Returns true if UDP does not reach the peer.
    #[inline]
    fn is_other(peer: PeerId) -> bool {
        peer.0 & (STREAM | CARD) != 0
    }

    fn way(peer: PeerId) -> Way {
        match (peer.0 & STREAM != 0, peer.0 & CARD != 0) {
            (true, _) => Way::Stream(PeerId(peer.0 & !STREAM)),
            (_, true) => Way::Card(PeerId(peer.0 & !CARD)),
            _ => Way::Udp,
        }
    }

    /// The card of a peer.
    fn card_mut(&mut self) -> &mut Verbs {
        self.verbs_mut().expect("a peer with the bit was added to the card")
    }

    #[cold]
    #[inline(never)]
    fn push_to_other(&mut self, peer: PeerId, head: &[u8], body: &[u8]) -> bool {
        // SAFETY: both media copy the bytes before they return.
        unsafe {
            match Self::way(peer) {
                Way::Card(peer) => self.card_mut().push(peer, head, body),
                Way::Stream(peer) => self.stream.push(peer, head, body),
                Way::Udp => unreachable!("a peer of UDP has no bit"),
            }
        }
    }

    #[cold]
    #[inline(never)]
    fn flush_others(&mut self) {
        if self.has_card_peers {
            self.card_mut().flush();
        }
        if self.has_streams {
            self.stream.flush();
        }
    }

    /// Receives frames of streams and of the card: each medium with a peer has its part of the budget. Returns the number of frames, and
    /// whether to look at UDP.
    #[cold]
    #[inline(never)]
    fn receive_from_others<H: FrameHandler<NoReturn>>(
        &mut self,
        budget: usize,
        handler: &mut H,
    ) -> (usize, bool) {
        let media = [self.has_udp, self.has_streams, self.has_card_peers];
        let own = budget.div_ceil(media.into_iter().map(usize::from).sum());
        let mut by_card = 0;
        if self.has_card_peers {
            by_card = self.card_mut().rx_burst_to(own, Other::<_, CARD>(handler));
        }
        let mut received = by_card;
        if self.has_streams {
            received += self.stream.rx_burst_to(own, Other::<_, STREAM>(handler));
        }
        let is_skipped = by_card > 0 && self.udp_skips < FAR_SKIPS_MAX;
        self.udp_skips = if is_skipped { self.udp_skips + 1 } else { 0 };
        (received, self.has_udp && !is_skipped)
    }

    fn note_peers(&mut self) {
        (self.has_udp, self.has_streams) = (self.udp.has_peers(), self.stream.has_peers());
        self.has_card_peers = self.verbs().is_some_and(|card| card.has_peers());
        self.has_others = self.has_streams || self.has_card_peers;
    }

    #[cold]
    fn has_broken_other(&self) -> bool {
        self.stream.has_broken() || self.verbs().is_some_and(|card| card.has_broken())
    }
}

impl Transport for Far {
    type Link = MuxLink<UdpLink, MuxLink<StreamLink, VerbsLink>>;
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
            MuxLink::Far(MuxLink::Near(link)) => PeerId(self.stream.add_peer(link)?.0 | STREAM),
            MuxLink::Far(MuxLink::Far(link)) => {
                let none = || LinkError::Unsupported("there is no RDMA card".to_owned());
                PeerId(self.verbs_mut().ok_or_else(none)?.add_peer(link)?.0 | CARD)
            }
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
        match Self::way(peer) {
            Way::Stream(peer) => self.stream.remove_peer(peer),
            Way::Card(peer) => self.card_mut().remove_peer(peer),
            Way::Udp => self.udp.remove_peer(peer),
        }
        self.note_peers();
    }

    fn open_group(
        &mut self,
        address: SocketAddr,
        towards: PeerId,
        hops: u32,
    ) -> Result<PeerId, LinkError> {
        if Self::is_other(towards) {
            return self.stream.open_group(address, towards, hops);
        }
        let group = self.udp.open_group(address, towards, hops);
        self.note_peers();
        group
    }

    fn join_group(&mut self, address: SocketAddr, from: PeerId) -> Result<(), LinkError> {
        match Self::is_other(from) {
            true => self.stream.join_group(address, from),
            false => self.udp.join_group(address, from),
        }
    }

    fn leave_group(&mut self, address: SocketAddr, from: PeerId) {
        if !Self::is_other(from) {
            self.udp.leave_group(address, from);
        }
    }

    fn source_of(&self, peer: PeerId) -> PeerId {
        match Self::way(peer) {
            Way::Stream(_) => peer,
            Way::Card(peer) => {
                PeerId(self.verbs().map_or(peer, |card| card.source_of(peer)).0 | CARD)
            }
            Way::Udp => self.udp.source_of(peer),
        }
    }

    #[inline]
    fn max_frame_bytes(&self, peer: PeerId) -> usize {
        match Self::way(peer) {
            Way::Card(peer) => self.verbs().map_or(0, |card| card.max_frame_bytes(peer)),
            Way::Stream(peer) => self.stream.max_frame_bytes(peer),
            Way::Udp => self.udp.max_frame_bytes(peer),
        }
    }

    fn is_networked(&self, peer: PeerId) -> bool {
        !matches!(Self::way(peer), Way::Stream(_))
    }

    fn medium_of(&self, peer: PeerId) -> &'static str {
        match Self::way(peer) {
            Way::Stream(peer) => self.stream.medium_of(peer),
            Way::Card(_) => "verbs",
            Way::Udp => self.udp.medium_of(peer),
        }
    }

    #[inline]
    fn has_broken(&self) -> bool {
        self.has_others && self.has_broken_other()
    }

    fn take_broken(&mut self) -> Option<(PeerId, String)> {
        let by_stream = self.stream.take_broken();
        by_stream.map(|(peer, why)| (PeerId(peer.0 | STREAM), why)).or_else(|| {
            let (peer, why) = self.verbs_mut()?.take_broken()?;
            Some((PeerId(peer.0 | CARD), why))
        })
    }

    fn take_notice(&mut self) -> Option<String> {
        self.udp.take_notice().or_else(|| self.verbs_mut()?.take_notice())
    }

    fn take_ended(&mut self) -> Option<PeerId> {
        self.udp.take_ended()
    }

    fn process_of(&self, peer: PeerId) -> Option<PeerProcess> {
        if Self::is_other(peer) { None } else { self.udp.process_of(peer) }
    }

    fn receive_queue(&self) -> Option<ReceiveQueue> {
        // A card drops what its ring does not hold, the kernel keeps more: all sessions share the ring's room.
        self.verbs().map_or_else(|| self.udp.receive_queue(), |card| card.receive_queue())
    }

    #[inline(always)]
    unsafe fn push(&mut self, peer: PeerId, head: &[u8], body: &[u8]) -> bool {
        if Self::is_other(peer) {
            return self.push_to_other(peer, head, body);
        }
        // SAFETY: the contract is the same.
        unsafe { self.udp.push(peer, head, body) }
    }

    fn further_ports(&self) -> &[u16] {
        self.udp.further_ports()
    }

    fn accept_ports(&mut self, peer: PeerId, ports: &[u16]) -> Result<PeerId, LinkError> {
        match Self::is_other(peer) {
            // A stream has one path, and so has a queue pair.
            true => self.stream.accept_ports(peer, ports),
            false => self.udp.accept_ports(peer, ports),
        }
    }

    #[inline]
    unsafe fn push_from(&mut self, source: u8, peer: PeerId, head: &[u8], body: &[u8]) -> bool {
        assert!(!Self::is_other(peer), "a stream has one path, and so has a queue pair");
        // SAFETY: the contract is the same.
        unsafe { self.udp.push_from(source, peer, head, body) }
    }

    #[inline]
    fn flush(&mut self) {
        self.udp.flush();
        if self.has_others {
            self.flush_others();
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
        let (mut received, mut left) = (0, budget);
        if self.has_others {
            let is_udp_due;
            (received, is_udp_due) = self.receive_from_others(budget, &mut handler);
            left = budget.saturating_sub(received);
            if !is_udp_due {
                return received;
            }
        }
        received + self.udp.rx_burst_to(left, handler)
    }

    fn wait(&mut self, timeout_ns: Option<u64>) {
        self.wait_as_member(timeout_ns);
    }

    fn waker(&self) -> Waker {
        self.waker.clone()
    }

    fn stats(&self) -> TransportStats {
        let by_card = self.verbs().map(Transport::stats).unwrap_or_default();
        self.udp.stats() + self.stream.stats() + by_card
    }
}

impl Member for Far {
    #[inline]
    fn has_peers(&self) -> bool {
        self.has_udp || self.has_others
    }

    fn prepare_wait(&mut self) -> bool {
        self.udp_skips = FAR_SKIPS_MAX;
        (!self.has_card_peers || self.card_mut().prepare_wait())
            && (!self.has_streams || self.stream.prepare_wait())
            && (!self.has_udp || self.udp.prepare_wait())
    }

    fn watch<'a>(&'a self, watch: &mut Watch<'a>) {
        if self.has_udp {
            self.udp.watch(watch);
        }
        if self.has_streams {
            self.stream.watch(watch);
        }
        if let Some(card) = self.verbs().filter(|_| self.has_card_peers) {
            card.watch(watch);
        }
    }

    fn finish_wait(&mut self, woken: &Woken) {
        if self.has_udp {
            self.udp.finish_wait(woken);
        }
        if self.has_streams {
            self.stream.finish_wait(woken);
        }
        if self.has_card_peers {
            self.card_mut().finish_wait(woken);
        }
    }
}

/// Forwards frames of another medium than UDP, under their peers' ids here, which have the bit.
struct Other<'a, H, const BIT: u32>(&'a mut H);

impl<H: FrameHandler<NoReturn>, const BIT: u32> FrameHandler<NoReturn> for Other<'_, H, BIT> {
    #[inline(never)]
    fn handle(&mut self, peer: PeerId, frame: &[u8], _: Option<&mut NoReturn>) {
        self.0.handle(PeerId(peer.0 | BIT), frame, None);
    }

    fn handle_marked(&mut self, peer: PeerId, frame: &[u8]) {
        self.0.handle_marked(PeerId(peer.0 | BIT), frame);
    }

    fn handle_shared(&mut self, peer: PeerId, frame: SharedFrame<'_>, _: Option<&mut NoReturn>) {
        self.0.handle_shared(PeerId(peer.0 | BIT), frame, None);
    }
}
