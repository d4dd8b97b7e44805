//! The layout of a record: a header word, the frame, and padding to the alignment.
//!
//! | bits of the header | meaning |
//! | --- | --- |
//! | 0 to 30 | length of the frame in bytes, or [`SKIP`] |
//! | 31 | [`LAST`] |
//! | 32 to 63 | the record's position in units of [`RECORD_ALIGN`], truncated |
//!
//! The position serves as a check: bytes left from the last lap do not pass for a record, nor does
//! a record at a place where the consumer expects none. No header is [`NOTHING`], as a length is at
//! least 1.

/// Bytes of a record's header.
pub const RECORD_HEADER_BYTES: usize = 8;

/// Records start at multiples of this many bytes, a cache line. A small frame and the header share
/// a line, and the place that the consumer polls shares no line with an earlier record.
pub const RECORD_ALIGN: usize = 64;

/// The longest frame whose record is one line.
pub(super) const LINE_FRAME_BYTES_MAX: usize = RECORD_ALIGN - RECORD_HEADER_BYTES;

/// The word at the place of a header while there is no record.
pub(super) const NOTHING: u64 = 0;

/// Marks the last record of a publication.
pub(super) const LAST: u64 = 1 << 31;

const LENGTH_MASK: u32 = LAST as u32 - 1;

/// The length that means: no more records before the end of the ring.
const SKIP: u32 = LENGTH_MASK;

const _: () = assert!(RECORD_ALIGN.is_power_of_two() && RECORD_ALIGN >= RECORD_HEADER_BYTES);

/// The largest frame for a ring of `capacity` bytes. With half of the ring, an empty ring accepts
/// any record, even after a skip to the start. The skipped bytes are at least a line shorter than
/// the record, which leaves a line for the mark of an end behind it.
pub const fn max_frame_limit(capacity: usize) -> usize {
    capacity / 2 - RECORD_HEADER_BYTES
}

/// The bytes a frame of `length` bytes occupies in the ring.
#[inline]
pub(super) fn record_bytes(length: usize) -> usize {
    // A sum and a mask; `next_multiple_of` would compare too.
    (RECORD_HEADER_BYTES + length + RECORD_ALIGN - 1) & !(RECORD_ALIGN - 1)
}

/// The meaning of a record's header.
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

/// The position from a header's check: enough bits to find the record in the ring.
#[inline]
pub(super) fn position(word: u64) -> u64 {
    (word >> 32) * RECORD_ALIGN as u64
}
