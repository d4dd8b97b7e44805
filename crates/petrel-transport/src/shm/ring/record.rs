//! The layout of a record: a header word, the frame, and padding to the alignment.
//!
//! | bits of the header | meaning |
//! | --- | --- |
//! | 0 to 30 | length of the frame in bytes, or [`SKIP`] |
//! | 31 | [`LAST`] |
//! | 32 to 63 | the record's position in units of [`RECORD_ALIGN`], truncated |
//!
//! The position serves as a check: a consumer and a producer that disagree about where records
//! start, or bytes left from the last round, do not pass for a record. No header is
//! [`NOTHING`], as a length is at least 1.

/// Bytes of a record's header.
pub const RECORD_HEADER_BYTES: usize = 8;

/// Records start at multiples of this many bytes, a cache line: a small frame and its header are
/// one line, and the consumer looks for the next record in a line that it does not read otherwise.
pub const RECORD_ALIGN: usize = 64;

/// What stands in place of the header where no record is yet.
pub(super) const NOTHING: u64 = 0;

/// Marks the last record of those that were published together.
pub(super) const LAST: u64 = 1 << 31;

const LENGTH_MASK: u32 = LAST as u32 - 1;

/// The length that says: nothing more before the end of the ring.
const SKIP: u32 = LENGTH_MASK;

const _: () = assert!(RECORD_ALIGN.is_power_of_two() && RECORD_ALIGN >= RECORD_HEADER_BYTES);

/// The largest frame for a ring of `capacity` bytes: with half of the ring, an empty ring takes any
/// record, even where one has to skip to the start first. What is skipped is at least a line
/// shorter than the record, which leaves one for the mark of an end behind it.
pub const fn max_frame_limit(capacity: usize) -> usize {
    capacity / 2 - RECORD_HEADER_BYTES
}

/// What a frame of `length` bytes takes in the ring.
#[inline]
pub(super) fn record_bytes(length: usize) -> usize {
    // A sum and a mask; `next_multiple_of` would compare too.
    (RECORD_HEADER_BYTES + length + RECORD_ALIGN - 1) & !(RECORD_ALIGN - 1)
}

/// What a record's header says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Header {
    Frame { length: usize },
    Skip,
}

impl Header {
    #[inline]
    pub(super) fn encode(self, position: u64) -> u64 {
        let length = match self {
            Header::Frame { length } => length as u32,
            Header::Skip => SKIP,
        };
        debug_assert!(position.is_multiple_of(RECORD_ALIGN as u64) && length <= LENGTH_MASK);
        u64::from(length) | Self::check_bits(position)
    }

    /// The upper half of a header at this position: positions have no bits below the alignment.
    #[inline]
    pub(super) fn check_bits(position: u64) -> u64 {
        position << (32 - RECORD_ALIGN.trailing_zeros())
    }
}

/// The position by a header's check: enough of it to find the record in the ring.
#[inline]
pub(super) fn position(word: u64) -> u64 {
    (word >> 32) * RECORD_ALIGN as u64
}
