//! Calls from servers back to the clients that call them.

use std::fmt;
use std::sync::mpsc;

use petrel_proto::{SessionId, Status};

use super::Client;
use crate::endpoint::{Callbacks, Context, Local, Request, runs_loop};
use crate::error::Error;
use crate::inbox_message::{InboxMessage, MakeCallbacks, RunTask, ServiceWay};
use crate::local::Handle;
use crate::panics::Closure;
use crate::sync::Arc;
use crate::task::OwnRequest;
use crate::values::client::{ClientConfig, Target};
use crate::workers::WorkerRequest;

/// The function that sets the callbacks of a client, once for each of the clients that a builder makes.
#[derive(Clone)]
pub(super) struct SetCallbacks(Arc<dyn Fn(&mut Callbacks) + Send + Sync>);

impl SetCallbacks {
    pub(super) fn new(set: impl Fn(&mut Callbacks) + Send + Sync + 'static) -> Self {
        Self(Arc::new(set))
    }

    /// Returns a function that makes the callbacks on the endpoint's thread.
    pub(super) fn into_make(self) -> MakeCallbacks {
        Box::new(move |handle| {
            let mut callbacks = Callbacks::new(handle.clone());
            (self.0)(&mut callbacks);
            Box::new(callbacks)
        })
    }
}

impl fmt::Debug for SetCallbacks {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("SetCallbacks")
    }
}

impl Request<'_> {
    /// Returns the client that makes the request, to be called back: its [callbacks](super::ClientBuilder::serve) answer. All requests on a link
    /// get the same [`Client`], whose session opens with the first call and ends with the link, at the latest. It may be kept, and used on
    /// any thread. Once the client has gone, calls end with UNAVAILABLE.
    ///
    /// ```
    /// use petrel::{Client, Server};
    ///
    /// const WATCH: u16 = 1;
    /// const NEWS: u16 = 2;
    ///
    /// let server = Server::bind("127.0.0.1:0").serve(|_| Vec::<Client>::new(), |endpoint| {
    ///     endpoint.on(WATCH, |watchers: &mut Vec<Client>, cx, request| match request.caller(cx) {
    ///         Ok(caller) => {
    ///             let _ = cx.call(&caller, NEWS, b"hello").then(|_, _, reply| assert!(reply.outcome.is_ok()));
    ///             watchers.push(caller);
    ///             request.reply(cx, b"")
    ///         }
    ///         Err(error) => request.fail(cx, error.status, &error.message),
    ///     });
    /// });
    /// let server = server.start()?;
    /// let (tell, told) = std::sync::mpsc::channel();
    /// let client = Client::builder().serve(move |callbacks| {
    ///     let tell = tell.clone();
    ///     callbacks.on(NEWS, move |cx, request| {
    ///         tell.send(request.data().to_vec()).expect("a receiver");
    ///         request.reply(cx, b"")
    ///     });
    /// });
    /// let client = client.connect_wait(server.local_addr())?;
    /// client.call(WATCH, "").wait()?;
    /// assert_eq!(told.recv()?, b"hello");
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// FAILED_PRECONDITION if the client takes no calls; NOT_FOUND if its session has ended meanwhile.
    pub fn caller<S: 'static>(&self, cx: &mut Context<'_, S>) -> Result<Client, Error> {
        caller_of(cx.untyped().local(), self.session())
    }
}

impl<S: 'static> Context<'_, S> {
    /// Returns the client that makes the call of a typed service whose handler runs, to be called back, like [`Request::caller`].
    ///
    /// # Errors
    /// As [`Request::caller`]; FAILED_PRECONDITION outside of handlers with `#[dispatch]`.
    pub fn caller(&mut self) -> Result<Client, Error> {
        let local = self.untyped().local();
        let text =
            "only a handler with `#[dispatch]` has a caller here: a raw handler asks its request";
        let session =
            local.served().ok_or_else(|| Error::not_sent(Status::FailedPrecondition, text))?;
        caller_of(local, session)
    }
}

impl<S> Handle<S> {
    /// Returns the client that makes a request, to be called back, like [`Request::caller`].
    ///
    /// # Errors
    /// As [`Request::caller`].
    ///
    /// # Panics
    /// Outside of the endpoint's tasks.
    pub fn caller(&self, request: &OwnRequest) -> Result<Client, Error> {
        Local::of_task(self.hub(), |local| caller_of(local, request.session()))
    }
}

impl WorkerRequest {
    /// Returns the client that makes the request, to be called back, like [`Request::caller`]. Waits for a turn of the endpoint's event loop.
    ///
    /// # Errors
    /// As [`Request::caller`]; UNAVAILABLE if the endpoint is gone.
    ///
    /// # Panics
    /// On a thread that runs an event loop.
    pub fn caller(&self) -> Result<Client, Error> {
        assert!(!runs_loop(), "a thread that runs an event loop takes the caller before `detach`");
        let (session, (tell, told)) = (self.session(), mpsc::channel());
        let begin = move |handle: &Handle| {
            let of_task = handle.clone();
            let ask = async move {
                let caller = Local::of_task(of_task.hub(), |local| caller_of(local, session));
                // The worker may have gone.
                tell.send(caller).unwrap_or_default();
            };
            // Detached: the task ends by itself.
            drop(handle.spawn_within(Closure::Task, None, ask));
        };
        self.post(InboxMessage::Run(RunTask { begin: Box::new(begin), is_library: true }));
        let gone = |_| Error::not_sent(Status::Unavailable, "the endpoint is gone");
        told.recv().map_err(gone)?
    }
}

/// Returns the client at the other end of a session's link.
fn caller_of(local: &mut Local, session: SessionId) -> Result<Client, Error> {
    let (link, peer) = local.link_back(session)?;
    if let Some(known) = local.kept_with(link).and_then(|kept| kept.downcast_ref::<Client>()) {
        return Ok(known.clone());
    }
    let targets = vec![Target::from((peer.address, peer.endpoint))];
    let (client, mut open) = Client::of_endpoint(local.clients(), targets, ClientConfig::default());
    open.way = ServiceWay::Back(link);
    local.open_service(open);
    local.keep_with(link, Box::new(client.clone()));
    Ok(client)
}
