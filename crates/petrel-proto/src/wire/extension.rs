//! Extension blocks (`docs/wire-protocol.md` §3.4). Version 1 sends none and skips what comes.

use super::{Flags, Malformed};

/// Types from here on must be understood by the receiver.
const CRITICAL: u8 = 128;

/// Skips the extension block, if the flags say that there is one, and gives what follows it.
///
/// # Errors
/// [`Malformed`] when the block is cut short, its records do not fill it, or one of them is
/// critical: this version knows none.
#[inline]
pub fn skip_extensions(flags: Flags, rest: &[u8]) -> Result<&[u8], Malformed> {
    if flags.extended() { skip_block(rest) } else { Ok(rest) }
}

#[cold]
fn skip_block(rest: &[u8]) -> Result<&[u8], Malformed> {
    let Some((length, rest)) = rest.split_first_chunk::<2>() else {
        return Err(Malformed("extension block without a length"));
    };
    let Some((mut records, rest)) = rest.split_at_checked(usize::from(u16::from_le_bytes(*length)))
    else {
        return Err(Malformed("extension block cut short"));
    };
    while let Some((&[kind, length], value)) = records.split_first_chunk::<2>() {
        if kind >= CRITICAL {
            return Err(Malformed("unknown critical extension"));
        }
        let Some((_, next)) = value.split_at_checked(usize::from(length)) else {
            return Err(Malformed("extension record cut short"));
        };
        records = next;
    }
    if records.is_empty() { Ok(rest) } else { Err(Malformed("extension records do not fill")) }
}
