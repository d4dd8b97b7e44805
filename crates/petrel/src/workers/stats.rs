//! The counters of a pool.

/// A snapshot of a pool's counters.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct WorkersStats {
    /// Requests queued.
    pub queued: u64,
    /// Requests refused on arrival: too many waited or for too long, or the pool was stopped.
    pub refused: u64,
    /// Requests whose handler ran to its end.
    pub executed: u64,
    /// Requests whose handler panicked.
    pub panicked: u64,
    /// Requests cancelled while they waited, and not run.
    pub cancelled: u64,
    /// Requests not run because the deadline passed before a worker was free.
    pub expired: u64,
    /// Requests queued when the pool was dropped, and answered with UNAVAILABLE.
    pub failed: u64,
    /// Sum of the waits for a worker, in nanoseconds.
    pub delay_ns_sum: u64,
    /// The longest wait of a request for a worker, in nanoseconds.
    pub delay_ns_max: u64,
    /// Workers running a handler now.
    pub busy: usize,
    /// Requests queued now.
    pub waiting: usize,
    /// Bytes of the queued requests.
    pub waiting_bytes: usize,
}

/// The outcome of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum RunOutcome {
    Executed,
    Panicked,
    /// The handler did not run: the request was cancelled.
    Cancelled,
}

impl WorkersStats {
    /// Records that a worker starts a request after a wait of `delay_ns`.
    pub(super) fn start(&mut self, delay_ns: u64) {
        self.busy += 1;
        self.delay_ns_sum += delay_ns;
        self.delay_ns_max = self.delay_ns_max.max(delay_ns);
    }

    /// Records that a worker has finished a request.
    pub(super) fn finish(&mut self, outcome: RunOutcome) {
        assert!(self.busy > 0, "a worker finishes a request that it has started");
        self.busy -= 1;
        match outcome {
            RunOutcome::Executed => self.executed += 1,
            RunOutcome::Panicked => self.panicked += 1,
            RunOutcome::Cancelled => self.cancelled += 1,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    panics! {
        finish__without_a_start: "a request that it has started"
            => WorkersStats::default().finish(RunOutcome::Executed);
    }
}
