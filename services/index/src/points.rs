//! The point table: from a number to a number, in one cache line.
//!
//! A lookup among a million keys takes ten dependent memory reads in an ordered map, some 300 to 600 ns; in a usual
//! hash table two or three, 40 to 90 ns. An RPC over shared memory takes 40 to 60 ns at the server. Lookups therefore
//! have their own table with a single read, whose address depends only on the key.
//! [`Endpoint::prefetch`](petrel::Endpoint::prefetch) can prefetch this address while earlier requests are
//! served.
//!
//! A *line* is 64 bytes:
//!
//! | word | content |
//! | --- | --- |
//! | 0 | the version: odd while the line's chain is being changed |
//! | 1 | number of pairs, 0 to 3, and the number of the chain's next line, if any |
//! | 2 to 7 | three keys, then their three values |
//!
//! A key's *home* is the line selected by its hash. Further pairs go to *overflow lines* from a common
//! arena. With as many homes as keys, 2 % of the homes have an overflow line.
//!
//! **Readers** take no lock: every home has a sequence lock. A reader notes the version, searches the chain, and starts
//! again if the version is odd or has changed. Lines are never freed, only moved to other chains, and all their words
//! are atomic. A reader on an outdated link reads garbage, but notices by the home's version, which changes with every
//! change of the chain.
//!
//! **Writers** of a home hold a lock, shared by several homes ([`Points::writer`]). The [`Writer`] holds the lock as
//! long as it lives, which allows a caller to keep an ordered map in step with the table. Readers wait only while words
//! are moved, some nanoseconds. Overwriting a value is a single store, and leaves the version unchanged.
//!
//! The number of homes is fixed. With more keys than expected, chains and lookups get longer, by one line for every
//! three times the expected number.

use std::fmt;
use std::sync::atomic::{AtomicU64, Ordering, fence};
use std::sync::{Mutex, MutexGuard, OnceLock, PoisonError};

use petrel_planted::planted;

/// Pairs in a line.
const PAIRS: usize = 3;

/// Locks for writers. More than some tens of writers are pointless; two writers that meet by chance wait a microsecond.
const LOCKS: usize = 256;

/// Lines in the arena's first segment; each later segment has twice as many.
const FIRST_SEGMENT_LINES: usize = 1024;

/// Segments, enough for all lines with 32-bit numbers.
const SEGMENTS: usize = 23;

/// Retries on an odd version before the reader yields: the writer may have been preempted.
const RETRIES_BEFORE_YIELD: u32 = 100;

#[derive(Default)]
#[repr(align(64))]
struct Line {
    version: AtomicU64,
    /// Number of pairs in the low 8 bits; the next line's number plus one in the upper 32.
    header: AtomicU64,
    keys: [AtomicU64; PAIRS],
    values: [AtomicU64; PAIRS],
}

/// The decoded `header` of a line.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct LineHeader {
    pairs: usize,
    next: Option<u32>,
}

/// A lock in a separate cache line.
#[derive(Default)]
#[repr(align(64))]
struct Lock(Mutex<()>);

/// A concurrent table from `u64` to `u64`.
pub struct Points {
    homes: Box<[Line]>,
    /// Right shift of the hash, whose upper bits then select a home.
    shift: u32,
    seed: u64,
    locks: Box<[Lock]>,
    arena: Arena,
}

/// The right to change the chain of a key's home, held by one writer at a time.
pub struct Writer<'a> {
    points: &'a Points,
    home: &'a Line,
    key: u64,
    _lock: MutexGuard<'a, ()>,
}

impl Points {
    /// A table for about `expected` keys.
    pub fn for_keys(expected: u64) -> Self {
        let homes = expected.clamp(LOCKS as u64, crate::limits::WORDS_MAX).next_power_of_two();
        Self {
            homes: petrel_transport::huge_pages::filled(homes as usize, Line::default),
            shift: u64::BITS - homes.trailing_zeros(),
            seed: random_seed(),
            locks: (0..LOCKS).map(|_| Lock::default()).collect(),
            arena: Arena::default(),
        }
    }

    /// Returns a key's value.
    #[inline]
    pub fn get(&self, key: u64) -> Option<u64> {
        let home = &self.homes[self.home_index(key)];
        let mut retries = 0;
        loop {
            let version = home.version.load(Ordering::Acquire);
            if version.is_multiple_of(2)
                && let Some(found) = self.search(home, version, key)
            {
                return found;
            }
            retries += 1;
            wait(retries);
        }
    }

    /// The address that [`Points::get`] reads first.
    #[inline]
    pub fn address(&self, key: u64) -> *const u8 {
        std::ptr::from_ref(&self.homes[self.home_index(key)]).cast()
    }

    /// Loads the first line of [`Points::get`] into the cache. The cache misses of consecutive calls overlap.
    #[inline]
    pub fn touch(&self, key: u64) -> u64 {
        self.homes[self.home_index(key)].version.load(Ordering::Relaxed)
    }

    /// Returns the right to change a key, after any present holder's release.
    pub fn writer(&self, key: u64) -> Writer<'_> {
        let index = self.home_index(key);
        let lock = &self.locks[index % LOCKS].0;
        // A panicked writer left consistent words or an odd version; nothing to repair here.
        let lock = lock.lock().unwrap_or_else(PoisonError::into_inner);
        Writer { points: self, home: &self.homes[index], key, _lock: lock }
    }

    /// Lines of chains beyond the homes.
    pub fn overflow_lines(&self) -> u64 {
        self.arena.in_use()
    }

    /// Memory of the homes, in bytes.
    pub fn home_bytes(&self) -> u64 {
        size_of_val(&*self.homes) as u64
    }

    #[inline]
    fn home_index(&self, key: u64) -> usize {
        // In the combined halves of the product each bit depends on the whole key (as in wyhash); the seed is the
        // process's secret.
        let product = u128::from(key ^ self.seed) * 0x9E37_79B9_7F4A_7C15;
        let hash = (product >> 64) as u64 ^ product as u64;
        (hash >> self.shift) as usize
    }

    /// Searches a chain. `None` if the chain was changed meanwhile.
    #[inline]
    fn search(&self, home: &Line, version: u64, key: u64) -> Option<Option<u64>> {
        let mut line = home;
        loop {
            let header = line.header();
            let found = line.find(key, header.pairs).map(|place| line.value(place));
            // Pairs with the release fence in `Writer::change`: the reads above precede this fence.
            fence(Ordering::Acquire);
            if home.version.load(Ordering::Relaxed) != version {
                return None;
            }
            match (found, header.next) {
                (Some(value), _) => return Some(Some(value)),
                (None, None) => return Some(None),
                (None, Some(next)) => line = self.arena.line(next),
            }
        }
    }
}

impl Writer<'_> {
    /// Returns the key's value.
    pub fn get(&self) -> Option<u64> {
        let (line, place) = self.find()?;
        Some(line.value(place))
    }

    /// Overwrites the key's value, if any. Returns the former value.
    pub fn replace(&self, value: u64) -> Option<u64> {
        let (line, place) = self.find()?;
        let former = line.value(place);
        line.values[place].store(value, Ordering::Release);
        Some(former)
    }

    /// Inserts the key.
    ///
    /// # Panics
    /// If the key exists.
    pub fn insert(&self, value: u64) {
        assert!(self.find().is_none(), "a key is in the table once");
        let last = self.last();
        let LineHeader { pairs, .. } = last.header();
        if pairs < PAIRS {
            return self.change(|| {
                last.put(pairs, (self.key, value));
                last.set_header(LineHeader { pairs: pairs + 1, next: None });
            });
        }
        let number = self.points.arena.take();
        let line = self.points.arena.line(number);
        self.change(|| {
            line.put(0, (self.key, value));
            line.set_header(LineHeader { pairs: 1, next: None });
            last.set_header(LineHeader { pairs, next: Some(number) });
        });
    }

    /// Removes the key. Returns its value. The chain's last pair moves into the gap.
    pub fn remove(&self) -> Option<u64> {
        let (line, place) = self.find()?;
        let value = line.value(place);
        let before_last = self.before_last();
        let last_number = before_last.and_then(|before| before.header().next);
        let last = self.last();
        let pairs = last.header().pairs - 1;
        self.change(|| {
            line.put(place, (last.keys[pairs].load(Ordering::Relaxed), last.value(pairs)));
            last.set_header(LineHeader { pairs, next: None });
            if let (0, Some(before)) = (pairs, before_last) {
                before.set_header(LineHeader { next: None, ..before.header() });
            }
        });
        if let (0, Some(number)) = (pairs, last_number)
            && !planted("index_overflow_line_lost")
        {
            self.points.arena.release(number);
        }
        Some(value)
    }

    /// Changes words of the chain; concurrent readers retry.
    fn change(&self, change: impl FnOnce()) {
        let version = self.home.version.load(Ordering::Relaxed);
        self.home.version.store(version + 1, Ordering::Relaxed);
        // Pairs with the acquire fence in `Points::search`: a reader that sees a changed word sees the odd version, too.
        fence(Ordering::Release);
        change();
        // Pairs with the acquire load in `Points::get`.
        self.home.version.store(version + 2, Ordering::Release);
    }

    fn find(&self) -> Option<(&Line, usize)> {
        self.chain().find_map(|line| Some((line, line.find(self.key, line.header().pairs)?)))
    }

    fn last(&self) -> &Line {
        self.chain().last().unwrap_or(self.home)
    }

    fn before_last(&self) -> Option<&Line> {
        let lines = self.chain().count();
        self.chain().nth(lines.checked_sub(2)?)
    }

    fn chain(&self) -> impl Iterator<Item = &Line> {
        let next = |line: &&Line| Some(self.points.arena.line(line.header().next?));
        std::iter::successors(Some(self.home), next)
    }
}

impl Line {
    #[inline]
    fn header(&self) -> LineHeader {
        let word = self.header.load(Ordering::Relaxed);
        let next = (word >> 32) as u32;
        LineHeader { pairs: (word & 0xFF) as usize, next: next.checked_sub(1) }
    }

    fn set_header(&self, header: LineHeader) {
        let next = header.next.map_or(0, |number| u64::from(number) + 1);
        self.header.store(next << 32 | header.pairs as u64, Ordering::Relaxed);
    }

    /// The key's place. Without branches on the place, which the processor could not predict.
    #[inline]
    fn find(&self, key: u64, pairs: usize) -> Option<usize> {
        let is_at =
            |place: usize| u32::from(self.keys[place].load(Ordering::Relaxed) == key) << place;
        let found = (is_at(0) | is_at(1) | is_at(2)) & ((1 << pairs) - 1);
        (found != 0).then(|| found.trailing_zeros() as usize)
    }

    #[inline]
    fn value(&self, place: usize) -> u64 {
        self.values[place].load(Ordering::Acquire)
    }

    fn put(&self, place: usize, (key, value): (u64, u64)) {
        self.keys[place].store(key, Ordering::Relaxed);
        self.values[place].store(value, Ordering::Relaxed);
    }
}

/// Lines beyond the homes, by number. Lines never move: readers may follow outdated numbers.
#[derive(Default)]
struct Arena {
    segments: [OnceLock<Box<[Line]>>; SEGMENTS],
    free: Mutex<Free>,
}

#[derive(Default)]
struct Free {
    released: Vec<u32>,
    /// Lines that were ever in use.
    count: u32,
}

impl Arena {
    /// A line that was in use before.
    #[inline]
    fn line(&self, number: u32) -> &Line {
        let (segment, offset) = place(number);
        let segment = self.segments[segment].get().expect("numbers are of lines that were in use");
        &segment[offset]
    }

    fn take(&self) -> u32 {
        let mut free = self.free.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(number) = free.released.pop() {
            return number;
        }
        let number = free.count;
        let (segment, _) = place(number);
        self.segments[segment]
            .get_or_init(|| (0..FIRST_SEGMENT_LINES << segment).map(|_| Line::default()).collect());
        free.count += 1;
        number
    }

    fn release(&self, number: u32) {
        self.free.lock().unwrap_or_else(PoisonError::into_inner).released.push(number);
    }

    fn in_use(&self) -> u64 {
        let free = self.free.lock().unwrap_or_else(PoisonError::into_inner);
        u64::from(free.count) - free.released.len() as u64
    }
}

/// Segment and offset of a line: segments have 1, 2, 4, … times as many lines as the first.
#[inline]
fn place(number: u32) -> (usize, usize) {
    let shifted = number as usize + FIRST_SEGMENT_LINES;
    let segment = (shifted / FIRST_SEGMENT_LINES).ilog2() as usize;
    (segment, shifted - (FIRST_SEGMENT_LINES << segment))
}

#[cold]
fn wait(retries: u32) {
    match retries % RETRIES_BEFORE_YIELD {
        0 => std::thread::yield_now(),
        _ => std::hint::spin_loop(),
    }
}

fn random_seed() -> u64 {
    // Without randomness the seed is not secret; the table works nevertheless.
    getrandom::u64().unwrap_or(0x7065_7472_656c)
}

impl fmt::Debug for Points {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Points({} homes, {} overflow lines)", self.homes.len(), self.overflow_lines())
    }
}

impl fmt::Debug for Writer<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Writer({})", self.key)
    }
}

#[cfg(test)]
#[path = "points_tests.rs"]
mod tests;
