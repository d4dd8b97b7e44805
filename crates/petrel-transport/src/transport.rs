//! The [`Transport`] trait: what a back-end offers to an endpoint.

use std::net::SocketAddr;
use std::ops;

use crate::clock::Clock;
use crate::shared::{RingFrame, SharedBytes};
use crate::shm::Outgoing;
use crate::wake::Waker;

/// Most frames in one call of [`Transport::tx_burst`]: its result is a bit mask in a `u64`. Bursts
/// of [`Transport::push`] have no limit.
pub const TX_BURST_MAX: usize = 64;

/// Frames that one call of [`Transport::rx_burst`] should deliver at most. Few enough that their
/// answers leave while more is coming in: with 60 calls in flight between two cores, turns that
/// took all 60 at once had the two ends work in turns, and a turn of 24 took shared memory from
/// 10 to 17 and UDP from 5.9 to 7.9 million calls a second (16 and 32 do within 5 % of that).
pub const RX_BURST_MAX: usize = 24;

/// A peer in a transport's table: an index, valid from [`Transport::add_peer`] until
/// [`Transport::remove_peer`], after which it may be given to another peer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct PeerId(pub u32);

/// The process at the other end of a link within one host, by the word of the kernel: as it was when the link was made.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub struct PeerProcess {
    /// Its number, in the own process's namespace; 0 if it has none there.
    pub pid: u32,
    /// Its effective user.
    pub uid: u32,
    /// Its effective group.
    pub gid: u32,
}

/// One frame to send: `head` followed by `body`, without a gap on the wire.
///
/// The two borrow from the message buffer that holds them, for a whole [`Transport::tx_burst`]: its
/// owner may change the bytes when that returns.
#[derive(Clone, Copy, Debug)]
pub struct TxFrame<'a> {
    /// Where the frame goes.
    pub peer: PeerId,
    /// The first bytes: the header, and for a packet 0 the data behind it. Never empty.
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

    /// Whether the frame has no byte at all, which no transport has to carry.
    #[inline]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }
}

/// Why a peer could not be added.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum LinkError {
    /// The transport's peer table is full.
    #[error("the transport already has {limit} peers; close sessions to other peers first")]
    TooManyPeers {
        /// The table's size.
        limit: usize,
    },
    /// The configured MTU is larger than what the path to the peer carries.
    #[error(
        "the configured MTU of {configured} bytes exceeds the path MTU of {path} bytes to {peer}; \
         lower it or leave it on automatic"
    )]
    MtuExceedsPath {
        /// What the configuration asks for, in bytes of IP packet.
        configured: usize,
        /// What the route to the peer carries, in bytes of IP packet.
        path: usize,
        /// The peer's address.
        peer: String,
    },
    /// The link was made for another kind of transport or another address family.
    #[error("this transport cannot use the link: {0}")]
    Unsupported(String),
    /// The operating system refused.
    #[error("cannot set up the link to the peer: {0}")]
    Io(#[from] std::io::Error),
}

macro_rules! transport_stats {
    ($($(#[$doc:meta])* $name:ident,)*) => {
        /// Counters of a transport since its start. Each drop reason has its own.
        #[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
        #[non_exhaustive]
        pub struct TransportStats { $($(#[$doc])* pub $name: u64,)* }

        impl TransportStats {
            /// Names and values, in order.
            pub fn iter(&self) -> impl Iterator<Item = (&'static str, u64)> {
                [$((stringify!($name), self.$name),)*].into_iter()
            }
        }

        /// Those of an endpoint that has several transports.
        impl ops::Add for TransportStats {
            type Output = Self;

            fn add(self, other: Self) -> Self {
                Self { $($name: self.$name + other.$name,)* }
            }
        }
    };
}

transport_stats! {
    /// Frames handed to the medium.
    tx_frames,
    /// Datagrams (UDP) or ring publications (shared memory) that carried them.
    tx_datagrams,
    /// Bytes in those frames. Not beside their number: the compiler would add to both at once, in
    /// more instructions.
    tx_bytes,
    /// System calls made to send.
    tx_syscalls,
    /// Frames not taken because the peer's ring or the socket's buffer was full; the endpoint
    /// offers them again.
    tx_blocked,
    /// Frames taken for which the kernel had no room at once; they count as sent or dropped when
    /// that happened.
    tx_kept,
    /// Frames dropped because the medium refused them (an error other than "full").
    tx_dropped_error,
    /// Frames dropped because they exceed the peer's largest frame.
    tx_dropped_oversize,
    /// Frames dropped because their peer is not, or no longer, in the table.
    tx_dropped_no_peer,
    /// Frames delivered to the endpoint.
    rx_frames,
    /// Bytes in those frames.
    rx_bytes,
    /// Datagrams or ring publications that carried them.
    rx_datagrams,
    /// System calls made to receive.
    rx_syscalls,
    /// Datagrams from an address that is no peer. While UDP has one peer only, the kernel refuses
    /// the others' itself, and counts them as `NoPorts` of the network namespace, which
    /// `petrel stats` shows.
    rx_dropped_unknown_peer,
    /// Datagrams (or ring records) whose framing is broken: truncated bundle, zero length.
    rx_dropped_malformed,
    /// Datagrams cut by the kernel because the receive buffer was too short.
    rx_dropped_truncated,
    /// Datagrams that the kernel dropped because the socket's receive buffer was full.
    rx_dropped_kernel,
    /// Rings given up because the peer wrote impossible indices.
    rx_broken_rings,
    /// Times that GSO was switched off after the kernel refused it.
    gso_disabled,
    /// Frames delivered that came with a mark of congestion.
    rx_marked,
}

/// Gets the frames that a transport receives. Its method can be inlined into the transport's loop,
/// which a closure that is called in two places is not.
pub trait FrameHandler {
    /// A frame has come in. The slice is private memory: the receive buffer itself, or a copy of what a
    /// peer could change. `back` may take an answer at once.
    fn handle(&mut self, peer: PeerId, frame: &[u8], back: ReturnPath<'_>);

    /// A frame has come in with the mark *Congestion Experienced* (RFC 3168).
    fn handle_marked(&mut self, peer: PeerId, frame: &[u8]);

    /// A frame of more than [`PRIVATE_BYTES_MAX`](crate::PRIVATE_BYTES_MAX) bytes has come in, in memory to which its peer
    /// can write.
    #[inline]
    fn handle_shared(&mut self, peer: PeerId, frame: SharedFrame<'_>, back: ReturnPath<'_>) {
        self.handle(peer, frame.into_private(), back);
    }

    /// Whether the handler gains by [`FrameHandler::prepare`]; asked once a burst.
    fn looks_ahead(&self) -> bool {
        false
    }

    /// A frame that [`FrameHandler::handle`] will most probably get: the transport may show some of
    /// a burst, in order, before it delivers the first of them, so that the handler can have the
    /// memory fetched that they are about. Nobody has checked the frame yet, and it may come in with
    /// other bytes. Of a frame that is longer than [`PRIVATE_BYTES_MAX`](crate::PRIVATE_BYTES_MAX) it may be the start only, where
    /// `is_whole` is false.
    fn prepare(&mut self, frame: &[u8], is_whole: bool) {
        let _ = (frame, is_whole);
    }
}

/// A long frame over shared memory, where it lies.
#[derive(Debug)]
pub struct SharedFrame<'a> {
    bytes: SharedBytes<'a>,
    // No slice: it is handed on for each long frame, and one register is less than two.
    scratch: &'a mut Vec<u8>,
}

impl<'a> SharedFrame<'a> {
    /// `scratch` is as long as the bytes, or longer.
    #[inline(always)]
    pub(crate) fn new(bytes: SharedBytes<'a>, scratch: &'a mut Vec<u8>) -> Self {
        Self { bytes, scratch }
    }

    /// The frame, which its peer can change.
    #[inline]
    pub fn bytes(&self) -> SharedBytes<'a> {
        self.bytes
    }

    /// A copy of the frame, which nobody else can change, in memory of the transport's.
    #[inline]
    pub fn into_private(self) -> &'a [u8] {
        let copy = &mut self.scratch[..self.bytes.len()];
        self.bytes.copy_to_slice(copy);
        copy
    }
}

/// A closure as a handler.
struct Each<F>(F);

impl<F: FnMut(PeerId, &[u8])> FrameHandler for Each<F> {
    fn handle(&mut self, peer: PeerId, frame: &[u8], _back: ReturnPath<'_>) {
        self.0(peer, frame);
    }

    fn handle_marked(&mut self, peer: PeerId, frame: &[u8]) {
        self.0(peer, frame);
    }
}

/// The way back to the peer whose frame is in hand, where the transport has one that can be used
/// while it delivers: the ring beside the one that the frame came from.
#[derive(Debug)]
pub struct ReturnPath<'a>(Option<&'a mut Outgoing>);

impl<'a> ReturnPath<'a> {
    /// No way back: what answers the frame goes by [`Transport::push`].
    pub const NONE: ReturnPath<'static> = ReturnPath(None);

    #[inline(always)]
    pub(crate) fn by_ring(outgoing: &'a mut Outgoing) -> Self {
        Self(Some(outgoing))
    }

    /// The same for a shorter time.
    #[inline(always)]
    pub fn reborrow(&mut self) -> ReturnPath<'_> {
        ReturnPath(self.0.as_deref_mut())
    }

    /// Whether there is one.
    #[inline(always)]
    pub fn is_there(&self) -> bool {
        self.0.is_some()
    }

    /// Where the next frame goes, if there is a way.
    pub(crate) fn position(&self) -> Option<u64> {
        self.0.as_ref().map(|outgoing| outgoing.position())
    }

    /// Shows what was pushed since the way had this position.
    pub(crate) fn look_back(&self, position: Option<u64>, on_frame: impl FnMut(RingFrame<'_>)) {
        if let (Some(outgoing), Some(position)) = (&self.0, position) {
            outgoing.look_back(position, on_frame);
        }
    }

    /// Copies a frame into the burst that the next [`Transport::flush`] ends. False: nothing was
    /// taken, and [`Transport::push`] is to be used.
    #[inline(always)]
    pub fn push(&mut self, frame: &[u8]) -> bool {
        match &mut self.0 {
            Some(outgoing) => outgoing.push_line(frame) || push_small(outgoing, frame),
            None => false,
        }
    }
}

/// Out of line, so that [`ReturnPath::push`] can be inlined wherever it is used.
#[inline(never)]
fn push_small(to: &mut Outgoing, frame: &[u8]) -> bool {
    to.push_at_once(frame, &[])
}

/// Unreliable datagrams in bursts, with static dispatch.
///
/// An endpoint calls these methods from its own thread only, in a loop: [`rx_burst`], its timers,
/// [`push`] for each frame that is due, [`flush`], and [`wait`] when it has nothing to do. No method
/// but `wait` blocks.
///
/// [`rx_burst`]: Transport::rx_burst
/// [`push`]: Transport::push
/// [`flush`]: Transport::flush
/// [`wait`]: Transport::wait
pub trait Transport {
    /// What the control plane hands over to reach one peer: an address, or opened rings.
    type Link: Send + 'static;

    /// Nanoseconds on this transport's monotonic clock. A simulator returns its virtual time.
    fn now(&self) -> u64;

    /// The clock that [`Transport::now`] reads, for code that runs while the transport is busy delivering.
    fn clock(&self) -> Clock;

    /// Makes a peer reachable. A transport that tells peers apart by address returns the same
    /// [`PeerId`] when the same address is added again on the same terms (two endpoints that each
    /// opened a link to the other), and forgets it at the last [`Transport::remove_peer`]. On other
    /// terms it is another peer, and no limit of the first one changes.
    ///
    /// # Errors
    /// See [`LinkError`]. The transport is unchanged then.
    fn add_peer(&mut self, link: Self::Link) -> Result<PeerId, LinkError>;

    /// Forgets a peer and frees what its link held. Unknown peers are ignored.
    fn remove_peer(&mut self, peer: PeerId);

    /// Makes a multicast group reachable: frames pushed to the peer that this gives go to all who have
    /// [joined](Transport::join_group) it, over at most `hops` networks, by the interface by which `towards`
    /// is reached. Its largest frame is that of `towards`. [`Transport::remove_peer`] forgets it.
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

    /// Delivers what `from` sends to a multicast group, too, as frames of `from`, until
    /// [`Transport::leave_group`].
    ///
    /// # Errors
    /// See [`LinkError`]; a transport without multicast supports none.
    fn join_group(&mut self, address: SocketAddr, from: PeerId) -> Result<(), LinkError> {
        let _ = from;
        Err(LinkError::Unsupported(format!("{address}: it has no multicast")))
    }

    /// Ends [`Transport::join_group`]. To be called while `from` is still there.
    fn leave_group(&mut self, address: SocketAddr, from: PeerId) {
        let _ = (address, from);
    }

    /// The name under which frames from this peer are delivered: another one than its own where
    /// several links lead to one address, since nothing in a datagram tells them apart. It stays
    /// the same as long as the peer is there.
    fn source_of(&self, peer: PeerId) -> PeerId {
        peer
    }

    /// The largest frame, in bytes, that can be sent to and received from `peer`. At least
    /// [`MIN_FRAME_BYTES`] for every peer in the table; 0 for a peer that is not.
    fn max_frame_bytes(&self, peer: PeerId) -> usize;

    /// Whether frames to this peer go through a network, where they can meet congestion.
    fn is_networked(&self, peer: PeerId) -> bool {
        let _ = peer;
        true
    }

    /// The peer's process, where the kernel vouches for it.
    fn process_of(&self, peer: PeerId) -> Option<PeerProcess> {
        let _ = peer;
        None
    }

    /// Takes the frame `head` + `body` into the current burst, which [`Transport::flush`] ends.
    ///
    /// False: it was refused, and nothing of it taken, because the peer's ring or the socket is
    /// full; offer it again after a later `flush` or `rx_burst`. Later frames of the burst to the
    /// same peer are then refused too, so that none overtakes it. Frames to peers that are not in
    /// the table, or larger than their limit, are dropped, counted in [`TransportStats`], and give
    /// true. A burst may have any number of frames: a transport that is out of room for what it
    /// took sends that by itself.
    ///
    /// # Safety
    /// Both slices stay where they are, unchanged, until the next `flush` has returned, even
    /// though the borrow ends before: a transport may keep their addresses till then.
    unsafe fn push(&mut self, peer: PeerId, head: &[u8], body: &[u8]) -> bool;

    /// Ends the burst: publishes or sends everything that was pushed. Each frame is sent in order,
    /// or dropped and counted, or where the kernel has no room just now, *kept*: copied to memory
    /// of the transport, and sent before anything that is pushed later. While there is such a
    /// backlog, frames that would have to wait behind it are refused; it is tried again once per
    /// burst and in each `rx_burst`.
    fn flush(&mut self);

    /// A whole burst of up to [`TX_BURST_MAX`] frames: [`Transport::push`] for each, then
    /// [`Transport::flush`]. Bit *i* of the result is set where frame *i* was refused.
    ///
    /// # Panics
    /// When `frames` is longer than [`TX_BURST_MAX`].
    fn tx_burst(&mut self, frames: &[TxFrame<'_>]) -> u64 {
        assert!(frames.len() <= TX_BURST_MAX, "a burst of more than TX_BURST_MAX frames");
        let mut refused = 0;
        for (index, frame) in frames.iter().enumerate() {
            // SAFETY: the frames are borrowed until this function returns, and it flushes first.
            let is_taken = unsafe { self.push(frame.peer, frame.head, frame.body) };
            refused |= u64::from(!is_taken) << index;
        }
        self.flush();
        refused
    }

    /// Receives frames, gives each to `handler` in order of arrival per peer, and returns how
    /// many. Stops at about `budget` frames; it may exceed `budget` by the frames of one datagram
    /// burst that is already in hand.
    ///
    /// The slice is the receive buffer itself: it is only valid during the call.
    fn rx_burst_to<H: FrameHandler>(&mut self, budget: usize, handler: H) -> usize;

    /// Whether a look for frames may find some. False only where that is sure, and costs next to
    /// nothing to tell: no system call, no clock.
    #[inline]
    fn may_receive(&self) -> bool {
        true
    }

    /// As [`Transport::rx_burst_to`], with a closure.
    fn rx_burst<F: FnMut(PeerId, &[u8])>(&mut self, budget: usize, on_frame: F) -> usize {
        self.rx_burst_to(budget, Each(on_frame))
    }

    /// Sleeps until a frame may have come in, a kept backlog may go out, the [`Waker`] was used, or
    /// `timeout_ns` have passed (`None`: no limit). May return early for no reason. The next [`Transport::rx_burst`] sees
    /// whatever arrived; no wake-up is lost between the two.
    fn wait(&mut self, timeout_ns: Option<u64>);

    /// A handle by which other threads end a [`Transport::wait`].
    fn waker(&self) -> Waker;

    /// Counters since the start.
    fn stats(&self) -> TransportStats;
}

/// Every transport carries frames of at least this many bytes: the IPv6 minimum MTU of 1280 less
/// 48 bytes of IPv6 and UDP header (RFC 8200 §5).
pub const MIN_FRAME_BYTES: usize = 1232;

#[cfg(test)]
mod tests {
    use super::*;

    /// A closure is not told of marks, and gets the frame as any other.
    #[test]
    fn each__has_frames_with_and_without_a_mark() {
        let mut got = Vec::new();
        let mut each = Each(|peer, frame: &[u8]| got.push((peer, frame.to_vec())));
        each.handle(PeerId(3), b"plain", ReturnPath(None));
        each.handle_marked(PeerId(4), b"marked");
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
