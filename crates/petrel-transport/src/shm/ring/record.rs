//! The layout of a record: a header word, the frame, and padding to the alignment.
//!
//! | bits of the header | meaning |
//! | --- | --- |
//! | 0 to 31 | length of the frame in bytes, or [`SKIP`] |
//! | 32 to 63 | the record's position in units of 8 bytes, truncated |
//!
//! The position serves as a check: a consumer and a producer that disagree about where records
//! start, or bytes left from the last round, do not pass for a record.

/// Bytes of a record's header.
pub const RECORD_HEADER_BYTES: usize = 8;

/// Records start at multiples of this many bytes. With 8, a small frame shares cache lines with its
/// neighbours, which costs nothing in a batch; 64 would give each record lines of its own.
pub(super) const RECORD_ALIGN: usize = 8;

/// The length that says: nothing more before the end of the ring.
const SKIP: u32 = u32::MAX;

const _: () = assert!(RECORD_ALIGN.is_power_of_two() && RECORD_ALIGN >= RECORD_HEADER_BYTES);

/// The largest frame for a ring of `capacity` bytes: with half of the ring, an empty ring takes any
/// record, even where one has to skip to the start first.
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
        debug_assert!(position.is_multiple_of(8));
        // The check in the upper half: positions have no lower three bits.
        u64::from(length) | position << 29
    }
}

/// What the upper half of a header at this position holds.
#[inline]
pub(super) fn check(position: u64) -> u64 {
    u64::from((position / 8) as u32)
}
