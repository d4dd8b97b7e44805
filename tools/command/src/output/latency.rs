//! Latencies: recorded in a histogram, printed as percentiles.
//!
//! The percentiles are p50, p99 and p99.9, beside the maximum; the mean of latencies describes no real
//! call.

use hdrhistogram::Histogram;
use serde::Serialize;

use crate::units::format_ns;

/// Longest latency that is recorded exactly: a minute, well beyond any call's timeout.
const LATENCY_MAX_NS: u64 = 60_000_000_000;

/// Three significant digits: an error of at most 0.1 %, in some 230 KiB of memory.
const SIGNIFICANT_DIGITS: u8 = 3;

/// Latencies of calls in nanoseconds, in memory of fixed size.
pub struct Latencies {
    histogram: Histogram<u64>,
}

impl Default for Latencies {
    /// Returns an empty histogram; all memory is allocated here.
    fn default() -> Self {
        let histogram = Histogram::new_with_bounds(1, LATENCY_MAX_NS, SIGNIFICANT_DIGITS)
            .expect("1 ns to 60 s at 3 digits are valid bounds");
        Self { histogram }
    }
}

impl Latencies {
    /// Adds a latency, limited to a minute.
    pub fn record(&mut self, ns: u64) {
        self.histogram.saturating_record(ns);
    }

    /// Adds all latencies of another histogram.
    pub fn add(&mut self, other: &Self) {
        self.histogram.add(&other.histogram).expect("both have the same bounds");
    }

    /// Returns the percentiles so far, or `None` without latencies.
    pub fn summary(&self) -> Option<LatencySummary> {
        let histogram = &self.histogram;
        (!histogram.is_empty()).then(|| LatencySummary {
            count: histogram.len(),
            min_ns: histogram.min(),
            mean_ns: histogram.mean().round() as u64,
            p50_ns: histogram.value_at_quantile(0.5),
            p99_ns: histogram.value_at_quantile(0.99),
            p999_ns: histogram.value_at_quantile(0.999),
            max_ns: histogram.max(),
            above_twice_p50: histogram
                .count_between(2 * histogram.value_at_quantile(0.5) + 1, u64::MAX),
        })
    }
}

/// Returns a percentile as the text of a cell; empty without latencies.
pub fn format_percentile(
    latency: &Option<LatencySummary>,
    which: fn(&LatencySummary) -> u64,
) -> String {
    latency.as_ref().map_or(String::new(), |latency| format_ns(which(latency)))
}

/// Percentiles of latencies, in nanoseconds; the field names are those of JSON.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct LatencySummary {
    /// The number of recorded latencies.
    pub count: u64,
    /// The shortest latency.
    pub min_ns: u64,
    /// The mean.
    pub mean_ns: u64,
    /// The median.
    pub p50_ns: u64,
    /// The 99th percentile.
    pub p99_ns: u64,
    /// The 99.9th percentile.
    pub p999_ns: u64,
    /// The longest latency.
    pub max_ns: u64,
    /// The number of latencies above twice the median.
    pub above_twice_p50: u64,
}

impl LatencySummary {
    /// Titles of the columns that [`LatencySummary::cells`] fills.
    pub const HEADER: [&str; 4] = ["p50", "p99", "p99.9", "max"];

    /// Returns the four cells of a table's row.
    pub fn cells(&self) -> [String; 4] {
        [self.p50_ns, self.p99_ns, self.p999_ns, self.max_ns].map(format_ns)
    }
}

/// A line in the style of `ping`: `p50 4.40 us, p99 9.10 us, p99.9 31.0 us, max 80.2 us`.
impl std::fmt::Display for LatencySummary {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let figures = Self::HEADER.iter().zip(self.cells());
        let parts: Vec<String> = figures.map(|(name, value)| format!("{name} {value}")).collect();
        f.write_str(&parts.join(", "))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn summary__of_nothing_is_none() {
        assert_eq!(Latencies::default().summary(), None);
    }

    #[test]
    fn display__is_one_line_of_four_figures() {
        let mut latencies = Latencies::default();
        latencies.record(500);
        let text = latencies.summary().unwrap().to_string();
        assert_eq!(text, "p50 500 ns, p99 500 ns, p99.9 500 ns, max 500 ns");
    }
}
