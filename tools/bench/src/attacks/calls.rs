//! Threads of honest clients, and the windows in which their calls are counted.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use petrel_command::failure::Failure;

/// Honest clients, a thread each.
pub(crate) struct Honest {
    shared: Arc<Shared>,
    threads: Vec<JoinHandle<Report>>,
    /// The outcome of the newcomers so far.
    newcomers: Report,
}

/// The state that clients share with their owner.
#[derive(Default)]
pub(crate) struct Shared {
    calls: AtomicU64,
    is_over: AtomicBool,
}

/// The outcome of the calls.
#[derive(Debug, Default)]
pub(crate) struct Report {
    pub(crate) calls: u64,
    pub(crate) failed: u64,
    /// Gets of evicted values.
    pub(crate) missed: u64,
    /// The first failure, of a newcomer if no client has one.
    pub(crate) failure: Option<String>,
    pub(crate) newcomers: u64,
    pub(crate) newcomers_failed: u64,
}

impl Shared {
    /// Returns true if the clients have to end.
    pub(crate) fn is_over(&self) -> bool {
        self.is_over.load(Ordering::Relaxed)
    }

    /// Counts a call.
    pub(crate) fn count(&self) {
        self.calls.fetch_add(1, Ordering::Relaxed);
    }
}

impl Honest {
    /// Runs each client on a thread.
    pub(crate) fn start<C>(clients: impl IntoIterator<Item = C>) -> Self
    where
        C: FnOnce(&Shared) -> Report + Send + 'static,
    {
        let shared = Arc::new(Shared::default());
        let spawn = |client: C| {
            let shared = Arc::clone(&shared);
            thread::spawn(move || client(&shared))
        };
        let threads = clients.into_iter().map(spawn).collect();
        Self { shared, threads, newcomers: Report::default() }
    }

    /// Waits for a window with a newcomer at its begin. Returns the calls of the clients per second.
    pub(crate) fn window(
        &mut self,
        window: Duration,
        newcomer: impl FnOnce() -> Result<(), String>,
    ) -> f64 {
        let counted = || self.shared.calls.load(Ordering::Relaxed);
        let (calls, begun) = (counted(), Instant::now());
        self.newcomers.newcomers += 1;
        if let Err(failure) = newcomer() {
            self.newcomers.newcomers_failed += 1;
            self.newcomers.failure.get_or_insert(format!("newcomer: {failure}"));
        }
        thread::sleep(window.saturating_sub(begun.elapsed()));
        (counted() - calls) as f64 / begun.elapsed().as_secs_f64()
    }

    /// Ends the clients.
    pub(crate) fn end(self) -> Result<Report, Failure> {
        self.shared.is_over.store(true, Ordering::Relaxed);
        let mut sum = Report { failure: None, ..self.newcomers };
        for thread in self.threads {
            let died = |_| Failure::because("an honest client's thread has panicked");
            let report = thread.join().map_err(died)?;
            sum.calls += report.calls;
            sum.failed += report.failed;
            sum.missed += report.missed;
            sum.failure = sum.failure.or(report.failure);
        }
        sum.failure = sum.failure.or(self.newcomers.failure);
        Ok(sum)
    }
}
