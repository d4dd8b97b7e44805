//! Cancellation, at both ends: calls cancelled by the caller, and requests whose caller no longer waits.

use petrel_planted::planted;
use petrel_proto::RequestHandle;

use super::Context;
use super::continuation::{CallKey, Named};
use super::watchers::Watcher;
use crate::endpoint::request::Responder;
use crate::endpoint::service::cancel_call;
use crate::panics::{Closure, catch};
use crate::values::State;

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
        self.untyped().watch(responder.handle(), Watcher::Run(watcher));
    }
}

impl Context<'_> {
    /// Adds a watcher of a request: `None` if the request is answered.
    pub(crate) fn watch(&mut self, handle: Option<RequestHandle>, watcher: Watcher) {
        match handle {
            Some(_) if planted("endpoint_cancel_is_not_told") => {}
            Some(handle) if self.local.core.watch(handle) => {
                self.local.watchers.add(handle, watcher);
            }
            _ => {
                self.local.watchers.add_late(watcher);
                self.local.hub.ask();
            }
        }
    }

    /// Handles the end of the caller's wait for a watched request.
    pub(in crate::endpoint) fn run_watcher(&mut self, state: State<'_>, handle: RequestHandle) {
        self.local.remote.cancel(handle);
        if let Some(watcher) = self.local.watchers.take(handle) {
            self.run_caught(state, watcher);
        }
    }

    /// Runs the watchers added after their call had ended.
    pub(in crate::endpoint) fn run_late_watchers(&mut self, mut state: State<'_>) {
        while let Some(watcher) = self.local.watchers.pop_late() {
            self.run_caught(state.reborrow(), watcher);
        }
    }

    /// Runs a watcher. A panic counts as a handler's: a handler registered the watcher, and a client's cancellation runs the watcher.
    fn run_caught(&mut self, state: State<'_>, watcher: Watcher) {
        if let Err(payload) = catch(|| watcher.run(state, self)) {
            self.local.settle_panic(Closure::Handler, payload);
        }
    }
}
