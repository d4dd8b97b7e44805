//! A simulated caller: a number of concurrent calls over some sessions, with every answer checked.

use std::cell::RefCell;
use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::rc::Rc;

use petrel::endpoint::{Handled, SessionId};
use petrel::{Context, MsgBuf, Reply, Request, Status};

use super::driver::{Driver, Phase};
use super::message::{self, Body};
use petrel_sim::Rng;
use petrel_sim::fabric::Histogram;

/// The method of all endpoints of an experiment.
pub(super) const METHOD: u16 = 1;

/// The load of a caller.
#[derive(Clone, Copy, Debug)]
pub(super) struct Load {
    /// Bytes of a request, at least [`message::REQUEST_BYTES_MIN`].
    pub(super) request_bytes: usize,
    pub(super) response_bytes: u32,
    /// Groups of outstanding calls.
    pub(super) groups: usize,
    /// Calls of a group, made together. The next group follows when all of them have ended.
    pub(super) batch: usize,
    /// Minimum and maximum pause between groups.
    pub(super) pause_ns: (u64, u64),
    /// Total number of calls.
    pub(super) calls_max: u64,
    pub(super) order: Order,
}

/// The calls that run only when all earlier ones of their session have run.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Order {
    /// Their share of all calls.
    pub(super) percent: u32,
    /// Whether the caller itself waits for all earlier calls, and the servers keep no order.
    pub(super) stops: bool,
}

impl Load {
    /// One call after the other, without end.
    pub(super) const fn one_by_one(request_bytes: usize, response_bytes: u32) -> Self {
        let (groups, batch, pause_ns, calls_max) = (1, 1, (0, 0), u64::MAX);
        let order = Order { percent: 0, stops: false };
        Self { request_bytes, response_bytes, groups, batch, pause_ns, calls_max, order }
    }

    /// A constant number of concurrent calls: a new call follows the end of a call.
    pub(super) const fn in_flight(self, calls: usize) -> Self {
        Self { groups: calls, ..self }
    }
}

/// The results of a caller.
#[derive(Clone, Debug, Default)]
pub(super) struct Tally {
    pub(super) started: u64,
    pub(super) succeeded: u64,
    /// The first failed call or wrong answer.
    pub(super) wrong: Option<String>,
    /// Latencies of calls finished during the measurement.
    pub(super) latency: Histogram,
    /// When the first call began and the last one ended, in nanoseconds.
    pub(super) first_ns: Option<u64>,
    pub(super) last_ns: u64,
}

impl Tally {
    /// Adds the results of another caller.
    pub(super) fn add(&mut self, other: &Self) {
        self.started += other.started;
        self.succeeded += other.succeeded;
        self.latency.add(&other.latency);
        self.last_ns = self.last_ns.max(other.last_ns);
        self.first_ns = match (self.first_ns, other.first_ns) {
            (Some(own), Some(others)) => Some(own.min(others)),
            (own, others) => own.or(others),
        };
        if self.wrong.is_none() {
            self.wrong.clone_from(&other.wrong);
        }
    }
}

/// Makes calls of one kind from an endpoint.
pub(super) struct Caller {
    load: Load,
    phase: Rc<Phase>,
    /// A call takes a random session.
    sessions: Vec<SessionId>,
    state: RefCell<State>,
}

struct State {
    rng: Rng,
    tally: Tally,
    /// Groups to be made, by due time.
    due: BinaryHeap<Reverse<(u64, usize)>>,
    /// Unfinished calls of every group.
    pending: Vec<usize>,
    free_list: Vec<Buffers>,
    /// Whether the next call waits for all earlier ones.
    is_next_ordered: bool,
}

/// The memory of a call, kept for the next.
struct Buffers {
    request: MsgBuf,
    response: MsgBuf,
    body: Body,
}

/// An outstanding call.
struct Call {
    group: usize,
    began_ns: u64,
    /// The seed of the answer.
    seed: u64,
    body: Body,
}

impl Caller {
    pub(super) fn new(load: Load, sessions: Vec<SessionId>, phase: Rc<Phase>, rng: Rng) -> Self {
        let due = (0..load.groups).map(|group| Reverse((0, group))).collect();
        let (pending, free_list) = (vec![0; load.groups], Vec::new());
        let (tally, is_next_ordered) = (Tally::default(), false);
        let state = State { rng, tally, due, pending, free_list, is_next_ordered };
        let state = RefCell::new(state);
        Self { load, phase, sessions, state }
    }

    pub(super) fn sessions(&self) -> &[SessionId] {
        &self.sessions
    }

    pub(super) fn tally(&self) -> std::cell::Ref<'_, Tally> {
        std::cell::Ref::map(self.state.borrow(), |state| &state.tally)
    }

    /// Returns true if all calls were made and have ended.
    pub(super) fn is_done(&self) -> bool {
        self.tally().started >= self.load.calls_max && self.pending() == 0
    }

    /// Makes the calls that are due.
    fn call_due(self: &Rc<Self>, cx: &mut Context<'_>) {
        let now_ns = cx.now().as_ns();
        while self.next_ns().is_some_and(|at_ns| at_ns <= now_ns) {
            let Some(Reverse((_, group))) = self.state.borrow_mut().due.pop() else { return };
            for _ in 0..self.load.batch {
                self.call(cx, group);
            }
        }
    }

    fn call(self: &Rc<Self>, cx: &mut Context<'_>, group: usize) {
        let Some(Buffers { mut request, response, body }) = self.take_buffers(cx) else {
            return self.note_wrong(|| "an endpoint has no memory for a call".to_owned());
        };
        let (session, call, is_ordered) = {
            let mut state = self.state.borrow_mut();
            let number = state.tally.started;
            let seed = body.number(&mut request, number, self.load.response_bytes);
            state.tally.started += 1;
            state.tally.first_ns.get_or_insert(cx.now().as_ns());
            state.pending[group] += 1;
            let place = state.rng.below(self.sessions.len() as u64) as usize;
            let next = self.load.order.percent > 0
                && state.rng.below(100) < u64::from(self.load.order.percent);
            let is_ordered = std::mem::replace(&mut state.is_next_ordered, next);
            let call = Call { group, began_ns: cx.now().as_ns(), seed, body };
            (self.sessions[place], call, is_ordered && !self.load.order.stops)
        };
        let caller = Rc::clone(self);
        let continuation = move |cx: &mut Context<'_>, reply| caller.end(cx, reply, &call);
        let call = cx.call(session, METHOD, request).into_buffer(response);
        let call = if is_ordered { call.ordered() } else { call };
        if let Err(rejected) = call.then(move |_, cx, reply| continuation(cx, reply)) {
            self.note_wrong(|| format!("a call was not taken: {}", rejected.error));
        }
    }

    fn take_buffers(&self, cx: &Context<'_>) -> Option<Buffers> {
        if let Some(free) = self.state.borrow_mut().free_list.pop() {
            return Some(free);
        }
        let mut request = cx.alloc(self.load.request_bytes).ok()?;
        request.set_len(self.load.request_bytes);
        let body = Body::write(&mut request);
        Some(Buffers { request, response: cx.alloc(self.load.response_bytes as usize).ok()?, body })
    }

    fn end(self: &Rc<Self>, cx: &mut Context<'_>, reply: Reply, call: &Call) {
        self.check(&reply, call);
        let now_ns = cx.now().as_ns();
        let mut state = self.state.borrow_mut();
        state.tally.last_ns = now_ns;
        if self.phase.is_measuring.get() {
            state.tally.latency.record((now_ns - call.began_ns) * PS_PER_NS);
        }
        let Reply { request, response, .. } = reply;
        state.free_list.push(Buffers { request, response, body: call.body });
        state.pending[call.group] -= 1;
        if state.pending[call.group] == 0 {
            let (least_ns, most_ns) = self.load.pause_ns;
            let at_ns = now_ns + state.rng.between(least_ns, most_ns);
            state.due.push(Reverse((at_ns, call.group)));
        }
        drop(state);
        self.call_due(cx);
    }

    fn check(&self, reply: &Reply, call: &Call) {
        match reply.message() {
            Err(failure) => self.note_wrong(|| format!("a call failed: {failure}")),
            Ok(answer)
                if answer.len() == self.load.response_bytes as usize
                    && message::is_filled(call.seed, answer) =>
            {
                self.state.borrow_mut().tally.succeeded += 1;
            }
            Ok(answer) => {
                self.note_wrong(|| format!("an answer of {} bytes is wrong", answer.len()));
            }
        }
    }

    #[cold]
    fn note_wrong(&self, what: impl FnOnce() -> String) {
        self.state.borrow_mut().tally.wrong.get_or_insert_with(what);
    }
}

impl Driver for Caller {
    /// Returns when the next group is due.
    fn next_ns(&self) -> Option<u64> {
        let state = self.state.borrow();
        let is_stopped = state.is_next_ordered && self.load.order.stops;
        let has_to_wait = is_stopped && state.pending.iter().any(|calls| *calls > 0);
        let goes_on = self.phase.is_calling.get()
            && state.tally.started < self.load.calls_max
            && !has_to_wait;
        goes_on.then(|| state.due.peek().map(|Reverse((at_ns, _))| *at_ns)).flatten()
    }

    fn act(self: Rc<Self>, cx: &mut Context<'_>) {
        self.call_due(cx);
    }

    fn pending(&self) -> usize {
        self.state.borrow().pending.iter().sum()
    }
}

const PS_PER_NS: u64 = 1_000;

/// Handles [`METHOD`].
pub(super) fn answer(cx: &mut Context<'_>, request: Request<'_>) -> Handled {
    let Some((len, seed)) = message::read(request.data()) else {
        return request.fail(cx, Status::InvalidArgument, "no request of an experiment");
    };
    request.reply_with(cx, len, |_, out| {
        message::fill(seed, out);
        len
    })
}
