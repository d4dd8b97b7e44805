//! The production UDP code over the fabric. Frames go through the transmit planner of `petrel-transport`
//! into bundles and GSO trains, and come out of merged datagrams by its receiving side. Each datagram of a
//! train is a packet of the fabric.
//!
//! A packet carries frames, as all packets of the fabric do: bundles are rebuilt at the receiver.
//! Consecutive packets of equal sender and size may be received as one buffer, as with GRO.
//!
//! This module panics unless the frames that leave for an address are the pushed frames, byte for byte and in order. No
//! frame may stay behind without a backlog. Delivered frames and the counters of dropped datagrams must be as in the
//! model of the specification, `links`. Each datagram of a sealed link must leave under a new number.

mod links;

use std::cell::RefCell;
use std::collections::{BTreeMap, VecDeque};
use std::io;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::rc::Rc;

use petrel_transport::bundle;
use petrel_transport::seal::SEALED_MARK;
use petrel_transport::shm::Outgoing;
use petrel_transport::udp::detached::{Arrival, Detached, Refusal, Wire};
use petrel_transport::{FrameHandler, LinkError, NoReturn, PeerId, TransportStats};

use crate::fabric::{Attack, Binding, Ecn, FabricHandle, Frames, HostId, SimAddr};
use crate::ring::SealedPath;
use crate::rng::Rng;
use links::{Dropped, Links, Verdict, Why};

/// The capacity of one message or one receive buffer.
const TRAIN_BYTES_MAX: usize = 65_507;
const TRAIN_DATAGRAMS_MAX: usize = 64;

/// One call in this number, on average, is refused, for each kind of refusal: an interruption, the
/// error of an earlier datagram, segmentation that is not available.
const CALLS_PER_REFUSAL: u64 = 400;

/// A merge ends, on average, after this number of neighbouring datagrams of a flow.
const DATAGRAMS_PER_MERGE_END: u64 = 4;

/// The transport of an endpoint.
#[derive(Debug)]
pub(crate) struct Udp {
    detached: Detached,
    socket: FabricSocket,
    max_frame_bytes: usize,
    /// Number of kept frames counted so far.
    kept_before: u64,
    /// Datagrams of the device counted so far.
    by_device_before: u64,
}

/// Frames that leave in order: to an address, by the own path of a sealed link, and for a peer. Links to an address that differ in their
/// longest frames are different peers.
type Lane = (SocketAddr, Option<u32>, u32);

/// The fabric's side of the transport.
#[derive(Debug)]
struct FabricSocket {
    fabric: FabricHandle,
    binding: Binding,
    is_ecn_capable: bool,
    /// The time until the device reads a frame.
    read_ns: u32,
    /// Whether received datagrams are merged.
    joins: bool,
    rng: Rng,
    /// Pushed frames before departure.
    pushed: BTreeMap<Lane, VecDeque<Vec<u8>>>,
    incoming: Rc<RefCell<Incoming>>,
    /// A packet that could not be merged with earlier packets.
    next: Option<Datagram>,
    frames: Frames,
}

/// Received datagrams and delivered frames.
#[derive(Debug, Default)]
struct Incoming {
    links: Links,
    /// Datagrams not yet processed by the transport.
    waiting: VecDeque<Datagram>,
    /// Delivered frames of datagrams not yet judged.
    delivered: VecDeque<(PeerId, Vec<u8>)>,
    /// Datagrams judged so far: all, and the dropped ones by reason.
    judged: u64,
    dropped: Dropped,
}

/// A received packet.
#[derive(Debug)]
struct Datagram {
    from: SimAddr,
    bytes: Vec<u8>,
    is_marked: bool,
    attack: Option<Attack>,
}

impl Udp {
    pub(crate) fn new(
        fabric: &FabricHandle,
        binding: Binding,
        max_frame_bytes: usize,
        is_ecn_capable: bool,
        seed: u64,
        read_ns: u32,
    ) -> io::Result<Self> {
        let mut rng = Rng::new(seed);
        let has_gso = rng.below(4) > 0;
        let mut socket = FabricSocket {
            fabric: fabric.clone(),
            binding,
            is_ecn_capable,
            read_ns,
            joins: rng.below(4) > 0,
            rng,
            pushed: BTreeMap::new(),
            incoming: Rc::default(),
            next: None,
            frames: Frames::default(),
        };
        let message_bytes_max = if has_gso { TRAIN_BYTES_MAX } else { 0 };
        let (has_device, at) = (socket.rng.below(4) == 0, address_of(binding.at));
        let detached = match has_device {
            true => Detached::with_device(message_bytes_max, at, seed)?,
            false => Detached::new(message_bytes_max)?,
        };
        Ok(Self { detached, socket, max_frame_bytes, kept_before: 0, by_device_before: 0 })
    }

    pub(crate) fn add_peer(
        &mut self,
        at: SimAddr,
        max_frame_bytes: usize,
    ) -> Result<PeerId, LinkError> {
        let max_frame_bytes = max_frame_bytes.min(self.max_frame_bytes);
        let peer = self.detached.add_peer(address_of(at), max_frame_bytes)?;
        self.socket.incoming.borrow_mut().links.add(at, peer, self.detached.source_of(peer));
        Ok(peer)
    }

    pub(crate) fn add_sealed_peer(&mut self, link: SealedPath) -> Result<PeerId, LinkError> {
        let (address, bits) = (address_of(link.peer), link.epoch_bits);
        let max_frame_bytes = link.max_frame_bytes.min(self.max_frame_bytes);
        let peer = self.detached.add_sealed_peer(address, max_frame_bytes, link.keys(), bits)?;
        self.socket.incoming.borrow_mut().links.add_sealed(link, peer);
        Ok(peer)
    }

    pub(crate) fn remove_peer(&mut self, peer: PeerId) {
        if self.detached.addr(peer).is_some() {
            self.socket.incoming.borrow_mut().links.remove(peer);
        }
        self.detached.remove_peer(peer);
    }

    pub(crate) fn source_of(&self, peer: PeerId) -> PeerId {
        self.detached.source_of(peer)
    }

    pub(crate) fn max_frame_bytes(&self, peer: PeerId) -> usize {
        self.detached.max_frame_bytes(peer)
    }

    /// # Safety
    /// That of [`Transport::push`](petrel_transport::Transport::push).
    #[expect(unsafe_code, reason = "the trait's contract is passed on")]
    pub(crate) unsafe fn push(&mut self, peer: PeerId, head: &[u8], body: &[u8]) -> bool {
        let bytes = head.len() + body.len();
        let address =
            self.detached.addr(peer).filter(|_| (1..=self.max_frame_bytes).contains(&bytes));
        // The frame is noted before the push, which may send it together with planned frames.
        let way = address
            .map(|address| (address, self.socket.incoming.borrow().links.path_of(peer), peer.0));
        if let Some(way) = way {
            self.socket.pushed.entry(way).or_default().push_back([head, body].concat());
        }
        // SAFETY: by this function's contract.
        let is_taken = unsafe { self.detached.push(&mut self.socket, peer, head, body) };
        if let Some(way) = way {
            match is_taken {
                true => self.socket.show_pushed(way, head, body),
                false => _ = self.socket.pushed.entry(way).or_default().pop_back(),
            }
        }
        is_taken
    }

    pub(crate) fn flush(&mut self) {
        self.detached.flush(&mut self.socket);
        self.note_device();
        let kept = self.detached.stats().tx_kept;
        let before = std::mem::replace(&mut self.kept_before, kept);
        self.socket.fabric.borrow_mut().stats.frames_kept += kept - before;
        self.check_nothing_left();
    }

    pub(crate) fn rx_burst_to<H: FrameHandler<Outgoing>>(
        &mut self,
        budget: usize,
        handler: H,
    ) -> usize {
        let incoming = Rc::clone(&self.socket.incoming);
        let (fabric, at) = (self.socket.fabric.clone(), self.socket.binding.at);
        let checked = Checked { handler, fabric, at, incoming };
        let count = self.detached.rx_burst_to(&mut self.socket, budget, checked);
        self.note_device();
        let mut incoming = self.socket.incoming.borrow_mut();
        incoming.judge(&self.socket.fabric, at, &self.detached.stats());
        let all = self.detached.has_ready() || incoming.waiting.is_empty();
        assert!(all, "{at} has neither delivered nor counted a datagram");
        drop(incoming);
        self.check_nothing_left();
        count
    }

    /// Returns true if frames are available without another packet.
    pub(crate) fn has_ready(&self) -> bool {
        self.detached.has_ready() || self.socket.next.is_some()
    }

    pub(crate) fn has_backlog(&self) -> bool {
        self.detached.has_backlog()
    }

    pub(crate) fn stats(&self) -> TransportStats {
        self.detached.stats()
    }

    fn note_device(&mut self) {
        let TransportStats { tx_device_datagrams, rx_device_datagrams, .. } = self.detached.stats();
        let now = tx_device_datagrams + rx_device_datagrams;
        let before = std::mem::replace(&mut self.by_device_before, now);
        self.socket.fabric.borrow_mut().stats.datagrams_by_devices += now - before;
    }

    fn check_nothing_left(&self) {
        let left: usize = self.socket.pushed.values().map(VecDeque::len).sum();
        let at = self.socket.binding.at;
        assert!(left == 0 || self.has_backlog(), "{at}: {left} frames are gone without a word");
    }
}

impl FabricSocket {
    fn show_pushed(&self, (to, path, _): Lane, head: &[u8], body: &[u8]) {
        let (to, frame) = (sim_addr_of(to), [head, body].concat());
        self.fabric.borrow_mut().show_frame_sent(self.binding.at, to, path, &frame);
    }

    /// Checks that the frames of a departing datagram were pushed first. Returns the contents of a sealed datagram.
    fn check_leaving(&mut self, to: SocketAddr, datagram: &[u8]) -> Option<Vec<u8>> {
        let at = self.binding.at;
        let mut incoming = self.incoming.borrow_mut();
        let opened = incoming.links.open_leaving(sim_addr_of(to), datagram);
        let (path, contents) = match &opened {
            Some((path, contents)) => (Some(*path), &contents[..]),
            None => (None, datagram),
        };
        let Some(frames) = bundle::frames(contents) else {
            panic!("{at} sends a datagram of {} bytes that is none", datagram.len());
        };
        let frames: Vec<_> = frames.collect();
        let lanes = self.pushed.range_mut((to, path, 0)..=(to, path, u32::MAX));
        let mut lanes = lanes.map(|(_, pushed)| pushed);
        let pushed =
            lanes.find(|pushed| pushed.front().map(Vec::as_slice) == frames.first().copied());
        let Some(pushed) = pushed else {
            panic!("{at} sends {to} a frame that is next on no lane")
        };
        for frame in frames {
            let next = pushed.pop_front();
            assert!(next.as_deref() == Some(frame), "{at} sends {to} a frame that is not the next");
        }
        opened.map(|(_, contents)| contents)
    }

    fn send_datagram(&mut self, to: SocketAddr, datagram: &[u8]) {
        let opened = self.check_leaving(to, datagram);
        let mut fabric = self.fabric.borrow_mut();
        let (from, to) = (self.binding.at, sim_addr_of(to));
        let packet = fabric.packets.create(from, to);
        fabric.packets.head_mut(&packet).read_ns = self.read_ns;
        if self.is_ecn_capable {
            fabric.packets.head_mut(&packet).ecn = Ecn::Ect0;
        }
        match opened {
            // A sealed datagram is a single frame for the fabric.
            Some(contents) => {
                fabric.packets.frames_mut(&packet).push(datagram, &[]);
                fabric.record_contents(from, to, contents);
            }
            None => {
                for frame in bundle::frames(datagram).into_iter().flatten() {
                    fabric.packets.frames_mut(&packet).push(frame, &[]);
                }
            }
        }
        fabric.submit_shown(packet);
    }

    /// Checks that the NIC has room for a train; returns the refusal otherwise.
    fn check_room(&mut self, datagrams: usize, bytes: usize) -> Result<(), Refusal> {
        let mut fabric = self.fabric.borrow_mut();
        let host = self.binding.at.host;
        if fabric.has_tx_room_for(host, datagrams, bytes) {
            return Ok(());
        }
        if datagrams > 1 && !fabric.could_have_tx_room_for(host, datagrams, bytes) {
            return Err(Refusal::NoSegmentation);
        }
        fabric.note_tx_blocked(self.binding.at);
        Err(Refusal::NoRoom)
    }

    fn take(&mut self) -> Option<Datagram> {
        if let Some(next) = self.next.take() {
            return Some(next);
        }
        let mut fabric = self.fabric.borrow_mut();
        if !fabric.is_bound(self.binding) {
            return None;
        }
        let head = fabric.take(self.binding.at, &mut self.frames)?;
        let (from, is_marked, attack) = (head.from, head.ecn == Ecn::Ce, head.attack);
        Some(Datagram { from, bytes: datagram_of(&self.frames), is_marked, attack })
    }
}

impl Wire for FabricSocket {
    fn send(
        &mut self,
        to: SocketAddr,
        datagrams: &[u8],
        segment_bytes: usize,
    ) -> Result<(), Refusal> {
        if !self.fabric.borrow_mut().is_bound(self.binding) {
            // The host is down; the simulation will remove the endpoint, too.
            self.pushed.clear();
            return Ok(());
        }
        let count = datagrams.len().div_ceil(segment_bytes);
        match self.rng.below(CALLS_PER_REFUSAL) {
            0 => return Err(Refusal::Interrupted),
            1 => return Err(Refusal::LateNews),
            2 if count > 1 => return Err(Refusal::NoSegmentation),
            _ => {}
        }
        assert!(count <= TRAIN_DATAGRAMS_MAX && datagrams.len() <= TRAIN_BYTES_MAX);
        self.check_room(count, datagrams.len())?;
        self.fabric.borrow_mut().stats.trains += u64::from(count > 1);
        datagrams.chunks(segment_bytes).for_each(|datagram| self.send_datagram(to, datagram));
        Ok(())
    }

    fn receive(&mut self, datagrams: &mut Vec<u8>) -> Option<Arrival> {
        let first = self.take()?;
        let (from, segment_bytes, is_marked) = (first.from, first.bytes.len(), first.is_marked);
        datagrams.extend_from_slice(&first.bytes);
        let incoming = Rc::clone(&self.incoming);
        let mut incoming = incoming.borrow_mut();
        incoming.waiting.push_back(first);
        let mut count = 1;
        while self.joins
            && count < TRAIN_DATAGRAMS_MAX
            && self.rng.below(DATAGRAMS_PER_MERGE_END) > 0
        {
            let Some(next) = self.take() else { break };
            let bytes = next.bytes.len();
            let fits = (next.from, next.is_marked) == (from, is_marked)
                && (1..=segment_bytes).contains(&bytes)
                && datagrams.len() + bytes <= TRAIN_BYTES_MAX;
            if !fits {
                self.next = Some(next);
                break;
            }
            datagrams.extend_from_slice(&next.bytes);
            incoming.waiting.push_back(next);
            count += 1;
            self.fabric.borrow_mut().stats.joined += 1;
            if bytes < segment_bytes {
                break;
            }
        }
        Some(Arrival { from: address_of(from), segment_bytes: segment_bytes.max(1), is_marked })
    }
}

impl Incoming {
    /// Judges the datagrams processed by the transport so far, and compares frames and counters.
    fn judge(&mut self, fabric: &FabricHandle, at: SimAddr, stats: &TransportStats) {
        let dropped = Dropped::of(stats);
        let looked_at = stats.rx_datagrams + dropped.total();
        for _ in self.judged..looked_at {
            let Some(datagram) = self.waiting.pop_front() else {
                panic!("{at} has counted a datagram that did not come");
            };
            let verdict = self.links.judge(datagram.from, &datagram.bytes);
            let stats = &mut fabric.borrow_mut().stats;
            if let Verdict::Deliver { is_sealed: false, .. } = verdict {
                let is_strange = datagram.attack.is_some() || datagram.bytes[0] == SEALED_MARK;
                stats.strange_on_plain_links += u64::from(is_strange);
            }
            if let Some(attack) = datagram.attack {
                match verdict {
                    // The original is lost or late: the copy is the first datagram with the number.
                    Verdict::Deliver { is_sealed: true, .. } => {
                        assert_eq!(attack, Attack::Replay, "{at} accepts it from {datagram:?}");
                        stats.attacks_first += 1;
                    }
                    Verdict::Drop(Why::Replayed { epochs }) => {
                        stats.attacks_of_former_keys += u64::from(epochs > 0);
                    }
                    Verdict::Drop(Why::Forged) => {
                        stats.attacks_of_former_links += u64::from(attack == Attack::Replay);
                    }
                    _ => {}
                }
            }
            match verdict {
                Verdict::Deliver { peer, contents, .. } => {
                    for frame in bundle::frames(&contents).into_iter().flatten() {
                        let delivered = self.delivered.pop_front();
                        let is_it =
                            delivered.is_some_and(|(to, bytes)| to == peer && bytes == frame);
                        assert!(is_it, "{at} is given another frame than the next, of {peer:?}");
                    }
                }
                Verdict::Drop(why) => self.dropped.count(why),
            }
        }
        self.judged = looked_at;
        let extra = self.delivered.front();
        assert!(extra.is_none(), "{at} is given a frame that it should not accept: {extra:?}");
        assert_eq!(self.dropped, dropped, "{at} drops datagrams for other reasons");
    }
}

/// Notes each frame before it is handled.
struct Checked<H> {
    handler: H,
    fabric: FabricHandle,
    at: SimAddr,
    incoming: Rc<RefCell<Incoming>>,
}

impl<H> Checked<H> {
    fn note(&self, peer: PeerId, frame: &[u8], is_marked: bool) {
        let mut incoming = self.incoming.borrow_mut();
        incoming.delivered.push_back((peer, frame.to_vec()));
        let (from, path) = incoming.links.sender_of(peer);
        drop(incoming);
        self.fabric.borrow_mut().show_frame_taken((from, 0), self.at, path, frame, is_marked);
    }
}

impl<H: FrameHandler<Outgoing>> FrameHandler<NoReturn> for Checked<H> {
    fn handle(&mut self, peer: PeerId, frame: &[u8], _back: Option<&mut NoReturn>) {
        self.note(peer, frame, false);
        self.handler.handle(peer, frame, None);
    }

    fn handle_marked(&mut self, peer: PeerId, frame: &[u8]) {
        self.note(peer, frame, true);
        self.handler.handle_marked(peer, frame);
    }

    fn looks_ahead(&self) -> bool {
        self.handler.looks_ahead()
    }

    fn prepare(&mut self, frame: &[u8], is_whole: bool) {
        self.handler.prepare(frame, is_whole);
    }
}

/// Returns a packet's frames in wire format: a single frame, or a bundle.
fn datagram_of(frames: &Frames) -> Vec<u8> {
    if frames.count() < 2 {
        return frames.bytes.clone();
    }
    let mut bytes =
        vec![0; frames.bytes.len() + bundle::MARK_BYTES + frames.count() * bundle::LENGTH_BYTES];
    let mut used = bundle::begin(&mut bytes);
    for frame in frames.iter() {
        used = bundle::append(&mut bytes, used, frame, &[]);
    }
    bytes
}

/// Returns IP address and port of an address of the fabric.
fn address_of(at: SimAddr) -> SocketAddr {
    let [high, low] = at.host.0.to_be_bytes();
    (Ipv4Addr::new(10, 0, high, low), at.port).into()
}

fn sim_addr_of(address: SocketAddr) -> SimAddr {
    let IpAddr::V4(ip) = address.ip() else { panic!("{address} is of no host") };
    let [_, _, high, low] = ip.octets();
    SimAddr::new(HostId(u16::from_be_bytes([high, low])), address.port())
}
