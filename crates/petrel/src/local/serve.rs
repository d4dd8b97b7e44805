//! Handlers that are futures.

use std::cell::Cell;
use std::future::Future;
use std::rc::Rc;
use std::sync::Arc;

use petrel_proto::SessionId;

use super::handle::Handle;
use super::task::Task;
use crate::endpoint::{Context, Handled, Peer, Request};
use crate::error::Error;
use crate::msgbuf::MsgBuf;
use crate::panics::Closure;
use crate::time::Time;

/// A request owned by an async handler.
#[derive(Debug)]
pub struct OwnRequest {
    message: MsgBuf,
    method: u16,
    session: SessionId,
    deadline_ns: Option<u64>,
    peer: Option<Arc<Peer>>,
}

impl OwnRequest {
    /// Returns the message.
    pub fn data(&self) -> &[u8] {
        &self.message
    }

    /// Returns the message's buffer, to send it on without a copy.
    pub fn into_message(self) -> MsgBuf {
        self.message
    }

    /// Returns the called method.
    pub fn method(&self) -> u16 {
        self.method
    }

    /// Returns the session of the request.
    pub fn session(&self) -> SessionId {
        self.session
    }

    /// Returns the caller's identity. `None` if the session had ended before the handler ran.
    pub fn peer(&self) -> Option<&Peer> {
        self.peer.as_deref()
    }

    /// Returns when the caller stops waiting, on the clock of [`Handle::now`]. The
    /// handler's own calls end no later.
    pub fn deadline(&self) -> Option<Time> {
        self.deadline_ns.map(Time::from_ns)
    }
}

/// Runs the handler of a request as a task.
pub(crate) fn serve<S, F, A>(
    handle: &Handle<S>,
    cx: &mut Context<'_, S>,
    request: Request<'_>,
    handler: &mut impl FnMut(Handle<S>, OwnRequest) -> F,
) -> Handled
where
    S: 'static,
    F: Future<Output = Result<A, Error>> + 'static,
    A: AsRef<[u8]>,
{
    let (method, session) = (request.method(), request.session());
    let (deadline_ns, peer) = (request.deadline(cx).map(Time::as_ns), request.shared_peer(cx));
    let (kept, handled) = request.defer_message(cx);
    let Some((responder, message)) = kept else { return handled };
    let running = Rc::new(Cell::new(None::<Task<()>>));
    let abort = Rc::clone(&running);
    cx.on_cancel(&responder, move |_, _| {
        if let Some(task) = abort.take() {
            task.abort();
        }
    });
    let future =
        handler(handle.clone(), OwnRequest { message, method, session, deadline_ns, peer });
    let hub = handle.hub().clone();
    // Dropping it with the responder inside answers with INTERNAL, for which no caller waits then.
    running.set(Some(handle.spawn_within(Closure::Handler, deadline_ns, async move {
        let outcome = future.await;
        let outcome = outcome.and_then(|answer| Ok(MsgBuf::holding(hub.pool(), answer.as_ref())?));
        responder.answer_later(outcome);
    })));
    handled
}
