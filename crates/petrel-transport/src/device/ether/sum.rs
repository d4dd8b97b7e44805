//! The Internet checksum (RFC 1071): the sum of 16-bit words in ones' complement.
//!
//! Sums are of words in the order of memory, which RFC 1071 §2 (B) permits: a folded sum is stored without swapping its bytes.

use std::net::IpAddr;

/// Bytes from which on the sums of blocks are worth their beginning and end. Of 1472 bytes they take 93 ticks instead of 221, of 40 bytes
/// 15 instead of 5.
const BLOCKS_BYTES_MIN: usize = 320;

/// A sum that is not folded yet.
///
/// 2^32 words of 32 bits do not overflow. Datagrams have at most 2^14.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Sum(u64);

impl Sum {
    /// The sum of some bytes, with a zero byte behind an odd number.
    #[inline]
    pub fn of(bytes: &[u8]) -> Self {
        let (blocks, rest) = match bytes.len() {
            ..BLOCKS_BYTES_MIN => (0, bytes),
            _ => of_blocks(bytes),
        };
        let (words, tail) = rest.as_chunks::<8>();
        let sum: u128 = words.iter().map(|word| u128::from(u64::from_ne_bytes(*word))).sum();
        let sum = sum + u128::from(of_tail(bytes, tail.len()));
        let halves = u64::from(sum as u32) + u64::from((sum >> 32) as u32) + (sum >> 64) as u64;
        Self(blocks + halves)
    }

    /// The sum of the pseudo-header's constant part: both addresses and the number of UDP (RFC 768, RFC 8200 §8.1).
    pub fn of_ends(from: IpAddr, to: IpAddr) -> Self {
        let of_ip = |ip| match ip {
            IpAddr::V4(ip) => Self::of(&ip.octets()),
            IpAddr::V6(ip) => Self::of(&ip.octets()),
        };
        of_ip(from).plus(of_ip(to)).plus_word(libc::IPPROTO_UDP as u16)
    }

    /// Returns the sum of both, where an even number of bytes lies before each.
    #[must_use]
    #[inline]
    pub fn plus(self, other: Self) -> Self {
        Self(self.0 + other.0)
    }

    /// Adds a number that the network has in 16 bits.
    #[must_use]
    #[inline]
    pub fn plus_word(self, word: u16) -> Self {
        Self(self.0 + u64::from(word.to_be()))
    }

    /// Returns the sum in 16 bits, in the order of memory. The sum of bytes that contain their own checksum is 0xffff.
    #[inline]
    pub fn folded(self) -> u16 {
        let sum = (self.0 >> 32) + (self.0 & 0xffff_ffff);
        let sum = (sum >> 16) + (sum & 0xffff);
        let sum = (sum >> 16) + (sum & 0xffff);
        ((sum >> 16) + (sum & 0xffff)) as u16
    }

    /// Returns the checksum as its bytes lie in the header.
    #[inline]
    pub fn checksum(self) -> [u8; 2] {
        (!self.folded()).to_ne_bytes()
    }
}

/// The sum of whole blocks, and the bytes behind. A block has eight independent sums of 32-bit words, which the compiler turns into
/// vectors.
#[inline(never)]
fn of_blocks(bytes: &[u8]) -> (u64, &[u8]) {
    let (blocks, rest) = bytes.as_chunks::<32>();
    let mut sums = [0; 8];
    for block in blocks {
        for (sum, word) in sums.iter_mut().zip(block.as_chunks::<4>().0) {
            *sum += u64::from(u32::from_ne_bytes(*word));
        }
    }
    (sums.iter().sum(), rest)
}

/// The last bytes, of which there are at most seven, as the first of a word.
#[inline]
fn of_tail(bytes: &[u8], count: usize) -> u64 {
    let tail = match bytes.last_chunk::<8>() {
        // A copy of a varying length would be a call.
        Some(word) => u64::from_le_bytes(*word).checked_shr(64 - 8 * count as u32).unwrap_or(0),
        None => bytes.iter().rev().fold(0, |word, byte| word << 8 | u64::from(*byte)),
    };
    tail.to_le()
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::device::ether::fuzzing::naive_sum;

    fn naive(bytes: &[u8]) -> [u8; 2] {
        (!naive_sum(&[bytes])).to_be_bytes()
    }

    #[test]
    fn checksum__of_the_example_in_rfc_1071() {
        let bytes = [0x00, 0x01, 0xf2, 0x03, 0xf4, 0xf5, 0xf6, 0xf7];
        assert_eq!(Sum::of(&bytes).checksum(), (!0xddf2_u16).to_be_bytes());
    }

    proptest! {
        #[test]
        fn folded__is_the_remainder_by_0xffff_and_zero_for_zero_alone(
            sum in prop_oneof![any::<u64>(), 0..3_u64, u64::MAX - 3..=u64::MAX, 0xfffe_fffe..0x1_0001_0002_u64],
        ) {
            let expected = if sum == 0 { 0 } else { (sum - 1) % 0xffff + 1 };
            prop_assert_eq!(u64::from(Sum(sum).folded()), expected);
        }

        #[test]
        fn checksum__equals_a_naive_one(bytes in prop::collection::vec(any::<u8>(), 0..1_000)) {
            prop_assert_eq!(Sum::of(&bytes).checksum(), naive(&bytes));
        }

        #[test]
        fn plus__joins_even_pieces(
            first in prop::collection::vec(any::<[u8; 2]>(), 0..100),
            second in prop::collection::vec(any::<u8>(), 0..100),
            word in any::<u16>(),
        ) {
            let first = first.as_flattened();
            let all = [first, &word.to_be_bytes(), &second].concat();
            let sum = Sum::of(first).plus_word(word).plus(Sum::of(&second));
            prop_assert_eq!(sum.checksum(), naive(&all));
        }

        #[test]
        fn of_ends__sums_the_pseudo_header(from in any::<[u8; 16]>(), to in any::<[u8; 16]>()) {
            let v6 = Sum::of_ends(from.into(), to.into());
            prop_assert_eq!(v6.checksum(), naive(&[&from[..], &to, &[0, 17]].concat()));
            let (from, to) = (from.first_chunk::<4>().unwrap(), to.first_chunk::<4>().unwrap());
            let v4 = Sum::of_ends((*from).into(), (*to).into());
            prop_assert_eq!(v4.checksum(), naive(&[&from[..], to, &[0, 17]].concat()));
        }
    }
}
