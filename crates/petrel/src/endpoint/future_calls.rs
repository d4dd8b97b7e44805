//! The calls of futures, as the event loop makes and ends them.

use petrel_proto::{PendingCall, SessionId};

use super::context::continuation::{Continuation, Numbered, NumberedEnd, Reply};
use super::context::{Context, Local, NotTaken};
use crate::error::Error;
use crate::local::Start;
use crate::values::{CallOptions, State};

impl Local {
    /// Cancels a call of a future, which wants no outcome.
    pub(super) fn cancel_future_call(&mut self, session: SessionId, key: u64) {
        let _ended = self.cancel_numbered(session, Numbered::Future, key);
    }

    /// Makes a call of a future.
    #[inline(always)]
    pub(crate) fn make_call(&mut self, start: Start) {
        let Start { key, session, method, request, response, deadline_ns, ordered } = start;
        let tag = Continuation::numbered::<FutureEnd>(key);
        let is_reference = request.is_reference();
        let call = PendingCall { method, tag, request, response };
        let mut cx = Context::<()>::new(self);
        let started = match deadline_ns {
            _ if ordered => {
                cx.start_in_order(session, call, CallOptions { deadline_ns, ..CallOptions::new() })
            }
            None if !is_reference => cx.start_in_burst(session, call),
            None => cx.start_with(session, call, None, None),
            Some(at_ns) => cx.start_until(session, call, at_ns, None),
        };
        if let Err(rejected) = started {
            self.refuse_call(key, session, rejected);
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
struct FutureEnd;

impl NumberedEnd for FutureEnd {
    const KIND: Numbered = Numbered::Future;

    #[inline(always)]
    fn end(_state: State<'_>, cx: &mut Context<'_>, reply: Reply, key: u64) {
        cx.local.hub.finish_awaited(key, reply.into_response());
    }
}
