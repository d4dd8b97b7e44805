//! Extension blocks (`docs/wire-protocol.md` §3.4). Version 1 sends the deadline of a request, uses received
//! deadlines, and skips all other records.

use super::{Flags, Malformed};
use crate::limits::DEADLINE_BLOCK_BYTES;

/// Receivers must understand the types from this value on.
const CRITICAL: u8 = 128;

/// The type of a deadline record, and the length of the value.
const DEADLINE: u8 = 2;
const DEADLINE_BYTES: u8 = 4;

/// The records of an extension block that version 1 uses.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Extensions {
    /// Microseconds left until the request's deadline when the frame was sent.
    pub deadline_us: Option<u32>,
}

/// Reads the extension block, if the flags announce one. Returns the contents and the bytes behind the block.
///
/// # Errors
/// [`Malformed`] if the block is cut short, has a critical record (unknown to this version), or if
/// records have a wrong length or do not fill the block.
#[inline]
pub fn read_extensions(flags: Flags, rest: &[u8]) -> Result<(Extensions, &[u8]), Malformed> {
    if flags.extended() { read_block(rest) } else { Ok((Extensions::default(), rest)) }
}

/// Like [`read_extensions`], for frames in which no extension has a meaning. Returns the bytes behind the
/// block.
///
/// # Errors
/// As [`read_extensions`].
#[inline]
pub fn skip_extensions(flags: Flags, rest: &[u8]) -> Result<&[u8], Malformed> {
    read_extensions(flags, rest).map(|(_, rest)| rest)
}

/// Returns the word, following a header, of a block with a deadline alone.
#[inline]
pub fn deadline_word(left_us: u32) -> u64 {
    DEADLINE_HEAD | u64::from(left_us) << 32
}

/// Returns the microseconds left, if the word behind a header is a block with a deadline alone.
#[inline]
pub(crate) fn word_left_us(word: u64) -> Option<u32> {
    (word as u32 == DEADLINE_HEAD as u32).then_some((word >> 32) as u32)
}

/// The constant half of such a word: the block's length, and the record's type and length.
const DEADLINE_HEAD: u64 =
    (DEADLINE_BLOCK_BYTES as u64 - 2) | (DEADLINE as u64) << 16 | (DEADLINE_BYTES as u64) << 24;

#[cold]
fn read_block(rest: &[u8]) -> Result<(Extensions, &[u8]), Malformed> {
    let Some((length, rest)) = rest.split_first_chunk::<2>() else {
        return Err(Malformed("extension block without a length"));
    };
    let Some((mut records, rest)) = rest.split_at_checked(usize::from(u16::from_le_bytes(*length)))
    else {
        return Err(Malformed("extension block cut short"));
    };
    let mut extensions = Extensions::default();
    while let Some((&[kind, length], value)) = records.split_first_chunk::<2>() {
        let Some((value, next)) = value.split_at_checked(usize::from(length)) else {
            return Err(Malformed("extension record cut short"));
        };
        extensions.take(kind, value)?;
        records = next;
    }
    if !records.is_empty() {
        return Err(Malformed("extension records do not fill"));
    }
    Ok((extensions, rest))
}

/// Returns the value of the last record of a type, with the bytes behind the block.
///
/// # Errors
/// As [`read_extensions`].
pub(super) fn find_record(
    flags: Flags,
    rest: &[u8],
    wanted: u8,
) -> Result<(Option<&[u8]>, &[u8]), Malformed> {
    let behind = skip_extensions(flags, rest)?;
    let block = &rest[..rest.len() - behind.len()];
    let mut records = block.get(2..).unwrap_or_default();
    let mut found = None;
    while let Some((&[kind, length], value)) = records.split_first_chunk::<2>() {
        let (value, next) = value.split_at(usize::from(length));
        if kind == wanted {
            found = Some(value);
        }
        records = next;
    }
    Ok((found, behind))
}

impl Extensions {
    fn take(&mut self, kind: u8, value: &[u8]) -> Result<(), Malformed> {
        match kind {
            CRITICAL.. => return Err(Malformed("unknown critical extension")),
            DEADLINE => {
                let Ok(bytes) = value.try_into() else {
                    return Err(Malformed("deadline of a wrong length"));
                };
                self.deadline_us = Some(u32::from_le_bytes(bytes));
            }
            _ => {}
        }
        Ok(())
    }
}
