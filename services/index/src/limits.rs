//! Every limit of the service, with its unit and reason.

/// Longest key of the byte table, in bytes: lookups compare keys at each level of the tree, and every scan's answer has
/// keys.
pub const KEY_BYTES_MAX: usize = 1024;

/// Longest value of the byte table, in bytes. Larger values belong in an object store: a scan would carry them along.
pub const VALUE_BYTES_MAX: usize = 64 << 10;

/// Most keys in one SUM: some 100 µs of work, before other requests get their turn.
pub const SUM_KEYS_MAX: u32 = 4096;

/// Most pairs in one SCAN's answer. [`Client::scan_words`](crate::Client::scan_words) continues by itself.
pub const SCAN_PAIRS_MAX: u32 = 4096;

/// Most bytes of pairs in one SCAN's answer; several pairs of the greatest length fit.
pub const SCAN_BYTES_MAX: usize = 256 << 10;

/// Most bytes of a pair in an answer beside its key and value: their lengths.
pub(crate) const PAIR_HEAD_BYTES: usize = 6;

/// Most keys of a table of words: the links between lines are 32-bit numbers.
pub const WORDS_MAX: u64 = 1 << 30;

/// Default number of keys for which the table of words is made: 64 MiB.
pub const WORDS_EXPECTED_DEFAULT: u64 = 1 << 20;

/// Default limit for keys and values in the byte table: 1 GiB.
pub const BYTES_MAX_DEFAULT: u64 = 1 << 30;

/// Bytes that a pair of the byte table counts beyond its key and value: two allocations with their counters and the
/// lock, a place in a leaf, and the leaf's share of the tree.
pub const PAIR_OVERHEAD_BYTES: u64 = 128;

/// Most dispatch endpoints of a server.
pub const DISPATCH_MAX: u16 = 256;

/// Most worker threads of a server.
pub const WORKERS_MAX: u16 = 256;

const _: () = {
    // A single pair always fits into an answer, and answers fit into a message.
    assert!(KEY_BYTES_MAX + VALUE_BYTES_MAX + PAIR_HEAD_BYTES < SCAN_BYTES_MAX);
    assert!(SCAN_PAIRS_MAX as usize * 20 <= SCAN_BYTES_MAX);
    assert!(2 * SCAN_BYTES_MAX < 8 << 20);
    assert!(WORDS_EXPECTED_DEFAULT <= WORDS_MAX && WORDS_MAX < u32::MAX as u64);
};
