//! The client's side: calls in an open or a closed loop, and the outcome of each.

use std::cell::RefCell;
use std::rc::Rc;
use std::time::{Duration, Instant};

use petrel::endpoint::{CallOptions, SessionId};
use petrel::overload::{ConcurrencyLimit, Permit};
use petrel::{Context, Endpoint, Error, Execution, MsgBuf, Reply, Status};
use petrel_command::failure::Failure;
use petrel_command::output::latency::Latencies;
use petrel_sim::Rng;

use super::wire;

/// Time for calls to end after the last one was due.
const GIVE_UP_AFTER: Duration = Duration::from_secs(120);

/// The endpoint's longest sleep: then the loop checks for the end of the run.
const SLEEP_MAX: Duration = Duration::from_millis(1);

/// The offered load.
#[derive(Clone, Copy, Debug)]
pub(super) struct OfferedLoad {
    pub(super) arrivals: Arrivals,
    pub(super) warm_up_ns: u64,
    pub(super) measured_ns: u64,
    /// Time within which an answer is useful.
    pub(super) slo_ns: u64,
    /// Whether calls carry this time as their deadline.
    pub(super) has_deadlines: bool,
    pub(super) has_back_pressure: bool,
}

/// The arrival process of calls.
#[derive(Clone, Copy, Debug)]
pub(super) enum Arrivals {
    /// Independent arrivals, with this mean gap.
    Poisson { gap_mean_ns: f64 },
    /// A constant number of calls in flight.
    Closed { calls: u16 },
}

/// The outcomes of the calls due in the measured time.
pub(super) struct Outcomes {
    pub(super) offered: u64,
    pub(super) good: u64,
    pub(super) late: u64,
    pub(super) refused: u64,
    pub(super) expired: u64,
    pub(super) held_back: u64,
    pub(super) unsent: u64,
    /// Wrong answers, and unexpected failures.
    pub(super) wrong: u64,
    /// Latencies of answered calls, from their due time.
    pub(super) latency: Latencies,
    /// Latencies of calls that the server refused.
    pub(super) refusal: Latencies,
}

/// The calls of one figure.
pub(super) struct Load {
    offered_load: OfferedLoad,
    sessions: Vec<SessionId>,
    state: RefCell<State>,
}

struct State {
    rng: Rng,
    begin_ns: u64,
    /// The time that the next call is due.
    next_ns: f64,
    number: u64,
    pending: usize,
    /// One limit per session.
    limits: Vec<ConcurrencyLimit>,
    outcomes: Outcomes,
    spare: Vec<(MsgBuf, MsgBuf)>,
}

struct Call {
    due_ns: u64,
    counts: bool,
    expected: [u8; wire::REPLY_BYTES],
    permit: Option<(usize, Permit)>,
}

/// A function that reports a call's end to the limit.
type LimitReport = fn(&mut ConcurrencyLimit, Permit, u64);

/// Makes the calls of a figure, and waits until all have ended.
pub(super) fn run(
    endpoint: &mut Endpoint,
    sessions: &[SessionId],
    offered_load: OfferedLoad,
    seed: u64,
) -> Result<Outcomes, Failure> {
    let load =
        Rc::new(Load::new(offered_load, sessions.to_vec(), seed, endpoint.context().now().as_ns()));
    load.begin(&mut endpoint.context());
    let end = Instant::now() + load.whole() + GIVE_UP_AFTER;
    let poll = |_: &mut (), cx: &mut Context<'_>| {
        load.act(cx);
        load.is_over(cx.now().as_ns())
    };
    loop {
        // The event loop runs at least once, however short the sleep is.
        endpoint.run_once();
        let sleep = load.sleep_time(endpoint.context().now().as_ns());
        if endpoint.run_for(sleep, poll) {
            break;
        }
        if Instant::now() > end {
            let text = format!("{} calls have not ended within {GIVE_UP_AFTER:?}", load.pending());
            return Err(Failure::because(text));
        }
    }
    Rc::into_inner(load)
        .map(|load| load.state.into_inner().outcomes)
        .ok_or_else(|| Failure::because("a call that has ended is still there"))
}

impl Load {
    fn new(offered_load: OfferedLoad, sessions: Vec<SessionId>, seed: u64, now_ns: u64) -> Self {
        let limits = sessions.iter().map(|_| ConcurrencyLimit::new(Default::default())).collect();
        let state = State {
            rng: Rng::new(seed),
            begin_ns: now_ns,
            next_ns: now_ns as f64,
            number: 0,
            pending: 0,
            limits,
            outcomes: Outcomes::new(),
            spare: Vec::new(),
        };
        Self { offered_load, sessions, state: RefCell::new(state) }
    }

    fn begin(self: &Rc<Self>, cx: &mut Context<'_>) {
        match self.offered_load.arrivals {
            Arrivals::Poisson { gap_mean_ns } => self.state.borrow_mut().schedule_next(gap_mean_ns),
            Arrivals::Closed { calls } => (0..calls).for_each(|_| self.call(cx, cx.now().as_ns())),
        }
    }

    /// Makes the due calls.
    fn act(self: &Rc<Self>, cx: &mut Context<'_>) {
        let Arrivals::Poisson { gap_mean_ns } = self.offered_load.arrivals else { return };
        while let Some(due_ns) = self.next_due(cx.now().as_ns(), gap_mean_ns) {
            self.call(cx, due_ns);
        }
    }

    fn next_due(&self, now_ns: u64, gap_mean_ns: f64) -> Option<u64> {
        let mut state = self.state.borrow_mut();
        let due_ns = state.next_ns as u64;
        if due_ns > now_ns || due_ns >= self.end_ns(&state) {
            return None;
        }
        state.schedule_next(gap_mean_ns);
        Some(due_ns)
    }

    fn whole(&self) -> Duration {
        Duration::from_nanos(self.offered_load.warm_up_ns + self.offered_load.measured_ns)
    }

    /// Returns how long the endpoint may sleep: until the next call is due, unless a packet arrives earlier.
    fn sleep_time(&self, now_ns: u64) -> Duration {
        let state = self.state.borrow();
        let next_ns = state.next_ns as u64;
        match self.offered_load.arrivals {
            Arrivals::Poisson { .. } if next_ns < self.end_ns(&state) => {
                SLEEP_MAX.min(Duration::from_nanos(next_ns.saturating_sub(now_ns)))
            }
            _ => SLEEP_MAX,
        }
    }

    fn end_ns(&self, state: &State) -> u64 {
        state.begin_ns + self.offered_load.warm_up_ns + self.offered_load.measured_ns
    }

    fn is_over(&self, now_ns: u64) -> bool {
        let state = self.state.borrow();
        now_ns >= self.end_ns(&state) && state.pending == 0
    }

    fn pending(&self) -> usize {
        self.state.borrow().pending
    }

    /// Makes a call that is due, unless back-pressure or a lack of memory holds it back.
    fn call(self: &Rc<Self>, cx: &mut Context<'_>, due_ns: u64) {
        let counts = due_ns >= self.state.borrow().begin_ns + self.offered_load.warm_up_ns;
        self.count(counts, |outcomes| outcomes.offered += 1);
        let index = self.state.borrow_mut().rng.below(self.sessions.len() as u64) as usize;
        let Ok(permit) = self.permit(index, cx.now().as_ns()) else {
            return self.count(counts, |outcomes| outcomes.held_back += 1);
        };
        let Some((mut request, response)) = self.take_buffers(cx) else {
            return self.count(counts, |outcomes| outcomes.unsent += 1);
        };
        let expected = self.write(&mut request, due_ns, cx.now().as_ns());
        let call = Call { due_ns, counts, expected, permit };
        self.state.borrow_mut().pending += 1;
        let load = Rc::clone(self);
        let end = move |cx: &mut Context<'_>, reply| load.end(cx, reply, call);
        let (session, options) = (self.sessions[index], self.options(due_ns));
        if let Err(rejected) = cx
            .call(session, wire::WORK, request)
            .into_buffer(response)
            .options(options)
            .then(move |_, cx, reply| end(cx, reply))
        {
            self.unsent(counts, &rejected.error);
        }
    }

    fn options(&self, due_ns: u64) -> CallOptions {
        match self.offered_load.has_deadlines {
            true => CallOptions::new()
                .deadline(petrel::Time::from_ns(due_ns + self.offered_load.slo_ns)),
            false => CallOptions::new(),
        }
    }

    /// Returns a permit if back-pressure demands one; an error if the limit refuses.
    fn permit(&self, index: usize, now_ns: u64) -> Result<Option<(usize, Permit)>, ()> {
        if !self.offered_load.has_back_pressure {
            return Ok(None);
        }
        let permit = self.state.borrow_mut().limits[index].try_start(now_ns);
        permit.map(|permit| Some((index, permit))).ok_or(())
    }

    fn take_buffers(&self, cx: &Context<'_>) -> Option<(MsgBuf, MsgBuf)> {
        if let Some(spare) = self.state.borrow_mut().spare.pop() {
            return Some(spare);
        }
        let mut request = cx.alloc(wire::REQUEST_BYTES).ok()?;
        request.set_len(wire::REQUEST_BYTES);
        Some((request, cx.alloc(wire::REPLY_BYTES).ok()?))
    }

    fn write(&self, request: &mut [u8], due_ns: u64, now_ns: u64) -> [u8; wire::REPLY_BYTES] {
        let mut state = self.state.borrow_mut();
        state.number += 1;
        // The time on the clock that the two processes share.
        let useful_until_ns =
            wire::now_ns() + self.offered_load.slo_ns - now_ns.saturating_sub(due_ns);
        wire::write_request(request, useful_until_ns, state.number);
        wire::reply_to(request)
    }

    fn unsent(&self, counts: bool, error: &Error) {
        self.state.borrow_mut().pending -= 1;
        self.count(counts, |outcomes| match error.status {
            // The session's queue is full.
            Status::ResourceExhausted => outcomes.unsent += 1,
            _ => outcomes.wrong += 1,
        });
    }

    /// Counts the outcome of a call, and returns its permit. In a closed loop the next call begins.
    fn end(self: &Rc<Self>, cx: &mut Context<'_>, reply: Reply, call: Call) {
        let now_ns = cx.now().as_ns();
        let taken_ns = now_ns.saturating_sub(call.due_ns);
        let report = match reply.message() {
            Ok(answer) => self.answered(answer, &call, taken_ns),
            Err(failure) => self.failed(failure, &call, taken_ns),
        };
        let mut state = self.state.borrow_mut();
        state.pending -= 1;
        state.spare.push((reply.request, reply.response));
        if let Some((index, permit)) = call.permit {
            report(&mut state.limits[index], permit, now_ns);
        }
        let goes_on = now_ns < self.end_ns(&state);
        drop(state);
        if goes_on && matches!(self.offered_load.arrivals, Arrivals::Closed { .. }) {
            self.call(cx, now_ns);
        }
    }

    fn answered(&self, answer: &[u8], call: &Call, taken_ns: u64) -> LimitReport {
        self.count(call.counts, |outcomes| {
            if answer != call.expected {
                outcomes.wrong += 1;
                return;
            }
            let is_good = taken_ns <= self.offered_load.slo_ns;
            *if is_good { &mut outcomes.good } else { &mut outcomes.late } += 1;
            outcomes.latency.record(taken_ns);
        });
        ConcurrencyLimit::succeeded
    }

    fn failed(&self, failure: &petrel::Error, call: &Call, taken_ns: u64) -> LimitReport {
        self.count(call.counts, |outcomes| {
            if failure.execution == Execution::Refused {
                outcomes.refusal.record(taken_ns);
            }
            match failure.status {
                Status::ResourceExhausted => outcomes.refused += 1,
                Status::DeadlineExceeded => outcomes.expired += 1,
                _ => outcomes.wrong += 1,
            }
        });
        match failure.execution {
            // A call that expired unsent carries no information about the server.
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
}

impl State {
    fn schedule_next(&mut self, gap_mean_ns: f64) {
        const STEPS: f64 = (1u64 << 53) as f64;
        // A random number above zero and at most one.
        let uniform = ((self.rng.next_u64() >> 11) + 1) as f64 / STEPS;
        self.next_ns -= gap_mean_ns * uniform.ln();
    }
}

impl Outcomes {
    fn new() -> Self {
        let (latency, refusal) = (Latencies::default(), Latencies::default());
        let (offered, good, late, refused, expired) = Default::default();
        let (held_back, unsent, wrong) = Default::default();
        Self { offered, good, late, refused, expired, held_back, unsent, wrong, latency, refusal }
    }

    /// Returns true if every offered call has exactly one outcome.
    pub(super) fn is_balanced(&self) -> bool {
        let ends = [self.good, self.late, self.refused, self.expired, self.held_back];
        self.offered == ends.iter().sum::<u64>() + self.unsent + self.wrong
    }
}
