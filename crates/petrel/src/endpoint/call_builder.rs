//! Builds a call on its endpoint's own thread: message, limits, and continuation.

use std::cell::Cell;
use std::mem;
use std::rc::Rc;
use std::time::Duration;

use petrel_proto::{PendingCall, SessionId};
use petrel_transport::Transport;
use petrel_transport::buf::PoolExhausted;

use super::Endpoint;
use super::context::continuation::{CallKey, Continuation, KeyedEnd, Reply};
use super::context::{CallKind, Context, Local, NotTaken};
use super::in_loop::InLoop;
use super::message::IntoMessage;
use crate::control::ControlPlane;
use crate::error::Error;
use crate::msgbuf::MsgBuf;
use crate::time::Time;
use crate::values::{CallOptions, State};
use callee::ToSend;

impl<S: 'static> Context<'_, S> {
    /// Begins a call of `method`, on a session or by a client of this endpoint; [`CallBuilder::then`] sends it.
    ///
    /// The message may be a buffer, sent without a copy, or bytes, copied into a buffer.
    #[inline(always)]
    pub fn call<C: Callee, M: IntoMessage>(
        &mut self,
        callee: C,
        method: u16,
        request: M,
    ) -> CallBuilder<&mut Self, M, C> {
        CallBuilder::new(self, callee, method, request)
    }
}

/// The origin of a call on the endpoint's own thread: a [`Context`], or the [`Endpoint`](crate::Endpoint) itself.
pub trait Caller: place::Sealed {}

impl<P: place::Sealed> Caller for P {}

/// The place where a call is made.
pub(crate) mod place {
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
}

/// The target of a call: the server of a session, by its [`SessionId`], or any available server of a
/// [`Client`](crate::Client)'s service, if the client is [of this endpoint](crate::Endpoint::client).
pub trait Callee: callee::Sealed {}

impl<C: callee::Sealed> Callee for C {}

pub(crate) mod callee {
    use super::*;

    /// A call to be sent.
    pub struct ToSend<M> {
        pub(crate) method: u16,
        pub(crate) request: M,
        pub(crate) response: Option<MsgBuf>,
        pub(crate) options: CallOptions,
        pub(crate) tag: Continuation,
    }

    pub trait Sealed: Sized {
        /// The identification of a sent call.
        type Sent;

        fn send<M: IntoMessage>(
            self,
            cx: &mut Context<'_>,
            to_send: ToSend<M>,
        ) -> Result<Self::Sent, Box<CallRejected>>;

        /// Returns the key to cancel a call, whose continuation has this number.
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
        ) -> Result<SessionId, Box<CallRejected>> {
            let ToSend { method, request, response, options, tag } = to_send;
            if options.needs_servers() {
                return Err(refused(cx.local, request, response, Error::needs_servers()));
            }
            let request = request.into_message(&cx.local.pool);
            let (request, response) = buffers::<M>(cx.local, request, response, &options)?;
            let call = PendingCall { method, tag, request, response };
            match cx.start(self, call, CallKind::of(&options, M::IS_SHARED)) {
                Ok(()) => Ok(self),
                Err(call) => Err(rejected::<M>(cx.local, self, call)),
            }
        }

        fn key(session: SessionId, number: u64) -> CallKey {
            CallKey::on_session(session, number)
        }
    }
}

/// A call to be made, on its endpoint's thread, and sent by [`then`](Self::then); of a [`Session`](crate::task::Session),
/// by awaiting it, or by [`started`](CallBuilder::started).
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
#[must_use = "a call is made by `then`, or when it is awaited or started"]
pub struct CallBuilder<P, M, C = SessionId> {
    pub(super) place: P,
    pub(super) callee: C,
    pub(super) method: u16,
    pub(super) request: M,
    pub(super) response: Option<MsgBuf>,
    pub(super) options: CallOptions,
}

/// A rejected call: nothing was sent, the continuation will not run, and the buffers are returned. It comes in a box: a
/// call that is sent then has a result of one word.
#[derive(Debug, thiserror::Error)]
#[error("{error}")]
pub struct CallRejected {
    /// The reason.
    pub error: Error,
    /// The request in its buffer. None if there was no memory for the buffer, and for a
    /// [`SharedMsg`](super::SharedMsg), which the caller has.
    pub request: Option<MsgBuf>,
    /// The buffer for the response. None without memory for the request.
    pub response: Option<MsgBuf>,
}

impl CallRejected {
    #[cold]
    fn new(error: Error, request: Option<MsgBuf>, response: Option<MsgBuf>) -> Box<Self> {
        Box::new(Self { error, request, response })
    }
}

impl From<Box<CallRejected>> for Error {
    /// Drops the buffers.
    fn from(rejected: Box<CallRejected>) -> Self {
        rejected.error
    }
}

impl<P, M, C> CallBuilder<P, M, C> {
    #[inline(always)]
    pub(crate) fn new(place: P, callee: C, method: u16, request: M) -> Self {
        let (response, options) = (None, CallOptions::new());
        Self { place, callee, method, request, response, options }
    }

    /// Ends the call with DEADLINE_EXCEEDED after `timeout`; the server learns the deadline too.
    #[inline(always)]
    pub fn timeout(mut self, timeout: Duration) -> Self {
        self.options = self.options.timeout(timeout);
        self
    }

    /// Sets the end as a time on the endpoint's clock ([`Context::now`]). With both, the earlier one holds.
    #[inline(always)]
    pub fn deadline(mut self, at: Time) -> Self {
        self.options = self.options.deadline(at);
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
        let before = mem::replace(&mut self.options, options);
        self.options.keep_of(&before);
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

    /// Changes the options of the call.
    #[inline(always)]
    pub(crate) fn map_options(mut self, change: impl FnOnce(CallOptions) -> CallOptions) -> Self {
        self.options = change(self.options);
        self
    }
}

impl<P: Caller, M: IntoMessage, C: Callee> CallBuilder<P, M, C> {
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
    ) -> Result<(), Box<CallRejected>> {
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
    ) -> Result<CallKey, Box<CallRejected>> {
        self.then_untyped(|state, cx, reply| {
            // SAFETY: this continuation belongs to an endpoint with this type of state.
            continuation(unsafe { state.get() }, cx.typed(), reply);
        })
    }

    /// Sends the call with a continuation that gets the state without its type.
    pub(crate) fn then_untyped(
        mut self,
        continuation: impl FnOnce(State<'_>, &mut Context<'_>, Reply) + 'static,
    ) -> Result<CallKey, Box<CallRejected>> {
        let number = self.place.context().local.keyed().add(move |state, cx, mut reply| {
            if M::IS_SHARED {
                reply.release_request();
            }
            continuation(state, cx, reply);
        });
        let Self { mut place, callee, method, request, response, options } = self;
        let tag = Continuation::numbered::<KeyedEnd>(number);
        let mut cx = place.context();
        let to_send = ToSend { method, request, response, options, tag };
        match callee.send(cx.untyped(), to_send) {
            Ok(sent) => Ok(C::key(sent, number)),
            Err(rejected) => {
                cx.local.keyed().forget(number);
                Err(rejected)
            }
        }
    }

    #[inline(always)]
    fn send(self, tag: Continuation) -> Result<(), Box<CallRejected>> {
        let Self { mut place, callee, method, request, response, options } = self;
        let to_send = ToSend { method, request, response, options, tag };
        callee.send(place.context().untyped(), to_send).map(drop)
    }
}

impl<P, M> CallBuilder<P, M, SessionId> {
    /// Makes the server run the call only when all earlier calls of the session have run, whatever the network does to
    /// their order (MP-RDMA §3.4, *synchronise*). Calls without the demand may overtake any call.
    ///
    /// The endpoint's sessions keep an order if [`SessionConfig::ordered`](super::SessionConfig::ordered) is set. An
    /// earlier call that has failed or was cancelled holds no later one back, and its handler may still be running. A
    /// server without memory for calls that wait refuses them with RESOURCE_EXHAUSTED.
    ///
    /// [`then`](Self::then) rejects the call with FAILED_PRECONDITION if the session keeps no order, or the server does
    /// not know ordered calls. Before the session is open the call waits, and then ends with this status.
    ///
    /// ```
    /// # use petrel::endpoint::EndpointConfig;
    /// # use petrel::Nexus;
    /// # const APPEND: u16 = 1;
    /// # let nexus = Nexus::builder().listen("127.0.0.1:0".parse()?).start()?;
    /// let mut server = nexus.endpoint_with(EndpointConfig::default(), Vec::new())?;
    /// server.on(APPEND, |log: &mut Vec<u8>, cx, request| {
    ///     log.push(request.data()[0]);
    ///     request.reply(cx, &[])
    /// });
    /// let mut config = EndpointConfig::default();
    /// config.sessions.ordered = true;
    /// let mut endpoint = nexus.endpoint_with(config, 0)?;
    /// let session = endpoint.connect(nexus.local_addr().expect("it listens"))?;
    /// for entry in 0..10 {
    ///     endpoint.call(session, APPEND, &[entry]).ordered().then(|done, _, reply| {
    ///         reply.message().expect("an answer");
    ///         *done += 1;
    ///     })?;
    /// }
    /// while *endpoint.state() < 10 {
    ///     endpoint.run_once();
    ///     server.run_once();
    /// }
    /// assert_eq!(server.state(), &[0, 1, 2, 3, 4, 5, 6, 7, 8, 9]);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    #[inline(always)]
    pub fn ordered(mut self) -> Self {
        self.options = self.options.in_order();
        self
    }
}

impl<P, M, C> CallBuilder<P, M, C> {
    /// Separates the call from its place; [`at`](CallBuilder::at) names another one.
    #[inline(always)]
    pub(crate) fn split(self) -> (P, CallBuilder<(), M, C>) {
        let Self { place, callee, method, request, response, options } = self;
        (place, CallBuilder { place: (), callee, method, request, response, options })
    }
}

impl<M, C> CallBuilder<(), M, C> {
    /// Puts the call to a place.
    pub(crate) fn at<P>(self, place: P) -> CallBuilder<P, M, C> {
        let Self { callee, method, request, response, options, .. } = self;
        CallBuilder { place, callee, method, request, response, options }
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
        let _running = InLoop::enter();
        let (endpoint, call) = self.split();
        let ended = Rc::new(Cell::new(None));
        let end = Rc::clone(&ended);
        call.at(&mut *endpoint).then(move |_, _, reply| end.set(Some(reply.into_response())))?;
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
pub(super) fn buffers<M: IntoMessage>(
    local: &Local,
    request: Result<MsgBuf, PoolExhausted>,
    response: Option<MsgBuf>,
    options: &CallOptions,
) -> Result<(MsgBuf, MsgBuf), Box<CallRejected>> {
    let request = match request {
        Ok(request) => request,
        Err(error) => return Err(CallRejected::new(error.into(), None, response)),
    };
    match response.map_or_else(|| local.hub.alloc_response(options.buffer_bytes()), Ok) {
        Ok(response) => Ok((request, response)),
        Err(error) => {
            let request = own::<M>(request);
            Err(CallRejected::new(error.into(), request, None))
        }
    }
}

/// Rejects a call whose options do not suit its callee.
#[cold]
pub(super) fn refused<M: IntoMessage>(
    local: &Local,
    request: M,
    response: Option<MsgBuf>,
    error: Error,
) -> Box<CallRejected> {
    let request = request.into_message(&local.pool).ok().and_then(own::<M>);
    CallRejected::new(error, request, response)
}

#[cold]
fn rejected<M: IntoMessage>(
    local: &Local,
    session: SessionId,
    call: NotTaken,
) -> Box<CallRejected> {
    let NotTaken { error, request, response, .. } = call;
    let error = Error::not_sent(error.status(), local.sessions.explain(session, &error));
    CallRejected::new(error, own::<M>(request), Some(response))
}

/// Returns the request, unless it only refers to a message of the application.
fn own<M: IntoMessage>(mut request: MsgBuf) -> Option<MsgBuf> {
    if M::IS_SHARED {
        request.release();
    }
    (!M::IS_SHARED).then_some(request)
}
