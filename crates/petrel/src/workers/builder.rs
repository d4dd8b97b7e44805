//! Settings of a worker pool.

use std::io;
use std::time::Duration;

use super::queue::Queue;
use super::{Pool, SteppedWorkers, Workers, work};
use crate::endpoint::IdlePolicy;
use crate::overload::{Admission, AdmissionConfig, Shedding};
use crate::runtime::Runtime;
use crate::sync::{Arc, Mutex, thread};

/// Settings of a worker pool.
#[derive(Clone, Debug)]
pub struct WorkersBuilder {
    threads: usize,
    admission: AdmissionConfig,
    idle: Option<IdlePolicy>,
    name: String,
}

impl WorkersBuilder {
    pub(super) fn new() -> Self {
        Self {
            threads: cpus(),
            admission: AdmissionConfig::default(),
            idle: None,
            name: "petrel-worker".to_owned(),
        }
    }

    /// Sets the number of threads; by default one per core.
    pub fn threads(mut self, count: usize) -> Self {
        self.threads = count;
        self
    }

    /// Sets the limit of queued requests; by default 1 024. Further ones are refused.
    pub fn queue_requests(mut self, count: usize) -> Self {
        self.admission.requests_max = count;
        self
    }

    /// Sets the limit of queued bytes of requests; by default 64 MiB. A larger request is accepted when the queue is
    /// empty.
    pub fn queue_bytes(mut self, bytes: usize) -> Self {
        self.admission.bytes_max = bytes;
        self
    }

    /// Sets how requests that wait too long are shed. By default a request is refused at once if it would wait for a
    /// hundred service times, or could not be answered by its deadline.
    pub fn shedding(mut self, shedding: Shedding) -> Self {
        self.admission.shedding = shedding;
        self
    }

    /// Sets how an idle worker waits. By default it sleeps at once; with more CPUs than workers it first polls for 20
    /// µs.
    pub fn idle(mut self, idle: IdlePolicy) -> Self {
        self.idle = Some(idle);
        self
    }

    /// Sets the name of the threads, for debuggers and `top`; a number is appended.
    pub fn name(mut self, name: impl Into<String>) -> Self {
        self.name = name.into();
        self
    }

    /// A worker that spins on the only CPU delays the work: with two workers on two CPUs, a call took 47 µs
    /// with threads that spin for 20 µs, and 19.5 µs with threads that sleep at once.
    fn idle_policy(&self) -> IdlePolicy {
        self.idle.unwrap_or(match self.threads < cpus() {
            true => IdlePolicy::SpinThenBlock(Duration::from_micros(20)),
            false => IdlePolicy::Block,
        })
    }

    /// Starts the threads. Within a tokio runtime, every thread enters the runtime's context.
    ///
    /// # Errors
    /// `InvalidInput` for zero threads or a queue of zero requests; else the operating system's error in starting a
    /// thread.
    pub fn start(self) -> io::Result<Workers> {
        let runtime = Runtime::current();
        // Dropped if a thread cannot be started; the drop ends the started threads.
        let pool = self.pool()?;
        for number in 0..self.threads {
            let queue = Arc::clone(&pool.queue);
            let thread = thread::Builder::new().name(format!("{}-{number}", self.name));
            let runtime = runtime.clone();
            let thread = thread.spawn(move || {
                let _entered = runtime.enter();
                work(&queue);
            })?;
            crate::sync::lock(&pool.threads).push(thread);
        }
        Ok(Workers { pool })
    }

    /// Makes the pool without its threads: the owner runs the handlers of as many workers as `threads` says, step by step.
    ///
    /// # Errors
    /// `InvalidInput` as [`WorkersBuilder::start`].
    pub fn stepped(self) -> io::Result<SteppedWorkers> {
        Ok(SteppedWorkers::new(Workers { pool: self.pool()? }))
    }

    fn pool(&self) -> io::Result<Arc<Pool>> {
        if self.threads == 0 || self.admission.requests_max == 0 {
            let text = "a pool needs at least one thread, and room for one request";
            return Err(io::Error::new(io::ErrorKind::InvalidInput, text));
        }
        let admission = Admission::new(self.admission, self.threads);
        let queue = Arc::new(Queue::new(admission, self.idle_policy()));
        Ok(Arc::new(Pool { queue, threads: Mutex::default() }))
    }
}

fn cpus() -> usize {
    thread::available_parallelism().map_or(1, |count| count.get())
}
