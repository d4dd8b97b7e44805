//! Records of the log: a body between a head and a check.
//!
//! ```text
//! kind u32, big-endian | length u32 | check of the 8 bytes before u32 | body | check of the body u32 | end u8
//! ```
//!
//! The log drops an incomplete record at its end: a crash cut off the write, and the record was never reported as
//! durable. A damaged record anywhere is an error. The length has a check of its own: a damaged, too large length would
//! make the record look incomplete, and the log would drop all records after it. The end byte is not zero, because some
//! file systems store a file's length before the content. No whole record ends in zeros; a record with zeros up to the
//! file's end therefore counts as incomplete, too.

use std::io::{self, Read, Write};

use codeq::{Decode, Encode};

/// The number that identifies these records. The log uses 5 for its own; the two differ in three bits.
const KIND: u32 = 2;

const HEAD_BYTES: usize = 12;
const TAIL_BYTES: usize = 5;
const END: u8 = 0xA5;

/// Longest body: all uncommitted entries together have at most 256 MiB.
const BODY_BYTES_MAX: usize = 1 << 30;

/// The body of a record.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Record(pub(super) Vec<u8>);

impl Encode for Record {
    fn encode<W: Write>(&self, mut out: W) -> io::Result<usize> {
        let Self(body) = self;
        if body.len() > BODY_BYTES_MAX {
            let message = format!("a record of {} bytes", body.len());
            return Err(io::Error::new(io::ErrorKind::InvalidInput, message));
        }
        out.write_all(&head(body.len()))?;
        out.write_all(body)?;
        out.write_all(&tail(body))?;
        Ok(HEAD_BYTES + body.len() + TAIL_BYTES)
    }

    fn type_id(&self) -> Option<u32> {
        Some(KIND)
    }
}

impl Decode for Record {
    fn decode<R: Read>(mut input: R) -> io::Result<Self> {
        let mut found = [0; HEAD_BYTES];
        input.read_exact(&mut found)?;
        let [.., a, b, c, d, _, _, _, _] = found;
        let length = u32::from_le_bytes([a, b, c, d]) as usize;
        if found != head(length) || length > BODY_BYTES_MAX {
            return Err(broken("the check of a record's head does not match", input));
        }
        let mut body = Vec::new();
        input.by_ref().take(length as u64).read_to_end(&mut body)?;
        let mut found = [0; TAIL_BYTES];
        input.read_exact(&mut found)?;
        if found == tail(&body) {
            return Ok(Self(body));
        }
        let [.., end] = found;
        Err(broken("the check of a record's body does not match", (&[end][..]).chain(input)))
    }
}

fn head(length: usize) -> [u8; HEAD_BYTES] {
    let mut head = [0; HEAD_BYTES];
    head[..4].copy_from_slice(&KIND.to_be_bytes());
    head[4..8].copy_from_slice(&(length as u32).to_le_bytes());
    let check = crc32fast::hash(&head[..8]);
    head[8..].copy_from_slice(&check.to_le_bytes());
    head
}

fn tail(body: &[u8]) -> [u8; TAIL_BYTES] {
    let [a, b, c, d] = crc32fast::hash(body).to_le_bytes();
    [a, b, c, d, END]
}

/// The error for a mismatch. A record whose end was never written is incomplete, not damaged.
fn broken(what: &str, rest: impl Read) -> io::Error {
    match is_zero(rest) {
        Ok(true) => io::Error::new(io::ErrorKind::UnexpectedEof, "a record has no end"),
        Ok(false) => io::Error::new(io::ErrorKind::InvalidData, what),
        Err(error) => error,
    }
}

fn is_zero<R: Read>(mut input: R) -> io::Result<bool> {
    let mut buffer = [0; 4096];
    loop {
        match input.read(&mut buffer)? {
            0 => return Ok(true),
            count if buffer[..count].iter().any(|byte| *byte != 0) => return Ok(false),
            _ => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn encoded(body: &[u8]) -> Vec<u8> {
        let mut bytes = Vec::new();
        let length = Record(body.to_vec()).encode(&mut bytes).unwrap();
        assert_eq!(length, bytes.len());
        bytes
    }

    fn error_of(bytes: &[u8]) -> io::ErrorKind {
        Record::decode(bytes).unwrap_err().kind()
    }

    #[test]
    fn record__round_trips() {
        let bytes = [encoded(b"first"), encoded(b"")].concat();
        let mut input = &bytes[..];
        assert_eq!(Record::decode(&mut input).unwrap().0, b"first");
        assert_eq!(Record::decode(&mut input).unwrap().0, b"");
        assert!(input.is_empty());
    }

    #[test]
    fn record__cut_anywhere_is_incomplete() {
        let bytes = encoded(b"a body");
        for length in 0..bytes.len() {
            assert_eq!(error_of(&bytes[..length]), io::ErrorKind::UnexpectedEof, "{length}");
        }
    }

    #[test]
    fn record__with_a_wrong_bit_is_damaged() {
        let bytes = [encoded(b"a body"), encoded(b"another")].concat();
        for bit in 0..(HEAD_BYTES + b"a body".len() + TAIL_BYTES) * 8 {
            let mut bytes = bytes.clone();
            bytes[bit / 8] ^= 1 << (bit % 8);
            assert_eq!(error_of(&bytes), io::ErrorKind::InvalidData, "bit {bit}");
        }
    }

    #[test]
    fn record__that_ends_in_zeros_is_incomplete_only_at_the_end() {
        let whole = encoded(b"a body");
        for cut in 0..whole.len() {
            let mut bytes = whole.clone();
            bytes[cut..].fill(0);
            assert_eq!(error_of(&bytes), io::ErrorKind::UnexpectedEof, "cut at {cut}");
            bytes.extend([0; 5000]);
            assert_eq!(error_of(&bytes), io::ErrorKind::UnexpectedEof, "cut at {cut}");
            bytes.extend(encoded(b"another"));
            assert_eq!(error_of(&bytes), io::ErrorKind::InvalidData, "cut at {cut}");
        }
    }
}
