//! A byte of every key's hash in a page: a lookup finds candidates in a single cache line.

/// Most entries of a page. One cache line holds all tags. Copying a page for an image takes some 6 KiB with values of
/// 64 B.
pub(super) const ENTRIES_MAX: usize = 64;

const ONES: u64 = u64::from_ne_bytes([1; 8]);
const LOW_BITS: u64 = ONES * 0x7F;

/// The tags of a page's entries, in order. Bytes after the last entry are arbitrary.
#[derive(Debug, Clone)]
pub(super) struct Tags([u8; ENTRIES_MAX]);

impl Default for Tags {
    fn default() -> Tags {
        Tags([0; ENTRIES_MAX])
    }
}

impl Tags {
    /// The first entry below `len` with the tag that fulfils `is_it`.
    #[inline]
    pub(super) fn find(&self, tag: u8, len: usize, is_it: impl Fn(usize) -> bool) -> Option<usize> {
        let (words, _) = self.0.as_chunks::<8>();
        for (word_index, word) in words.iter().enumerate() {
            let mut equal = equal_bytes(u64::from_le_bytes(*word), tag);
            while equal != 0 {
                let entry = word_index * 8 + equal.trailing_zeros() as usize / 8;
                if entry < len && is_it(entry) {
                    return Some(entry);
                }
                equal &= equal - 1;
            }
        }
        None
    }

    /// Inserts a tag at a place among the first `len`.
    pub(super) fn insert(&mut self, at: usize, tag: u8, len: usize) {
        self.0.copy_within(at..len, at + 1);
        self.0[at] = tag;
    }

    /// Removes a tag from the first `len`.
    pub(super) fn remove(&mut self, at: usize, len: usize) {
        self.0.copy_within(at + 1..len, at);
    }

    pub(super) fn get(&self, at: usize) -> u8 {
        self.0[at]
    }
}

/// The high bit of every byte of `word` that equals `byte`.
#[inline]
fn equal_bytes(word: u64, byte: u8) -> u64 {
    let difference = word ^ (ONES * u64::from(byte));
    // The sum sets the high bit of every byte with a low bit, without a carry into the next byte.
    !(((difference & LOW_BITS) + LOW_BITS) | difference | LOW_BITS)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn equal_bytes__are_those_and_no_others() {
        for (bytes, byte) in [
            ([0, 1, 2, 3, 4, 5, 6, 7], 3),
            ([0, 0, 1, 0, 128, 129, 255, 0], 0),
            ([127, 128, 129, 255, 255, 0, 1, 128], 128),
            ([255; 8], 255),
            ([1, 0, 1, 0, 1, 0, 1, 0], 1),
        ] {
            let found = equal_bytes(u64::from_le_bytes(bytes), byte).to_le_bytes();
            let expected = bytes.map(|b| if b == byte { 0x80 } else { 0 });
            assert_eq!(found, expected, "{bytes:?} {byte}");
        }
    }
}
