//! CREDIT, PULL and CANCEL frames (`docs/wire-protocol.md` §3.1).

use super::header::to_bytes;
use super::{Flags, Malformed, Order, skip_extensions};
use crate::bitmap::Words;
use crate::limits::{BITMAP_WORDS, CONTROL_FRAME_BYTES_MAX, HEADER_BYTES};

/// The bytes of a control frame, and the frame's length.
pub(crate) type ControlBytes = ([u8; CONTROL_FRAME_BYTES_MAX], usize);

/// The server's acknowledgement of request packets.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Credit {
    /// The server has received all packets below this index.
    pub cumulative: u32,
    /// The packet that arrived last.
    pub echo: u32,
    /// Bit *i* is set if packet `cumulative + i` has arrived.
    pub bitmap: Words,
}

impl Credit {
    /// Parses the bytes behind the common header.
    ///
    /// # Errors
    /// [`Malformed`] if the bytes are too few or the bitmap is not valid.
    #[inline]
    pub fn parse(flags: Flags, rest: &[u8]) -> Result<Self, Malformed> {
        let Some((fields, rest)) = rest.split_first_chunk::<8>() else {
            return Err(Malformed("shorter than a CREDIT"));
        };
        let word = u64::from_le_bytes(*fields);
        let bitmap = parse_bitmap(skip_extensions(flags, rest)?)?;
        Ok(Self { cumulative: word as u32, echo: (word >> 32) as u32, bitmap })
    }

    /// Returns the whole frame as bytes.
    // Inlined: a server writes one for every burst, and marks have a second caller.
    #[inline(always)]
    pub fn encode(&self, header: [u64; 2]) -> ControlBytes {
        let word = u64::from(self.cumulative) | u64::from(self.echo) << 32;
        encode(header, [word], &self.bitmap)
    }
}

/// The client's acknowledgement of response packets, with a limit and a request for repetitions.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Pull {
    /// The client has received all packets below this index.
    pub cumulative: u32,
    /// The server may send packets below this index.
    pub limit: u32,
    /// The server is to send missing packets below this index again.
    pub resend_below: u32,
    /// Bit *i* is set if packet `cumulative + i` has arrived.
    pub bitmap: Words,
}

impl Pull {
    /// Parses the bytes behind the common header.
    ///
    /// # Errors
    /// [`Malformed`] if the bytes are too few or the bitmap is not valid.
    #[inline]
    pub fn parse(flags: Flags, rest: &[u8]) -> Result<Self, Malformed> {
        let Some((fields, rest)) = rest.split_first_chunk::<16>() else {
            return Err(Malformed("shorter than a PULL"));
        };
        let word = u128::from_le_bytes(*fields);
        let bitmap = parse_bitmap(skip_extensions(flags, rest)?)?;
        Ok(Self {
            cumulative: word as u32,
            limit: (word >> 32) as u32,
            resend_below: (word >> 64) as u32,
            bitmap,
        })
    }

    /// Returns the whole frame as bytes.
    pub fn encode(&self, header: [u64; 2]) -> ControlBytes {
        let first = u64::from(self.cumulative) | u64::from(self.limit) << 32;
        encode(header, [first, u64::from(self.resend_below)], &self.bitmap)
    }

    /// Returns the frame of a PULL before the response with the call's place in the order; the header has the flag
    /// of the extension.
    pub(crate) fn encode_in_order(&self, header: [u64; 2], order: Order) -> ControlBytes {
        assert!(self.bitmap == Words::default(), "an order goes with a PULL before the response");
        let (mut bytes, at) = self.encode(header);
        let (block, len) = order.block(None);
        bytes[at..at + len].copy_from_slice(&block[..len]);
        (bytes, at + len)
    }
}

/// Checks that a CANCEL has no payload behind its common header.
///
/// # Errors
/// [`Malformed`] if a payload is present.
pub fn check_cancel(flags: Flags, rest: &[u8]) -> Result<(), Malformed> {
    match skip_extensions(flags, rest)? {
        [] => Ok(()),
        _ => Err(Malformed("CANCEL with a payload")),
    }
}

/// Checks that a PROBE has no payload behind its common header.
///
/// # Errors
/// [`Malformed`] if a payload is present.
pub fn check_probe(flags: Flags, rest: &[u8]) -> Result<(), Malformed> {
    match skip_extensions(flags, rest)? {
        [] => Ok(()),
        _ => Err(Malformed("PROBE with a payload")),
    }
}

fn parse_bitmap(rest: &[u8]) -> Result<Words, Malformed> {
    let mut words = Words::default();
    let (chunks, remainder) = rest.as_chunks::<8>();
    if !remainder.is_empty() || chunks.len() > BITMAP_WORDS {
        return Err(Malformed("bitmap of a wrong length"));
    }
    for (word, chunk) in words.iter_mut().zip(chunks) {
        *word = u64::from_le_bytes(*chunk);
    }
    if words[0] & 1 == 1 {
        return Err(Malformed("bit 0 of a bitmap is set"));
    }
    Ok(words)
}

fn encode<const N: usize>(header: [u64; 2], fields: [u64; N], bitmap: &Words) -> ControlBytes {
    let mut bytes = [0; CONTROL_FRAME_BYTES_MAX];
    bytes[..HEADER_BYTES].copy_from_slice(&to_bytes::<2, HEADER_BYTES>(header));
    let used = BITMAP_WORDS - bitmap.iter().rev().take_while(|word| **word == 0).count();
    let mut at = HEADER_BYTES;
    for word in fields.iter().chain(&bitmap[..used]) {
        bytes[at..at + 8].copy_from_slice(&word.to_le_bytes());
        at += 8;
    }
    (bytes, at)
}
