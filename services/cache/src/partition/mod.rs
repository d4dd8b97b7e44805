//! A partition of the cache: an index and a log with one owner.
//!
//! The design is MICA's (Lim et al., NSDI 2014), as HERD §4.1 uses it. The *log* has the items, in the order of their
//! storage; the *index* leads from a key's hash to the item. A look-up reads a line of the index and the item.
//!
//! - In [cache mode](Mode::Cache) the log releases the oldest items when it needs room, unless they were read or set
//!   again: such an item moves to the head once. A full bucket of the index releases its oldest item. The index keeps entries of released items: their positions are before the log's tail.
//! - In [store mode](Mode::Store) buckets overflow into others, and a *cleaner* moves the live items at the tail to the
//!   head. A value that would fill the log beyond 7/8 is refused with [`StoreError::Full`].
//!
//! A partition has no lock, reads no clock and allocates nothing after its creation, except for the scratch memory
//! of APPEND, PREPEND and the cleaner. The owner calls [`Partition::set_time`] and everything else.
//!
//! Departures from MICA: an item's header has a *dead* bit, so that the tail can count evictions without the index.
//! The index is scrubbed by one bucket per append, so an entry cannot outlive the range of its position. The tail gives
//! items that are in use another round (as CLOCK does), because eviction in the order of storage loses hot items.

mod arithmetic;
mod counters;
mod header;
mod index;
mod log;
mod meta;
mod room;
mod store;
#[cfg(test)]
mod tests;

pub use arithmetic::{Arithmetic, Counted};
pub use counters::Counters;
pub use index::Locator;
pub use meta::{Fetch, Fetched};
pub use store::{Store, Stored, Verb};

use petrel_batch::{batched, prefetch_lines};
use petrel_planted::planted;
use serde::{Deserialize, Serialize};

use self::header::{HEADER_BYTES, Header};
use self::index::{BUCKET_BYTES, Index, Inserted, Slot};
use self::log::{Log, Oldest};
use crate::error::ConfigError;
use crate::key::{Hasher, Key};
use crate::limits::{
    ACCESS_NOTED_EVERY_S, CACHE_ITEMS_PER_LOG_MIN, ITEM_BYTES_EXPECTED_DEFAULT, KEY_BYTES_MAX,
    LOOKUPS_TOGETHER_MAX, PARTITION_BYTES_MAX, PARTITION_BYTES_MIN, STORE_ITEMS_PER_LOG_MIN,
    VALUE_BYTES_MAX,
};

/// Cache lines of an item that are prefetched: header, key and value of a small item, wherever it begins.
const ITEM_LINES: usize = 2;

/// The behaviour of a partition whose memory is in use.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub enum Mode {
    /// Old items make place for new ones.
    #[default]
    Cache,
    /// New items are refused.
    Store,
}

/// The settings of a partition.
#[derive(Clone, Debug)]
pub struct PartitionConfig {
    /// Memory for index and log together, in bytes.
    pub memory_bytes: u64,
    /// The behaviour of a full partition.
    pub mode: Mode,
    /// The expected mean size of an item (key, value and 24 bytes), from which the index gets its size.
    pub item_bytes_expected: u32,
    /// The longest value.
    pub value_bytes_max: usize,
    /// The position of the first item. A test begins shortly before positions repeat in the index.
    #[doc(hidden)]
    pub first_position: u64,
}

impl PartitionConfig {
    /// A partition with this memory, in cache mode.
    pub fn new(memory_bytes: u64) -> Self {
        Self {
            memory_bytes,
            mode: Mode::Cache,
            item_bytes_expected: ITEM_BYTES_EXPECTED_DEFAULT,
            value_bytes_max: VALUE_BYTES_MAX,
            first_position: 0,
        }
    }

    /// Checks the memory.
    ///
    /// # Errors
    /// [`ConfigError`].
    pub fn check(&self) -> Result<(), ConfigError> {
        let (bytes, min, max) = (self.memory_bytes, PARTITION_BYTES_MIN, PARTITION_BYTES_MAX);
        if bytes < min || bytes > max {
            return Err(ConfigError::Memory { bytes, min, max });
        }
        Ok(())
    }

    /// The memory of the log, in bytes.
    pub(crate) fn log_bytes(&self) -> u64 {
        shares(self).1
    }

    /// The largest item, with header and key.
    fn item_bytes_max(&self) -> u64 {
        let items_min = match self.mode {
            Mode::Cache => CACHE_ITEMS_PER_LOG_MIN,
            Mode::Store => STORE_ITEMS_PER_LOG_MIN,
        };
        self.log_bytes() / 8 * 8 / items_min
    }

    /// The longest value that the partition takes under any key.
    pub(crate) fn value_bytes_max(&self) -> usize {
        let most = self.item_bytes_max() as usize / 8 * 8 - HEADER_BYTES - KEY_BYTES_MAX;
        most.min(self.value_bytes_max).min(VALUE_BYTES_MAX)
    }
}

/// A partition of the cache.
pub struct Partition {
    index: Index,
    log: Log,
    hasher: Hasher,
    mode: Mode,
    memory_bytes: u64,
    /// The largest item, with header and key.
    item_bytes_max: u64,
    value_bytes_max: usize,
    /// The second of the owner's clock.
    now: u32,
    /// The version of the last change.
    cas: u64,
    /// Items in the index, including items whose time is over and that no sweep has removed.
    items: u64,
    /// The bytes that these items take in the log.
    live_bytes: u64,
    counters: Counters,
    scratch: Vec<u8>,
    /// The bytes of items that may still move from the tail to the head, in cache mode.
    renewal_bytes: u64,
    /// The search of a full store for items whose time is over.
    sweep: Sweep,
    /// The second at which all items end.
    flush_due: Option<u32>,
}

/// An item as a look-up found it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Item<'a> {
    /// The value.
    pub value: &'a [u8],
    /// The client's flags.
    pub flags: u32,
    /// The version: another number after each change of the item.
    pub cas: u64,
    /// The second at which the item ends; 0 for never.
    pub expiry: u32,
}

/// A found item: the entry, and the item's position and header.
#[derive(Clone, Copy)]
struct Place {
    slot: Slot,
    position: u64,
    header: Header,
}

impl Place {
    #[inline]
    fn checked(self) -> Self {
        assert!(!self.header.is_dead(), "the index leads to a dead item");
        self
    }
}

/// The search of a full store for items whose time is over: a lap of the cleaner.
#[derive(Clone, Copy, Debug, Default)]
struct Sweep {
    /// The bytes of the log that the cleaner has not visited since the sweep began.
    left_bytes: u64,
    /// The last second in which a full store looked.
    second: u32,
    /// The bytes that the sweep has released in this second.
    spent_bytes: u64,
}

/// The outcome of a removal.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Removed {
    /// The item is gone, or stale if that was asked for.
    Done,
    /// There is no item.
    NotFound,
    /// The item has another version.
    Exists,
}

impl Partition {
    /// An empty partition.
    ///
    /// # Errors
    /// [`ConfigError`].
    pub fn new(config: &PartitionConfig, hasher: Hasher) -> Result<Self, ConfigError> {
        config.check()?;
        let bytes = config.memory_bytes;
        let (buckets, log_bytes) = shares(config);
        let log = Log::new(log_bytes, config.first_position);
        assert!(u64::from(buckets) * BUCKET_BYTES + log.capacity() <= bytes, "more than was given");
        Ok(Self {
            index: Index::new(buckets, config.mode == Mode::Store),
            item_bytes_max: config.item_bytes_max(),
            value_bytes_max: config.value_bytes_max.min(VALUE_BYTES_MAX),
            log,
            hasher,
            mode: config.mode,
            memory_bytes: bytes,
            now: 0,
            cas: 0,
            items: 0,
            live_bytes: 0,
            counters: Counters::default(),
            scratch: Vec::new(),
            renewal_bytes: 0,
            sweep: Sweep::default(),
            flush_due: None,
        })
    }

    /// Sets the time, in seconds of the owner's clock. The time of an expiry is of the same clock. Time does not go
    /// back: an earlier time changes nothing.
    pub fn set_time(&mut self, now: u32) {
        self.now = self.now.max(now);
        if self.flush_due.is_some_and(|second| second <= self.now) {
            self.remove_all();
        }
    }

    /// The time.
    pub fn time(&self) -> u32 {
        self.now
    }

    /// Items in the partition, with those whose time is over but whose space is not yet free.
    pub fn items(&self) -> u64 {
        self.items
    }

    /// The bytes of these items, with headers.
    pub fn live_bytes(&self) -> u64 {
        self.live_bytes
    }

    /// The memory of index and log, in bytes.
    pub fn memory_bytes(&self) -> u64 {
        self.memory_bytes
    }

    /// The memory of the log that items may take, in bytes.
    pub(crate) fn log_bytes(&self) -> u64 {
        self.log.limit()
    }

    /// The memory of the index, in bytes.
    pub(crate) fn index_bytes(&self) -> u64 {
        self.memory_bytes - self.log.capacity()
    }

    /// Seconds since the last access to the oldest item.
    pub(crate) fn age_s(&self) -> u64 {
        match self.log.oldest() {
            Some(Oldest::Item { header, .. }) => self.now.saturating_sub(header.accessed()).into(),
            _ => 0,
        }
    }

    /// Calls `each` for the key and the header of the items, from the oldest on, while `each` returns true.
    pub(crate) fn each_item(&self, mut each: impl FnMut(&[u8], usize, u32) -> bool) {
        let mut next = self.log.oldest();
        while let Some(object) = next {
            if let Oldest::Item { position, header } = object
                && !header.is_dead()
                && !header.is_expired(self.now)
                && !each(self.log.key(position, &header), header.value_bytes(), header.expiry)
            {
                return;
            }
            next = self.log.after(object);
        }
    }

    /// Leaves `bytes` of the log unused. The oldest items make place.
    pub(crate) fn leave_unused(&mut self, bytes: u64) {
        self.log.leave_unused(bytes);
        while self.log.is_beyond_limit() {
            let Some(oldest) = self.log.oldest() else { unreachable!("an empty log has room") };
            self.release_oldest(oldest);
        }
    }

    /// The behaviour of a full partition.
    pub fn mode(&self) -> Mode {
        self.mode
    }

    /// The counters.
    pub fn counters(&self) -> &Counters {
        &self.counters
    }

    /// Finds the memory that look-ups read first, as long as the partition lives.
    pub fn locator(&self) -> Locator {
        self.index.locator()
    }

    /// Prefetches the lines of the item that a look-up for this hash reads first, if the index has one.
    #[inline]
    pub fn prefetch_item(&self, hash: u64) {
        let first = self.index.find_first(hash, |offset| self.log.position(offset));
        prefetch_lines(first.map(|(_, position)| self.log.line(position)), ITEM_LINES);
    }

    /// Looks an item up, and counts the look-up.
    #[inline]
    pub fn get(&mut self, key: Key<'_>) -> Option<Item<'_>> {
        let place = self.find_any(key);
        self.end_get(key, place)
    }

    /// Looks several items up, so that the accesses to their memory overlap, and calls `each` for every key, in order.
    /// Results and counters are as after a [`Partition::get`] of every key. `each` gets the tag of every key.
    pub fn get_batch<'k, T: Copy>(
        &mut self,
        keys: impl IntoIterator<Item = (T, Key<'k>)>,
        mut each: impl FnMut(T, Option<Item<'_>>),
    ) {
        let mut keys = keys.into_iter();
        loop {
            let (mut group, mut len) = ([None; LOOKUPS_TOGETHER_MAX], 0);
            for (member, key) in group.iter_mut().zip(keys.by_ref()) {
                *member = Some(key);
                len += 1;
            }
            self.get_group(&group[..len], &mut each);
            if len < group.len() {
                return;
            }
        }
    }

    #[inline]
    fn get_group<T: Copy>(
        &mut self,
        group: &[Option<(T, Key<'_>)>],
        each: &mut impl FnMut(T, Option<Item<'_>>),
    ) {
        let keys = || group.iter().flatten().copied();
        let mut places = [None; LOOKUPS_TOGETHER_MAX];
        self.find_any_batch(keys().map(|(_, key)| key), |index, place| places[index] = place);
        for ((tag, key), place) in keys().zip(places) {
            let place = match place {
                // An earlier look-up of the group may have removed this item, whose time is over.
                Some(place) if place.header.is_expired(self.now) => self.find_any(key),
                place => place,
            };
            each(tag, self.end_get(key, place));
        }
    }

    /// Counts a look-up, and notes the access to an item that was found.
    #[inline(always)]
    fn end_get(&mut self, key: Key<'_>, place: Option<Place>) -> Option<Item<'_>> {
        self.counters.cmd_get += 1;
        let Some(place) = self.living_counted(key, place) else {
            self.counters.get_misses += 1;
            return None;
        };
        self.counters.get_hits += 1;
        let header = self.note_access(&place);
        Some(self.item(place.position, &header))
    }

    /// Looks an item up and changes its expiry.
    pub fn get_and_touch(&mut self, key: Key<'_>, expiry: u32) -> Option<Item<'_>> {
        self.counters.cmd_get += 1;
        self.counters.cmd_touch += 1;
        let Some(place) = self.find_counted(key) else {
            self.counters.get_misses += 1;
            self.counters.touch_misses += 1;
            return None;
        };
        self.counters.get_hits += 1;
        self.counters.touch_hits += 1;
        let header = self.note_access(&place).ending_at(expiry);
        self.log.set_header(place.position, header);
        Some(self.item(place.position, &header))
    }

    /// Changes the expiry of an item. Returns whether there is one.
    pub fn touch(&mut self, key: Key<'_>, expiry: u32) -> bool {
        self.counters.cmd_touch += 1;
        let Some(place) = self.find(key) else {
            self.counters.touch_misses += 1;
            return false;
        };
        self.counters.touch_hits += 1;
        let header = place.header.ending_at(expiry).referenced(true);
        self.log.set_header(place.position, header);
        true
    }

    /// Removes an item, if the version equals `compare`.
    pub fn delete(&mut self, key: Key<'_>, compare: Option<u64>) -> Removed {
        let Some(place) = self.find(key) else {
            self.counters.delete_misses += 1;
            return Removed::NotFound;
        };
        if compare.is_some_and(|cas| cas != place.header.cas) {
            return Removed::Exists;
        }
        self.counters.delete_hits += 1;
        self.drop_item(key, &place);
        Removed::Done
    }

    /// Removes all items.
    pub fn flush(&mut self) {
        self.flush_at(0);
    }

    /// Removes all items at this second, or at once if it is over. A later request replaces an earlier one.
    pub fn flush_at(&mut self, second: u32) {
        self.counters.cmd_flush += 1;
        match second <= self.now {
            true => self.remove_all(),
            false => self.flush_due = Some(second),
        }
    }

    /// Sets the counters to zero.
    pub fn reset_counters(&mut self) {
        self.counters = Counters::default();
    }

    /// Removes all items, and leaves the positions of the next `bytes` out: a test comes to repeated positions within few items.
    #[doc(hidden)]
    pub fn skip_positions(&mut self, bytes: u64) {
        self.remove_all();
        self.log.skip(bytes);
    }

    fn remove_all(&mut self) {
        if !planted("cache_flushes_again") {
            self.flush_due = None;
        }
        self.log.clear();
        if self.mode == Mode::Store {
            self.index.clear();
        }
        (self.items, self.live_bytes) = (0, 0);
    }

    /// Finds an item. Removes an item whose time is over.
    #[inline]
    fn find(&mut self, key: Key<'_>) -> Option<Place> {
        let place = self.find_any(key)?;
        self.living(key, place)
    }

    /// As [`Partition::find`], for look-ups: counts an item whose time is over.
    #[inline]
    fn find_counted(&mut self, key: Key<'_>) -> Option<Place> {
        let place = self.find_any(key);
        self.living_counted(key, place)
    }

    #[inline]
    fn living_counted(&mut self, key: Key<'_>, place: Option<Place>) -> Option<Place> {
        let living = self.living(key, place?);
        self.counters.get_expired += u64::from(living.is_none());
        living
    }

    /// Returns an item that was found, or removes the item if its time is over.
    #[inline]
    fn living(&mut self, key: Key<'_>, place: Place) -> Option<Place> {
        if !place.header.is_expired(self.now) {
            return Some(place);
        }
        self.count_expired(&place.header);
        self.drop_item(key, &place);
        None
    }

    /// Finds an item whose time may be over.
    #[batched(width = LOOKUPS_TOGETHER_MAX)]
    #[inline(always)]
    fn find_any(&self, key: Key<'_>) -> Option<Place> {
        prefetch!(self.index.line(key.hash()));
        let first = self.index.find_first(key.hash(), |offset| self.log.position(offset));
        prefetch!(first.map(|(_, position)| self.log.line(position)), lines = ITEM_LINES);
        let (slot, position) = first?;
        let place = Place { slot, position, header: self.log.header(position) };
        match self.log.key(position, &place.header) == key.bytes() {
            true => Some(place.checked()),
            false => self.find_among_equal_tags(key),
        }
    }

    /// Finds an item behind another item with an equal tag in the bucket.
    #[cold]
    fn find_among_equal_tags(&self, key: Key<'_>) -> Option<Place> {
        let is_key = |position| self.log.key(position, &self.log.header(position)) == key.bytes();
        let (slot, position) = self.index.find_first(key.hash(), |offset| {
            self.log.position(offset).filter(|position| is_key(*position))
        })?;
        Some(Place { slot, position, header: self.log.header(position) }.checked())
    }

    /// Notes in the header that a client has fetched the item. An item that is fetched often stays unchanged for a while,
    /// and its line in the processor's cache clean.
    #[inline]
    fn note_access(&mut self, place: &Place) -> Header {
        let Place { position, header, .. } = *place;
        let idle_s = self.now.saturating_sub(header.accessed());
        let is_noted = header.is_fetched() && header.is_referenced();
        if is_noted && idle_s < ACCESS_NOTED_EVERY_S {
            return header;
        }
        let header = header.fetched_at(self.now);
        self.log.set_header(position, header);
        header
    }

    #[inline]
    fn item(&self, position: u64, header: &Header) -> Item<'_> {
        let value = self.log.value(position, header);
        Item { value, flags: header.flags, cas: header.cas, expiry: header.expiry }
    }

    fn next_cas(&mut self) -> u64 {
        self.cas += 1;
        self.cas
    }

    fn count_expired(&mut self, header: &Header) {
        self.counters.reclaimed += 1;
        self.counters.expired_unfetched += u64::from(!header.is_fetched());
    }

    /// Counts a displaced item. Returns whether the item is evicted: an expired item is not.
    fn count_displaced(&mut self, header: &Header) -> bool {
        if header.is_expired(self.now) && !planted("cache_ended_item_is_evicted") {
            self.count_expired(header);
            return false;
        }
        self.counters.evictions += 1;
        self.counters.evicted_unfetched += u64::from(!header.is_fetched());
        true
    }

    fn drop_item(&mut self, key: Key<'_>, place: &Place) {
        self.index.remove(key.hash(), place.slot);
        self.bury(place.position);
    }

    /// Marks an item as dead, which the index does not lead to any more.
    fn bury(&mut self, position: u64) {
        let header = self.log.header(position);
        self.log.set_header(position, header.dead());
        self.uncount(&header);
    }

    fn uncount(&mut self, header: &Header) {
        assert!(self.items > 0 && self.live_bytes >= header.space(), "the counts are too low");
        self.items -= 1;
        self.live_bytes -= header.space();
    }
}

/// Divides a partition's memory between the index, in buckets, and the log, in bytes.
fn shares(config: &PartitionConfig) -> (u32, u64) {
    let item_bytes = u64::from(config.item_bytes_expected.max(HEADER_BYTES as u32 + 8));
    // A bucket of eight entries for five items. In a bucket that hashing gives more than eight (2.4 % of all items, by
    // the Poisson distribution) the oldest are evicted early.
    let buckets = config.memory_bytes / (5 * item_bytes + BUCKET_BYTES);
    // The log needs half of the memory at least, however small the items are.
    let buckets = buckets.clamp(8, config.memory_bytes / 2 / BUCKET_BYTES);
    let buckets = u32::try_from(buckets).unwrap_or(u32::MAX);
    // A line is for the log's alignment.
    let log_bytes = config.memory_bytes - (u64::from(buckets) + 1) * BUCKET_BYTES;
    (buckets, log_bytes)
}
