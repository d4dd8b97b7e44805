//! Every limit of the service, with its unit and its reason (`docs/kv-protocol.md` §1).

/// Longest key, in bytes. Every lookup compares keys, and scans and snapshots repeat them. Users of etcd and
/// FoundationDB manage with 1.5 KiB and 10 KB.
pub const KEY_BYTES_MAX: usize = 4096;

/// Longest value, in bytes: 1 MiB. A value crosses the Raft log whole, and a longer value would delay the small ones
/// behind it too much.
pub const VALUE_BYTES_MAX: usize = 1 << 20;

/// Operations of one batch. A replica checks all conditions before it applies the first operation, and runs the whole
/// batch without a break.
pub const BATCH_OPS_MAX: usize = 128;

/// Longest command, in bytes: 2 MiB, room for the largest conditional write (two values and a key). The rest of an 8
/// MiB message is left for commands replicated together with a large one.
pub const COMMAND_BYTES_MAX: usize = (2 << 20) + (16 << 10);

/// Unanswered writes of one session. The store keeps results until the client acknowledges the answers, and the limit
/// bounds a client's memory.
pub const PENDING_WRITES_MAX: u64 = 256;

/// Client sessions. A further session ends the least recently used session. With 256 results of 32 B each, all sessions
/// together hold 512 MiB; a client that waits for every answer has a single result.
pub const SESSIONS_MAX: usize = 65_536;

/// Most pairs in the answer to a scan.
pub const SCAN_PAIRS_MAX: u32 = 65_536;

/// Most bytes of encoded pairs in the answer to a scan, unless the first pair alone is larger. Half of the 8 MiB that a
/// message may have by default.
pub const SCAN_BYTES_MAX: u32 = 4 << 20;

/// Bytes of encoded pairs in a block of a save, unless the first pair alone is larger: the replica's thread serves no
/// other request for some 50 µs.
pub const SAVE_BLOCK_BYTES_MAX: usize = 64 << 10;

/// Saves of a replica at a time. Each keeps the memory that writes have replaced since the save began.
pub const SAVES_MAX: usize = 2;

/// Leases. An image copies the list of leases at once.
pub const LEASES_MAX: usize = 65_536;

/// Keys of a lease. All end in one step, about a millisecond of the replica's thread.
pub const LEASE_KEYS_MAX: usize = 4_096;

/// Shortest time of a lease, in milliseconds: some round trips, for a keep-alive in time.
pub const LEASE_MS_MIN: u64 = 10;

/// Longest time of a lease, in milliseconds: a year, longer than a process lives.
pub const LEASE_MS_MAX: u64 = 366 * 24 * 3_600_000;

/// Memory of the changes that a replica keeps for watchers, by default, in bytes: some seconds of writes under load,
/// and hours of few ones.
pub const HISTORY_BYTES_DEFAULT: usize = 16 << 20;

/// Revisions whose changes a replica keeps: bounds the search of a new watcher.
pub const HISTORY_REVISIONS_MAX: usize = 262_144;

/// Watchers of a replica, by default. A slow watcher has at most two windows of its stream and the
/// longest value in memory, 1.5 MiB.
pub const WATCHERS_MAX_DEFAULT: usize = 4_096;

/// Bytes of changes in a message of a watch, unless a change has more: a piece of a stream.
pub const WATCH_MESSAGE_BYTES_MAX: usize = 64 << 10;

/// Most bytes of the changes of a revision, which a client keeps until all have come: more than
/// [`LEASE_ENDS_MAX`] and the keys of a lease, at their longest.
pub const REVISION_CHANGES_BYTES_MAX: usize = 64 << 20;

/// Greatest value of the lease clock, in milliseconds. Ends of leases never reach the end of the numbers.
pub const LEASE_CLOCK_MS_MAX: u64 = 1 << 62;

/// Leases and keys that end with one command, unless the last lease has more keys: some milliseconds of the replica's
/// thread. The leader's next command ends the rest.
pub const LEASE_ENDS_MAX: usize = 8_192;

/// Leases in an answer.
pub const LEASE_PAGE_MAX: usize = 4_096;

/// Bytes of keys in an answer about a lease, unless the first key alone is larger.
pub const LEASE_KEYS_BYTES_MAX: usize = 1 << 20;

/// Greatest revision of a restored store. Revisions go on from there, and never reach the end of the numbers.
pub const RESTORED_REVISION_MAX: u64 = 1 << 62;

/// Addresses to which a client keeps sessions. The client ignores further addresses that replicas report; a Raft
/// cluster has five members, or seven.
pub const CLIENT_MEMBERS_MAX: usize = 64;

/// Longest address of a node, in bytes: a host name has at most 253, and a port follows.
pub const ADDRESS_BYTES_MAX: usize = 300;

/// Default least free space of a log's disk, in bytes: two segments of the log, since batches are on their way when a
/// leader notices the bound.
pub const DISK_BYTES_MIN_DEFAULT: u64 = 64 << 20;

/// Longest explanation of a refusal, in bytes. Longer texts are cut.
pub const REASON_BYTES_MAX: usize = 1024;

const _: () = {
    assert!(KEY_BYTES_MAX <= u16::MAX as usize);
    assert!(BATCH_OPS_MAX <= u16::MAX as usize);
    assert!(COMMAND_BYTES_MAX >= 2 * VALUE_BYTES_MAX + KEY_BYTES_MAX + 64);
    assert!(SCAN_BYTES_MAX as usize > VALUE_BYTES_MAX + KEY_BYTES_MAX + 64);
    assert!(SESSIONS_MAX < u32::MAX as usize);
    assert!(LEASES_MAX < u32::MAX as usize);
    assert!(LEASE_MS_MIN < LEASE_MS_MAX && LEASE_MS_MAX < LEASE_CLOCK_MS_MAX);
};
