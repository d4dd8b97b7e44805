//! Calls of many clients on one thread: a closed loop per client, every answer checked.
//!
//! The structure is that of `petrel_bench::measure::load`: a slot with two buffers for every call in flight, and the
//! load as the endpoint's state, lent to continuations.

use std::mem;
use std::rc::Rc;
use std::time::Duration;

use petrel::endpoint::SessionId;
use petrel::{Context, Endpoint, Execution, MsgBuf, Reply};
use petrel_command::failure::Failure;
use petrel_command::output::latency::Latencies;
use petrel_index::{Found, Method, Sum, SumRange, Word};
use petrel_transport::clock;
use zerocopy::IntoBytes as _;

use super::keys::{Keys, value_of};

/// Values that a SCAN sums up (eRPC §7.2).
pub(super) const SUMMED: u32 = 128;

/// The longest request: a key, and a value or a number.
const REQUEST_BYTES: usize = 16;
const RESPONSE_BYTES: usize = 16;

/// Turns of the event loop between two readings of the clock.
const POLLS_PER_CLOCK_READ: u32 = 1 << 10;

/// Time for calls to end after a window's end.
const GIVE_UP_AFTER: Duration = Duration::from_secs(60);

/// The kind of calls.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum CallKind {
    /// An echo of 8 bytes.
    #[default]
    Echo,
    /// Lookups, with this number of SCANs per hundred calls.
    Lookups { scans: u8 },
    /// PUTs of all keys, from the first on.
    Fill,
}

/// The calls of a window.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct OfferedLoad {
    pub(super) kind: CallKind,
    /// Calls in flight at a time.
    pub(super) in_flight: usize,
    /// Whether every call is timed.
    pub(super) is_timed: bool,
    pub(super) length: Duration,
}

/// The counts of a window.
#[derive(Default)]
pub(super) struct Outcome {
    pub(super) lookups: u64,
    pub(super) scans: u64,
    pub(super) echoes: u64,
    pub(super) wrong: u64,
    /// Scans refused by the workers' queue for their expected wait.
    pub(super) refused: u64,
    pub(super) first_failure: Option<String>,
    pub(super) elapsed_ns: u64,
    /// Latencies of lookups or echoes, and of scans.
    pub(super) latencies: [Latencies; 2],
}

impl Outcome {
    /// Returns the lookups and echoes per second.
    pub(super) fn rate(&self) -> f64 {
        (self.lookups + self.echoes) as f64 * 1e9 / self.elapsed_ns.max(1) as f64
    }
}

/// The calls of an endpoint's sessions.
pub(super) struct Load {
    keys: Rc<Keys>,
    slots: Vec<CallSlot>,
    /// Calls in flight.
    active: usize,
    offered_load: OfferedLoad,
    rng: fastrand::Rng,
    next_key: u32,
    end_ns: u64,
    outcome: Outcome,
}

struct CallSlot {
    session: SessionId,
    call: Call,
    started_ns: u64,
    /// The two buffers, while no call is in flight.
    buffers: Option<(MsgBuf, MsgBuf)>,
}

#[derive(Clone, Copy, Debug)]
enum Call {
    Echo(u64),
    Lookup(u64),
    Scan(u32),
    Put(u64),
}

/// Makes calls for a window. `between` runs after every turn of the clients' endpoint.
pub(super) fn window(
    endpoint: &mut Endpoint<Load>,
    offered_load: OfferedLoad,
    mut between: impl FnMut(),
) -> Result<Outcome, Failure> {
    let begin_ns = clock::now_ns();
    let last_ns = begin_ns.saturating_add((offered_load.length + GIVE_UP_AFTER).as_nanos() as u64);
    endpoint.with(|load, cx| load.begin(cx, offered_load, begin_ns));
    'window: loop {
        for _ in 0..POLLS_PER_CLOCK_READ {
            if endpoint.state().active == 0 {
                break 'window;
            }
            endpoint.run_once();
            between();
        }
        if offered_load.kind != CallKind::Fill && clock::now_ns() > last_ns {
            let active = endpoint.state().active;
            let text = format!("{active} calls have not ended {GIVE_UP_AFTER:?} after the window");
            return Err(Failure::because(text));
        }
    }
    let elapsed_ns = clock::now_ns() - begin_ns;
    Ok(Outcome { elapsed_ns, ..mem::take(&mut endpoint.state_mut().outcome) })
}

impl Load {
    /// Creates a load without sessions.
    pub(super) fn new(keys: Rc<Keys>) -> Self {
        Self {
            keys,
            slots: Vec::new(),
            active: 0,
            offered_load: OfferedLoad::default(),
            rng: fastrand::Rng::with_seed(0x7065_7472_656c),
            next_key: 0,
            end_ns: 0,
            outcome: Outcome::default(),
        }
    }

    /// Sets the sessions, and the calls in flight per session in later windows.
    pub(super) fn set_sessions(
        &mut self,
        cx: &mut Context<'_, Self>,
        sessions: &[SessionId],
        outstanding: u16,
    ) -> Result<(), Failure> {
        // Adjacent slots belong to different sessions, as calls of different clients would.
        let slots = (0..outstanding).flat_map(|_| sessions);
        self.slots = slots.map(|session| CallSlot::new(cx, *session)).collect::<Result<_, _>>()?;
        Ok(())
    }

    fn begin(&mut self, cx: &mut Context<'_, Self>, offered_load: OfferedLoad, now_ns: u64) {
        (self.offered_load, self.next_key) = (offered_load, 0);
        self.end_ns = now_ns.saturating_add(offered_load.length.as_nanos() as u64);
        for slot in 0..offered_load.in_flight.min(self.slots.len()) {
            self.start(cx, slot, now_ns);
        }
    }

    #[inline]
    fn start(&mut self, cx: &mut Context<'_, Self>, index: usize, now_ns: u64) {
        let Some(call) = self.choose() else { return };
        let slot = &mut self.slots[index];
        let Some((mut request, response)) = slot.buffers.take() else { return };
        (slot.call, slot.started_ns) = (call, now_ns);
        let method = call.write(&self.keys, &mut request);
        match cx
            .call(slot.session, method, request)
            .into_buffer(response)
            .then(move |load, cx, reply| load.on_reply(cx, reply, index))
        {
            Ok(()) => self.active += 1,
            Err(rejected) => {
                slot.buffers = rejected.request.zip(rejected.response);
                self.fail(rejected.error.to_string());
            }
        }
    }

    #[inline]
    fn choose(&mut self) -> Option<Call> {
        match self.offered_load.kind {
            CallKind::Echo => {
                let number = self.rng.u32(..self.keys.count());
                Some(Call::Echo(self.keys.key(number)))
            }
            CallKind::Lookups { scans } => {
                let is_scan = scans > 0 && self.rng.u8(..100) < scans;
                let number = self.rng.u32(..self.keys.count());
                Some(if is_scan { Call::Scan(number) } else { Call::Lookup(self.keys.key(number)) })
            }
            CallKind::Fill => {
                let number = self.next_key;
                self.next_key += 1;
                (number < self.keys.count()).then(|| Call::Put(self.keys.key(number)))
            }
        }
    }

    /// Checks the reply of a slot's call, and starts the next.
    #[inline]
    fn on_reply(&mut self, cx: &mut Context<'_, Self>, reply: Reply, index: usize) {
        self.active -= 1;
        let now_ns = self.now_ns(cx);
        let slot = &mut self.slots[index];
        let (call, latency_ns) = (slot.call, now_ns.saturating_sub(slot.started_ns));
        match &reply.outcome {
            Ok(()) if call.is_right(&self.keys, &reply.response) => self.count(call, latency_ns),
            Ok(()) => self.outcome.wrong += 1,
            Err(failure) => self.end(call, failure),
        }
        self.slots[index].buffers = Some((reply.request, reply.response));
        if now_ns < self.end_ns {
            self.start(cx, index, now_ns);
        }
    }

    #[inline]
    fn count(&mut self, call: Call, latency_ns: u64) {
        let which = match call {
            Call::Echo(_) => &mut self.outcome.echoes,
            Call::Scan(_) => &mut self.outcome.scans,
            Call::Lookup(_) | Call::Put(_) => &mut self.outcome.lookups,
        };
        *which += 1;
        if self.offered_load.is_timed {
            self.outcome.latencies[usize::from(matches!(call, Call::Scan(_)))].record(latency_ns);
        }
    }

    /// Returns the time: with a single call in flight a reading of the clock, else the time of the turn.
    #[inline]
    fn now_ns(&self, cx: &Context<'_, Self>) -> u64 {
        if self.offered_load.is_timed && self.offered_load.in_flight == 1 {
            clock::now_ns()
        } else {
            cx.now().as_ns()
        }
    }

    #[cold]
    fn end(&mut self, call: Call, failure: &petrel::Error) {
        match (call, failure.execution) {
            (Call::Scan(_), Execution::Refused) => self.outcome.refused += 1,
            _ => self.fail(failure.to_string()),
        }
    }

    #[cold]
    fn fail(&mut self, text: String) {
        self.outcome.first_failure.get_or_insert(text);
        // A single failure spoils the measurement, so no further call starts; calls in flight still end.
        self.end_ns = 0;
    }
}

impl CallSlot {
    fn new(cx: &Context<'_, Load>, session: SessionId) -> Result<Self, Failure> {
        let request = cx.alloc(REQUEST_BYTES).map_err(Failure::because)?;
        let response = cx.alloc(RESPONSE_BYTES).map_err(Failure::because)?;
        let buffers = Some((request, response));
        Ok(Self { session, call: Call::Echo(0), started_ns: 0, buffers })
    }
}

impl Call {
    /// Writes the request, and returns its method.
    #[inline]
    fn write(self, keys: &Keys, request: &mut MsgBuf) -> u16 {
        let method = match self {
            Self::Echo(word) => {
                request.set_message(&word.to_be_bytes());
                Method::Echo
            }
            Self::Lookup(key) => {
                request.set_message(&key.to_be_bytes());
                Method::GetWord
            }
            Self::Scan(number) => {
                let range = SumRange { after: keys.key(number).into(), count: SUMMED.into() };
                request.set_message(range.as_bytes());
                Method::SumWords
            }
            Self::Put(key) => {
                let word = Word { key: key.into(), value: value_of(key).into() };
                request.set_message(word.as_bytes());
                Method::PutWord
            }
        };
        method as u16
    }

    #[inline]
    fn is_right(self, keys: &Keys, response: &[u8]) -> bool {
        match self {
            Self::Echo(word) => response == word.to_be_bytes(),
            Self::Lookup(key) => response == Found::from(Some(value_of(key))).as_bytes(),
            Self::Scan(number) => response == sum_after(keys, number).as_bytes(),
            Self::Put(_) => response == Found::from(None).as_bytes(),
        }
    }
}

fn sum_after(keys: &Keys, number: u32) -> Sum {
    let (found, sum) = keys.sum_after(number, SUMMED);
    Sum { found: found.into(), sum: sum.into() }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn is_right__only_for_the_answer_to_this_call() {
        let keys = Keys::new(1_000);
        let key = keys.key(7);
        let found = |value| Found::from(value);
        assert!(Call::Lookup(key).is_right(&keys, found(Some(value_of(key))).as_bytes()));
        let other = found(Some(value_of(keys.key(8))));
        assert!(!Call::Lookup(key).is_right(&keys, other.as_bytes()));
        assert!(!Call::Lookup(key).is_right(&keys, found(None).as_bytes()));
        let sum = sum_after(&keys, 7);
        let answer = sum.as_bytes();
        assert!(Call::Scan(7).is_right(&keys, answer) && !Call::Scan(8).is_right(&keys, answer));
        assert!(Call::Echo(1).is_right(&keys, &1u64.to_be_bytes()));
        assert!(!Call::Echo(1).is_right(&keys, &2u64.to_be_bytes()));
        assert!(Call::Put(1).is_right(&keys, found(None).as_bytes()));
        assert!(!Call::Put(1).is_right(&keys, &[]));
    }
}
