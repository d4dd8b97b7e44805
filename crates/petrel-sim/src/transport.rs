//! The simulated implementation of [`Transport`].

use std::cell::RefCell;
use std::net::SocketAddr;
use std::ops::RangeInclusive;
use std::rc::Rc;

use petrel_transport::buf::RegionWatch;
use petrel_transport::clock::Clock;
use petrel_transport::seal::SEALED_MARK;
use petrel_transport::shm::Outgoing;
use petrel_transport::wake::Waker;
use petrel_transport::{
    FrameHandler, LinkError, MIN_FRAME_BYTES, PeerId, ReceiveQueue, SharedFrame, TX_BURST_MAX,
    Transport, TransportStats, TxFrame,
};

use crate::device::Device;
use crate::fabric::{BindError, Binding, Ecn, FabricHandle, Frames, PacketRef, SimAddr};
use crate::peers::{Peers, Sender};
use crate::push_check::PushedFrames;
use crate::ring::{DataLink, Rings};
use crate::udp::Udp;

/// Allowed limits for the frame size: from the size that every transport must carry to the largest UDP
/// payload over IPv4.
pub const FRAME_BYTES: RangeInclusive<usize> = MIN_FRAME_BYTES..=65_507;

/// The medium between an endpoint and the fabric.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Medium {
    /// A packet for every frame, or for several short frames of a burst.
    #[default]
    Packets,
    /// The bundles and GSO trains of the UDP transport. Refusals by the socket and merging of received
    /// datagrams follow from a seed.
    Udp {
        /// The seed.
        seed: u64,
    },
}

/// Settings of a [`SimTransport`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SimTransportConfig {
    /// The largest frame, within [`FRAME_BYTES`].
    pub max_frame_bytes: usize,
    /// Whether neighbouring frames of one burst to one peer share a packet, up to `max_frame_bytes`
    /// together. Such frames are lost, delayed and duplicated together.
    pub coalesce: bool,
    /// Whether packets are sent with ECT(0) instead of Not-ECT: the sender reacts to congestion marks.
    /// Switches mark only ECT(0) packets.
    pub ecn_capable: bool,
    /// How frames become packets. `coalesce` applies to packets only.
    pub medium: Medium,
    /// Number of ports that packets may come from, 1 to [`SOURCE_PORTS_MAX`]: the port of the address, and
    /// further ones, which only send. The medium of UDP has one.
    pub source_ports: u8,
    /// The time from the flush until the device reads bodies in place and the packets leave, as with a network card; 0
    /// for a transport that copies.
    pub read_ns: u32,
    /// Whether the sessions' credits are bound to the NIC's receive queue, as to the ring of a device.
    pub has_ring: bool,
}

/// Maximum number of source ports of a transport.
pub const SOURCE_PORTS_MAX: u8 = 32;

impl Default for SimTransportConfig {
    fn default() -> Self {
        // An Ethernet frame of 1500 bytes minus IPv4 and UDP headers.
        Self {
            max_frame_bytes: 1472,
            coalesce: false,
            ecn_capable: false,
            medium: Medium::Packets,
            source_ports: 1,
            read_ns: 0,
            has_ring: false,
        }
    }
}

/// A transport on a simulated host: its frames become packets of a fabric.
///
/// The transport belongs to the incarnation of its host at the time of binding. After a crash it sends and
/// receives nothing; the harness makes a new transport. Dropping a transport closes its port.
///
/// A frame leaves with its content at the push, and must have equal content at the flush: a transport that reads the
/// frame only then would send different bytes. If the content differs, [`Transport::flush`] panics and names the frame.
/// A [device](SimTransportConfig::read_ns) compares long bodies again when it reads them.
///
/// [`Transport::wait`] does not sleep, because time stands still while an actor runs: it records when the
/// actor wants to run again, and returns.
#[derive(Debug)]
pub struct SimTransport {
    fabric: FabricHandle,
    binding: Binding,
    config: SimTransportConfig,
    /// Has its own peers and counters.
    udp: Option<Box<Udp>>,
    /// Present once a peer shares memory. In a cell, because an endpoint lends its transport by shared
    /// reference and [`SimTransport::rest`] changes state that peers see.
    rings: RefCell<Option<Box<Rings>>>,
    peers: Peers,
    /// The source ports after the first.
    further_ports: Vec<u16>,
    stats: TransportStats,
    /// The packet with the frames in processing.
    received: Frames,
    received_ecn: Ecn,
    received_source: u8,
    rx_marked: u64,
    /// The packet that accepts more frames.
    open: Option<Open>,
    /// The frames of the burst.
    pushed: PushedFrames,
    /// The reader of bodies in place.
    device: Option<Rc<Device>>,
    /// Whether the NIC has refused a frame of this burst.
    is_full: bool,
}

impl SimTransport {
    /// Binds a port.
    ///
    /// # Errors
    /// See [`BindError`].
    pub fn bind(
        fabric: &FabricHandle,
        at: SimAddr,
        config: SimTransportConfig,
    ) -> Result<Self, BindError> {
        if !FRAME_BYTES.contains(&config.max_frame_bytes) {
            return Err(BindError::FrameBytes { bytes: config.max_frame_bytes });
        }
        let is_udp = config.medium != Medium::Packets;
        let count_max = if is_udp { 1 } else { SOURCE_PORTS_MAX };
        if !(1..=count_max).contains(&config.source_ports) {
            return Err(BindError::SourcePorts { count: config.source_ports, count_max });
        }
        let binding = fabric.bind(at)?;
        let further = usize::from(config.source_ports) - 1;
        let opened = fabric.borrow_mut().open_source_ports(binding, further);
        let further_ports = opened.inspect_err(|_| fabric.unbind(binding, &[]))?;
        let udp = match config.medium {
            Medium::Packets => None,
            Medium::Udp { seed } => {
                let (frame_bytes, is_ecn) = (config.max_frame_bytes, config.ecn_capable);
                let udp = Udp::new(fabric, binding, frame_bytes, is_ecn, seed, config.read_ns);
                Some(Box::new(udp.map_err(BindError::Waker)?))
            }
        };
        let read_ns = u64::from(config.read_ns);
        let device = (read_ns > 0).then(|| Rc::new(Device::new(fabric.clone(), at, read_ns)));
        Ok(Self {
            binding,
            fabric: fabric.clone(),
            config,
            udp,
            rings: RefCell::new(None),
            peers: Peers::default(),
            further_ports,
            stats: TransportStats::default(),
            received: Frames::default(),
            received_ecn: Ecn::NotEct,
            received_source: 0,
            rx_marked: 0,
            open: None,
            pushed: PushedFrames::default(),
            device,
            is_full: false,
        })
    }

    /// Returns the address of this transport: the link that peers add.
    pub fn addr(&self) -> SimAddr {
        self.binding.at
    }

    /// Returns the transport's fabric.
    pub fn fabric(&self) -> &FabricHandle {
        &self.fabric
    }

    /// Returns the ECN codepoint of the packet delivered last. All frames of a packet share the codepoint:
    /// bursts with a budget of one frame see the codepoint of every packet.
    ///
    /// [`Transport`] has no method for the codepoint yet; the fabric is prepared for one.
    pub fn received_ecn(&self) -> Ecn {
        self.received_ecn
    }

    /// Number of packets received with "congestion experienced".
    pub fn rx_marked(&self) -> u64 {
        self.rx_marked
    }

    /// Returns the address of a source port, by index; 0 is that of [`SimTransport::addr`].
    ///
    /// # Panics
    /// If the transport has no source port of this index.
    pub fn source_addr(&self, source: u8) -> SimAddr {
        match usize::from(source).checked_sub(1) {
            None => self.binding.at,
            Some(index) => SimAddr { port: self.further_ports[index], ..self.binding.at },
        }
    }

    /// Returns the index of the source port from which the packet delivered last came. Bursts with a budget
    /// of one frame see the index of every packet.
    pub fn received_source(&self) -> u8 {
        self.received_source
    }

    /// Like [`Transport::tx_burst`], from the source port of this index.
    ///
    /// # Panics
    /// If the transport has no source port of this index, or for more frames than a burst may have.
    #[expect(unsafe_code, reason = "the frames are borrowed until after the flush")]
    pub fn tx_burst_from(&mut self, source: u8, frames: &[TxFrame<'_>]) -> u64 {
        assert!(frames.len() <= TX_BURST_MAX, "a burst of more than TX_BURST_MAX frames");
        let mut refused = 0;
        for (index, frame) in frames.iter().enumerate() {
            // SAFETY: the frames are borrowed until this function returns, after the flush.
            let is_taken = unsafe { self.push_from(source, frame.peer, frame.head, frame.body) };
            refused |= u64::from(!is_taken) << index;
        }
        self.flush();
        if let Some(device) = &self.device {
            device.await_reads();
        }
        refused
    }

    /// Returns true if the endpoint has not taken all received frames.
    pub fn has_received(&self) -> bool {
        let has_ready = self.udp.as_ref().is_some_and(|udp| udp.has_ready());
        if has_ready || self.rings.borrow().as_ref().is_some_and(|rings| rings.has_received()) {
            return true;
        }
        let fabric = self.fabric.borrow_mut();
        fabric.is_bound(self.binding) && fabric.has_waiting(self.binding.at)
    }

    /// Marks the endpoint as asleep: peers over shared memory wake it from now on. Returns the time, in
    /// nanoseconds, at which the endpoint has to run even if no peer wakes it.
    ///
    /// For actors that call [`Endpoint::run_once`](petrel::Endpoint::run_once) directly;
    /// [`Transport::wait`] includes this.
    pub fn rest(&self) -> Option<u64> {
        self.rings.borrow_mut().as_mut()?.rest()
    }

    /// Ends the process: from now on nothing is written to shared memory. Some processes `corrupt` the memory at their end.
    pub(crate) fn crash(&self, corrupts: bool) {
        if let Some(rings) = &mut *self.rings.borrow_mut() {
            if corrupts {
                rings.corrupt();
            }
            rings.crash();
        }
    }

    /// Makes the rings draw from another seed.
    #[cfg(test)]
    pub(crate) fn reseed_rings(&self, seed: u64) {
        if let Some(rings) = &mut *self.rings.borrow_mut() {
            rings.reseed(seed);
        }
    }

    /// Returns true if the peer is reached through shared memory.
    pub(crate) fn shares_memory(peer: PeerId) -> bool {
        peer.0 & RING_BIT != 0
    }

    /// Returns true if the transport keeps frames for which the NIC had no room.
    pub fn has_backlog(&self) -> bool {
        self.udp.as_ref().is_some_and(|udp| udp.has_backlog())
    }

    /// Returns the fabric's address of a multicast group; fails if `peer` is not reached by packets.
    fn group_for(&self, address: SocketAddr, peer: PeerId) -> Result<SimAddr, LinkError> {
        if self.udp.is_some() || Self::shares_memory(peer) {
            let why = "groups are for transports that send a packet for each frame";
            return Err(LinkError::Unsupported(why.to_owned()));
        }
        let group = self.fabric.borrow_mut().multicast.group(address);
        group.ok_or_else(|| LinkError::Unsupported(format!("{address} is no group's here")))
    }

    /// Returns the rings and their number of this peer, if the peer shares memory.
    fn ring_of(&mut self, peer: PeerId) -> Option<(&mut Rings, PeerId)> {
        let rings = self.rings.get_mut().as_mut().filter(|_| Self::shares_memory(peer))?;
        Some((rings, in_ring(peer)))
    }

    /// Returns the destination of a frame, or `None` if the frame has to be dropped, which is counted.
    fn check(&mut self, frame: &TxFrame<'_>) -> Option<SimAddr> {
        let peer = self.peers.addr(frame.peer);
        let dropped = match peer {
            None => &mut self.stats.tx_dropped_no_peer,
            Some(_) if frame.len() > self.config.max_frame_bytes => {
                &mut self.stats.tx_dropped_oversize
            }
            Some(_) if frame.is_empty() => &mut self.stats.tx_dropped_error,
            Some(_) => return peer,
        };
        *dropped += 1;
        None
    }

    /// Sends a frame in a packet. Returns false if the NIC has no room.
    fn push_packet(&mut self, from: SimAddr, frame: &TxFrame<'_>) -> bool {
        let Some(to) = self.check(frame) else { return true };
        if !self.fabric.borrow_mut().is_bound(self.binding) {
            self.stats.tx_dropped_error += 1;
            return true;
        }
        // All peers share one queue: frames after a refused frame must not overtake it.
        if self.is_full || !self.place(from, to, frame) {
            self.is_full = true;
            self.stats.tx_blocked += 1;
            return false;
        }
        self.fabric.borrow_mut().note_step();
        self.stats.tx_frames += 1;
        self.stats.tx_bytes += frame.len() as u64;
        self.pushed.note(frame.head, frame.body, true);
        true
    }

    /// Joins the frame to the open packet, or opens a packet. Returns false if the NIC has no room.
    fn place(&mut self, from: SimAddr, to: SimAddr, frame: &TxFrame<'_>) -> bool {
        let mut fabric = self.fabric.borrow_mut();
        let joined_bytes = self.open.as_ref().map_or(0, |open| open.bytes) + frame.len();
        let joins = self.config.coalesce
            && self.open.as_ref().is_some_and(|open| (open.from, open.to) == (from, to))
            && joined_bytes <= self.config.max_frame_bytes;
        if !joins && let Some(full) = self.open.take() {
            fabric.submit(full.packet);
        }
        let bytes = if joins { joined_bytes } else { frame.len() };
        if !fabric.has_tx_room(self.binding.at.host, bytes) {
            fabric.note_tx_blocked(self.binding.at);
            return false;
        }
        let target = match &mut self.open {
            Some(open) => open,
            None => {
                self.stats.tx_datagrams += 1;
                let packet = fabric.packets.create(from, to);
                fabric.packets.head_mut(&packet).read_ns = self.config.read_ns;
                // No sender knows whether all members process marks (§12.2).
                if self.config.ecn_capable && !fabric.is_group(to) {
                    fabric.packets.head_mut(&packet).ecn = Ecn::Ect0;
                }
                self.open.insert(Open { packet, from, to, bytes: 0 })
            }
        };
        target.bytes = bytes;
        fabric.packets.frames_mut(&target.packet).push(frame.head, frame.body);
        true
    }

    /// Hands the frames of one received packet to the endpoint.
    fn deliver<H: FrameHandler<Outgoing>>(&mut self, from: SimAddr, handler: &mut H) -> usize {
        self.stats.rx_datagrams += 1;
        let Some(Sender { peer, source }) = self.peers.find(from) else {
            self.stats.rx_dropped_unknown_peer += 1;
            return 0;
        };
        self.received_source = source;
        let count = self.received.count();
        if count == 0 {
            // Truncated to nothing in the network.
            self.stats.rx_dropped_malformed += 1;
        }
        self.stats.rx_frames += count as u64;
        self.stats.rx_bytes += self.received.bytes.len() as u64;
        let is_marked = self.received_ecn == Ecn::Ce;
        let sender = (self.peers.addr(peer).expect("a known sender has an address"), source);
        for frame in self.received.iter() {
            let mut fabric = self.fabric.borrow_mut();
            fabric.show_frame_taken(sender, self.binding.at, None, frame, is_marked);
            drop(fabric);
            match (source, is_marked) {
                (0, true) => handler.handle_marked(peer, frame),
                (0, false) => handler.handle(peer, frame, None),
                _ => handler.handle_from(peer, source, frame, is_marked),
            }
        }
        count
    }
}

/// Marks the peers that are reached through shared memory.
const RING_BIT: u32 = 1 << 31;

/// Returns the endpoint's number of a peer of the rings.
fn of_ring(peer: PeerId) -> PeerId {
    PeerId(peer.0 | RING_BIT)
}

/// Returns the rings' number of a peer of the endpoint.
fn in_ring(peer: PeerId) -> PeerId {
    PeerId(peer.0 & !RING_BIT)
}

/// Passes on frames from shared memory.
struct ByRing<'a, H>(&'a mut H);

impl<H: FrameHandler<Outgoing>> FrameHandler<Outgoing> for ByRing<'_, H> {
    fn handle(&mut self, peer: PeerId, frame: &[u8], back: Option<&mut Outgoing>) {
        self.0.handle(of_ring(peer), frame, back);
    }

    fn handle_marked(&mut self, peer: PeerId, frame: &[u8]) {
        self.0.handle_marked(of_ring(peer), frame);
    }

    fn handle_shared(&mut self, peer: PeerId, frame: SharedFrame<'_>, back: Option<&mut Outgoing>) {
        self.0.handle_shared(of_ring(peer), frame, back);
    }

    fn looks_ahead(&self) -> bool {
        self.0.looks_ahead()
    }

    fn prepare(&mut self, frame: &[u8], is_whole: bool) {
        self.0.prepare(frame, is_whole);
    }
}

/// A packet that is not sent yet, because more frames may join.
#[derive(Debug)]
struct Open {
    packet: PacketRef,
    from: SimAddr,
    to: SimAddr,
    bytes: usize,
}

impl Transport for SimTransport {
    type Link = DataLink;
    type Return = Outgoing;

    fn now(&self) -> u64 {
        self.fabric.clock_ns()
    }

    fn clock(&self) -> Clock {
        let fabric = self.fabric.clone();
        Clock::of(move || fabric.clock_ns())
    }

    fn add_peer(&mut self, link: DataLink) -> Result<PeerId, LinkError> {
        let at = link.peer();
        if usize::from(at.host.0) >= self.fabric.host_count() {
            return Err(LinkError::Unsupported(format!("there is no host {}", at.host)));
        }
        match (link, &mut self.udp) {
            (DataLink::Ring(link), _) => {
                let make = || Box::new(Rings::new(&self.fabric, self.binding.at));
                let rings = self.rings.get_mut().get_or_insert_with(make);
                rings.add_peer(link).map(of_ring)
            }
            (DataLink::Packets { max_frame_bytes, .. }, Some(udp)) => {
                udp.add_peer(at, max_frame_bytes)
            }
            (DataLink::Sealed(link), Some(udp)) => udp.add_sealed_peer(link),
            (DataLink::Sealed(_), None) => {
                Err(LinkError::Unsupported("sealing is for the medium of UDP".to_owned()))
            }
            (DataLink::Packets { max_frame_bytes, .. }, None) => {
                self.peers.add(at, max_frame_bytes)
            }
        }
    }

    fn is_networked(&self, peer: PeerId) -> bool {
        !Self::shares_memory(peer)
    }

    fn open_group(
        &mut self,
        address: SocketAddr,
        towards: PeerId,
        _hops: u32,
    ) -> Result<PeerId, LinkError> {
        let group = self.group_for(address, towards)?;
        self.peers.add(group, usize::MAX)
    }

    fn join_group(&mut self, address: SocketAddr, from: PeerId) -> Result<(), LinkError> {
        let group = self.group_for(address, from)?;
        let Some(source) = self.peers.addr(from) else {
            return Err(LinkError::Unsupported(format!("{from:?} is no peer")));
        };
        self.fabric.borrow_mut().multicast.join(self.binding.at, group, source);
        Ok(())
    }

    fn leave_group(&mut self, address: SocketAddr, from: PeerId) {
        if let (Ok(group), Some(source)) = (self.group_for(address, from), self.peers.addr(from)) {
            self.fabric.borrow_mut().multicast.leave(self.binding.at, group, source);
        }
    }

    fn source_of(&self, peer: PeerId) -> PeerId {
        if Self::shares_memory(peer) {
            return peer;
        }
        self.udp.as_ref().map_or(peer, |udp| udp.source_of(peer))
    }

    fn remove_peer(&mut self, peer: PeerId) {
        if let Some((rings, peer)) = self.ring_of(peer) {
            return rings.remove_peer(peer);
        }
        if let Some(udp) = &mut self.udp {
            return udp.remove_peer(peer);
        }
        self.peers.remove(peer);
    }

    fn max_frame_bytes(&self, peer: PeerId) -> usize {
        if Self::shares_memory(peer) {
            let rings = self.rings.borrow();
            return rings.as_ref().map_or(0, |rings| rings.max_frame_bytes(in_ring(peer)));
        }
        match &self.udp {
            Some(udp) => udp.max_frame_bytes(peer),
            None => self.peers.max_frame_bytes(peer).min(self.config.max_frame_bytes),
        }
    }

    #[expect(unsafe_code, reason = "the trait's contract, which `flush` relies on")]
    unsafe fn push(&mut self, peer: PeerId, head: &[u8], body: &[u8]) -> bool {
        if let Some((rings, peer)) = self.ring_of(peer) {
            let is_taken = rings.push(peer, head, body);
            if is_taken {
                self.fabric.borrow_mut().note_step();
                self.pushed.note(head, body, false);
            }
            return is_taken;
        }
        if let Some(udp) = &mut self.udp {
            // SAFETY: by this function's contract.
            let is_taken = unsafe { udp.push(peer, head, body) };
            if is_taken {
                self.fabric.borrow_mut().note_step();
                self.pushed.note(head, body, true);
            }
            return is_taken;
        }
        self.push_packet(self.binding.at, &TxFrame { peer, head, body })
    }

    fn further_ports(&self) -> &[u16] {
        &self.further_ports
    }

    fn accept_ports(&mut self, peer: PeerId, ports: &[u16]) -> Result<PeerId, LinkError> {
        if self.udp.is_some() || Self::shares_memory(peer) {
            return Err(LinkError::Unsupported("this medium has one source port".to_owned()));
        }
        self.peers.set_further_ports(peer, ports);
        Ok(peer)
    }

    #[expect(unsafe_code, reason = "the trait's contract is passed on")]
    unsafe fn push_from(&mut self, source: u8, peer: PeerId, head: &[u8], body: &[u8]) -> bool {
        if self.udp.is_some() || Self::shares_memory(peer) {
            assert_eq!(source, 0, "this medium has one source port");
            // SAFETY: by this function's contract.
            return unsafe { self.push(peer, head, body) };
        }
        self.push_packet(self.source_addr(source), &TxFrame { peer, head, body })
    }

    fn receive_queue(&self) -> Option<ReceiveQueue> {
        let packets = || self.fabric.borrow_mut().rx_packets(self.binding.at.host);
        self.config.has_ring.then(|| ReceiveQueue::Ring(packets()))
    }

    fn path_to(&mut self, peer: PeerId) -> Option<&mut Outgoing> {
        let (rings, peer) = self.ring_of(peer)?;
        rings.path_to(peer)
    }

    #[expect(unsafe_code, reason = "frames are looked at where their owner has them")]
    fn flush(&mut self) {
        self.is_full = false;
        // SAFETY: by the contract of `push`, the frames stay where they are until this returns, and long bodies until the
        // device has read them.
        unsafe { self.pushed.check(self.binding.at, self.device.as_deref()) };
        if let Some(rings) = self.rings.get_mut() {
            rings.flush();
        }
        if let Some(udp) = &mut self.udp {
            udp.flush();
        }
        let mut fabric = self.fabric.borrow_mut();
        fabric.note_step();
        if let Some(last) = self.open.take() {
            fabric.submit(last.packet);
        }
        fabric.forget_reading();
        drop(fabric);
        if let Some(device) = &self.device {
            device.flush();
        }
    }

    fn wait_at_flush(&mut self) {
        if let Some(device) = &self.device {
            device.wait_at_flush();
        }
    }

    fn region_watch(&self) -> Option<Rc<dyn RegionWatch>> {
        Some(Rc::clone(self.device.as_ref()?) as Rc<dyn RegionWatch>)
    }

    fn rx_burst_to<H: FrameHandler<Outgoing>>(&mut self, budget: usize, mut handler: H) -> usize {
        if let Some(device) = &self.device {
            device.read_until(self.fabric.now_ns());
        }
        let mut count = 0;
        if let Some(rings) = self.rings.get_mut() {
            // Rings get half of the budget: neither rings nor packets starve.
            count = rings.rx_burst_to(budget.div_ceil(2), ByRing(&mut handler));
        }
        if let Some(udp) = &mut self.udp {
            return count + udp.rx_burst_to(budget - count, handler);
        }
        while count < budget {
            // The fabric is not borrowed while the endpoint processes the frames.
            let mut fabric = self.fabric.borrow_mut();
            if !fabric.is_bound(self.binding) {
                break;
            }
            let Some(head) = fabric.take(self.binding.at, &mut self.received) else { break };
            let is_sealed = self.received.bytes.first() == Some(&SEALED_MARK);
            fabric.stats.strange_on_plain_links += u64::from(is_sealed || head.attack.is_some());
            drop(fabric);
            self.received_ecn = head.ecn;
            self.rx_marked += u64::from(head.ecn == Ecn::Ce);
            count += self.deliver(head.from, &mut handler);
        }
        count
    }

    fn wait(&mut self, timeout_ns: Option<u64>) {
        // With frames ready the wait ends at once, as in the real transport.
        let has_ready = self.udp.as_ref().is_some_and(|udp| udp.has_ready());
        let timeout_ns = if has_ready { Some(0) } else { timeout_ns };
        let now_ns = self.fabric.now_ns();
        let rest_ns = self.rest().map(|at_ns| at_ns.saturating_sub(now_ns));
        let timeout_ns = [timeout_ns, rest_ns].into_iter().flatten().min();
        let mut fabric = self.fabric.borrow_mut();
        if fabric.is_bound(self.binding) {
            fabric.note_port_wait(self.binding.at, timeout_ns);
        }
    }

    fn waker(&self) -> Waker {
        self.fabric.waker(self.binding)
    }

    fn stats(&self) -> TransportStats {
        let mut stats = self.udp.as_ref().map_or(self.stats, |udp| udp.stats());
        stats.tx_waits = self.device.as_ref().map_or(0, |device| device.waits());
        self.rings.borrow().as_ref().map_or(stats, |rings| stats + rings.stats())
    }
}

impl Drop for SimTransport {
    /// The device goes away: nothing is read any more.
    fn drop(&mut self) {
        if let Some(device) = self.device.as_ref().filter(|_| !std::thread::panicking()) {
            device.read_until(u64::MAX);
        }
        self.fabric.unbind(self.binding, &self.further_ports);
    }
}
