//! Pages: up to 64 entries in key order.
//!
//! An entry is a [record](super::record) in the page's *heap*, where records lie in the order of arrival. Two small
//! tables are in key order: a byte of every key's hash, and the place of every record. To find, read or overwrite a
//! key, a page reads the tables and one record. These are two memory accesses, and the second depends on the first. A
//! new value no longer than the old one is written in place. Unused bytes remain in the heap until a sweep, when unused
//! bytes exceed used bytes.

use std::hint::black_box;
use std::ptr;
use std::sync::Arc;

use super::fences::Probe;
use super::record::{self, Record, Stored};
use super::tags::{ENTRIES_MAX, Tags};

/// A page with fewer entries is joined with a neighbour, if the two together are at most three quarters full.
const ENTRIES_SMALL: usize = ENTRIES_MAX / 4;

/// A page with two or more entries is split above this many bytes of records, to keep copies cheap.
const HEAP_BYTES_MAX: usize = 16 << 10;

/// Longest value stored in the page's heap.
const PACKED_BYTES_MAX: usize = 1024;

const LINE_BYTES: usize = 64;

/// Fewer unused bytes than this are not worth a sweep.
const UNUSED_BYTES_MIN: usize = 1024;

/// Consecutive keys, with their values and revisions.
#[derive(Debug, Clone)]
pub(super) struct Page {
    len: usize,
    heap: Vec<u8>,
    /// Used bytes of the heap.
    used: usize,
    /// Values too long for the heap. Copies of the page share them.
    large: Vec<Option<Arc<[u8]>>>,
    tags: Tags,
    /// The records' places in the heap, in units of [`record::ALIGNMENT`].
    places: [u16; ENTRIES_MAX],
}

impl Default for Page {
    fn default() -> Page {
        Page::with_heap(0)
    }
}

impl Page {
    fn with_heap(bytes: usize) -> Page {
        Page {
            len: 0,
            heap: Vec::with_capacity(bytes),
            used: 0,
            large: Vec::new(),
            tags: Tags::default(),
            places: [0; ENTRIES_MAX],
        }
    }

    pub(super) fn len(&self) -> usize {
        self.len
    }

    #[cfg(test)]
    pub(super) fn large_values(&self) -> usize {
        self.large.iter().flatten().count()
    }

    #[inline]
    pub(super) fn find(&self, probe: &Probe<'_>) -> Option<usize> {
        // Reads both cache lines of the places now, to load them together with the tags.
        black_box((self.places[0], self.places[ENTRIES_MAX / 2]));
        self.tags.find(probe.tag, self.len, |entry| self.key(entry) == probe.key)
    }

    /// Prefetches the memory that [`Page::prefetch_record`] reads, without waiting.
    #[inline]
    pub(super) fn prefetch_tables(&self) {
        let begin = ptr::from_ref(self).cast::<u8>();
        let last = size_of::<Page>() - 1;
        for offset in (0..last).step_by(LINE_BYTES).chain([last]) {
            petrel::endpoint::prefetch(begin.wrapping_add(offset));
        }
    }

    /// Prefetches the probable record of a key: the first with the key's tag.
    #[inline]
    pub(super) fn prefetch_record(&self, probe: &Probe<'_>) {
        if let Some(entry) = self.tags.find(probe.tag, self.len, |_| true) {
            let begin = self.heap.as_ptr().wrapping_add(record::offset(self.places[entry]));
            // A record with a small value covers two or three cache lines.
            petrel::endpoint::prefetch(begin);
            petrel::endpoint::prefetch(begin.wrapping_add(LINE_BYTES));
            petrel::endpoint::prefetch(begin.wrapping_add(2 * LINE_BYTES - 1));
        }
    }

    #[inline]
    pub(super) fn get(&self, probe: &Probe<'_>) -> Option<(&[u8], u64)> {
        self.find(probe).map(|entry| (self.value(entry), self.revision(entry)))
    }

    /// The number of keys before this key.
    pub(super) fn place(&self, key: &[u8]) -> usize {
        self.places[..self.len].partition_point(|place| self.record_at(*place).key < key)
    }

    #[inline]
    pub(super) fn key(&self, entry: usize) -> &[u8] {
        self.record(entry).key
    }

    #[inline]
    pub(super) fn value(&self, entry: usize) -> &[u8] {
        match self.record(entry).value {
            Stored::Packed(value) => value,
            Stored::Large(at) => self.large[at].as_deref().expect("a record's value is there"),
        }
    }

    #[inline]
    pub(super) fn revision(&self, entry: usize) -> u64 {
        self.record(entry).revision
    }

    /// Returns true if another entry fits without a split.
    pub(super) fn has_room(&self, key: &[u8], value: &[u8]) -> bool {
        let bytes = self.used + record_bytes(key, value);
        self.len < 2 || (self.len < ENTRIES_MAX && bytes <= HEAP_BYTES_MAX)
    }

    /// Sets an entry's value, and returns the length of the former value.
    #[inline]
    pub(super) fn replace(&mut self, entry: usize, value: &[u8], revision: u64) -> usize {
        let old = self.record(entry);
        let old_bytes = old.bytes();
        if let Stored::Packed(former) = old.value
            && value.len() <= former.len()
        {
            let former_len = former.len();
            let at = record::offset(self.places[entry]);
            let new_bytes = record::overwrite(&mut self.heap[at..], revision, value);
            self.used -= old_bytes - new_bytes;
            return former_len;
        }
        self.replace_elsewhere(entry, value, revision)
    }

    /// Inserts an entry before the entry at place `at`.
    pub(super) fn insert(&mut self, at: usize, probe: &Probe<'_>, value: &[u8], revision: u64) {
        self.sweep_before(record_bytes(probe.key, value));
        let place = self.store(probe.key, value, revision);
        self.link(at, probe.tag, place);
    }

    pub(super) fn remove(&mut self, entry: usize) {
        self.release(entry);
        self.tags.remove(entry, self.len);
        self.places.copy_within(entry + 1..self.len, entry);
        self.len -= 1;
    }

    pub(super) fn is_small(&self) -> bool {
        self.len < ENTRIES_SMALL
    }

    /// Returns true if the entries of `other` fit, too, with spare room.
    pub(super) fn fits(&self, other: &Page) -> bool {
        self.len + other.len <= ENTRIES_MAX * 3 / 4
            && self.used + other.used <= HEAP_BYTES_MAX * 3 / 4
    }

    pub(super) fn split_off(&mut self, at: usize) -> Page {
        let right = self.copy(at, self.len);
        *self = self.copy(0, at);
        right
    }

    pub(super) fn join(&mut self, right: &Page) {
        for entry in 0..right.len {
            self.append(right, entry);
        }
    }

    /// Copies a range of entries, without unused bytes between them.
    fn copy(&self, from: usize, until: usize) -> Page {
        let bytes = (from..until).map(|entry| self.record(entry).bytes()).sum();
        let mut copy = Page::with_heap(bytes);
        for entry in from..until {
            copy.append(self, entry);
        }
        copy
    }

    fn append(&mut self, from: &Page, entry: usize) {
        let Record { revision, key, value } = from.record(entry);
        let value = match value {
            Stored::Packed(value) => Stored::Packed(value),
            Stored::Large(at) => Stored::Large(self.keep(from.large[at].clone())),
        };
        let place = self.write(&Record { revision, key, value });
        self.link(self.len, from.tags.get(entry), place);
    }

    /// Moves an entry to another record, for a value longer than the present record's.
    #[cold]
    fn replace_elsewhere(&mut self, entry: usize, value: &[u8], revision: u64) -> usize {
        let former_len = self.value(entry).len();
        let (tag, key) = (self.tags.get(entry), self.key(entry).to_vec());
        self.remove(entry);
        self.sweep_before(record_bytes(&key, value));
        let place = self.store(&key, value, revision);
        self.link(entry, tag, place);
        former_len
    }

    /// Adds a record to the tables.
    fn link(&mut self, at: usize, tag: u8, place: u16) {
        self.tags.insert(at, tag, self.len);
        self.places.copy_within(at..self.len, at + 1);
        self.places[at] = place;
        self.len += 1;
    }

    /// Writes a key and its value to a new record; a large value goes to `large`.
    fn store(&mut self, key: &[u8], value: &[u8], revision: u64) -> u16 {
        let value = if value.len() <= PACKED_BYTES_MAX {
            Stored::Packed(value)
        } else {
            Stored::Large(self.keep(Some(value.into())))
        };
        self.write(&Record { revision, key, value })
    }

    fn write(&mut self, record: &Record<'_>) -> u16 {
        let place = record::write(record, &mut self.heap);
        self.used += record.bytes();
        place
    }

    /// Stores a large value in a free place.
    fn keep(&mut self, value: Option<Arc<[u8]>>) -> usize {
        let free = self.large.iter().position(Option::is_none);
        let at = free.unwrap_or_else(|| {
            self.large.push(None);
            self.large.len() - 1
        });
        self.large[at] = value;
        at
    }

    /// Frees the memory of an entry.
    fn release(&mut self, entry: usize) {
        let record = self.record(entry);
        let bytes = record.bytes();
        if let Stored::Large(at) = record.value {
            self.large[at] = None;
        }
        self.used -= bytes;
    }

    /// Sweeps the heap if the unused bytes would exceed the used ones even after adding `more` bytes.
    fn sweep_before(&mut self, more: usize) {
        let unused = self.heap.len() - self.used;
        if unused > UNUSED_BYTES_MIN.max(self.used + more) {
            *self = self.copy(0, self.len);
        }
    }

    #[inline]
    fn record(&self, entry: usize) -> Record<'_> {
        self.record_at(self.places[entry])
    }

    #[inline]
    fn record_at(&self, place: u16) -> Record<'_> {
        record::read(&self.heap[record::offset(place)..])
    }
}

/// The size of a record in the heap, in bytes.
fn record_bytes(key: &[u8], value: &[u8]) -> usize {
    let value =
        if value.len() <= PACKED_BYTES_MAX { Stored::Packed(value) } else { Stored::Large(0) };
    Record { revision: 0, key, value }.bytes()
}

// Bound of the heap: the records present at the last insertion, with values grown to their limit; as many unused bytes;
// and one more record.
const _: () = {
    let used = HEAP_BYTES_MAX + ENTRIES_MAX * (PACKED_BYTES_MAX + record::ALIGNMENT);
    let longest = crate::limits::KEY_BYTES_MAX + PACKED_BYTES_MAX + 32;
    assert!(2 * (used + 2 * longest) + longest <= record::HEAP_BYTES_MAX);
};
