//! Cancellation, at both ends: calls that their caller gives up, and requests for whose answer nobody
//! waits any more.

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

/// What is to run when nobody waits any more for the answer to a request.
#[derive(Default)]
pub(super) struct Watchers {
    by_request: HashMap<RequestHandle, Watcher>,
    /// Watchers that were added after their call had ended. They run in the next turn.
    late: Vec<Watcher>,
}

impl Watchers {
    /// The request was answered, or is about to be.
    #[inline]
    pub(super) fn forget(&mut self, handle: RequestHandle) {
        if !self.by_request.is_empty() {
            self.by_request.remove(&handle);
        }
    }

    /// Those of one request run in the order in which they came.
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
    /// Cancels a call: it ends with CANCELLED, its continuation runs in this or the next turn of the
    /// event loop, and the server is told if it may know of it. False if the call has ended.
    pub fn cancel(&mut self, key: CallKey) -> bool {
        match key.0 {
            Named::OnSession(key) => {
                self.local.core.cancel_by_event(key.session, |continuation| continuation.is(&key))
            }
            Named::OfClient(call) => cancel_call(self.untyped(), call),
        }
    }

    /// Has `then` run once if nobody waits any more for the answer to a request before it is given: the caller
    /// cancelled the call, or it expired, or the session has ended. If that is so already, it runs after the handler.
    ///
    /// It is for handlers with something to stop. The [`Responder`] still is to be used, or dropped; what it
    /// answers then is discarded.
    pub fn on_cancel(
        &mut self,
        responder: &Responder,
        then: impl FnOnce(&mut S, &mut Context<'_, S>) + 'static,
    ) {
        let watcher = Box::new(move |state: State<'_>, cx: &mut Context<'_>| {
            // SAFETY: asked for by an endpoint with this type of state.
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
    /// Nobody waits any more for the answer to a request that was watched.
    pub(super) fn run_watcher(&mut self, state: State<'_>, handle: RequestHandle) {
        self.local.remote.cancel(handle);
        if let Some(watcher) = self.local.watchers.by_request.remove(&handle) {
            watcher(state, self);
        }
    }
}

impl<S: 'static, T: Transport, C: ControlPlane<T::Link>> Endpoint<S, T, C> {
    /// Runs the watchers that were added after their call had ended.
    pub(super) fn run_late_watchers(&mut self) {
        while let Some(watcher) = self.local.watchers.late.pop() {
            watcher(self.handlers.state(), &mut Context::new(&mut self.local));
        }
    }
}

impl Local {
    /// Cancels the call with this function and number for a continuation, and gives its end in place of
    /// running that. `None` if it has ended.
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
    /// Whether nobody waits for the answer any more: the caller cancelled the call, or it expired, or the
    /// session has ended. The next turn of the event loop may find out more.
    pub fn is_cancelled<S>(&self, cx: &Context<'_, S>) -> bool {
        self.handle().is_none_or(|handle| !cx.local.core.is_waited_for(handle))
    }
}
