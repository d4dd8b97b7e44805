//! Extension blocks (`docs/wire-protocol.md` §3.4). Version 1 sends the deadline of a request, heeds
//! it, and skips all else that comes.

use super::{Flags, Malformed};
use crate::limits::DEADLINE_BLOCK_BYTES;

/// Types from here on must be understood by the receiver.
const CRITICAL: u8 = 128;

/// The type of a deadline, and the length of its value.
const DEADLINE: u8 = 2;
const DEADLINE_BYTES: u8 = 4;

/// What version 1 heeds of an extension block.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Extensions {
    /// Microseconds that were left until the request's deadline when the frame was sent.
    pub deadline_us: Option<u32>,
}

/// Reads the extension block, if the flags say that there is one, and gives what follows it.
///
/// # Errors
/// [`Malformed`] when the block is cut short, its records do not fill it or have a wrong length, or
/// one of them is critical: this version knows none.
#[inline]
pub fn read_extensions(flags: Flags, rest: &[u8]) -> Result<(Extensions, &[u8]), Malformed> {
    if flags.extended() { read_block(rest) } else { Ok((Extensions::default(), rest)) }
}

/// [`read_extensions`] where nothing in the block means anything.
///
/// # Errors
/// As [`read_extensions`].
#[inline]
pub fn skip_extensions(flags: Flags, rest: &[u8]) -> Result<&[u8], Malformed> {
    read_extensions(flags, rest).map(|(_, rest)| rest)
}

/// The block that says only how many microseconds are left, as the word that follows a header.
#[inline]
pub fn deadline_word(left_us: u32) -> u64 {
    DEADLINE_HEAD | u64::from(left_us) << 32
}

/// The microseconds that are left, if the word that follows a header is a block that says only that.
#[inline]
pub(crate) fn word_left_us(word: u64) -> Option<u32> {
    (word as u32 == DEADLINE_HEAD as u32).then_some((word >> 32) as u32)
}

/// The block's length, and the record's type and length.
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
