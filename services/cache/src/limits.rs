//! Every limit of the cache, with its unit and reason.

/// Longest key, in bytes: memcached's limit.
pub const KEY_BYTES_MAX: usize = 250;

/// Longest value, in bytes: memcached's default limit for an item, which its users know.
pub const VALUE_BYTES_MAX: usize = 1 << 20;

/// Longest line of a command, in bytes, without its end: the longest key twice, numbers, and flags with their tokens.
pub const LINE_BYTES_MAX: usize = 2 << 10;

/// Longest line with a list of keys, in bytes: 4 000 keys of the greatest length.
pub const KEYS_LINE_BYTES_MAX: usize = 1 << 20;

/// Longest opaque token of a meta command, in bytes: memcached's limit.
pub const OPAQUE_BYTES_MAX: usize = 32;

/// Least memory of a partition, in bytes. Below, the log has room for a few small values only.
pub const PARTITION_BYTES_MIN: u64 = 64 << 10;

/// Most memory of a partition, in bytes. An index entry names 2^44 words of the log, and the scrubber must visit each
/// entry before the log's positions repeat.
pub const PARTITION_BYTES_MAX: u64 = 1 << 40;

/// Default mean size of an item (key, value and header), in bytes, from which the index gets its size.
pub const ITEM_BYTES_EXPECTED_DEFAULT: u32 = 128;

/// Share of a log that one item may take, in cache mode. A larger item would evict most of the others.
pub const CACHE_ITEMS_PER_LOG_MIN: u64 = 8;

/// Share of a log that one item may take, in store mode. The cleaner moves live items, and needs free room for two of
/// them besides the room for the new item.
pub const STORE_ITEMS_PER_LOG_MIN: u64 = 64;

/// Part of a log that live items may fill in store mode, in eighths. With a fuller log the cleaner would copy more
/// than seven bytes for each byte that it frees.
pub const STORE_FILL_EIGHTHS: u64 = 7;

const _: () = {
    assert!(KEY_BYTES_MAX <= u8::MAX as usize && VALUE_BYTES_MAX < 1 << 21);
    // A full lap of the cleaner frees an eighth of the log: eight items of the greatest size.
    assert!(STORE_ITEMS_PER_LOG_MIN / (8 - STORE_FILL_EIGHTHS) >= 8 * 8);
    assert!(PARTITION_BYTES_MIN / STORE_ITEMS_PER_LOG_MIN >= 512);
};
