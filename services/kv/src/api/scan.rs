//! SCAN: the keys of a range, in order.

use super::{Consistency, Refusal};
use crate::limits::{SCAN_BYTES_MAX, SCAN_PAIRS_MAX};
use crate::wire::{DecodeError, Reader, Write, messages, read_optional_key, write_optional_key};

/// Reads the keys of a range.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ScanRequest<'a> {
    /// How fresh the answer must be.
    pub consistency: Consistency,
    /// The lower bound of the range, included. Empty: from the beginning.
    pub from: &'a [u8],
    /// The upper bound of the range, excluded. None: to the end.
    pub until: Option<&'a [u8]>,
    /// Most pairs in the answer: at least 1. The server may return fewer, and then reports the next key.
    pub pairs_max: u32,
    /// Most bytes of encoded pairs in the answer. A larger first pair comes alone.
    pub bytes_max: u32,
}

/// The answer to a [`ScanRequest`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ScanReply<'a> {
    /// A part of the range.
    Pairs {
        /// The first pairs of the range.
        pairs: Pairs<'a>,
        /// The key to continue from, if the range has more.
        next: Option<&'a [u8]>,
    },
    /// The request was not served.
    Refused(Refusal<'a>),
}

/// A key, its revision and its value.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Pair<'a> {
    /// The key.
    pub key: &'a [u8],
    /// The log index of the command that last set the key.
    pub revision: u64,
    /// Its value.
    pub value: &'a [u8],
}

/// The encoded pairs of a reply, checked to be complete.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Pairs<'a> {
    count: u32,
    encoded: &'a [u8],
}

/// Pairs under construction, in their encoding.
#[derive(Debug, Clone, Default)]
pub struct PairsBuffer {
    count: u32,
    encoded: Vec<u8>,
}

const PAIRS: u8 = 1;

messages!(ScanRequest<'a>, ScanReply<'a>);

impl<'a> ScanRequest<'a> {
    fn write(&self, out: &mut Vec<u8>) {
        self.consistency.write(out);
        out.put_u32(self.pairs_max);
        out.put_u32(self.bytes_max);
        out.put_key(self.from);
        write_optional_key(self.until, out);
    }

    fn read(reader: &mut Reader<'a>) -> Result<Self, DecodeError> {
        let consistency = Consistency::read(reader)?;
        let pairs_max = reader.u32("most pairs")?;
        if pairs_max == 0 {
            return Err(DecodeError::OutOfRange("most pairs"));
        }
        let bytes_max = reader.u32("most bytes")?;
        let (from, until) = (reader.bound()?, read_optional_key(reader)?);
        Ok(ScanRequest { consistency, from, until, pairs_max, bytes_max })
    }

    /// Appends the reply to this request. `pairs` must be the pairs of the range in order. The reply has as many of
    /// them as the limits of request and server allow, and the key of the next pair.
    pub fn answer<'p>(&self, pairs: impl Iterator<Item = Pair<'p>>, out: &mut Vec<u8>) {
        let pairs_max = self.pairs_max.min(SCAN_PAIRS_MAX);
        let bytes_max = self.bytes_max.min(SCAN_BYTES_MAX) as usize;
        out.put_u8(PAIRS);
        let count_at = out.len();
        out.put_u32(0);
        let start = out.len();
        let mut count = 0;
        let mut next = None;
        for pair in pairs {
            let full = out.len() - start + pair.encoded_bytes() > bytes_max;
            if count == pairs_max || (full && count > 0) {
                next = Some(pair.key);
                break;
            }
            pair.write(out);
            count += 1;
        }
        out[count_at..start].copy_from_slice(&count.to_le_bytes());
        write_optional_key(next, out);
    }
}

impl<'a> ScanReply<'a> {
    fn write(&self, out: &mut Vec<u8>) {
        match self {
            ScanReply::Pairs { pairs, next } => {
                out.put_u8(PAIRS);
                pairs.write(out);
                write_optional_key(*next, out);
            }
            ScanReply::Refused(refusal) => refusal.encode(out),
        }
    }

    fn read(reader: &mut Reader<'a>) -> Result<Self, DecodeError> {
        Ok(match reader.u8("reply")? {
            PAIRS => {
                ScanReply::Pairs { pairs: Pairs::read(reader)?, next: read_optional_key(reader)? }
            }
            kind => ScanReply::Refused(Refusal::read(kind, reader)?),
        })
    }
}

impl<'a> Pairs<'a> {
    /// The number of pairs.
    pub fn len(&self) -> usize {
        self.count as usize
    }

    /// Returns true if there are no pairs.
    pub fn is_empty(&self) -> bool {
        self.count == 0
    }

    /// The pairs, in the order of their keys.
    pub fn iter(&self) -> impl Iterator<Item = Pair<'a>> + use<'a> {
        let mut reader = Reader::new(self.encoded);
        (0..self.count)
            .map(move |_| Pair::read(&mut reader).expect("was read once when it was made"))
    }

    pub(crate) fn write(&self, out: &mut Vec<u8>) {
        out.put_u32(self.count);
        out.extend_from_slice(self.encoded);
    }

    pub(crate) fn read(reader: &mut Reader<'a>) -> Result<Pairs<'a>, DecodeError> {
        let count = reader.u32("pairs")?;
        let start = reader.rest();
        // Every pair takes bytes, and the message's length therefore bounds this loop.
        for _ in 0..count {
            Pair::read(reader)?;
        }
        let encoded = &start[..start.len() - reader.rest().len()];
        Ok(Pairs { count, encoded })
    }
}

impl PairsBuffer {
    /// Appends a pair.
    ///
    /// # Panics
    ///
    /// If the key or value is longer than its [limit](crate::limits).
    pub fn push(&mut self, pair: &Pair<'_>) {
        pair.write(&mut self.encoded);
        self.count += 1;
    }

    /// Bytes of the encoded pairs.
    pub fn bytes(&self) -> usize {
        self.encoded.len()
    }

    /// The pairs pushed until now.
    pub fn pairs(&self) -> Pairs<'_> {
        Pairs { count: self.count, encoded: &self.encoded }
    }

    /// Removes all pairs.
    pub fn clear(&mut self) {
        self.count = 0;
        self.encoded.clear();
    }
}

impl<'a> Pair<'a> {
    /// Bytes of the pair in a reply or in a snapshot.
    pub(crate) fn encoded_bytes(&self) -> usize {
        2 + self.key.len() + 8 + 4 + self.value.len()
    }

    pub(crate) fn write(&self, out: &mut Vec<u8>) {
        out.put_key(self.key);
        out.put_u64(self.revision);
        out.put_value(self.value);
    }

    pub(crate) fn read(reader: &mut Reader<'a>) -> Result<Pair<'a>, DecodeError> {
        Ok(Pair { key: reader.key()?, revision: reader.u64("revision")?, value: reader.value()? })
    }
}
