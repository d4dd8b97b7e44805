//! The result of a window.

use serde::{Deserialize, Serialize};

/// What a client measured; one line of JSON.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Outcome {
    /// Calls that ended while calls counted.
    pub calls: u64,
    /// Replies that were compared with what they had to be, those of the warm-up included.
    pub checked: u64,
    /// How long calls counted.
    pub seconds: f64,
    /// Calls by seconds.
    pub calls_per_second: f64,
    /// Bits of the requests by time.
    pub gbit_per_second: f64,
    /// Half of the calls took at most this; with one call in flight only.
    pub p50_ns: Option<u64>,
    /// 99 of 100 calls took at most this.
    pub p99_ns: Option<u64>,
    /// 999 of 1000 calls took at most this.
    pub p999_ns: Option<u64>,
    /// What the library says its version is, where the lock file does not know it.
    #[serde(default)]
    pub version: Option<String>,
}
