//! The keys, in order, with images that cost little.
//!
//! Three levels, each found by the one above: *directories*, of *pages*, of *entries*. A page has up to 64
//! entries, a directory up to 256 pages. Both are behind reference counts: an image copies the list of
//! directories, and whoever changes a page that an image has too makes a copy of it, and of its directory, first.
//!
//! A lookup compares the first 16 bytes of the key, as one number, with those of the *fences* between
//! directories and between pages (both tables mostly are in the cache), and finds the entry in its page by one
//! byte of the key's hash: so it reads some three places of memory that are not in the cache, where a binary
//! search in the page would read twice as many. Values up to 1 KiB lie in the page, and are overwritten in
//! place.

mod directory;
mod fences;
mod page;
mod range;
mod record;
mod tags;

pub(super) use range::Position;
pub use range::Range;

use std::ptr;
use std::sync::Arc;

use directory::Directory;
use fences::{Fences, Probe};
use page::Page;

/// Keys that are looked up together: as many waits for memory as a core has under way at once, about.
pub const WARMED_MAX: usize = 16;

/// Commands that are worth a look at the memory that they need before they are applied.
pub(crate) const WARMED_MIN: usize = 4;

/// Keys with values and revisions.
#[derive(Debug, Clone)]
pub(super) struct Map {
    fences: Fences,
    /// Never empty. Each has a page at least, and each page an entry, but in a map without keys.
    directories: Vec<Arc<Directory>>,
    keys: u64,
    bytes: u64,
}

impl Default for Map {
    fn default() -> Map {
        Map { fences: Fences::whole(), directories: vec![Arc::default()], keys: 0, bytes: 0 }
    }
}

impl Map {
    pub(super) fn keys(&self) -> u64 {
        self.keys
    }

    /// Bytes of all keys and values.
    pub(super) fn bytes(&self) -> u64 {
        self.bytes
    }

    #[inline]
    pub(super) fn get(&self, key: &[u8]) -> Option<(&[u8], u64)> {
        let probe = Probe::new(key);
        self.directories[self.fences.find(&probe)].get(&probe)
    }

    /// Has the memory fetched that changes of these keys will read, so that the waits for it overlap: each step is
    /// made for all before the next, which needs its outcome.
    pub(super) fn warm<'k>(&self, keys: impl Iterator<Item = &'k [u8]>) {
        let mut found: [Option<(&Arc<Page>, Probe<'_>)>; WARMED_MAX] = [const { None }; WARMED_MAX];
        for (place, key) in found.iter_mut().zip(keys) {
            let probe = Probe::new(key);
            let page = self.directories[self.fences.find(&probe)].page(&probe);
            petrel::endpoint::prefetch(ptr::from_ref(page).cast());
            *place = Some((page, probe));
        }
        for (page, _) in found.iter().flatten() {
            page.fetch_tables();
        }
        for (page, probe) in found.iter().flatten() {
            page.fetch_record(probe);
        }
    }

    /// Sets a key, and tells whether it was there.
    pub(super) fn put(&mut self, key: &[u8], value: &[u8], revision: u64) -> bool {
        let probe = Probe::new(key);
        let at = self.fences.find(&probe);
        let last = at + 1 == self.directories.len();
        let directory = Arc::make_mut(&mut self.directories[at]);
        let replaced = directory.put(&probe, value, revision, last);
        if directory.is_too_large() {
            let (fence, right) = directory.split(last);
            self.fences.insert(at + 1, fence);
            self.directories.insert(at + 1, Arc::new(right));
        }
        self.bytes += value.len() as u64;
        match replaced {
            Some(old_len) => self.bytes -= old_len as u64,
            None => {
                self.bytes += key.len() as u64;
                self.keys += 1;
            }
        }
        replaced.is_some()
    }

    /// Removes a key, and tells whether it was there.
    pub(super) fn remove(&mut self, key: &[u8]) -> bool {
        let probe = Probe::new(key);
        let at = self.fences.find(&probe);
        // Only looks at first, so that nothing is copied for a key that is not there.
        let Some((value, _)) = self.directories[at].get(&probe) else { return false };
        self.keys -= 1;
        self.bytes -= (key.len() + value.len()) as u64;
        let directory = Arc::make_mut(&mut self.directories[at]);
        directory.remove(&probe);
        if directory.is_small() {
            self.mend(at);
        }
        true
    }

    /// Joins a small directory with one beside it, or drops it if it is empty.
    fn mend(&mut self, at: usize) {
        if self.directories.len() == 1 {
            return;
        }
        if self.directories[at].is_empty() {
            self.directories.remove(at);
            self.fences.remove(at);
            return;
        }
        let left = at.saturating_sub(1);
        if self.directories[left].fits(&self.directories[left + 1]) {
            let right = self.directories.remove(left + 1);
            let fence = self.fences.remove(left + 1);
            let right = Arc::unwrap_or_clone(right);
            Arc::make_mut(&mut self.directories[left]).join(fence, right);
        }
    }
}

#[cfg(test)]
mod tests;
