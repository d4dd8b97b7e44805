//! The keys, in order, with cheap images.
//!
//! The map has three levels: *directories* of *pages* of *entries*. A page has up to 64 entries, a directory up to 256
//! pages. Both are reference-counted. An image copies only the list of directories; a later change first copies the
//! page and its directory if an image shares them.
//!
//! A lookup compares the first 16 bytes of the key, as one number, with the *fences* between directories and between
//! pages; both tables are mostly in the cache. A byte of the key's hash then finds the entry in its page. A lookup thus
//! reads some three places of uncached memory; a binary search in the page would read twice as many. Values up to 1 KiB
//! are stored in the page, and are overwritten in place.

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

/// Keys prefetched together: about the number of cache misses that a core keeps outstanding.
pub const PREFETCH_MAX: usize = 16;

/// Number of commands from which on prefetching pays.
pub(crate) const PREFETCH_MIN: usize = 4;

/// Keys with values and revisions.
#[derive(Debug, Clone)]
pub(super) struct Map {
    fences: Fences,
    /// Never empty. Each directory has at least a page, and each page at least an entry, except in a map without keys.
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

    /// Prefetches memory for changes of these keys, with overlapping cache misses: every step runs for all keys before
    /// the next, dependent step.
    pub(super) fn prefetch<'k>(&self, keys: impl Iterator<Item = &'k [u8]>) {
        let mut found: [Option<(&Arc<Page>, Probe<'_>)>; PREFETCH_MAX] =
            [const { None }; PREFETCH_MAX];
        for (place, key) in found.iter_mut().zip(keys) {
            let probe = Probe::new(key);
            let page = self.directories[self.fences.find(&probe)].page(&probe);
            petrel::endpoint::prefetch(ptr::from_ref(page).cast());
            *place = Some((page, probe));
        }
        for (page, _) in found.iter().flatten() {
            page.prefetch_tables();
        }
        for (page, probe) in found.iter().flatten() {
            page.prefetch_record(probe);
        }
    }

    /// Sets a key. Returns true if the key existed.
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

    /// Removes a key. Returns true if the key existed.
    pub(super) fn remove(&mut self, key: &[u8]) -> bool {
        let probe = Probe::new(key);
        let at = self.fences.find(&probe);
        // Looks the key up first, to copy nothing for an absent key.
        let Some((value, _)) = self.directories[at].get(&probe) else { return false };
        self.keys -= 1;
        self.bytes -= (key.len() + value.len()) as u64;
        let directory = Arc::make_mut(&mut self.directories[at]);
        directory.remove(&probe);
        if directory.is_small() {
            self.rebalance(at);
        }
        true
    }

    /// Joins a small directory with a neighbour, or drops an empty directory.
    fn rebalance(&mut self, at: usize) {
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
