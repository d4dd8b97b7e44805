//! The table by which frames find their sessions.

use super::client::ClientSession;
use super::{Entry, Origin, PeerKey, Role, SessionId};

/// The sessions of one endpoint.
pub(crate) struct SessionTable<B, T> {
    pub(crate) entries: Vec<Entry<B, T>>,
    /// Free indices, the one freed longest ago in front: late frames of a former session then
    /// rarely even meet a new one.
    free: std::collections::VecDeque<u32>,
    open: u32,
    /// Those of them in the server's role.
    servers: u32,
    open_max: u32,
}

impl<B, T> SessionTable<B, T> {
    pub(crate) fn new(open_max: u32) -> Self {
        Self { entries: Vec::new(), free: Default::default(), open: 0, servers: 0, open_max }
    }

    pub(crate) fn open_count(&self) -> u32 {
        self.open
    }

    #[inline]
    pub(crate) fn server_count(&self) -> u32 {
        self.servers
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
        self.servers += u32::from(matches!(role, Role::Server(_)));
        if let Some(index) = self.free.pop_front() {
            let entry = &mut self.entries[index as usize];
            let generation = entry.generation.wrapping_add(1);
            *entry = Entry { origin: Origin::new(token, peer), generation, role };
            return Some(SessionId { index, generation });
        }
        let index = self.entries.len() as u32;
        self.entries.push(Entry { origin: Origin::new(token, peer), generation: 0, role });
        Some(SessionId { index, generation: 0 })
    }

    /// Takes a session out.
    pub(crate) fn remove(&mut self, id: SessionId) -> Option<Role<B, T>> {
        let entry = self.get_mut(id)?;
        let role = core::mem::replace(&mut entry.role, Role::Free);
        entry.origin = Origin::new(entry.origin.token(), None);
        self.free.push_back(id.index);
        self.open -= 1;
        self.servers -= u32::from(matches!(role, Role::Server(_)));
        Some(role)
    }

    /// The entry of an open session.
    #[inline]
    pub(crate) fn get_mut(&mut self, id: SessionId) -> Option<&mut Entry<B, T>> {
        let entry = self.entries.get_mut(id.index as usize)?;
        (entry.generation == id.generation && !matches!(entry.role, Role::Free)).then_some(entry)
    }

    #[inline]
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
