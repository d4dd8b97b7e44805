//! The states of sessions, as the handles of futures see them.

use std::cell::{Cell, RefCell};
use std::collections::HashMap;
use std::rc::{Rc, Weak};
use std::task::{Context, Poll, Waker};

use petrel_proto::SessionId;

use crate::values::SessionState;

/// The medium of a session's frames.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct SessionMedium {
    pub(crate) name: &'static str,
    /// Whether the medium takes the place of UDP, which the endpoint prefers.
    pub(crate) is_fallback: bool,
}

/// The state of a session, shared by all its handles.
#[derive(Debug)]
pub(crate) struct SessionWatch {
    id: SessionId,
    medium: Cell<SessionMedium>,
    /// Whether the session is open and sends calls.
    is_open: Cell<bool>,
    state: RefCell<SessionState>,
    wakers: RefCell<Vec<Waker>>,
}

impl SessionWatch {
    fn new(id: SessionId, state: SessionState) -> Self {
        let is_open = Cell::new(state == SessionState::Open);
        let medium = Cell::default();
        Self { id, medium, is_open, state: RefCell::new(state), wakers: RefCell::default() }
    }

    pub(super) fn medium(&self) -> SessionMedium {
        self.medium.get()
    }

    #[inline]
    pub(super) fn id(&self) -> SessionId {
        self.id
    }

    /// Returns true if the session is open and sends calls.
    #[inline]
    pub(super) fn is_open(&self) -> bool {
        self.is_open.get()
    }

    pub(super) fn state(&self) -> SessionState {
        self.state.borrow().clone()
    }

    /// Records a state, and wakes the futures that wait for one.
    fn set(&self, state: SessionState) {
        let before = self.state.replace(state);
        assert!(!matches!(before, SessionState::Ended(_)), "an ended session has no other state");
        self.is_open.set(*self.state.borrow() == SessionState::Open);
        let wakers = std::mem::take(&mut *self.wakers.borrow_mut());
        wakers.into_iter().for_each(Waker::wake);
    }

    /// Returns the state once `is_wanted` is true for it.
    pub(super) fn poll_for(
        &self,
        cx: &Context<'_>,
        is_wanted: impl Fn(&SessionState) -> bool,
    ) -> Poll<SessionState> {
        let state = self.state.borrow();
        if is_wanted(&state) {
            return Poll::Ready(state.clone());
        }
        // A caller that waits with a time limit again and again is always the same task.
        let mut wakers = self.wakers.borrow_mut();
        if !wakers.iter().any(|waker| waker.will_wake(cx.waker())) {
            wakers.push(cx.waker().clone());
        }
        Poll::Pending
    }
}

/// The sessions with a handle.
#[derive(Debug, Default)]
pub(super) struct SessionWatches {
    by_id: RefCell<HashMap<SessionId, Weak<SessionWatch>>>,
}

impl SessionWatches {
    /// Returns the state of a session for its handles, created for the first handle.
    pub(super) fn watch(
        &self,
        id: SessionId,
        state: impl FnOnce() -> SessionState,
    ) -> Rc<SessionWatch> {
        let mut all = self.by_id.borrow_mut();
        if let Some(watch) = all.get(&id).and_then(Weak::upgrade) {
            return watch;
        }
        let watch = Rc::new(SessionWatch::new(id, state()));
        all.insert(id, Rc::downgrade(&watch));
        watch
    }

    /// Reports the medium of a session that opens.
    pub(super) fn set_medium(&self, id: SessionId, medium: SessionMedium) {
        if let Some(watch) = self.by_id.borrow().get(&id).and_then(Weak::upgrade) {
            watch.medium.set(medium);
        }
    }

    /// Reports a session's state to its handles. The last state is an end.
    pub(super) fn set(&self, id: SessionId, state: &SessionState) {
        let watch = self.by_id.borrow().get(&id).and_then(Weak::upgrade);
        if let Some(watch) = watch {
            watch.set(state.clone());
        }
        if matches!(state, SessionState::Ended(_)) {
            self.by_id.borrow_mut().remove(&id);
        }
    }

    /// Returns the number of sessions with a handle, dropped handles included.
    pub(super) fn len(&self) -> usize {
        self.by_id.borrow().len()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const ID: SessionId = SessionId { index: 1, generation: 2 };

    #[test]
    fn watch__is_one_for_all_handles_until_the_end() {
        let watches = SessionWatches::default();
        let first = watches.watch(ID, || SessionState::Opening);
        watches.set(ID, &SessionState::Open);
        let second = watches.watch(ID, || SessionState::Opening);
        assert!(Rc::ptr_eq(&first, &second) && second.is_open());
        watches.set(ID, &SessionState::Ended(None));
        assert_eq!((first.state(), watches.len()), (SessionState::Ended(None), 0));
    }

    panics! {
        set__after_the_end: "an ended session has no other state" => {
            let watch = SessionWatch::new(ID, SessionState::Ended(None));
            watch.set(SessionState::Open);
        };
    }
}
