//! A cache in memory, made of partitions with one owner each.
//!
//! ```
//! use petrel_cache::{Hasher, Partition, PartitionConfig, Store, Stored};
//!
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! let hasher = Hasher::new(7);
//! let mut partition = Partition::new(&PartitionConfig::new(1 << 20), hasher.clone())?;
//! let petrel = hasher.key(b"petrel")?;
//! partition.store(&Store::set(petrel, b"a seabird"))?;
//! assert_eq!(partition.get(petrel).map(|item| item.value), Some(&b"a seabird"[..]));
//! # Ok(())
//! # }
//! ```
//!
//! | type | purpose |
//! | --- | --- |
//! | [`Partition`] | the items of one owner: an index and a circular log |
//! | [`Hasher`], [`Key`] | keys with their hashes, from which the partition follows |
//! | [`serve_partition`] | serves a partition on an endpoint of the application |
//! | [`CacheServer`] | threads with a partition each, for clients of Petrel and of memcached |
//! | [`CacheClient`] | calls the partition that owns a key, from any thread and any executor |
//! | [`wire`] | the messages of these calls |
//! | [`memcached`] | memcached's protocol, without sockets |
//! | [`limits`] | every limit, with its reason |
//!
//! **Guarantees.** A hit is never wrong: the item is the last one that was stored under the key, and its time is not
//! over. In cache mode an item may be gone at any time. In store mode an item stays until it is removed or its time is
//! over, and a value without room is refused. Index and log never take more memory than was given.
//!
//! **Limitations.** Nothing is kept on disk or on another host: all data ends with the process.

mod error;
mod key;
pub mod limits;
pub mod memcached;
mod net;
mod numbers;
mod pages;
mod partition;
mod rpc;

pub use error::{ConfigError, KeyError, StoreError};
pub use key::{Hasher, Key, KeyRange, RangeError};
pub use net::{CacheConfig, CacheServer, Placement, ServerError, Stopped};
pub use partition::{
    Arithmetic, Counted, Counters, Fetch, Fetched, Item, Locator, Mode, Partition, PartitionConfig,
    Removed, Store, Stored, Verb,
};
pub use rpc::{CacheClient, Call, ClientError, Lookups, Value, serve_partition, wire};
