//! A fast hash, equal on every machine, for lookups and for detecting damage. It does not resist attacks.

use std::hash::{BuildHasherDefault, Hasher};

/// Odd, with as many ones as zeros: digits of π's fraction, a common choice.
const FACTOR: u64 = 0x2437_54F8_A8F4_2B9D;

/// Mixes a word into a hash: combines both halves of a wide product, and every bit affects all bits.
#[inline]
pub(crate) fn mix(hash: u64, word: u64) -> u64 {
    let product = u128::from(hash ^ word ^ FACTOR.rotate_left(32)) * u128::from(FACTOR);
    (product as u64) ^ ((product >> 64) as u64)
}

#[inline]
pub(crate) fn hash(bytes: &[u8]) -> u64 {
    let (words, rest) = bytes.as_chunks::<8>();
    let mut hash = bytes.len() as u64;
    for word in words {
        hash = mix(hash.rotate_left(17), u64::from_le_bytes(*word));
    }
    if rest.is_empty() { hash } else { mix(hash.rotate_left(17), little(rest)) }
}

/// Converts fewer than eight bytes to a number.
#[inline]
fn little(bytes: &[u8]) -> u64 {
    bytes.iter().rev().fold(0, |word, byte| word << 8 | u64::from(*byte))
}

/// A hasher for log indices, which clients cannot choose at will.
#[derive(Debug, Default, Clone, Copy)]
pub(crate) struct IndexHasher(u64);

/// Builds [`IndexHasher`]s.
pub(crate) type HashByIndex = BuildHasherDefault<IndexHasher>;

impl Hasher for IndexHasher {
    #[inline]
    fn write_u64(&mut self, index: u64) {
        self.0 = mix(self.0, index);
    }

    fn write(&mut self, bytes: &[u8]) {
        self.0 = mix(self.0, hash(bytes));
    }

    #[inline]
    fn finish(&self) -> u64 {
        self.0
    }
}
