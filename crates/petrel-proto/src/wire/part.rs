//! The fields of REQUEST_PART and RESPONSE_PART (`docs/wire-protocol.md` §3.1).

use super::header::to_bytes;
use super::{Extensions, Flags, Malformed, read_extensions};
use crate::limits::{HEADER_BYTES, PART_HEADER_BYTES};

const FIELDS_BYTES: usize = PART_HEADER_BYTES - HEADER_BYTES;

/// The header of a part as words.
#[inline]
pub(crate) fn part_words(head: &[u8; PART_HEADER_BYTES]) -> [u64; 3] {
    let (words, _) = head.as_chunks::<8>();
    std::array::from_fn(|index| u64::from_le_bytes(words[index]))
}

/// Which part of a message a packet is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Part {
    /// Bytes of the whole message.
    pub size: u32,
    /// Index of the packet, 24 bits.
    pub packet: u32,
    /// Packets of the response that may come unasked; 0 in a RESPONSE_PART.
    pub grant: u8,
}

impl Part {
    /// Parses the fields behind the common header and gives what the extension block says and the
    /// payload.
    ///
    /// # Errors
    /// [`Malformed`] when the frame is too short or its extension block is.
    #[inline]
    pub fn parse(flags: Flags, rest: &[u8]) -> Result<(Self, Extensions, &[u8]), Malformed> {
        let Some((fields, rest)) = rest.split_first_chunk::<FIELDS_BYTES>() else {
            return Err(Malformed("shorter than a part header"));
        };
        let word = u64::from_le_bytes(*fields);
        let part = Self {
            size: word as u32,
            packet: (word >> 32) as u32 & 0xFF_FFFF,
            grant: (word >> 56) as u8,
        };
        let (extensions, payload) = read_extensions(flags, rest)?;
        Ok((part, extensions, payload))
    }

    /// The fields as one word, which goes out in little-endian order.
    #[inline]
    pub fn word(&self) -> u64 {
        debug_assert!(self.packet < 1 << 24);
        u64::from(self.size) | u64::from(self.packet) << 32 | u64::from(self.grant) << 56
    }

    /// The whole header of a part as words: the common header, and the fields.
    #[inline]
    pub fn words(&self, [first, second]: [u64; 2]) -> [u64; 3] {
        [first, second, self.word()]
    }

    /// The whole header of a part as bytes.
    #[inline]
    pub fn encode(&self, header: [u64; 2]) -> [u8; PART_HEADER_BYTES] {
        to_bytes(self.words(header))
    }
}
