//! Every limit of the service, with its unit and its reason (`docs/kv-protocol.md` §1).

/// Longest key, in bytes. Keys are compared on every lookup and repeated in scans and snapshots; etcd's and
/// FoundationDB's users live within 1.5 KiB and 10 KB.
pub const KEY_BYTES_MAX: usize = 4096;

/// Longest value, in bytes: 1 MiB. A value crosses the Raft log whole, and a longer one would hold up the
/// small ones behind it for too long.
pub const VALUE_BYTES_MAX: usize = 1 << 20;

/// Operations of one batch. Conditions are all checked before the first is applied, and the whole batch runs
/// without a break.
pub const BATCH_OPS_MAX: usize = 128;

/// Longest command, in bytes: 2 MiB, room for the largest conditional write (two values and a key), with the
/// rest of a message of 8 MiB for those that are replicated beside it.
pub const COMMAND_BYTES_MAX: usize = (2 << 20) + (16 << 10);

/// Writes of one session that may be without an answer. Their results are kept until the client says that it
/// has them, so this bounds the memory that a client can claim.
pub const PENDING_WRITES_MAX: u64 = 256;

/// Client sessions. When one more opens, the least recently used one ends. With as
/// many results of 32 B as each may have, they hold 512 MiB; a client that waits for each answer has one.
pub const SESSIONS_MAX: usize = 65_536;

/// Most pairs in the answer to a scan.
pub const SCAN_PAIRS_MAX: u32 = 65_536;

/// Most bytes of pairs in the answer to a scan, as encoded, unless the first pair alone has more. Half of the
/// 8 MiB that a message may have by default.
pub const SCAN_BYTES_MAX: u32 = 4 << 20;

/// Addresses that a client keeps sessions to. What replicas tell of others beyond it is not followed; a cluster of
/// Raft has five members, or seven.
pub const CLIENT_MEMBERS_MAX: usize = 64;

/// Longest address of a node, in bytes: a host name has at most 253, and a port follows.
pub const ADDRESS_BYTES_MAX: usize = 300;

/// Longest text that explains a refusal, in bytes. Longer ones are cut.
pub const REASON_BYTES_MAX: usize = 1024;

const _: () = {
    assert!(KEY_BYTES_MAX <= u16::MAX as usize);
    assert!(BATCH_OPS_MAX <= u16::MAX as usize);
    assert!(COMMAND_BYTES_MAX >= 2 * VALUE_BYTES_MAX + KEY_BYTES_MAX + 64);
    assert!(SCAN_BYTES_MAX as usize > VALUE_BYTES_MAX + KEY_BYTES_MAX + 64);
    assert!(SESSIONS_MAX < u32::MAX as usize);
};
