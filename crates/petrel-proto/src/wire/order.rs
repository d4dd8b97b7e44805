//! The extension *order* of a request (`docs/wire-protocol.md` §14.6): the call's place among the calls of its
//! session.

use super::extension::find_record;
use super::{Flags, Malformed, deadline_word};
use crate::limits::{
    DEADLINE_BLOCK_BYTES, DEADLINE_ORDER_BLOCK_BYTES, ORDER_BLOCK_BYTES, ORDER_WINDOW_CALLS,
};

/// The type of the record, and the length of the value.
const ORDER: u8 = 6;
const ORDER_BYTES: usize = 8;

/// The bit of the first word that makes a call wait for all earlier calls.
const SYNCHRONISES: u32 = 1 << 31;

/// The bits of a sequence: numbers are modulo 2³¹.
pub(crate) const SEQUENCE_MASK: u32 = SYNCHRONISES - 1;

/// Returns how far `sequence` is ahead of another, modulo 2³¹: more than half of all numbers for one before it.
pub(crate) const fn sequence_ahead(of: u32, sequence: u32) -> u32 {
    sequence.wrapping_sub(of) & SEQUENCE_MASK
}

/// The place of a call among the calls of its session.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Order {
    /// The number of the call in its session, modulo 2³¹.
    pub sequence: u32,
    /// True if the call runs only after all calls with lower sequences.
    pub synchronises: bool,
    /// All calls below this sequence had ended at the client when the frame was sent, modulo 2³¹.
    pub ended: u32,
}

impl Order {
    /// Reads the record from the bytes behind the fixed fields of a REQUEST, REQUEST_PART or PULL. Returns
    /// `None` without a record; of several records the last one counts.
    ///
    /// # Errors
    /// [`Malformed`] if the block is not valid, the record has a wrong length, or the sequence is too far from
    /// the calls that have ended.
    pub fn read(flags: Flags, rest: &[u8]) -> Result<Option<Self>, Malformed> {
        find_record(flags, rest, ORDER)?.0.map(Self::parse).transpose()
    }

    fn parse(value: &[u8]) -> Result<Self, Malformed> {
        let value: [u8; ORDER_BYTES] =
            value.try_into().map_err(|_| Malformed("order of a wrong length"))?;
        let word = u64::from_le_bytes(value);
        let (first, ended) = (word as u32, (word >> 32) as u32);
        let order = Self {
            sequence: first & !SYNCHRONISES,
            synchronises: first & SYNCHRONISES != 0,
            ended,
        };
        if order.is_possible() { Ok(order) } else { Err(Malformed("order out of range")) }
    }

    /// Returns true if the numbers have 31 bits, and the call is within the window of unfinished calls.
    pub const fn is_possible(self) -> bool {
        let ahead = sequence_ahead(self.ended, self.sequence);
        (self.sequence | self.ended) < SYNCHRONISES && ahead < ORDER_WINDOW_CALLS
    }

    /// Returns an extension block with the order behind a deadline, if there is one, and the block's length.
    pub fn block(self, deadline_us: Option<u32>) -> ([u8; DEADLINE_ORDER_BLOCK_BYTES], usize) {
        assert!(self.is_possible(), "a call is sent within the window of unfinished calls");
        let mut bytes = [0; DEADLINE_ORDER_BLOCK_BYTES];
        let at = match deadline_us {
            Some(left_us) => {
                let deadline = deadline_word(left_us).to_le_bytes();
                bytes[..DEADLINE_BLOCK_BYTES].copy_from_slice(&deadline);
                DEADLINE_BLOCK_BYTES
            }
            None => 2,
        };
        let end = at + 2 + ORDER_BYTES;
        let first = self.sequence | if self.synchronises { SYNCHRONISES } else { 0 };
        let value = u64::from(first) | u64::from(self.ended) << 32;
        bytes[0] = end as u8 - 2;
        bytes[at..at + 2].copy_from_slice(&[ORDER, ORDER_BYTES as u8]);
        bytes[at + 2..end].copy_from_slice(&value.to_le_bytes());
        (bytes, end)
    }
}

const _: () = assert!(2 + 2 + ORDER_BYTES == ORDER_BLOCK_BYTES);
const _: () = assert!(ORDER_BLOCK_BYTES < DEADLINE_ORDER_BLOCK_BYTES);
