//! The header of an item in the log.
//!
//! | bytes | content |
//! | --- | --- |
//! | 0 to 7 | CAS version |
//! | 8 to 11 | flags of the client |
//! | 12 to 15 | expiry, in seconds of the cache's clock; 0 for never |
//! | 16 to 19 | bit 31: dead; 30: referenced; else the second of the last access |
//! | 20 to 23 | bits 0 to 20: bytes of the value; 21 to 23: fetched, stale, won; 24 to 31: bytes of the key |
//!
//! Key and value follow. A key has a byte at least, so a header of zeros is padding.

pub(super) const HEADER_BYTES: usize = 24;

const DEAD: u32 = 1 << 31;
const REFERENCED: u32 = 1 << 30;
const ACCESS_MASK: u32 = REFERENCED - 1;
const VALUE_BITS: u32 = 21;
const VALUE_MASK: u32 = (1 << VALUE_BITS) - 1;
const FETCHED: u32 = 1 << VALUE_BITS;
const STALE: u32 = 2 << VALUE_BITS;
const WON: u32 = 4 << VALUE_BITS;
const KEY_SHIFT: u32 = 24;

/// A header. The words are the log's: a look-up decodes only the needed parts.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Header {
    /// The version.
    pub(super) cas: u64,
    /// The flags of the client.
    pub(super) flags: u32,
    /// In seconds of the cache's clock; 0 for never.
    pub(super) expiry: u32,
    /// Bytes 16 to 19.
    access: u32,
    /// Bytes 20 to 23.
    sizes: u32,
}

impl Header {
    /// The header of an item that no client has fetched, without version and sizes.
    pub(super) fn new(flags: u32, expiry: u32, now: u32) -> Self {
        Self { cas: 0, flags, expiry, access: now & ACCESS_MASK, sizes: 0 }
    }

    #[inline]
    pub(super) fn decode(bytes: &[u8; HEADER_BYTES]) -> Self {
        let word = |at: usize| {
            u32::from_le_bytes([bytes[at], bytes[at + 1], bytes[at + 2], bytes[at + 3]])
        };
        Self {
            cas: u64::from(word(0)) | u64::from(word(4)) << 32,
            flags: word(8),
            expiry: word(12),
            access: word(16),
            sizes: word(20),
        }
    }

    #[inline]
    pub(super) fn encode(self) -> [u8; HEADER_BYTES] {
        let mut bytes = [0; HEADER_BYTES];
        bytes[..8].copy_from_slice(&self.cas.to_le_bytes());
        bytes[8..12].copy_from_slice(&self.flags.to_le_bytes());
        bytes[12..16].copy_from_slice(&self.expiry.to_le_bytes());
        bytes[16..20].copy_from_slice(&self.access.to_le_bytes());
        bytes[20..].copy_from_slice(&self.sizes.to_le_bytes());
        bytes
    }

    /// The second of the last access; 30 bits.
    #[inline]
    pub(super) fn accessed(&self) -> u32 {
        self.access & ACCESS_MASK
    }

    /// Returns true if the item was read or set again since it came to its place in the log.
    #[inline]
    pub(super) fn is_referenced(&self) -> bool {
        self.access & REFERENCED != 0
    }

    pub(super) fn referenced(self, is_referenced: bool) -> Self {
        let mark = if is_referenced { REFERENCED } else { 0 };
        Self { access: self.access & !REFERENCED | mark, ..self }
    }

    /// Returns true if the index does not lead to the item any more.
    #[inline]
    pub(super) fn is_dead(&self) -> bool {
        self.access & DEAD != 0
    }

    #[inline]
    pub(super) fn value_bytes(&self) -> usize {
        (self.sizes & VALUE_MASK) as usize
    }

    #[inline]
    pub(super) fn key_bytes(&self) -> usize {
        (self.sizes >> KEY_SHIFT) as usize
    }

    /// Returns true if a client has fetched the item.
    #[inline]
    pub(super) fn is_fetched(&self) -> bool {
        self.sizes & FETCHED != 0
    }

    /// Returns true if a client has invalidated the value, which may still be served.
    pub(super) fn is_stale(&self) -> bool {
        self.sizes & STALE != 0
    }

    /// Returns true if a client has been told to make a new value.
    pub(super) fn is_won(&self) -> bool {
        self.sizes & WON != 0
    }

    /// The header of an item that ends at another second; 0 for never.
    pub(super) fn ending_at(self, expiry: u32) -> Self {
        Self { expiry, ..self }
    }

    /// The header after an access other than a fetch.
    pub(super) fn accessed_at(self, now: u32) -> Self {
        Self { access: self.access & !ACCESS_MASK | now & ACCESS_MASK, ..self }
    }

    #[inline]
    pub(super) fn fetched_at(self, now: u32) -> Self {
        let access = self.access & DEAD | REFERENCED | now & ACCESS_MASK;
        Self { access, sizes: self.sizes | FETCHED, ..self }
    }

    /// The header of an item to which the index does not lead any more.
    pub(super) fn dead(self) -> Self {
        assert!(!self.is_dead(), "an item dies once");
        Self { access: self.access | DEAD, ..self }
    }

    /// The header of an item whose value a client has invalidated.
    pub(super) fn stale(self) -> Self {
        Self { sizes: self.sizes | STALE, ..self }
    }

    /// The header of an item for which a client has been told to make a new value, or has not.
    pub(super) fn won(self, is_won: bool) -> Self {
        Self { sizes: self.sizes & !WON | if is_won { WON } else { 0 }, ..self }
    }

    /// The header of an item with a key and a value of these sizes.
    pub(super) fn sized(self, key_bytes: usize, value_bytes: usize) -> Self {
        assert!(key_bytes <= usize::from(u8::MAX), "a key of {key_bytes} bytes");
        assert!(value_bytes <= VALUE_MASK as usize, "a value of {value_bytes} bytes");
        let marks = self.sizes & (FETCHED | STALE | WON);
        Self { sizes: marks | value_bytes as u32 | (key_bytes as u32) << KEY_SHIFT, ..self }
    }

    /// The bytes that the item takes in the log.
    #[inline]
    pub(super) fn space(&self) -> u64 {
        space(self.key_bytes(), self.value_bytes())
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
            cas: u64, flags: u32, expiry: u32, accessed in 0..REFERENCED, value_bytes in 0..FETCHED, key_bytes: u8,
            [is_dead, is_fetched, is_stale, is_won, is_referenced]: [bool; 5],
        ) {
            let mut header = Header { cas, ..Header::new(flags, expiry, 0) };
            if is_fetched {
                header = header.fetched_at(1);
            }
            if is_stale {
                header = header.stale();
            }
            header = header.won(!is_won).won(is_won);
            header = header.sized(usize::from(key_bytes), value_bytes as usize).accessed_at(accessed);
            header = header.referenced(is_referenced);
            if is_dead {
                header = header.dead();
            }
            let header = Header::decode(&header.encode());
            prop_assert_eq!((header.cas, header.flags, header.expiry), (cas, flags, expiry));
            prop_assert_eq!((header.accessed(), header.is_dead()), (accessed, is_dead));
            prop_assert_eq!(header.is_referenced(), is_referenced);
            let sizes = (header.key_bytes(), header.value_bytes());
            prop_assert_eq!(sizes, (usize::from(key_bytes), value_bytes as usize));
            let marks = [header.is_fetched(), header.is_stale(), header.is_won()];
            prop_assert_eq!(marks, [is_fetched, is_stale, is_won]);
        }
    }

    #[test]
    fn is_expired__from_its_second_on() {
        let header = Header { expiry: 10, ..Header::default() };
        assert_eq!([9, 10, 11].map(|now| header.is_expired(now)), [false, true, true]);
        assert!(!Header::default().is_expired(u32::MAX));
    }
}
