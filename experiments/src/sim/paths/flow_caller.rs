//! Open-loop flows: a host begins flows at random times, whatever became of the earlier ones.

use std::cell::{Cell, RefCell};
use std::rc::Rc;

use petrel::endpoint::SessionId;
use petrel::{Context, Reply};
use petrel_proto::limits::HEADER_BYTES;

use super::super::caller::METHOD;
use super::super::driver::{Driver, Phase};
use super::super::message::{self, Body};
use super::streams::PACKET_BYTES;
use crate::sim::traffic::{FlowRecord, SizeDistribution};
use petrel_sim::Rng;
use petrel_sim::Time;
use petrel_sim::fabric::{FabricConfig, exponential};

/// Most bytes of a request. A longer flow is several requests: the memory of many flows stays small.
const REQUEST_BYTES_MAX: u64 = 256 << 10;
const RESPONSE_BYTES: u32 = 32;

/// Requests of a flow in flight: the second fills the line while the first waits for its response.
const REQUESTS_IN_FLIGHT: u32 = 2;

/// The flows of a host.
#[derive(Clone, Copy, Debug)]
pub(super) struct FlowLoad {
    pub(super) sizes: SizeDistribution,
    /// Mean time between the beginnings of two flows.
    pub(super) mean_interval_ps: u64,
    /// Rate of the host's link.
    pub(super) rate_bps: u64,
}

/// A receiver of flows.
#[derive(Clone, Copy, Debug)]
pub(super) struct Target {
    pub(super) session: SessionId,
    /// Delays of links and switches, there and back.
    pub(super) round_trip_ns: u64,
}

/// Begins flows to random targets.
pub(super) struct FlowCaller {
    load: FlowLoad,
    phase: Rc<Phase>,
    targets: Vec<Target>,
    state: RefCell<State>,
}

struct State {
    rng: Rng,
    /// When the next flow begins; `None` before the first turn.
    next: Option<Time>,
    /// Flows that have not ended.
    active: usize,
    calls: u64,
    /// Flows that began during the measurement and have ended.
    records: Vec<FlowRecord>,
    /// The first failed call or wrong answer.
    wrong: Option<String>,
}

/// A flow that has not ended.
struct Flow {
    bytes: u64,
    start_ns: u64,
    target: Target,
    is_measured: bool,
    /// Bytes in requests that were not made yet.
    left_bytes: Cell<u64>,
    in_flight: Cell<u32>,
}

impl FlowLoad {
    /// Returns the time of a flow alone in the network, at least: its bytes with the smallest headers at the
    /// rate of the host's link, and the round trip.
    fn ideal_ns(&self, bytes: u64, round_trip_ns: u64) -> u64 {
        let header_bytes = HEADER_BYTES as u64 + u64::from(FabricConfig::ETHERNET_OVERHEAD_BYTES);
        let wire_bytes = bytes + bytes.div_ceil(PACKET_BYTES) * header_bytes;
        round_trip_ns + wire_bytes * 8_000_000_000 / self.rate_bps
    }
}

impl FlowCaller {
    pub(super) fn new(load: FlowLoad, targets: Vec<Target>, phase: Rc<Phase>, rng: Rng) -> Self {
        let (next, active, calls, wrong) = (None, 0, 0, None);
        let state = State { rng, next, active, calls, records: Vec::new(), wrong };
        Self { load, phase, targets, state: RefCell::new(state) }
    }

    /// Returns the flows that began during the measurement and have ended, and the number of all calls.
    pub(super) fn results(&self) -> Result<(Vec<FlowRecord>, u64), String> {
        let state = self.state.borrow();
        match &state.wrong {
            Some(what) => Err(what.clone()),
            None => Ok((state.records.clone(), state.calls)),
        }
    }

    /// Draws the next flow.
    fn draw(&self, start: Time) -> Rc<Flow> {
        let mut state = self.state.borrow_mut();
        let bytes = self.load.sizes.draw(&mut state.rng).max(message::REQUEST_BYTES_MIN as u64);
        let target = self.targets[state.rng.below(self.targets.len() as u64) as usize];
        let interval_ps = exponential(self.load.mean_interval_ps, &mut state.rng);
        state.next = Some(start.plus_ps(interval_ps));
        state.active += 1;
        Rc::new(Flow {
            bytes,
            start_ns: start.ns(),
            target,
            is_measured: self.phase.is_measuring.get(),
            left_bytes: Cell::new(bytes),
            in_flight: Cell::new(0),
        })
    }

    /// Makes the calls of a flow, up to the flow's limit.
    fn go_on(self: &Rc<Self>, cx: &mut Context<'_>, flow: &Rc<Flow>) {
        while flow.left_bytes.get() > 0 && flow.in_flight.get() < REQUESTS_IN_FLIGHT {
            if let Err(what) = self.call(cx, flow) {
                return self.note_wrong(|| what);
            }
        }
    }

    fn call(self: &Rc<Self>, cx: &mut Context<'_>, flow: &Rc<Flow>) -> Result<(), String> {
        let left = flow.left_bytes.get();
        // A rest must be long enough for a request.
        let len = match left.min(REQUEST_BYTES_MAX) {
            len if left - len < message::REQUEST_BYTES_MIN as u64 => left,
            len => len,
        } as usize;
        let no_memory = |_| "an endpoint has no memory for a call".to_owned();
        let mut request = cx.alloc(len).map_err(no_memory)?;
        request.set_len(len);
        let response = cx.alloc(RESPONSE_BYTES as usize).map_err(no_memory)?;
        let number = self.next_number();
        let seed = Body::write(&mut request).number(&mut request, number, RESPONSE_BYTES);
        flow.left_bytes.set(left - len as u64);
        flow.in_flight.set(flow.in_flight.get() + 1);
        let (caller, of) = (Rc::clone(self), Rc::clone(flow));
        cx.call(flow.target.session, METHOD, request)
            .into_buffer(response)
            .then(move |_, cx, reply| caller.end(cx, &reply, seed, &of))
            .map_err(|rejected| format!("a call was not taken: {}", rejected.error))
    }

    fn next_number(&self) -> u64 {
        let mut state = self.state.borrow_mut();
        state.calls += 1;
        state.calls
    }

    fn end(self: &Rc<Self>, cx: &mut Context<'_>, reply: &Reply, seed: u64, flow: &Rc<Flow>) {
        match reply.message() {
            Err(failure) => self.note_wrong(|| format!("a call failed: {failure}")),
            Ok(answer)
                if answer.len() == RESPONSE_BYTES as usize && message::is_filled(seed, answer) => {}
            Ok(answer) => {
                self.note_wrong(|| format!("an answer of {} bytes is wrong", answer.len()));
            }
        }
        flow.in_flight.set(flow.in_flight.get() - 1);
        self.go_on(cx, flow);
        if flow.in_flight.get() == 0 {
            self.finish(cx.now().as_ns(), flow);
        }
    }

    fn finish(&self, now_ns: u64, flow: &Flow) {
        let mut state = self.state.borrow_mut();
        state.active -= 1;
        if flow.is_measured {
            let ideal_ns = self.load.ideal_ns(flow.bytes, flow.target.round_trip_ns);
            state.records.push(FlowRecord::new(flow.bytes, flow.start_ns, now_ns, ideal_ns));
        }
    }

    #[cold]
    fn note_wrong(&self, what: impl FnOnce() -> String) {
        self.state.borrow_mut().wrong.get_or_insert_with(what);
    }
}

impl Driver for FlowCaller {
    fn next_ns(&self) -> Option<u64> {
        let next_ns = |next: Time| next.ps().div_ceil(1_000);
        let at_ns = self.state.borrow().next.map_or(0, next_ns);
        self.phase.is_calling.get().then_some(at_ns)
    }

    fn act(self: Rc<Self>, cx: &mut Context<'_>) {
        let now_ns = cx.now().as_ns();
        if self.state.borrow().next.is_none() {
            // Not all hosts begin at once.
            let mut state = self.state.borrow_mut();
            let after_ps = exponential(self.load.mean_interval_ps, &mut state.rng);
            state.next = Some(Time::from_ns(now_ns).plus_ps(after_ps));
        }
        while self.next_ns().is_some_and(|at_ns| at_ns <= now_ns) {
            let Some(start) = self.state.borrow().next else { return };
            let flow = self.draw(start);
            self.go_on(cx, &flow);
        }
    }

    fn pending(&self) -> usize {
        self.state.borrow().active
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ideal_ns__is_the_round_trip_and_the_bytes_at_the_rate() {
        let load = FlowLoad {
            sizes: SizeDistribution::WebSearch,
            mean_interval_ps: 1,
            rate_bps: 8_000_000_000,
        };
        // A byte takes a nanosecond; a packet has 82 bytes more.
        assert_eq!(load.ideal_ns(100, 12_000), 12_182);
        assert_eq!(load.ideal_ns(2 * PACKET_BYTES + 1, 0), 2 * PACKET_BYTES + 1 + 3 * 82);
    }
}
