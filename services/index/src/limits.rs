//! Every limit of the service, with its unit and reason.

/// Longest key of the byte table, in bytes: keys are compared on the way down the tree, and are
/// in every scan's answer.
pub const KEY_BYTES_MAX: usize = 1024;

/// Longest value of the byte table, in bytes. What is larger belongs in a store of objects: a scan
/// would carry it along.
pub const VALUE_BYTES_MAX: usize = 64 << 10;

/// Keys that one SUM adds up at most: some 100 µs, after which others get their turn.
pub const SUM_KEYS_MAX: u32 = 4096;

/// Pairs that one SCAN answers at most. [`Client::scan_words`](crate::Client::scan_words) goes on
/// from there by itself.
pub const SCAN_PAIRS_MAX: u32 = 4096;

/// Bytes of pairs that one SCAN answers at most; the longest pair fits several times.
pub const SCAN_BYTES_MAX: usize = 256 << 10;

/// Most keys that a table of words can be made for: the links of its lines are 32-bit numbers.
pub const WORDS_MAX: u64 = 1 << 30;

/// Keys that the table of words is made for, unless set: 64 MiB.
pub const WORDS_EXPECTED_DEFAULT: u64 = 1 << 20;

/// Bytes of keys and values in the byte table, unless set: 1 GiB.
pub const BYTES_MAX_DEFAULT: u64 = 1 << 30;

/// What a pair of the byte table counts beyond its key and value, in bytes: its two allocations with
/// their counters and the lock, its place in a leaf, and the leaf's share of the tree.
pub const PAIR_OVERHEAD_BYTES: u64 = 128;

/// Most dispatch endpoints of a server.
pub const DISPATCH_MAX: u16 = 256;

/// Most worker threads of a server.
pub const WORKERS_MAX: u16 = 256;

const _: () = {
    // A single pair always fits an answer, and answers fit a message.
    assert!(KEY_BYTES_MAX + VALUE_BYTES_MAX + 16 < SCAN_BYTES_MAX);
    assert!(KEY_BYTES_MAX <= u16::MAX as usize && VALUE_BYTES_MAX <= u32::MAX as usize);
    assert!(SCAN_PAIRS_MAX as usize * 16 <= SCAN_BYTES_MAX);
    assert!(2 * SCAN_BYTES_MAX < 8 << 20);
    assert!(WORDS_EXPECTED_DEFAULT <= WORDS_MAX && WORDS_MAX < u32::MAX as u64);
};
