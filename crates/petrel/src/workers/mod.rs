//! Worker threads, for handlers that take too long for an event loop (eRPC §3.2).

mod builder;
pub(crate) mod on_endpoint;
mod queue;
mod request;
mod stats;
mod stepped;

use std::cell::Cell;
use std::fmt;
use std::panic::{self, AssertUnwindSafe};

use petrel_planted::planted;
use petrel_proto::Status;

pub use builder::WorkersBuilder;
pub use request::WorkerRequest;
pub use stats::WorkersStats;
pub use stepped::{SteppedRun, SteppedWorkers};

use crate::sync::thread::{self, JoinHandle};
use crate::sync::{Arc, Mutex, lock, now_ns, thread_local};
use crate::time::Time;
use queue::{Done, Job, Queue};
use stats::RunOutcome;

/// A pool of threads that run handlers; endpoints may share a pool. Clones are the same pool.
///
/// Endpoints register handlers for it with [`Endpoint::on_worker`](crate::Endpoint::on_worker). Requests reach it
/// through one queue, bounded in requests and in bytes, and responses return through the endpoint's inbox: a worker
/// never touches an endpoint. A handler may block, for example in calls by a [`Client`](crate::Client), even on the
/// endpoint of its own request.
///
/// A request cancelled or past its deadline before a worker starts it is refused, and its handler does not run. Calls
/// started in a handler inherit the request's deadline.
///
/// A panic in a handler answers its request with INTERNAL, and the thread goes on.
///
/// Dropping the last clone answers queued requests with UNAVAILABLE, and waits for running handlers. A handler that waits for
/// a call ends only if that call's endpoint still runs, or is gone. If the endpoint's own thread ends the pool, call
/// [`Workers::stop`] first, and run the event loop until [`Workers::is_idle`].
///
/// ```
/// use petrel::endpoint::EndpointConfig;
/// use petrel::workers::Workers;
/// use petrel::Nexus;
///
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let nexus = Nexus::builder().listen("127.0.0.1:0".parse()?).start()?;
/// let address = nexus.local_addr().expect("it listens");
/// let workers = Workers::builder().threads(2).start()?;
/// # std::thread::spawn(move || {
/// let mut endpoint = nexus.endpoint(EndpointConfig::default()).unwrap();
/// endpoint.on_worker(1, &workers, |request| {
///     let sum: u64 = request.data().iter().map(|byte| u64::from(*byte)).sum();
///     request.reply(&sum.to_le_bytes());
/// });
/// endpoint.run_until(|_, _| false);
/// # });
/// # let mut client = Nexus::builder().start()?.endpoint(EndpointConfig::default())?;
/// # let session = client.connect_wait(address)?;
/// # assert_eq!(client.call(session, 1, &[1, 2, 3]).wait()?[..], 6u64.to_le_bytes());
/// # Ok(())
/// # }
/// ```
#[derive(Clone)]
pub struct Workers {
    pool: Arc<Pool>,
}

/// The part of a pool that its clones share.
struct Pool {
    queue: Arc<Queue>,
    threads: Mutex<Vec<JoinHandle<()>>>,
}

impl Workers {
    /// Returns a builder with default settings.
    pub fn builder() -> WorkersBuilder {
        WorkersBuilder::new()
    }

    /// Stops accepting requests: later ones are answered with UNAVAILABLE. Queued requests are still executed.
    pub fn stop(&self) {
        self.pool.queue.stop();
    }

    /// Returns true if no request is queued or running. Responses may still be on their way to the endpoint.
    pub fn is_idle(&self) -> bool {
        self.pool.queue.is_idle()
    }

    /// Stops accepting requests, waits until all accepted ones are executed, and ends the threads.
    pub fn shutdown(self) {
        self.stop();
        self.pool.join();
    }

    /// Returns the current counters.
    pub fn stats(&self) -> WorkersStats {
        self.pool.queue.stats()
    }

    pub(crate) fn queue(&self) -> Arc<Queue> {
        Arc::clone(&self.pool.queue)
    }
}

impl Pool {
    fn join(&self) {
        for thread in lock(&self.threads).drain(..) {
            // A handler may own and drop its pool: a thread cannot join itself.
            if thread.thread().id() != thread::current().id() {
                thread.join().expect("panics of handlers are caught");
            }
        }
    }
}

impl Drop for Pool {
    fn drop(&mut self) {
        self.queue.stop_and_fail();
        self.join();
    }
}

impl fmt::Debug for Workers {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Workers").field("stats", &self.stats()).finish()
    }
}

/// The main function of a worker.
fn work(queue: &Queue) {
    let mut done = None;
    while let Some(job) = queue.next(done) {
        done = Some(perform(job));
    }
}

/// Runs a request's handler, and measures its time.
fn perform(job: Job) -> Done {
    let began_ns = now_ns();
    let how = execute(job);
    Done::new(how, now_ns().saturating_sub(began_ns))
}

fn execute(job: Job) -> RunOutcome {
    let (handler, request) = job.into_parts();
    if request.is_cancelled() {
        request.refuse(Status::Cancelled, "the call was cancelled while its request waited");
        return RunOutcome::Cancelled;
    }
    if !planted("workers_deadline_not_inherited") {
        INHERITED_NS.with(|deadline_ns| deadline_ns.set(request.deadline().map(Time::as_ns)));
    }
    // Only the handler's own state can be inconsistent; the drop of the request answers it.
    let ran = panic::catch_unwind(AssertUnwindSafe(|| handler(request)));
    INHERITED_NS.with(|deadline_ns| deadline_ns.set(None));
    match ran {
        Ok(()) => RunOutcome::Executed,
        Err(_) => RunOutcome::Panicked,
    }
}

thread_local! {
    /// The deadline of the request handled on this thread.
    static INHERITED_NS: Cell<Option<u64>> = const { Cell::new(None) };
}

/// Returns the deadline inherited by calls started on this thread.
pub(crate) fn inherited_deadline_ns() -> Option<u64> {
    INHERITED_NS.with(Cell::get)
}

#[cfg(test)]
mod tests {
    use petrel_proto::{RequestHandle, SessionId};

    use super::*;
    use crate::inbox::{Inbox, WorkFlag};
    use crate::sync::AtomicBool;

    /// The time around the call bounds the service time from above, and the handler's own time from below.
    #[test]
    fn perform__returns_outcome_and_service_time() {
        let queue = queue::tests::new_queue();
        let sender = Inbox::new(WorkFlag::new(), || ()).sender();
        let deadline_ns = now_ns() + 3_600_000_000_000;
        for (cancelled, panics, how) in [
            (false, false, RunOutcome::Executed),
            (false, true, RunOutcome::Panicked),
            (true, false, RunOutcome::Cancelled),
            (true, true, RunOutcome::Cancelled),
        ] {
            let session = SessionId { index: 1, generation: 0 };
            let handle = RequestHandle { session, number: 2 };
            let flag = Arc::new(AtomicBool::new(cancelled));
            let sender = sender.clone();
            let deadline = Some(Time::from_ns(deadline_ns));
            let request = WorkerRequest::new(handle, 7, deadline, vec![0], flag, sender);
            let ran = Arc::new(Mutex::new(None));
            let seen = Arc::clone(&ran);
            let handler = move |_: WorkerRequest| {
                let began_ns = now_ns();
                while now_ns() == began_ns {}
                *lock(&seen) = Some((now_ns() - began_ns, inherited_deadline_ns()));
                assert!(!panics, "a handler may panic");
            };
            assert!(queue.push(now_ns(), Box::new(handler), request).is_ok());
            let job = queue.next(None).expect("a request");
            let before_ns = now_ns();
            let done = perform(job);
            let most_ns = now_ns() - before_ns;
            let ran = lock(&ran).take();
            let (done_how, service_ns) = done.of_test();
            assert_eq!((done_how, ran.is_none()), (how, cancelled));
            let (least_ns, inherited_ns) = ran.unwrap_or((0, Some(deadline_ns)));
            assert_eq!(inherited_ns, Some(deadline_ns));
            assert_eq!(inherited_deadline_ns(), None, "no other request has it");
            assert!((least_ns..=most_ns).contains(&service_ns), "{done:?}");
        }
    }
}
