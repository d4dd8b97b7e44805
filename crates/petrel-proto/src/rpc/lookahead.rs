//! What frames that are about to come in will need, step by step, so that their owner can have it
//! fetched from memory meanwhile.
//!
//! At 20 000 sessions nothing of a session is in a cache when its next request comes, and a small
//! request waits three times in turn: for the session, for its slot, and for the buffer of the slot's
//! former answer. A burst of requests is known as a whole before the first is handled; so while one
//! is handled, the buffer of the fourth, the slot of the eighth, and the session of the twelfth after
//! it are on their way, and nobody waits.
//!
//! This only helps with sessions in the server's role: what a client needs for a response it used
//! some microseconds ago, for the request.
//!
//! The addresses are given away, not read from: a load would hold up what comes after it when it is
//! not done in time, and the instruction that does not is not for safe code.

use super::Core;
use super::plain::Parsed;
use crate::limits::HEADER_BYTES;
use crate::session::Role;
use crate::wire::Kind;

/// Sessions in the server's role from which on looking ahead costs less than it saves: with fewer,
/// all they need is in the second-level cache.
const SESSIONS_MIN: u32 = 1024;

/// Bytes of a cache line.
const LINE_BYTES: usize = 64;

/// What a frame that is about to come in says of itself. Nothing of it is checked.
#[derive(Clone, Copy, Debug, Default)]
pub struct Upcoming {
    session: u32,
    request: u32,
}

impl Upcoming {
    /// What a frame says.
    #[inline]
    pub fn of(frame: &[u8]) -> Self {
        let Some((head, _)) = frame.split_first_chunk::<HEADER_BYTES>() else {
            return Self::default();
        };
        let (first, second) = crate::wire::header_words(head);
        Self { session: (first >> 12) as u32 & 0xF_FFFF, request: (second >> 16) as u32 }
    }
}

/// The method and the message of a frame that is about to come in, if it is a request of one packet
/// with no flags. Nothing of it is checked.
#[inline]
pub fn upcoming_request(frame: &[u8]) -> Option<(u16, &[u8])> {
    let parsed = Parsed::of_kind(Kind::Request, frame)?;
    Some((parsed.aux(), parsed.payload))
}

/// The method of a frame that begins so, if it is a request. Nothing of it is checked.
#[inline]
pub fn method_of(head: &[u8; HEADER_BYTES]) -> Option<u16> {
    Parsed::of_kind(Kind::Request, head).map(|parsed| parsed.aux())
}

impl<B: crate::buffer::Buffer, T> Core<B, T> {
    /// Whether there are so many sessions that it pays to look ahead.
    #[inline]
    pub fn looks_ahead(&self) -> bool {
        self.sessions.server_count() >= SESSIONS_MIN
    }

    /// First step: the line of the session's entry.
    #[inline]
    pub fn session_address(&self, upcoming: Upcoming) -> *const u8 {
        match self.sessions.entries.get(upcoming.session as usize) {
            Some(entry) => std::ptr::from_ref(entry).cast(),
            None => std::ptr::null(),
        }
    }

    /// Second step, once the entry is there: the line of the slot.
    #[inline]
    pub fn slot_address(&self, upcoming: Upcoming) -> *const u8 {
        match self.sessions.entries.get(upcoming.session as usize).map(|entry| &entry.role) {
            Some(Role::Server(server)) => {
                let slot = server.slot_index(upcoming.request.into());
                server
                    .slots
                    .get(slot)
                    .map_or(std::ptr::null(), |slot| std::ptr::from_ref(slot).cast())
            }
            _ => std::ptr::null(),
        }
    }

    /// Third step, once the slot is there: the two lines of the buffer of its former answer.
    #[inline]
    pub fn answer_addresses(&self, upcoming: Upcoming) -> [*const u8; 2] {
        let entry = self.sessions.entries.get(upcoming.session as usize);
        let buffer = match entry.map(|entry| &entry.role) {
            Some(Role::Server(server)) => {
                let slot = server.slot_index(upcoming.request.into());
                server.slots.get(slot).and_then(|state| state.message.as_ref())
            }
            _ => None,
        };
        let start = buffer.map_or(std::ptr::null(), B::address);
        [start, start.wrapping_add(LINE_BYTES)]
    }
}
