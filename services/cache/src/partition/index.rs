//! MICA's index: buckets of a cache line, with entries that lead to the log.
//!
//! An entry is one word: bit 63 says that the entry is in use, 19 bits are a tag from the key's hash, 44 bits a
//! position in the log. In cache mode a bucket has eight entries, and a ninth item of a bucket replaces the oldest. In
//! store mode the last word of a bucket links to an overflow bucket, and nothing is replaced.

use petrel_planted::planted;
use petrel_transport::huge_pages::filled;

use super::log::{OFFSET_BITS, POSITION_BITS};

/// Words of a bucket.
const WORDS: usize = 8;

/// The word with the link to an overflow bucket, in store mode: its number, or 0.
const LINK: usize = WORDS - 1;

const IN_USE: u64 = 1 << 63;
const TAG_MASK: u64 = !(u64::MAX >> 20) & !IN_USE;
const OFFSET_MASK: u64 = (1 << OFFSET_BITS) - 1;

pub(super) const BUCKET_BYTES: u64 = 64;

/// Finds the memory that a look-up reads first, to prefetch it.
#[derive(Clone, Copy, Debug)]
pub struct Locator {
    first: *const u8,
    homes: u32,
}

impl Locator {
    /// The address of the bucket for a hash: for a prefetch, not for reading.
    #[inline]
    pub fn address(&self, hash: u64) -> *const u8 {
        self.first.wrapping_add(home(hash, self.homes) as usize * BUCKET_BYTES as usize)
    }
}

#[derive(Clone, Copy)]
#[repr(align(64))]
struct Bucket([u64; WORDS]);

pub(super) struct Index {
    buckets: Box<[Bucket]>,
    /// Buckets that hashes lead to; further buckets are for overflow.
    homes: u32,
    /// Entries of a bucket.
    ways: usize,
    /// The first free overflow bucket, which links to the next; 0 for none.
    free: u32,
    /// The bucket that the next scrub visits.
    scrubbed: u32,
}

/// The place of an entry.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Slot {
    bucket: u32,
    way: u8,
}

/// The outcome of an insertion.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Inserted {
    /// The bucket had room.
    Free,
    /// The bucket had no room, and the entry with this offset made place.
    Replaced(u64),
    /// The bucket had no room, and there is no overflow bucket left: nothing was inserted.
    Full,
}

impl Index {
    /// An empty index of this many buckets. With overflow, an eighth of the buckets is for overflow.
    pub(super) fn new(buckets: u32, has_overflow: bool) -> Self {
        let spares = if has_overflow { buckets.div_ceil(8) } else { 0 };
        let mut index = Self {
            buckets: filled(buckets as usize, || Bucket([0; WORDS])),
            homes: buckets - spares,
            ways: if has_overflow { LINK } else { WORDS },
            free: 0,
            scrubbed: 0,
        };
        assert!(index.homes > 0, "{buckets} buckets");
        index.free_spares();
        index
    }

    pub(super) fn clear(&mut self) {
        self.buckets.fill(Bucket([0; WORDS]));
        self.free_spares();
    }

    fn free_spares(&mut self) {
        self.free = 0;
        for spare in self.homes..self.buckets.len() as u32 {
            self.buckets[spare as usize].0[LINK] = self.free.into();
            self.free = spare;
        }
    }

    fn has_overflow(&self) -> bool {
        self.ways == LINK
    }

    #[inline]
    fn home(&self, hash: u64) -> u32 {
        home(hash, self.homes)
    }

    /// The addresses of the buckets, which stay while the index lives.
    pub(super) fn locator(&self) -> Locator {
        Locator { first: self.buckets.as_ptr().cast(), homes: self.homes }
    }

    #[inline]
    fn next(&self, bucket: u32) -> Option<u32> {
        let link = if self.has_overflow() { self.buckets[bucket as usize].0[LINK] } else { 0 };
        (link != 0).then_some(link as u32)
    }

    /// The line of the index that a look-up reads first.
    #[inline]
    pub(super) fn line(&self, hash: u64) -> *const u8 {
        self.locator().address(hash)
    }

    /// Returns the first entry of the hash whose offset `is_match` accepts.
    pub(super) fn find(&self, hash: u64, is_match: impl Fn(u64) -> bool) -> Option<Slot> {
        self.find_first(hash, |offset| is_match(offset).then_some(())).map(|(slot, ())| slot)
    }

    /// Returns the first entry of the hash for whose offset `position` returns a value, and the value.
    #[inline(always)]
    pub(super) fn find_first<P>(
        &self,
        hash: u64,
        mut position: impl FnMut(u64) -> Option<P>,
    ) -> Option<(Slot, P)> {
        let wanted = entry(hash, 0);
        let mut bucket = self.home(hash);
        loop {
            let entries = &self.buckets[bucket as usize].0[..self.ways];
            for (way, entry) in entries.iter().enumerate() {
                if entry & !OFFSET_MASK == wanted
                    && let Some(position) = position(entry & OFFSET_MASK)
                {
                    return Some((Slot { bucket, way: way as u8 }, position));
                }
            }
            bucket = self.next(bucket)?;
        }
    }

    #[inline]
    fn entry_mut(&mut self, slot: Slot) -> &mut u64 {
        &mut self.buckets[slot.bucket as usize].0[usize::from(slot.way)]
    }

    /// Changes the offset of an entry.
    pub(super) fn set(&mut self, slot: Slot, offset: u64) {
        let entry = self.entry_mut(slot);
        assert!(
            *entry & IN_USE != 0 && offset <= OFFSET_MASK,
            "entry {entry:x}, offset {offset:x}"
        );
        *entry = *entry & !OFFSET_MASK | offset;
    }

    pub(super) fn remove(&mut self, hash: u64, slot: Slot) {
        let entry = self.entry_mut(slot);
        assert!(*entry & IN_USE != 0, "the entry has been removed");
        *entry = 0;
        self.release_empty(self.home(hash));
    }

    /// Takes the empty overflow buckets out of a home bucket's chain.
    fn release_empty(&mut self, home: u32) {
        let mut last = home;
        while let Some(next) = self.next(last) {
            let words = self.buckets[next as usize].0;
            if words[..self.ways].iter().any(|entry| *entry != 0) {
                last = next;
                continue;
            }
            self.buckets[last as usize].0[LINK] = words[LINK];
            self.buckets[next as usize].0[LINK] = self.free.into();
            self.free = next;
        }
    }

    /// Adds an entry. `age` returns the age of an entry's item, or `None` if the log has released the item. The caller
    /// has made sure that the key has no entry.
    pub(super) fn insert(
        &mut self,
        hash: u64,
        offset: u64,
        age: impl Fn(u64) -> Option<u64>,
    ) -> Inserted {
        let new = entry(hash, offset);
        let mut bucket = self.home(hash);
        let mut oldest: Option<(u64, Slot, u64)> = None;
        loop {
            for way in 0..self.ways {
                let slot = Slot { bucket, way: way as u8 };
                let old = *self.entry_mut(slot);
                let item_age = if old == 0 { None } else { age(old & OFFSET_MASK) };
                let Some(item_age) = item_age else {
                    *self.entry_mut(slot) = new;
                    return Inserted::Free;
                };
                if oldest.is_none_or(|(age, ..)| age < item_age) {
                    oldest = Some((item_age, slot, old & OFFSET_MASK));
                }
            }
            let Some(next) = self.next(bucket) else { break };
            bucket = next;
        }
        match oldest {
            _ if self.has_overflow() => self.extend(bucket, new),
            Some((_, slot, old)) => {
                *self.entry_mut(slot) = new;
                Inserted::Replaced(old)
            }
            None => unreachable!("a bucket without room has entries"),
        }
    }

    /// Appends an overflow bucket with one entry to a chain.
    fn extend(&mut self, last: u32, new: u64) -> Inserted {
        if self.free == 0 {
            return Inserted::Full;
        }
        let spare = self.free as usize;
        self.free = self.buckets[spare].0[LINK] as u32;
        self.buckets[spare] = Bucket([0; WORDS]);
        self.buckets[spare].0[0] = new;
        self.buckets[last as usize].0[LINK] = spare as u64;
        Inserted::Free
    }

    /// Removes the entries of some buckets whose items the log has released. Each call visits the next buckets, in
    /// proportion to the `bytes` by which the log's head advances. Without these visits an entry could outlive 2^44
    /// words of appends, and lead to a stranger's bytes.
    pub(super) fn scrub(&mut self, bytes: u64, is_live: impl Fn(u64) -> bool) {
        for _ in 0..scrubs(self.homes, bytes) {
            for entry in &mut self.buckets[self.scrubbed as usize].0[..self.ways] {
                if *entry != 0 && !is_live(*entry & OFFSET_MASK) {
                    *entry = 0;
                }
            }
            let first = if planted("cache_scrubs_one_lap") { self.scrubbed } else { 0 };
            self.scrubbed = if self.scrubbed + 1 < self.homes { self.scrubbed + 1 } else { first };
        }
    }
}

/// The buckets to visit for an advance of the log: all of them twice before offsets repeat, and one at least.
fn scrubs(homes: u32, bytes: u64) -> u32 {
    let share = (u128::from(homes) * u128::from(bytes)) >> (POSITION_BITS - 1);
    u32::try_from(share).unwrap_or(u32::MAX).saturating_add(1)
}

/// The home bucket of a hash. The partition's number comes from the highest bits, the tag from the lowest.
#[inline]
fn home(hash: u64, homes: u32) -> u32 {
    ((((hash >> 20) & u64::from(u32::MAX)) * u64::from(homes)) >> 32) as u32
}

#[inline]
fn entry(hash: u64, offset: u64) -> u64 {
    IN_USE | hash << OFFSET_BITS & TAG_MASK | offset
}

#[cfg(test)]
mod tests {
    use super::*;

    fn live(offset: u64) -> Option<u64> {
        Some(1_000_000 - offset)
    }

    #[test]
    fn insert__replaces_the_oldest_of_a_full_bucket() {
        let mut index = Index::new(1, false);
        for offset in 1..=8 {
            assert_eq!(index.insert(offset, offset, live), Inserted::Free);
        }
        assert_eq!(index.insert(9, 9, live), Inserted::Replaced(1));
        assert_eq!(index.find(1, |_| true), None);
        assert!(index.find(9, |offset| offset == 9).is_some());
    }

    #[test]
    fn insert__takes_the_place_of_a_released_item() {
        let mut index = Index::new(1, false);
        for offset in 1..=8 {
            index.insert(offset, offset, live);
        }
        let inserted = index.insert(9, 9, |offset| (offset != 5).then_some(offset));
        assert_eq!((inserted, index.find(5, |_| true)), (Inserted::Free, None));
    }

    #[test]
    fn insert__loses_nothing_with_overflow_and_says_when_it_is_full() {
        // Eight buckets: seven homes and one for overflow. Equal hashes lead to one home.
        let mut index = Index::new(8, true);
        for offset in 1..=14 {
            assert_eq!(index.insert(3, offset, live), Inserted::Free);
        }
        assert_eq!(index.insert(3, 15, live), Inserted::Full);
        for offset in 1..=14 {
            assert!(index.find(3, |found| found == offset).is_some(), "{offset}");
        }
    }

    #[test]
    fn remove__gives_empty_overflow_buckets_back() {
        let mut index = Index::new(8, true);
        for round in 0..3 {
            for offset in 1..=14 {
                assert_eq!(index.insert(round, offset, live), Inserted::Free, "{round}");
            }
            for offset in 1..=14 {
                let slot = index.find(round, |found| found == offset).unwrap();
                index.remove(round, slot);
            }
        }
    }

    /// Large items are few: at a bucket for each, the visits would take longer than the positions last.
    #[test]
    fn scrubs__visit_all_buckets_before_positions_repeat() {
        for homes in [1, 1 << 20, 1 << 30, u32::MAX] {
            for bytes in [32, 4_096, 1 << 20, 1 << 21] {
                let appends = (1u64 << POSITION_BITS) / bytes;
                let visits = u128::from(appends) * u128::from(scrubs(homes, bytes));
                assert!(visits >= u128::from(homes), "{homes} buckets, {bytes} bytes an append");
            }
        }
        assert_eq!(scrubs(1 << 20, 64), 1);
    }

    #[test]
    fn scrub__visits_all_buckets() {
        let mut index = Index::new(5, false);
        for _lap in 0..3 {
            index.clear();
            for hash in 0..40 {
                index.insert(hash << 47, hash, live);
            }
            for _ in 0..5 {
                index.scrub(8, |offset| offset % 2 == 0);
            }
            let is_found = |hash: &u64| index.find(hash << 47, |found| found == *hash).is_some();
            let found = (0..40).filter(is_found);
            assert!(found.clone().all(|hash| hash % 2 == 0) && found.count() > 10);
        }
    }
}
