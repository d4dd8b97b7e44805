//! The memory addresses needed by upcoming frames, step by step, for prefetching by the owner.
//!
//! With 20 000 sessions no part of a session is in a cache when its next request comes. A small request then
//! waits three times in turn: for the session, for the slot, and for the buffer of the slot's former answer.
//! A burst of requests is known before the first is handled. So while a request is handled, three prefetches
//! are in flight: the buffer for the fourth request after it, the slot for the eighth, and the session for
//! the twelfth.
//!
//! Prefetching only helps sessions in the server's role: a client has used the data for a response some
//! microseconds ago, for the request.
//!
//! The addresses are returned, not read from. A load delays the instructions behind it if memory is slow, and
//! the prefetch instruction is not available in safe code.

use super::Core;
use super::fast::Parsed;
use crate::limits::HEADER_BYTES;
use crate::session::Role;
use crate::wire::Kind;

/// Sessions in the server's role from which on prefetching saves more than it costs. Fewer sessions fit into
/// the second-level cache.
const SESSIONS_MIN: u32 = 1024;

/// Bytes of a cache line.
const LINE_BYTES: usize = 64;

/// The session and request of an upcoming frame, unchecked.
#[derive(Clone, Copy, Debug, Default)]
pub struct UpcomingFrame {
    session: u32,
    request: u32,
}

impl UpcomingFrame {
    /// Reads the fields of a frame.
    #[inline]
    pub fn of(frame: &[u8]) -> Self {
        let Some((head, _)) = frame.split_first_chunk::<HEADER_BYTES>() else {
            return Self::default();
        };
        let (first, second) = crate::wire::header_words(head);
        Self { session: (first >> 12) as u32 & 0xF_FFFF, request: (second >> 16) as u32 }
    }
}

/// Returns the method and the message of an upcoming frame, if the frame is a request of one packet without
/// flags. Checks nothing else.
#[inline]
pub fn peek_request(frame: &[u8]) -> Option<(u16, &[u8])> {
    let parsed = Parsed::of_kind(Kind::Request, frame)?;
    Some((parsed.aux(), parsed.payload))
}

/// Returns the method of a frame with this header, if the frame is a request. Checks nothing else.
#[inline]
pub fn method_of(head: &[u8; HEADER_BYTES]) -> Option<u16> {
    Parsed::of_kind(Kind::Request, head).map(|parsed| parsed.aux())
}

impl<B: crate::buffer::Buffer, T> Core<B, T> {
    /// Returns true if enough sessions are open for prefetching to pay.
    #[inline]
    pub fn looks_ahead(&self) -> bool {
        self.sessions.server_count() >= SESSIONS_MIN
    }

    /// First step: returns the line of the session's entry.
    #[inline]
    pub fn session_address(&self, upcoming: UpcomingFrame) -> *const u8 {
        match self.sessions.at(upcoming.session) {
            Some(entry) => std::ptr::from_ref(entry).cast(),
            None => std::ptr::null(),
        }
    }

    /// Second step, once the entry is cached: returns the line of the slot.
    #[inline]
    pub fn slot_address(&self, upcoming: UpcomingFrame) -> *const u8 {
        match self.sessions.at(upcoming.session).map(|entry| entry.role()) {
            Some(Role::Server(server)) => {
                let slot = server.slot_index(upcoming.request.into());
                server
                    .slots()
                    .get(slot)
                    .map_or(std::ptr::null(), |slot| std::ptr::from_ref(slot).cast())
            }
            _ => std::ptr::null(),
        }
    }

    /// Third step, once the slot is cached: returns the two lines of the former answer's buffer.
    #[inline]
    pub fn answer_addresses(&self, upcoming: UpcomingFrame) -> [*const u8; 2] {
        let entry = self.sessions.at(upcoming.session);
        let buffer = match entry.map(|entry| entry.role()) {
            Some(Role::Server(server)) => {
                let slot = server.slot_index(upcoming.request.into());
                server.slots().get(slot).and_then(|state| state.message())
            }
            _ => None,
        };
        let start = buffer.map_or(std::ptr::null(), B::address);
        [start, start.wrapping_add(LINE_BYTES)]
    }
}
