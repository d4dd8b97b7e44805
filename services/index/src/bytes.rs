//! The table of bytes: keys and values of any bytes, up to limits, in the order of the bytes.
//!
//! The ordered map leads from a key to a *cell*, and the cell has the value. Overwriting changes only the cell. The key
//! therefore stays in the map, and no scan misses it. A writer holds a lock for the key; keys share locks by their
//! hash. An overwriting PUT therefore never writes to a cell that a concurrent DELETE has removed.

use std::hash::{BuildHasher, RandomState};
use std::ops::{Bound, ControlFlow};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use petrel_planted::planted;

use crate::error::StoreError;
use crate::limits::{KEY_BYTES_MAX, PAIR_OVERHEAD_BYTES, VALUE_BYTES_MAX};
use crate::map::Tree;

/// Locks for writers.
const LOCKS: usize = 256;

/// A key. The tree copies keys when a node splits.
pub type Key = Arc<[u8]>;

/// A value. Readers share values instead of copying under the lock.
pub type Value = Arc<[u8]>;

/// The holder of a key's value.
#[derive(Debug)]
pub struct Cell(Mutex<Value>);

/// A map from byte strings to byte strings, in order.
#[derive(Debug)]
pub struct Bytes {
    map: Tree<Key, Arc<Cell>>,
    locks: Box<[Mutex<()>]>,
    hasher: RandomState,
    count: AtomicU64,
    bytes: AtomicU64,
    bytes_max: u64,
}

impl Cell {
    fn value(&self) -> Value {
        Arc::clone(&lock(&self.0))
    }

    fn replace(&self, value: Value) -> Value {
        std::mem::replace(&mut *lock(&self.0), value)
    }
}

impl Bytes {
    /// An empty table for at most `bytes_max` bytes of keys and values, with [`PAIR_OVERHEAD_BYTES`] for each pair.
    pub fn new(bytes_max: u64) -> Self {
        Self {
            map: Tree::default(),
            locks: (0..LOCKS).map(|_| Mutex::default()).collect(),
            hasher: RandomState::new(),
            count: AtomicU64::new(0),
            bytes: AtomicU64::new(0),
            bytes_max,
        }
    }

    /// Returns a key's value.
    pub fn get(&self, key: &[u8]) -> Option<Value> {
        self.map.read(key, |cell| cell.value())
    }

    /// Sets a key's value. Returns true if the key had a value.
    ///
    /// # Errors
    /// [`StoreError`] if the key or value is too long, or the table is full.
    pub fn put(&self, key: &[u8], value: &[u8]) -> Result<bool, StoreError> {
        self.put_value(key, Value::from(value))
    }

    /// Sets a key's value like [`Bytes::put`], without a copy.
    pub(crate) fn put_value(&self, key: &[u8], value: Value) -> Result<bool, StoreError> {
        check(key, &value)?;
        let _lock = self.lock(key);
        let former = self.map.read(key, Arc::clone);
        let value_bytes = value.len() as u64;
        match former {
            Some(cell) => {
                // No other thread changes this value; the length is therefore stable.
                let former_bytes = cell.value().len() as u64;
                self.charge(value_bytes.saturating_sub(former_bytes))?;
                cell.replace(value);
                if !planted("index_smaller_values_keep_bytes") {
                    self.refund(former_bytes.saturating_sub(value_bytes));
                }
                Ok(true)
            }
            None => {
                self.charge(pair_bytes(key, value_bytes))?;
                let is_new = self.map.insert(key.into(), Arc::new(Cell(Mutex::new(value))));
                assert!(is_new, "nobody else inserts this key");
                self.count.fetch_add(1, Ordering::Relaxed);
                Ok(false)
            }
        }
    }

    /// Removes a key. Returns true if the key existed.
    pub fn delete(&self, key: &[u8]) -> bool {
        let _lock = self.lock(key);
        let Some(value) = self.get(key) else { return false };
        let was_there = self.map.remove(key);
        assert!(was_there, "nobody else removes this key");
        self.count.fetch_sub(1, Ordering::Relaxed);
        self.refund(pair_bytes(key, value.len() as u64));
        true
    }

    /// Visits pairs from `from` on, in ascending order, until `visit` breaks. Pairs put or deleted meanwhile by other
    /// threads may be visited or not; unchanged pairs always are.
    pub fn scan(&self, from: Bound<&[u8]>, mut visit: impl FnMut(&Key, &Value) -> ControlFlow<()>) {
        self.map.scan::<[u8]>(from, |key, cell| visit(key, &cell.value()));
    }

    /// Number of keys.
    pub fn len(&self) -> u64 {
        self.count.load(Ordering::Relaxed)
    }

    /// Returns true if the table is empty.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The bytes that count towards the limit.
    pub fn bytes(&self) -> u64 {
        self.bytes.load(Ordering::Relaxed)
    }

    fn lock(&self, key: &[u8]) -> MutexGuard<'_, ()> {
        lock(&self.locks[self.hasher.hash_one(key) as usize % LOCKS])
    }

    fn charge(&self, bytes: u64) -> Result<(), StoreError> {
        let before = self.bytes.fetch_add(bytes, Ordering::Relaxed);
        if before + bytes > self.bytes_max {
            if !planted("index_refused_bytes_count") {
                self.refund(bytes);
            }
            return Err(StoreError::Full { what: "bytes", max: self.bytes_max });
        }
        Ok(())
    }

    fn refund(&self, bytes: u64) {
        self.bytes.fetch_sub(bytes, Ordering::Relaxed);
    }
}

/// Checks the lengths of a pair.
fn check(key: &[u8], value: &[u8]) -> Result<(), StoreError> {
    if key.len() > KEY_BYTES_MAX {
        return Err(StoreError::KeyTooLong { bytes: key.len() });
    }
    if value.len() > VALUE_BYTES_MAX {
        return Err(StoreError::ValueTooLong { bytes: value.len() });
    }
    Ok(())
}

fn pair_bytes(key: &[u8], value_bytes: u64) -> u64 {
    key.len() as u64 + value_bytes + PAIR_OVERHEAD_BYTES
}

/// A panic never leaves data under a lock inconsistent.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
