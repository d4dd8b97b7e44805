//! Records: a key with its value and revision, as stored in a page.
//!
//! | bytes | content |
//! | --- | --- |
//! | 8 | revision |
//! | 4 | length of the value, or the number of a large one |
//! | 2 | length of the key |
//! | 2 | 0 if the value follows the key, 1 if the value is large |
//! | | the key, the value unless it is large, and up to 7 bytes of padding |

/// Alignment of records in the heap, in bytes.
pub(super) const ALIGNMENT: usize = 8;

/// Most bytes of a heap that place numbers can address.
pub(super) const HEAP_BYTES_MAX: usize = (u16::MAX as usize + 1) * ALIGNMENT;

const HEADER_BYTES: usize = 16;

/// A decoded record.
#[derive(Debug, Clone, Copy)]
pub(super) struct Record<'a> {
    pub(super) revision: u64,
    pub(super) key: &'a [u8],
    pub(super) value: Stored<'a>,
}

/// The location of a value.
#[derive(Debug, Clone, Copy)]
pub(super) enum Stored<'a> {
    /// In the record.
    Packed(&'a [u8]),
    /// In the page's list of large values, at this place.
    Large(usize),
}

impl Record<'_> {
    /// The size of the record in the heap, in bytes.
    #[inline]
    pub(super) fn bytes(&self) -> usize {
        let value_bytes = match self.value {
            Stored::Packed(value) => value.len(),
            Stored::Large(_) => 0,
        };
        bytes(self.key.len(), value_bytes)
    }
}

/// The offset in the heap of the record at a place.
#[inline]
pub(super) fn offset(place: u16) -> usize {
    usize::from(place) * ALIGNMENT
}

/// Decodes the record at the beginning of `heap`.
#[inline]
pub(super) fn read(heap: &[u8]) -> Record<'_> {
    let (header, rest) = heap.split_first_chunk::<HEADER_BYTES>().expect("a record is whole");
    let [r0, r1, r2, r3, r4, r5, r6, r7, v0, v1, v2, v3, k0, k1, large, _] = *header;
    let number = u32::from_le_bytes([v0, v1, v2, v3]) as usize;
    let (key, rest) = rest.split_at(usize::from(u16::from_le_bytes([k0, k1])));
    Record {
        revision: u64::from_le_bytes([r0, r1, r2, r3, r4, r5, r6, r7]),
        key,
        value: if large == 0 { Stored::Packed(&rest[..number]) } else { Stored::Large(number) },
    }
}

pub(super) fn write(record: &Record<'_>, heap: &mut Vec<u8>) -> u16 {
    let at = heap.len();
    let (number, large, value) = match record.value {
        Stored::Packed(value) => (value.len(), 0, value),
        Stored::Large(number) => (number, 1, &[][..]),
    };
    heap.reserve(record.bytes());
    heap.extend_from_slice(&record.revision.to_le_bytes());
    heap.extend_from_slice(&(number as u32).to_le_bytes());
    heap.extend_from_slice(&(record.key.len() as u16).to_le_bytes());
    heap.extend_from_slice(&[large, 0]);
    heap.extend_from_slice(record.key);
    heap.extend_from_slice(value);
    heap.resize(at + record.bytes(), 0);
    (at / ALIGNMENT).try_into().expect("the heap has fewer than 512 KiB")
}

/// Overwrites the value of the first record in `heap` by a value that is not longer. Returns the record's new size in
/// bytes.
#[inline]
pub(super) fn overwrite(heap: &mut [u8], revision: u64, value: &[u8]) -> usize {
    let key_len = read(heap).key.len();
    heap[..8].copy_from_slice(&revision.to_le_bytes());
    heap[8..12].copy_from_slice(&(value.len() as u32).to_le_bytes());
    heap[HEADER_BYTES + key_len..][..value.len()].copy_from_slice(value);
    bytes(key_len, value.len())
}

#[inline]
fn bytes(key_len: usize, value_bytes: usize) -> usize {
    (HEADER_BYTES + key_len + value_bytes).next_multiple_of(ALIGNMENT)
}
