//! The table of words: keys and values of 8 bytes, in the order of the numbers, which is the order of
//! their big-endian bytes.
//!
//! A value has one owner, the point table, and GET asks nobody else. The ordered map has the keys only;
//! a scan finds them there, and their values in the point table. So a scan never shows a value that a GET
//! has not shown or would not show: for each key there is one place that says what it is.
//!
//! The two are kept in step under the key's writer lock. A key is in the ordered map *before* it is in the
//! point table, and leaves it *after*: whatever a GET finds, a scan that begins then finds too. A key
//! of the ordered map that has no value yet, or no more, is passed over.

use std::ops::{Bound, ControlFlow};
use std::sync::atomic::{AtomicU64, Ordering};

use crate::error::StoreError;
use crate::map::{OrderedMap, Tree};
use crate::points::Points;

/// Keys whose values are looked up together, so that the memory comes for all at once.
const TOGETHER: usize = 128;

/// Numbers by number, in order.
#[derive(Debug)]
pub struct Words<M = Tree<u64, ()>> {
    points: Points,
    keys: M,
    count: AtomicU64,
    count_max: u64,
}

impl<M: OrderedMap<u64, ()>> Words<M> {
    /// An empty table, made for about so many keys, that takes at most `count_max`.
    pub fn new(expected: u64, count_max: u64) -> Self {
        Self {
            points: Points::for_keys(expected),
            keys: M::default(),
            count: AtomicU64::new(0),
            count_max,
        }
    }

    /// A key's value.
    #[inline]
    pub fn get(&self, key: u64) -> Option<u64> {
        self.points.get(key)
    }

    /// Where in memory [`Words::get`] will look first.
    #[inline]
    pub fn address(&self, key: u64) -> *const u8 {
        self.points.address(key)
    }

    /// Sets a key's value; gives the former one.
    ///
    /// # Errors
    /// [`StoreError::Full`] when the key is new and there are as many as may be.
    pub fn put(&self, key: u64, value: u64) -> Result<Option<u64>, StoreError> {
        let writer = self.points.writer(key);
        if let Some(former) = writer.replace(value) {
            return Ok(Some(former));
        }
        if self.count.fetch_add(1, Ordering::Relaxed) >= self.count_max {
            self.count.fetch_sub(1, Ordering::Relaxed);
            return Err(StoreError::Full { what: "keys", max: self.count_max });
        }
        let is_new = self.keys.insert(key, ());
        assert!(is_new, "a key without a value is not in the ordered map");
        writer.insert(value);
        Ok(None)
    }

    /// Removes a key; gives its value.
    pub fn delete(&self, key: u64) -> Option<u64> {
        let writer = self.points.writer(key);
        let value = writer.remove()?;
        let was_there = self.keys.remove(&key);
        assert!(was_there, "a key with a value is in the ordered map");
        self.count.fetch_sub(1, Ordering::Relaxed);
        Some(value)
    }

    /// Up to `limit` pairs from `from` on, in ascending order. Pairs that other threads put and delete
    /// meanwhile may be among them or not; the others are.
    pub fn scan(&self, from: Bound<u64>, limit: usize, mut visit: impl FnMut(u64, u64)) {
        let mut batch = Batch { keys: [0; TOGETHER], len: 0 };
        let mut left = limit;
        if left == 0 {
            return;
        }
        self.keys.scan(from.as_ref(), |key, ()| {
            batch.push(*key);
            if batch.len < left.min(TOGETHER) {
                return ControlFlow::Continue(());
            }
            left -= batch.take(&self.points, &mut visit);
            if left == 0 { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
        });
        batch.take(&self.points, &mut visit);
    }

    /// Number and sum of the values of up to `count` keys that follow a key.
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

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The point table, for its figures.
    pub fn points(&self) -> &Points {
        &self.points
    }
}

/// Keys that were found in order and whose values are looked up next.
struct Batch {
    keys: [u64; TOGETHER],
    len: usize,
}

impl Batch {
    fn push(&mut self, key: u64) {
        self.keys[self.len] = key;
        self.len += 1;
    }

    /// Shows the keys that have values, and empties the batch; tells how many they were.
    fn take(&mut self, points: &Points, visit: &mut impl FnMut(u64, u64)) -> usize {
        let keys = &self.keys[..self.len];
        // 128 lines that one waits for together, in place of one after another.
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

    /// As a scan meets it that comes between the two steps of a PUT or of a DELETE.
    #[test]
    fn scan__passes_over_keys_without_a_value_and_goes_on() {
        let words = Words::<Tree<u64, ()>>::new(1, u64::MAX);
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
