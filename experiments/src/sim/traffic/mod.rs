//! Traffic of data centres: published sizes of messages, and the times of flows.
//!
//! | item | purpose |
//! | --- | --- |
//! | [`SizeDistribution`] | web search and data mining, drawn by inverse transform |
//! | [`FlowRecord`] | one flow: size, start, end, and the least possible time |
//! | [`FlowSummary`] | times and slowdowns of all flows of a class of sizes |
//!
//! Arrivals of flows are Poisson; [`mean_interval_ps`] is their distance at a load.

mod flow;
mod size;

pub use flow::{FlowRecord, FlowSummary, SizeClass};
pub use size::SizeDistribution;

/// Returns the mean time between two flows, in picoseconds, at which flows of `flow_bytes_mean` bytes on average use
/// the share `load` of a link of `rate_bps`; 1 is the whole link. Bytes are those on the link, headers included.
///
/// # Panics
/// Unless the load is above zero.
pub fn mean_interval_ps(flow_bytes_mean: f64, rate_bps: u64, load: f64) -> u64 {
    assert!(load > 0.0, "a load of {load} has no arrivals");
    (flow_bytes_mean * 8e12 / (rate_bps as f64 * load)).round() as u64
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn mean_interval_ps__is_the_time_of_a_flow_divided_by_the_load() {
        assert_eq!(mean_interval_ps(1_250.0, 10_000_000_000, 1.0), 1_000_000);
        assert_eq!(mean_interval_ps(1_250.0, 10_000_000_000, 0.5), 2_000_000);
    }
}
