//! Errors.

use crate::limits::KEY_BYTES_MAX;

/// The reason why a partition did not store an item.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum StoreError {
    /// The item is too large for a value, or for the partition's log.
    #[error("an item of {bytes} bytes; this cache takes at most {max}")]
    TooLarge {
        /// The item's size with key and header.
        bytes: usize,
        /// The largest size.
        max: usize,
    },
    /// The partition is in store mode, where nothing is evicted, and its memory is in use.
    #[error("the store is full: delete items, or start the server with more memory")]
    Full,
}

/// The reason why some bytes are no key.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("a key of {bytes} bytes; 1 to {KEY_BYTES_MAX} are taken")]
pub struct KeyError {
    /// The length of the bytes.
    pub bytes: usize,
}

/// The reason why a partition cannot be made.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum ConfigError {
    /// The memory is too little or too much.
    #[error("a partition with {bytes} bytes of memory; {min} to {max} are possible")]
    Memory {
        /// The memory that was asked for.
        bytes: u64,
        /// The least memory.
        min: u64,
        /// The most memory.
        max: u64,
    },
}
