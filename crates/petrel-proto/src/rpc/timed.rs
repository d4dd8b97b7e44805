//! Small calls with a deadline, nothing else unusual about them: the short ways of [`plain`](super::plain),
//! with one word more behind the header (`docs/wire-protocol.md` §3.4). The answer is a plain one.
//!
//! They are apart so that calls without a deadline do not pay for them.

use super::plain::Parsed;
use super::request::deadline_ns;
use super::{Core, PlainRequest};
use crate::buffer::Buffer;
use crate::limits::{DEADLINE_BLOCK_BYTES, PART_HEADER_BYTES};
use crate::session::PeerKey;
use crate::wire::{Extensions, Flags, Kind, first_bits, part_words, word_left_us};

/// The lowest twelve bits of a REQUEST with an extension block and no other flag.
const FIRST_BITS: u32 = first_bits(Kind::Request) | (Flags::EXTENDED.0 as u32) << 8;

impl<B: Buffer, T> Core<B, T> {
    /// Takes a frame if it is a new request of one packet with a deadline that is not over, and nothing
    /// else unusual about it; gives when it is. `None` says nothing about the frame: give it to
    /// [`Core::handle_frame`].
    #[inline(always)]
    pub fn handle_timed_request<'f>(
        &mut self,
        now_ns: u64,
        peer: PeerKey,
        frame: &'f [u8],
    ) -> Option<(PlainRequest<'f, B>, u64)> {
        let (head, payload) = frame.split_first_chunk::<PART_HEADER_BYTES>()?;
        let [first, second, block] = part_words(head);
        if first as u32 & 0xFFF != FIRST_BITS {
            return None;
        }
        let deadline_us = Some(word_left_us(block)?);
        let deadline_ns = deadline_ns(now_ns, Extensions { deadline_us });
        if deadline_ns <= now_ns {
            return None;
        }
        let parsed = Parsed { first, second, payload };
        let request = self.take_plain(peer, parsed, frame.len() - DEADLINE_BLOCK_BYTES)?;
        Some((request, deadline_ns))
    }
}
