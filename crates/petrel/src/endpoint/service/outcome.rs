//! The ends of attempts and calls, and the notification of the caller.

use std::mem;

use petrel_proto::SessionId;
use petrel_transport::buf::PoolExhausted;

use super::call::{Ending, ServiceCall};
use crate::endpoint::context::continuation::{Continuation, Reply};
use crate::endpoint::context::{Context, Local, NotTaken};
use crate::error::Error;
use crate::local::client_call::response::ServerBytes;
use crate::local::client_call::state::Pending;
use crate::local::client_call::{Response, state};
use crate::msgbuf::MsgBuf;
use crate::values::State;

/// The session of a call without any session.
pub(super) const NO_SESSION: SessionId = SessionId { index: u32::MAX, generation: u32::MAX };

/// A continuation to run, and its inherited deadline.
pub(super) struct EndedCall {
    continuation: Continuation,
    reply: Reply,
    inherited_ns: Option<u64>,
}

/// The end of an attempt, with the attempt's buffers, if any.
pub(super) struct Outcome {
    pub(super) session: SessionId,
    /// Known of a success.
    pub(super) server: Option<ServerBytes>,
    pub(super) outcome: Result<(), Error>,
    pub(super) buffers: Option<(MsgBuf, MsgBuf)>,
}

impl Outcome {
    /// Returns the outcome of a call that ends without an attempt.
    pub(super) fn failed(error: Error) -> Self {
        Self { session: NO_SESSION, server: None, outcome: Err(error), buffers: None }
    }

    /// Returns the outcome of an attempt for which the endpoint has no memory.
    #[cold]
    pub(super) fn no_buffers(local: &mut Local, session: SessionId, error: PoolExhausted) -> Self {
        local.services.count_not_made();
        Self { session, ..Self::failed(error.into()) }
    }

    /// Returns the outcome of an attempt that the core has not taken.
    #[cold]
    pub(super) fn not_taken(local: &mut Local, session: SessionId, rejected: NotTaken) -> Self {
        let NotTaken { error, request, response, .. } = rejected;
        local.services.count_not_made();
        let text = local.sessions.explain(session, &error);
        let outcome = Err(Error::not_sent(error.status(), text));
        Self { session, server: None, outcome, buffers: Some((request, response)) }
    }
}

impl From<Reply> for Outcome {
    fn from(reply: Reply) -> Self {
        let Reply { session, outcome, request, response } = reply;
        Self { session, server: None, outcome, buffers: Some((request, response)) }
    }
}

/// Notifies the caller of a call's end. Without the application's state, a continuation waits for [`run_ended`].
pub(super) fn notify(
    state: Option<State<'_>>,
    cx: &mut Context<'_>,
    call: ServiceCall,
    outcome: Outcome,
) {
    let inherited_ns = call.inherited_ns();
    let Outcome { session, server, outcome, buffers } = outcome;
    match call.into_end(buffers) {
        Ending::Posted(pending, response, memory) => {
            let outcome = outcome.map(|()| {
                let response = response.expect("a success has one");
                Response::new(&response, &server.expect("a success has a server"), memory)
            });
            end_posted(cx.local, pending, outcome);
        }
        Ending::Then(continuation, request, response) => {
            let reply = Reply { session, outcome, request, response };
            match state {
                Some(state) => continuation.run(state, cx, reply),
                None => {
                    let ended = EndedCall { continuation, reply, inherited_ns };
                    cx.local.services.add_ended(ended);
                    cx.local.hub.ask();
                }
            }
        }
    }
}

/// Ends a call for its waiter: a task of the endpoint, or any other.
#[inline]
fn end_posted(local: &Local, pending: Pending, outcome: state::Outcome) {
    let task = pending.task();
    pending.end(outcome);
    match task {
        Some(task) => local.hub.wake(task),
        None => local.hub.note_answered(local.services.calls.len() == 0),
    }
}

/// Runs the continuations left by calls that ended where none could run.
pub(crate) fn run_ended(mut state: State<'_>, cx: &mut Context<'_>) {
    // Continuations may make calls that end at once; the continuations of these run next time.
    for ended in mem::take(cx.local.services.ended_mut()) {
        let EndedCall { continuation, reply, inherited_ns } = ended;
        cx.under_deadline(inherited_ns, |cx| continuation.run(state.reborrow(), cx, reply));
    }
}
