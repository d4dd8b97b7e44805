//! Marks by which a reply shows that it is the reply to this call, at next to no cost.
//!
//! To compare every byte of 8 MiB takes as long as to send them, and a small message's comparison a
//! fifth of a call. So a benchmark writes the number of the call into a few places: into both ends of
//! a small message, into every 8 KiB of a large one, or into every KiB where packets get lost. A
//! reply to another call, a message cut short, packets of an earlier call and packets in each other's
//! place are noticed; a flipped bit elsewhere is not, which is what `petrel ping` and `petrel demo` are
//! for: they compare every byte.

/// Distance of the stamps in a large message, in bytes: each packet of a jumbo frame has one, and
/// reading them takes a hundredth of the time that the message travels.
pub(crate) const SPARSE: usize = 8 << 10;

/// The same so that each packet of an Ethernet frame has one.
pub(crate) const DENSE: usize = 1 << 10;

const STAMP_BYTES: usize = 8;

/// What stamps of neighbouring places differ by: the golden ratio of 2^64.
const STEP: u64 = 0x9e37_79b9_7f4a_7c15;

/// Marks both ends of a message; one shorter than a stamp carries its lowest bytes.
#[inline]
pub(crate) fn write_ends(bytes: &mut [u8], stamp: u64) {
    let stamp = stamp.to_le_bytes();
    if let Some(first) = bytes.first_chunk_mut() {
        *first = stamp;
    }
    match bytes.last_chunk_mut() {
        Some(last) => *last = stamp,
        None => bytes.copy_from_slice(&stamp[..bytes.len()]),
    }
}

/// Whether both ends carry the mark.
#[inline]
pub(crate) fn are_at_ends(bytes: &[u8], stamp: u64) -> bool {
    let stamp = stamp.to_le_bytes();
    match (bytes.first_chunk(), bytes.last_chunk()) {
        // The last stamp was written over the first where they overlap.
        (Some(first), Some(last)) => *last == stamp && (bytes.len() < 16 || *first == stamp),
        _ => *bytes == stamp[..bytes.len()],
    }
}

/// Marks a message at such distances.
pub(crate) fn write_all(bytes: &mut [u8], stamp: u64, every: usize) {
    for (block, mark) in bytes.chunks_mut(every).zip(marks(stamp)) {
        if let Some(place) = block.first_chunk_mut() {
            *place = mark.to_le_bytes();
        }
    }
}

/// The sum of a message's marks, each weighted by its place, so that none is taken for another.
pub(crate) fn sum(bytes: &[u8], every: usize) -> u64 {
    let words = bytes.chunks(every).filter_map(|block| block.first_chunk());
    weighted(words.map(|word| u64::from_le_bytes(*word)))
}

/// The sum of a message of that size with the marks of that stamp.
pub(crate) fn expected(size: usize, stamp: u64, every: usize) -> u64 {
    let count = size / every + usize::from(size % every >= STAMP_BYTES);
    weighted(marks(stamp).take(count))
}

/// The marks of a message, in order: each tells its place too.
fn marks(stamp: u64) -> impl Iterator<Item = u64> {
    std::iter::successors(Some(stamp), |mark| Some(mark.wrapping_add(STEP)))
}

fn weighted(words: impl Iterator<Item = u64>) -> u64 {
    let numbered = words.zip(1u64..);
    numbered.fold(0, |sum, (word, place)| sum.wrapping_add(word.wrapping_mul(2 * place + 1)))
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
