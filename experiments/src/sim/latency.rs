//! Latencies of calls, in the percentiles that tables show.

use serde::Serialize;

use petrel_sim::fabric::Histogram;

/// Percentiles of latencies, in nanoseconds of virtual time. The buckets of the histogram are at most 1.6 %
/// wide.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Latency {
    /// The number of calls.
    pub count: u64,
    /// The median.
    pub p50_ns: u64,
    /// 99 %.
    pub p99_ns: u64,
    /// 99.9 %.
    pub p999_ns: u64,
    /// 99.99 %; with fewer than ten thousand calls, nearly the longest.
    pub p9999_ns: u64,
    /// The longest.
    pub max_ns: u64,
}

impl From<&Histogram> for Latency {
    fn from(times: &Histogram) -> Self {
        let quantile = |part| times.quantile_ps(part) / 1_000;
        Self {
            count: times.count(),
            p50_ns: quantile(0.5),
            p99_ns: quantile(0.99),
            p999_ns: quantile(0.999),
            p9999_ns: quantile(0.9999),
            max_ns: times.max_ps() / 1_000,
        }
    }
}
