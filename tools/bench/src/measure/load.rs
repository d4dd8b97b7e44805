//! The library's load: a closed loop of calls in batches, with the least overhead that a check of every reply allows.
//!
//! Every call in flight has a slot with its two buffers. Slots form batches; the calls of a batch start together once
//! all former calls of the batch have ended (eRPC §6.2). A request carries stamps, and its reply must repeat the
//! stamps; the rest of the bytes never change. The load is the state of the calling endpoint, lent to continuations.

use std::cell::Cell;
use std::collections::VecDeque;
use std::rc::Rc;
use std::time::Duration;

use petrel::endpoint::SessionId;
use petrel::{Context, MsgBuf, Reply};
use petrel_command::failure::Failure;
use petrel_command::load::Counts;
use petrel_command::methods;
use petrel_command::payload::{Pattern, stamps};
use petrel_transport::clock;

use super::window::Window;

/// The seed of the bytes of calls.
const SEED: u64 = 0x7065_7472_656c;

/// The kind of a call, and the check of its reply.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Exchange {
    /// The reply is the request; its length and its first and last 8 bytes are compared.
    Echo,
    /// The reply is the request's length and the sum of its stamps, one in every 8 KiB.
    Sample,
    /// As `Sample`, with a stamp in every KiB, and so in every packet.
    Samples,
}

/// The choice of a session for a call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Choice {
    /// Every slot has a fixed session.
    InTurn,
    /// A random session per call.
    Random,
}

/// Calls announced ahead of each call.
const ANNOUNCED_AHEAD: usize = 8;

/// The sessions to use from the next window on.
#[derive(Debug)]
pub struct Selection {
    /// The first of the load's sessions that are used.
    pub limit: Cell<usize>,
    /// Whether calls are announced before they are made (`Context::prefetch_session`).
    pub is_announced: Cell<bool>,
}

impl Selection {
    /// Selects all sessions, whose calls are not announced.
    pub fn all() -> Rc<Self> {
        Rc::new(Self { limit: Cell::new(usize::MAX), is_announced: Cell::new(false) })
    }
}

/// The parameters of the load.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Workload {
    pub exchange: Exchange,
    /// Size of the requests in bytes.
    pub size: usize,
    /// Calls in flight at a time.
    pub in_flight: u16,
    /// Calls started together.
    pub batch: u16,
    pub choice: Choice,
    /// Whether every call is timed.
    pub is_timed: bool,
}

/// The calls of one endpoint.
pub struct Load {
    workload: Workload,
    sessions: Vec<SessionId>,
    /// Calls in flight.
    active: usize,
    selection: Rc<Selection>,
    /// The number of sessions used in this window.
    used: usize,
    /// The sessions of the next calls, if calls are announced in this window.
    announced: VecDeque<SessionId>,
    slots: Vec<CallSlot>,
    batches: Vec<Batch>,
    rng: fastrand::Rng,
    /// Number of the next call.
    next_call: u64,
    started_ns: u64,
    /// No call starts after this time.
    end_ns: u64,
    ended_ns: u64,
    given_up_after: Option<Duration>,
    answered: u64,
    mismatched: u64,
    started: u64,
    /// Failures, and the latencies if calls are timed.
    counts: Counts,
}

/// The slot of one call in flight.
struct CallSlot {
    session: SessionId,
    batch: u32,
    /// Stamp of the call in flight.
    stamp: u64,
    started_ns: u64,
    /// The two buffers, while no call is in flight.
    buffers: Option<(MsgBuf, MsgBuf)>,
}

/// Adjacent slots whose calls start together.
struct Batch {
    first: u32,
    count: u32,
    /// Calls in flight.
    left: u32,
}

impl Load {
    /// Creates a load without sessions.
    pub fn new(workload: Workload, selection: Rc<Selection>) -> Self {
        Self {
            workload,
            used: 0,
            selection,
            announced: VecDeque::new(),
            sessions: Vec::new(),
            active: 0,
            slots: Vec::new(),
            batches: Vec::new(),
            rng: fastrand::Rng::with_seed(SEED),
            next_call: 1,
            started_ns: 0,
            end_ns: 0,
            ended_ns: 0,
            given_up_after: None,
            answered: 0,
            mismatched: 0,
            started: 0,
            counts: Counts::default(),
        }
    }

    /// Sets the sessions, and allocates the buffers.
    pub fn set_sessions(
        &mut self,
        cx: &mut Context<'_, Self>,
        sessions: &[SessionId],
    ) -> Result<(), Failure> {
        let Workload { in_flight, batch, .. } = self.workload;
        let slots = (0..in_flight).zip(sessions.iter().cycle());
        self.slots = slots
            .map(|(index, session)| CallSlot::new(cx, *session, index / batch, &self.workload))
            .collect::<Result<_, _>>()?;
        let count = |first: u16| u32::from(batch.min(in_flight - first));
        self.batches = (0..in_flight)
            .step_by(usize::from(batch))
            .map(|first| Batch { first: first.into(), count: count(first), left: 0 })
            .collect();
        self.sessions = sessions.to_vec();
        Ok(())
    }

    /// Starts calls for a window.
    pub fn begin(&mut self, cx: &mut Context<'_, Self>, end_ns: u64) {
        self.counts = Counts::default();
        (self.answered, self.mismatched, self.started) = (0, 0, 0);
        self.batches.iter_mut().for_each(|batch| batch.left = 0);
        self.used = self.selection.limit.get().min(self.sessions.len());
        self.announced.clear();
        if self.selection.is_announced.get() {
            (0..ANNOUNCED_AHEAD).for_each(|_| self.announce(cx));
        }
        self.end_ns = end_ns;
        self.started_ns = clock::now_ns();
        self.ended_ns = self.started_ns;
        for batch in 0..self.batches.len() {
            self.start_batch(cx, batch, self.started_ns);
        }
    }

    /// Returns true if the window is over.
    #[inline]
    pub fn is_over(&self) -> bool {
        self.active == 0
    }

    /// Marks calls that end from now on as too late.
    pub fn give_up(&mut self, timeout: Duration) {
        self.given_up_after = Some(timeout);
        self.end_ns = 0;
    }

    #[inline]
    fn start_batch(&mut self, cx: &mut Context<'_, Self>, batch: usize, now_ns: u64) {
        let Batch { first, count, .. } = self.batches[batch];
        for slot in first..first + count {
            if !self.start_call(cx, slot as usize, now_ns) {
                return;
            }
            self.batches[batch].left += 1;
        }
    }

    #[inline]
    fn start_call(&mut self, cx: &mut Context<'_, Self>, index: usize, now_ns: u64) -> bool {
        let chosen = self.choose(cx, index);
        let slot = &mut self.slots[index];
        let Some((mut request, response)) = slot.buffers.take() else { return false };
        slot.stamp = self.next_call;
        slot.started_ns = now_ns;
        self.next_call += 1;
        self.workload.exchange.stamp(&mut request, slot.stamp);
        let method = self.workload.exchange.method();
        self.started += 1;
        match cx
            .call(chosen, method, request)
            .into_buffer(response)
            .then(move |load, cx, reply| load.on_reply(cx, reply, index))
        {
            Ok(()) => self.active += 1,
            Err(rejected) => {
                self.counts.fail(&rejected.error);
                self.end_ns = 0;
                self.slots[index].buffers = rejected.request.zip(rejected.response);
                return false;
            }
        }
        true
    }

    #[inline]
    fn choose(&mut self, cx: &mut Context<'_, Self>, slot: usize) -> SessionId {
        if let Some(session) = self.announced.pop_front() {
            self.announce(cx);
            return session;
        }
        match self.workload.choice {
            Choice::InTurn => self.slots[slot].session,
            Choice::Random => self.sessions[self.rng.usize(..self.used)],
        }
    }

    /// Announces a call on a random session.
    #[inline]
    fn announce(&mut self, cx: &mut Context<'_, Self>) {
        let session = self.sessions[self.rng.usize(..self.used)];
        cx.prefetch_session(session);
        self.announced.push_back(session);
    }

    /// Checks the reply of a slot's call. The last reply of a batch starts the next batch.
    #[inline]
    fn on_reply(&mut self, cx: &mut Context<'_, Self>, reply: Reply, index: usize) {
        self.active -= 1;
        let now_ns = self.now_ns(cx);
        let slot = &mut self.slots[index];
        if let Err(failure) = &reply.outcome {
            match self.given_up_after {
                Some(timeout) => self.counts.give_up(failure.execution, timeout),
                None => self.counts.fail(failure),
            }
            // A single failure spoils the measurement, so no further call starts; calls in flight still end.
            self.end_ns = 0;
        } else {
            let is_right =
                self.workload.exchange.is_right(&reply.response, self.workload.size, slot.stamp);
            self.answered += 1;
            self.mismatched += u64::from(!is_right);
            if self.workload.is_timed {
                self.counts.latencies.record(now_ns.saturating_sub(slot.started_ns));
            }
        }
        slot.buffers = Some((reply.request, reply.response));
        let batch = slot.batch as usize;
        self.batches[batch].left -= 1;
        if self.batches[batch].left == 0 && now_ns < self.end_ns {
            self.start_batch(cx, batch, now_ns);
        }
    }

    /// Returns the time. With one timed call in flight, every call needs a reading of the clock: the end
    /// of a call is the start of the next, as in the baseline's ping-pong. With many calls in flight,
    /// the event loop's reading at the start of its turn is precise enough and free.
    #[inline]
    fn now_ns(&self, cx: &Context<'_, Self>) -> u64 {
        let is_precise = self.workload.is_timed && self.workload.in_flight == 1;
        if is_precise { clock::now_ns() } else { cx.now().as_ns() }
    }

    /// Ends the window, and returns its counts.
    pub fn finish(&mut self) -> Window {
        self.ended_ns = clock::now_ns();
        let Counts { failures, latencies, .. } = std::mem::take(&mut self.counts);
        Window {
            calls: self.started,
            checked: self.answered,
            mismatched: self.mismatched,
            bytes: self.answered * self.workload.size as u64,
            elapsed_ns: self.ended_ns - self.started_ns,
            failures,
            ..Window::new(self.workload.is_timed.then_some(latencies))
        }
    }
}

impl CallSlot {
    fn new(
        cx: &Context<'_, Load>,
        session: SessionId,
        batch: u16,
        workload: &Workload,
    ) -> Result<Self, Failure> {
        let mut request = cx.alloc(workload.size).map_err(Failure::because)?;
        request.set_len(workload.size);
        Pattern::new(SEED, u64::from(batch)).fill(&mut request);
        let response_bytes = workload.exchange.response_bytes(workload.size);
        let response = cx.alloc(response_bytes).map_err(Failure::because)?;
        let buffers = Some((request, response));
        Ok(Self { session, batch: batch.into(), stamp: 0, started_ns: 0, buffers })
    }
}

impl Exchange {
    fn method(self) -> u16 {
        match self {
            Self::Echo => methods::ECHO,
            Self::Sample => methods::SAMPLE,
            Self::Samples => methods::SAMPLES,
        }
    }

    /// Returns the length of the response to a request of `size` bytes.
    fn response_bytes(self, size: usize) -> usize {
        match self {
            Self::Echo => size,
            Self::Sample | Self::Samples => methods::SAMPLE_REPLY_BYTES,
        }
    }

    #[inline]
    fn stamp(self, request: &mut [u8], stamp: u64) {
        match self {
            Self::Echo => stamps::write_ends(request, stamp),
            Self::Sample => stamps::write_all(request, stamp, stamps::SPARSE),
            Self::Samples => stamps::write_all(request, stamp, stamps::DENSE),
        }
    }

    #[inline]
    fn is_right(self, response: &[u8], size: usize, stamp: u64) -> bool {
        match self {
            Self::Echo => response.len() == size && stamps::are_at_ends(response, stamp),
            Self::Sample => is_sum(response, size, stamp, stamps::SPARSE),
            Self::Samples => is_sum(response, size, stamp, stamps::DENSE),
        }
    }
}

fn is_sum(response: &[u8], size: usize, stamp: u64, every: usize) -> bool {
    response == methods::sample_reply(size, stamps::expected(size, stamp, every))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn is_right__only_for_the_reply_to_this_call() {
        let mut message = vec![7; 32];
        Exchange::Echo.stamp(&mut message, 9);
        assert!(Exchange::Echo.is_right(&message, 32, 9));
        assert!(!Exchange::Echo.is_right(&message, 32, 10));
        assert!(!Exchange::Echo.is_right(&message[..31], 32, 9));
        message[31] ^= 1;
        assert!(!Exchange::Echo.is_right(&message, 32, 9));
        let reply = methods::sample_reply(32, stamps::expected(32, 9, stamps::SPARSE));
        assert!(Exchange::Sample.is_right(&reply, 32, 9));
        assert!(!Exchange::Sample.is_right(&reply, 32, 8));
        assert!(!Exchange::Sample.is_right(&reply, 33, 9));
    }
}
