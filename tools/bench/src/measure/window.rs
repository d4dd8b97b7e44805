//! The counts of one window of time.

use std::ops::Add;

use petrel_command::load::FailureGroup;
use petrel_command::output::latency::Latencies;
use serde::{Deserialize, Serialize};

/// The calls of one end in a window.
pub struct Window {
    /// Calls started.
    pub calls: u64,
    /// Answered calls; every answer was checked, and may be wrong.
    pub checked: u64,
    /// Wrong answers.
    pub mismatched: u64,
    /// Messages that the baseline lost.
    pub lost: u64,
    /// Bytes of answered requests.
    pub bytes: u64,
    pub elapsed_ns: u64,
    /// The latencies of the calls, if they are measured.
    pub latencies: Option<Latencies>,
    pub failures: Vec<FailureGroup>,
    /// The two ends' counters during the window.
    pub traffic: Traffic,
    /// Packets between the ends, if they are counted.
    pub packets: Packets,
}

/// Packets that arrived in either of two namespaces.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Packets {
    pub arrived: u64,
    /// Arrived packets that the rules dropped.
    pub dropped: u64,
    /// Dropped packets towards the answering end.
    pub dropped_requests: u64,
}

/// Counters of one end, or of both together.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Traffic {
    /// Retransmitted packets.
    pub retransmissions: u64,
    /// Frames and datagrams dropped, for any reason.
    pub drops: u64,
    /// Drops because a socket's receive buffer was full.
    pub dropped_by_kernel: u64,
    /// Dropped duplicates.
    pub duplicates: u64,
    /// Datagrams, or publications of a ring, handed to the medium.
    pub datagrams: u64,
    /// Expirations of a request's timeout.
    pub timeouts: u64,
    /// Probes sent before a request's timeout.
    pub probes: u64,
    /// Losses detected by acknowledgements of later packets.
    pub found_early: u64,
}

impl Window {
    /// Creates an empty window.
    pub fn new(latencies: Option<Latencies>) -> Self {
        Self {
            calls: 0,
            checked: 0,
            mismatched: 0,
            lost: 0,
            bytes: 0,
            elapsed_ns: 0,
            latencies,
            failures: Vec::new(),
            traffic: Traffic::default(),
            packets: Packets::default(),
        }
    }

    /// Returns the answers per second.
    pub fn per_second(&self) -> f64 {
        self.checked as f64 * 1e9 / self.elapsed_ns.max(1) as f64
    }

    /// Returns the bits of answered requests per second.
    pub fn bits_per_second(&self) -> f64 {
        self.bytes as f64 * 8e9 / self.elapsed_ns.max(1) as f64
    }

    /// Returns the median latency; 0 if no call was timed.
    pub fn p50_ns(&self) -> u64 {
        let summary = self.latencies.as_ref().and_then(Latencies::summary);
        summary.map_or(0, |summary| summary.p50_ns)
    }
}

impl Traffic {
    /// Returns the counts since an earlier reading.
    pub fn since(self, before: Self) -> Self {
        self.with(before, |now, before| now - before)
    }

    fn with(self, other: Self, combine: impl Fn(u64, u64) -> u64) -> Self {
        let of = |counter: fn(&Self) -> u64| combine(counter(&self), counter(&other));
        Self {
            retransmissions: of(|traffic| traffic.retransmissions),
            drops: of(|traffic| traffic.drops),
            dropped_by_kernel: of(|traffic| traffic.dropped_by_kernel),
            duplicates: of(|traffic| traffic.duplicates),
            datagrams: of(|traffic| traffic.datagrams),
            timeouts: of(|traffic| traffic.timeouts),
            probes: of(|traffic| traffic.probes),
            found_early: of(|traffic| traffic.found_early),
        }
    }
}

impl Add for Traffic {
    type Output = Self;

    fn add(self, other: Self) -> Self {
        self.with(other, |one, other| one + other)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn window__rates_are_of_what_was_answered() {
        let mut window = Window::new(Some(Latencies::default()));
        (window.calls, window.checked, window.bytes) = (11, 10, 80);
        window.elapsed_ns = 1_000;
        assert_eq!((window.per_second(), window.bits_per_second()), (1e7, 6.4e8));
        assert_eq!(window.p50_ns(), 0);
        for ns in [7, 8, 9] {
            window.latencies.as_mut().unwrap().record(ns);
        }
        assert_eq!(window.p50_ns(), 8);
    }

    #[test]
    fn traffic__is_a_difference_of_sums() {
        let traffic =
            |retransmissions, probes| Traffic { retransmissions, probes, ..Traffic::default() };
        assert_eq!((traffic(3, 4) + traffic(5, 6)).since(traffic(1, 2)), traffic(7, 8));
    }
}
