//! Cancellation, at both ends: calls cancelled by the caller, and requests whose caller no longer waits.

use std::collections::HashMap;

use petrel_planted::planted;
use petrel_proto::{RequestHandle, SessionId};
use petrel_transport::Transport;

use super::Endpoint;
use super::call::{CallKey, Continuation, Function, Named, OnSession, Reply};
use super::context::{Context, Local};
use super::handler::Responder;
use super::service::cancel_call;
use super::state::State;
use crate::control::ControlPlane;

type Watcher = Box<dyn FnOnce(State<'_>, &mut Context<'_>)>;

/// Closures to run when the caller of a request no longer waits.
#[derive(Default)]
pub(super) struct Watchers {
    by_request: HashMap<RequestHandle, Watcher>,
    /// Watchers added after their call had ended. They run in the next turn.
    late: Vec<Watcher>,
}

impl Watchers {
    /// Removes the watchers of a request that is answered.
    #[inline]
    pub(super) fn forget(&mut self, handle: RequestHandle) {
        if !self.by_request.is_empty() {
            self.by_request.remove(&handle);
        }
    }

    /// Adds a watcher. The watchers of a request run in order of addition.
    fn add(&mut self, handle: RequestHandle, watcher: Watcher) {
        let watcher = match self.by_request.remove(&handle) {
            None => watcher,
            Some(first) => Box::new(|mut state: State<'_>, cx: &mut Context<'_>| {
                first(state.reborrow(), cx);
                watcher(state, cx);
            }),
        };
        self.by_request.insert(handle, watcher);
    }
}

impl<S: 'static> Context<'_, S> {
    /// Cancels a call: it ends with CANCELLED, and the continuation runs in the current or the next turn of the event
    /// loop. The server is notified if it may know of the call. Returns false if the call has ended.
    pub fn cancel(&mut self, key: CallKey) -> bool {
        match key.0 {
            Named::OnSession(key) => {
                self.local.core.cancel_by_event(key.session, |continuation| continuation.is(&key))
            }
            Named::OfClient(call) => cancel_call(self.untyped(), call),
        }
    }

    /// Runs `then` once if the caller of a request stops waiting before the answer: it cancelled the call, or the call
    /// expired, or the session has ended. If so already, `then` runs after the handler.
    ///
    /// It is for handlers with work to stop. The [`Responder`] still has to be used or dropped; its answer is then
    /// discarded.
    pub fn on_cancel(
        &mut self,
        responder: &Responder,
        then: impl FnOnce(&mut S, &mut Context<'_, S>) + 'static,
    ) {
        let watcher = Box::new(move |state: State<'_>, cx: &mut Context<'_>| {
            // SAFETY: registered on an endpoint with this type of state.
            then(unsafe { state.get::<S>() }, cx.typed());
        });
        match responder.handle() {
            Some(_) if planted("endpoint_cancel_is_not_told") => {}
            Some(handle) if self.local.core.watch(handle) => {
                self.local.watchers.add(handle, watcher);
            }
            _ => {
                self.local.watchers.late.push(watcher);
                self.local.hub.ask();
            }
        }
    }
}

impl Context<'_> {
    /// Handles the end of the caller's wait for a watched request.
    pub(super) fn run_watcher(&mut self, state: State<'_>, handle: RequestHandle) {
        self.local.remote.cancel(handle);
        if let Some(watcher) = self.local.watchers.by_request.remove(&handle) {
            watcher(state, self);
        }
    }
}

impl<S: 'static, T: Transport, C: ControlPlane<T::Link>> Endpoint<S, T, C> {
    /// Runs the watchers added after their call had ended.
    pub(super) fn run_late_watchers(&mut self) {
        while let Some(watcher) = self.local.watchers.late.pop() {
            watcher(self.handlers.state(), &mut Context::new(&mut self.local));
        }
    }
}

impl Local {
    /// Cancels the call with this function and number as its continuation, and returns the end of the call instead of
    /// running the continuation. `None` if the call has ended.
    pub(crate) fn cancel_fn(
        &mut self,
        session: SessionId,
        function: Function,
        tag: u64,
    ) -> Option<Reply> {
        let key = OnSession { session, function, tag };
        let ended = self.core.cancel(session, |continuation: &Continuation| continuation.is(&key));
        ended.map(Reply::from)
    }
}

impl Responder {
    /// Returns true if the caller no longer waits: it cancelled the call, or the call expired, or the session has
    /// ended. The next turn of the event loop may learn of an end.
    pub fn is_cancelled<S>(&self, cx: &Context<'_, S>) -> bool {
        self.handle().is_none_or(|handle| !cx.local.core.is_awaited(handle))
    }
}
