//! A checksum at memory speed, which detects changed and exchanged pieces.
//!
//! Eight lanes, one per 8-byte word of a 64-byte row, hold the sum of their words, and the sum of these
//! sums after every row (Fletcher's idea, with 64-bit words). All operations are additions, which the
//! compiler vectorises. The checksum does not detect deliberate forgery.

const LANES: usize = 8;
const WORD_BYTES: usize = 8;
const ROW_BYTES: usize = LANES * WORD_BYTES;

/// Returns the 8-byte checksum of a message, as the method `sink` answers it.
pub fn checksum(bytes: &[u8]) -> u64 {
    Accumulators::of(bytes).finish(bytes.len())
}

/// The sums over whole rows; an incomplete last row is padded with zeros.
#[derive(Clone, Copy, Debug, Default)]
struct Accumulators {
    /// Per lane: the sum of its words.
    plain: [u64; LANES],
    /// Per lane: the sum of `plain` after every row.
    weighted: [u64; LANES],
}

impl Accumulators {
    fn of(bytes: &[u8]) -> Self {
        let mut sums = Self::default();
        let (rows, rest) = bytes.as_chunks();
        rows.iter().for_each(|row| sums.add(row));
        if !rest.is_empty() {
            let mut row = [0; ROW_BYTES];
            row[..rest.len()].copy_from_slice(rest);
            sums.add(&row);
        }
        sums
    }

    #[inline]
    fn add(&mut self, row: &[u8; ROW_BYTES]) {
        let (words, _) = row.as_chunks::<WORD_BYTES>();
        for (lane, word) in words.iter().enumerate() {
            self.plain[lane] = self.plain[lane].wrapping_add(u64::from_le_bytes(*word));
            self.weighted[lane] = self.weighted[lane].wrapping_add(self.plain[lane]);
        }
    }

    /// Mixes the sums and the length into one number.
    fn finish(&self, length: usize) -> u64 {
        let sums = self.plain.iter().chain(&self.weighted);
        sums.fold(length as u64, |hash, sum| {
            let mixed = (hash ^ sum).wrapping_mul(0x9fb2_1c65_1e98_df25);
            mixed ^ (mixed >> 32)
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::payload::Pattern;

    fn message(size: usize) -> Vec<u8> {
        let mut bytes = vec![0; size];
        Pattern::new(1, 1).fill(&mut bytes);
        bytes
    }

    #[test]
    fn checksum__notices_each_changed_byte() {
        for size in [1, 63, 64, 65, 200] {
            let good = message(size);
            for offset in 0..size {
                let mut bad = good.clone();
                bad[offset] ^= 0x80;
                assert_ne!(checksum(&bad), checksum(&good), "byte {offset} of {size}");
            }
        }
    }

    #[test]
    fn checksum__notices_exchanged_packets() {
        let good = message(4 * 1408);
        let mut bad = good.clone();
        let (left, right) = bad.split_at_mut(2 * 1408);
        left[..1408].swap_with_slice(&mut right[..1408]);
        assert_ne!(checksum(&bad), checksum(&good));
    }

    #[test]
    fn checksum__depends_on_the_length_even_of_zeros() {
        let zeros = [0; 200];
        let all: std::collections::BTreeSet<u64> =
            (0..=200).map(|length| checksum(&zeros[..length])).collect();
        assert_eq!(all.len(), 201);
    }
}
