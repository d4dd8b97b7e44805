//! The event loop: the steps of a turn, and the wait between turns.

use std::future::Future;
use std::pin::pin;
use std::rc::Rc;
use std::sync::Arc;
use std::task::{Context as TaskContext, Poll};
use std::time::Duration;

use petrel_planted::planted;
use petrel_proto::{Event, SessionId, Status};
use petrel_transport::Transport;
use petrel_transport::wake::Waker;

use super::Endpoint;
use super::burst::send_cancels;
use super::context::continuation::{Continuation, run_under_deadline};
use super::context::{Context, Local};
use super::dispatch::run_message;
use super::idle::IdleAction;
use super::in_loop::InLoop;
use super::inbox_turn::handle_messages;
use super::service::{run_due, run_ended};
use super::stop::Stop;
use crate::control::ControlPlane;
use crate::error::Error;
use crate::events;
use crate::inbox::NEVER_NS;
use crate::local::{Command, Destination, Hub, MainWaker};
use crate::msgbuf::MsgBuf;
use crate::sync::{hint, thread};
use crate::time::{Time, as_ns};
use crate::values::SessionEnd;

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
const IDLE_POLLS: u8 = if cfg!(shuttle) { 1 } else { 8 };

/// Control messages handled in one turn: a storm of connects leaves time for calls.
const CONTROL_PER_TURN: usize = 16;

/// The most rounds of polling tasks in a turn: tasks that wake each other leave time for frames.
const ROUNDS_MAX: u32 = 8;

/// After this time without polls, the endpoint looks whether frames have waited, at least for the second time.
const PAUSE_NS: u64 = 20_000_000;
const WAITED_NS_MIN: u64 = 1_000_000;

/// Bursts of a turn after a pause, and the most such bursts in a row: as many as the frames that some rings hold.
const WAITED_PER_TURN: usize = 32;
const WAITED_MAX: usize = 1 << 17;

// Timers and tasks have turns under any load, and an idle turn polls for frames.
const _: () = assert!(FULL_TURNS_MAX > 1 && ROUNDS_MAX > 0 && CONTROL_PER_TURN > 0);
const _: () = assert!(IDLE_POLLS > 0 && IDLE_TURNS_MAX > 0);

/// The number of turns of a kind in a row.
#[derive(Default)]
pub(super) struct Turns {
    /// Turns that received nothing and polled nothing else.
    idle: u8,
    /// Turns that received frames.
    full: u8,
    /// When the latest turn began.
    begun_ns: u64,
    /// Bursts since a pause.
    waited: usize,
    /// When the latest sleep began and ended.
    slept_ns: [u64; 2],
    /// Whether the endpoint was left to sleep until a message comes: no turn is missed meanwhile.
    rests: bool,
}

impl Turns {
    /// Counts a turn, and returns true if it handles timers. While frames arrive, more may be queued, including
    /// seemingly lost ones. A transport may stop before its budget, at the end of a publication or of a datagram.
    #[inline]
    fn are_timers_due(&mut self, received: usize) -> bool {
        self.full = if received == 0 { 0 } else { (self.full + 1) % FULL_TURNS_MAX };
        self.full == 0
    }
}

impl<S: 'static, T: Transport, C: ControlPlane<T::Link>> Endpoint<S, T, C> {
    /// Runs one turn of the event loop: receives frames, runs handlers and continuations, sends, and handles timers and
    /// messages of the control plane. Never blocks. Returns true if there was any work.
    ///
    /// Answers leave before any other work, and most turns without frames poll only the receive path. Between two
    /// messages, other work of a turn is latency.
    pub fn run_once(&mut self) -> bool {
        // The clock is read before the poll: a reading takes some 20 ns on a virtual machine, and no frame waits for it here.
        let now_ns = self.transport.now();
        let pause_ns = now_ns.saturating_sub(self.turns.begun_ns);
        self.turns.begun_ns = now_ns;
        self.local.now_ns = now_ns;
        if self.turns.idle < IDLE_TURNS_MAX && (0..IDLE_POLLS).all(|_| self.is_idle()) {
            self.turns.idle += 1;
            return false;
        }
        self.turns.idle = 0;
        let received = match pause_ns < PAUSE_NS {
            true => self.receive(now_ns),
            false => self.receive_after_pause(now_ns, pause_ns),
        };
        // Tasks run after the frames, which end calls, and before the sends, which include the results of tasks.
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
        let mut controlled = self.handle_control();
        if self.turns.are_timers_due(received) {
            self.local.core.handle_timeouts(now_ns);
            if self.local.sessions.are_probed() || self.transport.has_broken() {
                controlled |= self.watch_links();
            }
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
        while !stop.is_requested() {
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
        Stop::new(self.transport.waker())
    }

    /// Takes a turn, and waits if there was no work.
    pub(crate) fn turn(&mut self) {
        self.turn_until(None);
    }

    /// Takes a turn, and waits until `end_ns` at most if there was no work. Returns true if there was work.
    pub(crate) fn turn_until(&mut self, end_ns: Option<u64>) -> bool {
        let has_worked = self.run_once();
        self.turns.rests = false;
        if has_worked {
            self.idle.on_work(self.local.now_ns);
            return true;
        }
        if self.local.hub.take_woken() {
            self.idle.on_wake();
        }
        match self.idle.next(self.local.now_ns) {
            IdleAction::Poll => hint::spin_loop(),
            IdleAction::Yield if self.idle.learns() => {
                let begin_ns = self.transport.now();
                thread::yield_now();
                self.idle.on_yield(begin_ns, self.transport.now());
            }
            IdleAction::Yield => thread::yield_now(),
            IdleAction::Sleep => self.sleep_until(end_ns),
        }
        false
    }

    /// Sleeps, unless there is work first.
    fn sleep_until(&mut self, end_ns: Option<u64>) {
        // The endpoint sleeps only after a turn that has polled everything.
        let stays = self.turns.idle > 0 || self.local.core.has_transmit();
        if stays || !self.local.remote.may_sleep() {
            hint::spin_loop();
            return;
        }
        let next = [self.next_due().map(Time::as_ns), end_ns].into_iter().flatten().min();
        let from_ns = self.transport.now();
        self.transport.wait(next.map(|at_ns| at_ns.saturating_sub(self.local.now_ns)));
        self.turns.slept_ns = [from_ns, self.transport.now().max(from_ns)];
        self.local.remote.is_awake();
    }

    /// Returns the waker that ends a sleep.
    pub(crate) fn waker(&self) -> Waker {
        self.transport.waker()
    }

    /// Returns true if the event loop is to stay on the endpoint's thread: a task has objects of the endpoint.
    pub(crate) fn is_bound(&self) -> bool {
        self.local.remote.is_bound()
    }

    /// Returns true if a message can only be handled on the endpoint's thread.
    pub(crate) fn wants_thread(&self) -> bool {
        self.local.remote.wants_thread()
    }

    /// Returns how long the endpoint polls without work, instead of sleeping.
    pub(crate) fn spin(&self) -> Duration {
        self.idle.spin()
    }

    /// Returns the number of outstanding calls of clients.
    pub(crate) fn client_calls_under_way(&self) -> usize {
        self.local.remote.calls_under_way()
    }

    /// Returns true if another thread computes on the CPU of the event loop.
    pub(crate) fn is_crowded(&self) -> bool {
        self.idle.is_crowded(self.local.now_ns)
    }

    /// Prepares the endpoint for a time without turns, in which messages wake a sleeper. Returns false if the event loop is needed: calls
    /// are outstanding, packets wait, or a message needs the endpoint's thread.
    pub(crate) fn rest(&mut self) -> bool {
        // A caller that drives has waited by itself: no other thread was woken.
        self.local.hub.take_woken();
        loop {
            let remote = &self.local.remote;
            if self.local.core.has_transmit()
                || remote.wants_thread()
                || remote.calls_under_way() > 0
            {
                return false;
            }
            if remote.may_sleep() {
                self.turns.rests = true;
                return true;
            }
            self.run_once();
        }
    }

    /// Prepares for a rest by a turn that polls everything; forgets old wake-ups before.
    pub(crate) fn rest_anew(&mut self) -> bool {
        self.transport.waker().drain();
        self.turns.idle = IDLE_TURNS_MAX;
        self.run_once();
        self.rest()
    }

    /// Begins turns after a rest.
    pub(crate) fn resume(&self) {
        self.local.remote.is_awake();
        if self.wants_thread() {
            self.work_flag.raise();
        }
    }

    /// Returns when the event loop has to run next without received frames, for callers of [`Endpoint::run_once`] that
    /// wait by themselves. A past time means at once; `None` means no time.
    pub fn next_due(&self) -> Option<Time> {
        let futures = Some(self.work_flag.due_ns()).filter(|due_ns| *due_ns != NEVER_NS);
        let probe = self.local.sessions.next_probe_ns();
        let all = [self.local.core.next_timeout_ns(), futures, probe];
        let next_ns = all.into_iter().flatten().min();
        next_ns.map(Time::from_ns)
    }

    /// Handles events other than frames: timed out calls, ended sessions, and exhausted sessions.
    #[inline(never)]
    fn handle_events(&mut self) -> bool {
        let mut any = false;
        while let Some(event) = self.next_event() {
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
                Event::Request { handle, method, message, placed, deadline_ns } => {
                    let Self { local, handlers, .. } = self;
                    let (request, message) = ((handle, method), (message, placed));
                    run_message(local, handlers, request, message, deadline_ns);
                }
                Event::Probed { session, number, .. } => {
                    self.session_control().on_probed(session, number);
                }
                Event::ServerSilent(session) => self.session_control().check_server(session),
                Event::SessionUsed(session) => self.session_control().note_used(session),
                Event::SessionExhausted(id) => {
                    let text = "the session's request numbers are used up, or the server is silent";
                    let (end, status) = (SessionEnd::Exhausted, Status::Unavailable);
                    self.session_control().end_session(id, end, status, text);
                }
            }
        }
        any
    }

    /// Returns the core's next event.
    fn next_event(&mut self) -> Option<Event<MsgBuf, Continuation>> {
        let Local { core, clock, .. } = &mut self.local;
        if core.has_ready_request() {
            // The request's deadline may have passed while it waited.
            core.set_time(clock.now_ns());
        }
        core.poll_event()
    }

    #[inline(always)]
    fn receive(&mut self, now_ns: u64) -> usize {
        let Self { transport, local, handlers, bursts, .. } = self;
        bursts.receive(transport, local, handlers, now_ns)
    }

    /// [`Endpoint::receive`] after a time without polls: deadlines count from the arrival of frames that have waited.
    #[cold]
    #[inline(never)]
    fn receive_after_pause(&mut self, now_ns: u64, pause_ns: u64) -> usize {
        let awake_ns = match self.turns.slept_ns {
            _ if self.turns.rests => 0,
            [from_ns, to_ns] if from_ns >= now_ns - pause_ns => {
                pause_ns.saturating_sub(to_ns - from_ns)
            }
            _ => pause_ns,
        };
        let (mut received, mut have_waited) = (0, true);
        // A burst may end without a frame, for instance at the end of a ring.
        for _ in 0..WAITED_PER_TURN {
            // Each frame takes time, and the next waits meanwhile.
            let more_ns = self.transport.now().saturating_sub(now_ns);
            let [pause_ns, awake_ns] = [pause_ns, awake_ns].map(|ns| ns + more_ns);
            let (waited_ns, budget) = self.transport.waited_ns(pause_ns, awake_ns);
            have_waited = waited_ns >= WAITED_NS_MIN;
            if !have_waited {
                break;
            }
            self.local.core.set_waited(now_ns, waited_ns.min(now_ns));
            let Self { transport, local, handlers, bursts, .. } = self;
            received += bursts.receive_few(transport, local, handlers, (now_ns, budget));
            self.local.core.set_waited(now_ns, 0);
        }
        self.turns.waited += WAITED_PER_TURN;
        if have_waited && self.turns.waited < WAITED_MAX {
            // The next turn goes on.
            self.turns.begun_ns = now_ns - pause_ns;
            return received;
        }
        self.turns.waited = 0;
        received + self.receive(now_ns)
    }

    /// A separate function, like [`Bursts::receive`](super::burst::Bursts::receive).
    #[inline(never)]
    fn send(&mut self, now_ns: u64) -> bool {
        self.bursts.send(&mut self.transport, &mut self.local, now_ns)
    }

    /// Handles messages of the control plane.
    #[inline]
    fn handle_control(&mut self) -> bool {
        let mut any = false;
        for _ in 0..CONTROL_PER_TURN {
            let Some(message) = self.control.poll() else { break };
            any = true;
            self.session_control().handle_message(message);
        }
        if any {
            self.after_control();
        }
        any
    }

    /// Does the rare work for which the messages of the control plane are occasion enough.
    #[cold]
    fn after_control(&mut self) {
        if self.local.core.take_freed() {
            petrel_transport::heap::trim();
        }
        while let Some(what) = self.transport.take_notice() {
            events::medium_changed(&what);
        }
        while let Some(peer) = self.transport.take_ended() {
            let why = "its keys are used up, or too many datagrams were forged";
            self.session_control().on_broken(peer, why);
        }
    }

    /// Finds out whether new links carry frames, and ends the links that do so no longer.
    #[cold]
    fn watch_links(&mut self) -> bool {
        let broken = self.transport.take_broken();
        if let Some((peer, why)) = &broken {
            self.session_control().on_broken(*peer, why);
        }
        self.session_control().run_probes() || broken.is_some()
    }

    /// Runs the event loop, with all its work, until a future is ready. No other executor is needed.
    pub fn block_on<F: Future>(&mut self, future: F) -> F::Output {
        let _running = InLoop::enter();
        let mut future = pin!(future);
        let main = Arc::new(MainWaker::new(self.local.hub.ready()));
        let waker = Arc::clone(&main).into();
        self.refresh_clock();
        let hub = Rc::clone(&self.local.hub);
        hub.begin(self.local.now_ns);
        loop {
            if main.take() {
                let poll = || future.as_mut().poll(&mut TaskContext::from_waker(&waker));
                let state = self.handlers.state_box();
                if let Poll::Ready(output) = self.local.lend(&hub, state, poll) {
                    return output;
                }
            }
            self.turn();
        }
    }

    /// Polls tasks, and carries out the orders of tasks, other threads and handlers.
    #[inline(never)]
    fn run_local(&mut self, now_ns: u64) {
        let hub = Rc::clone(&self.local.hub);
        hub.begin(now_ns);
        for _ in 0..ROUNDS_MAX {
            self.work_flag.clear();
            self.run_round(&hub);
            self.carry_out_orders();
            if !self.work_flag.is_raised() {
                break;
            }
        }
        // The requests that tasks sent at once.
        self.transport.flush();
        hub.end(self.local.services.next_due_ns());
        self.session_control().close_drained(now_ns);
    }

    /// Handles the messages of other threads, and polls the ready tasks. Calls begun meanwhile leave with the current burst.
    fn run_round(&mut self, hub: &Hub) {
        let Self { transport, local, handlers, bursts, .. } = self;
        let transport = bursts.sends_at_once().then_some(transport);
        local.with_transport(transport, |local| {
            handle_messages(local);
            answer_dropped(local);
            let cx = &mut Context::new(local);
            cx.run_late_watchers(handlers.state());
            run_due(cx);
            run_ended(handlers.state(), cx);
            local.lend(hub, handlers.state_box(), || hub.poll_tasks());
        });
    }

    /// Carries out the orders of futures.
    fn carry_out_orders(&mut self) {
        let hub = Rc::clone(&self.local.hub);
        while let Some(start) = hub.next_start() {
            self.local.make_call(start);
        }
        while let Some((handle, outcome)) = self.local.late_answers().pop() {
            self.refresh_clock();
            Context::<()>::new(&mut self.local).answer(handle, outcome);
        }
        while let Some((session, key)) = hub.next_cancel() {
            self.local.cancel_future_call(session, key);
        }
        while let Some(command) = hub.next_command() {
            match command {
                Command::Connect(_, answer) if answer.is_cancelled() => {}
                Command::Connect(destination, answer) => {
                    let opened = self.open_to(destination);
                    answer
                        .put(opened.map(|id| self.local.hub.watch(id, || self.session_state(id))));
                }
                Command::Close(id) => self.close(id),
                Command::Leave(id) => self.session_control().leave_session(id),
                Command::KeepApart => self.handlers.guard(self.local.authorizer.grants()),
                Command::EndCallbacks(key) => self.session_control().end_callbacks(key),
            }
        }
    }

    /// Opens a session for a future.
    fn open_to(&mut self, destination: Destination) -> Result<SessionId, Error> {
        match destination {
            Destination::To(remote, endpoint, callbacks) => {
                self.session_control().connect(remote, endpoint, callbacks)
            }
            Destination::BackOf(session) => self.connect_back(session),
            Destination::BackOn(link) => self.session_control().connect_on(Some(link)),
        }
    }

    /// Sends only the pending CANCELs.
    pub(super) fn send_last(&mut self) {
        let hub = Rc::clone(&self.local.hub);
        while let Some((session, key)) = hub.next_cancel() {
            self.local.cancel_future_call(session, key);
        }
        send_cancels(&mut self.transport, &mut self.local);
    }
}

/// Refuses requests whose handler has dropped them.
fn answer_dropped(local: &mut Local) {
    while let Some((handle, text)) = local.late_answers().pop_dropped() {
        local.forget_watchers(handle);
        local.core.respond_error(handle, Status::Internal, text);
    }
}
