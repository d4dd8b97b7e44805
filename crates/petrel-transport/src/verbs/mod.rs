//! Datagrams of an RDMA card, by its *unreliable datagram* queue pairs (eRPC §4, appendix A).
//!
//! | item | meaning |
//! | --- | --- |
//! | [`Verbs`] | the [`Transport`]: one queue pair |
//! | [`VerbsLink`] | a peer's queue pair |
//! | [`Address`] | the address of a queue pair, 26 bytes in an offer |
//! | [`Card`], [`Lending`], [`Accessor`] | accesses of peers to memory, without an instruction of the memory's process |
//!
//! The library `libibverbs` is opened at run time. A host without the library or a card gets a [`VerbsError`] that names the cause.
//!
//! A packet is a frame. The transport copies frames into registered memory, so that no frame waits for the card, and small frames into the
//! request (*inline*). One call posts a burst, and each 32nd packet has a completion. Received frames are handled in the card's memory. The
//! receive queue bounds the credits of sessions ([`Transport::receive_queue`]), since a card drops a packet that finds no request.
//!
//! The switches of RoCE v2 mark packets instead of dropping them (RFC 3168): the mark stands in the header before each received packet.

mod card;
#[expect(
    clippy::undocumented_unsafe_blocks,
    reason = "the cards in memory have the signatures of the library, and are called by the module alone"
)]
pub mod detached;
mod error;
mod handles;
mod one_sided;
mod pair;
mod table;
#[cfg(test)]
mod tests;

use std::collections::HashMap;
use std::sync::{Arc, Weak};

use crate::clock::{Clock, now_ns};
use crate::mux::Member;
use crate::transport::{
    FrameHandler, LinkError, MIN_FRAME_BYTES, NoReturn, PeerId, ReceiveQueue, Transport,
    TransportStats,
};
use crate::wake::{Waker, Watch, Woken};
use card::Handle;
use handles::{Handles, text_of};
use pair::{Origin, QueuePair};
use table::{LIBRARY, Table};

pub use error::VerbsError;
pub use one_sided::{AccessError, Accessor, Card, Kind, Lending, PairAddress, Place, Rights};

/// The smallest frame that a card must carry.
const FRAME_BYTES_MIN: usize = MIN_FRAME_BYTES;

/// Numbers of queue pairs have 24 bits.
const PAIRS_MAX: u32 = 1 << 24;

/// Polls between two looks for the end of the card: a look costs a system call, some 200 ns, and a poll 20.
const POLLS_PER_LOOK: u32 = 4_096;

/// Settings of a [`Verbs`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct VerbsConfig {
    /// The card's name, as `rdma link` shows it; empty for the first card.
    pub card: String,
    /// The card's port, from 1 on.
    pub port: u8,
    /// Packets that the receive queue holds. The memory of a packet is the port's largest packet and 40 bytes.
    pub receives: u32,
    /// Packets that wait for the card.
    pub sends: u32,
    /// The key that packets to the queue pair need; the card drops others. The highest bit must be 0.
    pub key: u32,
}

impl Default for VerbsConfig {
    fn default() -> Self {
        Self { card: String::new(), port: 1, receives: 1_024, sends: 512, key: 0x5065_7472 }
    }
}

/// The address of a queue pair.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Address {
    /// The global address of the port; zero over InfiniBand within a subnet.
    pub gid: [u8; 16],
    /// The local identifier of the port; zero over Ethernet.
    pub lid: u16,
    /// The number of the queue pair.
    pub pair: u32,
    /// The key of the queue pair.
    pub key: u32,
}

/// A peer's queue pair.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct VerbsLink {
    /// The address.
    pub address: Address,
    /// The largest frame of the link, in bytes.
    pub max_frame: usize,
    /// Whether the two sides have agreed on packets that switches may mark (RFC 3168).
    pub ecn: bool,
}

#[derive(Debug)]
struct Peer {
    link: VerbsLink,
    /// Distinguishes the peer from earlier ones with the index.
    number: u64,
    /// `None` until the system knows the peer's place in the network. Frames are dropped before.
    handle: Option<Handle>,
    /// Links that lead to the peer.
    links: u32,
}

/// The transport of one queue pair. See the [module](self).
#[derive(Debug)]
pub struct Verbs {
    // The handles of peers belong to the pair's domain, and are gone before the pair.
    peers: Vec<Option<Peer>>,
    pair: QueuePair,
    handles: Handles,
    /// The number of the last peer.
    last_number: u64,
    /// For the owner's log.
    notice: Option<String>,
    waker: Waker,
    /// The peers of received packets.
    origins: HashMap<Origin, u32>,
    count: usize,
    /// Whether a frame of the current burst was refused: later ones must not overtake it.
    is_full: bool,
    /// Polls since the look for the end of the card.
    polls: u32,
    /// Held as long as the card carries packets: see [`Verbs::life`].
    life: Option<Arc<()>>,
    /// Peers whose end was not reported.
    to_report: Vec<PeerId>,
    stats: TransportStats,
}

impl Verbs {
    /// Opens the card, with a queue pair that receives.
    ///
    /// # Errors
    /// See [`VerbsError`].
    pub fn open(config: &VerbsConfig, waker: Waker) -> Result<Self, VerbsError> {
        Self::by(Table::open(LIBRARY)?, config, waker)
    }

    fn by(table: Table, config: &VerbsConfig, waker: Waker) -> Result<Self, VerbsError> {
        Ok(Self {
            peers: Vec::new(),
            pair: QueuePair::open(table, config)?,
            handles: Handles::new(waker.clone()),
            last_number: 0,
            notice: None,
            waker,
            origins: HashMap::new(),
            count: 0,
            is_full: false,
            polls: 0,
            life: Some(Arc::new(())),
            to_report: Vec::new(),
            stats: TransportStats::default(),
        })
    }

    /// The address by which peers reach this transport.
    pub fn address(&self) -> Address {
        self.pair.address()
    }

    /// The card's name.
    pub fn card(&self) -> &str {
        &self.pair.ground().port.name
    }

    /// The life of the card, for other threads: the card carries packets as long as the result has an owner.
    pub fn life(&self) -> Weak<()> {
        self.life.as_ref().map_or_else(Weak::new, Arc::downgrade)
    }

    /// The largest frame, in bytes.
    pub fn frame_bytes(&self) -> usize {
        self.pair.mtu()
    }

    fn peer(&self, peer: PeerId) -> Option<&Peer> {
        self.peers.get(peer.0 as usize)?.as_ref()
    }

    /// Takes the places of peers that have come.
    fn take_handles(&mut self) {
        while let Some((number, made)) = self.handles.next() {
            let mut peers = self.peers.iter_mut().flatten();
            let Some(peer) = peers.find(|peer| peer.number == number) else { continue };
            match made {
                Ok(handle) => peer.handle = Some(handle),
                Err(why) => {
                    let to = text_of(&peer.link.address);
                    self.notice = Some(format!("no way to {to} by the RDMA card: {why}"));
                }
            }
        }
    }

    /// Waits for the places of all peers.
    #[cfg(test)]
    pub(crate) fn settle(&mut self) {
        while self.handles.are_asked() {
            self.take_handles();
            std::thread::yield_now();
        }
    }

    /// Posts the staged packets, and counts.
    fn post(&mut self) {
        if !self.pair.has_staged() {
            return;
        }
        match self.pair.post() {
            Ok(posted) => self.stats.tx_datagrams += posted,
            Err((dropped, _)) => {
                self.stats.tx_dropped_error += dropped;
                self.stats.tx_frames -= dropped;
                self.end();
            }
        }
    }

    /// Ends the use of the card: all peers are broken.
    fn end(&mut self) {
        if self.life.take().is_some() {
            let there = (0..).zip(&self.peers).filter(|(_, peer)| peer.is_some());
            self.to_report.extend(there.map(|(index, _)| PeerId(index)));
            self.notice = Some("the RDMA card carries nothing any more".to_owned());
        }
    }

    fn look_for_the_end(&mut self) {
        if self.life.is_some() && self.pair.has_ended() {
            self.end();
        }
    }

    /// Returns the peer of a link to the same address on equal terms.
    fn known(&self, link: &VerbsLink) -> Option<u32> {
        let is_same = |peer: &Option<Peer>| peer.as_ref().is_some_and(|peer| peer.link == *link);
        self.peers.iter().position(is_same).map(|index| index as u32)
    }

    /// Has packets of a removed peer's origin delivered for another peer of the same address, if there is one.
    fn forget_origin(&mut self, origin: Origin, index: u32) {
        if self.origins.get(&origin) != Some(&index) {
            return;
        }
        let pair = &self.pair;
        let is_at = |peer: &Option<Peer>| {
            peer.as_ref().is_some_and(|peer| pair.origin_of(&peer.link.address) == origin)
        };
        match self.peers.iter().position(is_at) {
            Some(other) => self.origins.insert(origin, other as u32),
            None => self.origins.remove(&origin),
        };
    }
}

impl Transport for Verbs {
    type Link = VerbsLink;
    type Return = NoReturn;

    #[inline]
    fn now(&self) -> u64 {
        now_ns()
    }

    fn clock(&self) -> Clock {
        Clock::machine()
    }

    fn add_peer(&mut self, link: VerbsLink) -> Result<PeerId, LinkError> {
        if !(MIN_FRAME_BYTES..=self.pair.mtu()).contains(&link.max_frame) {
            let why = format!("an RDMA link with frames of {} bytes", link.max_frame);
            return Err(LinkError::Unsupported(why));
        }
        if link.address.pair >= PAIRS_MAX {
            let why = format!("an RDMA link to the impossible queue pair {}", link.address.pair);
            return Err(LinkError::Unsupported(why));
        }
        if let Some(index) = self.known(&link) {
            let peer = self.peers[index as usize].as_mut().expect("a known peer is in the table");
            peer.links += 1;
            if self.life.is_none() && !self.to_report.contains(&PeerId(index)) {
                self.to_report.push(PeerId(index));
            }
            return Ok(PeerId(index));
        }
        self.last_number += 1;
        let number = self.last_number;
        self.handles.ask(number, &link, self.pair.ground());
        let free = self.peers.iter().position(Option::is_none);
        let index = free.unwrap_or(self.peers.len());
        if free.is_none() {
            self.peers.push(None);
        }
        self.peers[index] = Some(Peer { link, number, handle: None, links: 1 });
        self.count += 1;
        self.origins.entry(self.pair.origin_of(&link.address)).or_insert(index as u32);
        if self.life.is_none() {
            self.to_report.push(PeerId(index as u32));
        }
        Ok(PeerId(index as u32))
    }

    fn remove_peer(&mut self, id: PeerId) {
        // A staged packet needs its peer's handle.
        self.post();
        let Some(entry) = self.peers.get_mut(id.0 as usize) else { return };
        let Some(peer) = entry else { return };
        peer.links -= 1;
        if peer.links > 0 {
            return;
        }
        let origin = self.pair.origin_of(&peer.link.address);
        let gone = entry.take().expect("the peer was just found");
        if let Some(handle) = gone.handle {
            self.pair.retire(handle);
        }
        assert!(self.count > 0, "a peer that is removed was counted");
        self.count -= 1;
        self.forget_origin(origin, id.0);
        self.to_report.retain(|broken| *broken != id);
    }

    fn source_of(&self, id: PeerId) -> PeerId {
        let Some(peer) = self.peer(id) else { return id };
        let origin = self.pair.origin_of(&peer.link.address);
        self.origins.get(&origin).map_or(id, |index| PeerId(*index))
    }

    fn max_frame_bytes(&self, peer: PeerId) -> usize {
        self.peer(peer).map_or(0, |peer| peer.link.max_frame)
    }

    fn medium_of(&self, _: PeerId) -> &'static str {
        "verbs"
    }

    #[inline]
    fn has_broken(&self) -> bool {
        !self.to_report.is_empty()
    }

    fn take_broken(&mut self) -> Option<(PeerId, String)> {
        let peer = self.to_report.pop()?;
        Some((peer, "the RDMA card has failed, or was removed".to_owned()))
    }

    fn take_notice(&mut self) -> Option<String> {
        self.look_for_the_end();
        self.notice.take()
    }

    fn receive_queue(&self) -> Option<ReceiveQueue> {
        Some(ReceiveQueue::Ring(self.pair.receives() as u64))
    }

    #[inline]
    unsafe fn push(&mut self, id: PeerId, head: &[u8], body: &[u8]) -> bool {
        let Some(Some(peer)) = self.peers.get(id.0 as usize) else {
            self.stats.tx_dropped_no_peer += 1;
            return true;
        };
        let bytes = head.len() + body.len();
        if bytes > peer.link.max_frame {
            self.stats.tx_dropped_oversize += 1;
            return true;
        }
        if self.life.is_none() {
            self.stats.tx_dropped_error += 1;
            return true;
        }
        let Some(handle) = &peer.handle else {
            self.stats.tx_dropped_no_peer += 1;
            return true;
        };
        if self.is_full || !self.pair.stage(handle, head, body) {
            self.is_full = true;
            self.stats.tx_blocked += 1;
            return false;
        }
        self.stats.tx_frames += 1;
        self.stats.tx_bytes += bytes as u64;
        true
    }

    #[inline]
    fn flush(&mut self) {
        self.is_full = false;
        self.post();
    }

    fn rx_burst_to<H: FrameHandler<NoReturn>>(&mut self, budget: usize, mut handler: H) -> usize {
        self.post();
        if self.handles.are_asked() {
            self.take_handles();
        }
        self.polls += 1;
        if self.polls == POLLS_PER_LOOK {
            self.polls = 0;
            self.look_for_the_end();
        }
        let (origins, stats) = (&self.origins, &mut self.stats);
        let mut received = 0;
        let mut deliver = |arrived: pair::Arrived<'_>| {
            stats.rx_datagrams += 1;
            let Some(&peer) = origins.get(&arrived.origin) else {
                stats.rx_dropped_unknown_peer += 1;
                return;
            };
            if arrived.bytes.is_empty() {
                stats.rx_dropped_malformed += 1;
                return;
            }
            received += 1;
            stats.rx_frames += 1;
            stats.rx_bytes += arrived.bytes.len() as u64;
            if arrived.is_marked {
                stats.rx_marked += 1;
                handler.handle_marked(PeerId(peer), arrived.bytes);
            } else {
                handler.handle(PeerId(peer), arrived.bytes, None);
            }
        };
        let mut left = if self.life.is_none() { 0 } else { budget };
        while left > 0 {
            let polled = self.pair.receive(left, &mut deliver);
            if polled == 0 {
                break;
            }
            left -= polled;
        }
        if self.pair.has_failed() {
            self.end();
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
        self.stats
    }
}

impl Member for Verbs {
    #[inline]
    fn has_peers(&self) -> bool {
        self.count > 0
    }

    /// Asks the card for an event. A packet that arrived before is found by the look that follows.
    fn prepare_wait(&mut self) -> bool {
        self.post();
        self.look_for_the_end();
        if self.life.is_none() {
            return self.to_report.is_empty();
        }
        self.pair.arm() && !self.pair.has_received() && !self.pair.has_staged()
    }

    fn watch<'a>(&'a self, watch: &mut Watch<'a>) {
        // After its end the card's events are no news.
        for fd in self.pair.fds().into_iter().filter(|_| self.life.is_some()) {
            watch.add(fd, false);
        }
    }

    fn finish_wait(&mut self, _: &Woken) {
        self.pair.disarm();
        self.look_for_the_end();
    }
}
