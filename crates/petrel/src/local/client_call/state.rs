//! The state of a call shared by the waiting thread and the endpoint.

use std::cell::UnsafeCell;
use std::fmt;
use std::mem;
use std::sync::atomic::fence;
use std::task::{Poll, Waker};

use petrel_planted::planted;
use petrel_proto::{Execution, Status};

use super::places::Place;
use super::response::Response;
use crate::error::Error;
use crate::local::Key;
use crate::sync::{Arc, AtomicU64, AtomicUsize, Mutex, Ordering, lock};

/// The outcome of a call: the response, or an error.
pub(crate) type Outcome = Result<Response, Error>;

/// The key of a call that the endpoint does not have.
const NO_KEY: usize = usize::MAX;

/// Stands for the task of a call that no task of the endpoint awaits.
const NO_TASK: u64 = u64::MAX;

/// The outcome was stored.
const ENDED: usize = 1;
const FETCHED: usize = 2;
/// The outcome is not wanted.
const ABANDONED: usize = 4;
const HAS_WAKER: usize = 8;

/// The state shared by both sides of a call.
///
/// The outcome crosses without the lock: its only writer sets [`ENDED`] afterwards, and its only reader sets
/// [`FETCHED`] later. The lock is for wakers: a call that a task of the endpoint awaits takes no lock.
pub(crate) struct CallState {
    /// [`ENDED`], [`FETCHED`], [`ABANDONED`], [`HAS_WAKER`].
    signals: AtomicUsize,
    outcome: UnsafeCell<Option<Outcome>>,
    waker: Mutex<Option<Waker>>,
    /// Written and read by the endpoint's thread only.
    key: AtomicUsize,
    /// The task of the endpoint that awaits the call. Written and read by the endpoint's thread only, so that its own
    /// tasks need neither the lock nor a waker.
    task: AtomicU64,
}

// SAFETY: the outcome, which may be sent to another thread, is written by the one `Pending` before `ENDED` is set, and
// taken once after `ENDED` was seen, by the setter of `FETCHED`. The other fields are `Sync`.
unsafe impl Sync for CallState where Outcome: Send {}

/// A state for another call: new, or of an ended call to which neither side refers any more.
pub(crate) struct IdleState(Arc<CallState>);

/// The endpoint's side, which ends the call once. Dropping it earlier, with the endpoint or its inbox, ends the call
/// with UNAVAILABLE.
pub(crate) struct Pending {
    state: Option<Arc<CallState>>,
    /// A dropped call keeps its place until the endpoint has seen the cancellation: otherwise a caller that drops calls
    /// could post without limit.
    place: Option<Place>,
    /// Whether the call may have been sent to the server.
    pub(crate) was_made: bool,
}

impl IdleState {
    /// Creates both sides of a call that holds a place until the end.
    #[inline]
    pub(crate) fn begin(self, place: Option<Place>) -> (Arc<CallState>, Pending) {
        let Self(state) = self;
        let pending = Pending { state: Some(Arc::clone(&state)), place, was_made: false };
        (state, pending)
    }
}

impl CallState {
    /// Creates both sides of a call that holds a place until the end.
    pub(crate) fn new(place: Option<Place>) -> (Arc<Self>, Pending) {
        Self::idle().begin(place)
    }

    #[inline(never)]
    pub(crate) fn idle() -> IdleState {
        let (signals, key) = (AtomicUsize::new(0), AtomicUsize::new(NO_KEY));
        let (outcome, waker) = (UnsafeCell::new(None), Mutex::new(None));
        let task = AtomicU64::new(NO_TASK);
        IdleState(Arc::new(Self { signals, outcome, waker, key, task }))
    }

    /// Returns the state of a call whose outcome was fetched, for another call: if a task of the endpoint awaited it, and
    /// nothing else refers to it.
    #[inline]
    pub(crate) fn recycled(state: Arc<Self>) -> Option<IdleState> {
        // No weak reference exists, so that a single reference cannot become two meanwhile.
        if state.task().is_none() || Arc::strong_count(&state) != 1 {
            return None;
        }
        // The last uses by references that were dropped come before the reuse.
        fence(Ordering::Acquire);
        let signals = state.signals.load(Ordering::Relaxed);
        if signals != ENDED | FETCHED {
            assert!(signals & FETCHED != 0, "a state is used again after its outcome was fetched");
            // A waker was registered: the call was moved between tasks.
            return None;
        }
        state.signals.store(0, Ordering::Relaxed);
        state.task.store(NO_TASK, Ordering::Relaxed);
        Some(IdleState(state))
    }

    /// Has the end of the call wake a task of the endpoint. On the endpoint's thread.
    #[inline]
    pub(crate) fn set_task(&self, task: Key) {
        self.task.store(task.to_bits(), Ordering::Relaxed);
    }

    #[inline]
    fn task(&self) -> Option<Key> {
        let task = self.task.load(Ordering::Relaxed);
        (task != NO_TASK).then(|| Key::from_bits(task))
    }

    /// Returns the outcome, once; before the end, registers `waker`.
    ///
    /// # Safety
    /// Only the call's future polls or abandons the call, so no second thread does meanwhile.
    ///
    /// # Panics
    /// When the outcome was taken before.
    #[inline(always)]
    pub(crate) unsafe fn poll(&self, waker: &Waker) -> Poll<Outcome> {
        if self.signals.load(Ordering::Acquire) & ENDED != 0 || self.register(waker) {
            // SAFETY: the call has ended, and the rest is the caller's promise.
            return Poll::Ready(unsafe { self.fetch() });
        }
        Poll::Pending
    }

    /// Takes the outcome of a call that has ended.
    ///
    /// # Safety
    /// As for [`poll`](Self::poll), and [`ENDED`] was seen.
    #[inline(always)]
    unsafe fn fetch(&self) -> Outcome {
        let before = self.signals.load(Ordering::Relaxed);
        let is_there = before & (ENDED | FETCHED) == ENDED;
        assert!(is_there, "a call was polled after it had ended");
        // After `ENDED` only the future writes the signals: no locked instruction is needed.
        self.signals.store(before | FETCHED, Ordering::Relaxed);
        // SAFETY: the endpoint's side has written before it set `ENDED`, and writes no more. One thread fetches.
        let outcome = unsafe { (*self.outcome.get()).take() };
        outcome.expect("a call that has ended has an outcome")
    }

    /// Registers the waker of a call. Returns true if the call has ended meanwhile.
    #[inline(never)]
    fn register(&self, waker: &Waker) -> bool {
        let mut registered = lock(&self.waker);
        let is_same = registered.as_ref().is_some_and(|waits| waits.will_wake(waker));
        let former = if is_same { None } else { registered.replace(waker.clone()) };
        // The destructor of a waker is another's code, and runs without the lock.
        drop(registered);
        drop(former);
        self.signals.fetch_or(HAS_WAKER, Ordering::AcqRel) & ENDED != 0
    }

    #[cold]
    fn take_waker(&self) -> Option<Waker> {
        lock(&self.waker).take()
    }

    /// Returns true if the outcome can be fetched.
    pub(crate) fn has_ended(&self) -> bool {
        self.signals.load(Ordering::Acquire) & (ENDED | FETCHED | ABANDONED) == ENDED
    }

    /// Gives up the outcome. Returns true if the call was still outstanding.
    pub(crate) fn abandon(&self) -> bool {
        let before = self.signals.fetch_or(ABANDONED, Ordering::AcqRel);
        if before & HAS_WAKER != 0 {
            // Dropped without the lock.
            let _former = self.take_waker();
        }
        before & ENDED == 0
    }

    fn is_wanted(&self) -> bool {
        self.signals.load(Ordering::Relaxed) & ABANDONED == 0
    }

    /// Ends the call. The place is freed before the waiter is woken, and both without the lock: others may wait for
    /// the place.
    ///
    /// # Safety
    /// Once for a call: by the [`Pending`], the only handle of the state.
    #[inline(always)]
    unsafe fn end(&self, outcome: Outcome, place: Option<Place>) {
        // SAFETY: the only writer, by the caller's promise, before the bit is set for which the reader looks. A former
        // call's outcome was fetched before the state was used again.
        let former = unsafe { (*self.outcome.get()).replace(outcome) };
        // No instruction is spent on dropping nothing.
        debug_assert!(former.is_none(), "a call ends once");
        mem::forget(former);
        let before = self.signals.fetch_or(ENDED, Ordering::AcqRel);
        if let Some(place) = place {
            place.free();
        }
        if before & HAS_WAKER != 0
            && let Some(waker) = self.take_waker()
        {
            waker.wake();
        }
    }

    /// Returns the endpoint's key of an outstanding call.
    pub(crate) fn key(&self) -> Option<usize> {
        Some(self.key.load(Ordering::Relaxed)).filter(|key| *key != NO_KEY)
    }
}

impl Pending {
    pub(crate) fn end(mut self, outcome: Outcome) {
        self.end_now(outcome);
    }

    /// Ends the call without a move of this side, which has nothing left to do afterwards.
    #[inline(always)]
    pub(crate) fn end_now(&mut self, outcome: Outcome) {
        if let Some(state) = self.state.take() {
            state.key.store(NO_KEY, Ordering::Relaxed);
            // SAFETY: this side has given its state away, and no second side exists.
            unsafe { state.end(outcome, self.place.take()) };
        }
    }

    /// Returns the task of the endpoint that awaits the call, to be woken after the end.
    #[inline]
    pub(crate) fn task(&self) -> Option<Key> {
        self.state.as_ref()?.task()
    }

    /// Ends the call before anything was sent.
    pub(crate) fn end_unsent(self, status: Status, message: impl Into<String>) {
        self.end(Err(Error::not_sent(status, message)));
    }

    pub(crate) fn is_wanted(&self) -> bool {
        self.state.as_ref().is_some_and(|state| state.is_wanted())
    }

    /// Records the endpoint's key of the call.
    pub(crate) fn set_key(&self, key: usize) {
        if let Some(state) = &self.state {
            state.key.store(key, Ordering::Relaxed);
        }
    }
}

impl Drop for Pending {
    fn drop(&mut self) {
        let Some(state) = self.state.take() else { return };
        if planted("client_call_outlives_endpoint") {
            return;
        }
        let execution = match self.was_made {
            true => Execution::MayHaveExecuted,
            false => Execution::NotSent,
        };
        let gone = Error::of(Status::Unavailable, "the endpoint is gone", execution);
        // SAFETY: this side has given its state away, and no second side exists.
        unsafe { state.end(Err(gone), self.place.take()) };
    }
}

impl fmt::Debug for CallState {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self.signals.load(Ordering::Relaxed) & (ENDED | FETCHED | ABANDONED) {
            0 => "Going",
            ENDED => "Ended",
            _ => "Done",
        })
    }
}

#[cfg(test)]
mod tests {
    use std::task::Wake;

    use super::super::places::Places;
    use super::*;
    use crate::sync::AtomicBool;

    /// Takes a place when woken, like a thread that makes the next call at once.
    struct Looks {
        places: Arc<Places>,
        state: Option<Arc<CallState>>,
        found: AtomicBool,
    }

    impl Wake for Looks {
        fn wake(self: std::sync::Arc<Self>) {
            self.found.store(self.places.try_take().is_some(), Ordering::SeqCst);
            if let Some(state) = &self.state {
                assert!(state.waker.try_lock().is_ok(), "a waker is called without the lock");
            }
        }
    }

    fn poll(state: &CallState, waker: &Waker) -> Poll<Outcome> {
        // SAFETY: a test polls on one thread.
        unsafe { state.poll(waker) }
    }

    fn answer(message: Vec<u8>) -> Outcome {
        let server = std::net::SocketAddr::from(([127, 0, 0, 1], 1));
        Ok(Response::new(&message, &server.into(), Vec::new()))
    }

    fn going() -> (Arc<Places>, Arc<CallState>, Pending) {
        let places = Places::new(1);
        let (state, pending) = CallState::new(places.try_take());
        assert_eq!(places.free(), 0);
        (places, state, pending)
    }

    #[test]
    fn end__frees_the_places_before_it_wakes() {
        let (places, state, pending) = going();
        let (call, found) = (Some(Arc::clone(&state)), AtomicBool::new(false));
        let looks = std::sync::Arc::new(Looks { places, state: call, found });
        assert!(poll(&state, &Waker::from(std::sync::Arc::clone(&looks))).is_pending());
        pending.end(answer(vec![1]));
        assert!(looks.found.load(Ordering::SeqCst));
        assert!(matches!(poll(&state, Waker::noop()), Poll::Ready(Ok(answer)) if answer == [1]));
    }

    #[test]
    fn abandon__of_a_call_that_has_ended_says_that_there_is_nothing_to_cancel() {
        let (places, state, pending) = going();
        pending.end(answer(vec![1]));
        assert!(state.has_ended());
        assert!(!state.abandon() && !state.has_ended());
        let (_, fetched, pending) = going();
        pending.end(answer(vec![1]));
        assert!(poll(&fetched, Waker::noop()).is_ready() && !fetched.has_ended());
        assert!(!fetched.abandon());
        assert_eq!(places.free(), 1);
    }

    #[test]
    fn abandon__of_a_call_under_way_keeps_its_place_until_the_endpoint_ends_it() {
        let (places, state, pending) = going();
        assert!(pending.is_wanted());
        let found = AtomicBool::new(false);
        let looks = std::sync::Arc::new(Looks { places: Places::new(1), state: None, found });
        assert!(poll(&state, &Waker::from(std::sync::Arc::clone(&looks))).is_pending());
        assert!(state.abandon());
        assert!(!pending.is_wanted());
        assert_eq!(places.free(), 0);
        pending.end(answer(vec![1]));
        assert!(!state.has_ended(), "nobody wants the outcome");
        assert!(!looks.found.load(Ordering::SeqCst), "nor is anybody woken");
        assert_eq!(places.free(), 1);
    }

    /// Looks whether the lock of a call is free when its waker is dropped.
    struct Dropped {
        state: Arc<CallState>,
        found: std::sync::Arc<AtomicBool>,
    }

    impl Wake for Dropped {
        fn wake(self: std::sync::Arc<Self>) {}
    }

    impl Drop for Dropped {
        fn drop(&mut self) {
            self.found.store(self.state.waker.try_lock().is_ok(), Ordering::SeqCst);
        }
    }

    #[test]
    fn poll_and_abandon__drop_a_former_waker_without_the_lock() {
        let (_, state, _pending) = going();
        let found = std::sync::Arc::new(AtomicBool::new(false));
        let replaced = |state: &Arc<CallState>| {
            let (state, found) = (Arc::clone(state), std::sync::Arc::clone(&found));
            Waker::from(std::sync::Arc::new(Dropped { state, found }))
        };
        assert!(poll(&state, &replaced(&state)).is_pending());
        assert!(poll(&state, Waker::noop()).is_pending());
        assert!(found.swap(false, Ordering::SeqCst), "another waker took its place");
        assert!(poll(&state, &replaced(&state)).is_pending());
        assert!(state.abandon());
        assert!(found.load(Ordering::SeqCst), "the outcome is not wanted");
    }

    #[test]
    fn key__is_there_while_the_endpoint_has_the_call() {
        let (_, state, pending) = going();
        assert_eq!(state.key(), None);
        pending.set_key(7);
        assert_eq!(state.key(), Some(7));
        pending.end(answer(Vec::new()));
        assert_eq!(state.key(), None);
    }

    #[test]
    fn end_unsent__says_that_nothing_was_sent() {
        let (places, state, pending) = going();
        pending.end_unsent(Status::ResourceExhausted, "full");
        let Poll::Ready(Err(failure)) = poll(&state, Waker::noop()) else { panic!("no end") };
        let why = (failure.status, failure.execution);
        assert_eq!(why, (Status::ResourceExhausted, Execution::NotSent));
        assert_eq!((&failure.message[..], places.free()), ("full", 1));
    }

    #[test]
    fn pending__that_is_dropped_says_whether_the_call_was_made() {
        for (was_made, execution) in
            [(false, Execution::NotSent), (true, Execution::MayHaveExecuted)]
        {
            let (places, state, mut pending) = going();
            assert!(!pending.was_made);
            pending.was_made |= was_made;
            drop(pending);
            let Poll::Ready(Err(failure)) = poll(&state, Waker::noop()) else { panic!("no end") };
            assert_eq!((failure.status, failure.execution), (Status::Unavailable, execution));
            assert_eq!(places.free(), 1);
        }
    }

    #[test]
    fn recycled__is_the_state_of_a_fetched_call_that_a_task_awaited() {
        let (places, state, pending) = going();
        assert_eq!(pending.task(), None);
        state.set_task(Key::from_bits(7));
        assert_eq!(pending.task(), Some(Key::from_bits(7)));
        assert!(CallState::recycled(Arc::clone(&state)).is_none(), "the endpoint has it");
        pending.end(answer(vec![1]));
        assert!(poll(&state, Waker::noop()).is_ready());
        let state = CallState::recycled(state).expect("nothing else refers to it");
        let (state, pending) = state.begin(places.try_take());
        assert!(pending.is_wanted() && pending.task().is_none() && !state.has_ended());
        pending.end(answer(vec![2]));
        assert!(matches!(poll(&state, Waker::noop()), Poll::Ready(Ok(answer)) if answer == [2]));
        assert!(CallState::recycled(state).is_none(), "no task of the endpoint awaited it");
    }
}
