//! Directories: up to 256 pages, with fences between the pages.

use std::sync::Arc;

use super::fences::{Fence, Fences, Probe};
use super::page::Page;

/// Most pages of a directory. The heads of the fences take 4 KiB, and copying a directory for an image touches 256
/// reference counts.
const PAGES_MAX: usize = 256;

/// A directory with fewer pages is joined with a neighbour, if the two together are at most three quarters full.
const PAGES_SMALL: usize = PAGES_MAX / 4;

/// Consecutive pages.
#[derive(Debug, Clone)]
pub(super) struct Directory {
    fences: Fences,
    /// Never empty. Only a directory's single page may be empty.
    pages: Vec<Arc<Page>>,
}

impl Default for Directory {
    fn default() -> Directory {
        Directory { fences: Fences::whole(), pages: vec![Arc::default()] }
    }
}

impl Directory {
    pub(super) fn pages(&self) -> &[Arc<Page>] {
        &self.pages
    }

    /// The index of the page whose range has the key.
    #[inline]
    pub(super) fn find(&self, probe: &Probe<'_>) -> usize {
        self.fences.find(probe)
    }

    /// The page whose range has the key.
    #[inline]
    pub(super) fn page(&self, probe: &Probe<'_>) -> &Arc<Page> {
        &self.pages[self.find(probe)]
    }

    #[inline]
    pub(super) fn get(&self, probe: &Probe<'_>) -> Option<(&[u8], u64)> {
        self.pages[self.find(probe)].get(probe)
    }

    /// Sets a key, and returns the length of its former value. In the last directory, pages filled in key order become
    /// full.
    pub(super) fn put(
        &mut self,
        probe: &Probe<'_>,
        value: &[u8],
        revision: u64,
        last: bool,
    ) -> Option<usize> {
        let at = self.find(probe);
        let last = last && at + 1 == self.pages.len();
        let page = Arc::make_mut(&mut self.pages[at]);
        let Some(entry) = page.find(probe) else {
            self.insert(at, probe, value, revision, last);
            return None;
        };
        Some(page.replace(entry, value, revision))
    }

    /// Removes an existing key.
    pub(super) fn remove(&mut self, probe: &Probe<'_>) {
        let at = self.find(probe);
        let page = Arc::make_mut(&mut self.pages[at]);
        page.remove(page.find(probe).expect("the key is there"));
        if page.is_small() {
            self.rebalance(at);
        }
    }

    pub(super) fn is_empty(&self) -> bool {
        self.pages.iter().all(|page| page.len() == 0)
    }

    pub(super) fn is_small(&self) -> bool {
        self.pages.len() < PAGES_SMALL
    }

    pub(super) fn is_too_large(&self) -> bool {
        self.pages.len() > PAGES_MAX
    }

    /// Returns true if the pages of `other` fit, too, with spare room.
    pub(super) fn fits(&self, other: &Directory) -> bool {
        self.pages.len() + other.pages.len() <= PAGES_MAX * 3 / 4
    }

    /// Splits off the upper half of the pages, or only the last page when filled in order.
    pub(super) fn split(&mut self, in_order: bool) -> (Fence, Directory) {
        let at = if in_order { self.pages.len() - 1 } else { self.pages.len() / 2 };
        let (fence, fences) = self.fences.split_off(at);
        (fence, Directory { fences, pages: self.pages.split_off(at) })
    }

    /// Appends the pages of the next directory, which begins at `fence`.
    pub(super) fn join(&mut self, fence: Fence, right: Directory) {
        self.fences.join(fence, right.fences);
        self.pages.extend(right.pages);
    }

    /// Inserts a new key into a page, and splits a full page.
    fn insert(&mut self, at: usize, probe: &Probe<'_>, value: &[u8], revision: u64, last: bool) {
        let page = Arc::make_mut(&mut self.pages[at]);
        let place = page.place(probe.key);
        if page.has_room(probe.key, value) {
            return page.insert(place, probe, value, revision);
        }
        let in_order = last && place == page.len();
        let split = if in_order { place } else { page.len() / 2 };
        let mut right = page.split_off(split);
        let (target, place) = if place > split || in_order {
            (&mut right, place - split)
        } else {
            (&mut *page, place)
        };
        target.insert(place, probe, value, revision);
        let fence = Fence::between(page.key(page.len() - 1), right.key(0));
        self.fences.insert(at + 1, fence);
        self.pages.insert(at + 1, Arc::new(right));
    }

    /// Joins a small page with a neighbour, or drops an empty page.
    fn rebalance(&mut self, at: usize) {
        if self.pages.len() == 1 {
            return;
        }
        if self.pages[at].len() == 0 {
            self.pages.remove(at);
            self.fences.remove(at);
            return;
        }
        let left = at.saturating_sub(1);
        if self.pages[left].fits(&self.pages[left + 1]) {
            let right = self.pages.remove(left + 1);
            self.fences.remove(left + 1);
            Arc::make_mut(&mut self.pages[left]).join(&right);
        }
    }
}
