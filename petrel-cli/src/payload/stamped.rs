//! Large messages that differ from call to call at little cost.
//!
//! To write 8 MiB and to compute their checksum takes as long as to send them. So a benchmark of
//! bandwidth fills a buffer once, and before each call writes a stamp into every KiB: each packet
//! of each call is then unlike that of the call before, so that a stale one is noticed. The
//! checksum's sums are linear, so what the stamps add to them is known without reading the
//! message.

use super::Pattern;
use super::checksum::{ROW_BYTES, Sums};

/// Distance of the stamps in bytes: below the smallest packet's payload, and whole rows, so that
/// all stamps are in the first lane.
const STAMP_EVERY: usize = 1024;
const STAMP_BYTES: usize = 8;

const _: () = {
    assert!(STAMP_EVERY.is_multiple_of(ROW_BYTES));
    assert!(STAMP_EVERY < petrel::proto::limits::PACKET_BYTES_MIN as usize);
};

/// What is known about a stamped buffer.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Stamped {
    /// Sums of the buffer with all stamps zero.
    base: Sums,
    /// What a stamp of 1 everywhere adds to the first lane.
    plain_per_stamp: u64,
    weighted_per_stamp: u64,
    length: usize,
}

impl Stamped {
    /// Fills a buffer; it has no valid stamps yet.
    pub(crate) fn fill(bytes: &mut [u8], seed: u64) -> Self {
        Pattern::new(seed, 0).fill(bytes);
        write_stamps(bytes, 0);
        let rows = bytes.len().div_ceil(ROW_BYTES) as u64;
        let weights = stamp_places(bytes.len()).map(|place| rows - (place / ROW_BYTES) as u64);
        Self {
            base: Sums::of(bytes),
            plain_per_stamp: stamp_places(bytes.len()).count() as u64,
            weighted_per_stamp: weights.sum(),
            length: bytes.len(),
        }
    }

    /// Marks the buffer as that of a call.
    pub(crate) fn stamp(&self, bytes: &mut [u8], call: u64) {
        write_stamps(bytes, call);
    }

    /// The checksum of the buffer with the stamps of that call.
    pub(crate) fn checksum(&self, call: u64) -> u64 {
        let mut sums = self.base;
        let add = |sum: u64, times: u64| sum.wrapping_add(times.wrapping_mul(call));
        sums.plain[0] = add(sums.plain[0], self.plain_per_stamp);
        sums.weighted[0] = add(sums.weighted[0], self.weighted_per_stamp);
        sums.finish(self.length)
    }
}

fn stamp_places(length: usize) -> impl Iterator<Item = usize> {
    (0..length).step_by(STAMP_EVERY).filter(move |place| place + STAMP_BYTES <= length)
}

fn write_stamps(bytes: &mut [u8], call: u64) {
    let stamp = call.to_le_bytes();
    for block in bytes.chunks_mut(STAMP_EVERY) {
        if let Some(place) = block.first_chunk_mut() {
            *place = stamp;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::payload::checksum;

    #[test]
    fn checksum__is_that_of_the_stamped_bytes() {
        for size in [0, 1, 7, 8, 63, 1023, 1024, 1031, 1032, 10_000, 65_536] {
            let mut bytes = vec![0; size];
            let stamped = Stamped::fill(&mut bytes, 5);
            for call in [0, 1, 2, 77, u64::MAX] {
                stamped.stamp(&mut bytes, call);
                assert_eq!(stamped.checksum(call), checksum(&bytes), "{size} bytes, call {call}");
            }
        }
    }

    #[test]
    fn stamp__changes_every_kib() {
        let mut bytes = vec![0; 10 << 10];
        let stamped = Stamped::fill(&mut bytes, 5);
        stamped.stamp(&mut bytes, 1);
        let before = bytes.clone();
        stamped.stamp(&mut bytes, 2);
        let blocks = bytes.chunks(1024).zip(before.chunks(1024));
        assert!(blocks.into_iter().all(|(after, before)| after != before));
    }
}
