//! An open-loop client: calls arrive independently of earlier calls.

use std::cell::{Cell, RefCell};
use std::rc::Rc;

use petrel::endpoint::{CallOptions, SessionId};
use petrel::overload::{ConcurrencyLimit, Permit};
use petrel::{Context, Error, Execution, MsgBuf, Reply, Status};

use super::super::driver::{Driver, Phase};
use super::super::message::{self, Body};
use super::server::METHOD;
use petrel_sim::Rng;
use petrel_sim::fabric::{Histogram, exponential};

/// Bytes of request and answer.
const MESSAGE_BYTES: usize = 32;

const PS_PER_NS: u64 = 1_000;

/// The demand of a client.
#[derive(Clone, Copy, Debug)]
pub(super) struct Demand {
    /// Mean time between calls.
    pub(super) gap_mean_ps: u64,
    /// The latency objective of an answer.
    pub(super) slo_ns: u64,
    /// Whether calls carry a deadline.
    pub(super) has_deadlines: bool,
}

/// The outcomes of calls that arrived during the measurement.
#[derive(Clone, Debug, Default)]
pub(super) struct Outcomes {
    pub(super) offered: u64,
    /// Answered in time.
    pub(super) good: u64,
    /// Answered too late.
    pub(super) late: u64,
    /// Refused by an overloaded server.
    pub(super) refused: u64,
    /// Expired at the client or at the server.
    pub(super) expired: u64,
    /// Not sent, because the client's limit was reached.
    pub(super) held_back: u64,
    /// Not sent, because the session's queue was full.
    pub(super) unsent: u64,
    /// Latencies of answered calls, in time or not, from their arrival.
    pub(super) latency: Histogram,
    /// Latencies of refusals.
    pub(super) refusal: Histogram,
}

impl Outcomes {
    pub(super) fn add(&mut self, other: &Self) {
        self.offered += other.offered;
        self.good += other.good;
        self.late += other.late;
        self.refused += other.refused;
        self.expired += other.expired;
        self.held_back += other.held_back;
        self.unsent += other.unsent;
        self.latency.add(&other.latency);
        self.refusal.add(&other.refusal);
    }

    /// Returns true if every call has exactly one outcome.
    pub(super) fn is_balanced(&self) -> bool {
        let Self { offered, good, late, refused, expired, held_back, unsent, .. } = *self;
        offered == good + late + refused + expired + held_back + unsent
    }
}

pub(super) struct Client {
    demand: Demand,
    session: SessionId,
    phase: Rc<Phase>,
    pending: Cell<usize>,
    state: RefCell<State>,
}

struct State {
    rng: Rng,
    /// When the next call arrives, once calls have begun.
    next_ps: Option<u64>,
    limit: Option<ConcurrencyLimit>,
    outcomes: Outcomes,
    /// The first wrong answer or unexplained failure.
    wrong: Option<String>,
    free_list: Vec<(MsgBuf, MsgBuf, Body)>,
}

/// The method of the limit to call at the end of a call.
type Says = fn(&mut ConcurrencyLimit, Permit, u64);

/// An outstanding call.
struct Call {
    asked_ns: u64,
    /// The seed of the answer.
    seed: u64,
    body: Body,
    counts: bool,
    permit: Option<Permit>,
}

impl Client {
    pub(super) fn new(
        demand: Demand,
        session: SessionId,
        limit: Option<ConcurrencyLimit>,
        phase: Rc<Phase>,
        rng: Rng,
    ) -> Self {
        let state = State {
            rng,
            next_ps: None,
            limit,
            outcomes: Outcomes::default(),
            wrong: None,
            free_list: Vec::new(),
        };
        Self { demand, session, phase, pending: Cell::new(0), state: RefCell::new(state) }
    }

    /// Returns the outcomes of its calls, or the first error.
    pub(super) fn outcomes(&self) -> Result<Outcomes, String> {
        let state = self.state.borrow();
        state.wrong.clone().map_or_else(|| Ok(state.outcomes.clone()), Err)
    }

    fn call(self: &Rc<Self>, cx: &mut Context<'_>, asked_ns: u64) {
        let counts = self.phase.is_measuring.get();
        self.state.borrow_mut().outcomes.offered += u64::from(counts);
        let Ok(permit) = self.state.borrow_mut().permit(cx.now().as_ns()) else {
            self.count(counts, |outcomes| outcomes.held_back += 1);
            return;
        };
        let Some((mut request, response, body)) = self.take_buffers(cx) else {
            return self.note_wrong(|| "an endpoint has no memory for a call".to_owned());
        };
        // The number of the request is the time after which its answer is worthless.
        let worthless_ns = asked_ns + self.demand.slo_ns;
        let seed = body.number(&mut request, worthless_ns, MESSAGE_BYTES as u32);
        let call = Call { asked_ns, seed, body, counts, permit };
        self.pending.set(self.pending.get() + 1);
        let client = Rc::clone(self);
        let continuation = move |cx: &mut Context<'_>, reply| client.end(cx, reply, call);
        let options = match self.demand.has_deadlines {
            true => CallOptions::new().deadline(petrel::Time::from_ns(worthless_ns)),
            false => CallOptions::new(),
        };
        match cx
            .call(self.session, METHOD, request)
            .into_buffer(response)
            .options(options)
            .then(move |_, cx, reply| continuation(cx, reply))
        {
            Ok(()) => {}
            Err(rejected) => self.note_unsent(counts, &rejected.error),
        }
    }

    fn note_unsent(&self, counts: bool, error: &Error) {
        self.pending.set(self.pending.get() - 1);
        match error.status {
            // The session's queue is full.
            Status::ResourceExhausted => self.count(counts, |outcomes| outcomes.unsent += 1),
            _ => self.note_wrong(|| format!("a call was not taken: {error}")),
        }
    }

    fn take_buffers(&self, cx: &Context<'_>) -> Option<(MsgBuf, MsgBuf, Body)> {
        if let Some(free) = self.state.borrow_mut().free_list.pop() {
            return Some(free);
        }
        let mut request = cx.alloc(MESSAGE_BYTES).ok()?;
        request.set_len(MESSAGE_BYTES);
        let body = Body::write(&mut request);
        Some((request, cx.alloc(MESSAGE_BYTES).ok()?, body))
    }

    fn end(&self, cx: &mut Context<'_>, reply: Reply, call: Call) {
        self.pending.set(self.pending.get() - 1);
        let now_ns = cx.now().as_ns();
        let taken_ns = now_ns - call.asked_ns;
        let says = match reply.message() {
            Ok(answer) => self.answered(answer, &call, taken_ns),
            Err(failure) => self.failed(failure, &call, taken_ns),
        };
        let mut state = self.state.borrow_mut();
        state.free_list.push((reply.request, reply.response, call.body));
        if let (Some(limit), Some(permit)) = (&mut state.limit, call.permit) {
            says(limit, permit, now_ns);
        }
    }

    fn answered(&self, answer: &[u8], call: &Call, taken_ns: u64) -> Says {
        if answer.len() != MESSAGE_BYTES || !message::is_filled(call.seed, answer) {
            self.note_wrong(|| format!("an answer of {} bytes is wrong", answer.len()));
        }
        let is_good = taken_ns <= self.demand.slo_ns;
        self.count(call.counts, |outcomes| {
            *if is_good { &mut outcomes.good } else { &mut outcomes.late } += 1;
            outcomes.latency.record(taken_ns * PS_PER_NS);
        });
        ConcurrencyLimit::succeeded
    }

    fn failed(&self, failure: &petrel::Error, call: &Call, taken_ns: u64) -> Says {
        if failure.execution == Execution::Refused {
            self.count(call.counts, |outcomes| outcomes.refusal.record(taken_ns * PS_PER_NS));
        }
        match failure.status {
            Status::ResourceExhausted => self.count(call.counts, |outcomes| outcomes.refused += 1),
            Status::DeadlineExceeded => self.count(call.counts, |outcomes| outcomes.expired += 1),
            _ => self.note_wrong(|| format!("a call failed: {failure}")),
        }
        match failure.execution {
            // A call that expired before it was sent shows nothing about the server.
            Execution::NotSent => ConcurrencyLimit::ended,
            Execution::MayHaveExecuted => ConcurrencyLimit::timed_out,
            _ => ConcurrencyLimit::refused,
        }
    }

    fn count(&self, counts: bool, add: impl FnOnce(&mut Outcomes)) {
        if counts {
            add(&mut self.state.borrow_mut().outcomes);
        }
    }

    #[cold]
    fn note_wrong(&self, what: impl FnOnce() -> String) {
        self.state.borrow_mut().wrong.get_or_insert_with(what);
    }
}

impl Driver for Client {
    fn next_ns(&self) -> Option<u64> {
        let next_ps = self.state.borrow().next_ps.unwrap_or(0);
        self.phase.is_calling.get().then_some(next_ps.div_ceil(PS_PER_NS))
    }

    fn act(self: Rc<Self>, cx: &mut Context<'_>) {
        let now_ns = cx.now().as_ns();
        self.state.borrow_mut().begin(now_ns, self.demand);
        while let Some(asked_ns) = self.next_ns().filter(|&at_ns| at_ns <= now_ns) {
            self.state.borrow_mut().schedule_next(self.demand);
            self.call(cx, asked_ns);
        }
    }

    fn pending(&self) -> usize {
        self.pending.get()
    }
}

impl State {
    /// Schedules the first call after a gap, as between later calls.
    fn begin(&mut self, now_ns: u64, demand: Demand) {
        if self.next_ps.is_none() {
            self.next_ps = Some(now_ns * PS_PER_NS);
            self.schedule_next(demand);
        }
    }

    fn schedule_next(&mut self, demand: Demand) {
        let gap_ps = exponential(demand.gap_mean_ps, &mut self.rng);
        self.next_ps = self.next_ps.map(|next_ps| next_ps + gap_ps);
    }

    /// Returns a permit of the limit; fails at the limit.
    fn permit(&mut self, now_ns: u64) -> Result<Option<Permit>, ()> {
        match &mut self.limit {
            None => Ok(None),
            Some(limit) => limit.try_start(now_ns).map(Some).ok_or(()),
        }
    }
}
