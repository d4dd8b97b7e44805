//! Messages whose every piece identifies the call: each word has the number of the call and its own place.

use petrel::MsgBuf;

/// Fills buffers after their return.
pub(crate) const OVERWRITE: u8 = 0xC7;

const WORD_BYTES: usize = 8;

fn byte(call: u32, place: usize) -> u8 {
    let word = u64::from(call) << 32 | (place / WORD_BYTES) as u64;
    word.to_le_bytes()[place % WORD_BYTES]
}

/// Writes the message of a call.
pub(crate) fn fill(call: u32, message: &mut [u8]) {
    message.iter_mut().enumerate().for_each(|(place, to)| *to = byte(call, place));
}

/// Returns true if `part` equals the bytes of a call's message from `offset` on.
pub(crate) fn is_part(call: u32, offset: usize, part: &[u8]) -> bool {
    part.iter().zip(offset..).all(|(&is, place)| is == byte(call, place))
}

/// Returns the call whose message begins with `beginning`.
pub(crate) fn call_of(beginning: &[u8]) -> Option<u32> {
    beginning.get(4..WORD_BYTES)?.first_chunk().map(|bytes| u32::from_le_bytes(*bytes))
}

/// Overwrites a returned buffer, as an application may.
pub(crate) fn overwrite(buffer: &mut MsgBuf) {
    buffer.storage_mut().fill(OVERWRITE);
}
