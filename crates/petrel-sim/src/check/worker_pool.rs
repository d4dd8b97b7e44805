//! The library's worker pool with workers of virtual time: they take requests, are busy for a while, and answer. Requests that are
//! refused, late or cancelled are not run. The ledger checks the callers' outcomes accordingly.

use std::rc::Rc;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use petrel::overload::Shedding;
use petrel::workers::{SteppedRun, SteppedWorkers, WorkerRequest, Workers};

use super::call::{Method, answer_seed};
use super::client_call::{Instructions, Work};
use super::node::Shared;
use super::pattern;
use crate::world::SimEndpoint;

pub(super) struct WorkerPool {
    size: usize,
    pool: SteppedWorkers,
    /// The request that a handler was called for.
    called: Arc<Mutex<Option<(Task, WorkerRequest)>>>,
    busy: Vec<Busy>,
}

/// The work of a queued request.
#[derive(Clone, Copy, Debug)]
pub(super) enum Task {
    Call(Method),
    ClientCall(Work),
}

struct Busy {
    until_ns: u64,
    run: SteppedRun,
    request: WorkerRequest,
    instructions: Instructions,
}

impl WorkerPool {
    /// Makes a pool with few workers, and a queue short enough to be full at times. `endpoint_number` selects the
    /// kind of load shedding.
    pub(super) fn new(endpoint_number: u32) -> Self {
        let shedding = match endpoint_number % 5 {
            0 => Shedding::LimitOnly,
            1..4 => Shedding::ExpectedWait { target: Duration::from_millis(2), services: 0 },
            _ => Shedding::default(),
        };
        let size = 1 + endpoint_number as usize % 3;
        let builder = Workers::builder().threads(size).shedding(shedding);
        let builder = builder.queue_requests(2 + endpoint_number as usize * 7 % 30);
        let pool = builder.queue_bytes(100_000).stepped().expect("the settings are sound");
        Self { size, pool, called: Arc::default(), busy: Vec::new() }
    }

    pub(super) fn is_idle(&self) -> bool {
        self.pool.workers().is_idle()
    }

    /// Returns when the next worker finishes; zero if a worker is free for a waiting request.
    pub(super) fn next_ns(&self) -> Option<u64> {
        if self.busy.len() < self.size && self.pool.workers().stats().waiting > 0 {
            return Some(0);
        }
        self.busy.iter().map(|busy| busy.until_ns).min()
    }

    /// Returns the numbers of requests that were run, refused, and skipped because they were cancelled.
    pub(super) fn counts(&self) -> [u64; 3] {
        let stats = self.pool.workers().stats();
        [stats.executed, stats.refused + stats.expired, stats.cancelled]
    }

    fn take_done(&mut self, now_ns: u64) -> Option<Busy> {
        let place = self.busy.iter().position(|busy| busy.until_ns <= now_ns)?;
        Some(self.busy.swap_remove(place))
    }
}

/// Lets workers handle the requests of a method.
pub(super) fn register(shared: &Rc<Shared>, endpoint: &mut SimEndpoint, method: u16, task: Task) {
    let worker_pool = shared.worker_pool.borrow();
    let called = Arc::clone(&worker_pool.called);
    let here = Rc::clone(shared);
    let prepare = move |_: &mut (), request: &petrel::Request<'_>| {
        here.served.borrow_mut().insert(request.session());
    };
    endpoint.on_worker_with(method, worker_pool.pool.workers(), prepare, move |(), request| {
        *called.lock().unwrap_or_else(PoisonError::into_inner) = Some((task, request));
    });
}

/// Runs the workers: answers finished requests, and starts waiting requests.
pub(super) fn run(shared: &Shared, endpoint: &mut SimEndpoint) {
    let worker_pool = &mut *shared.worker_pool.borrow_mut();
    let now_ns = shared.common.fabric.turn_clock().last_ns;
    while let Some(Busy { run, request, instructions, .. }) = worker_pool.take_done(now_ns) {
        let Instructions { id, seed, len, .. } = instructions;
        shared.ledger().answer(id);
        let mut message = vec![0; len];
        pattern::fill(seed, &mut message);
        request.reply_vec(message);
        worker_pool.pool.finish(run, petrel::Time::from_ns(now_ns));
    }
    while worker_pool.busy.len() < worker_pool.size {
        // Reads the clock as a worker's thread does, because earlier requests have taken time.
        let now = endpoint.context().clock_now();
        let Some(run) = worker_pool.pool.start(now) else { break };
        let called = worker_pool.called.lock().unwrap_or_else(PoisonError::into_inner).take();
        let request = called.filter(|_| run.was_called());
        let executed =
            request.and_then(|(task, request)| Some((execute(shared, task, &request)?, request)));
        let Some((instructions, request)) = executed else {
            worker_pool.pool.finish(run, now);
            continue;
        };
        let until_ns = now.as_ns() + instructions.delay_ns;
        worker_pool.busy.push(Busy { until_ns, run, request, instructions });
    }
}

fn execute(shared: &Shared, task: Task, request: &WorkerRequest) -> Option<Instructions> {
    let deadline_ns = request.deadline().map(petrel::Time::as_ns);
    let mut ledger = shared.ledger();
    if request.is_cancelled() {
        ledger.violate("a worker runs a request that was cancelled before".to_owned());
    }
    let method = match task {
        Task::ClientCall(work) => {
            return ledger.execute_client_call(shared.at, work, request.data(), deadline_ns);
        }
        Task::Call(method) => method,
    };
    let id = ledger.execute(shared.at, method, request.data(), deadline_ns)?;
    let (spec, seed) = (ledger.call(id).spec, answer_seed(request.data()));
    ledger.note_seed(id, seed);
    Some(Instructions { id, seed, len: spec.response_len as usize, delay_ns: spec.delay_ns })
}
