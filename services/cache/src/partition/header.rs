//! The header of an item in the log.
//!
//! | bytes | content |
//! | --- | --- |
//! | 0 to 7 | CAS version |
//! | 8 to 11 | flags of the client |
//! | 12 to 15 | expiry, in seconds of the cache's clock; 0 for never |
//! | 16 to 19 | bit 31: dead; else the second of the last access |
//! | 20 to 23 | bits 0 to 20: bytes of the value; 21 to 23: fetched, stale, won; 24 to 31: bytes of the key |
//!
//! Key and value follow. A key has a byte at least, so a header of zeros is padding.

/// Bytes of a header.
pub(super) const HEADER_BYTES: usize = 24;

const DEAD: u32 = 1 << 31;
const VALUE_BITS: u32 = 21;
const FETCHED: u32 = 1 << VALUE_BITS;
const STALE: u32 = 2 << VALUE_BITS;
const WON: u32 = 4 << VALUE_BITS;
const KEY_SHIFT: u32 = 24;

/// A decoded header.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Header {
    pub(super) cas: u64,
    pub(super) flags: u32,
    /// In seconds of the cache's clock; 0 for never.
    pub(super) expiry: u32,
    /// The second of the last access; 31 bits.
    pub(super) accessed: u32,
    pub(super) value_bytes: u32,
    pub(super) key_bytes: u8,
    /// The index does not lead to the item any more.
    pub(super) is_dead: bool,
    /// A client has fetched the item.
    pub(super) is_fetched: bool,
    /// A client has invalidated the value, which may still be served.
    pub(super) is_stale: bool,
    /// A client has been told to make a new value.
    pub(super) is_won: bool,
}

impl Header {
    #[inline]
    pub(super) fn decode(bytes: &[u8; HEADER_BYTES]) -> Self {
        let word = |at: usize| {
            u32::from_le_bytes([bytes[at], bytes[at + 1], bytes[at + 2], bytes[at + 3]])
        };
        let (accessed, sizes) = (word(16), word(20));
        Self {
            cas: u64::from(word(0)) | u64::from(word(4)) << 32,
            flags: word(8),
            expiry: word(12),
            accessed: accessed & !DEAD,
            value_bytes: sizes & (FETCHED - 1),
            key_bytes: (sizes >> KEY_SHIFT) as u8,
            is_dead: accessed & DEAD != 0,
            is_fetched: sizes & FETCHED != 0,
            is_stale: sizes & STALE != 0,
            is_won: sizes & WON != 0,
        }
    }

    #[inline]
    pub(super) fn encode(self) -> [u8; HEADER_BYTES] {
        let bit = |is_set: bool, bit: u32| if is_set { bit } else { 0 };
        assert!(self.value_bytes < FETCHED, "a value of {} bytes", self.value_bytes);
        let sizes = self.value_bytes
            | bit(self.is_fetched, FETCHED)
            | bit(self.is_stale, STALE)
            | bit(self.is_won, WON)
            | u32::from(self.key_bytes) << KEY_SHIFT;
        let mut bytes = [0; HEADER_BYTES];
        bytes[..8].copy_from_slice(&self.cas.to_le_bytes());
        bytes[8..12].copy_from_slice(&self.flags.to_le_bytes());
        bytes[12..16].copy_from_slice(&self.expiry.to_le_bytes());
        let accessed = self.accessed & !DEAD | bit(self.is_dead, DEAD);
        bytes[16..20].copy_from_slice(&accessed.to_le_bytes());
        bytes[20..].copy_from_slice(&sizes.to_le_bytes());
        bytes
    }

    /// The bytes that the item takes in the log.
    #[inline]
    pub(super) fn space(&self) -> u64 {
        space(self.key_bytes.into(), self.value_bytes as usize)
    }

    /// Returns true if the item's time is over at `now`.
    #[inline]
    pub(super) fn is_expired(&self, now: u32) -> bool {
        self.expiry != 0 && self.expiry <= now
    }
}

/// The bytes in the log of an item with a key and a value of these sizes: whole words, so that headers are aligned.
#[inline]
pub(super) fn space(key_bytes: usize, value_bytes: usize) -> u64 {
    (HEADER_BYTES + key_bytes + value_bytes).next_multiple_of(8) as u64
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn decode__reads_each_encoding(
            cas: u64, flags: u32, expiry: u32, accessed in 0..DEAD, value_bytes in 0..FETCHED, key_bytes: u8,
            [is_dead, is_fetched, is_stale, is_won]: [bool; 4],
        ) {
            let header = Header {
                cas, flags, expiry, accessed, value_bytes, key_bytes, is_dead, is_fetched, is_stale, is_won,
            };
            prop_assert_eq!(Header::decode(&header.encode()), header);
        }
    }

    #[test]
    fn is_expired__from_its_second_on() {
        let header = Header { expiry: 10, ..Header::default() };
        assert_eq!([9, 10, 11].map(|now| header.is_expired(now)), [false, true, true]);
        assert!(!Header::default().is_expired(u32::MAX));
    }
}
