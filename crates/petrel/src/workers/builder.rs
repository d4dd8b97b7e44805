//! What can be set about a pool of workers.

use std::io;
use std::thread;
use std::time::Duration;

use super::queue::Queue;
use super::{Workers, work};
use crate::IdlePolicy;
use crate::overload::{Admission, AdmissionConfig, Shedding};
use crate::sync::{Arc, Mutex};

/// What can be set about a pool of workers.
#[derive(Clone, Debug)]
pub struct WorkersBuilder {
    threads: usize,
    admission: AdmissionConfig,
    idle: IdlePolicy,
    name: String,
}

impl WorkersBuilder {
    pub(super) fn new() -> Self {
        Self {
            threads: thread::available_parallelism().map_or(1, |cores| cores.get()),
            admission: AdmissionConfig::default(),
            idle: IdlePolicy::SpinThenBlock(Duration::from_micros(20)),
            name: "petrel-worker".to_owned(),
        }
    }

    /// How many threads; by default one for each core.
    pub fn threads(mut self, count: usize) -> Self {
        self.threads = count;
        self
    }

    /// Requests that may wait for a worker; by default 1 024. More are refused.
    pub fn queue_requests(mut self, count: usize) -> Self {
        self.admission.requests_max = count;
        self
    }

    /// Bytes of requests that may wait for a worker; by default 64 MiB. A request that is larger is
    /// taken when it is alone.
    pub fn queue_bytes(mut self, bytes: usize) -> Self {
        self.admission.bytes_max = bytes;
        self
    }

    /// What is done about requests that wait too long; by default what would wait for a hundred times of
    /// service, or could not be answered by its deadline, is refused at once.
    pub fn shedding(mut self, shedding: Shedding) -> Self {
        self.admission.shedding = shedding;
        self
    }

    /// What a worker without work does; by default it looks again for 20 µs and then sleeps.
    pub fn idle(mut self, idle: IdlePolicy) -> Self {
        self.idle = idle;
        self
    }

    /// Name of the threads, for debuggers and `top`; a number is added.
    pub fn name(mut self, name: impl Into<String>) -> Self {
        self.name = name.into();
        self
    }

    /// Starts the threads.
    ///
    /// # Errors
    /// `InvalidInput` when there would be no thread, or no request could ever wait; else what the
    /// operating system says against another thread.
    pub fn start(self) -> io::Result<Workers> {
        if self.threads == 0 || self.admission.requests_max == 0 {
            let text = "a pool needs at least one thread, and room for one request";
            return Err(io::Error::new(io::ErrorKind::InvalidInput, text));
        }
        let admission = Admission::new(self.admission, self.threads);
        let queue = Arc::new(Queue::new(admission, self.idle));
        // Dropped if a thread cannot be started, which ends those that were.
        let workers = Workers { queue: Arc::clone(&queue), threads: Mutex::default() };
        for number in 0..self.threads {
            let queue = Arc::clone(&queue);
            let thread = thread::Builder::new().name(format!("{}-{number}", self.name));
            let thread = thread.spawn(move || work(&queue))?;
            crate::sync::lock(&workers.threads).push(thread);
        }
        Ok(workers)
    }
}
