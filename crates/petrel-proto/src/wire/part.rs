//! The fields of REQUEST_PART and RESPONSE_PART (`docs/wire-protocol.md` §3.1).

use super::header::to_bytes;
use super::{Extensions, Flags, Malformed, read_extensions};
use crate::limits::{HEADER_BYTES, PART_HEADER_BYTES};

const FIELDS_BYTES: usize = PART_HEADER_BYTES - HEADER_BYTES;

#[inline]
pub(crate) fn part_words(head: &[u8; PART_HEADER_BYTES]) -> [u64; 3] {
    let (words, _) = head.as_chunks::<8>();
    std::array::from_fn(|index| u64::from_le_bytes(words[index]))
}

/// The place of a packet in a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Part {
    /// Bytes of the whole message.
    pub size: u32,
    /// Index of the packet, 24 bits.
    pub packet: u32,
    /// Packets of the response that the server may send before a PULL; 0 in a RESPONSE_PART.
    pub grant: u8,
}

impl Part {
    /// Parses the fields behind the common header. Returns the fields, the contents of the extension block,
    /// and the payload.
    ///
    /// # Errors
    /// [`Malformed`] if the frame is too short or the extension block is not valid.
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

    /// Returns the fields as one word, sent in little-endian order.
    #[inline]
    pub fn word(&self) -> u64 {
        assert!(self.packet < 1 << 24, "the packet field of a frame has 24 bits");
        u64::from(self.size) | u64::from(self.packet) << 32 | u64::from(self.grant) << 56
    }

    /// Returns the whole header of a part as words: the common header, and the fields.
    #[inline]
    pub fn words(&self, [first, second]: [u64; 2]) -> [u64; 3] {
        [first, second, self.word()]
    }

    /// Returns the whole header of a part as bytes.
    #[inline]
    pub fn encode(&self, header: [u64; 2]) -> [u8; PART_HEADER_BYTES] {
        to_bytes(self.words(header))
    }
}
