//! The counters of a pool.

use super::queue::How;

/// A reading of a pool's counters.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct WorkersStats {
    /// Requests that entered the queue.
    pub queued: u64,
    /// Requests that were refused when they came: too many waited or for too long, or the pool stopped.
    pub refused: u64,
    /// Requests that were refused when a worker came to them, because they had waited too long.
    pub shed: u64,
    /// Requests whose handler ran to its end.
    pub executed: u64,
    /// Requests whose handler panicked.
    pub panicked: u64,
    /// Requests that were cancelled while they waited, and not run.
    pub cancelled: u64,
    /// Requests whose deadline was over before a worker was free, and that were not run.
    pub expired: u64,
    /// Requests that waited when the pool was dropped, and were answered with UNAVAILABLE.
    pub failed: u64,
    /// Time that requests waited for a worker, all together, in nanoseconds.
    pub delay_ns_sum: u64,
    /// The longest that a request waited for a worker, in nanoseconds.
    pub delay_ns_max: u64,
    /// Workers that run a handler now.
    pub busy: usize,
    /// Requests that wait now.
    pub waiting: usize,
    /// Bytes of those.
    pub waiting_bytes: usize,
}

impl WorkersStats {
    /// A worker takes a request that waited for so long.
    pub(super) fn start(&mut self, delay_ns: u64) {
        self.busy += 1;
        self.delay_ns_sum += delay_ns;
        self.delay_ns_max = self.delay_ns_max.max(delay_ns);
    }

    /// A worker is done with a request.
    pub(super) fn finish(&mut self, how: How) {
        self.busy -= 1;
        match how {
            How::Executed => self.executed += 1,
            How::Panicked => self.panicked += 1,
            How::Cancelled => self.cancelled += 1,
        }
    }
}
