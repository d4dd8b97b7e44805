//! A worker pool without threads, for simulators and tests with a clock of their own.

use super::queue::Done;
use super::stats::RunOutcome;
use super::{Workers, execute};
use crate::time::Time;

/// A pool whose owner calls the handlers, as a free worker would: queue, limits and load shedding are the same code as in
/// [`Workers`].
///
/// ```
/// use petrel::Time;
/// use petrel::workers::Workers;
///
/// let pool = Workers::builder().threads(1).stepped()?;
/// // `endpoint.on_worker(1, pool.workers(), handler)` gives the pool its requests.
/// assert!(pool.start(Time::from_ns(0)).is_none());
/// # Ok::<(), std::io::Error>(())
/// ```
#[derive(Debug)]
pub struct SteppedWorkers {
    workers: Workers,
}

/// A request whose worker is busy.
#[derive(Debug)]
#[must_use = "the worker is busy until the request is finished"]
pub struct SteppedRun {
    how: RunOutcome,
    began: Time,
}

impl SteppedWorkers {
    pub(super) fn new(workers: Workers) -> Self {
        Self { workers }
    }

    /// Returns the pool that endpoints get.
    pub fn workers(&self) -> &Workers {
        &self.workers
    }

    /// Calls the handler of the next request, as a worker that becomes free at this time. Requests that come too late for their
    /// deadline or wait too long are refused before it. `None` if no request waits.
    pub fn start(&self, now: Time) -> Option<SteppedRun> {
        let job = self.workers.pool.queue.try_next(now.as_ns())?;
        Some(SteppedRun { how: execute(job), began: now })
    }

    /// Ends a run: the worker is free for the next request.
    pub fn finish(&self, run: SteppedRun, now: Time) {
        let service_ns = now.as_ns().saturating_sub(run.began.as_ns());
        self.workers.pool.queue.finish(Done::new(run.how, service_ns));
    }
}

impl SteppedRun {
    /// Returns false if the request was cancelled while it waited: its handler was not called.
    pub fn was_called(&self) -> bool {
        self.how != RunOutcome::Cancelled
    }
}
