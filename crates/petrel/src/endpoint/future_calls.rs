//! The calls of futures, as the event loop makes and ends them.

use petrel_proto::{PendingCall, SessionId};

use super::context::continuation::{Continuation, Reply};
use super::context::{Context, Local, NotTaken};
use super::state::State;
use crate::error::Error;
use crate::local::Start;

impl Local {
    /// Cancels a call of a future, which wants no outcome.
    pub(super) fn cancel_future_call(&mut self, session: SessionId, key: u64) {
        let _ended = self.cancel_fn(session, complete, key);
    }

    /// Makes a call of a future.
    #[inline(always)]
    pub(crate) fn make_call(&mut self, start: Start) {
        let Start { key, session, method, request, response, deadline_ns } = start;
        let is_plain = deadline_ns.is_none() && !request.is_reference();
        let tag = Continuation::function(complete, key);
        let call = PendingCall { method, tag, request, response };
        let mut cx = Context::<()>::new(self);
        let started = match is_plain {
            true => cx.start(session, call),
            false => cx.start_with(session, call, None, deadline_ns),
        };
        match started {
            Ok(()) => {}
            Err(rejected) => self.refuse_call(key, session, rejected),
        }
    }

    #[cold]
    fn refuse_call(&mut self, key: u64, session: SessionId, rejected: NotTaken) {
        let error = rejected.error;
        let text = self.sessions.explain(session, &error);
        self.hub.finish(key, Err(Error::not_sent(error.status(), text)));
    }
}

/// The continuation of all calls that are futures.
fn complete(_state: State<'_>, cx: &mut Context<'_>, reply: Reply, key: u64) {
    cx.local.hub.finish_awaited(key, reply.into_response());
}
