//! The streams of an endpoint: the pairs by session, and the handlers by method.

use std::cell::{Cell, RefCell};
use std::collections::HashMap;
use std::rc::{Rc, Weak};

use petrel_planted::planted;
use petrel_proto::{Execution, SessionId, Status};
use petrel_transport::Transport;

use super::handler::{Begin, Opened};
use super::pair::Role;
use super::pump::{self, Ends};
use super::shared::{Held, Shared};
use super::wire::METHOD;
use crate::control::ControlPlane;
use crate::endpoint::handle::Handle as Handler;
use crate::endpoint::{Context, Endpoint, Handled, Local, Request};
use crate::error::Error;
use crate::local::{Handle, Hub};
use crate::sync::Arc;
use crate::values::{State, StreamConfig};

/// The memory for unread messages of all clients of an endpoint, in shares of a client.
const SHARES: usize = 4;

/// The streams of an endpoint, at either side.
#[derive(Default)]
pub(crate) struct Registry {
    /// The pairs by the session on which the batches of the peer come.
    pairs: RefCell<HashMap<SessionId, Arc<Shared>>>,
    /// The handlers of streams that clients open.
    handlers: RefCell<HashMap<u16, Begin>>,
    /// Whether the registry is told of sessions that end.
    is_told: Cell<bool>,
    /// Bytes of batches since the unread messages of all clients were last counted.
    uncounted: Cell<usize>,
}

impl Registry {
    /// Returns the registry of an endpoint.
    pub(super) fn of(hub: &Hub) -> Rc<Self> {
        hub.face::<Self>()
    }

    /// Lets the registry be told of sessions that end.
    pub(super) fn be_told(self: &Rc<Self>, local: &mut Local) {
        if self.is_told.replace(true) {
            return;
        }
        let registry: Weak<Self> = Rc::downgrade(self);
        local.on_session_end(move |session| {
            let Some(registry) = registry.upgrade() else { return };
            let pair = registry.pairs.borrow_mut().remove(&session);
            if let Some(pair) = pair
                && !planted("stream_outlives_session")
            {
                pair.fail(&session_ended());
            }
        });
    }

    /// Adds a pair that a peer's session has begun.
    pub(super) fn add(&self, session: SessionId, pair: &Arc<Shared>) {
        let former = self.pairs.borrow_mut().insert(session, Arc::clone(pair));
        assert!(former.is_none(), "a session has one pair");
    }

    /// Bounds the unread messages of all clients, after a batch of `len` bytes. A count for each share of a client costs little, and lets all
    /// clients have one share more at most. The client with the most unread messages loses its streams.
    fn bound_held(&self, len: usize, config: StreamConfig) {
        let share = config.held_bytes_max as usize;
        self.uncounted.set(self.uncounted.get() + len);
        if self.uncounted.get() < share {
            return;
        }
        self.uncounted.set(0);
        let pairs = self.pairs.borrow();
        let held_by = |pair: &Arc<Shared>| pair.with(|pair| pair.held_bytes());
        let mut held: Vec<_> = pairs.values().map(|pair| (held_by(pair), pair)).collect();
        let mut all: usize = held.iter().map(|(bytes, _)| bytes).sum();
        let bound = share.saturating_mul(SHARES);
        if all > bound {
            held.sort_unstable_by_key(|(bytes, _)| *bytes);
        }
        while all > bound
            && let Some((bytes, pair)) = held.pop()
        {
            all -= bytes;
            let text = "the unread messages of all clients need too much memory";
            pair.with(|pair| pair.reset_all(Status::ResourceExhausted, text));
        }
    }

    fn pair(&self, session: SessionId) -> Option<Arc<Shared>> {
        self.pairs.borrow().get(&session).map(Arc::clone)
    }
}

/// The error of a pair that has lost one of its sessions.
pub(super) fn session_ended() -> Error {
    let text = "the session of the streams has ended";
    Error::of(Status::Unavailable, text, Execution::MayHaveExecuted)
}

impl<S: 'static, T: Transport, C: ControlPlane<T::Link>> Endpoint<S, T, C> {
    /// Serves the streams of a method.
    pub(crate) fn serve_streams(&mut self, method: u16, begin: Begin) {
        let handle = Handle::new(Rc::clone(self.handle().hub()));
        let registry = Registry::of(handle.hub());
        let former = registry.handlers.borrow_mut().insert(method, begin);
        assert!(former.is_none(), "method {method} has a handler of streams already");
        if !self.has_own_handler(METHOD) {
            let local = self.local_now();
            registry.be_told(local);
            self.set_own_handler(METHOD, Box::new(Server { registry, handle }));
        }
    }
}

/// Takes the batches of clients.
struct Server {
    registry: Rc<Registry>,
    handle: Handle,
}

impl Handler for Server {
    fn handle(&mut self, _: State<'_>, cx: &mut Context<'_>, request: Request<'_>) -> Handled {
        let session = request.session();
        let pair = self.registry.pair(session).unwrap_or_else(|| self.begin(session));
        let opened = match pair.handle_batch(session, cx.clock_now().as_ns(), request.data()) {
            Ok(opened) => opened,
            Err(error) => return request.fail(cx, error.status, &error.message),
        };
        for (key, method) in opened {
            let stream = Held::new(&pair, key);
            let handler = self.registry.handlers.borrow().get(&method).map(Rc::clone);
            match handler {
                None => stream
                    .refuse(Status::Unimplemented, "the server has no such method with streams"),
                Some(_) if !cx.may_call(session, method) => {
                    stream.refuse(Status::PermissionDenied, "the client may not call this method");
                }
                Some(begin) => {
                    let peer = request.shared_peer(cx);
                    begin(Opened { stream, handle: &self.handle, method, session, peer });
                }
            }
        }
        let len = request.data().len();
        let handled = request.reply(cx, b"");
        self.registry.bound_held(len, self.handle.hub().stream_config());
        handled
    }
}

impl Server {
    /// Begins the pair of a client's session.
    fn begin(&self, session: SessionId) -> Arc<Shared> {
        let hub = self.handle.hub();
        let pair = Shared::new(Role::Server, hub.stream_config(), hub.message_bytes_max());
        self.registry.add(session, &pair);
        let (handle, ends) = (self.handle.clone(), Ends::new(&self.handle, &pair));
        hub.spawn_unwatched(async move {
            let opened = handle.reverse(session).await;
            pump::run(ends, opened).await;
        });
        pair
    }
}

/// Takes the batches of the server to which a client's pair belongs.
pub(super) fn client_handler(
    registry: &Rc<Registry>,
    pair: &Arc<Shared>,
) -> impl FnMut(&mut Context<'_>, Request<'_>) -> Handled + 'static {
    let (registry, pair) = (Rc::clone(registry), Arc::clone(pair));
    move |cx, request| {
        let session = request.session();
        if registry.pair(session).is_none() {
            registry.add(session, &pair);
        }
        match pair.handle_batch(session, cx.clock_now().as_ns(), request.data()) {
            Ok(_) => request.reply(cx, b""),
            Err(error) => request.fail(cx, error.status, &error.message),
        }
    }
}
