//! The [`Transport`] trait: what a back-end offers to an endpoint.

use crate::wake::Waker;

/// Most frames in one call of [`Transport::tx_burst`]: its result is a bit mask in a `u64`.
pub const TX_BURST_MAX: usize = 64;

/// Most frames that one call of [`Transport::rx_burst`] should deliver, so that a flood from one
/// peer cannot keep an endpoint from its timers and its own transmissions.
pub const RX_BURST_MAX: usize = 256;

/// A peer in a transport's table: an index, valid from [`Transport::add_peer`] until
/// [`Transport::remove_peer`], after which it may be given to another peer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct PeerId(pub u32);

/// One frame to send: `head` followed by `body`, without a gap on the wire.
///
/// The two borrow from the message buffer that holds them. A transport has taken or copied the
/// bytes when [`Transport::tx_burst`] returns, so that the buffer's owner may change them then.
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
    };
}

transport_stats! {
    /// Frames handed to the medium.
    tx_frames,
    /// Bytes in those frames.
    tx_bytes,
    /// Datagrams (UDP) or ring publications (shared memory) that carried them.
    tx_datagrams,
    /// System calls made to send.
    tx_syscalls,
    /// Frames not taken because the peer's ring or the socket's buffer was full; the endpoint
    /// offers them again.
    tx_blocked,
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
    /// Datagrams from an address that is no peer.
    rx_dropped_unknown_peer,
    /// Datagrams (or ring records) whose framing is broken: truncated bundle, zero length.
    rx_dropped_malformed,
    /// Datagrams cut by the kernel because the receive buffer was too short.
    rx_dropped_truncated,
    /// Rings given up because the peer wrote impossible indices.
    rx_broken_rings,
    /// Times that GSO was switched off after the kernel refused it.
    gso_disabled,
}

/// Unreliable datagrams in bursts, with static dispatch.
///
/// An endpoint calls these methods from its own thread only, in a loop: [`rx_burst`], its timers,
/// [`tx_burst`], and [`wait`] when it has nothing to do. No method but `wait` blocks.
///
/// [`rx_burst`]: Transport::rx_burst
/// [`tx_burst`]: Transport::tx_burst
/// [`wait`]: Transport::wait
pub trait Transport {
    /// What the control plane hands over to reach one peer: an address, or opened rings.
    type Link: Send + 'static;

    /// Nanoseconds on this transport's monotonic clock. A simulator returns its virtual time.
    fn now(&self) -> u64;

    /// Makes a peer reachable. A transport that tells peers apart by address returns the same
    /// [`PeerId`] when the same address is added again (two endpoints that each opened a link to
    /// the other), and forgets it at the last [`Transport::remove_peer`].
    ///
    /// # Errors
    /// See [`LinkError`]. The transport is unchanged then.
    fn add_peer(&mut self, link: Self::Link) -> Result<PeerId, LinkError>;

    /// Forgets a peer and frees what its link held. Unknown peers are ignored.
    fn remove_peer(&mut self, peer: PeerId);

    /// The largest frame, in bytes, that can be sent to and received from `peer`. At least
    /// [`MIN_FRAME_BYTES`] for every peer in the table; 0 for a peer that is not.
    fn max_frame_bytes(&self, peer: PeerId) -> usize;

    /// Sends up to [`TX_BURST_MAX`] frames. Bit *i* of the result is set where frame *i* was not
    /// taken because its peer's ring or the socket was full: offer it again later. All others
    /// were sent, or dropped and counted in [`TransportStats`]. Once a frame was not taken, later
    /// frames of the burst to the same peer are not taken either, so that none overtakes it.
    ///
    /// # Panics
    /// When `frames` is longer than [`TX_BURST_MAX`].
    fn tx_burst(&mut self, frames: &[TxFrame<'_>]) -> u64;

    /// Receives frames, calls `on_frame` for each in order of arrival per peer, and returns how
    /// many. Stops at about `budget` frames; it may exceed `budget` by the frames of one datagram
    /// burst that is already in hand.
    ///
    /// The slice is the receive buffer itself: it is only valid during the call.
    fn rx_burst<F: FnMut(PeerId, &[u8])>(&mut self, budget: usize, on_frame: F) -> usize;

    /// Sleeps until a frame may have come in, the [`Waker`] was used, or `timeout_ns` have passed
    /// (`None`: no limit). May return early for no reason. The next [`Transport::rx_burst`] sees
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
