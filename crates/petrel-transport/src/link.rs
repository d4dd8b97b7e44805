//! The names of peers, the errors of links and the counters of transports: shared by the
//! [`Transport`](crate::Transport) trait and all media.

use std::ops;

/// Every transport carries frames of at least this size: the IPv6 minimum MTU of 1280 less 48 bytes
/// of IPv6 and UDP header (RFC 8200 §5).
pub const MIN_FRAME_BYTES: usize = 1232;

/// A peer in a transport's table: an index, valid from [`Transport::add_peer`](crate::Transport::add_peer) until
/// [`Transport::remove_peer`](crate::Transport::remove_peer). Afterwards the table may reuse the index for another peer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct PeerId(pub u32);

/// The process at the other end of a link within one host, as the kernel reported it when the link
/// was made.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub struct PeerProcess {
    /// The process id in this process's namespace; 0 if the peer has none there.
    pub pid: u32,
    /// The effective user id.
    pub uid: u32,
    /// The effective group id.
    pub gid: u32,
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
    /// The configured MTU is larger than the path MTU to the peer.
    #[error(
        "the configured MTU of {configured} bytes exceeds the path MTU of {path} bytes to {peer}; \
         lower it or leave it on automatic"
    )]
    MtuExceedsPath {
        /// The configured MTU, in bytes of IP packet.
        configured: usize,
        /// The MTU of the route to the peer, in bytes of IP packet.
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
        /// Counters of a transport since its start. Every drop reason has a separate counter.
        #[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
        #[non_exhaustive]
        pub struct TransportStats { $($(#[$doc])* pub $name: u64,)* }

        impl TransportStats {
            /// Names and values, in order.
            pub fn iter(&self) -> impl Iterator<Item = (&'static str, u64)> {
                [$((stringify!($name), self.$name),)*].into_iter()
            }
        }

        /// Sums the counters of an endpoint's several transports.
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
    /// Datagrams (UDP) or ring publications (shared memory) that carried sent frames.
    tx_datagrams,
    /// Bytes of sent frames. The field does not follow `tx_frames`: the compiler would then update
    /// the two at once, in more instructions.
    tx_bytes,
    /// System calls made to send.
    tx_syscalls,
    /// Frames refused because the peer's ring or the socket's buffer was full; the endpoint offers
    /// them again.
    tx_blocked,
    /// Frames accepted for which the kernel had no room at once. A kept frame counts as sent or
    /// dropped as well, after the kernel's decision.
    tx_kept,
    /// Waits until a device had read all messages of sent frames: after a repetition, and at the end of a call without an answer.
    tx_waits,
    /// Frames dropped because the medium refused them (an error other than "full").
    tx_dropped_error,
    /// Frames dropped because they exceed the peer's largest frame.
    tx_dropped_oversize,
    /// Frames dropped because their peer is not, or no longer, in the table, or its sealed link has no numbers left.
    tx_dropped_no_peer,
    /// Frames delivered to the endpoint.
    rx_frames,
    /// Bytes of delivered frames.
    rx_bytes,
    /// Datagrams or ring publications that carried delivered frames.
    rx_datagrams,
    /// System calls made to receive.
    rx_syscalls,
    /// Datagrams from an address without a peer, and sealed datagrams that name no link of their address. While UDP has a single
    /// peer, the kernel itself refuses strangers' datagrams. The kernel counts such datagrams as `NoPorts` of the network
    /// namespace, and `petrel stats` shows the count.
    rx_dropped_unknown_peer,
    /// Plain datagrams from the address of a sealed link, which has no plain link.
    rx_dropped_plain,
    /// Sealed datagrams that do not open, and all of a link that has ended because of them.
    rx_dropped_forged,
    /// Sealed datagrams with a number that was accepted before, or is too far from the highest accepted
    /// number.
    rx_dropped_replayed,
    /// Datagrams (or ring records) whose framing is broken: truncated bundle, zero length.
    rx_dropped_malformed,
    /// Datagrams cut by the kernel because the receive buffer was too short.
    rx_dropped_truncated,
    /// Datagrams, from a device, with a wrong checksum of IP or UDP.
    rx_dropped_checksum,
    /// Datagrams, from a device, whose checksum no device has completed: their sender is on the same host, and they are accepted.
    rx_partial_checksum,
    /// Datagrams from a device.
    rx_device_datagrams,
    /// Datagrams that missed the device, and came from the kernel's socket.
    rx_device_missed,
    /// Datagrams that left by a device.
    tx_device_datagrams,
    /// Times that an endpoint lost its device, and returned to the kernel's socket.
    device_losses,
    /// Datagrams the kernel dropped because the socket's receive buffer was full.
    rx_dropped_kernel,
    /// Pairs of rings abandoned because the peer broke a rule, for example by impossible indices.
    rx_broken_rings,
    /// Times that GSO was switched off after the kernel refused it.
    gso_disabled,
    /// Delivered frames that carried a congestion mark.
    rx_marked,
}
