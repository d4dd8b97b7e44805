//! Handlers that a client sets for its own servers, apart from the endpoint's.
//!
//! Many clients share an endpoint. The server of a client's link reaches the client's callbacks, and neither the endpoint's handlers nor the
//! callbacks of other clients: a session on the link is *confined* to them ([`Confined`]).

use std::any::Any;
use std::cell::RefCell;
use std::collections::HashMap;
use std::rc::Rc;

use petrel_proto::{SessionId, Status};

use super::context::{Context, Local};
use super::description::{DESCRIBE, ServiceDescription};
use super::handle::Handle;
use super::handlers::Enveloped;
use super::health::{HEALTH_METHOD, Healths, INVALID_HEALTH_REQUEST, is_echo};
use super::request::{Handled, Request};
use super::serve::{Copied, OwnRequest, Serving};
use crate::control::{LinkId, PeerName};
use crate::error::Error;
use crate::local::{Command, Handle as TaskHandle};
use crate::values::client::ServiceKey;
use crate::values::method_table::{ServiceTable, TypedServices};
use crate::values::{CallbacksKey, State};

pub(super) const LINK_GONE: &str = "the peer has gone, or its link is being left";

pub(super) const TAKES_NO_CALLS: &str =
    "the peer takes no calls from its servers: it has set no callbacks, or has an older version";

const NO_METHOD: &str = "the client has no such method for its servers";

/// The handlers that the servers of a client may call, on sessions that they open to the client. Set by
/// [`ClientBuilder::serve`](crate::client::ClientBuilder::serve).
///
/// The handlers run on the thread that makes the client's calls, and no other process reaches them than the servers that the client has
/// connected to.
pub struct Callbacks {
    by_method: HashMap<u16, Box<dyn Handle>>,
    typed: TypedServices,
    handle: TaskHandle,
    /// The callbacks of the client for its other links. They take all other methods.
    client: Option<SharedCallbacks>,
}

impl Callbacks {
    pub(crate) fn new(handle: TaskHandle) -> Self {
        Self { by_method: HashMap::new(), typed: TypedServices::default(), handle, client: None }
    }

    /// Returns callbacks for a further link of a client, on which its servers reach the callbacks of the client, too.
    pub(crate) fn of_link(handle: TaskHandle, local: &Local, client: ServiceKey) -> Self {
        Self { client: local.callbacks_of(client), ..Self::new(handle) }
    }

    /// Returns the handle of the endpoint's tasks.
    pub(crate) fn handle(&self) -> &TaskHandle {
        &self.handle
    }

    /// Sets the handler of a method, which runs in the event loop: see [`Endpoint::on`](crate::Endpoint::on).
    ///
    /// # Panics
    /// When the method has a handler, or is [`HEALTH_METHOD`].
    pub fn on(
        &mut self,
        method: u16,
        mut handler: impl FnMut(&mut Context<'_>, Request<'_>) -> Handled + 'static,
    ) {
        let handler =
            move |_: State<'_>, cx: &mut Context<'_>, request: Request<'_>| handler(cx, request);
        self.set(method, Box::new(handler));
    }

    /// Sets a future as the handler of a method: see [`Endpoint::on_async`](crate::Endpoint::on_async).
    ///
    /// # Panics
    /// As [`Callbacks::on`].
    pub fn on_async<F, A>(
        &mut self,
        method: u16,
        mut handler: impl FnMut(TaskHandle, OwnRequest) -> F + 'static,
    ) where
        F: Future<Output = Result<A, Error>> + 'static,
        A: AsRef<[u8]>,
    {
        let serving = Serving::<(), F, Copied>::new(self.handle.clone());
        self.on(method, move |cx, request| serving.begin(cx, request, &mut handler));
    }

    pub(crate) fn set(&mut self, method: u16, handler: Box<dyn Handle>) {
        assert_ne!(method, HEALTH_METHOD, "requests for the health are answered without a handler");
        let former = self.by_method.insert(method, handler);
        assert!(former.is_none(), "method {method} has a handler already");
    }

    /// Adds a typed service with the handlers of its methods, each for calls without and with an envelope.
    pub(crate) fn add_service(
        &mut self,
        table: &'static ServiceTable,
        handlers: Vec<(Box<dyn Handle>, Box<dyn Handle>)>,
    ) {
        assert_eq!(table.methods.len(), handlers.len(), "each method has a handler");
        let numbers = table.numbers(|number| self.has_handler(number) || number == HEALTH_METHOD);
        self.typed.add(table, &numbers);
        let (plain, enveloped) = numbers.split_at(handlers.len());
        for ((own, enveloped), handlers) in plain.iter().zip(enveloped).zip(handlers) {
            self.set(*own, handlers.0);
            self.set(*enveloped, Box::new(Enveloped { own: *own, handler: handlers.1 }));
        }
    }

    fn has_handler(&self, method: u16) -> bool {
        self.by_method.contains_key(&method)
    }

    /// Runs the handler of a request, or answers without one.
    fn run(&mut self, state: State<'_>, cx: &mut Context<'_>, request: Request<'_>) -> Handled {
        if let Some(handler) = self.by_method.get_mut(&request.method()) {
            return handler.handle(state, cx, request);
        }
        if let Some(client) = &self.client {
            return client.borrow_mut().run(state, cx, request);
        }
        if request.method() != HEALTH_METHOD {
            return request.refuse(cx, Status::Unimplemented, NO_METHOD);
        }
        if let Some(answer) = self.typed.answer(request.data()) {
            return request.reply(cx, answer);
        }
        if request.data() == DESCRIBE {
            return request.reply(cx, &ServiceDescription::default().to_bytes());
        }
        if is_echo(request.data()) {
            let len = request.data().len();
            return request.reply_with(cx, len, |data, out| {
                out.copy_from_slice(data);
                len
            });
        }
        let has_handler = |method| self.has_handler(method);
        match Healths::default().answer(request.data(), has_handler) {
            Some(health) => request.reply(cx, &[health as u8]),
            None => request.fail(cx, Status::InvalidArgument, INVALID_HEALTH_REQUEST),
        }
    }
}

/// The sessions that are confined to callbacks.
#[derive(Default)]
pub(super) struct Confined(RefCell<HashMap<SessionId, SharedCallbacks>>);

/// Callbacks that sessions use. Handlers do not run within handlers, so no two borrow them.
pub(super) type SharedCallbacks = Rc<RefCell<Callbacks>>;

impl Confined {
    pub(super) fn is_empty(&self) -> bool {
        self.0.borrow().is_empty()
    }

    /// Confines a new session.
    pub(super) fn confine(&self, session: SessionId, callbacks: SharedCallbacks) {
        let former = self.0.borrow_mut().insert(session, callbacks);
        assert!(former.is_none(), "a session is confined once: {session:?}");
    }

    /// Forgets a session that has ended.
    pub(super) fn forget(&self, session: SessionId) {
        self.0.borrow_mut().remove(&session);
    }

    /// Runs the handler of a request among the callbacks of its session, or returns the request if the session is not confined.
    pub(super) fn run<'s, 'a>(
        &self,
        state: State<'s>,
        cx: &mut Context<'_>,
        request: Request<'a>,
    ) -> Result<Handled, (State<'s>, Request<'a>)> {
        let callbacks = self.0.borrow().get(&request.session()).map(Rc::clone);
        match callbacks {
            Some(callbacks) => Ok(callbacks.borrow_mut().run(state, cx, request)),
            None => Err((state, request)),
        }
    }
}

/// The callbacks of the endpoint's clients.
#[derive(Default)]
pub(super) struct CallbackSets {
    by_key: HashMap<CallbacksKey, SharedCallbacks>,
    next: u64,
}

impl CallbackSets {
    /// Returns callbacks whose client still exists.
    pub(super) fn get(&self, key: CallbacksKey) -> Option<SharedCallbacks> {
        self.by_key.get(&key).map(Rc::clone)
    }
}

impl Local {
    /// Returns the link on which the client of a session can be called, and its peer.
    ///
    /// # Errors
    /// NOT_FOUND if the session has ended; FAILED_PRECONDITION if the client takes no calls.
    pub(crate) fn link_back(&self, session: SessionId) -> Result<(LinkId, PeerName), Error> {
        let name = self.sessions.link_of(session);
        let gone = || Error::not_sent(Status::NotFound, LINK_GONE);
        let name = name.ok_or_else(gone)?;
        let link = self.sessions.link(name).ok_or_else(gone)?;
        match link.may_be_client() {
            true => Ok((name, link.peer().name)),
            false => Err(Error::not_sent(Status::FailedPrecondition, TAKES_NO_CALLS)),
        }
    }

    /// Returns the value of a face that is kept with a link.
    pub(crate) fn kept_with(&self, link: LinkId) -> Option<&dyn Any> {
        self.sessions.link(link)?.kept()
    }

    /// Keeps a value of a face until the link ends.
    pub(crate) fn keep_with(&mut self, link: LinkId, value: Box<dyn Any>) {
        self.sessions.keep_with(link, value);
    }

    /// Returns the callbacks of a client, if it has some.
    fn callbacks_of(&self, client: ServiceKey) -> Option<SharedCallbacks> {
        self.callbacks.get(self.services.callbacks_of(client)?)
    }

    /// Adds the callbacks of a client, to be called by the servers of links that are opened with the key.
    pub(crate) fn add_callbacks(&mut self, callbacks: Callbacks) -> CallbacksKey {
        let sets = &mut self.callbacks;
        let key = CallbacksKey(sets.next);
        sets.next += 1;
        sets.by_key.insert(key, Rc::new(RefCell::new(callbacks)));
        // Before any link is opened with the key: orders are carried out in turn.
        self.hub.command(Command::KeepApart);
        key
    }

    /// Removes callbacks, and has the links that were opened for them close.
    pub(crate) fn remove_callbacks(&mut self, key: CallbacksKey) {
        let removed = self.callbacks.by_key.remove(&key);
        assert!(removed.is_some(), "callbacks are removed once: {key:?}");
        self.hub.command(Command::EndCallbacks(key));
    }
}
