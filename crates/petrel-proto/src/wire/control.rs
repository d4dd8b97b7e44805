//! CREDIT, PULL and CANCEL frames (`docs/wire-protocol.md` §3.1).

use super::header::to_bytes;
use super::{Flags, Malformed, skip_extensions};
use crate::bitmap::Words;
use crate::limits::{BITMAP_WORDS, CONTROL_FRAME_BYTES_MAX, HEADER_BYTES};

/// A control frame as bytes, with the length that counts.
pub(crate) type ControlBytes = ([u8; CONTROL_FRAME_BYTES_MAX], usize);

/// Which packets of a request the server has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Credit {
    /// All packets below this.
    pub cumulative: u32,
    /// The packet that came last.
    pub echo: u32,
    /// Bit *i*: packet `cumulative + i`.
    pub bitmap: Words,
}

impl Credit {
    /// Parses what follows the common header.
    ///
    /// # Errors
    /// [`Malformed`] when it is too short or its bitmap is not.
    #[inline]
    pub fn parse(flags: Flags, rest: &[u8]) -> Result<Self, Malformed> {
        let Some((fields, rest)) = rest.split_first_chunk::<8>() else {
            return Err(Malformed("shorter than a CREDIT"));
        };
        let word = u64::from_le_bytes(*fields);
        let bitmap = parse_bitmap(skip_extensions(flags, rest)?)?;
        Ok(Self { cumulative: word as u32, echo: (word >> 32) as u32, bitmap })
    }

    /// The whole frame as bytes.
    pub fn encode(&self, header: [u64; 2]) -> ControlBytes {
        let word = u64::from(self.cumulative) | u64::from(self.echo) << 32;
        encode(header, [word], &self.bitmap)
    }
}

/// Which packets of a response the client has, wants and allows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Pull {
    /// All packets below this have come.
    pub cumulative: u32,
    /// Packets below this may be sent.
    pub limit: u32,
    /// Packets below this that have not come are to be sent again.
    pub resend_below: u32,
    /// Bit *i*: packet `cumulative + i` has come.
    pub bitmap: Words,
}

impl Pull {
    /// Parses what follows the common header.
    ///
    /// # Errors
    /// [`Malformed`] when it is too short or its bitmap is not.
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

    /// The whole frame as bytes.
    pub fn encode(&self, header: [u64; 2]) -> ControlBytes {
        let first = u64::from(self.cumulative) | u64::from(self.limit) << 32;
        encode(header, [first, u64::from(self.resend_below)], &self.bitmap)
    }
}

/// Checks what follows the common header of a CANCEL: nothing does.
///
/// # Errors
/// [`Malformed`] when something does.
pub fn check_cancel(flags: Flags, rest: &[u8]) -> Result<(), Malformed> {
    match skip_extensions(flags, rest)? {
        [] => Ok(()),
        _ => Err(Malformed("CANCEL with a payload")),
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
