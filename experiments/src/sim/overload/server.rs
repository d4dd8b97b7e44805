//! A server with workers in virtual time, behind a queue with admission control.

use std::cell::RefCell;
use std::cmp::Reverse;
use std::collections::{BinaryHeap, VecDeque};
use std::rc::Rc;

use petrel::endpoint::{Handled, Responder};
use petrel::overload::{Admission, Shed, Waiting};
use petrel::{Context, Request, Status};

use super::super::driver::{Driver, Phase};
use super::super::message;
use super::Service;
use petrel_sim::Rng;

/// The method that the server serves.
pub(super) const METHOD: u16 = 2;

/// The work of the server during the measurement.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Work {
    /// Requests that workers ran.
    pub(super) executed: u64,
    /// Executed requests that ended after their deadline.
    pub(super) wasted: u64,
    /// Requests that waited too long for a worker, and were not run.
    pub(super) dropped: u64,
    /// Total time in which workers were busy.
    pub(super) busy_ns: u64,
}

/// The settings of the server.
#[derive(Clone, Copy, Debug)]
pub(super) struct Plan {
    pub(super) service: Service,
    /// Average service time of a request.
    pub(super) service_ns: u64,
    pub(super) workers: usize,
}

pub(super) struct Server {
    plan: Plan,
    phase: Rc<Phase>,
    state: RefCell<State>,
}

struct State {
    rng: Rng,
    admission: Admission,
    queue: VecDeque<Queued>,
    queued_bytes: usize,
    idle_workers: usize,
    /// Running requests, by the end of their service.
    running: BinaryHeap<Reverse<Running>>,
    started: u64,
    work: Work,
}

struct Queued {
    responder: Responder,
    asked: Asked,
    /// The deadline carried by the call.
    deadline_ns: Option<u64>,
    bytes: usize,
    queued_ns: u64,
}

/// The content of a request.
#[derive(Clone, Copy)]
struct Asked {
    len: usize,
    /// The seed of the answer.
    seed: u64,
    /// When the answer becomes worthless, whether or not the call carries this time.
    worthless_ns: u64,
}

struct Running {
    ends_ns: u64,
    /// Orders requests that end together.
    number: u64,
    service_ns: u64,
    responder: Responder,
    asked: Asked,
}

impl Server {
    pub(super) fn new(plan: Plan, admission: Admission, phase: Rc<Phase>, rng: Rng) -> Self {
        let state = State {
            rng,
            admission,
            queue: VecDeque::new(),
            queued_bytes: 0,
            idle_workers: plan.workers,
            running: BinaryHeap::new(),
            started: 0,
            work: Work::default(),
        };
        Self { plan, phase, state: RefCell::new(state) }
    }

    pub(super) fn work(&self) -> Work {
        self.state.borrow().work
    }

    /// Handles a request.
    pub(super) fn handle(&self, cx: &mut Context<'_>, request: Request<'_>) -> Handled {
        let Some(asked) = Asked::read(request.data()) else {
            return request.fail(cx, Status::InvalidArgument, "no request of this experiment");
        };
        let (bytes, deadline_ns) =
            (request.data().len(), request.deadline(cx).map(petrel::Time::as_ns));
        let admitted = self.state.borrow_mut().admit(cx.now().as_ns(), bytes, deadline_ns);
        if let Err(shed) = admitted {
            return request.refuse(cx, shed.status(), shed.text());
        }
        let (responder, handled) = request.defer(cx);
        let queued = Queued { responder, asked, deadline_ns, bytes, queued_ns: cx.now().as_ns() };
        self.state.borrow_mut().push(queued);
        self.start_idle(cx);
        handled
    }

    /// Assigns requests to idle workers.
    fn start_idle(&self, cx: &mut Context<'_>) {
        let now_ns = cx.now().as_ns();
        while let Some(queued) = self.next_for_idle() {
            if let Err(shed) = self.start(now_ns, &queued) {
                queued.responder.refuse(cx, shed.status(), shed.text());
                continue;
            }
            self.state.borrow_mut().run(now_ns, queued, self.plan);
        }
    }

    fn next_for_idle(&self) -> Option<Queued> {
        self.state.borrow_mut().pop_for_idle()
    }

    fn start(&self, now_ns: u64, queued: &Queued) -> Result<(), Shed> {
        let state = &mut *self.state.borrow_mut();
        let begun = state.admission.begin(now_ns, queued.deadline_ns);
        state.work.dropped += u64::from(begun.is_err() && self.phase.is_measuring.get());
        begun
    }

    fn end_due(&self, cx: &mut Context<'_>) {
        while let Some(running) = self.next_ended(cx.now().as_ns()) {
            self.end(cx, running);
        }
    }

    fn next_ended(&self, now_ns: u64) -> Option<Running> {
        self.state.borrow_mut().pop_ended(now_ns)
    }

    fn end(&self, cx: &mut Context<'_>, running: Running) {
        let Running { ends_ns, service_ns, responder, asked, .. } = running;
        let mut state = self.state.borrow_mut();
        state.idle_workers += 1;
        state.admission.done(service_ns);
        if self.phase.is_measuring.get() {
            state.work.executed += 1;
            state.work.wasted += u64::from(ends_ns > asked.worthless_ns);
            state.work.busy_ns += service_ns;
        }
        drop(state);
        let Ok(mut answer) = cx.alloc(asked.len) else {
            return responder.fail(cx, Status::Internal, "the server has no memory left");
        };
        answer.set_len(asked.len);
        message::fill(asked.seed, &mut answer);
        responder.reply_buffer(cx, answer);
    }
}

impl Driver for Server {
    fn next_ns(&self) -> Option<u64> {
        self.state.borrow().running.peek().map(|Reverse(running)| running.ends_ns)
    }

    fn act(self: Rc<Self>, cx: &mut Context<'_>) {
        self.end_due(cx);
        self.start_idle(cx);
    }

    fn pending(&self) -> usize {
        let state = self.state.borrow();
        state.queue.len() + state.running.len()
    }
}

impl State {
    fn admit(&mut self, now_ns: u64, bytes: usize, deadline_ns: Option<u64>) -> Result<(), Shed> {
        let waiting = Waiting {
            requests: self.queue.len(),
            bytes: self.queued_bytes,
            oldest_ns: self.queue.front().map(|queued| queued.queued_ns),
        };
        self.admission.admit(now_ns, bytes, deadline_ns, waiting)
    }

    fn push(&mut self, queued: Queued) {
        self.queued_bytes += queued.bytes;
        self.queue.push_back(queued);
    }

    fn pop_for_idle(&mut self) -> Option<Queued> {
        if self.idle_workers == 0 {
            return None;
        }
        let queued = self.queue.pop_front()?;
        self.queued_bytes -= queued.bytes;
        Some(queued)
    }

    fn run(&mut self, now_ns: u64, queued: Queued, plan: Plan) {
        let Queued { responder, asked, .. } = queued;
        let service_ns = plan.service.draw_ns(plan.service_ns, &mut self.rng);
        let (ends_ns, number) = (now_ns + service_ns, self.started);
        self.started += 1;
        self.idle_workers -= 1;
        self.running.push(Reverse(Running { ends_ns, number, service_ns, responder, asked }));
    }

    fn pop_ended(&mut self, now_ns: u64) -> Option<Running> {
        let Reverse(next) = self.running.peek()?;
        if next.ends_ns > now_ns {
            return None;
        }
        self.running.pop().map(|Reverse(running)| running)
    }
}

impl Asked {
    /// Reads a request of [`message`]. The request's number is the time after which an answer is worthless.
    fn read(request: &[u8]) -> Option<Self> {
        let (len, seed) = message::read(request)?;
        let worthless_ns = u64::from_le_bytes(*request.last_chunk()?);
        Some(Self { len, seed, worthless_ns })
    }
}

impl PartialEq for Running {
    fn eq(&self, other: &Self) -> bool {
        self.key() == other.key()
    }
}

impl Eq for Running {}

impl PartialOrd for Running {
    fn partial_cmp(&self, other: &Self) -> Option<std::cmp::Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for Running {
    fn cmp(&self, other: &Self) -> std::cmp::Ordering {
        self.key().cmp(&other.key())
    }
}

impl Running {
    fn key(&self) -> (u64, u64) {
        (self.ends_ns, self.number)
    }
}
