//! Client sessions: a write that arrives twice is applied once (Raft dissertation §6.3; RIFL).
//!
//! A session holds the results of writes that a client may send again. At the limit, a new session replaces the least
//! recently used one. Log indices determine recency, and all replicas therefore agree.

mod recency;
mod session;

pub(super) use session::{Admission, Session};

use std::collections::HashMap;
use std::sync::Arc;

use crate::hash::HashByIndex;
use crate::limits::SESSIONS_MAX;
use recency::Recency;

/// All sessions.
#[derive(Debug, Default)]
pub(super) struct Sessions {
    /// Slots by session number.
    places: HashMap<u64, u32, HashByIndex>,
    slots: Vec<Slot>,
    recency: Recency,
}

/// A session with number and last use.
#[derive(Debug, Clone)]
pub(super) struct Slot {
    /// Log index of the command that opened the session.
    pub(super) id: u64,
    /// Log index of the last command of the session.
    pub(super) last_used: u64,
    pub(super) session: Arc<Session>,
}

impl Sessions {
    pub(super) fn len(&self) -> usize {
        self.slots.len()
    }

    pub(super) fn open(&mut self, index: u64) {
        self.add(Slot { id: index, last_used: index, session: Arc::default() });
    }

    /// Adds a session as the most recently used session. At the limit, another session ends for it.
    pub(super) fn add(&mut self, slot: Slot) {
        let id = slot.id;
        let is_full = self.slots.len() >= SESSIONS_MAX;
        let place = if is_full { self.replace_oldest(slot) } else { self.append(slot) };
        self.places.insert(id, place);
    }

    /// Looks up the session of a command at `index`, and marks it as used.
    #[inline]
    pub(super) fn touch(&mut self, id: u64, index: u64) -> Option<&mut Session> {
        let place = *self.places.get(&id)?;
        self.recency.touch(place);
        let slot = &mut self.slots[place as usize];
        slot.last_used = index;
        Some(Arc::make_mut(&mut slot.session))
    }

    pub(super) fn get(&self, id: u64) -> Option<&Session> {
        self.places.get(&id).map(|place| &*self.slots[*place as usize].session)
    }

    pub(super) fn contains(&self, id: u64) -> bool {
        self.places.contains_key(&id)
    }

    /// A copy of all sessions, the least recently used first.
    pub(super) fn image(&self) -> Vec<Slot> {
        self.recency.oldest_first().map(|place| self.slots[place as usize].clone()).collect()
    }

    fn append(&mut self, slot: Slot) -> u32 {
        self.slots.push(slot);
        self.recency.push()
    }

    fn replace_oldest(&mut self, slot: Slot) -> u32 {
        let place = self.recency.oldest();
        self.recency.touch(place);
        let old = std::mem::replace(&mut self.slots[place as usize], slot);
        self.places.remove(&old.id);
        place
    }
}
