//! The methods, by number.
//!
//! | numbers | for |
//! | --- | --- |
//! | 1 to 15 | clients |
//! | 16 to 31 | the replicas among themselves |

/// Changes the store, or opens a session: one command of the log.
pub const WRITE: u16 = 1;
/// Reads one key.
pub const GET: u16 = 2;
/// Reads a range of keys.
pub const SCAN: u16 = 3;
/// Reports the state of a replica.
pub const STATUS: u16 = 4;
/// Adds, promotes or removes a replica.
pub const MEMBER: u16 = 5;
/// Hands leadership to another replica.
pub const TRANSFER: u16 = 6;

/// Reads all keys at one moment, block by block.
pub const SAVE: u16 = 7;

/// Reads leases.
pub const LEASE: u16 = 8;

/// Reads the revision of the store.
pub const REVISION: u16 = 9;

/// A stream of the changes of a range of keys.
pub const WATCH: u16 = 10;

/// Names of the methods for clients.
pub const NAMES: [(&str, u16); 10] = [
    ("write", WRITE),
    ("get", GET),
    ("scan", SCAN),
    ("status", STATUS),
    ("member", MEMBER),
    ("transfer", TRANSFER),
    ("save", SAVE),
    ("lease", LEASE),
    ("revision", REVISION),
    ("watch", WATCH),
];
