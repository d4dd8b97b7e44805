//! The UDP transport without its socket, for simulators. Bundles, trains, backlog and the splitting
//! of received datagrams are those of [`Udp`](super::Udp). A [`Wire`] replaces the system calls.

use std::io;
use std::net::SocketAddr;
use std::ops::Range;

use rustix::io::Errno;

use super::addr::RawAddr;
use super::burst::{Burst, Outlet, Room};
use super::deliver::deliver_ready;
use super::device::Sent;
use super::peers::PeerTable;
use super::plan::{Loose, Plan};
use super::receive::Receiver;
use crate::device::port::Port;
use crate::device::simulated::{Leaving, Simulated, SimulatedWays};
use crate::seal::{Epochs, SealedLink};
use crate::transport::{FrameHandler, LinkError, NoReturn, PeerId, TransportStats};

/// Most messages accepted by a simulated call.
const MESSAGES_MAX: usize = 64;

/// Replaces the kernel and the network.
pub trait Wire {
    /// Sends the datagrams of one message, of `segment_bytes` bytes except a shorter last one.
    ///
    /// # Errors
    /// No datagram was accepted.
    fn send(
        &mut self,
        to: SocketAddr,
        datagrams: &[u8],
        segment_bytes: usize,
    ) -> Result<(), Refusal>;

    /// Writes datagrams to `datagrams`: those arriving together from one address.
    fn receive(&mut self, datagrams: &mut Vec<u8>) -> Option<Arrival>;
}

/// Why a message was refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Refusal {
    /// There is no room now.
    NoRoom,
    /// Messages of several datagrams are not supported.
    NoSegmentation,
    /// A signal came.
    Interrupted,
    /// The call reports an error of an earlier datagram, and does nothing else.
    LateNews,
}

/// Datagrams that were received together.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Arrival {
    /// The sender.
    pub from: SocketAddr,
    /// The length of every datagram except the last, which may be shorter.
    pub segment_bytes: usize,
    /// Whether they met congestion.
    pub is_marked: bool,
}

impl Refusal {
    fn errno(self) -> Errno {
        match self {
            Self::NoRoom => Errno::AGAIN,
            Self::NoSegmentation => Errno::IO,
            Self::Interrupted => Errno::INTR,
            Self::LateNews => Errno::CONNREFUSED,
        }
    }
}

/// See the [module](self). The methods are those of [`Transport`](crate::Transport), with a wire.
pub struct Detached {
    peers: PeerTable,
    plan: Plan,
    receiver: Receiver,
    room: Room,
    has_gso: bool,
    stats: TransportStats,
    device: Option<Box<Port<Simulated, SimulatedWays>>>,
    local: SocketAddr,
    /// The bytes of the message being sent or received.
    bytes: Vec<u8>,
}

impl Detached {
    /// Creates a transport for messages of up to `message_bytes_max` bytes, or (0) of one datagram.
    ///
    /// # Errors
    /// When the system has no memory.
    pub fn new(message_bytes_max: usize) -> io::Result<Self> {
        Ok(Self {
            peers: PeerTable::new(),
            plan: Plan::new(message_bytes_max)?,
            receiver: Receiver::detached()?,
            room: Room::default(),
            has_gso: message_bytes_max > 0,
            stats: TransportStats::default(),
            device: None,
            local: SocketAddr::from(([0, 0, 0, 0], 0)),
            bytes: Vec::new(),
        })
    }

    /// Creates a transport whose port `local` has a device, too: some datagrams go by the wire, as by a kernel's socket, and most as frames of a
    /// device, which the wire gets without their heads.
    ///
    /// # Errors
    /// When the system has no memory.
    pub fn with_device(message_bytes_max: usize, local: SocketAddr, seed: u64) -> io::Result<Self> {
        let (nic, ways) = (Simulated::new(seed), SimulatedWays::new(seed));
        let device = Some(Box::new(Port::new(nic, ways, local, 1)));
        Ok(Self { device, local, ..Self::new(message_bytes_max)? })
    }

    /// See [`Transport::add_peer`](crate::Transport::add_peer).
    ///
    /// # Errors
    /// [`LinkError::TooManyPeers`].
    pub fn add_peer(
        &mut self,
        addr: SocketAddr,
        max_frame_bytes: usize,
    ) -> Result<PeerId, LinkError> {
        self.peers.add(addr, max_frame_bytes, (false, None))
    }

    /// Adds a sealed link, whose key changes after 2 to the power of `epoch_bits` datagrams.
    ///
    /// # Errors
    /// When there are too many peers, the path is in use, or the system has no memory.
    pub fn add_sealed_peer(
        &mut self,
        addr: SocketAddr,
        max_frame_bytes: usize,
        link: SealedLink,
        epoch_bits: u32,
    ) -> Result<PeerId, LinkError> {
        self.plan.prepare_to_seal()?;
        let epochs = Epochs::of_bits(epoch_bits);
        self.peers.add_sealed(addr, max_frame_bytes, (false, None), link, epochs)
    }

    /// See [`Transport::take_ended`](crate::Transport::take_ended).
    pub fn take_ended(&mut self) -> Option<PeerId> {
        self.peers.take_ended()
    }

    /// See [`Transport::remove_peer`](crate::Transport::remove_peer).
    pub fn remove_peer(&mut self, peer: PeerId) {
        self.plan.close_lane(peer, self.peers.is_sealed(peer));
        self.peers.remove(peer);
        if let Some(port) = &mut self.device {
            port.forget(peer);
        }
    }

    /// The address of a peer.
    pub fn addr(&self, peer: PeerId) -> Option<SocketAddr> {
        self.peers.get(peer).map(|peer| peer.addr())
    }

    /// See [`Transport::source_of`](crate::Transport::source_of).
    pub fn source_of(&self, peer: PeerId) -> PeerId {
        self.peers.source_of(peer)
    }

    /// See [`Transport::max_frame_bytes`](crate::Transport::max_frame_bytes).
    pub fn max_frame_bytes(&self, peer: PeerId) -> usize {
        self.peers.get(peer).map_or(0, |peer| peer.max_frame_bytes)
    }

    /// See [`Transport::push`](crate::Transport::push).
    ///
    /// # Safety
    /// As there.
    pub unsafe fn push<W: Wire>(
        &mut self,
        wire: &mut W,
        peer: PeerId,
        head: &[u8],
        body: &[u8],
    ) -> bool {
        // SAFETY: by this function's contract.
        unsafe {
            self.plan.try_extend(peer, head, body)
                || On { detached: self, wire }.push_slowly(peer, head, body)
        }
    }

    /// See [`Transport::flush`](crate::Transport::flush).
    pub fn flush<W: Wire>(&mut self, wire: &mut W) {
        if !self.plan.is_empty() && !self.room.has_asked() {
            On { detached: self, wire }.send_pushed();
        }
        self.room.end_burst();
    }

    /// See [`Transport::rx_burst_to`](crate::Transport::rx_burst_to).
    pub fn rx_burst_to<W: Wire, H: FrameHandler<NoReturn>>(
        &mut self,
        wire: &mut W,
        budget: usize,
        mut handler: H,
    ) -> usize {
        self.send_frames(wire);
        if self.room.is_backlog() {
            On { detached: self, wire }.send_pushed();
        }
        let (mut delivered, mut work) = (0, 0);
        while work < budget && (self.has_ready() || self.refill(wire)) {
            let Self { receiver, peers, stats, device, .. } = self;
            let rest = budget - work;
            let (frames, effort) = match device {
                Some(port) if port.nic().has_arrived() => {
                    assert!(port.poll(stats), "simulated frames are well-formed");
                    deliver_ready(&mut **port, peers, stats, rest, &mut handler)
                }
                _ => deliver_ready(receiver, peers, stats, rest, &mut handler),
            };
            (delivered, work) = (delivered + frames, work + effort);
        }
        delivered
    }

    /// Gives the device's queued frames to the wire, as far as it has room. Then the ways may change, which must not put a later frame before
    /// an earlier one.
    fn send_frames(&mut self, wire: &mut impl Wire) {
        let Some(port) = &mut self.device else { return };
        while let Some(Leaving { to, payload }) = port.nic().leaving() {
            match wire.send(to, payload, payload.len()) {
                Ok(()) => port.nic_mut().note_left(),
                Err(Refusal::NoRoom) => return,
                Err(_) => {}
            }
        }
        port.follow_changes();
    }

    /// Fills the receive buffers; returns false if no datagram has arrived.
    fn refill(&mut self, wire: &mut impl Wire) -> bool {
        self.stats.rx_syscalls += 1;
        self.receiver.empty();
        if self.device.as_mut().is_some_and(|port| port.nic_mut().catches()) {
            return self.refill_device(wire);
        }
        while self.receiver.has_empty() {
            self.bytes.clear();
            let Some(arrival) = wire.receive(&mut self.bytes) else { break };
            let Arrival { from, segment_bytes, is_marked } = arrival;
            self.receiver.fill(&RawAddr::from(from), &self.bytes, segment_bytes, is_marked);
        }
        self.receiver.has_ready()
    }

    /// Fills the device; returns false if no datagram has arrived.
    fn refill_device(&mut self, wire: &mut impl Wire) -> bool {
        let Self { device: Some(port), receiver, bytes, local, .. } = self else { return false };
        while port.nic().has_room_to_receive() {
            bytes.clear();
            let Some(Arrival { from, segment_bytes, is_marked }) = wire.receive(bytes) else {
                break;
            };
            if from.ip() == local.ip() {
                // From the same host, which needs no device.
                receiver.fill(&RawAddr::from(from), bytes, segment_bytes, is_marked);
                break;
            }
            for datagram in bytes.chunks(segment_bytes) {
                port.nic_mut().arrive(from, *local, datagram, is_marked);
            }
        }
        self.has_ready()
    }

    /// Returns true if there are received frames to deliver.
    pub fn has_ready(&self) -> bool {
        self.receiver.has_ready()
            || self.device.as_ref().is_some_and(|port| port.nic().has_arrived())
    }

    /// Returns true if frames are kept for which the wire had no room.
    pub fn has_backlog(&self) -> bool {
        let device = self.device.as_ref();
        self.room.is_backlog() || device.is_some_and(|port| port.nic().leaving().is_some())
    }

    /// See [`Transport::stats`](crate::Transport::stats).
    pub fn stats(&self) -> TransportStats {
        self.stats
    }
}

impl std::fmt::Debug for Detached {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Detached").field("room", &self.room).finish_non_exhaustive()
    }
}

/// A transport with its wire.
struct On<'a, W> {
    detached: &'a mut Detached,
    wire: &'a mut W,
}

impl<W> On<'_, W> {
    /// The device with the burst.
    fn leaving(&mut self) -> Option<super::device::Leaving<'_, Simulated, SimulatedWays>> {
        let Detached { device, plan, peers, stats, local, .. } = &mut *self.detached;
        let (port, source_port) = (device.as_mut()?, local.port());
        Some(super::device::Leaving { port, plan, peers, stats, source_port })
    }
}

impl<W: Wire> Outlet for On<'_, W> {
    /// The wire carries all sizes.
    fn allow_fragments(&mut self) {}

    fn burst(&mut self) -> Burst<'_> {
        let Detached { plan, peers, stats, room, has_gso, .. } = &mut *self.detached;
        Burst { plan, peers, stats, room, has_gso }
    }

    fn send_loose(&mut self, is_to_seal: bool) -> bool {
        if let Some(leaving) = self.leaving() {
            let is_sent = leaving.send_loose(is_to_seal);
            self.detached.send_frames(self.wire);
            return is_sent;
        }
        let Detached { plan, peers, stats, bytes, .. } = &mut *self.detached;
        let loose = if is_to_seal { plan.seal_loose(peers) } else { plan.loose() };
        let Some(Loose { name, piece, load, .. }) = loose else { return false };
        stats.tx_syscalls += 1;
        bytes.clear();
        // SAFETY: the piece lies in the plan, which is borrowed.
        unsafe { append(bytes, piece) };
        if self.wire.send(name.addr(), bytes, bytes.len()).is_err() {
            return false;
        }
        stats.tx_datagrams += 1;
        stats.tx_frames += load.frames;
        stats.tx_bytes += load.frame_bytes;
        plan.clear_loose();
        true
    }

    unsafe fn send_by_device(&mut self, first: usize) -> Option<Sent> {
        // SAFETY: by this function's contract.
        let sent = self.leaving().map(|leaving| unsafe { leaving.send_from(first) });
        self.detached.send_frames(self.wire);
        sent
    }

    unsafe fn send_by_kernel(&mut self, messages: Range<usize>) -> Result<usize, Errno> {
        let Detached { plan, bytes, .. } = &mut *self.detached;
        let mut sent = 0;
        for message in plan.messages()[messages].iter().take(MESSAGES_MAX) {
            bytes.clear();
            // SAFETY: by this function's contract.
            plan.pieces_of(message).for_each(|piece| unsafe { append(bytes, piece) });
            let segment_bytes = match message.datagram_count {
                1 => bytes.len(),
                _ => plan.segment_bytes(message),
            };
            match self.wire.send(plan.name_of(message).addr(), bytes, segment_bytes) {
                Ok(()) => sent += 1,
                Err(refusal) if sent == 0 => return Err(refusal.errno()),
                Err(_) => break,
            }
        }
        Ok(sent)
    }
}

/// # Safety
/// The piece is live memory that is not written during the call.
unsafe fn append(bytes: &mut Vec<u8>, piece: libc::iovec) {
    // SAFETY: by this function's contract.
    bytes.extend_from_slice(unsafe {
        std::slice::from_raw_parts(piece.iov_base.cast::<u8>(), piece.iov_len)
    });
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::transport::Each;

    /// Accepts messages while it has room.
    #[derive(Default)]
    struct Taking {
        room: usize,
        messages: Vec<(SocketAddr, Vec<u8>, usize)>,
        refused: u64,
    }

    impl Wire for Taking {
        fn send(&mut self, to: SocketAddr, bytes: &[u8], segment: usize) -> Result<(), Refusal> {
            if self.room == 0 {
                self.refused += 1;
                return Err(Refusal::NoRoom);
            }
            self.room -= 1;
            self.messages.push((to, bytes.to_vec(), segment));
            Ok(())
        }

        fn receive(&mut self, _: &mut Vec<u8>) -> Option<Arrival> {
            None
        }
    }

    impl Taking {
        /// The frames of all datagrams.
        fn frames(&self) -> Vec<Vec<u8>> {
            let datagrams =
                self.messages.iter().flat_map(|(_, bytes, segment)| bytes.chunks(*segment));
            datagrams
                .flat_map(|bytes| crate::bundle::frames(bytes).unwrap())
                .map(<[u8]>::to_vec)
                .collect()
        }
    }

    fn push(detached: &mut Detached, wire: &mut Taking, to: PeerId, frames: &[Vec<u8>]) {
        for frame in frames {
            // SAFETY: the frames stay until all of them are flushed.
            assert!(unsafe { detached.push(wire, to, frame, &[]) });
        }
        detached.flush(wire);
    }

    #[test]
    fn stats__tell_of_all_that_the_wire_took() {
        for message_bytes_max in [0, 65_507] {
            let mut detached = Detached::new(message_bytes_max).unwrap();
            let addr = "10.0.0.1:7".parse().unwrap();
            let peer = detached.add_peer(addr, 4_000).unwrap();
            let mut wire = Taking { room: 1_000, ..Taking::default() };
            let bursts: [&[usize]; 6] =
                [&[40], &[4_000], &[40, 50, 60], &[3_000, 3_000, 2_000], &[70, 3_500, 80], &[16]];
            let (mut sent, mut number) = (Vec::new(), 0x10);
            for sizes in bursts {
                number += 1;
                let frames: Vec<_> = sizes.iter().map(|&size| vec![number; size]).collect();
                push(&mut detached, &mut wire, peer, &frames);
                sent.extend(frames);
                assert!(
                    wire.frames() == sent && wire.messages.iter().all(|message| message.0 == addr)
                );
                let datagrams =
                    wire.messages.iter().map(|(_, bytes, segment)| bytes.len().div_ceil(*segment));
                let stats = detached.stats();
                assert_eq!(stats.tx_datagrams, datagrams.sum::<usize>() as u64);
                assert_eq!(stats.tx_frames, sent.len() as u64);
                assert_eq!(stats.tx_bytes, sent.iter().map(Vec::len).sum::<usize>() as u64);
                assert_eq!((stats.tx_kept, stats.tx_dropped_error), (0, 0));
                assert!(!detached.has_backlog());
            }
        }
    }

    #[test]
    fn push__drops_what_is_no_frame_and_counts_it() {
        let mut detached = Detached::new(0).unwrap();
        let peer = detached.add_peer("10.0.0.1:7".parse().unwrap(), 4_000).unwrap();
        let mut wire = Taking { room: 1_000, ..Taking::default() };
        push(&mut detached, &mut wire, peer, &[vec![], vec![0x10; 4_001], vec![0x10]]);
        push(&mut detached, &mut wire, PeerId(7), &[vec![0x10]]);
        assert_eq!(wire.frames(), [[0x10]]);
        let stats = detached.stats();
        assert_eq!((stats.tx_dropped_oversize, stats.tx_dropped_no_peer), (2, 1));
        assert_eq!((stats.tx_frames, stats.tx_bytes, stats.tx_datagrams), (1, 1, 1));
    }

    #[test]
    fn a_lone_frame_without_room_is_kept_and_counted_when_it_leaves() {
        let mut detached = Detached::new(0).unwrap();
        let peer = detached.add_peer("10.0.0.1:7".parse().unwrap(), 4_000).unwrap();
        let mut wire = Taking::default();
        push(&mut detached, &mut wire, peer, &[vec![0x10; 40]]);
        let stats = detached.stats();
        assert!(detached.has_backlog() && wire.refused > 0);
        assert_eq!(
            (stats.tx_kept, stats.tx_frames, stats.tx_bytes, stats.tx_datagrams),
            (1, 0, 0, 0)
        );
        wire.room = 1;
        detached.flush(&mut wire);
        let stats = detached.stats();
        assert!(!detached.has_backlog() && wire.frames() == [[0x10; 40]]);
        assert_eq!(
            (stats.tx_kept, stats.tx_frames, stats.tx_bytes, stats.tx_datagrams),
            (1, 1, 40, 1)
        );
    }

    #[test]
    fn flush__sends_after_polls_of_which_one_had_no_room_and_the_next_had() {
        let mut detached = Detached::new(0).unwrap();
        let peer = detached.add_peer("10.0.0.1:7".parse().unwrap(), 4_000).unwrap();
        let mut wire = Taking::default();
        let frames = [vec![0x10; 40], vec![0x11; 4_000]];
        push(&mut detached, &mut wire, peer, &frames[..1]);
        for room in [0, 10] {
            wire.room = room;
            detached.rx_burst_to(&mut wire, 0, Each(|_: PeerId, _: &[u8]| {}));
        }
        assert!(!detached.has_backlog() && wire.frames() == frames[..1]);
        push(&mut detached, &mut wire, peer, &frames[1..]);
        assert_eq!(wire.frames(), frames);
    }
}
