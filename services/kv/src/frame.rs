//! Frames of files: a length and a check before the content.
//!
//! ```text
//! frame = length u32 | check of length and content u32 | content
//! ```

use std::io::{self, Read, Write};

/// Bytes before the content.
pub(crate) const HEADER_BYTES: usize = 8;

/// Most bytes of a frame's content. A single record of an image may be longer than a chunk.
const CONTENT_BYTES_MAX: usize = 8 << 20;

/// Writes a frame.
pub(crate) fn write_frame(out: &mut impl Write, content: &[u8]) -> io::Result<()> {
    let length = (content.len() as u32).to_le_bytes();
    let check = check(length, content).to_le_bytes();
    out.write_all(&[length, check].concat())?;
    out.write_all(content)
}

/// Reads a frame, and returns the content.
///
/// # Errors
/// `UnexpectedEof` or `InvalidData` if the frame is cut, or differs from the written one.
pub(crate) fn read_frame(input: &mut impl Read) -> io::Result<Vec<u8>> {
    let (mut length, mut found) = ([0; 4], [0; 4]);
    input.read_exact(&mut length)?;
    input.read_exact(&mut found)?;
    let bytes = u32::from_le_bytes(length) as usize;
    let mut content = Vec::new();
    input.take(bytes.min(CONTENT_BYTES_MAX) as u64).read_to_end(&mut content)?;
    if content.len() < bytes || check(length, &content).to_le_bytes() != found {
        let what = "a frame is cut, or its check does not match";
        return Err(io::Error::new(io::ErrorKind::InvalidData, what));
    }
    Ok(content)
}

fn check(length: [u8; 4], content: &[u8]) -> u32 {
    let mut hasher = crc32fast::Hasher::new();
    hasher.update(&length);
    hasher.update(content);
    hasher.finalize()
}
