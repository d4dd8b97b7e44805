//! Sessions: the table that frames are looked up in, and the state of both roles (`docs/wire-protocol.md` §1,
//! §5, §6).

pub(crate) mod backlog;
pub(crate) mod client;
pub(crate) mod credits;
pub(crate) mod expiry_timer;
pub(crate) mod free_list;
pub(crate) mod held;
pub(crate) mod server;
pub(crate) mod table;
pub(crate) mod turns;

use std::hash::{Hash, Hasher};

use petrel_planted::planted;

use client::{ClientPaths, ClientSession};
use server::{ServerPaths, ServerSession};
pub(crate) use table::SessionTable;

/// Writes a value to an empty `Option` without reading it first: the slot's cache lines may still be in
/// flight from memory, and a store does not wait for them as a load does. A value already present is leaked,
/// not dropped.
#[inline(always)]
pub(crate) fn fill<X>(place: &mut Option<X>, value: X) {
    std::mem::forget(place.replace(value));
}

/// Names a session of one endpoint, and never a later session: a reused index has a new generation.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct SessionId {
    /// Index in the endpoint's table; the session field of frames to this endpoint.
    pub index: u32,
    /// Number of earlier uses of the index.
    pub generation: u32,
}

impl Hash for SessionId {
    /// One word: tables are looked up for each request of some handlers.
    #[inline]
    fn hash<H: Hasher>(&self, state: &mut H) {
        state.write_u64(u64::from(self.generation) << 32 | u64::from(self.index));
    }
}

/// The core's name for a peer. The owner of the core chooses it; the core only compares. The two largest numbers
/// name no peer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct PeerKey(pub u32);

/// The agreed parameters of a session (§8.5).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Agreed {
    /// The peer.
    pub peer: PeerKey,
    /// The session's index at the peer.
    pub peer_session: u32,
    /// The token chosen by the peer.
    pub peer_token: u32,
    /// Slots: a power of two up to 4 096.
    pub slots: u16,
    /// Credits: 1 to 4 096.
    pub credits: u16,
    /// Payload bytes of a full packet (P).
    pub packet_bytes: u32,
    /// Largest message that the peer accepts, in bytes.
    pub peer_message_bytes_max: u32,
}

impl Agreed {
    /// Some parameters, for tests.
    #[cfg(test)]
    pub(crate) const SAMPLE: Self = Self {
        peer: PeerKey(1),
        peer_session: 2,
        peer_token: 3,
        slots: 32,
        credits: 8,
        packet_bytes: 1_200,
        peer_message_bytes_max: 1 << 20,
    };

    /// Returns true if the values are within the protocol's limits. The control plane has checked values from
    /// the network already; this is the second check.
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

/// One entry of the table, with the session in place. With 20 000 sessions every call finds its session in no
/// near cache, and every pointer to follow costs another wait for memory. So a session's state begins in the
/// cache line with the `origin` that every frame is checked against. The fields for a small call end with the
/// second line at the latest; only the slots are in memory of their own.
#[repr(C, align(128))]
pub(crate) struct Entry<B, T> {
    origin: Origin,
    generation: u32,
    role: Role<B, T>,
}

impl<B, T> Entry<B, T> {
    /// Returns true if a frame with this token from this peer belongs to the session.
    #[inline(always)]
    pub(crate) fn is_from(&self, token: u32, peer: PeerKey) -> bool {
        self.origin == Origin::new(token, Some(peer))
    }

    /// Returns true if a frame with this token may belong to the session, and the session has several paths. Their
    /// object knows the source peer.
    #[inline(always)]
    pub(crate) fn is_by_paths(&self, token: u32) -> bool {
        self.origin == Origin::new(token, Some(SOURCE_OF_PATHS))
    }

    /// Returns the token and the source peer required of the session's frames.
    #[inline(always)]
    pub(crate) fn origin(&self) -> Origin {
        self.origin
    }

    /// Sets the source peer required of the session's frames.
    pub(crate) fn set_source(&mut self, source: PeerKey) {
        assert!(source != NO_PEER, "the frames of an open session come from a peer");
        let has_paths = match &self.role {
            Role::Free => panic!("a free entry expects no frames"),
            Role::Client(client) => client.paths().is_some(),
            Role::Server(server) => server.paths().is_some(),
        };
        assert!(
            has_paths == (source == SOURCE_OF_PATHS),
            "a session of several paths has the source of all of them"
        );
        self.origin = Origin::new(self.origin.token(), Some(source));
    }

    /// Returns the peer from which the session's frames come; `None` before the session is open.
    pub(crate) fn source(&self) -> Option<PeerKey> {
        match (self.origin.peer()?, &self.role) {
            (SOURCE_OF_PATHS, Role::Client(client)) => client.paths().map(ClientPaths::source),
            (SOURCE_OF_PATHS, Role::Server(server)) => server.paths().map(ServerPaths::source),
            (source, _) => Some(source),
        }
    }

    #[inline(always)]
    pub(crate) fn generation(&self) -> u32 {
        self.generation
    }

    #[inline(always)]
    pub(crate) fn role(&self) -> &Role<B, T> {
        &self.role
    }

    #[inline(always)]
    pub(crate) fn role_mut(&mut self) -> &mut Role<B, T> {
        &mut self.role
    }
}

/// The token (lower half) and the source peer (upper half) required of a session's frames, packed into one
/// number to be checked by one comparison. Where several links share an address, the source peer may differ
/// from the peer key that the session sends to.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) struct Origin(u64);

/// Names no peer.
pub(crate) const NO_PEER: PeerKey = PeerKey(u32::MAX);

/// The source of a session of several paths (§14), which no frame has: the fast paths of sessions of one path leave such sessions
/// alone, by the comparison that they make anyway. The paths know the real source.
pub(crate) const SOURCE_OF_PATHS: PeerKey = PeerKey(u32::MAX - 1);

impl Origin {
    /// Without a peer, as in a client session that is being opened, the origin matches no frame.
    #[inline(always)]
    pub(crate) fn new(token: u32, peer: Option<PeerKey>) -> Self {
        let peer = peer.unwrap_or(NO_PEER).0;
        Self(u64::from(token) | u64::from(peer) << 32)
    }

    #[inline(always)]
    pub(crate) fn token(self) -> u32 {
        self.0 as u32
    }

    #[inline(always)]
    pub(crate) fn peer(self) -> Option<PeerKey> {
        let peer = PeerKey((self.0 >> 32) as u32);
        (peer != NO_PEER).then_some(peer)
    }
}

// The tag comes first; by default the compiler would put the tag into a field of the second line.
#[repr(u32)]
#[allow(clippy::large_enum_variant, reason = "in place on purpose, see `Entry`")]
pub(crate) enum Role<B, T> {
    Free,
    Client(ClientSession<B, T>),
    Server(ServerSession<B>),
}

const _: () = assert!(size_of::<Entry<Box<u8>, [u64; 3]>>() == 384);
