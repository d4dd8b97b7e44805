//! Sessions: the table by which frames find them, and the state of both roles
//! (`docs/wire-protocol.md` §1, §5, §6).

pub(crate) mod client;
pub(crate) mod server;
pub(crate) mod spare;

use client::ClientSession;
use server::ServerSession;

/// Puts a value into a place that is empty, as far as anybody knows. Dropping what may be there is
/// kept out of the way: it is the larger part of an assignment's code.
#[inline(always)]
pub(crate) fn fill<X>(place: &mut Option<X>, value: X) {
    if place.is_some() {
        empty(place);
    }
    std::mem::forget(place.replace(value));
}

#[cold]
#[inline(never)]
fn empty<X>(place: &mut Option<X>) {
    *place = None;
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

/// How the owner of the core names a peer: the core only compares.
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
    /// Slots: a power of two up to 64.
    pub slots: u8,
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
    }
}

/// One entry of the table. What every frame is checked against stands in the entry itself, so
/// that a forged frame costs one cache line.
pub(crate) struct Entry<B, T> {
    pub(crate) token: u32,
    pub(crate) generation: u32,
    /// `None` while a client session is being opened: no frame is accepted then.
    pub(crate) peer: Option<PeerKey>,
    pub(crate) role: Role<B, T>,
}

pub(crate) enum Role<B, T> {
    Free,
    Client(Box<ClientSession<B, T>>),
    Server(Box<ServerSession<B>>),
}

/// The sessions of one endpoint.
pub(crate) struct SessionTable<B, T> {
    pub(crate) entries: Vec<Entry<B, T>>,
    /// Free indices, the one freed longest ago in front: late frames of a former session then
    /// rarely even meet a new one.
    free: std::collections::VecDeque<u32>,
    open: u32,
    open_max: u32,
}

impl<B, T> SessionTable<B, T> {
    pub(crate) fn new(open_max: u32) -> Self {
        Self { entries: Vec::new(), free: Default::default(), open: 0, open_max }
    }

    pub(crate) fn open_count(&self) -> u32 {
        self.open
    }

    /// Puts a session in; `None` when the table is full.
    pub(crate) fn insert(
        &mut self,
        token: u32,
        peer: Option<PeerKey>,
        role: Role<B, T>,
    ) -> Option<SessionId> {
        if self.open >= self.open_max {
            return None;
        }
        self.open += 1;
        if let Some(index) = self.free.pop_front() {
            let entry = &mut self.entries[index as usize];
            let generation = entry.generation.wrapping_add(1);
            *entry = Entry { token, generation, peer, role };
            return Some(SessionId { index, generation });
        }
        let index = self.entries.len() as u32;
        self.entries.push(Entry { token, generation: 0, peer, role });
        Some(SessionId { index, generation: 0 })
    }

    /// Takes a session out.
    pub(crate) fn remove(&mut self, id: SessionId) -> Option<Role<B, T>> {
        let entry = self.get_mut(id)?;
        let role = core::mem::replace(&mut entry.role, Role::Free);
        entry.peer = None;
        self.free.push_back(id.index);
        self.open -= 1;
        Some(role)
    }

    /// The entry of an open session.
    pub(crate) fn get_mut(&mut self, id: SessionId) -> Option<&mut Entry<B, T>> {
        let entry = self.entries.get_mut(id.index as usize)?;
        (entry.generation == id.generation && !matches!(entry.role, Role::Free)).then_some(entry)
    }

    pub(crate) fn get(&self, id: SessionId) -> Option<&Entry<B, T>> {
        let entry = self.entries.get(id.index as usize)?;
        (entry.generation == id.generation && !matches!(entry.role, Role::Free)).then_some(entry)
    }

    pub(crate) fn client_mut(&mut self, id: SessionId) -> Option<&mut ClientSession<B, T>> {
        match &mut self.get_mut(id)?.role {
            Role::Client(client) => Some(client),
            _ => None,
        }
    }
}
