//! The counters of a partition.

use serde::{Deserialize, Serialize};

/// Declares the counters with their names and documentation.
macro_rules! counters {
    ($($(#[$doc:meta])* $name:ident,)*) => {
        /// Counters of a partition, with the names that memcached's `stats` uses.
        #[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
        #[non_exhaustive]
        pub struct Counters { $($(#[$doc])* pub $name: u64,)* }

        impl Counters {
            /// Names and values.
            pub fn named(&self) -> impl Iterator<Item = (&'static str, u64)> {
                [$((stringify!($name), self.$name),)*].into_iter()
            }

            /// Adds the counters of another partition.
            pub fn add(&mut self, other: &Self) {
                $(self.$name += other.$name;)*
            }
        }
    };
}

counters! {
    /// Look-ups by get and gat.
    cmd_get,
    /// Requests to store a value.
    cmd_set,
    /// Requests to change an expiry.
    cmd_touch,
    /// Requests to remove all items.
    cmd_flush,
    /// Look-ups that found an item.
    get_hits,
    /// Look-ups that found no item.
    get_misses,
    /// Look-ups that found an item whose time was over.
    get_expired,
    /// Removals that found the item.
    delete_hits,
    /// Removals that found no item.
    delete_misses,
    /// Additions to an item.
    incr_hits,
    /// Additions that found no item.
    incr_misses,
    /// Subtractions from an item.
    decr_hits,
    /// Subtractions that found no item.
    decr_misses,
    /// Stored values whose version agreed.
    cas_hits,
    /// Values with a version but without an item.
    cas_misses,
    /// Values that were not stored, because the version was another.
    cas_badval,
    /// Changes of an expiry that found the item.
    touch_hits,
    /// Changes of an expiry that found no item.
    touch_misses,
    /// Items stored since the start.
    total_items,
    /// Items that made place for others before their time was over.
    evictions,
    /// Those of the evictions that were due to a full bucket of the index.
    index_evictions,
    /// Evicted items that no client had fetched.
    evicted_unfetched,
    /// Items that were removed because their time was over.
    reclaimed,
    /// Reclaimed items that no client had fetched.
    expired_unfetched,
    /// Live items that the cleaner moved, in store mode.
    moved_items,
    /// Values that were refused, because they are too large.
    store_too_large,
    /// Values that were refused, because the store is full.
    store_no_memory,
}
