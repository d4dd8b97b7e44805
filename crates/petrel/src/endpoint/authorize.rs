//! Authorisation: an endpoint decides once for each session which methods its client may call, and again after a change of the rules.

use std::cell::RefCell;
use std::collections::HashMap;
use std::rc::Rc;
use std::sync::Arc;

use petrel_proto::{SessionId, Status};
use petrel_transport::Transport;

use super::callbacks::{Confined, SharedCallbacks};
use super::context::Context;
use super::handle::Handle;
use super::request::{Handled, Request};
use super::{Endpoint, Peer};
use crate::control::{ControlPlane, Reason};
use crate::events;
use crate::panics::catch;
use crate::security::{Authorize, Grant, Methods, PeerIdentity};
use crate::values::State;

const NOT_GRANTED: &str = "the client may not call this method";

const JUDGE_PANICKED: &str = "the server's decision about the client panicked";

/// Returns the methods that a client may call.
type Judge = Box<dyn Fn(&Peer) -> Grant>;

/// The decisions of an endpoint.
#[derive(Default)]
pub(super) struct Authorizer {
    judge: Option<Judge>,
    grants: Rc<Grants>,
}

/// The sessions that may not call all handlers of the endpoint. Other sessions have no entry, and a call of them costs nothing while no session has one.
#[derive(Default)]
pub(super) struct Grants {
    /// Those that may call some methods alone.
    limited: RefCell<HashMap<SessionId, Rc<Methods>>>,
    /// Those that reach the callbacks of a client alone.
    confined: Confined,
}

impl Grants {
    /// Returns true if all sessions may call all methods.
    pub(super) fn are_unlimited(&self) -> bool {
        self.limited.borrow().is_empty() && self.confined.is_empty()
    }

    /// Returns the handlers of clients, and the sessions that are confined to them.
    pub(super) fn confined(&self) -> &Confined {
        &self.confined
    }

    pub(super) fn allow(&self, session: SessionId, method: u16) -> bool {
        let limited = self.limited.borrow();
        let may_call = |methods: &Rc<Methods>| methods.iter().any(|some| some.contains(&method));
        limited.is_empty() || limited.get(&session).is_none_or(may_call)
    }
}

impl Authorizer {
    /// Decides about a session of a peer. Returns the methods to which the grant is limited, if any.
    ///
    /// # Errors
    /// The session is refused.
    pub(super) fn judge(&self, peer: &Peer) -> Result<Option<Rc<Methods>>, Reason> {
        let Some(judge) = &self.judge else { return Ok(None) };
        let refused = |text: String| Reason::new(Status::PermissionDenied, text);
        // A function that panics has not granted anything.
        let grant = catch(|| judge(peer)).map_err(|_| refused(JUDGE_PANICKED.to_owned()))?;
        grant.into_methods().map_err(refused)
    }

    /// Limits a new session.
    pub(super) fn limit(&self, session: SessionId, methods: Option<Rc<Methods>>) {
        if let Some(methods) = methods {
            let former = self.grants.limited.borrow_mut().insert(session, methods);
            assert!(former.is_none(), "a session is judged once: {session:?}");
        }
    }

    /// Limits a session after a further judgement.
    pub(super) fn change(&self, session: SessionId, methods: Option<Rc<Methods>>) {
        self.grants.limited.borrow_mut().remove(&session);
        self.limit(session, methods);
    }

    /// Confines a new session to the callbacks of a client.
    pub(super) fn confine(&self, session: SessionId, callbacks: Option<SharedCallbacks>) {
        if let Some(callbacks) = callbacks {
            self.grants.confined.confine(session, callbacks);
        }
    }

    pub(super) fn grants(&self) -> &Rc<Grants> {
        &self.grants
    }

    /// Forgets a session that has ended.
    pub(super) fn forget(&self, session: SessionId) {
        self.grants.limited.borrow_mut().remove(&session);
        self.grants.confined.forget(session);
    }
}

/// A handler that only granted requests reach.
pub(super) struct Guarded {
    handler: Box<dyn Handle>,
    grants: Rc<Grants>,
}

impl Guarded {
    pub(super) fn new(handler: Box<dyn Handle>, grants: &Rc<Grants>) -> Self {
        Self { handler, grants: Rc::clone(grants) }
    }
}

impl Handle for Guarded {
    fn handle(&mut self, state: State<'_>, cx: &mut Context<'_>, request: Request<'_>) -> Handled {
        if !self.grants.allow(request.session(), request.method()) {
            return refuse_ungranted(cx, request);
        }
        if self.grants.confined.is_empty() {
            return self.handler.handle(state, cx, request);
        }
        match self.grants.confined.run(state, cx, request) {
            Ok(handled) => handled,
            Err((state, request)) => self.handler.handle(state, cx, request),
        }
    }
}

/// Refuses a request that its client may not make.
pub(super) fn refuse_ungranted(cx: &mut Context<'_>, request: Request<'_>) -> Handled {
    let peer = request.peer(cx);
    let identity = peer.and_then(|peer| peer.identity.as_deref());
    events::not_granted(peer.map(|peer| peer as _), identity, request.method());
    request.refuse(cx, Status::PermissionDenied, NOT_GRANTED)
}

impl<S: 'static, T: Transport, C: ControlPlane<T::Link>> Endpoint<S, T, C> {
    /// Sets the function that decides which methods a client may call, by the client's identity: once for each session that a client opens from now
    /// on, before any call. A later function takes the place of an earlier one. By default every client that can connect may call everything.
    ///
    /// The [identity](Peer::identity) is proven if both processes have [credentials](crate::nexus::NexusBuilder::credentials); over shared memory
    /// the kernel vouches for the [process](Peer::process) and its user. A client that is refused gets PERMISSION_DENIED with the
    /// text, for the session or for each call of another method. Questions for the health and the description of the service are always
    /// answered. Grants are for numbers: a method of a [typed service](mod@crate::service) needs an `id` to be granted alone.
    ///
    /// ```
    /// # use petrel::endpoint::EndpointConfig;
    /// # use petrel::Nexus;
    /// use petrel::security::Grant;
    ///
    /// # const GET: u16 = 1;
    /// # let nexus = Nexus::builder().listen("127.0.0.1:0".parse()?).start()?;
    /// let mut endpoint = nexus.endpoint(EndpointConfig::default())?;
    /// endpoint.authorize(|peer| {
    ///     let id = peer.identity.as_ref().and_then(|identity| identity.spiffe_id.as_deref());
    ///     match id {
    ///         Some("spiffe://prod/admin") => Grant::all(),
    ///         Some("spiffe://prod/web") => Grant::methods([GET]),
    ///         _ => Grant::refuse("this service is for the shop"),
    ///     }
    /// });
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn authorize(&mut self, judge: impl Fn(&Peer) -> Grant + 'static) {
        self.local.authorizer.judge = Some(Box::new(judge));
        let grants = Rc::clone(&self.local.authorizer.grants);
        self.handlers.guard(&grants);
    }

    /// Judges all clients anew, after a change of the rules of [`authorize`](Self::authorize). Sessions without any right end with
    /// PERMISSION_DENIED, and all further sessions get the new limits. Mapped memory of regions stays mapped.
    /// Decisions by [`NexusBuilder::authorize`](crate::nexus::NexusBuilder::authorize) need no call of this.
    pub fn judge_again(&mut self) {
        self.session_control().judge_again();
    }

    /// Sets the decisions of the process, if there are any.
    pub(super) fn authorize_by(&mut self, rules: Option<Arc<dyn Authorize>>) {
        if let Some(rules) = rules {
            self.authorize(move |peer| rules.grant(&caller(peer)));
        }
    }
}

/// Returns the identity of a client, with the process if the kernel vouches.
fn caller(peer: &Peer) -> PeerIdentity {
    let mut caller = peer.identity.as_deref().cloned().unwrap_or_default();
    if let Some(process) = peer.process {
        (caller.uid, caller.pid) = (Some(process.uid), Some(process.pid));
    }
    caller
}
