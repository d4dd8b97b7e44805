//! Stamps by which a reply proves to be the reply to its call, at almost no cost.
//!
//! Comparing every byte of 8 MiB takes as long as sending them, and comparing a small message a fifth of
//! a call. So a benchmark stamps the number of the call into a few places: at the two ends of a small
//! message, in every 8 KiB of a large message, or in every KiB if packets get lost. The stamps detect
//! replies to another call, truncated messages, packets of an earlier call and exchanged packets. They
//! miss a flipped bit elsewhere; `petrel ping` and `petrel demo` compare every byte for that.

/// Distance of the stamps in a large message, in bytes: every packet of a jumbo frame has a stamp, and
/// reading the stamps takes a hundredth of the time to send the message.
pub const SPARSE: usize = 8 << 10;

/// Distance at which every packet of an Ethernet frame has a stamp.
pub const DENSE: usize = 1 << 10;

const STAMP_BYTES: usize = 8;

/// Difference between the stamps of adjacent places: the golden ratio of 2^64.
const STEP: u64 = 0x9e37_79b9_7f4a_7c15;

/// Stamps the two ends of a message; a message shorter than a stamp carries the stamp's lowest bytes.
#[inline]
pub fn write_ends(bytes: &mut [u8], stamp: u64) {
    let stamp = stamp.to_le_bytes();
    if let Some(first) = bytes.first_chunk_mut() {
        *first = stamp;
    }
    match bytes.last_chunk_mut() {
        Some(last) => *last = stamp,
        None => bytes.copy_from_slice(&stamp[..bytes.len()]),
    }
}

/// Returns true if the two ends carry the stamp.
#[inline]
pub fn are_at_ends(bytes: &[u8], stamp: u64) -> bool {
    let stamp = stamp.to_le_bytes();
    match (bytes.first_chunk(), bytes.last_chunk()) {
        // If the ends overlap, the last stamp was written over the first.
        (Some(first), Some(last)) => *last == stamp && (bytes.len() < 16 || *first == stamp),
        _ => *bytes == stamp[..bytes.len()],
    }
}

/// Stamps a message every `every` bytes.
pub fn write_all(bytes: &mut [u8], stamp: u64, every: usize) {
    for (block, mark) in bytes.chunks_mut(every).zip(marks(stamp)) {
        if let Some(start) = block.first_chunk_mut() {
            *start = mark.to_le_bytes();
        }
    }
}

/// Returns the sum of a message's marks. Weights by place make exchanged marks visible.
pub fn sum(bytes: &[u8], every: usize) -> u64 {
    let words = bytes.chunks(every).filter_map(|block| block.first_chunk());
    weighted(words.map(|word| u64::from_le_bytes(*word)))
}

/// Returns the sum of a message of `size` bytes with the marks of `stamp`.
pub fn expected(size: usize, stamp: u64, every: usize) -> u64 {
    let count = size / every + usize::from(size % every >= STAMP_BYTES);
    weighted(marks(stamp).take(count))
}

/// Returns the marks of a message, in order; a mark depends on its place.
fn marks(stamp: u64) -> impl Iterator<Item = u64> {
    std::iter::successors(Some(stamp), |mark| Some(mark.wrapping_add(STEP)))
}

fn weighted(words: impl Iterator<Item = u64>) -> u64 {
    let numbered = words.zip(1u64..);
    numbered.fold(0, |sum, (word, position)| sum.wrapping_add(word.wrapping_mul(2 * position + 1)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ends__of_any_length_carry_the_stamp() {
        for size in 0..40 {
            let mut bytes = vec![0xee; size];
            write_ends(&mut bytes, 0x0102_0304_0506_0708);
            assert!(are_at_ends(&bytes, 0x0102_0304_0506_0708), "{size}");
            assert!(size == 0 || !are_at_ends(&bytes, 0x0102_0304_0506_0709), "{size}");
        }
    }

    #[test]
    fn sum__is_the_expected_one() {
        for size in [0, 1, 7, 8, 1_032, 8_191, 8_192, 8_199, 8_200, 100_000, 8 << 20] {
            for every in [SPARSE, DENSE] {
                let mut bytes = vec![0xee; size];
                write_all(&mut bytes, 77, every);
                assert_eq!(sum(&bytes, every), expected(size, 77, every), "{size}");
            }
        }
    }

    #[test]
    fn sum__notices_a_stale_block_and_exchanged_ones() {
        let message = || {
            let mut bytes = vec![0; 10 * SPARSE];
            write_all(&mut bytes, 5, SPARSE);
            bytes
        };
        let is_right = |bytes: &[u8]| sum(bytes, SPARSE) == expected(bytes.len(), 5, SPARSE);
        assert!(is_right(&message()));
        let mut stale = message();
        stale[3 * SPARSE] -= 1;
        assert!(!is_right(&stale));
        stale[4 * SPARSE] += 1;
        assert!(!is_right(&stale));
        let mut exchanged = message();
        let (before, after) = exchanged.split_at_mut(4 * SPARSE);
        before[3 * SPARSE..].swap_with_slice(&mut after[..SPARSE]);
        assert!(!is_right(&exchanged));
    }
}
