//! Handlers that are futures.

use std::cell::Cell;
use std::fmt;
use std::future::Future;
use std::rc::Rc;
use std::sync::Arc;

use petrel_proto::{SessionId, Status};
use petrel_transport::Transport;

use super::executor::Task;
use super::handle::Handle;
use crate::control::ControlPlane;
use crate::endpoint::{Context, Endpoint, Handled, Peer, Request, Responder};
use crate::error::Error;
use crate::msgbuf::MsgBuf;

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

    /// Returns when the caller stops waiting, in nanoseconds of the endpoint's clock ([`Handle::now_ns`]). The
    /// handler's own calls end no later.
    pub fn deadline_ns(&self) -> Option<u64> {
        self.deadline_ns
    }
}

/// A task's answer that the event loop has not sent yet.
pub(crate) struct Answer {
    responder: Responder,
    outcome: Result<MsgBuf, Error>,
}

impl Answer {
    pub(crate) fn give(self, cx: &mut Context<'_>) {
        match self.outcome {
            Ok(message) => self.responder.reply_buffer(cx, message),
            Err(error) => self.responder.fail(cx, not_ok(error.status), &error.message),
        }
    }
}

impl fmt::Debug for Answer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Answer({:?})", self.responder)
    }
}

/// Replaces the status of a handler that fails with OK.
fn not_ok(status: Status) -> Status {
    if status == Status::Ok { Status::Unknown } else { status }
}

impl<S: 'static, T: Transport, C: ControlPlane<T::Link>> Endpoint<S, T, C> {
    /// Sets a future as the handler of a method: it may make calls, wait for them and for time, while the event loop
    /// continues. The future runs on the endpoint's thread, as a task per request, which costs some allocations.
    ///
    /// When the caller gives up, or the deadline passes, the future is dropped at its current state, which cancels the
    /// awaited calls. Calls of the future inherit the request's deadline. The caller gets the handler's error: `?`
    /// passes the error of a call on.
    ///
    /// ```
    /// # use petrel::endpoint::EndpointConfig;
    /// # use petrel::Nexus;
    /// let mut endpoint = Nexus::builder().start()?.endpoint_with(EndpointConfig::default(), 0)?;
    /// endpoint.on_async(7, |handle, request| async move {
    ///     handle.with(|requests: &mut u64| *requests += 1);
    ///     handle.sleep(std::time::Duration::from_millis(1)).await;
    ///     Ok(request.data().to_ascii_uppercase())
    /// });
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Panics
    /// As [`Endpoint::on`].
    pub fn on_async<F, A>(
        &mut self,
        method: u16,
        mut handler: impl FnMut(Handle<S>, OwnRequest) -> F + 'static,
    ) where
        F: Future<Output = Result<A, Error>> + 'static,
        A: AsRef<[u8]>,
    {
        let handle = self.handle();
        self.on(method, move |_, cx, request| serve(&handle, cx, request, &mut handler));
    }
}

fn serve<S, F, A>(
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
    let (deadline_ns, peer) = (request.deadline_ns(cx), request.shared_peer(cx));
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
    running.set(Some(handle.spawn_within(deadline_ns, async move {
        let outcome = future.await;
        let outcome =
            outcome.and_then(|answer| hub.alloc_message(answer.as_ref()).map_err(Error::from));
        hub.answer(Answer { responder, outcome });
    })));
    handled
}
