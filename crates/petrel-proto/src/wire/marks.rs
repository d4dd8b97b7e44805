//! The extension *marks* of a CREDIT (`docs/wire-protocol.md` §14.3): the packets that met congestion.

use super::extension::find_record;
use super::{Credit, Flags, Malformed};
use crate::bitmap::Words;
use crate::limits::{BITMAP_WORDS, HEADER_BYTES, MARKED_CREDIT_BYTES_MAX};

/// The type of the record.
const MARKS: u8 = 5;

/// Bytes of a CREDIT before its extension block.
const CREDIT_FIXED_BYTES: usize = HEADER_BYTES + 8;

/// The packets of a request that came with the mark *Congestion Experienced* since the last CREDIT.
///
/// On a link of several paths, a client learns from these packets which path is congested; flag E only says
/// that one of the paths is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Marks {
    /// The first marked packet.
    pub from: u32,
    /// Bit *i* is set if packet `from + i` was marked; bit 0 is set.
    pub words: Words,
}

impl Marks {
    /// Reads the record from the bytes behind the common header of a CREDIT. Returns `None` without a record;
    /// of several records the last one counts.
    ///
    /// # Errors
    /// [`Malformed`] if the block is not valid, or the record has a wrong length or no first packet.
    pub fn read(flags: Flags, rest: &[u8]) -> Result<Option<Self>, Malformed> {
        let Some((_, rest)) = rest.split_first_chunk::<8>() else {
            return Err(Malformed("shorter than a CREDIT"));
        };
        find_record(flags, rest, MARKS)?.0.map(Self::parse).transpose()
    }

    fn parse(value: &[u8]) -> Result<Self, Malformed> {
        let wrong_length = Malformed("marks of a wrong length");
        let (from, rest) = value.split_first_chunk().ok_or(wrong_length)?;
        let (chunks, odd) = rest.as_chunks::<8>();
        if !odd.is_empty() || !(1..=BITMAP_WORDS).contains(&chunks.len()) {
            return Err(wrong_length);
        }
        let mut words = Words::default();
        for (word, chunk) in words.iter_mut().zip(chunks) {
            *word = u64::from_le_bytes(*chunk);
        }
        if words[0] & 1 == 0 {
            return Err(Malformed("marks without their first packet"));
        }
        Ok(Self { from: u32::from_le_bytes(*from), words })
    }

    /// Returns true if a packet was marked.
    pub fn contains(&self, packet: u32) -> bool {
        let Some(ahead) = packet.checked_sub(self.from) else { return false };
        self.words.get(ahead as usize / 64).is_some_and(|word| word >> (ahead % 64) & 1 == 1)
    }

    /// Returns the marked packets, ascending. Numbers beyond 2³² − 1 are left out: no message has them.
    pub fn packets(self) -> impl Iterator<Item = u32> {
        let is_set = move |i: &u32| self.words[(i / 64) as usize] >> (i % 64) & 1 == 1;
        (0..64 * BITMAP_WORDS as u32).filter(is_set).filter_map(move |i| self.from.checked_add(i))
    }

    /// Returns a CREDIT with these marks as bytes, and the frame's length. The flags in `header` have X.
    pub fn encode(
        &self,
        credit: &Credit,
        header: [u64; 2],
    ) -> ([u8; MARKED_CREDIT_BYTES_MAX], usize) {
        assert!(Flags((header[0] >> 8) as u8 & 0xF).extended(), "a block is announced by flag X");
        assert!(self.words[0] & 1 == 1, "the first packet of marks is marked");
        let used = BITMAP_WORDS - self.words.iter().rev().take_while(|word| **word == 0).count();
        let value_bytes = 4 + 8 * used;
        let (plain, plain_bytes) = credit.encode(header);
        let (fixed, bitmap) = plain[..plain_bytes].split_at(CREDIT_FIXED_BYTES);
        let mut bytes = [0; MARKED_CREDIT_BYTES_MAX];
        let mut length = 0;
        let mut put = |piece: &[u8]| {
            bytes[length..length + piece.len()].copy_from_slice(piece);
            length += piece.len();
        };
        put(fixed);
        put(&[value_bytes as u8 + 2, 0, MARKS, value_bytes as u8]);
        put(&self.from.to_le_bytes());
        self.words[..used].iter().for_each(|word| put(&word.to_le_bytes()));
        put(bitmap);
        (bytes, length)
    }
}
