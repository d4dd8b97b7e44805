//! Pages: up to 64 entries in the order of their keys.
//!
//! An entry is a [record](super::record) in the page's *heap*, and records are in the order in which they came. In
//! the order of the keys are two small tables: a byte of each key's hash, and the place of its record. So a key
//! is found, read and overwritten by reading the tables and one record: two places of memory, of which the second
//! cannot be known before the first has been read. A new value that is not longer than the old one takes its
//! place. What is no longer used is left, and swept out when it is more than what is used.

use std::hint::black_box;
use std::ptr;
use std::sync::Arc;

use super::fences::Probe;
use super::record::{self, Record, Stored};
use super::tags::Tags;

/// Most entries of a page. One line of the cache has the tags of all; a copy for an image takes some 6 KiB with
/// values of 64 B.
pub(super) const ENTRIES_MAX: usize = 64;

/// A page of fewer entries is joined with one beside it, if the two are no more than three quarters full.
const ENTRIES_SMALL: usize = ENTRIES_MAX / 4;

/// Bytes of records from which on a page of two or more is split, so that a copy of it stays cheap.
const HEAP_BYTES_MAX: usize = 16 << 10;

/// Longest value that lies in the page.
const PACKED_BYTES_MAX: usize = 1024;

/// Bytes of a line of the cache.
const LINE_BYTES: usize = 64;

/// Unused bytes that are not worth sweeping.
const UNUSED_BYTES_MIN: usize = 1024;

/// Some keys that follow each other, with their values and revisions.
#[derive(Debug, Clone)]
pub(super) struct Page {
    len: usize,
    heap: Vec<u8>,
    /// Bytes of the heap that are in use.
    used: usize,
    /// Values that are too long for the heap, so that copies of the page share them.
    large: Vec<Option<Arc<[u8]>>>,
    tags: Tags,
    /// Where in the heap the records begin, in units of [`record::ALIGNMENT`].
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
        // Reads both lines of the places now, so that they come together with the tags.
        black_box((self.places[0], self.places[ENTRIES_MAX / 2]));
        self.tags.find(probe.tag, self.len, |entry| self.key(entry) == probe.key)
    }

    /// Has what [`Page::fetch_record`] reads fetched, and waits for none of it.
    #[inline]
    pub(super) fn fetch_tables(&self) {
        let begin = ptr::from_ref(self).cast::<u8>();
        let last = size_of::<Page>() - 1;
        for offset in (0..last).step_by(LINE_BYTES).chain([last]) {
            petrel::endpoint::prefetch(begin.wrapping_add(offset));
        }
    }

    /// Has the record fetched that probably is this key's: the first one with its tag.
    #[inline]
    pub(super) fn fetch_record(&self, probe: &Probe<'_>) {
        if let Some(entry) = self.tags.find(probe.tag, self.len, |_| true) {
            let begin = self.heap.as_ptr().wrapping_add(record::offset(self.places[entry]));
            // A record of a small value has two lines of the cache, or three.
            petrel::endpoint::prefetch(begin);
            petrel::endpoint::prefetch(begin.wrapping_add(LINE_BYTES));
            petrel::endpoint::prefetch(begin.wrapping_add(2 * LINE_BYTES - 1));
        }
    }

    #[inline]
    pub(super) fn get(&self, probe: &Probe<'_>) -> Option<(&[u8], u64)> {
        self.find(probe).map(|entry| (self.value(entry), self.revision(entry)))
    }

    /// How many keys are before this one.
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

    /// Whether an entry more can be inserted without a split.
    pub(super) fn has_room(&self, key: &[u8], value: &[u8]) -> bool {
        let bytes = self.used + record_bytes(key, value);
        self.len < 2 || (self.len < ENTRIES_MAX && bytes <= HEAP_BYTES_MAX)
    }

    /// Sets the value of an entry, and returns the length of the former one.
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

    /// Inserts an entry before the one that is at this place.
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

    /// Whether the other's entries fit in as well, with room for more.
    pub(super) fn fits(&self, other: &Page) -> bool {
        self.len + other.len <= ENTRIES_MAX * 3 / 4
            && self.used + other.used <= HEAP_BYTES_MAX * 3 / 4
    }

    /// Takes the entries from `at` on away.
    pub(super) fn split_off(&mut self, at: usize) -> Page {
        let right = self.copy(at, self.len);
        *self = self.copy(0, at);
        right
    }

    /// Appends the entries of the page behind this one.
    pub(super) fn join(&mut self, right: &Page) {
        for entry in 0..right.len {
            self.append(right, entry);
        }
    }

    /// Some of the entries, with nothing unused between them.
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

    /// Gives an entry another record, for a value that its own has no room for.
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

    /// Makes a record one of the entries.
    fn link(&mut self, at: usize, tag: u8, place: u16) {
        self.tags.insert(at, tag, self.len);
        self.places.copy_within(at..self.len, at + 1);
        self.places[at] = place;
        self.len += 1;
    }

    /// Puts a key and its value into a new record, or the value beside it.
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

    /// Finds a place for a large value.
    fn keep(&mut self, value: Option<Arc<[u8]>>) -> usize {
        let free = self.large.iter().position(Option::is_none);
        let at = free.unwrap_or_else(|| {
            self.large.push(None);
            self.large.len() - 1
        });
        self.large[at] = value;
        at
    }

    /// Gives up what an entry uses.
    fn release(&mut self, entry: usize) {
        let record = self.record(entry);
        let bytes = record.bytes();
        if let Stored::Large(at) = record.value {
            self.large[at] = None;
        }
        self.used -= bytes;
    }

    /// Sweeps the heap if with so many bytes more it would still have more unused than used.
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

/// Bytes that a record of these takes in the heap.
fn record_bytes(key: &[u8], value: &[u8]) -> usize {
    let value =
        if value.len() <= PACKED_BYTES_MAX { Stored::Packed(value) } else { Stored::Large(0) };
    Record { revision: 0, key, value }.bytes()
}

// The heap has at most the records that were there when the last was inserted, of values grown as far as they may;
// as much again is unused, and one record more.
const _: () = {
    let used = HEAP_BYTES_MAX + ENTRIES_MAX * (PACKED_BYTES_MAX + record::ALIGNMENT);
    let longest = crate::limits::KEY_BYTES_MAX + PACKED_BYTES_MAX + 32;
    assert!(2 * (used + 2 * longest) + longest <= record::HEAP_BYTES_MAX);
};
