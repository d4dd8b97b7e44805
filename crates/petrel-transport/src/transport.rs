//! The [`Transport`] trait: the interface of a medium to an endpoint.

use std::net::SocketAddr;
use std::ptr;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use crate::buf::RegionWatch;
use crate::clock::Clock;
use crate::shared::SharedBytes;
use crate::wake::Waker;

pub use crate::link::{LinkError, MIN_FRAME_BYTES, PeerId, PeerProcess, TransportStats};

/// Most frames in one call of [`Transport::tx_burst`], whose result is a bit mask in a `u64`.
/// Bursts of [`Transport::push`] have no limit.
pub const TX_BURST_MAX: usize = 64;

/// Most frames that one call of [`Transport::rx_burst`] should deliver. The number is small, so
/// answers leave while more requests arrive. With 60 calls in flight between two cores, bursts of
/// 60 made the two ends alternate. Bursts of 24 raised shared memory from 10 to 17 and UDP from 5.9
/// to 7.9 million calls a second (16 and 32 are within 5 % of that).
pub const RX_BURST_MAX: usize = 24;

/// One frame to send: `head` followed by `body`, without a gap on the wire.
///
/// The slices borrow from the frame's message buffer for a whole [`Transport::tx_burst`]. The
/// buffer's owner may change the bytes when the call returns.
#[derive(Clone, Copy, Debug)]
pub struct TxFrame<'a> {
    /// The destination.
    pub peer: PeerId,
    /// The first bytes: the header, and in a packet 0 also the data behind it. Never empty.
    pub head: &'a [u8],
    /// The remaining bytes; often empty.
    pub body: &'a [u8],
}

impl TxFrame<'_> {
    /// Length of the whole frame in bytes.
    #[inline]
    pub fn len(&self) -> usize {
        self.head.len() + self.body.len()
    }

    /// Returns true if the frame has no byte at all; no transport has to carry empty frames.
    #[inline]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }
}

/// The packets that a receive queue holds.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ReceiveQueue {
    /// The descriptors of a device's ring: each packet takes one.
    Ring(u64),
    /// A ring of several endpoints, with the number of packets that this endpoint may have there at most.
    Shared(Arc<Ring>, u64),
    /// The fewest packets for which the kernel's buffer has room.
    Buffer(u64),
}

/// The packets that a ring of several endpoints holds, and those that the endpoints have claimed.
#[derive(Debug)]
pub struct Ring {
    packets: AtomicU64,
    claimed: AtomicU64,
}

impl Ring {
    /// Creates the account of a ring for this number of packets.
    pub fn new(packets: u64) -> Self {
        Self { packets: AtomicU64::new(packets), claimed: AtomicU64::new(0) }
    }

    /// Notes that the ring holds as many packets as this at least: a port that opens may hold more than was known before.
    pub fn raise(&self, packets: u64) {
        self.packets.fetch_max(packets, Ordering::Relaxed);
    }

    /// Gives packets of an endpoint back, and claims as many as `wanted` returns for the number of those left, which is the most. Returns
    /// the number.
    pub fn exchange(&self, given: u64, wanted: impl Fn(u64) -> u64) -> u64 {
        let mut claimed = self.claimed.load(Ordering::Relaxed);
        loop {
            let of_others =
                claimed.checked_sub(given).expect("an endpoint gives what it has claimed");
            let left = self.packets.load(Ordering::Relaxed) - of_others;
            let taken = wanted(left);
            assert!(taken <= left, "the ring holds the packets of all endpoints");
            // No other memory depends on the account.
            let (relaxed, after) = (Ordering::Relaxed, of_others + taken);
            match self.claimed.compare_exchange(claimed, after, relaxed, relaxed) {
                Ok(_) => return taken,
                Err(now) => claimed = now,
            }
        }
    }
}

/// A ring equals itself alone.
impl PartialEq for Ring {
    fn eq(&self, other: &Self) -> bool {
        ptr::eq(self, other)
    }
}

impl Eq for Ring {}

/// Receives the frames of a transport with return paths of type `R`. The compiler can inline
/// `handle` into the transport's loop, unlike a closure with two call sites.
pub trait FrameHandler<R> {
    /// Processes a received frame. The slice is private memory: the receive buffer itself, or a
    /// copy of bytes the peer could change. `back`, if there is one, may accept an answer at once.
    fn handle(&mut self, peer: PeerId, frame: &[u8], back: Option<&mut R>);

    /// Processes a frame received with the mark *Congestion Experienced* (RFC 3168).
    fn handle_marked(&mut self, peer: PeerId, frame: &[u8]);

    /// Processes a frame of more than [`PRIVATE_BYTES_MAX`](crate::PRIVATE_BYTES_MAX) bytes, in
    /// memory to which its peer can write.
    #[inline]
    fn handle_shared(&mut self, peer: PeerId, frame: SharedFrame<'_>, back: Option<&mut R>) {
        self.handle(peer, frame.into_private(), back);
    }

    /// Processes a frame from a further source port of a peer (`docs/wire-protocol.md` §14): `source`
    /// is 1 for the first port in the list of [`Transport::accept_ports`]. Frames from the peer's own
    /// port come by the other methods. `is_marked` is true for a frame with the mark *Congestion
    /// Experienced*.
    ///
    /// By default the transport treats the frame like a frame from the peer's own port.
    fn handle_from(&mut self, peer: PeerId, source: u8, frame: &[u8], is_marked: bool) {
        let _ = source;
        match is_marked {
            true => self.handle_marked(peer, frame),
            false => self.handle(peer, frame, None),
        }
    }

    /// Returns true if the handler benefits from [`FrameHandler::prepare`]. A transport asks once a
    /// burst.
    fn looks_ahead(&self) -> bool {
        false
    }

    /// Announces a frame that [`FrameHandler::handle`] will most probably get. The transport may
    /// announce some frames of a burst, in order, before it delivers the first, so the handler can
    /// prefetch their memory. The frame is unchecked, and may be delivered with other bytes. Of a
    /// frame longer than [`PRIVATE_BYTES_MAX`](crate::PRIVATE_BYTES_MAX), `frame` may be the start
    /// only; `is_whole` is then false.
    fn prepare(&mut self, frame: &[u8], is_whole: bool) {
        let _ = (frame, is_whole);
    }
}

/// A long frame in memory to which its peer can write.
#[derive(Debug)]
pub struct SharedFrame<'a> {
    bytes: SharedBytes<'a>,
    // A `&mut Vec` instead of a slice: one register instead of two to pass on with a long frame.
    scratch: &'a mut Vec<u8>,
}

impl<'a> SharedFrame<'a> {
    /// `scratch` is at least as long as the bytes.
    #[inline(always)]
    pub(crate) fn new(bytes: SharedBytes<'a>, scratch: &'a mut Vec<u8>) -> Self {
        Self { bytes, scratch }
    }

    /// The frame's bytes, which the peer can change.
    #[inline]
    pub fn bytes(&self) -> SharedBytes<'a> {
        self.bytes
    }

    /// Returns a copy of the frame in the transport's private memory.
    #[inline]
    pub fn into_private(self) -> &'a [u8] {
        let copy = &mut self.scratch[..self.bytes.len()];
        self.bytes.copy_to_slice(copy);
        copy
    }
}

/// Adapts a closure to a handler.
pub(crate) struct Each<F>(pub(crate) F);

impl<R, F: FnMut(PeerId, &[u8])> FrameHandler<R> for Each<F> {
    fn handle(&mut self, peer: PeerId, frame: &[u8], _back: Option<&mut R>) {
        self.0(peer, frame);
    }

    fn handle_marked(&mut self, peer: PeerId, frame: &[u8]) {
        self.0(peer, frame);
    }
}

/// The send path to the peer whose frame is being handled: for a transport that can send to this
/// peer during delivery.
pub trait ReturnPath: 'static {
    /// Copies a frame into the burst the next [`Transport::flush`] ends. If it returns false,
    /// nothing was copied, and the caller has to use [`Transport::push`].
    fn push(&mut self, frame: &[u8]) -> bool;
}

/// The return path of a transport without any.
#[derive(Debug)]
pub enum NoReturn {}

impl ReturnPath for NoReturn {
    fn push(&mut self, _frame: &[u8]) -> bool {
        match *self {}
    }
}

/// Unreliable datagrams in bursts, with static dispatch.
///
/// An endpoint calls the methods from its own thread only, in a loop: [`rx_burst`], timers,
/// [`push`] for every frame to send, [`flush`], and [`wait`] when idle. Only `wait` blocks.
///
/// [`rx_burst`]: Transport::rx_burst
/// [`push`]: Transport::push
/// [`flush`]: Transport::flush
/// [`wait`]: Transport::wait
pub trait Transport {
    /// The control plane's description of how to reach one peer: an address, or opened rings.
    type Link: Send + 'static;

    /// The send path during delivery; [`NoReturn`] if there is none.
    type Return: ReturnPath;

    /// Returns nanoseconds on this transport's monotonic clock. A simulator returns its virtual
    /// time.
    fn now(&self) -> u64;

    /// Returns the clock that [`Transport::now`] reads, for code that runs during delivery.
    fn clock(&self) -> Clock;

    /// Makes a peer reachable. A transport that distinguishes peers by address returns an existing
    /// [`PeerId`] for a known address on equal terms (for example after two endpoints opened links
    /// to one another). The last [`Transport::remove_peer`] forgets the address. On different terms
    /// the address becomes a further peer, and the limits of the first peer do not change.
    ///
    /// # Errors
    /// See [`LinkError`]. The transport is then unchanged.
    fn add_peer(&mut self, link: Self::Link) -> Result<PeerId, LinkError>;

    /// Forgets a peer and frees its link's resources. Unknown peers are ignored.
    fn remove_peer(&mut self, peer: PeerId);

    /// Makes a multicast group reachable, and returns a peer for the group. Frames pushed to the
    /// peer go to every [joined](Transport::join_group) member, over at most `hops` networks,
    /// through the interface towards `towards`. The group's largest frame is that of `towards`.
    /// [`Transport::remove_peer`] forgets the group.
    ///
    /// # Errors
    /// See [`LinkError`]; a transport without multicast supports none.
    fn open_group(
        &mut self,
        address: SocketAddr,
        towards: PeerId,
        hops: u32,
    ) -> Result<PeerId, LinkError> {
        let _ = (towards, hops);
        Err(LinkError::Unsupported(format!("{address}: it has no multicast")))
    }

    /// Returns the send path to a peer outside of delivery. The path copies frames at once, into the
    /// burst that the next [`Transport::flush`] ends. `None` for an unknown peer, if the burst has
    /// refused a frame to the peer, and for a transport without such paths.
    #[inline]
    fn path_to(&mut self, peer: PeerId) -> Option<&mut Self::Return> {
        let _ = peer;
        None
    }

    /// Delivers frames that `from` sends to a multicast group as frames of `from`, until
    /// [`Transport::leave_group`].
    ///
    /// # Errors
    /// See [`LinkError`]; a transport without multicast supports none.
    fn join_group(&mut self, address: SocketAddr, from: PeerId) -> Result<(), LinkError> {
        let _ = from;
        Err(LinkError::Unsupported(format!("{address}: it has no multicast")))
    }

    /// Ends [`Transport::join_group`]. Must be called before `from` is removed.
    fn leave_group(&mut self, address: SocketAddr, from: PeerId) {
        let _ = (address, from);
    }

    /// The peer id of delivered frames from `peer`. The ids differ if several links lead to one
    /// address, since a datagram does not identify a link. The result is constant while the peer
    /// exists.
    fn source_of(&self, peer: PeerId) -> PeerId {
        peer
    }

    /// The largest frame, in bytes, that `peer` can send or receive. At least [`MIN_FRAME_BYTES`]
    /// for every peer in the table; 0 for an unknown peer.
    fn max_frame_bytes(&self, peer: PeerId) -> usize;

    /// Returns true if frames to the peer cross a network, where they can meet congestion.
    fn is_networked(&self, peer: PeerId) -> bool {
        let _ = peer;
        true
    }

    /// The name of the medium that carries the peer's frames: one word, for events and statistics.
    fn medium_of(&self, peer: PeerId) -> &'static str {
        let _ = peer;
        "udp"
    }

    /// Returns true if [`Transport::take_broken`] has a peer. Asked in each turn of an event loop.
    #[inline]
    fn has_broken(&self) -> bool {
        false
    }

    /// Returns a peer whose frames cannot be carried any more, with the reason: each once. The peer stays until
    /// [`Transport::remove_peer`]. Only media of connections have such peers.
    fn take_broken(&mut self) -> Option<(PeerId, String)> {
        None
    }

    /// Returns what has happened to the medium beside its links, once: for the owner's log. Asked with heartbeats.
    fn take_notice(&mut self) -> Option<String> {
        None
    }

    /// Returns a peer whose link must end, each once: its sealed datagrams have no numbers left, or too many were forged (`docs/wire-protocol.md`
    /// §17.3). Frames to and from the peer are dropped and counted until [`Transport::remove_peer`].
    ///
    /// Such an end comes once in years, or after an attack of hours: an owner asks with its heartbeats, and not in each turn.
    fn take_ended(&mut self) -> Option<PeerId> {
        None
    }

    /// The packets that the receive queue holds; `None` if a full queue loses nothing. The bound concerns peers over the
    /// network alone.
    fn receive_queue(&self) -> Option<ReceiveQueue> {
        None
    }

    /// The peer's process, if the kernel vouches for it.
    fn process_of(&self, peer: PeerId) -> Option<PeerProcess> {
        let _ = peer;
        None
    }

    /// Adds the frame `head` + `body` to the current burst, which [`Transport::flush`] ends.
    ///
    /// Returns false if the frame was refused as a whole because the peer's ring or the socket is
    /// full; offer it again after a later `flush` or `rx_burst`. The transport then also refuses
    /// later frames of the burst to the peer, to keep their order. Frames above the peer's limit,
    /// or to an unknown peer, are dropped and counted in [`TransportStats`]; the result is true. A
    /// burst may have any number of frames: a transport that runs out of room sends the frames so
    /// far by itself.
    ///
    /// # Safety
    /// The bytes of `head` and `body` must stay in place, unchanged, until the next `flush` has
    /// returned, even though the borrow ends before: a transport may keep their addresses till
    /// then. A transport with a [watch](Transport::region_watch) may read a `body` of
    /// [`READ_IN_PLACE_BYTES_MIN`](crate::buf::READ_IN_PLACE_BYTES_MIN) bytes and more later, as
    /// its watch says; heads and shorter bodies are copied.
    unsafe fn push(&mut self, peer: PeerId, head: &[u8], body: &[u8]) -> bool;

    /// The further source ports of this transport, besides the port of its address: peers may find
    /// other paths of the network by them. At most 31, different, and not 0. Frames
    /// from the port at index *i* are pushed by [`Transport::push_from`] with the source *i* + 1.
    ///
    /// Empty for a transport with one source port.
    fn further_ports(&self) -> &[u16] {
        &[]
    }

    /// Accepts frames of a link from these further source ports too, in the order of the announcement, until
    /// [`Transport::remove_peer`] of the returned peer, the link's from now on: links with equal ports share a peer. A list takes
    /// nothing from another list: frames from a port of several addresses, announced or own, are delivered for every address, and the
    /// session decides.
    ///
    /// # Errors
    /// See [`LinkError`]; a transport with one source port supports none.
    fn accept_ports(&mut self, peer: PeerId, ports: &[u16]) -> Result<PeerId, LinkError> {
        let _ = (peer, ports);
        Err(LinkError::Unsupported("it has one source port".to_owned()))
    }

    /// Like [`Transport::push`], from the source port of this index: 0 is the port of the
    /// transport's address, and *i* the entry *i* − 1 of [`Transport::further_ports`]. Frames of
    /// different source ports may overtake each other, and never share a datagram.
    ///
    /// # Safety
    /// That of [`Transport::push`].
    ///
    /// # Panics
    /// If the transport has no source port of this index. A transport without further ports has no
    /// use for this method, and panics always: a second caller of `push` would keep the compiler
    /// from inlining it, which cost a small call over UDP 9 instructions.
    unsafe fn push_from(&mut self, source: u8, peer: PeerId, head: &[u8], body: &[u8]) -> bool {
        let _ = (peer, head, body);
        panic!("a transport without further ports sends nothing from source port {source}");
    }

    /// Ends the burst: publishes or sends every pushed frame. Frames are sent in order, dropped and
    /// counted, or *kept* if the kernel has no room: copied to the transport's memory, and sent
    /// before any frame pushed later. During a backlog, frames behind the backlog are refused. The
    /// transport retries the backlog once per burst and in every `rx_burst`.
    fn flush(&mut self);

    /// Makes the next [`Transport::flush`] wait until the device has read the messages of all frames:
    /// the burst repeats a message, whose answer proves nothing about the repetition.
    #[inline(always)]
    fn wait_at_flush(&mut self) {}

    /// The object to be told of the memory of messages, if a device reads messages by itself.
    fn region_watch(&self) -> Option<Rc<dyn RegionWatch>> {
        None
    }

    /// Sends a whole burst of up to [`TX_BURST_MAX`] frames: [`Transport::push`] for each, then
    /// [`Transport::flush`], and waits until they are read. Bit *i* of the result is set if frame *i* was refused.
    ///
    /// # Panics
    /// When `frames` is longer than [`TX_BURST_MAX`].
    fn tx_burst(&mut self, frames: &[TxFrame<'_>]) -> u64 {
        assert!(frames.len() <= TX_BURST_MAX, "a burst of more than TX_BURST_MAX frames");
        let mut refused = 0;
        for (index, frame) in frames.iter().enumerate() {
            // SAFETY: the frames are borrowed until this function returns, after the flush, when no
            // byte is read any more.
            let is_taken = unsafe { self.push(frame.peer, frame.head, frame.body) };
            refused |= u64::from(!is_taken) << index;
        }
        self.flush();
        if let Some(watch) = self.region_watch() {
            watch.await_reads();
        }
        refused
    }

    /// Receives frames, passes each to `handler` in order of arrival per peer, and returns their
    /// number. Stops at about `budget` frames; the frames of the last burst of datagrams may exceed
    /// `budget`.
    ///
    /// The handler's slice is the receive buffer itself, valid only during its call.
    fn rx_burst_to<H: FrameHandler<Self::Return>>(&mut self, budget: usize, handler: H) -> usize;

    /// Returns true if a poll may find frames. Returns false only if a poll would surely find none.
    /// The check costs next to nothing: no system call, no clock.
    #[inline]
    fn may_receive(&self) -> bool {
        true
    }

    /// Returns how long the next frames have waited for this poll, in nanoseconds, after `pause_ns` without a poll, and the largest
    /// burst of such frames; 0 if the frames have not waited, or the medium does not know. Of the pause the owner has not slept for
    /// `awake_ns`: a medium without time stamps knows no more, and its frames may have waited for this time.
    fn waited_ns(&mut self, pause_ns: u64, awake_ns: u64) -> (u64, usize) {
        let _ = (pause_ns, awake_ns);
        (0, RX_BURST_MAX)
    }

    /// [`Transport::rx_burst_to`] with a closure.
    fn rx_burst<F: FnMut(PeerId, &[u8])>(&mut self, budget: usize, on_frame: F) -> usize {
        self.rx_burst_to(budget, Each(on_frame))
    }

    /// Sleeps until a frame may have arrived, a kept backlog may go out, the [`Waker`] was used, or
    /// `timeout_ns` have passed (`None`: no limit). May return early for no reason. The next
    /// [`Transport::rx_burst`] sees every frame that arrived meanwhile; no wake-up is lost between
    /// the two.
    fn wait(&mut self, timeout_ns: Option<u64>);

    /// A handle for ending a [`Transport::wait`] from any thread.
    fn waker(&self) -> Waker;

    /// Counters since the start.
    fn stats(&self) -> TransportStats;
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A closure gets marked frames like any other, without their mark.
    #[test]
    fn each__has_frames_with_and_without_a_mark() {
        let mut got = Vec::new();
        let mut each = Each(|peer, frame: &[u8]| got.push((peer, frame.to_vec())));
        each.handle(PeerId(3), b"plain", None::<&mut NoReturn>);
        FrameHandler::<NoReturn>::handle_marked(&mut each, PeerId(4), b"marked");
        assert_eq!(got, [(PeerId(3), b"plain".to_vec()), (PeerId(4), b"marked".to_vec())]);
    }

    #[test]
    fn len__is_that_of_both_parts() {
        let frame = |head, body| TxFrame { peer: PeerId(0), head, body };
        for (head, body, len) in [(0, 0, 0), (1, 0, 1), (0, 1, 1), (16, 5, 21)] {
            let frame = frame(&[0; 16][..head], &[0; 5][..body]);
            assert_eq!((frame.len(), frame.is_empty()), (len, len == 0));
        }
    }

    #[test]
    fn add__of_each_counter_for_itself() {
        let udp = TransportStats { tx_frames: 3, rx_datagrams: 5, ..TransportStats::default() };
        let shm = TransportStats { tx_frames: 4, rx_marked: 6, ..TransportStats::default() };
        let both = udp + shm;
        assert_eq!((both.tx_frames, both.rx_datagrams, both.rx_marked), (7, 5, 6));
        assert_eq!(both.iter().map(|(_, count)| count).sum::<u64>(), 7 + 5 + 6);
    }
}
