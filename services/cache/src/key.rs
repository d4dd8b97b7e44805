//! Keys with their hashes.

use rapidhash::v3::{RapidSecrets, rapidhash_v3_seeded};

use crate::error::KeyError;
use crate::limits::KEY_BYTES_MAX;

/// The hash of a server: every partition, and every client that steers by partition, computes the same.
///
/// A server draws a random seed: clients of memcached's protocol cannot choose colliding keys.
#[derive(Clone, Debug)]
pub struct Hasher {
    seed: u64,
    secrets: RapidSecrets,
}

impl Hasher {
    /// The hash with this seed.
    pub fn new(seed: u64) -> Self {
        Self { seed, secrets: RapidSecrets::seed(seed) }
    }

    /// The seed, for clients that steer by partition.
    pub fn seed(&self) -> u64 {
        self.seed
    }

    /// Returns the key with its hash.
    ///
    /// # Errors
    /// [`KeyError`] if the bytes are too few or too many for a key.
    #[inline]
    pub fn key<'a>(&self, bytes: &'a [u8]) -> Result<Key<'a>, KeyError> {
        if bytes.is_empty() || bytes.len() > KEY_BYTES_MAX {
            return Err(KeyError { bytes: bytes.len() });
        }
        Ok(Key { bytes, hash: self.hash(bytes) })
    }

    #[inline]
    pub(crate) fn hash(&self, bytes: &[u8]) -> u64 {
        rapidhash_v3_seeded(bytes, &self.secrets)
    }
}

/// A key of 1 to 250 bytes with its hash.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Key<'a> {
    bytes: &'a [u8],
    hash: u64,
}

impl<'a> Key<'a> {
    /// A key whose hash another thread has computed.
    pub(crate) fn hashed(bytes: &'a [u8], hash: u64) -> Self {
        Self { bytes, hash }
    }

    /// The bytes.
    #[inline]
    pub fn bytes(&self) -> &'a [u8] {
        self.bytes
    }

    /// The hash.
    #[inline]
    pub fn hash(&self) -> u64 {
        self.hash
    }

    /// The number of the partition that owns the key, of `count` partitions. The high bits of the hash decide; the
    /// index of a partition uses the others.
    #[inline]
    pub fn partition(&self, count: usize) -> usize {
        ((u128::from(self.hash) * count as u128) >> 64) as usize
    }
}

/// The keys of a partition: their hashes lie in the partition's part of all hashes.
#[derive(Clone, Debug)]
pub struct KeyRange {
    hasher: Hasher,
    partition: usize,
    partitions: u16,
}

/// The reason why bytes are no key of a range.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum RangeError {
    /// The bytes are no key.
    #[error(transparent)]
    Key(#[from] KeyError),
    /// The key belongs to another partition.
    #[error("the key belongs to partition {0}; say hello again")]
    Other(usize),
}

impl KeyRange {
    /// The keys of a partition, of `partitions`.
    ///
    /// # Panics
    /// If there are fewer partitions.
    pub fn new(hasher: Hasher, partition: usize, partitions: u16) -> Self {
        assert!(partition < partitions.into(), "partition {partition} of {partitions}");
        Self { hasher, partition, partitions }
    }

    /// The hash.
    pub fn hasher(&self) -> &Hasher {
        &self.hasher
    }

    /// The number of partitions.
    pub fn partitions(&self) -> u16 {
        self.partitions
    }

    /// Returns the key with its hash.
    ///
    /// # Errors
    /// [`RangeError`] if the bytes are no key of this range.
    #[inline]
    pub fn key<'a>(&self, bytes: &'a [u8]) -> Result<Key<'a>, RangeError> {
        let key = self.hasher.key(bytes)?;
        match key.partition(self.partitions.into()) {
            partition if partition == self.partition => Ok(key),
            partition => Err(RangeError::Other(partition)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn key__has_1_to_250_bytes() {
        let hasher = Hasher::new(1);
        assert_eq!(hasher.key(b""), Err(KeyError { bytes: 0 }));
        assert_eq!(hasher.key(&[b'k'; 251]), Err(KeyError { bytes: 251 }));
        assert_eq!(hasher.key(&[b'k'; 250]).unwrap().bytes().len(), 250);
    }

    #[test]
    fn partition__is_even_over_any_count() {
        let hasher = Hasher::new(7);
        for count in [1, 3, 5, 16] {
            let mut keys = vec![0usize; count];
            for number in 0..10_000u32 {
                keys[hasher.key(&number.to_le_bytes()).unwrap().partition(count)] += 1;
            }
            let mean = 10_000 / count;
            assert!(keys.iter().all(|keys| keys.abs_diff(mean) < mean / 4 + 1), "{keys:?}");
        }
    }

    #[test]
    fn range__has_the_keys_of_its_partition() {
        let ranges = [0, 1, 2].map(|partition| KeyRange::new(Hasher::new(7), partition, 3));
        for number in 0..100u32 {
            let bytes = number.to_le_bytes();
            let owner = Hasher::new(7).key(&bytes).unwrap().partition(3);
            for (partition, range) in ranges.iter().enumerate() {
                let expected =
                    if partition == owner { Ok(()) } else { Err(RangeError::Other(owner)) };
                assert_eq!(range.key(&bytes).map(|_| ()), expected);
            }
        }
        assert_eq!(ranges[0].key(b""), Err(RangeError::Key(KeyError { bytes: 0 })));
    }

    /// Clients of another version compute the same: the value is part of the protocol.
    #[test]
    fn hash__is_fixed() {
        assert_eq!(Hasher::new(1).key(b"petrel").unwrap().hash(), 12_147_801_703_830_317_878);
        assert_ne!(Hasher::new(1).hash(b"petrel"), Hasher::new(2).hash(b"petrel"));
    }
}
