//! Making room in the log: eviction in cache mode, cleaning in store mode.

use petrel_planted::planted;

use super::log::Oldest;
use super::{Header, Inserted, Log, Mode, Partition};
use crate::error::StoreError;
use crate::limits::{
    RENEWAL_BYTES_MAX, RENEWED_PER_BYTE, STORE_FILL_EIGHTHS, SWEEP_BYTES_MAX,
    SWEEP_BYTES_PER_S_MAX, SWEEP_SHARE_PER_S,
};

impl Partition {
    /// Checks the size of an item, with header and key.
    pub(super) fn check_size(&mut self, header: &Header) -> Result<(), StoreError> {
        let bytes = header.space();
        if bytes <= self.item_bytes_max && header.value_bytes() <= self.value_bytes_max {
            return Ok(());
        }
        self.counters.store_too_large += 1;
        let max = (self.item_bytes_max as usize).min(self.value_bytes_max);
        Err(StoreError::TooLarge { bytes: bytes as usize, max })
    }

    /// Makes room for an item of this space, which replaces an item of `replaced` bytes. Positions that the caller has
    /// found before are not valid any more.
    pub(super) fn make_room(&mut self, space: u64, replaced: u64) -> Result<(), StoreError> {
        match self.mode {
            Mode::Cache => self.evict(space),
            Mode::Store => self.clean(space, replaced)?,
        }
        assert!(self.log.needed(space) <= self.log.free(), "no room after making room");
        Ok(())
    }

    /// Releases the oldest items until an item of this space fits. An item that was read or set again since it came to
    /// its place goes to the head once more: so hot items stay, and a scan pushes none out. Each new item earns a budget
    /// for these moves.
    fn evict(&mut self, space: u64) {
        let head = self.log.head();
        self.renewal_bytes = (self.renewal_bytes + RENEWED_PER_BYTE * space).min(RENEWAL_BYTES_MAX);
        while self.log.needed(space) > self.log.free() {
            let Some(oldest) = self.log.oldest() else { unreachable!("an empty log has room") };
            if let Oldest::Item { position, header } = oldest
                && !header.is_dead()
                && header.is_referenced()
                && !header.is_expired(self.now)
                && header.space() <= self.renewal_bytes
                && self.renew(position, header)
            {
                continue;
            }
            self.release_oldest(oldest);
        }
        let Self { index, log, .. } = self;
        let bytes = log.needed(space) + log.head() - head;
        index.scrub(bytes, |offset| log.position(offset).is_some());
    }

    /// Releases the object at the tail; an item is then evicted, or its time is over.
    pub(super) fn release_oldest(&mut self, oldest: Oldest) {
        if let Oldest::Item { header, .. } = oldest
            && !header.is_dead()
        {
            self.count_displaced(&header);
            self.uncount(&header);
        }
        self.log.release(oldest);
    }

    /// Moves the item at the tail of a full log to the head. Returns false if the item does not fit before the end of
    /// the memory, where it would need more than its own space.
    fn renew(&mut self, position: u64, header: Header) -> bool {
        if self.log.needed(header.space()) > self.log.free() + header.space() {
            return false;
        }
        self.renewal_bytes -= header.space();
        self.copy_item(position, header.referenced(false), |log| {
            log.release(Oldest::Item { position, header });
        });
        true
    }

    /// Moves live items until a new item fits beside two of the greatest size.
    fn clean(&mut self, space: u64, replaced: u64) -> Result<(), StoreError> {
        if !self.has_store_room(space, replaced) {
            self.sweep();
        }
        if !self.has_store_room(space, replaced) {
            self.counters.store_no_memory += 1;
            return Err(StoreError::Full);
        }
        let spare = 2 * self.item_bytes_max;
        self.clean_until(|log, _| log.needed(space) + spare <= log.free());
        Ok(())
    }

    /// Looks for items whose time is over, in a full store: they count until the cleaner meets them. A sweep is a lap of
    /// the cleaner, over as many requests as its budgets demand.
    fn sweep(&mut self) {
        if self.sweep.second != self.now {
            self.sweep.second = self.now;
            if !planted("cache_second_sweep_has_no_budget") {
                self.sweep.spent_bytes = 0;
            }
            if self.sweep.left_bytes == 0 && self.log.may_have_expired(self.now) {
                // A whole lap moves every live item, and thereby notes its expiry again.
                self.log.forget_expiries();
                self.sweep.left_bytes = self.log.capacity();
            }
        }
        let share = self.log.capacity() / SWEEP_SHARE_PER_S;
        let second = share.clamp(SWEEP_BYTES_MAX, SWEEP_BYTES_PER_S_MAX);
        let budget = SWEEP_BYTES_MAX.min(second - self.sweep.spent_bytes.min(second));
        let bytes = self.sweep.left_bytes.min(budget);
        let released = self.clean_until(|_, released| released >= bytes);
        self.sweep.spent_bytes += released;
        // An empty log has nothing left to look at.
        let left = self.sweep.left_bytes.saturating_sub(released);
        self.sweep.left_bytes = if self.log.oldest().is_none() { 0 } else { left };
    }

    fn has_store_room(&self, space: u64, replaced: u64) -> bool {
        let limit = self.log.capacity() / 8 * STORE_FILL_EIGHTHS;
        self.live_bytes - replaced + space <= limit
    }

    /// Takes items from the tail and appends the live ones, until `is_done` says so of the log and the bytes released.
    /// Returns these bytes.
    fn clean_until(&mut self, is_done: impl Fn(&Log, u64) -> bool) -> u64 {
        let mut released = 0;
        while !is_done(&self.log, released) {
            assert!(released <= 2 * self.log.capacity(), "a lap of the cleaner frees an eighth");
            let Some(oldest) = self.log.oldest() else { break };
            let before = self.log.free();
            match oldest {
                Oldest::Padding { .. } => self.log.release(oldest),
                Oldest::Item { header, .. } if header.is_dead() => self.log.release(oldest),
                Oldest::Item { position, header } if header.is_expired(self.now) => {
                    self.count_expired(&header);
                    self.forget(position, &header);
                    self.log.release(oldest);
                }
                Oldest::Item { position, header } => {
                    self.move_item(position, header);
                    self.log.release(oldest);
                    released += header.space();
                    continue;
                }
            }
            released += self.log.free() - before;
        }
        released
    }

    /// Takes an item out of the index and of the counts, by its position.
    fn forget(&mut self, position: u64, header: &Header) {
        let hash = self.hasher.hash(self.log.key(position, header));
        let offset = Log::offset(position);
        let slot = self.index.find(hash, |found| found == offset);
        self.index.remove(hash, slot.expect("a live item has an entry"));
        self.uncount(header);
    }

    /// Appends a copy of the item at the tail, and lets its entry lead there.
    fn move_item(&mut self, position: u64, header: Header) {
        self.copy_item(position, header, |_| ());
    }

    /// Reads an item, makes room for the copy, appends the copy, and lets the item's entry lead there.
    fn copy_item(&mut self, position: u64, header: Header, make_room: impl FnOnce(&mut Log)) {
        let key_bytes = header.key_bytes();
        self.scratch.clear();
        self.scratch.extend_from_slice(self.log.key(position, &header));
        self.scratch.extend_from_slice(self.log.value(position, &header));
        let (key, value) = self.scratch.split_at(key_bytes);
        let (hash, offset) = (self.hasher.hash(key), Log::offset(position));
        let slot = self.index.find(hash, |found| found == offset);
        make_room(&mut self.log);
        let copy = self.log.append(header, key, value);
        self.index.set(slot.expect("a live item has an entry"), Log::offset(copy));
        self.counters.moved_items += 1;
    }

    /// Adds the entry of a new item. A full bucket of a cache loses its oldest item.
    pub(super) fn insert(&mut self, hash: u64, position: u64) -> Result<(), StoreError> {
        let Self { index, log, .. } = self;
        let age = |offset| log.position(offset).map(|position| log.age(position));
        match index.insert(hash, Log::offset(position), age) {
            Inserted::Free => Ok(()),
            Inserted::Replaced(offset) => {
                let Some(old) = self.log.position(offset) else {
                    unreachable!("an entry without an item is free")
                };
                let is_evicted = self.count_displaced(&self.log.header(old));
                let is_evicted = is_evicted || planted("cache_ended_item_evicted_by_index");
                self.counters.index_evictions += u64::from(is_evicted);
                self.bury(old);
                Ok(())
            }
            Inserted::Full => {
                self.counters.store_no_memory += 1;
                Err(StoreError::Full)
            }
        }
    }
}
