//! Builds a call on its endpoint's own thread: message, limits, and continuation.

use std::cell::Cell;
use std::rc::Rc;
use std::time::Duration;

use petrel_proto::{PendingCall, SessionId, Status};
use petrel_transport::Transport;
use petrel_transport::buf::{BufPool, PoolExhausted};

use super::Endpoint;
use super::call::{CallKey, Continuation, Reply, run_keyed};
use super::context::{Context, Local, NotTaken};
use super::options::CallOptions;
use super::service::{Asked, End, Message, begin_call};
use super::shared::SharedMsg;
use super::state::State;
use crate::client::{Client, InLoop};
use crate::control::ControlPlane;
use crate::error::Error;
use crate::msgbuf::MsgBuf;
use crate::workers::WorkerRequest;
use callee::ToSend;

/// The origin of a call on the endpoint's own thread: a [`Context`], or the [`Endpoint`] itself.
pub trait Caller: place::Sealed {}

impl<P: place::Sealed> Caller for P {}

mod place {
    use super::*;

    pub trait Sealed {
        type State: 'static;

        fn context(&mut self) -> Context<'_, Self::State>;
    }

    impl<S: 'static> Sealed for &mut Context<'_, S> {
        type State = S;

        #[inline(always)]
        fn context(&mut self) -> Context<'_, S> {
            self.reborrow()
        }
    }

    impl<S: 'static, T: Transport, C: ControlPlane<T::Link>> Sealed for &mut Endpoint<S, T, C> {
        type State = S;

        #[inline(always)]
        fn context(&mut self) -> Context<'_, S> {
            Endpoint::context(self)
        }
    }
}

/// The target of a call: the server of a session, by its [`SessionId`], or any available server of a [`Client`]'s
/// service, if the client is [of this endpoint](Endpoint::client).
pub trait Callee: callee::Sealed {}

impl<C: callee::Sealed> Callee for C {}

mod callee {
    use super::*;

    /// A call to be sent.
    pub struct ToSend<M> {
        pub(super) method: u16,
        pub(super) request: M,
        pub(super) response: Option<MsgBuf>,
        pub(super) options: CallOptions,
        pub(super) tag: Continuation,
    }

    pub trait Sealed: Sized {
        /// The identification of a sent call.
        type Sent;

        fn send<M: IntoMessage>(
            self,
            cx: &mut Context<'_>,
            to_send: ToSend<M>,
        ) -> Result<Self::Sent, CallRejected>;

        /// Returns the key to cancel the call with this number as its continuation.
        #[doc(hidden)]
        fn key(sent: Self::Sent, number: u64) -> CallKey;
    }

    impl Sealed for SessionId {
        type Sent = SessionId;

        #[inline(always)]
        fn send<M: IntoMessage>(
            self,
            cx: &mut Context<'_>,
            to_send: ToSend<M>,
        ) -> Result<SessionId, CallRejected> {
            let ToSend { method, request, response, options, tag } = to_send;
            if options.needs_servers() {
                return Err(refused(cx.local, request, response, Error::needs_servers()));
            }
            let request = request.into_message(&cx.local.pool);
            let (request, response) = buffers::<M>(cx.local, request, response, &options)?;
            let call = PendingCall { method, tag, request, response };
            let sent = match options.has_limits() || M::IS_SHARED {
                true => cx.start_with(self, call, options.timeout, options.deadline_ns),
                false => cx.start(self, call),
            };
            match sent {
                Ok(()) => Ok(self),
                Err(call) => Err(rejected::<M>(cx.local, self, call)),
            }
        }

        fn key(session: SessionId, number: u64) -> CallKey {
            CallKey::on_session(session, run_keyed, number)
        }
    }

    impl Sealed for &Client {
        type Sent = CallKey;

        fn send<M: IntoMessage>(
            self,
            cx: &mut Context<'_>,
            to_send: ToSend<M>,
        ) -> Result<CallKey, CallRejected> {
            let ToSend { method, request, response, options, tag } = to_send;
            let options = self.timed(options).begun(|| cx.local.clock.now_ns());
            let Some(service) = cx.local.service_of(self) else {
                return Err(refused(cx.local, request, response, other_endpoint()));
            };
            // The message must be copied: several attempts may use it, even after the end of the call.
            let request = request.into_own_message(&cx.local.pool);
            let (request, response) = buffers::<M>(cx.local, request, response, &options)?;
            let message = Message::Buffer(Some(request));
            let (room, end) = (Some(response), End::Then(tag));
            let end_ns = options.deadline_ns.expect("a client's call has a time, and has begun");
            let asked = Asked { method, message, room, options: &options, end_ns, end };
            let call = begin_call(cx, service, asked);
            Ok(CallKey::of_client(call))
        }

        fn key(call: CallKey, _number: u64) -> CallKey {
            call
        }
    }
}

/// The message of a call: a [`MsgBuf`], sent without a copy; a [`SharedMsg`], shared with other calls; or bytes, copied
/// into a buffer of the endpoint.
pub trait IntoMessage: message::Sealed {
    /// Whether the sent buffer only refers to the message.
    #[doc(hidden)]
    const IS_SHARED: bool = false;

    #[doc(hidden)]
    fn into_message(self, pool: &BufPool) -> Result<MsgBuf, PoolExhausted>;

    /// Returns the message in a buffer without references.
    #[doc(hidden)]
    fn into_own_message(self, pool: &BufPool) -> Result<MsgBuf, PoolExhausted>
    where
        Self: Sized,
    {
        self.into_message(pool)
    }
}

impl IntoMessage for MsgBuf {
    #[inline(always)]
    fn into_message(self, _pool: &BufPool) -> Result<MsgBuf, PoolExhausted> {
        Ok(self)
    }
}

impl IntoMessage for &SharedMsg {
    const IS_SHARED: bool = true;

    fn into_message(self, pool: &BufPool) -> Result<MsgBuf, PoolExhausted> {
        self.to_send(pool)
    }

    fn into_own_message(self, pool: &BufPool) -> Result<MsgBuf, PoolExhausted> {
        MsgBuf::holding(pool, self)
    }
}

/// Bytes, which are copied.
macro_rules! copied {
    ($(for<$($generic:ident: $kind:ty)?> $bytes:ty),*) => {$(
        impl<$(const $generic: $kind)?> IntoMessage for $bytes {
            fn into_message(self, pool: &BufPool) -> Result<MsgBuf, PoolExhausted> {
                MsgBuf::holding(pool, self.as_ref())
            }
        }

        impl<$(const $generic: $kind)?> message::Sealed for $bytes {}
    )*};
}

copied!(for<> &[u8], for<> &Vec<u8>, for<> Vec<u8>, for<> &str, for<> String);
copied!(for<N: usize> &[u8; N], for<N: usize> [u8; N]);

mod message {
    use super::*;

    pub trait Sealed {}

    impl Sealed for MsgBuf {}
    impl Sealed for &SharedMsg {}
}

/// A call to be made, on its endpoint's thread, and sent by [`then`](Self::then).
///
/// ```
/// # use petrel::endpoint::EndpointConfig;
/// # use petrel::Nexus;
/// # use std::time::Duration;
/// # const DOUBLE: u16 = 1;
/// # let nexus = Nexus::builder().listen("127.0.0.1:0".parse()?).start()?;
/// # let mut server = nexus.endpoint(EndpointConfig::default())?;
/// # server.on(DOUBLE, |_, cx, request| { let n = request.data()[0]; request.reply(cx, &[2 * n]) });
/// // The endpoint owns the answers, and lends them to the continuation.
/// let mut endpoint = nexus.endpoint_with(EndpointConfig::default(), Vec::new())?;
/// let session = endpoint.connect(nexus.local_addr().expect("it listens"))?;
/// endpoint
///     .call(session, DOUBLE, &[21])
///     .timeout(Duration::from_secs(5))
///     .then(|answers: &mut Vec<u8>, _, reply| answers.push(reply.message().expect("an answer")[0]))?;
/// while endpoint.state().is_empty() {
///     endpoint.run_once();
/// #   server.run_once();
/// }
/// assert_eq!(endpoint.state(), &[42]);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[must_use = "a call is made by `then`"]
pub struct CallBuilder<P, M, C = SessionId> {
    place: P,
    callee: C,
    method: u16,
    request: M,
    response: Option<MsgBuf>,
    options: CallOptions,
}

/// A rejected call: nothing was sent, the continuation will not run, and the buffers are returned.
#[derive(Debug, thiserror::Error)]
#[error("{error}")]
pub struct CallRejected {
    /// The reason.
    pub error: Error,
    /// The request in its buffer. None if there was no memory for the buffer, and for a [`SharedMsg`], which the caller
    /// has.
    pub request: Option<MsgBuf>,
    /// The buffer for the response. None if there was no memory for it.
    pub response: Option<MsgBuf>,
}

impl From<CallRejected> for Error {
    /// Drops the buffers.
    fn from(rejected: CallRejected) -> Self {
        rejected.error
    }
}

impl<P: Caller, M: IntoMessage, C: Callee> CallBuilder<P, M, C> {
    #[inline(always)]
    pub(super) fn new(place: P, callee: C, method: u16, request: M) -> Self {
        Self { place, callee, method, request, response: None, options: CallOptions::new() }
    }

    /// Ends the call with DEADLINE_EXCEEDED after `timeout`; the server learns the deadline too.
    #[inline(always)]
    pub fn timeout(mut self, timeout: Duration) -> Self {
        self.options = self.options.timeout(timeout);
        self
    }

    /// Sets the end as a time on the endpoint's clock ([`Context::now_ns`]). With both, the earlier one holds.
    #[inline(always)]
    pub fn deadline_ns(mut self, at_ns: u64) -> Self {
        self.options = self.options.deadline_ns(at_ns);
        self
    }

    /// Ends the call no later than the deadline of a request, if any: for calls made for the request outside its
    /// handler. Calls in its handler inherit the deadline.
    pub fn within(mut self, request: &WorkerRequest) -> Self {
        self.options = self.options.within(request);
        self
    }

    /// Sets the size of the endpoint's buffer for the response, used if the call has none; 1 200 bytes by default. A
    /// longer response gets a larger buffer when it arrives; the right size from the start costs less.
    #[inline(always)]
    pub fn response_bytes(mut self, bytes: usize) -> Self {
        self.options = self.options.response_bytes(bytes);
        self
    }

    /// Replaces all options of the call. A session has one server and rejects hedging and waiting for a server.
    #[inline(always)]
    pub fn options(mut self, options: CallOptions) -> Self {
        self.options = options;
        self
    }

    /// Writes the response to this buffer. A response beyond the buffer's capacity and [growth](MsgBuf::set_growth)
    /// fails the call with RESOURCE_EXHAUSTED. Without a buffer, the response may have any length up to
    /// `message_bytes_max` of the endpoint's [`SessionConfig`](crate::endpoint::SessionConfig).
    #[inline(always)]
    pub fn into_buffer(mut self, response: MsgBuf) -> Self {
        self.response = Some(response);
        self
    }

    /// Sends the call: `continuation` runs once, with the outcome and both buffers, in a later turn of the event loop.
    /// A closure that captures up to two words is stored without an allocation.
    ///
    /// Calls on one session may end in any order. Calls beyond the session's slots wait in a queue, and so do calls on
    /// a session that is being opened. Calls made in a handler, and in the continuations of these calls, inherit the
    /// deadline of the handler's request: they end no later.
    ///
    /// # Errors
    /// [`CallRejected`], with its buffers, when nothing was sent and `continuation` will not run.
    #[inline(always)]
    pub fn then(
        self,
        continuation: impl FnOnce(&mut P::State, &mut Context<'_, P::State>, Reply) + 'static,
    ) -> Result<(), CallRejected> {
        if M::IS_SHARED {
            let released = move |state: &mut _, cx: &mut Context<'_, _>, mut reply: Reply| {
                reply.release_request();
                continuation(state, cx, reply);
            };
            return self.send(Continuation::new(released));
        }
        self.send(Continuation::new(continuation))
    }

    /// Sends the call like [`then`](Self::then), and returns a key for [`Context::cancel`].
    ///
    /// # Errors
    /// As [`then`](Self::then).
    pub fn then_cancellable(
        self,
        continuation: impl FnOnce(&mut P::State, &mut Context<'_, P::State>, Reply) + 'static,
    ) -> Result<CallKey, CallRejected> {
        self.then_untyped(|state, cx, reply| {
            // SAFETY: the continuation of an endpoint with this type of state.
            continuation(unsafe { state.get() }, cx.typed(), reply);
        })
    }

    /// The same with a continuation of the library itself.
    pub(crate) fn then_untyped(
        mut self,
        continuation: impl FnOnce(State<'_>, &mut Context<'_>, Reply) + 'static,
    ) -> Result<CallKey, CallRejected> {
        let number = self.place.context().local.keyed.add(move |state, cx, mut reply| {
            if M::IS_SHARED {
                reply.release_request();
            }
            continuation(state, cx, reply);
        });
        let Self { mut place, callee, method, request, response, options } = self;
        let tag = Continuation::function(run_keyed, number);
        let mut cx = place.context();
        match callee.send(cx.untyped(), ToSend { method, request, response, options, tag }) {
            Ok(sent) => Ok(C::key(sent, number)),
            Err(rejected) => {
                cx.local.keyed.forget(number);
                Err(rejected)
            }
        }
    }

    #[inline(always)]
    fn send(self, tag: Continuation) -> Result<(), CallRejected> {
        let Self { mut place, callee, method, request, response, options } = self;
        let to_send = ToSend { method, request, response, options, tag };
        callee.send(place.context().untyped(), to_send).map(drop)
    }
}

impl<P: Caller, M: IntoMessage> CallBuilder<P, M, &Client> {
    /// Declares that the call may be executed twice: it is retried even if an attempt may have been executed.
    pub fn idempotent(mut self) -> Self {
        self.options = self.options.idempotent();
        self
    }

    /// Makes a second attempt, at another server if there is one, when the first has not ended after `time`; the first
    /// response counts. Implies [`idempotent`](Self::idempotent), and copies the request for each attempt.
    pub fn hedge_after(mut self, time: Duration) -> Self {
        self.options = self.options.idempotent().hedge_after(time);
        self
    }

    /// Waits for a server until the call's timeout when none can be reached, instead of failing the call.
    pub fn wait_for_ready(mut self) -> Self {
        self.options = self.options.wait_for_ready();
        self
    }

    /// Sends the call to the server that the key maps to: see [`client::Call::key`](crate::client::Call::key).
    pub fn key(mut self, key: impl AsRef<[u8]>) -> Self {
        self.options = self.options.key(key.as_ref());
        self
    }
}

impl<S: 'static, T, C, M, A> CallBuilder<&mut Endpoint<S, T, C>, M, A>
where
    T: Transport,
    C: ControlPlane<T::Link>,
    M: IntoMessage,
    A: Callee,
{
    /// Sends the call, and runs the event loop until it has ended: for tools and tests, where one call at a time is
    /// enough. Returns the response.
    ///
    /// # Errors
    /// How the call failed, or why it was not sent.
    pub fn wait(self) -> Result<MsgBuf, Error> {
        let Self { place: endpoint, callee, method, request, response, options } = self;
        let _running = InLoop::enter();
        let ended = Rc::new(Cell::new(None));
        let end = Rc::clone(&ended);
        CallBuilder { place: &mut *endpoint, callee, method, request, response, options }
            .then(move |_, _, reply| end.set(Some(reply.into_response())))?;
        loop {
            if let Some(outcome) = ended.take() {
                return outcome;
            }
            endpoint.turn();
        }
    }
}

/// Returns the buffers of a call. Without a buffer of the application, the response's buffer can grow.
#[inline(always)]
fn buffers<M: IntoMessage>(
    local: &Local,
    request: Result<MsgBuf, PoolExhausted>,
    response: Option<MsgBuf>,
    options: &CallOptions,
) -> Result<(MsgBuf, MsgBuf), CallRejected> {
    let request = match request {
        Ok(request) => request,
        Err(error) => return Err(CallRejected { error: error.into(), request: None, response }),
    };
    match response.map_or_else(|| local.hub.alloc_response(options.response_bytes), Ok) {
        Ok(response) => Ok((request, response)),
        Err(error) => {
            let request = own::<M>(request);
            Err(CallRejected { error: error.into(), request, response: None })
        }
    }
}

/// Rejects a call whose options do not suit its callee.
#[cold]
fn refused<M: IntoMessage>(
    local: &Local,
    request: M,
    response: Option<MsgBuf>,
    error: Error,
) -> CallRejected {
    let request = request.into_message(&local.pool).ok().and_then(own::<M>);
    CallRejected { error, request, response }
}

#[cold]
fn other_endpoint() -> Error {
    let text = "the client makes its calls by another endpoint: await the call, or make it there";
    Error::not_sent(Status::InvalidArgument, text)
}

#[cold]
fn rejected<M: IntoMessage>(local: &Local, session: SessionId, call: NotTaken) -> CallRejected {
    let NotTaken { error, request, response, .. } = call;
    let error = Error::not_sent(error.status(), local.sessions.explain(session, &error));
    CallRejected { error, request: own::<M>(request), response: Some(response) }
}

/// Returns the request, unless it only refers to a message of the application.
fn own<M: IntoMessage>(mut request: MsgBuf) -> Option<MsgBuf> {
    if M::IS_SHARED {
        request.release();
    }
    (!M::IS_SHARED).then_some(request)
}
