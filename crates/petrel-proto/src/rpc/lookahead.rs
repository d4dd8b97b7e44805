//! The memory addresses needed by upcoming frames, step by step, for prefetching by the owner.
//!
//! With 20 000 sessions no part of a session is in a cache when its next request comes. A small request then
//! waits three times in turn: for the session, for the slot, and for the buffer of the slot's former answer.
//! A burst of requests is known before the first is handled. So while a request is handled, three prefetches
//! are in flight: the buffer for the fourth request after it, the slot for the eighth, and the session for
//! the twelfth.
//!
//! For a response, a client has used the data some microseconds ago, for the request. For a request, the client
//! learns the session only when the application names it: an application that knows its next calls can announce
//! them. Then two prefetches are in flight, of the session's entry and of the slot for the call.
//!
//! The addresses are returned, not read from. A load delays the instructions behind it if memory is slow, and
//! the prefetch instruction is not available in safe code.

use super::fast::{Parsed, peek_timed};
use crate::limits::HEADER_BYTES;
use crate::wire::Kind;

/// Sessions in the server's role from which on prefetching saves more than it costs. Fewer sessions fit into
/// the second-level cache.
pub(super) const SESSIONS_MIN: u32 = 1024;

pub(super) const LINE_BYTES: usize = 64;

/// The session and request of an upcoming frame, unchecked.
#[derive(Clone, Copy, Debug, Default)]
pub struct UpcomingFrame {
    pub(super) session: u32,
    pub(super) request: u32,
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
/// flags, or with a deadline alone, as all calls of clients have it. Checks nothing else.
#[inline]
pub fn peek_request(frame: &[u8]) -> Option<(u16, &[u8])> {
    match Parsed::of_kind(Kind::Request, frame) {
        Some(parsed) => Some((parsed.aux(), parsed.payload)),
        None => peek_timed(frame),
    }
}

/// Returns the method of a frame with this header, if the frame is a request. Checks nothing else.
#[inline]
pub fn method_of(head: &[u8; HEADER_BYTES]) -> Option<u16> {
    Parsed::of_kind(Kind::Request, head).map(|parsed| parsed.aux())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::wire::{Destination, Flags, deadline_word};

    fn frame(kind: Kind, flags: Flags, block: &[u8]) -> Vec<u8> {
        let [first, second] = Destination::new(5, 6).words(kind, flags, 7, 8);
        let mut frame = Vec::new();
        frame.extend_from_slice(&first.to_le_bytes());
        frame.extend_from_slice(&second.to_le_bytes());
        frame.extend_from_slice(block);
        frame.extend_from_slice(b"message");
        frame
    }

    #[test]
    fn peek_request__of_requests_of_one_packet_with_and_without_a_deadline() {
        let deadline = deadline_word(1_000).to_le_bytes();
        let wanted = Some((7, &b"message"[..]));
        assert_eq!(peek_request(&frame(Kind::Request, Flags::NONE, b"")), wanted);
        let timed = frame(Kind::Request, Flags::EXTENDED, &deadline);
        assert_eq!(peek_request(&timed), wanted);
        for len in 0..crate::limits::PART_HEADER_BYTES {
            assert_eq!(peek_request(&timed[..len]), None, "{len} bytes");
        }
        assert_eq!(peek_request(&frame(Kind::Response, Flags::NONE, b"")), None);
        assert_eq!(peek_request(&frame(Kind::RequestPart, Flags::EXTENDED, &deadline)), None);
        assert_eq!(peek_request(&frame(Kind::Request, Flags::EXTENDED, &[9; 8])), None);
    }
}
