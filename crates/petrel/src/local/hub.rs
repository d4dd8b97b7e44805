//! The state shared by futures and the event loop.

use std::any::Any;
use std::cell::{Cell, RefCell};
use std::collections::{HashMap, VecDeque};
use std::fmt;
use std::mem;
use std::net::SocketAddr;
use std::ptr::NonNull;
use std::rc::{Rc, Weak};
use std::sync::Arc;
use std::task::{Poll, Waker};
use std::time::Duration;

use petrel_proto::{SessionId, Status};
use petrel_transport::buf::{BufPool, Growth, PoolExhausted};
use petrel_transport::clock::Clock;
use petrel_transport::wake::Waker as EndpointWaker;

use super::calls::{Call, Calls, Outcome, Pending, Progress, Start, take_ended};
use super::connect::ConnectAnswer;
use super::executor::{Polled, Tasks};
use super::parallel::Gathering;
use super::ready::Ready;
use super::serve::Answer;
use super::session::Watched;
use super::slab::Key;
use super::timers::{TimerId, Timers};
use crate::client::state::CallState;
use crate::control::{EndpointId, Reason};
use crate::endpoint::census::LocalCensus;
use crate::endpoint::{CallOptions, IntoMessage, Local, SessionState, State};
use crate::error::Error;
use crate::inbox::WorkFlag;
use crate::msgbuf::MsgBuf;

/// Default room for a response. A longer response gets a larger buffer on arrival. Every medium carries this length in
/// one packet.
pub(super) const RESPONSE_BYTES: usize = petrel_proto::limits::PACKET_BYTES_MIN as usize;

/// An order of a future to the event loop, apart from calls.
#[derive(Debug)]
pub(crate) enum Command {
    Connect(SocketAddr, EndpointId, Rc<ConnectAnswer>),
    Close(SessionId),
}

#[cfg(not(shuttle))]
thread_local! {
    /// The hub of the endpoint whose tasks are being polled on the thread.
    static CURRENT: Cell<Option<NonNull<Hub>>> = const { Cell::new(None) };
}

#[cfg(shuttle)]
crate::sync::thread_local! {
    static CURRENT: Cell<Option<NonNull<Hub>>> = Cell::new(None);
}

/// One per endpoint.
pub(crate) struct Hub {
    pool: BufPool,
    /// Lets a response's buffer grow to the longest response.
    growth: Growth,
    /// Time of the last turn that handled the hub.
    now_ns: Cell<u64>,
    clock: Clock,
    pub(super) ready: Arc<Ready>,
    work_flag: WorkFlag,
    calls: RefCell<Calls>,
    starts: RefCell<VecDeque<Start>>,
    /// Calls dropped after they were made.
    cancels: RefCell<Vec<(SessionId, u64)>>,
    commands: RefCell<VecDeque<Command>>,
    answers: RefCell<VecDeque<Answer>>,
    timers: RefCell<Timers<Waker>>,
    pub(super) tasks: RefCell<Tasks>,
    /// Tasks woken by this thread, in order.
    pub(super) woken: RefCell<Vec<Key>>,
    /// The task being polled.
    pub(super) polled: Cell<Option<Polled>>,
    /// Sessions with a handle.
    watched: RefCell<HashMap<SessionId, Weak<Watched>>>,
    random: Cell<u64>,
    /// The deadline inherited by calls made now: that of the task being polled.
    pub(super) inherited_ns: Cell<Option<u64>>,
    /// The application's state, while tasks are polled.
    lent: RefCell<Option<Box<dyn Any>>>,
    /// The endpoint, while tasks are polled and not using it.
    local: Cell<Option<NonNull<Local>>>,
    /// Whether the endpoint is gone: later operations fail.
    is_closed: Cell<bool>,
    /// States of clients' calls that have ended, for the next calls.
    call_states: RefCell<Vec<crate::sync::Arc<CallState>>>,
}

/// The largest number of states of clients' calls that are kept.
const CALL_STATES_MAX: usize = 256;

impl Hub {
    pub(crate) fn new(
        pool: BufPool,
        message_bytes_max: u32,
        clock: Clock,
        seed: u64,
        work_flag: WorkFlag,
        waker: EndpointWaker,
    ) -> Rc<Self> {
        Rc::new(Self {
            pool,
            growth: Growth::up_to(message_bytes_max as usize),
            now_ns: Cell::new(clock.now_ns()),
            clock,
            ready: Arc::new(Ready::new(work_flag.clone(), waker)),
            work_flag,
            calls: RefCell::default(),
            starts: RefCell::default(),
            cancels: RefCell::default(),
            commands: RefCell::default(),
            answers: RefCell::default(),
            timers: RefCell::default(),
            tasks: RefCell::default(),
            woken: RefCell::default(),
            polled: Cell::new(None),
            watched: RefCell::default(),
            random: Cell::new(seed),
            inherited_ns: Cell::new(None),
            lent: RefCell::new(None),
            local: Cell::new(None),
            is_closed: Cell::new(false),
            call_states: RefCell::default(),
        })
    }

    // Operations of the event loop.

    /// Begins handling the hub: wakes the tasks whose timers are due.
    pub(crate) fn begin(&self, now_ns: u64) {
        self.now_ns.set(now_ns);
        loop {
            let Some(waker) = self.timers.borrow_mut().pop_due(now_ns) else { break };
            waker.wake();
        }
    }

    /// Lends tasks the application's state and the endpoint, while they are polled.
    pub(crate) fn lend<R>(
        &self,
        state: &mut Box<dyn Any>,
        local: &mut Local,
        poll: impl FnOnce() -> R,
    ) -> R {
        /// Returns both even when a task panics.
        struct Lent<'a> {
            hub: &'a Hub,
            state: &'a mut Box<dyn Any>,
            /// The endpoint whose tasks run before and after this one's: a task may run another endpoint.
            outer: Option<NonNull<Hub>>,
        }

        impl Drop for Lent<'_> {
            fn drop(&mut self) {
                CURRENT.with(|current| current.set(self.outer));
                self.hub.local.set(None);
                *self.state = self.hub.lent.take().expect("a state that was lent comes back");
            }
        }

        let before = self.lent.replace(Some(mem::replace(state, Box::new(()))));
        assert!(before.is_none(), "the state is lent once at a time");
        self.local.set(Some(NonNull::from(local)));
        let outer = CURRENT.with(|current| current.replace(Some(NonNull::from(self))));
        let _lent = Lent { hub: self, state, outer };
        poll()
    }

    /// Runs a closure with the hub of the endpoint whose tasks run on this thread now, if any.
    pub(crate) fn with_current<R>(run: impl FnOnce(&Hub) -> R) -> Option<R> {
        let current = CURRENT.with(Cell::get)?;
        // SAFETY: `lend` borrows the hub for as long as it is the current one.
        Some(run(unsafe { current.as_ref() }))
    }

    /// Runs a closure with the endpoint, if it is lent and not in use.
    pub(crate) fn try_with_local<R>(&self, run: impl FnOnce(&mut Local) -> R) -> Option<R> {
        /// Puts it back even after a panic.
        struct InUse<'a>(&'a Hub, NonNull<Local>);

        impl Drop for InUse<'_> {
            fn drop(&mut self) {
                self.0.local.set(Some(self.1));
            }
        }

        let mut in_use = InUse(self, self.local.take()?);
        // SAFETY: `lend` borrows the endpoint exclusively while the pointer is set, and the pointer is unset during
        // this use.
        Some(run(unsafe { in_use.1.as_mut() }))
    }

    /// The same in a task of the endpoint.
    pub(crate) fn with_local<R>(&self, run: impl FnOnce(&mut Local) -> R) -> R {
        self.try_with_local(run).expect("an endpoint is lent to its tasks while they run")
    }

    /// Runs a closure with the lent state.
    pub(super) fn with_state<R>(&self, run: impl FnOnce(State<'_>) -> R) -> R {
        let mut lent = self.lent.try_borrow_mut().expect("the state is used once at a time");
        let lent = lent.as_mut().expect("the state is lent to its endpoint's tasks while they run");
        run(State::of(&mut **lent))
    }

    /// Ends handling the hub: requests the next time at `at_ns`, or earlier for a timer.
    pub(crate) fn end(&self, at_ns: u64) {
        self.work_flag.raise_at(at_ns.min(self.timers.borrow_mut().next_ns()));
    }

    pub(crate) fn next_start(&self) -> Option<Start> {
        self.starts.borrow_mut().pop_front()
    }

    pub(crate) fn next_cancel(&self) -> Option<(SessionId, u64)> {
        self.cancels.borrow_mut().pop()
    }

    pub(crate) fn next_command(&self) -> Option<Command> {
        self.commands.borrow_mut().pop_front()
    }

    pub(crate) fn next_answer(&self) -> Option<Answer> {
        self.answers.borrow_mut().pop_front()
    }

    /// Ends a call.
    pub(crate) fn finish(&self, key: u64, outcome: Result<MsgBuf, Error>) {
        let key = Key::from_bits(key);
        let mut calls = self.calls.borrow_mut();
        let Some(pending) = calls.get_mut(key) else { return };
        match mem::replace(&mut pending.progress, Progress::Ended(outcome)) {
            Progress::Begun | Progress::Ended(_) => {}
            Progress::AwaitedByOwn(task) => {
                drop(calls);
                self.wake(task);
            }
            Progress::AwaitedBy(waker) => {
                drop(calls);
                waker.wake();
            }
            Progress::Gathered(gathering, label) => {
                let outcome = take_ended(&mut calls, key);
                drop(calls);
                gathering.put(key, label, outcome.expect("it has ended"));
            }
        }
    }

    /// Ends a call, on a fast path for calls awaited by a task of the endpoint, as most are.
    #[inline(always)]
    pub(crate) fn finish_awaited(&self, key: u64, outcome: Result<MsgBuf, Error>) {
        let mut calls = self.calls.borrow_mut();
        if let Some(pending) = calls.get_mut(Key::from_bits(key))
            && let Progress::AwaitedByOwn(task) = pending.progress
        {
            pending.progress.set(Progress::Ended(outcome));
            drop(calls);
            self.wake(task);
        } else {
            drop(calls);
            self.finish(key, outcome);
        }
    }

    /// Reports a session's state to its handles.
    pub(crate) fn note_session(&self, id: SessionId, state: &SessionState) {
        let watched = self.watched.borrow().get(&id).and_then(Weak::upgrade);
        if let Some(watched) = watched {
            watched.set(state.clone());
        }
        if matches!(state, SessionState::Ended(_)) {
            self.watched.borrow_mut().remove(&id);
        }
    }

    /// Closes the hub at the endpoint's end: drops tasks, and fails pending operations.
    pub(crate) fn close(&self) {
        self.is_closed.set(true);
        let tasks = self.tasks.borrow_mut().take_all();
        drop(tasks);
        self.starts.borrow_mut().clear();
        self.answers.borrow_mut().clear();
        let calls = self.calls.borrow().keys();
        for key in calls {
            self.finish(key.to_bits(), Err(endpoint_gone()));
        }
        while let Some(command) = self.next_command() {
            if let Command::Connect(remote, _, answer) = command {
                let reason = Reason::new(Status::Unavailable, ENDPOINT_GONE);
                answer.put(Err(Error::cannot_connect(remote, &reason)));
            }
        }
    }

    /// Counts the objects of every kind.
    pub(crate) fn census(&self) -> LocalCensus {
        let orders = self.starts.borrow().len()
            + self.cancels.borrow().len()
            + self.commands.borrow().len()
            + self.answers.borrow().len();
        LocalCensus {
            calls: self.calls.borrow().len(),
            orders,
            sleeping: self.timers.borrow().len(),
            tasks: self.task_count(),
            watched: self.watched.borrow().len(),
        }
    }

    pub(crate) fn task_count(&self) -> usize {
        self.tasks.borrow().len()
    }

    pub(crate) fn ready(&self) -> Arc<Ready> {
        Arc::clone(&self.ready)
    }

    // Operations of futures.

    pub(super) fn now_ns(&self) -> u64 {
        self.now_ns.get()
    }

    pub(crate) fn clock_now_ns(&self) -> u64 {
        self.clock.now_ns()
    }

    /// Returns the next of a sequence of random numbers, for jitter (splitmix64).
    pub(crate) fn random(&self) -> u64 {
        let state = self.random.get().wrapping_add(0x9E37_79B9_7F4A_7C15);
        self.random.set(state);
        let mixed = (state ^ state >> 30).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        let mixed = (mixed ^ mixed >> 27).wrapping_mul(0x94D0_49BB_1331_11EB);
        mixed ^ mixed >> 31
    }

    pub(super) fn inherited_ns(&self) -> Option<u64> {
        self.inherited_ns.get()
    }

    pub(super) fn is_closed(&self) -> bool {
        self.is_closed.get()
    }

    pub(super) fn alloc(&self, capacity: usize) -> Result<MsgBuf, PoolExhausted> {
        MsgBuf::from_pool(&self.pool, capacity)
    }

    pub(super) fn alloc_message(&self, message: &[u8]) -> Result<MsgBuf, PoolExhausted> {
        MsgBuf::holding(&self.pool, message)
    }

    /// Returns a buffer for a response, which can grow.
    pub(crate) fn alloc_response(&self, bytes: Option<usize>) -> Result<MsgBuf, PoolExhausted> {
        let mut response = match bytes {
            // A separate call, for the compiler to compute the size class of the constant.
            None => MsgBuf::from_pool(&self.pool, RESPONSE_BYTES)?,
            Some(bytes) => self.alloc(bytes)?,
        };
        response.store_growth(self.growth);
        Ok(response)
    }

    /// Asks the event loop to handle the hub at that time, if not before.
    pub(crate) fn ask_at(&self, at_ns: u64) {
        self.work_flag.raise_at(at_ns);
    }

    /// Asks the event loop to handle the hub in its next turn.
    pub(crate) fn ask(&self) {
        self.work_flag.raise();
    }

    pub(crate) fn command(&self, command: Command) {
        self.commands.borrow_mut().push_back(command);
        self.work_flag.raise();
    }

    pub(super) fn answer(&self, answer: Answer) {
        self.answers.borrow_mut().push_back(answer);
        self.work_flag.raise();
    }

    /// Returns the options of a call that a future starts now, and that the event loop makes later.
    #[inline]
    pub(crate) fn begun(&self, options: CallOptions) -> CallOptions {
        options.begun(|| self.clock.now_ns()).no_later_than(self.inherited_ns.get())
    }

    /// Returns when a client's call ends that a task begins now: `timeout` is for a call without limits.
    #[inline]
    pub(crate) fn end_ns(&self, options: &CallOptions, timeout: Duration, clock_ns: u64) -> u64 {
        let own_ns = options.end_ns(clock_ns, timeout);
        self.inherited_ns.get().map_or(own_ns, |at_ns| own_ns.min(at_ns))
    }

    /// Returns the state of a client's call that has ended, for another one.
    #[inline]
    pub(crate) fn take_call_state(&self) -> Option<crate::sync::Arc<CallState>> {
        self.call_states.borrow_mut().pop()
    }

    /// Keeps the state of a client's call that has ended, if there is room.
    #[inline]
    pub(crate) fn keep_call_state(&self, state: crate::sync::Arc<CallState>) {
        let mut states = self.call_states.borrow_mut();
        if states.len() < CALL_STATES_MAX {
            states.push(state);
        }
    }

    /// Returns the task that is being polled, if this is its waker.
    #[inline]
    pub(crate) fn task_of(&self, waker: &Waker) -> Option<Key> {
        self.polled.get().and_then(|polled| polled.task_of(waker))
    }

    /// Starts a call, whose options have [begun](CallOptions::begun). An impossible call ends at once.
    // Inline, like its callers from an awaited call: the compiler removes unset options.
    #[inline(always)]
    pub(super) fn start(
        self: &Rc<Self>,
        session: SessionId,
        method: u16,
        request: impl IntoMessage,
        options: CallOptions,
    ) -> Call {
        let request = match options.needs_servers() {
            true => Err(Error::needs_servers()),
            false => request.into_message(&self.pool).map_err(Error::from),
        };
        let CallOptions { deadline_ns, response_bytes, .. } = options;
        self.start_message(session, method, request, response_bytes, deadline_ns)
    }

    fn start_message(
        self: &Rc<Self>,
        session: SessionId,
        method: u16,
        request: Result<MsgBuf, Error>,
        response_bytes: Option<usize>,
        deadline_ns: Option<u64>,
    ) -> Call {
        let key = self.calls.borrow_mut().insert(Pending::new(session));
        let response = self.alloc_response(response_bytes).map_err(Error::from);
        let failure = match (request, response) {
            _ if self.is_closed.get() => Some(endpoint_gone()),
            (Err(failure), _) | (_, Err(failure)) => Some(failure),
            (Ok(request), Ok(response)) => {
                let key = key.to_bits();
                let start = Start { key, session, method, request, response, deadline_ns };
                if self.local.get().is_some() {
                    self.with_local(|local| local.make_call(start));
                } else {
                    self.starts.borrow_mut().push_back(start);
                    self.work_flag.raise();
                }
                None
            }
        };
        if let Some(failure) = failure {
            self.finish(key.to_bits(), Err(failure));
        }
        Call::new(Rc::clone(self), key)
    }

    pub(super) fn take_outcome(&self, key: Key) -> Option<Outcome> {
        let mut calls = self.calls.borrow_mut();
        calls.get_mut(key).filter(|pending| pending.has_ended())?;
        take_ended(&mut calls, key)
    }

    /// Returns the outcome, if there; otherwise registers the waker.
    #[inline]
    pub(super) fn poll_call(&self, key: Key, waker: &Waker) -> Poll<Outcome> {
        let mut calls = self.calls.borrow_mut();
        let Some(pending) = calls.get_mut(key) else { return Poll::Pending };
        if pending.has_ended() {
            return Poll::Ready(take_ended(&mut calls, key).expect("it has ended"));
        }
        let own = self.task_of(waker);
        match (&pending.progress, own) {
            (Progress::Begun | Progress::AwaitedByOwn(_), Some(task)) => {
                pending.progress.set(Progress::AwaitedByOwn(task));
            }
            _ => pending.await_by(own, waker),
        }
        Poll::Pending
    }

    pub(super) fn redirect(&self, key: Key, to: &Rc<Gathering>, label: u64) {
        if let Some(outcome) = self.take_outcome(key) {
            to.put(key, label, outcome);
        } else if let Some(pending) = self.calls.borrow_mut().get_mut(key) {
            pending.progress = Progress::Gathered(Rc::clone(to), label);
            to.expect(key);
        }
    }

    /// Gives up an outcome: cancels the call if it has not ended.
    pub(super) fn abandon(&self, key: Key) {
        let Some(pending) = self.calls.borrow_mut().remove(key) else { return };
        if pending.has_ended() {
            return;
        }
        let key = key.to_bits();
        let mut starts = self.starts.borrow_mut();
        // The latest is the most likely.
        if let Some(place) = starts.iter().rposition(|start| start.key == key) {
            starts.remove(place);
            return;
        }
        drop(starts);
        if !self.is_closed.get() {
            self.cancels.borrow_mut().push((pending.session, key));
            self.work_flag.raise();
        }
    }

    pub(super) fn set_timer(&self, at_ns: u64, waker: Waker) -> TimerId {
        self.work_flag.raise_at(at_ns);
        self.timers.borrow_mut().insert(at_ns, waker)
    }

    pub(super) fn reset_timer(&self, id: TimerId, waker: &Waker) {
        if let Some(before) = self.timers.borrow_mut().get_mut(id) {
            before.clone_from(waker);
        }
    }

    pub(super) fn remove_timer(&self, id: TimerId) {
        self.timers.borrow_mut().remove(id);
    }

    /// Returns the state of a session for its handles, created for the first handle.
    pub(crate) fn watch(&self, id: SessionId, state: impl FnOnce() -> SessionState) -> Rc<Watched> {
        let mut all = self.watched.borrow_mut();
        if let Some(watched) = all.get(&id).and_then(Weak::upgrade) {
            return watched;
        }
        let watched = Rc::new(Watched::new(id, state()));
        all.insert(id, Rc::downgrade(&watched));
        watched
    }
}

const ENDPOINT_GONE: &str = "the endpoint is gone";

#[cold]
fn endpoint_gone() -> Error {
    Error::not_sent(Status::Unavailable, ENDPOINT_GONE)
}

impl fmt::Debug for Hub {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let tasks = self.tasks.borrow().len();
        write!(f, "Hub({} calls, {tasks} tasks)", self.calls.borrow().len())
    }
}

#[cfg(test)]
mod tests {
    use std::future::Future;
    use std::pin::pin;
    use std::task::{Context as TaskContext, Poll};

    use petrel_transport::buf::PoolConfig;

    use super::*;
    use crate::local::sleep::Sleep;
    use crate::local::wakes::Wakes;

    fn hub(seed: u64) -> Rc<Hub> {
        let pool = BufPool::new(PoolConfig::default());
        let waker = EndpointWaker::new().unwrap();
        Hub::new(pool, 1 << 20, Clock::of(|| 5), seed, WorkFlag::new(), waker)
    }

    /// Endpoints started alike must not retry at the same times.
    #[test]
    fn random__differs_from_draw_to_draw_and_from_seed_to_seed() {
        let drawn: Vec<u64> = (0..8)
            .flat_map(|seed| {
                let hub = hub(seed);
                (0..100).map(move |_| hub.random()).collect::<Vec<_>>()
            })
            .collect();
        let different: std::collections::HashSet<_> = drawn.iter().collect();
        assert_eq!(different.len(), drawn.len());
        // Each bit is set about as often as not: in 343 to 457 of 800 draws, except for one seed in 10 000.
        for bit in 0..64 {
            let ones = drawn.iter().filter(|number| **number >> bit & 1 == 1).count();
            assert!((343..=457).contains(&ones), "bit {bit} is set in {ones} of 800");
        }
        assert_eq!(hub(7).random(), hub(7).random(), "a seed gives the same again");
    }

    #[test]
    fn abandon__takes_back_a_call_that_was_not_made_and_cancels_one_that_was() {
        let hub = hub(1);
        let session = SessionId { index: 3, generation: 1 };
        let start = || hub.start(session, 7, b"message", CallOptions::new());
        let there_are = || (hub.census().calls, hub.census().orders);
        let [first, second, third] = [(); 3].map(|()| start());
        assert_eq!(there_are(), (3, 3));
        drop(second);
        assert_eq!((there_are(), hub.next_cancel()), ((2, 2), None), "the loop never hears of it");
        let made = hub.next_start().unwrap();
        hub.work_flag.clear();
        drop(first);
        assert!(hub.work_flag.is_raised());
        assert_eq!(there_are(), (1, 2));
        assert_eq!(hub.next_cancel(), Some((session, made.key)));
        // An ended call notifies nothing.
        let ended = hub.next_start().unwrap();
        hub.finish(ended.key, Ok(ended.response));
        hub.work_flag.clear();
        drop(third);
        assert_eq!((there_are(), hub.work_flag.is_raised()), ((0, 0), false));
        let last = start();
        let _made = hub.next_start();
        hub.close();
        drop(last);
        assert_eq!(there_are(), (0, 0));
        assert!(hub.next_start().is_none());
    }

    /// A future may move on to another task between two polls.
    #[test]
    fn sleep__wakes_who_polled_it_last() {
        let hub = hub(1);
        let wakes = [(); 2].map(|()| Arc::new(Wakes::default()));
        let woken = || wakes.each_ref().map(|wakes| wakes.count());
        {
            let mut sleep = pin!(Sleep::new(Rc::clone(&hub), 10));
            let mut poll = |by: usize| {
                let waker = Waker::from(Arc::clone(&wakes[by]));
                sleep.as_mut().poll(&mut TaskContext::from_waker(&waker))
            };
            assert_eq!((poll(0), poll(1)), (Poll::Pending, Poll::Pending));
            assert_eq!(hub.census().sleeping, 1);
            // The clock stands at 5.
            hub.begin(14);
            assert_eq!((woken(), poll(1)), ([0, 0], Poll::Pending));
            hub.begin(15);
            assert_eq!((woken(), poll(1)), ([0, 1], Poll::Ready(())));
            assert_eq!(hub.census().sleeping, 0);
            let mut dropped = Box::pin(Sleep::new(Rc::clone(&hub), 10));
            let waker = Waker::from(Arc::clone(&wakes[0]));
            assert!(dropped.as_mut().poll(&mut TaskContext::from_waker(&waker)).is_pending());
            assert_eq!(hub.census().sleeping, 1);
        }
        assert_eq!(hub.census().sleeping, 0, "one that was dropped");
        hub.begin(1_000);
        assert_eq!(woken(), [0, 1]);
    }
}
