//! The state shared by futures and the event loop.

use std::any::Any;
use std::cell::{Cell, RefCell};
use std::fmt;
use std::ptr::NonNull;
use std::rc::Rc;
use std::sync::Arc;
use std::task::{Poll, Waker};
use std::time::Duration;

use petrel_proto::{SessionId, Status};
use petrel_transport::buf::{BufPool, Growth, PoolExhausted};
use petrel_transport::clock::Clock;
use petrel_transport::wake::Waker as EndpointWaker;

use super::calls::{Calls, Start};
use super::client_call::state::IdleState;
use super::completions::{Completions, Outcome};
use super::lent::Lent;
use super::object_counts::LocalObjectCounts;
use super::orders::{Command, Orders};
use super::ready::Ready;
use super::slab::Key;
use super::spares::Spares;
use super::tasks::{BoxedFuture, Tasks};
use super::timers::{TimerId, Timers};
use super::watch::{SessionMedium, SessionWatch, SessionWatches};
use crate::control::Reason;
use crate::error::Error;
use crate::inbox::WorkFlag;
use crate::msgbuf::MsgBuf;
use crate::panics::{Closure, Panics};
use crate::values::{CallOptions, SessionState, State, StreamConfig};

/// Default room for a response. A longer response gets a larger buffer on arrival. Every medium carries this length in
/// one packet.
const RESPONSE_BYTES: usize = petrel_proto::limits::PACKET_BYTES_MIN as usize;

#[cfg(not(shuttle))]
thread_local! {
    /// The hub of the endpoint whose tasks are being polled on the thread.
    static CURRENT: Cell<Option<NonNull<Hub>>> = const { Cell::new(None) };
}

#[cfg(shuttle)]
crate::sync::thread_local! {
    static CURRENT: Cell<Option<NonNull<Hub>>> = Cell::new(None);
}

/// The state shared by the futures of an endpoint and its event loop. Each kind of object has a table of its own.
pub(crate) struct Hub {
    pool: BufPool,
    /// Lets a response's buffer grow to the longest response.
    growth: Growth,
    /// Time of the last turn that handled the hub.
    now_ns: Cell<u64>,
    clock: Clock,
    work_flag: WorkFlag,
    calls: Calls,
    orders: Orders,
    timers: RefCell<Timers<Waker>>,
    tasks: Tasks,
    sessions: SessionWatches,
    random: Cell<u64>,
    lent: Lent,
    /// Whether the endpoint is gone: later operations fail.
    is_closed: Cell<bool>,
    /// States of clients' calls that have ended, for the next calls.
    call_states: Spares<IdleState>,
    /// Memory of responses to clients' calls, for the next requests.
    memories: Spares<Vec<u8>>,
    /// Whether the endpoint has woken another thread since its last turn without work.
    has_woken: Cell<bool>,
    /// Objects that faces keep with the endpoint, by type: few.
    faces: RefCell<Vec<Rc<dyn Any>>>,
    streams: Cell<StreamConfig>,
    message_bytes_max: usize,
}

/// The largest number of states of clients' calls that are kept.
const CALL_STATES_MAX: usize = 256;

/// The largest number of responses whose memory is kept, and the most bytes of each: a megabyte in all.
const MEMORIES_MAX: usize = 256;
const MEMORY_BYTES_MAX: usize = 4096;

impl Hub {
    pub(crate) fn new(
        (pool, panics): (BufPool, Rc<Panics>),
        message_bytes_max: u32,
        clock: Clock,
        seed: u64,
        work_flag: WorkFlag,
        waker: EndpointWaker,
    ) -> Rc<Self> {
        let ready = Arc::new(Ready::new(work_flag.clone(), waker));
        Rc::new(Self {
            pool,
            growth: Growth::up_to(message_bytes_max as usize),
            now_ns: Cell::new(clock.now_ns()),
            clock,
            tasks: Tasks::new(ready, work_flag.clone(), panics),
            work_flag,
            calls: Calls::default(),
            orders: Orders::default(),
            timers: RefCell::default(),
            sessions: SessionWatches::default(),
            random: Cell::new(seed),
            lent: Lent::default(),
            is_closed: Cell::new(false),
            call_states: Spares::new(CALL_STATES_MAX),
            memories: Spares::new(MEMORIES_MAX),
            has_woken: Cell::new(false),
            faces: RefCell::default(),
            streams: Cell::default(),
            message_bytes_max: message_bytes_max as usize,
        })
    }

    /// Returns the object of this type that a face keeps with the endpoint, made at first.
    pub(crate) fn face<F: Default + 'static>(&self) -> Rc<F> {
        let mut faces = self.faces.borrow_mut();
        let known = faces.iter().find_map(|face| Rc::clone(face).downcast::<F>().ok());
        known.unwrap_or_else(|| {
            let face = Rc::new(F::default());
            faces.push(Rc::clone(&face) as Rc<dyn Any>);
            face
        })
    }

    pub(crate) fn set_stream_config(&self, config: StreamConfig) {
        self.streams.set(config);
    }

    pub(crate) fn stream_config(&self) -> StreamConfig {
        self.streams.get()
    }

    /// Returns the bytes of the largest message that the endpoint accepts.
    pub(crate) fn message_bytes_max(&self) -> usize {
        self.message_bytes_max
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

    /// Notes that the endpoint has woken a thread, which may want this thread's CPU.
    #[inline(always)]
    pub(crate) fn note_woken(&self) {
        self.has_woken.set(true);
    }

    /// Notes that a call of another thread has ended. A caller of the only outstanding call wants the CPU soon; among many
    /// callers most are awake.
    #[inline(always)]
    pub(crate) fn note_answered(&self, was_only_call: bool) {
        if was_only_call {
            self.note_woken();
        }
    }

    /// Returns true if the endpoint has woken another thread since the last question.
    #[inline(always)]
    pub(crate) fn take_woken(&self) -> bool {
        self.has_woken.replace(false)
    }

    /// Lends tasks the application's state and the endpoint, while they are polled.
    pub(crate) fn lend<E: 'static, R>(
        &self,
        state: &mut Box<dyn Any>,
        endpoint: &mut E,
        poll: impl FnOnce() -> R,
    ) -> R {
        /// Makes the outer hub the current one again, even when a task panics.
        struct Current {
            /// The endpoint whose tasks run before and after this one's: a task may run another endpoint.
            outer: Option<NonNull<Hub>>,
        }

        impl Drop for Current {
            fn drop(&mut self) {
                CURRENT.with(|current| current.set(self.outer));
            }
        }

        self.lent.lend(state, endpoint, || {
            let outer = CURRENT.with(|current| current.replace(Some(NonNull::from(self))));
            let _current = Current { outer };
            poll()
        })
    }

    /// Runs a closure with the hub of the endpoint whose tasks run on this thread now, if any.
    pub(crate) fn with_current<R>(run: impl FnOnce(&Hub) -> R) -> Option<R> {
        let current = CURRENT.with(Cell::get)?;
        // SAFETY: `lend` borrows the hub for as long as it is the current one.
        Some(run(unsafe { current.as_ref() }))
    }

    /// Returns true if the endpoint is lent and not in use.
    #[inline]
    pub(crate) fn has_endpoint(&self) -> bool {
        self.lent.has_endpoint()
    }

    /// Runs a closure with the endpoint, if it is lent and not in use.
    ///
    /// # Safety
    /// Each call of [`lend`](Self::lend) on this hub lends an `E`.
    #[inline(always)]
    pub(crate) unsafe fn try_with_endpoint<E: 'static, R>(
        &self,
        run: impl FnOnce(&mut E) -> R,
    ) -> Option<R> {
        // SAFETY: by the caller's promise.
        unsafe { self.lent.try_with_endpoint(run) }
    }

    /// Runs a closure with the lent state.
    pub(super) fn with_state<R>(&self, run: impl FnOnce(State<'_>) -> R) -> R {
        self.lent.with_state(run)
    }

    /// Ends handling the hub: requests the next time at `at_ns`, or earlier for a timer.
    pub(crate) fn end(&self, at_ns: u64) {
        self.work_flag.raise_at(at_ns.min(self.timers.borrow_mut().next_ns()));
    }

    /// Polls the ready tasks; tasks woken meanwhile wait for the next round.
    pub(crate) fn poll_tasks(&self) -> bool {
        self.tasks.poll_round()
    }

    pub(crate) fn next_start(&self) -> Option<Start> {
        self.calls.next_start()
    }

    pub(crate) fn next_cancel(&self) -> Option<(SessionId, u64)> {
        self.calls.next_cancel()
    }

    pub(crate) fn next_command(&self) -> Option<Command> {
        self.orders.pop()
    }

    /// Ends a call, made or not.
    pub(crate) fn finish(&self, key: u64, outcome: Outcome) {
        self.calls.finish(&self.tasks, Key::from_bits(key), outcome);
    }

    /// Ends a call that was made.
    #[inline(always)]
    pub(crate) fn finish_awaited(&self, key: u64, outcome: Outcome) {
        self.calls.finish_awaited(&self.tasks, Key::from_bits(key), outcome);
    }

    /// Reports a session's state to its handles.
    pub(crate) fn set_session_state(&self, id: SessionId, state: &SessionState) {
        self.sessions.set(id, state);
    }

    /// Reports the medium of a session that opens to its handles.
    pub(crate) fn set_session_medium(&self, id: SessionId, medium: SessionMedium) {
        self.sessions.set_medium(id, medium);
    }

    /// Returns the state of a session for its handles, created for the first handle.
    pub(crate) fn watch(
        &self,
        id: SessionId,
        state: impl FnOnce() -> SessionState,
    ) -> Rc<SessionWatch> {
        self.sessions.watch(id, state)
    }

    /// Closes the hub at the endpoint's end: drops tasks, and fails pending operations.
    pub(crate) fn close(&self) {
        assert!(!self.is_closed(), "an endpoint ends once");
        self.is_closed.set(true);
        self.tasks.abort_all();
        self.faces.take();
        assert_eq!(self.tasks.len(), 0, "no task is spawned at an endpoint that ends");
        self.calls.finish_all(&self.tasks, endpoint_gone);
        while let Some(command) = self.next_command() {
            if let Command::Connect(destination, answer) = command {
                let reason = Reason::new(Status::Unavailable, ENDPOINT_GONE);
                answer.put(Err(destination.failed(&reason)));
            }
        }
    }

    pub(crate) fn object_counts(&self) -> LocalObjectCounts {
        LocalObjectCounts {
            calls: self.calls.len(),
            orders: self.calls.orders() + self.orders.len(),
            sleeping: self.timers.borrow().len(),
            tasks: self.task_count(),
            watched: self.sessions.len(),
        }
    }

    pub(crate) fn task_count(&self) -> usize {
        self.tasks.len()
    }

    pub(crate) fn ready(&self) -> Arc<Ready> {
        Arc::clone(self.tasks.ready())
    }

    /// Wakes a task from its endpoint's own thread.
    #[inline(always)]
    pub(crate) fn wake(&self, task: Key) {
        self.tasks.wake(task);
    }

    // Operations of futures.

    pub(crate) fn now_ns(&self) -> u64 {
        self.now_ns.get()
    }

    #[inline]
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

    /// Returns the deadline inherited by calls made now.
    #[inline]
    pub(crate) fn inherited_ns(&self) -> Option<u64> {
        self.tasks.inherited_ns()
    }

    #[inline]
    pub(crate) fn is_closed(&self) -> bool {
        self.is_closed.get()
    }

    #[inline]
    pub(crate) fn pool(&self) -> &BufPool {
        &self.pool
    }

    /// Returns a buffer for a response, which can grow.
    #[inline(always)]
    pub(crate) fn alloc_response(&self, bytes: Option<usize>) -> Result<MsgBuf, PoolExhausted> {
        let mut response = match bytes {
            // A case of its own: the compiler computes the size class of the constant.
            None => MsgBuf::from_pool(&self.pool, RESPONSE_BYTES)?,
            Some(bytes) => self.alloc(bytes)?,
        };
        response.store_growth(self.growth);
        Ok(response)
    }

    #[inline(never)]
    fn alloc(&self, bytes: usize) -> Result<MsgBuf, PoolExhausted> {
        MsgBuf::from_pool(&self.pool, bytes)
    }

    /// Asks the event loop to handle the hub at that time, if not before.
    pub(crate) fn ask_at(&self, at_ns: u64) {
        self.work_flag.raise_at(at_ns);
    }

    /// Asks the event loop to handle the hub in its next turn.
    #[inline]
    pub(crate) fn ask(&self) {
        self.work_flag.raise();
    }

    pub(crate) fn command(&self, command: Command) {
        self.orders.push(command);
        self.ask();
    }

    /// Adds a task, whose calls inherit `deadline_ns`. None if the endpoint is gone.
    pub(crate) fn spawn(
        &self,
        kind: Closure,
        future: BoxedFuture,
        deadline_ns: Option<u64>,
    ) -> Option<Key> {
        (!self.is_closed()).then(|| self.tasks.insert(kind, future, deadline_ns))
    }

    pub(crate) fn abort(&self, task: Key) {
        self.tasks.abort(task);
    }

    /// Returns the options of a call that a future starts now, and that the event loop makes later.
    #[inline]
    pub(crate) fn begun(&self, options: CallOptions) -> CallOptions {
        options.begun(|| self.clock.now_ns()).no_later_than(self.inherited_ns())
    }

    /// Returns when a client's call ends that a task begins now: `timeout` is for a call without limits.
    #[inline]
    pub(crate) fn end_ns(&self, options: &CallOptions, timeout: Duration, clock_ns: u64) -> u64 {
        let own_ns = options.end_ns(clock_ns, timeout);
        self.inherited_ns().map_or(own_ns, |at_ns| own_ns.min(at_ns))
    }

    /// Returns the state of a client's ended call, for a new call.
    #[inline]
    pub(crate) fn take_call_state(&self) -> Option<IdleState> {
        self.call_states.take()
    }

    /// Keeps the state of a client's call that has ended, if there is room.
    #[inline]
    pub(crate) fn keep_call_state(&self, state: IdleState) {
        self.call_states.keep(state);
    }

    /// Returns empty memory, of a former response if possible.
    #[inline]
    pub(crate) fn take_memory(&self) -> Vec<u8> {
        self.memories.take().unwrap_or_default()
    }

    /// Keeps the memory of a response, if there is room.
    #[inline]
    pub(crate) fn keep_memory(&self, mut memory: Vec<u8>) {
        // One comparison rejects empty and too large memory.
        if memory.capacity().wrapping_sub(1) < MEMORY_BYTES_MAX {
            memory.clear();
            self.memories.keep(memory);
        }
    }

    /// Returns the task being polled, if the waker is the task's.
    #[inline]
    pub(crate) fn task_of(&self, waker: &Waker) -> Option<Key> {
        self.tasks.task_of(waker)
    }

    #[inline]
    pub(crate) fn begin_call(&self, session: SessionId) -> Key {
        self.calls.begin(session)
    }

    /// Has the event loop make a call.
    pub(crate) fn queue_call(&self, start: Start) {
        self.calls.queue(start);
        self.ask();
    }

    pub(super) fn take_outcome(&self, key: Key) -> Option<Outcome> {
        self.calls.take_outcome(key)
    }

    /// Returns the outcome, if there; otherwise registers the waker.
    #[inline(always)]
    pub(super) fn poll_call(&self, key: Key, waker: &Waker) -> Poll<Outcome> {
        self.calls.poll(&self.tasks, key, waker)
    }

    pub(super) fn redirect(&self, key: Key, to: &Rc<Completions>, label: u64) {
        self.calls.redirect(key, to, label);
    }

    /// Drops a call without its outcome: cancels the call if it has not ended.
    pub(super) fn abandon(&self, key: Key) {
        if self.calls.abandon(key) {
            self.ask();
        }
    }

    pub(super) fn set_timer(&self, at_ns: u64, waker: Waker) -> TimerId {
        self.ask_at(at_ns);
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
}

const ENDPOINT_GONE: &str = "the endpoint is gone";

#[cold]
pub(crate) fn endpoint_gone() -> Error {
    Error::not_sent(Status::Unavailable, ENDPOINT_GONE)
}

impl fmt::Debug for Hub {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Hub({} calls, {} tasks)", self.calls.len(), self.tasks.len())
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
        Hub::new(
            (pool, Panics::new(crate::panics::PanicPolicy::Unwind)),
            1 << 20,
            Clock::of(|| 5),
            seed,
            WorkFlag::new(),
            waker,
        )
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
    fn take_memory__is_the_memory_of_a_response_within_the_bounds() {
        let hub = hub(1);
        assert_eq!(hub.take_memory().capacity(), 0, "there is none yet");
        let response = vec![7; 32];
        let address = response.as_ptr();
        hub.keep_memory(response);
        let memory = hub.take_memory();
        assert_eq!((memory.as_ptr(), memory.len()), (address, 0));
        for bytes in [0, MEMORY_BYTES_MAX + 1] {
            hub.keep_memory(Vec::with_capacity(bytes));
            assert_eq!(hub.take_memory().capacity(), 0, "{bytes} bytes");
        }
        (0..MEMORIES_MAX + 5).for_each(|_| hub.keep_memory(vec![0; MEMORY_BYTES_MAX]));
        let kept = (0..).take_while(|_| hub.take_memory().capacity() > 0).count();
        assert_eq!(kept, MEMORIES_MAX);
    }

    /// A future may move on to another task between two polls.
    #[test]
    fn sleep__wakes_the_last_waker() {
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
            assert_eq!(hub.object_counts().sleeping, 1);
            // The clock stands at 5.
            hub.begin(14);
            assert_eq!((woken(), poll(1)), ([0, 0], Poll::Pending));
            hub.begin(15);
            assert_eq!((woken(), poll(1)), ([0, 1], Poll::Ready(())));
            assert_eq!(hub.object_counts().sleeping, 0);
            let mut dropped = Box::pin(Sleep::new(Rc::clone(&hub), 10));
            let waker = Waker::from(Arc::clone(&wakes[0]));
            assert!(dropped.as_mut().poll(&mut TaskContext::from_waker(&waker)).is_pending());
            assert_eq!(hub.object_counts().sleeping, 1);
        }
        assert_eq!(hub.object_counts().sleeping, 0, "one that was dropped");
        hub.begin(1_000);
        assert_eq!(woken(), [0, 1]);
    }
}
