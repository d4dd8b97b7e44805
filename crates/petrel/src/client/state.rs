//! A call between the thread that waits for it and the endpoint that makes it.

use std::fmt;
use std::mem;
use std::task::{Poll, Waker};

use petrel_planted::planted;
use petrel_proto::{Execution, Status};

use super::places::Place;
use crate::error::Error;
use crate::sync::{Arc, AtomicUsize, Mutex, Ordering, lock};

/// The end of a call: the response, or why there is none.
pub(crate) type Outcome = Result<Vec<u8>, Error>;

/// What the endpoint knows a call by, while it has it.
const NO_KEY: usize = usize::MAX;

/// What both sides of a call share.
pub(crate) struct CallState {
    phase: Mutex<Phase>,
    /// Written and read by the endpoint's thread only.
    key: AtomicUsize,
}

enum Phase {
    /// The call is on its way, and holds its places also when nobody wants it any more, until the
    /// endpoint has heard of that: else who drops calls could post without limit.
    Going { places: [Option<Place>; 2], waker: Option<Waker>, is_wanted: bool },
    /// It has ended, and nobody has fetched the outcome.
    Ended(Outcome),
    /// The outcome was fetched, or nobody wants it.
    Done,
}

/// The endpoint's side: it ends the call once. One that is dropped before, with the endpoint or
/// with what was posted to it, ends the call with UNAVAILABLE.
pub(crate) struct Pending {
    state: Option<Arc<CallState>>,
    /// Whether the call may be on its way to the server.
    pub(crate) was_made: bool,
}

impl CallState {
    /// Both sides of a call that holds `places` until it has ended.
    pub(crate) fn new(places: [Option<Place>; 2]) -> (Arc<Self>, Pending) {
        let phase = Mutex::new(Phase::Going { places, waker: None, is_wanted: true });
        let state = Arc::new(Self { phase, key: AtomicUsize::new(NO_KEY) });
        let pending = Pending { state: Some(Arc::clone(&state)), was_made: false };
        (state, pending)
    }

    /// The outcome if it is there, once; else `waker` is used when it is.
    ///
    /// # Panics
    /// When the outcome was taken before.
    pub(crate) fn poll(&self, waker: &Waker) -> Poll<Outcome> {
        let mut phase = lock(&self.phase);
        if let Phase::Going { waker: waits, .. } = &mut *phase {
            match waits {
                Some(waits) => waits.clone_from(waker),
                None => *waits = Some(waker.clone()),
            }
            return Poll::Pending;
        }
        match mem::replace(&mut *phase, Phase::Done) {
            Phase::Ended(outcome) => Poll::Ready(outcome),
            _ => panic!("a call was polled after it had ended"),
        }
    }

    /// Whether the outcome can be fetched.
    pub(crate) fn has_ended(&self) -> bool {
        matches!(*lock(&self.phase), Phase::Ended(_))
    }

    /// Nobody wants the outcome any more; tells whether the call was still on its way.
    pub(crate) fn abandon(&self) -> bool {
        match &mut *lock(&self.phase) {
            Phase::Going { waker, is_wanted, .. } => {
                *is_wanted = false;
                *waker = None;
                true
            }
            ended => {
                *ended = Phase::Done;
                false
            }
        }
    }

    fn is_wanted(&self) -> bool {
        matches!(*lock(&self.phase), Phase::Going { is_wanted: true, .. })
    }

    fn end(&self, outcome: Outcome) {
        let mut phase = lock(&self.phase);
        if let Phase::Going { is_wanted, .. } = *phase {
            let next = if is_wanted { Phase::Ended(outcome) } else { Phase::Done };
            let former = mem::replace(&mut *phase, next);
            drop(phase);
            former.leave();
        }
    }

    /// What the endpoint knows the call by, while it is on its way.
    pub(crate) fn key(&self) -> Option<usize> {
        Some(self.key.load(Ordering::Relaxed)).filter(|key| *key != NO_KEY)
    }
}

impl Phase {
    /// What follows the end of a phase, without the lock: others may wait for the places.
    fn leave(self) {
        if let Phase::Going { places, waker, .. } = self {
            drop(places);
            waker.into_iter().for_each(Waker::wake);
        }
    }
}

impl Pending {
    /// Ends the call.
    pub(crate) fn end(mut self, outcome: Outcome) {
        if let Some(state) = self.state.take() {
            state.key.store(NO_KEY, Ordering::Relaxed);
            state.end(outcome);
        }
    }

    /// Ends the call before anything was sent.
    pub(crate) fn end_unsent(self, status: Status, message: impl Into<String>) {
        self.end(Err(Error::not_sent(status, message)));
    }

    /// Whether somebody still wants the outcome.
    pub(crate) fn is_wanted(&self) -> bool {
        self.state.as_ref().is_some_and(|state| state.is_wanted())
    }

    /// The endpoint has it under this key.
    pub(crate) fn set_key(&mut self, key: usize) {
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
        state.end(Err(Error::of(Status::Unavailable, "the endpoint is gone", execution)));
    }
}

impl fmt::Debug for CallState {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match *lock(&self.phase) {
            Phase::Going { .. } => "Going",
            Phase::Ended(_) => "Ended",
            Phase::Done => "Done",
        })
    }
}
