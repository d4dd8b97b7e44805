//! The calls of futures, as the event loop makes and ends them.

use petrel_proto::{PendingCall, SessionId};

use super::context::continuation::{Continuation, Numbered, NumberedEnd, Reply};
use super::context::{CallKind, Context, Local, NotTaken};
use crate::error::Error;
use crate::local::Start;
use crate::values::State;

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
        let kind = match deadline_ns {
            Some(end_ns) if !ordered => CallKind::Until { end_ns, clock_ns: None },
            None if !ordered && !is_reference => CallKind::InBurst,
            _ => CallKind::Limited { timeout_ns: None, deadline_ns, ordered },
        };
        if let Err(rejected) = Context::<()>::new(self).start(session, call, kind) {
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
