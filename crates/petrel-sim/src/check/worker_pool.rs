//! A worker pool of virtual threads: a queue with the library's admission control, and workers that take
//! requests, are busy for a while, and answer. Requests that are refused, late or cancelled are not run.
//! The ledger checks the callers' outcomes accordingly.

use std::collections::VecDeque;
use std::rc::Rc;
use std::time::Duration;

use petrel::endpoint::{Handled, Responder};
use petrel::overload::{Admission, AdmissionConfig, Shed, Shedding, Waiting};
use petrel::{Context, MsgBuf, Request, Status};

use super::call::{Method, answer_seed};
use super::client_call::{Instructions, Work};
use super::node::Shared;
use super::service;
use crate::world::SimEndpoint;

/// The worker pool of an endpoint, and its queue.
pub(super) struct WorkerPool {
    size: usize,
    admission: Admission,
    waiting: VecDeque<Job>,
    bytes: usize,
    busy: Vec<Busy>,
}

/// The work of a queued request.
#[derive(Clone, Copy, Debug)]
pub(super) enum Task {
    Call(Method),
    ClientCall(Work),
}

struct Job {
    queued_ns: u64,
    deadline_ns: Option<u64>,
    responder: Responder,
    message: MsgBuf,
    task: Task,
}

/// A busy worker.
struct Busy {
    began_ns: u64,
    until_ns: u64,
    responder: Responder,
    instructions: Instructions,
}

impl WorkerPool {
    /// Makes a pool with few workers, and a queue short enough to be full at times. `endpoint_number` selects the
    /// kind of load shedding.
    pub(super) fn new(endpoint_number: u32) -> Self {
        let (target, interval) = (Duration::from_millis(2), Duration::from_millis(10));
        let shedding = match endpoint_number % 5 {
            0 => Shedding::LimitOnly,
            1 => Shedding::Codel { target, interval },
            2 => Shedding::ControlledDelay { target, interval },
            3 => Shedding::OldestWait { target },
            _ => Shedding::default(),
        };
        let size = 1 + endpoint_number as usize % 3;
        let config = AdmissionConfig {
            requests_max: 2 + endpoint_number as usize * 7 % 30,
            bytes_max: 100_000,
            shedding,
        };
        let admission = Admission::new(config, size);
        Self { size, admission, waiting: VecDeque::new(), bytes: 0, busy: Vec::new() }
    }

    pub(super) fn is_idle(&self) -> bool {
        self.waiting.is_empty() && self.busy.is_empty()
    }

    /// Returns when the next worker finishes; zero if a worker is free for a waiting request.
    pub(super) fn next_ns(&self) -> Option<u64> {
        if self.busy.len() < self.size && !self.waiting.is_empty() {
            return Some(0);
        }
        self.busy.iter().map(|busy| busy.until_ns).min()
    }

    fn admit(&mut self, now_ns: u64, bytes: usize, deadline_ns: Option<u64>) -> Result<(), Shed> {
        let waiting = Waiting {
            requests: self.waiting.len(),
            bytes: self.bytes,
            oldest_ns: self.waiting.front().map(|job| job.queued_ns),
        };
        self.admission.admit(now_ns, bytes, deadline_ns, waiting)
    }

    fn take(&mut self) -> Option<Job> {
        if self.busy.len() == self.size {
            return None;
        }
        let job = self.waiting.pop_front()?;
        self.bytes -= job.message.len();
        Some(job)
    }

    fn take_done(&mut self, now_ns: u64) -> Option<Busy> {
        let place = self.busy.iter().position(|busy| busy.until_ns <= now_ns)?;
        let done = self.busy.swap_remove(place);
        self.admission.done(now_ns - done.began_ns);
        Some(done)
    }
}

/// Enqueues a request, or refuses it.
pub(super) fn enqueue(
    shared: &Rc<Shared>,
    cx: &mut Context<'_>,
    request: Request<'_>,
    task: Task,
) -> Handled {
    let (now_ns, deadline_ns) = (cx.now().as_ns(), request.deadline(cx).map(petrel::Time::as_ns));
    let admitted = shared.worker_pool.borrow_mut().admit(now_ns, request.data().len(), deadline_ns);
    if let Err(shed) = admitted {
        shared.ledger().client_call_counts.worker_refused += 1;
        return request.refuse(cx, shed.status(), shed.text());
    }
    let (kept, handled) = request.defer_message(cx);
    if let Some((responder, message)) = kept {
        let worker_pool = &mut shared.worker_pool.borrow_mut();
        worker_pool.bytes += message.len();
        worker_pool.waiting.push_back(Job {
            queued_ns: now_ns,
            deadline_ns,
            responder,
            message,
            task,
        });
    }
    handled
}

/// Runs the workers: answers finished requests, and starts waiting ones.
pub(super) fn run(shared: &Shared, endpoint: &mut SimEndpoint) {
    let now_ns = shared.common.fabric.turn_clock().last_ns;
    loop {
        let Some(done) = shared.worker_pool.borrow_mut().take_done(now_ns) else { break };
        let Busy { responder, instructions: Instructions { id, seed, len, .. }, .. } = done;
        shared.ledger().answer(id);
        service::answer_by(responder, &mut endpoint.context(), seed, len);
    }
    loop {
        let Some(job) = shared.worker_pool.borrow_mut().take() else { break };
        begin(shared, &mut endpoint.context(), job);
    }
}

fn begin(shared: &Shared, cx: &mut Context<'_>, job: Job) {
    let Job { queued_ns, deadline_ns, responder, message, task } = job;
    // Reads the clock as a worker's thread does, because earlier jobs have taken time.
    let now_ns = cx.clock_now().as_ns();
    if responder.is_cancelled(cx) {
        shared.ledger().client_call_counts.worker_skipped += 1;
        return responder.refuse(cx, Status::Cancelled, "the call was given up");
    }
    let begun = {
        let worker_pool = &mut shared.worker_pool.borrow_mut();
        let waiting = worker_pool.waiting.len();
        worker_pool.admission.begin(now_ns, queued_ns, deadline_ns, waiting)
    };
    if let Err(shed) = begun {
        shared.ledger().client_call_counts.worker_refused += 1;
        return responder.refuse(cx, shed.status(), shed.text());
    }
    let Some(instructions) = execute(shared, task, &message, deadline_ns) else { return };
    shared.ledger().client_call_counts.worker_executed += 1;
    let until_ns = now_ns + instructions.delay_ns;
    shared.worker_pool.borrow_mut().busy.push(Busy {
        began_ns: now_ns,
        until_ns,
        responder,
        instructions,
    });
}

fn execute(
    shared: &Shared,
    task: Task,
    message: &[u8],
    deadline_ns: Option<u64>,
) -> Option<Instructions> {
    let mut ledger = shared.ledger();
    let method = match task {
        Task::ClientCall(work) => {
            return ledger.execute_client_call(shared.at, work, message, deadline_ns);
        }
        Task::Call(method) => method,
    };
    let id = ledger.execute(shared.at, method, message, deadline_ns)?;
    let (spec, seed) = (ledger.call(id).spec, answer_seed(message));
    ledger.note_seed(id, seed);
    Some(Instructions { id, seed, len: spec.response_len as usize, delay_ns: spec.delay_ns })
}
