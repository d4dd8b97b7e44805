//! The event loop: the steps of a turn, and the wait between turns.

use std::time::Duration;

use petrel_planted::planted;
use petrel_proto::limits::{HEADER_BYTES, PART_HEADER_BYTES, TRANSMIT_FRAMES_MAX};
use petrel_proto::{
    Event, FrameSink, PeerKey, PlainRequest, Received, Status, method_of, peek_request,
};
use petrel_transport::shm::Outgoing;
use petrel_transport::wake::Waker;
use petrel_transport::{
    FrameHandler, PeerId, RX_BURST_MAX, ReturnPath, SharedBytes, SharedFrame, Transport,
};

use super::ahead::Ahead;
use super::context::{Back, Context, Local};
use super::factors::{SlowDispatch, SlowSink};
use super::handler::{Handlers, Payload};
use super::idle::IdleAction;
use super::{Endpoint, SessionEnd, run_continuation, run_under_deadline};
use crate::client::InLoop;
use crate::control::ControlPlane;
use crate::inbox::NEVER_NS;
use crate::msgbuf::{MsgBuf, Pool};
use crate::prefetch::prefetch;
use crate::sync::{Arc, AtomicBool, Ordering, hint, thread};
use crate::time::as_ns;

/// Most bursts sent in one turn, to let the receive path run.
const TX_BURSTS_PER_TURN: usize = 8;

/// Bytes of large messages after which a turn sends: credits return, and the sender continues, while the next packets
/// are copied. Half of the default credits over shared memory; 64 and 128 KiB were as good.
const RX_BURST_BYTES: usize = 256 << 10;

/// A longer frame is probably a packet of a large message, whose packets have at least this size.
const SMALL_FRAME_BYTES: usize = 1024;

/// Consecutive turns with frames after which timers are still handled: a flood from one peer must not keep calls to
/// another from failing.
const FULL_TURNS_MAX: u8 = 128;

/// Idle iterations in a row that poll only the clock and the receive path. Timers and the control plane wait for no
/// longer than one frame takes.
///
/// A model checker of threads counts each poll as a step; with 16, endpoints would hardly ever sleep there.
const IDLE_TURNS_MAX: u8 = if cfg!(shuttle) { 2 } else { 16 };

/// Polls for frames per reading of the clock: a reading takes ten times as long as polling a ring, and delays arriving
/// frames. The time may be older by these polls when a frame arrives.
const IDLE_LOOKS: u8 = if cfg!(shuttle) { 1 } else { 8 };

/// Ends [`Endpoint::run`] from another thread or a signal handler.
#[derive(Clone, Debug)]
pub struct Stop {
    asked: Arc<AtomicBool>,
    waker: Waker,
}

impl Stop {
    /// Asks the event loop to end.
    pub fn stop(&self) {
        self.asked.store(true, Ordering::Release);
        self.waker.wake();
    }
}

impl<S: 'static, T: Transport, C: ControlPlane<T::Link>> Endpoint<S, T, C> {
    /// Runs one turn of the event loop: receives frames, runs handlers and continuations, sends, and handles timers and
    /// messages of the control plane. Never blocks. Returns true if there was any work.
    ///
    /// Answers leave before any other work, and most turns without frames poll only the receive path. Between two
    /// messages, other work of a turn is latency.
    pub fn run_once(&mut self) -> bool {
        // Before the poll, not after: reading the clock takes some 20 ns on a virtual machine, which pass here without
        // any work waiting.
        let now_ns = self.transport.now();
        self.local.now_ns = now_ns;
        if self.idle_turns < IDLE_TURNS_MAX && (0..IDLE_LOOKS).all(|_| self.is_idle()) {
            self.idle_turns += 1;
            return false;
        }
        self.idle_turns = 0;
        let received = self.receive(now_ns);
        // After the frames, which end calls, and before sending the results of tasks.
        let is_due = now_ns >= self.work_flag.due_ns();
        if is_due {
            self.run_local(now_ns);
        }
        self.local.core.release_paced(now_ns);
        let mut sent = self.local.core.has_transmit() && self.send(now_ns);
        if received > 0 && !sent {
            // The answers that handlers sent at once.
            if received > 1 || !planted("endpoint_lone_answer_waits") {
                self.transport.flush();
            }
            sent = true;
        }
        let controlled = self.handle_control();
        // While frames arrive, more may be queued, including seemingly lost ones. A transport may stop before its
        // budget, at the end of a publication or of a datagram.
        self.full_turns = if received == 0 { 0 } else { (self.full_turns + 1) % FULL_TURNS_MAX };
        if self.full_turns == 0 {
            self.local.core.handle_timeouts(now_ns);
        }
        let happened = self.local.core.has_events() && self.handle_events();
        sent |= self.local.core.has_transmit() && self.send(now_ns);
        if !sent {
            // The transport may hold frames that the kernel did not accept last time.
            self.transport.flush();
        }
        controlled || received > 0 || happened || sent || is_due
    }

    #[inline]
    fn is_idle(&self) -> bool {
        !self.transport.may_receive()
            && !self.local.core.has_transmit()
            && !self.local.core.has_events()
            && self.local.now_ns < self.work_flag.due_ns()
    }

    /// Runs the event loop until `stop` is used. Between turns without work the endpoint spins or sleeps, by its
    /// [`IdlePolicy`](super::IdlePolicy).
    pub fn run(&mut self, stop: &Stop) {
        let _running = InLoop::enter();
        while !stop.asked.load(Ordering::Acquire) {
            self.turn();
        }
    }

    /// Runs the event loop until `done` returns true; it is called after every turn.
    ///
    /// Another thread wakes a sleeping endpoint only through a [`Stop`], a client or a worker: to end the loop from
    /// another thread, use [`run`](Self::run).
    pub fn run_until(&mut self, mut done: impl FnMut(&mut S, &mut Context<'_, S>) -> bool) {
        let _running = InLoop::enter();
        self.refresh_clock();
        while !self.with_in_turn(&mut done) {
            self.turn();
        }
    }

    /// Runs the event loop for about this long, or until `done` returns true. Returns whether it did.
    pub fn run_for(
        &mut self,
        limit: Duration,
        mut done: impl FnMut(&mut S, &mut Context<'_, S>) -> bool,
    ) -> bool {
        let end_ns = self.transport.now().saturating_add(as_ns(limit));
        let _running = InLoop::enter();
        self.refresh_clock();
        loop {
            if self.with_in_turn(&mut done) {
                return true;
            }
            if self.transport.now() >= end_ns {
                return false;
            }
            self.turn_until(Some(end_ns));
        }
    }

    /// Returns a handle that ends [`Endpoint::run`].
    pub fn stop_handle(&self) -> Stop {
        Stop { asked: Arc::default(), waker: self.transport.waker() }
    }

    /// Takes a turn, and waits if there was no work.
    pub(super) fn turn(&mut self) {
        self.turn_until(None);
    }

    fn turn_until(&mut self, end_ns: Option<u64>) {
        if self.run_once() {
            self.idle.note_work(self.local.now_ns);
            return;
        }
        match self.idle.next(self.local.now_ns) {
            IdleAction::Poll => hint::spin_loop(),
            IdleAction::Yield if self.idle.learns() => {
                let begin_ns = self.transport.now();
                thread::yield_now();
                self.idle.note_yield(begin_ns, self.transport.now());
            }
            IdleAction::Yield => thread::yield_now(),
            IdleAction::Sleep => self.sleep_until(end_ns),
        }
    }

    /// Sleeps, unless there is work first.
    fn sleep_until(&mut self, end_ns: Option<u64>) {
        // Before a sleep comes a turn that has polled everything.
        let stays = self.idle_turns > 0 || self.local.core.has_transmit();
        if stays || !self.local.remote.may_sleep() {
            hint::spin_loop();
            return;
        }
        let next = [self.next_due_ns(), end_ns].into_iter().flatten().min();
        self.transport.wait(next.map(|at_ns| at_ns.saturating_sub(self.local.now_ns)));
        self.local.remote.is_awake();
    }

    /// Returns when the event loop has to run next without received frames, for callers of [`Endpoint::run_once`] that
    /// wait by themselves. A past time means at once; `None` means no time.
    pub fn next_due_ns(&self) -> Option<u64> {
        let futures = Some(self.work_flag.due_ns()).filter(|due_ns| *due_ns != NEVER_NS);
        [self.local.core.next_timeout_ns(), futures].into_iter().flatten().min()
    }

    /// A separate function, like `send`: inlined into the rest of a turn, both would keep half of their variables on
    /// the stack.
    #[inline(never)]
    fn receive(&mut self, now_ns: u64) -> usize {
        self.local.part_bytes = 0;
        let received = self.receive_up_to(self.rx_budget, now_ns);
        // Packets of a large message come in trains: the next are as large as these.
        self.rx_budget = match self.local.part_bytes {
            0 => RX_BURST_MAX,
            bytes => (RX_BURST_BYTES * received / bytes).clamp(1, RX_BURST_MAX),
        };
        received
    }

    #[inline]
    fn receive_up_to(&mut self, budget: usize, now_ns: u64) -> usize {
        let Self { transport, local, handlers, factors, ahead, .. } = self;
        if let Some((factors, fast_path)) = *factors {
            let slowly = SlowDispatch { factors, fast_path, local, handlers, now_ns };
            return transport.rx_burst_to(budget, slowly);
        }
        let looks_ahead = local.core.looks_ahead();
        let locates = handlers.locates();
        let dispatch = Dispatch { local, handlers, now_ns };
        if looks_ahead || locates {
            ahead.restart();
            let ahead = looks_ahead.then_some(ahead);
            return transport.rx_burst_to(budget, DispatchAhead { dispatch, ahead, locates });
        }
        transport.rx_burst_to(budget, dispatch)
    }

    /// Handles events other than frames: timed out calls, ended sessions, and exhausted sessions.
    #[inline(never)]
    fn handle_events(&mut self) -> bool {
        let mut any = false;
        while let Some(event) = self.local.core.poll_event() {
            any = true;
            match event {
                Event::Completed(ended) => {
                    let cx = &mut Context::new(&mut self.local);
                    run_under_deadline(self.handlers.state(), cx, ended);
                }
                Event::Cancelled(handle) => {
                    let cx = &mut Context::new(&mut self.local);
                    cx.run_watcher(self.handlers.state(), handle);
                }
                Event::SessionExhausted(id) => {
                    let text = "the session's request numbers are used up, or the server is silent";
                    self.end_session(id, SessionEnd::Exhausted, Status::Unavailable, text);
                }
            }
        }
        any
    }

    pub(super) fn answer_dropped(&mut self) {
        while let Some(handle) = self.local.dropped.pop() {
            let text = "the handler dropped the request";
            self.local.watchers.forget(handle);
            self.local.core.respond_error(handle, Status::Internal, text);
        }
    }

    #[inline(never)]
    fn send(&mut self, now_ns: u64) -> bool {
        let mut any = false;
        for _ in 0..TX_BURSTS_PER_TURN {
            let sink = Sink::new(&mut self.transport);
            let sent = match self.factors {
                None => self.local.core.transmit(now_ns, &mut { sink }),
                Some((factors, _)) => {
                    self.local.core.transmit(now_ns, &mut SlowSink { factors, to: sink })
                }
            };
            self.transport.flush();
            any |= sent > 0;
            if sent < TRANSMIT_FRAMES_MAX {
                break;
            }
        }
        any
    }
}

/// The transport as the core's output. `flush` must come before the core's next method.
pub(super) struct Sink<'a, T> {
    pub(super) transport: &'a mut T,
    /// A single reading for all frames of the burst with a deadline, taken at the first of them.
    clock_ns: Option<u64>,
}

impl<'a, T> Sink<'a, T> {
    pub(super) fn new(transport: &'a mut T) -> Self {
        Self { transport, clock_ns: None }
    }
}

impl<T: Transport> FrameSink for Sink<'_, T> {
    #[inline(always)]
    fn send(&mut self, peer: PeerKey, head: &[u8], body: &[u8]) -> bool {
        // SAFETY: the core does not change the bytes until its next method is called, and `send` flushes before that.
        unsafe { self.transport.push(PeerId(peer.0), head, body) }
    }

    #[inline]
    fn now_ns(&mut self, _burst_ns: u64) -> u64 {
        let Self { transport, clock_ns } = self;
        *clock_ns.get_or_insert_with(|| transport.now())
    }
}

/// Handles received frames.
pub(super) struct Dispatch<'a> {
    pub(super) local: &'a mut Local,
    pub(super) handlers: &'a mut Handlers,
    pub(super) now_ns: u64,
}

impl Dispatch<'_> {
    /// Handles a frame without a mark in private memory.
    #[inline(always)]
    pub(super) fn take(&mut self, peer: PeerId, frame: &[u8], path: Option<&mut Outgoing>) {
        let Self { local, handlers, now_ns } = self;
        let peer = PeerKey(peer.0);
        if frame.len() > SMALL_FRAME_BYTES && local.core.handle_next_part(peer, frame) {
            local.part_bytes += frame.len();
            return;
        }
        let back = Back::new(peer, path);
        if let Some(request) = local.core.handle_plain_request(peer, frame) {
            let PlainRequest { handle, method, payload, spare } = request;
            let cx = &mut Context::with_back(local, back);
            handlers.run(cx, handle, method, Payload::Borrowed(payload), spare);
            return;
        }
        let Local { core, clock, .. } = &mut **local;
        match core.handle_plain_response(*now_ns, peer, frame, || clock.now_ns()) {
            Some(completion) => {
                run_continuation(handlers.state(), &mut Context::with_back(local, back), completion)
            }
            None => dispatch_timed(local, handlers, *now_ns, peer, frame, back),
        }
    }
}

impl<R: ReturnPath> FrameHandler<R> for Dispatch<'_> {
    #[inline(always)]
    fn handle(&mut self, peer: PeerId, frame: &[u8], path: Option<&mut R>) {
        self.take(peer, frame, Outgoing::of(path));
    }

    fn handle_marked(&mut self, peer: PeerId, frame: &[u8]) {
        let Self { local, handlers, now_ns } = self;
        local.core.set_time(local.clock.now_ns());
        dispatch_other(local, handlers, *now_ns, PeerKey(peer.0), frame, true);
    }

    /// Copies a long frame once, to its place in a message, if it belongs to one of the two usual messages.
    #[inline(always)]
    fn handle_shared(&mut self, peer: PeerId, frame: SharedFrame<'_>, path: Option<&mut R>) {
        let Self { local, .. } = self;
        let (key, bytes) = (PeerKey(peer.0), frame.bytes());
        if let Some(head) = bytes.read::<PART_HEADER_BYTES>(0)
            && let payload = bytes.slice(PART_HEADER_BYTES..bytes.len())
            && let Some(place) = local.core.next_part_place(key, &head, payload.len())
        {
            payload.copy_to_slice(place);
            local.part_bytes += bytes.len();
            return;
        }
        dispatch_shared(self, peer, frame, Outgoing::of(path));
    }
}

/// Handles a long frame in shared memory that is not the next packet of a request.
#[inline(never)]
fn dispatch_shared(
    dispatch: &mut Dispatch<'_>,
    peer: PeerId,
    frame: SharedFrame<'_>,
    path: Option<&mut Outgoing>,
) {
    let Dispatch { local, handlers, now_ns } = dispatch;
    let (key, bytes) = (PeerKey(peer.0), frame.bytes());
    if let Some(head) = bytes.read::<HEADER_BYTES>(0) {
        let payload = bytes.slice(HEADER_BYTES..bytes.len());
        let (now_ns, len) = (*now_ns, payload.len());
        let Local { core, clock, .. } = &mut **local;
        let clock = || clock.now_ns();
        if let Some(ended) = core.take_plain_response(now_ns, key, &head, Shared(payload), clock) {
            let back = Back::new(key, path);
            let cx = &mut Context::with_back(local, back);
            return run_continuation(handlers.state(), cx, ended);
        }
        if handlers.in_place.is_wanted(method_of(&head))
            && let Some(request) = local.core.take_plain_request(key, &head, len)
        {
            let PlainRequest { handle, method, spare, .. } = request;
            let cx = &mut Context::with_back(local, Back::new(key, path));
            return handlers.run_in_place(cx, handle, method, payload, spare);
        }
    }
    dispatch.take(peer, frame.into_private(), path);
}

/// The payload of a frame under the control of its peer.
struct Shared<'a>(SharedBytes<'a>);

impl petrel_proto::buffer::Payload<MsgBuf> for Shared<'_> {
    fn len(&self) -> usize {
        self.0.len()
    }

    fn fill(self, response: &mut MsgBuf) {
        response.set_len(self.0.len());
        self.0.copy_to_slice(response);
    }
}

/// Handles received frames with many sessions, or with handlers that prefetch memory.
struct DispatchAhead<'a> {
    dispatch: Dispatch<'a>,
    /// None with few sessions.
    ahead: Option<&'a mut Ahead>,
    locates: bool,
}

impl DispatchAhead<'_> {
    #[inline(always)]
    fn step(&mut self) {
        if let Some(ahead) = &mut self.ahead {
            ahead.step(&self.dispatch.local.core);
        }
    }
}

impl<R: ReturnPath> FrameHandler<R> for DispatchAhead<'_> {
    #[inline(always)]
    fn handle(&mut self, peer: PeerId, frame: &[u8], path: Option<&mut R>) {
        self.step();
        self.dispatch.handle(peer, frame, path);
    }

    fn handle_marked(&mut self, peer: PeerId, frame: &[u8]) {
        self.step();
        FrameHandler::<R>::handle_marked(&mut self.dispatch, peer, frame);
    }

    fn handle_shared(&mut self, peer: PeerId, frame: SharedFrame<'_>, path: Option<&mut R>) {
        self.step();
        self.dispatch.handle_shared(peer, frame, path);
    }

    #[inline(always)]
    fn looks_ahead(&self) -> bool {
        true
    }

    #[inline(always)]
    fn prepare(&mut self, frame: &[u8], is_whole: bool) {
        if let Some(ahead) = &mut self.ahead {
            ahead.show(&self.dispatch.local.core, frame);
        }
        if self.locates
            && is_whole
            && let Some((method, message)) = peek_request(frame)
            && let Some(address) = self.dispatch.handlers.locate(method, message)
        {
            prefetch(address);
        }
    }
}

/// Handles a small request with a deadline, or another unusual frame.
#[inline(never)]
fn dispatch_timed(
    local: &mut Local,
    handlers: &mut Handlers,
    now_ns: u64,
    peer: PeerKey,
    frame: &[u8],
    back: Back<'_>,
) {
    // The turn's time is older by the handling of earlier frames.
    local.core.set_time(local.clock.now_ns());
    let Some((request, deadline_ns)) = local.core.handle_timed_request(now_ns, peer, frame) else {
        return dispatch_other(local, handlers, now_ns, peer, frame, false);
    };
    let PlainRequest { handle, method, payload, spare } = request;
    Context::with_back(local, back).under_deadline(Some(deadline_ns), |cx| {
        handlers.run(cx, handle, method, Payload::Borrowed(payload), spare);
    });
}

/// Handles all frames outside the fast path; `is_marked` if the frame has an ECN mark.
#[inline(never)]
pub(super) fn dispatch_other(
    local: &mut Local,
    handlers: &mut Handlers,
    now_ns: u64,
    peer: PeerKey,
    frame: &[u8],
    is_marked: bool,
) {
    let Local { core, pool, part_bytes, .. } = local;
    *part_bytes += frame.len();
    let pool = &mut Pool(pool);
    let received = match is_marked {
        true => core.handle_marked_frame(now_ns, peer, frame, pool),
        false => core.handle_frame(now_ns, peer, frame, pool),
    };
    match received {
        Received::Nothing => {}
        Received::Request { handle, method, payload, spare, deadline_ns } => {
            let payload = Payload::Borrowed(payload);
            Context::new(local).under_deadline(deadline_ns, |cx| {
                handlers.run(cx, handle, method, payload, spare);
            });
        }
        Received::Message { handle, method, message, deadline_ns } => {
            let payload = Payload::Owned(message);
            Context::new(local).under_deadline(deadline_ns, |cx| {
                handlers.run(cx, handle, method, payload, None);
            });
        }
        Received::Completed(ended) => {
            run_under_deadline(handlers.state(), &mut Context::new(local), ended);
        }
    }
}
