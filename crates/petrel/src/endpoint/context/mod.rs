//! The operations of handlers, continuations and the application on an endpoint.

mod cancel;
pub(crate) mod continuation;
mod start;
pub(crate) mod watchers;

use std::any::Any;
use std::marker::PhantomData;
use std::ptr;
use std::rc::Rc;

use petrel_proto::buffer::{Destination, Placed};
use petrel_proto::{Core, RequestHandle, RespondError, RespondRejected, SessionId, Status};
use petrel_transport::Transport;
use petrel_transport::buf::BufPool;
use petrel_transport::clock::Clock;

pub(super) use start::CallKind;

use super::ClientShared;
use super::authorize::Authorizer;
use super::burst::Announced;
use super::callbacks::CallbackSets;
use super::groups::Groups;
use super::late_answers::{HANDLER_PANICKED, LateAnswers};
use super::remote::Remote;
use super::route::{LentTransport, ReturnRoute, Route};
use super::service::Services;
use super::sessions::Sessions;
use crate::error::Error;
use crate::events;
use crate::local::{Hub, Key};
use crate::msgbuf::MsgBuf;
use crate::panics::{Closure, PanicPayload, Panics};
use crate::region_memory::View;
use crate::sync::Arc;
use crate::time::Time;
use crate::values::client::ServiceKey;
use crate::values::{Envelope, Metadata};
use continuation::{Continuation, Keyed, Numbered, OnSession, Reply};
use watchers::Watchers;

/// The transport-independent part of an endpoint: handlers and continuations use it while the transport is busy
/// delivering.
pub(crate) struct Local {
    pub(super) core: Core<MsgBuf, Continuation>,
    pub(super) pool: BufPool,
    /// The state shared by this thread's futures and the event loop.
    pub(super) hub: Rc<Hub>,
    /// Groups to which the endpoint sends by multicast.
    pub(super) groups: Groups,
    /// Answers of tasks, and for dropped [`Responder`](super::Responder)s.
    late_answers: Rc<LateAnswers>,
    /// The state for other threads.
    pub(super) remote: Box<Remote>,
    /// Time of the current turn of the event loop, in nanoseconds.
    pub(super) now_ns: u64,
    /// The clock itself, for deadlines: a turn takes time.
    pub(super) clock: Clock,
    /// Bytes of the frames of this burst, except frames of small calls.
    part_bytes: usize,
    /// The application's memory with the request whose handler runs, if any, for that handler.
    placed: Option<Placed>,
    /// The metadata of the call whose handler runs, if the call has any.
    envelope: Option<Arc<Envelope>>,
    /// The session of the typed call whose handler runs.
    served: Option<SessionId>,
    watchers: Watchers,
    keyed: Keyed,
    pub(super) sessions: Sessions,
    /// The services of clients.
    pub(super) services: Box<Services>,
    announced: Announced,
    /// The regions that the endpoint serves.
    pub(super) regions: Option<Arc<View>>,
    panics: Rc<Panics>,
    /// The methods that clients may call.
    pub(super) authorizer: Authorizer,
    /// The handlers that clients of this endpoint have set for their servers.
    pub(super) callbacks: CallbackSets,
    /// Functions that are told of each session that ends.
    pub(super) session_ends: Vec<Box<dyn Fn(SessionId)>>,
    /// The transport, while it is lent.
    lent: Option<LentTransport>,
}

impl Local {
    /// Creates the part of an endpoint that uses this core, with these buffers and futures, clock and tables.
    pub(super) fn new(
        (now_ns, clock): (u64, Clock),
        core: Core<MsgBuf, Continuation>,
        (pool, hub): (BufPool, Rc<Hub>),
        (late_answers, remote): (Rc<LateAnswers>, Remote),
        (sessions, panics): (Sessions, Rc<Panics>),
    ) -> Self {
        Self {
            core,
            pool,
            hub,
            groups: Groups::default(),
            late_answers,
            remote: Box::new(remote),
            now_ns,
            clock,
            part_bytes: 0,
            placed: None,
            envelope: None,
            served: None,
            watchers: Watchers::default(),
            keyed: Keyed::default(),
            sessions,
            services: Box::default(),
            announced: Announced::default(),
            regions: None,
            panics,
            authorizer: Authorizer::default(),
            callbacks: CallbackSets::default(),
            session_ends: Vec::new(),
            lent: None,
        }
    }

    /// Has a function told of each session that ends.
    pub(crate) fn on_session_end(&mut self, tell: impl Fn(SessionId) + 'static) {
        self.session_ends.push(Box::new(tell));
    }

    /// Returns the session of the typed call whose handler runs.
    pub(crate) fn served(&self) -> Option<SessionId> {
        self.served
    }

    /// Counts and reports a panic of a closure, or lets it unwind further.
    #[cold]
    pub(super) fn settle_panic(&self, of: Closure, payload: PanicPayload) {
        self.panics.settle(of, payload);
    }

    pub(super) fn panics(&self) -> &Rc<Panics> {
        &self.panics
    }

    pub(super) fn late_answers(&self) -> &Rc<LateAnswers> {
        &self.late_answers
    }

    /// Returns the continuations that are found by a key.
    pub(super) fn keyed(&mut self) -> &mut Keyed {
        &mut self.keyed
    }

    /// Begins to count the bytes of a burst.
    #[inline(always)]
    pub(super) fn begin_burst(&mut self) {
        self.part_bytes = 0;
    }

    /// Counts a frame of this burst that belongs to no small call.
    #[inline(always)]
    pub(super) fn count_part(&mut self, bytes: usize) {
        self.part_bytes += bytes;
    }

    /// Returns the bytes of the burst's frames, except frames of small calls.
    #[inline(always)]
    pub(super) fn part_bytes(&self) -> usize {
        self.part_bytes
    }

    /// Runs the handler of a request that was put together in memory of the application, if `placed`.
    #[inline(always)]
    pub(super) fn with_placed(&mut self, placed: Option<Placed>, run: impl FnOnce(&mut Self)) {
        self.placed = placed;
        run(self);
        self.placed = None;
    }

    /// Returns true if the bytes of the present request have had an effect already, in memory of the application.
    #[cold]
    pub(super) fn has_effect(&self) -> bool {
        self.placed.as_ref().is_some_and(Placed::has_effect)
    }

    /// Forgets the watchers of a request that is answered.
    #[inline]
    pub(super) fn forget_watchers(&mut self, handle: RequestHandle) {
        self.watchers.forget(handle);
    }

    /// Announces a call on a session.
    #[inline]
    pub(super) fn announce(&mut self, session: SessionId) {
        self.announced.announce(&self.core, session);
    }

    /// Returns the service of a client, if `clients` belong to this endpoint.
    pub(crate) fn service_of(
        &self,
        clients: &Arc<ClientShared>,
        number: ServiceKey,
    ) -> Option<Key> {
        if self.is_of(clients) { self.services.find(number) } else { None }
    }

    /// Returns true if `clients` belong to this endpoint.
    #[inline]
    pub(crate) fn is_of(&self, clients: &Arc<ClientShared>) -> bool {
        self.remote.is_of(clients)
    }

    /// Cancels the call with a continuation of this kind and number, and returns the end of the call instead of running
    /// the continuation. `None` if the call has ended.
    pub(crate) fn cancel_numbered(
        &mut self,
        session: SessionId,
        kind: Numbered,
        number: u64,
    ) -> Option<Reply> {
        let key = OnSession { session, kind, number };
        let ended =
            self.core.cancel(session, |continuation: &Continuation| continuation.is(&key))?;
        ended.request.await_reads(&self.pool);
        Some(Reply::from(ended))
    }

    /// Lends a transport, if there is one to lend, to the calls of tasks and of other threads while `run` runs.
    pub(super) fn with_transport<T: Transport, R>(
        &mut self,
        transport: Option<&mut T>,
        run: impl FnOnce(&mut Self) -> R,
    ) -> R {
        /// The loan ends even when a task panics.
        struct Loan<'a>(&'a mut Local);

        impl Drop for Loan<'_> {
            fn drop(&mut self) {
                self.0.lent = None;
            }
        }

        assert!(self.lent.is_none(), "a transport is lent once at a time");
        // SAFETY: the transport stays borrowed here, unused, until the loan has ended.
        self.lent = transport.and_then(|transport| unsafe { LentTransport::of(transport) });
        let loan = Loan(self);
        run(&mut *loan.0)
    }

    /// Lends the endpoint and the state to its tasks, while `poll` runs.
    pub(super) fn lend<R>(
        &mut self,
        hub: &Hub,
        state: &mut Box<dyn Any>,
        poll: impl FnOnce() -> R,
    ) -> R {
        assert!(ptr::eq(hub, &raw const *self.hub), "an endpoint is lent by its own hub");
        hub.lend(state, self, poll)
    }

    /// Runs a closure with the endpoint of a hub, if it is lent and not in use.
    #[inline(always)]
    pub(crate) fn try_of_task<R>(hub: &Hub, run: impl FnOnce(&mut Self) -> R) -> Option<R> {
        // SAFETY: only `Local::lend` lends, and lends a `Local`.
        unsafe { hub.try_with_endpoint(run) }
    }

    /// Runs a closure with the endpoint, in a task of the endpoint.
    #[inline(always)]
    pub(crate) fn of_task<R>(hub: &Hub, run: impl FnOnce(&mut Self) -> R) -> R {
        Self::try_of_task(hub, run).expect("an endpoint is lent to its tasks while they run")
    }
}

impl Drop for Local {
    fn drop(&mut self) {
        self.hub.close();
    }
}

/// An endpoint, as seen by handlers and continuations: they use it to make calls, take buffers, and answer requests.
/// `S` is the type of the [state](super::Endpoint::state) that the endpoint lends them.
// C's field order gives all types of state one layout, for `Context::typed`.
#[repr(C)]
pub struct Context<'a, S = ()> {
    pub(super) local: &'a mut Local,
    pub(super) route: ReturnRoute<'a>,
    state: PhantomData<fn(&mut S)>,
}

impl<'a, S> Context<'a, S> {
    /// Creates a context while no frame is handled: calls and answers have no return route.
    #[inline(always)]
    pub(crate) fn new(local: &'a mut Local) -> Self {
        Self::with_route(local, ReturnRoute::NONE)
    }

    /// Creates a context while a frame is handled.
    #[inline(always)]
    pub(super) fn with_route(local: &'a mut Local, route: ReturnRoute<'a>) -> Self {
        Self { local, route, state: PhantomData }
    }

    /// Lends the context for a shorter time.
    #[inline(always)]
    pub(super) fn reborrow(&mut self) -> Context<'_, S> {
        Context::with_route(self.local, self.route.reborrow())
    }

    /// Returns the context without the type of the state.
    #[inline(always)]
    pub(crate) fn untyped(&mut self) -> &mut Context<'a> {
        // SAFETY: in C's order the fields of both types are at the same offsets, as a `PhantomData` has no size.
        unsafe { &mut *ptr::from_mut(self).cast() }
    }
}

impl<'a> Context<'a> {
    /// Returns the context with the endpoint's type of state, for closures that expect this type.
    #[inline(always)]
    pub(crate) fn typed<S>(&mut self) -> &mut Context<'a, S> {
        // SAFETY: as in `untyped`.
        unsafe { &mut *ptr::from_mut(self).cast() }
    }

    /// Returns the endpoint's part that is independent of the transport.
    pub(crate) fn local(&mut self) -> &mut Local {
        self.local
    }

    /// Ends a call whose handler has panicked.
    #[cold]
    #[inline(never)]
    pub(in crate::endpoint) fn end_panicked(
        &mut self,
        handle: RequestHandle,
        payload: PanicPayload,
    ) {
        self.local.settle_panic(Closure::Handler, payload);
        self.local.forget_watchers(handle);
        (self.local.envelope, self.local.served) = (None, None);
        // The handler may have answered before.
        self.local.core.respond_error(handle, Status::Internal, HANDLER_PANICKED);
    }

    /// Sets the metadata of the call whose handler runs next, or takes them back after the handler has run.
    pub(crate) fn swap_envelope(
        &mut self,
        envelope: Option<Arc<Envelope>>,
    ) -> Option<Arc<Envelope>> {
        std::mem::replace(&mut self.local.envelope, envelope)
    }

    /// Runs the handler of a typed call, which may ask for its caller.
    #[inline(always)]
    pub(crate) fn serving<R>(&mut self, session: SessionId, run: impl FnOnce(&mut Self) -> R) -> R {
        self.local.served = Some(session);
        let result = run(self);
        self.local.served = None;
        result
    }

    /// Takes the application's memory with the request whose handler runs, if the request was placed.
    pub(crate) fn take_placed<D: Destination>(&mut self) -> Option<D> {
        self.local.placed.take().map(Placed::into_inner)
    }
}

impl<'a, S: 'static> Context<'a, S> {
    /// Returns a buffer for up to `capacity` bytes. The message initially has this length, with bytes left from an
    /// earlier use: write them, or set the length.
    ///
    /// # Errors
    /// RESOURCE_EXHAUSTED when the endpoint's memory limit is reached.
    #[inline]
    pub fn alloc(&self, capacity: usize) -> Result<MsgBuf, Error> {
        Ok(MsgBuf::from_pool(&self.local.pool, capacity)?)
    }

    /// Returns a buffer that holds `message`.
    ///
    /// # Errors
    /// RESOURCE_EXHAUSTED when the endpoint's memory limit is reached.
    #[inline]
    pub fn alloc_message(&self, message: &[u8]) -> Result<MsgBuf, Error> {
        Ok(MsgBuf::holding(&self.local.pool, message)?)
    }

    /// Returns the deadline inherited by calls made now: the current request's, or in a continuation the deadline of
    /// the ended call's request.
    pub fn deadline(&self) -> Option<Time> {
        self.local.core.inherited_ns().map(Time::from_ns)
    }

    /// Returns the metadata of the call whose handler runs: empty for a call without, and outside of handlers of
    /// [typed services](mod@crate::service).
    pub fn metadata(&self) -> &Metadata {
        Envelope::request_of(self.local.envelope.as_deref())
    }

    /// Adds an entry to the metadata of the handler's reply. A call without an envelope has a caller that reads none: the entry is dropped.
    ///
    /// # Errors
    /// As [`Metadata::insert`].
    pub fn reply_metadata(&mut self, key: &str, value: impl AsRef<[u8]>) -> Result<(), Error> {
        Envelope::insert_reply(self.local.envelope.as_deref(), key, value.as_ref())
    }

    /// Returns the time of this turn of the event loop.
    ///
    /// The clock was read before the turn received anything. If the thread did not run in between, the time is older
    /// than the current frame by that pause: [`Context::clock_now`] reads the clock at the call.
    pub fn now(&self) -> Time {
        Time::from_ns(self.local.now_ns)
    }

    /// Returns the current time, on the clock of [`Context::now`]. Reading it takes some 10 to 20 ns.
    ///
    /// For decisions that hold only *now*, for example whether a lease is valid: the time of the turn is earlier, and a
    /// thread stopped in between would decide as of then.
    pub fn clock_now(&self) -> Time {
        Time::from_ns(self.local.clock.now_ns())
    }

    /// Returns the number of unfinished calls on a client session.
    pub fn pending_calls(&self, session: SessionId) -> usize {
        self.local.core.pending_calls(session)
    }

    /// Announces a call: starts loading the memory of a client session, without waiting. Announce eight to sixteen
    /// calls ahead, in the order of the calls: the second half of the memory is loaded four announcements later.
    ///
    /// For applications that call thousands of sessions and know their next calls. No cache has the memory of all
    /// sessions, and a call that is not announced waits for it. An announcement changes nothing else: the call need not
    /// follow, and a session that has ended is ignored.
    ///
    /// ```
    /// # use petrel::{Context, endpoint::SessionId};
    /// # fn call_one(cx: &mut Context<'_, ()>, session: SessionId) {}
    /// fn call_all(cx: &mut Context<'_, ()>, sessions: &[SessionId]) {
    ///     const AHEAD: usize = 8;
    ///     sessions.iter().take(AHEAD).for_each(|session| cx.prefetch_session(*session));
    ///     for (index, session) in sessions.iter().enumerate() {
    ///         if let Some(later) = sessions.get(index + AHEAD) {
    ///             cx.prefetch_session(*later);
    ///         }
    ///         call_one(cx, *session);
    ///     }
    /// }
    /// ```
    #[inline]
    pub fn prefetch_session(&mut self, session: SessionId) {
        self.local.announce(session);
    }

    /// Returns true if the client of a session may call a method.
    pub(crate) fn may_call(&self, session: SessionId, method: u16) -> bool {
        self.local.authorizer.allows(session, method)
    }

    /// Runs a closure whose calls inherit `deadline_ns`.
    pub(super) fn under_deadline<R>(
        &mut self,
        deadline_ns: Option<u64>,
        run: impl FnOnce(&mut Self) -> R,
    ) -> R {
        let before = self.local.core.inherit(deadline_ns);
        let result = run(self);
        self.local.core.inherit(before);
        result
    }

    /// Answers a request with OK, at once if there is a return path.
    #[inline(always)]
    pub(super) fn respond_at_once(&mut self, handle: RequestHandle, message: MsgBuf) {
        let mut route = Route::new(self.route.reborrow(), None, None);
        let responded = self.local.core.respond_at_once(handle, message, &mut route);
        if let Err(rejected) = responded {
            self.refuse_answer(handle, rejected);
        }
    }

    pub(super) fn respond(&mut self, handle: RequestHandle, status: Status, message: MsgBuf) {
        self.local.watchers.forget(handle);
        if let Err(rejected) = self.local.core.respond(handle, status, message) {
            self.refuse_answer(handle, rejected);
        }
    }

    pub(super) fn refuse(&mut self, handle: RequestHandle, status: Status, text: &'static str) {
        self.local.watchers.forget(handle);
        events::request_refused(handle.session, status, text);
        self.local.core.refuse(handle, status, text);
    }

    #[cold]
    pub(super) fn refuse_answer(
        &mut self,
        handle: RequestHandle,
        rejected: RespondRejected<MsgBuf>,
    ) {
        let text = match rejected.error {
            RespondError::TooLarge { .. } => "the response exceeds what the caller accepts",
            RespondError::NoRoom => "executed; no memory to keep the answer",
            _ => return,
        };
        self.local.core.respond_error(handle, Status::ResourceExhausted, text);
    }

    /// Gives up stalled messages of others, for an answer. Returns false if there were none.
    #[cold]
    pub(super) fn make_room_for_answer(&mut self, bytes: usize) -> bool {
        self.local.core.make_room_for_answer(bytes)
    }

    /// Sends the answer of a task.
    pub(super) fn answer(&mut self, handle: RequestHandle, outcome: Result<MsgBuf, Error>) {
        match outcome {
            Ok(message) => self.respond(handle, Status::Ok, message),
            Err(error) => {
                // A failure has another status than OK.
                let is_ok = error.status == Status::Ok;
                let status = if is_ok { Status::Unknown } else { error.status };
                self.respond_error(handle, status, error.body());
            }
        }
    }

    pub(super) fn respond_error(
        &mut self,
        handle: RequestHandle,
        status: Status,
        text: impl AsRef<[u8]>,
    ) {
        match self.alloc_message(text.as_ref()) {
            Ok(message) => self.respond(handle, status, message),
            Err(_) => {
                self.local.watchers.forget(handle);
                self.local.core.respond_error(handle, status, "no memory for the message");
            }
        }
    }
}

/// A call rejected by the core.
pub(crate) type NotTaken = petrel_proto::CallRejected<MsgBuf, Continuation>;
