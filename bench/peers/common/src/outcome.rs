//! The result of a window.

use serde::{Deserialize, Serialize};

/// The result of a client, printed as one line of JSON.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Outcome {
    /// Counted calls that ended.
    pub calls: u64,
    /// Compared replies, including those of the warm-up.
    pub checked: u64,
    /// Duration of the counted calls.
    pub seconds: f64,
    /// Calls per second.
    pub calls_per_second: f64,
    /// Bits of the requests, per time.
    pub gbit_per_second: f64,
    /// Median latency; only with a single call in flight.
    pub p50_ns: Option<u64>,
    /// The 99th percentile.
    pub p99_ns: Option<u64>,
    /// The 99.9th percentile.
    pub p999_ns: Option<u64>,
    /// The version that the library reports, if missing in the lock file.
    #[serde(default)]
    pub version: Option<String>,
}
