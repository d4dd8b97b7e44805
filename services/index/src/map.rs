//! The ordered map.

use std::borrow::Borrow;
use std::fmt;
use std::ops::{Bound, ControlFlow};

use scc::{Guard, TreeIndex};

/// An ordered map for concurrent use by many threads: [`TreeIndex`], a B+ tree with lock-free readers.
///
/// The service relies on the following properties, checked by `tests/all/churn.rs`:
///
/// - A scan visits keys in ascending order, at most once.
/// - **A key present from before a scan's begin until after the end is visited**, regardless of concurrent insertions
///   and removals.
/// - A scan visits only inserted keys. A key inserted or removed meanwhile may be visited or not.
pub struct Tree<K, V>(TreeIndex<K, V>);

impl<K, V> Default for Tree<K, V> {
    fn default() -> Self {
        Self(TreeIndex::new())
    }
}

impl<K, V> Tree<K, V>
where
    K: Clone + Ord + Send + Sync + 'static,
    V: Clone + Send + Sync + 'static,
{
    /// Inserts a pair unless the key exists. Returns true if the pair was inserted.
    pub fn insert(&self, key: K, value: V) -> bool {
        self.0.insert_sync(key, value).is_ok()
    }

    /// Removes a key. Returns true if the key existed.
    pub fn remove<Q: Ord + ?Sized>(&self, key: &Q) -> bool
    where
        K: Borrow<Q>,
    {
        self.0.remove_sync(key)
    }

    /// Returns the result of `read` for a key's value.
    pub(crate) fn read<Q: Ord + ?Sized, R>(&self, key: &Q, read: impl FnOnce(&V) -> R) -> Option<R>
    where
        K: Borrow<Q>,
    {
        self.0.peek_with(key, |_, value| read(value))
    }

    /// Visits pairs in ascending order from `from`, until `visit` breaks.
    pub fn scan<Q: Ord + ?Sized>(
        &self,
        from: Bound<&Q>,
        mut visit: impl FnMut(&K, &V) -> ControlFlow<()>,
    ) where
        K: Borrow<Q>,
    {
        let guard = Guard::new();
        let mut range = self.0.range::<Q, _>((from, Bound::Unbounded), &guard);
        let _ = range.try_for_each(|(key, value)| visit(key, value));
    }
}

impl<K, V> fmt::Debug for Tree<K, V> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Tree({} levels)", self.0.depth())
    }
}
