//! The table in which frames find their sessions.

use super::client::ClientSession;
use super::{Entry, Origin, PeerKey, Role, SessionId};
use crate::limits::SESSIONS_MAX;

/// The sessions of one endpoint.
pub(crate) struct SessionTable<B, T> {
    entries: Vec<Entry<B, T>>,
    /// Free indices, the longest free in front: late frames of a closed session then rarely meet a new
    /// session.
    free: std::collections::VecDeque<u32>,
    open: u32,
    /// Open sessions in the server's role, and the sum of their agreed slots.
    servers: u32,
    server_slots: u64,
    open_max: u32,
    /// Generation of a new entry: higher than in every entry whose memory was freed.
    generation: u32,
    /// When the number of open sessions falls to this value, the table checks for memory to free. The value
    /// is half of the largest number since the last check, so that checks cost a constant per session.
    look_at: u32,
    /// Set when memory was freed, until the owner asks.
    has_freed: bool,
}

/// Entries whose memory is never freed.
const ROOM_MIN: usize = 1_024;

impl<B, T> SessionTable<B, T> {
    pub(crate) fn new(open_max: u32) -> Self {
        assert!(open_max <= SESSIONS_MAX, "a timer names the session that it belongs to");
        Self {
            entries: Vec::new(),
            free: Default::default(),
            open: 0,
            servers: 0,
            server_slots: 0,
            open_max,
            generation: 0,
            look_at: 0,
            has_freed: false,
        }
    }

    pub(crate) fn open_count(&self) -> u32 {
        self.open
    }

    #[inline]
    pub(crate) fn server_count(&self) -> u32 {
        self.servers
    }

    pub(crate) fn server_slots(&self) -> u64 {
        self.server_slots
    }

    /// Adds a session. Returns `None` if the table is full.
    pub(crate) fn insert(
        &mut self,
        token: u32,
        peer: Option<PeerKey>,
        role: Role<B, T>,
    ) -> Option<SessionId> {
        assert!(!matches!(role, Role::Free), "a session has a role");
        assert_eq!(
            self.open as usize + self.free.len(),
            self.entries.len(),
            "each entry is open or free"
        );
        if self.open >= self.open_max {
            return None;
        }
        self.open += 1;
        assert!(self.servers < self.open, "no more servers are counted than sessions");
        self.look_at = self.look_at.max(self.open / 2);
        if let Role::Server(server) = &role {
            self.servers += 1;
            self.server_slots += u64::from(server.agreed().slots);
            assert!(
                self.server_slots >= u64::from(self.servers),
                "each server is counted with its slots"
            );
        }
        if let Some(index) = self.free.pop_front() {
            let entry = &mut self.entries[index as usize];
            assert!(matches!(entry.role, Role::Free), "a free index names no open session");
            let generation = entry.generation.wrapping_add(1);
            *entry = Entry { origin: Origin::new(token, peer), generation, role };
            return Some(SessionId { index, generation });
        }
        let index = self.entries.len() as u32;
        let generation = self.generation;
        self.entries.push(Entry { origin: Origin::new(token, peer), generation, role });
        Some(SessionId { index, generation })
    }

    pub(crate) fn remove(&mut self, id: SessionId) -> Option<Role<B, T>> {
        let entry = self.get_mut(id)?;
        let role = core::mem::replace(&mut entry.role, Role::Free);
        entry.origin = Origin::new(entry.origin.token(), None);
        self.free.push_back(id.index);
        assert!(self.open > 0, "a session that ends was counted");
        self.open -= 1;
        if let Role::Server(server) = &role {
            assert!(
                self.servers > 0 && self.server_slots >= u64::from(server.agreed().slots),
                "a server that ends was counted with its slots"
            );
            self.servers -= 1;
            self.server_slots -= u64::from(server.agreed().slots);
        }
        assert_eq!(
            self.open as usize + self.free.len(),
            self.entries.len(),
            "the entry of a session that ends is free once"
        );
        if self.open <= self.look_at {
            self.look_at = self.open / 2;
            if self.entries.len() > ROOM_MIN {
                self.give_back();
            }
        }
        Some(role)
    }

    /// Frees the unused entries at the table's end, if they are at least half of the table.
    #[cold]
    fn give_back(&mut self) {
        let is_used = |entry: &Entry<B, T>| !matches!(entry.role, Role::Free);
        let len = self.entries.iter().rposition(is_used).map_or(0, |last| last + 1);
        if len > self.entries.len() / 2 {
            return;
        }
        // The name of a closed session must not match a later session.
        let newest = self.entries.drain(len..).map(|entry| entry.generation).max();
        self.generation = newest.map_or(self.generation, |newest| newest.wrapping_add(1));
        self.entries.shrink_to(ROOM_MIN.max(2 * len));
        self.free.retain(|&index| (index as usize) < len);
        self.free.shrink_to(ROOM_MIN.max(2 * self.free.len()));
        assert_eq!(self.open as usize + self.free.len(), len, "each entry is open or free");
        self.has_freed = true;
    }

    /// Returns true if memory was freed since the last query.
    pub(crate) fn take_freed(&mut self) -> bool {
        core::mem::take(&mut self.has_freed)
    }

    /// Returns the entry of an open session.
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

    /// Returns the entry at an index, of an open session or free.
    #[inline(always)]
    pub(crate) fn at(&self, index: u32) -> Option<&Entry<B, T>> {
        self.entries.get(index as usize)
    }

    /// Returns the entry at an index, of an open session or free, for a change.
    #[inline(always)]
    pub(crate) fn at_mut(&mut self, index: u32) -> Option<&mut Entry<B, T>> {
        self.entries.get_mut(index as usize)
    }

    /// Returns the roles of all entries, free ones included.
    pub(crate) fn roles(&self) -> impl Iterator<Item = &Role<B, T>> {
        self.entries.iter().map(|entry| &entry.role)
    }

    pub(crate) fn client_mut(&mut self, id: SessionId) -> Option<&mut ClientSession<B, T>> {
        match &mut self.get_mut(id)?.role {
            Role::Client(client) => Some(client),
            _ => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::buffer::HeapBuffer;
    use crate::recovery::rtt::RtoBounds;

    type Table = SessionTable<HeapBuffer, u64>;

    fn open(table: &mut Table) -> SessionId {
        let client = ClientSession::opening(0, &RtoBounds::default());
        table.insert(7, None, Role::Client(client)).unwrap()
    }

    #[test]
    fn remove__of_most_gives_memory_back_and_no_name_twice() {
        let mut table = Table::new(1 << 20);
        let sessions: Vec<_> = (0..20_000).map(|_| open(&mut table)).collect();
        let kept = sessions[3];
        for &id in sessions.iter().filter(|&&id| id != kept) {
            assert!(table.remove(id).is_some());
        }
        assert!(table.entries.capacity() <= 2 * ROOM_MIN, "{}", table.entries.capacity());
        assert!(table.free.capacity() <= 4 * ROOM_MIN, "{}", table.free.capacity());
        assert_eq!(table.open_count(), 1);
        assert!(table.take_freed() && !table.take_freed());
        assert!(table.get(kept).is_some());
        let later: Vec<_> = (0..20_000).map(|_| open(&mut table)).collect();
        for id in &sessions {
            assert_eq!(table.get(*id).is_some(), *id == kept, "{id:?}");
        }
        assert!(later.iter().all(|id| table.get(*id).is_some()));
    }

    #[test]
    fn remove__in_any_order_keeps_the_account() {
        let mut table = Table::new(1 << 20);
        for round in 1..5usize {
            let mut sessions: Vec<_> = (0..5_000).map(|_| open(&mut table)).collect();
            let step = [1, 3_331, 7, 2_503][round - 1];
            let mut place = 0;
            while !sessions.is_empty() {
                place = (place + step) % sessions.len();
                let id = sessions.swap_remove(place);
                assert!(table.remove(id).is_some() && table.remove(id).is_none());
            }
            assert_eq!(table.open_count(), 0);
        }
    }

    panics! {
        insert__after_an_entry_was_lost: "each entry is open or free" => {
            let mut table = Table::new(8);
            let id = open(&mut table);
            table.remove(id);
            table.free.clear();
            open(&mut table);
        };
        insert__with_an_open_session_among_the_free_ones: "a free index names no open session" => {
            let mut table = Table::new(8);
            let [first, second] = [(); 2].map(|()| open(&mut table));
            table.remove(first);
            table.free[0] = second.index;
            open(&mut table);
        };
        remove__with_an_entry_listed_twice: "the entry of a session that ends is free once" => {
            let mut table = Table::new(8);
            let sessions = [open(&mut table), open(&mut table)];
            table.free.push_back(sessions[0].index);
            table.remove(sessions[1]);
        };
    }
}
