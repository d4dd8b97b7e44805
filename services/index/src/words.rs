//! The table of words: keys and values of 8 bytes. The order of the numbers is also the order of their big-endian
//! bytes.
//!
//! The point table owns the values, and GET reads only this table. The ordered map has only the keys. A scan finds keys
//! in the map, and their values in the point table. A scan therefore never shows a value that a GET would not show:
//! each key's value has a single source.
//!
//! The key's writer lock keeps the two in step. A key enters the ordered map *before* the point table, and leaves it
//! *after*: a scan finds every key that an earlier GET found. A scan skips keys without a value, which are between the
//! two steps.

use std::ops::{Bound, ControlFlow};
use std::sync::atomic::{AtomicU64, Ordering};

use petrel_planted::planted;

use crate::error::StoreError;
use crate::map::Tree;
use crate::points::Points;

/// Number of keys whose values are looked up together, with overlapping cache misses.
const PREFETCH_BATCH: usize = 128;

/// A map from numbers to numbers, in order.
#[derive(Debug)]
pub struct Words {
    points: Points,
    keys: Tree<u64, ()>,
    count: AtomicU64,
    count_max: u64,
}

impl Words {
    /// An empty table, made for about `expected` keys, with at most `count_max`.
    pub fn new(expected: u64, count_max: u64) -> Self {
        Self {
            points: Points::for_keys(expected),
            keys: Tree::default(),
            count: AtomicU64::new(0),
            count_max,
        }
    }

    /// Returns a key's value.
    #[inline]
    pub fn get(&self, key: u64) -> Option<u64> {
        self.points.get(key)
    }

    /// The address that [`Words::get`] reads first.
    #[inline]
    pub fn address(&self, key: u64) -> *const u8 {
        self.points.address(key)
    }

    /// Sets a key's value. Returns the former value.
    ///
    /// # Errors
    /// [`StoreError::Full`] if the key is new and the table is full.
    pub fn put(&self, key: u64, value: u64) -> Result<Option<u64>, StoreError> {
        let writer = self.points.writer(key);
        if let Some(former) = writer.replace(value) {
            return Ok(Some(former));
        }
        if self.count.fetch_add(1, Ordering::Relaxed) >= self.count_max {
            if !planted("index_refused_key_counts") {
                self.count.fetch_sub(1, Ordering::Relaxed);
            }
            return Err(StoreError::Full { what: "keys", max: self.count_max });
        }
        let is_new = self.keys.insert(key, ());
        assert!(is_new, "a key without a value is not in the ordered map");
        writer.insert(value);
        Ok(None)
    }

    /// Removes a key. Returns its value.
    pub fn delete(&self, key: u64) -> Option<u64> {
        let writer = self.points.writer(key);
        let value = writer.remove()?;
        let was_there = self.keys.remove(&key);
        assert!(was_there, "a key with a value is in the ordered map");
        self.count.fetch_sub(1, Ordering::Relaxed);
        Some(value)
    }

    /// Visits up to `limit` pairs from `from` on, in ascending order. Pairs put or deleted meanwhile by other threads
    /// may be visited or not; unchanged pairs always are.
    pub fn scan(&self, from: Bound<u64>, limit: usize, mut visit: impl FnMut(u64, u64)) {
        let mut batch = Batch { keys: [0; PREFETCH_BATCH], len: 0 };
        let mut left = limit;
        if left == 0 {
            return;
        }
        self.keys.scan(from.as_ref(), |key, ()| {
            batch.push(*key);
            if batch.len < left.min(PREFETCH_BATCH) {
                return ControlFlow::Continue(());
            }
            left -= batch.take(&self.points, &mut visit);
            if left == 0 { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
        });
        batch.take(&self.points, &mut visit);
    }

    /// The number and the sum of the values of up to `count` keys after a key.
    pub fn sum_after(&self, key: u64, count: usize) -> (usize, u64) {
        let (mut found, mut sum) = (0, 0u64);
        self.scan(Bound::Excluded(key), count, |_, value| {
            found += 1;
            sum = sum.wrapping_add(value);
        });
        (found, sum)
    }

    /// Number of keys.
    pub fn len(&self) -> u64 {
        self.count.load(Ordering::Relaxed)
    }

    /// Returns true if the table is empty.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The point table, for its counters.
    pub fn points(&self) -> &Points {
        &self.points
    }
}

/// Keys found in order, whose values are looked up next.
struct Batch {
    keys: [u64; PREFETCH_BATCH],
    len: usize,
}

impl Batch {
    fn push(&mut self, key: u64) {
        self.keys[self.len] = key;
        self.len += 1;
    }

    /// Visits the keys that have values, and empties the batch. Returns the number of visited keys.
    fn take(&mut self, points: &Points, visit: &mut impl FnMut(u64, u64)) -> usize {
        let keys = &self.keys[..self.len];
        // Loads 128 lines with overlapping cache misses.
        std::hint::black_box(keys.iter().fold(0, |all, key| all ^ points.touch(*key)));
        let mut shown = 0;
        for &key in keys {
            if let Some(value) = points.get(key) {
                visit(key, value);
                shown += 1;
            }
        }
        self.len = 0;
        shown
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// As a scan between the two steps of a PUT or DELETE finds the tables.
    #[test]
    fn scan__passes_over_keys_without_a_value_and_goes_on() {
        let words = Words::new(1, u64::MAX);
        for key in 0..400 {
            match key % 4 {
                0 => assert_eq!(words.put(key, key), Ok(None)),
                _ => assert!(words.keys.insert(key, ())),
            }
        }
        assert_eq!(words.sum_after(0, 10), (10, (1..=10).map(|number| 4 * number).sum()));
        assert_eq!(words.sum_after(0, 1_000).0, 99);
    }
}
