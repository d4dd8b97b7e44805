//! Sessions: the table by which frames find them, and the state of both roles
//! (`docs/wire-protocol.md` §1, §5, §6).

pub(crate) mod backlog;
pub(crate) mod client;
pub(crate) mod held;
pub(crate) mod order;
pub(crate) mod server;
pub(crate) mod spare;
pub(crate) mod table;
pub(crate) mod turns;

use petrel_planted::planted;

use client::ClientSession;
use server::ServerSession;
pub(crate) use table::SessionTable;

/// Puts a value into a place that is empty, without a look at it: a slot's lines may still be on
/// their way from memory, and a store waits for nobody where a load does. What should be there all
/// the same is forgotten, not dropped.
#[inline(always)]
pub(crate) fn fill<X>(place: &mut Option<X>, value: X) {
    std::mem::forget(place.replace(value));
}

/// Names a session of one endpoint. Never names another session later: an index is used again,
/// with another generation.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct SessionId {
    /// Index in the endpoint's table: the session field of frames to this endpoint.
    pub index: u32,
    /// How often the index had been used before.
    pub generation: u32,
}

/// How the owner of the core names a peer: the core only compares. `u32::MAX` is not a peer's name.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct PeerKey(pub u32);

/// What the two ends of a session agreed on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Agreed {
    /// The other end.
    pub peer: PeerKey,
    /// The session's index there.
    pub peer_session: u32,
    /// The token that the other end wants to see.
    pub peer_token: u32,
    /// Slots: a power of two up to 4 096.
    pub slots: u16,
    /// Credits: 1 to 4 096.
    pub credits: u16,
    /// Payload bytes of a full packet (P).
    pub packet_bytes: u32,
    /// Largest message that the other end accepts, in bytes.
    pub peer_message_bytes_max: u32,
}

impl Agreed {
    /// Whether the values are within the protocol's limits. The control plane checks what comes
    /// from the network; this is the second look.
    pub(crate) fn is_sound(&self, first_request: u64) -> bool {
        use crate::limits::*;
        self.slots.is_power_of_two()
            && self.slots <= SLOTS_MAX
            && first_request.is_multiple_of(u64::from(self.slots))
            && (1..=CREDITS_MAX).contains(&self.credits)
            && (PACKET_BYTES_MIN..=PACKET_BYTES_MAX).contains(&self.packet_bytes)
            && self.peer_session < SESSIONS_MAX
            && self.peer_message_bytes_max <= MESSAGE_BYTES_MAX
            && !(planted("proto_largest_message_refused")
                && self.peer_message_bytes_max == MESSAGE_BYTES_MAX)
    }
}

/// One entry of the table, with the session itself: at 20 000 sessions each call meets a session that
/// is in no cache near the core, and each step from one piece of memory to the next is a wait. So a
/// session's state begins in the line that every frame is checked against, what a small call needs
/// of it ends with the second line at most, and only the slots are elsewhere.
#[repr(C, align(128))]
pub(crate) struct Entry<B, T> {
    pub(crate) origin: Origin,
    pub(crate) generation: u32,
    pub(crate) role: Role<B, T>,
}

/// What a frame must show to be a session's: its token in the lower half, and in the upper half the
/// name under which its peer's frames come. One number, so that it is one comparison. Where several
/// links lead to one address, it is not the name of the peer that the session's own frames go to.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) struct Origin(u64);

/// No peer has this key.
pub(crate) const NOBODY: PeerKey = PeerKey(u32::MAX);

impl Origin {
    /// Without a peer, while a client session is being opened, it is the origin of no frame.
    #[inline(always)]
    pub(crate) fn new(token: u32, peer: Option<PeerKey>) -> Self {
        let peer = peer.unwrap_or(NOBODY).0;
        Self(u64::from(token) | u64::from(peer) << 32)
    }

    #[inline(always)]
    pub(crate) fn token(self) -> u32 {
        self.0 as u32
    }

    #[inline(always)]
    pub(crate) fn peer(self) -> Option<PeerKey> {
        let peer = PeerKey((self.0 >> 32) as u32);
        (peer != NOBODY).then_some(peer)
    }
}

// The tag comes first; the compiler would keep it in a field of the second line.
#[repr(u32)]
#[allow(clippy::large_enum_variant, reason = "in place on purpose, see `Entry`")]
pub(crate) enum Role<B, T> {
    Free,
    Client(ClientSession<B, T>),
    Server(ServerSession<B>),
}

const _: () = assert!(size_of::<Entry<Box<u8>, [u64; 3]>>() == 384);
