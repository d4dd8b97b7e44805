//! Interceptors: code around the calls of a typed service, at the client and at the server.
//!
//! The interceptors of a client or a server are a list in its type, such as `(Log, (Token, ()))`. The compiler thus sees that an empty list
//! does nothing.

use std::time::Duration;

use petrel_proto::{Execution, Status};

use super::annotated::{AnnotatedCall, Around};
use crate::client::Call;
use crate::endpoint::Peer;
use crate::error::Error;
use crate::panics::in_call;
use crate::stream::AroundStream;
use crate::sync::thread;
use crate::time::Time;
use crate::values::{Envelope, Metadata};

/// The name of an interceptor that panics: the panic ends the call with INTERNAL.
const NAME: &str = "an interceptor";

/// Code around the calls of a client: `GreeterClient::new(client).with(interceptor)`. Clones act on clones of the client.
///
/// ```
/// use petrel::Error;
/// use petrel::service::{CallEnd, ClientInterceptor, OutgoingCall};
///
/// #[derive(Clone)]
/// struct Token(&'static str);
///
/// impl ClientInterceptor for Token {
///     fn before(&self, call: &mut OutgoingCall<'_>) -> Result<(), Error> {
///         call.metadata().insert("token", self.0)
///     }
///
///     fn after(&self, call: &OutgoingCall<'_>, end: &CallEnd<'_>) {
///         println!("{} took {:?}", call.method(), end.duration());
///     }
/// }
/// ```
///
/// Interceptors surround a whole stream: [`before`](Self::before) runs before its server is chosen, and [`after`](Self::after) when the application
/// gets the end, or drops the receiver.
pub trait ClientInterceptor: Clone + Send + Sync + 'static {
    /// Runs when a call or stream begins, before its first attempt.
    ///
    /// # Errors
    /// The outcome of a call that is not to be made.
    fn before(&self, call: &mut OutgoingCall<'_>) -> Result<(), Error> {
        let _ = call;
        Ok(())
    }

    /// Runs at the end of a call for which [`before`](Self::before) returned no error: after the last attempt, or when the call is dropped
    /// (CANCELLED). The end of a call that is [detached](AnnotatedCall::detach) is not seen.
    fn after(&self, call: &OutgoingCall<'_>, end: &CallEnd<'_>) {
        let _ = (call, end);
    }
}

/// Code around the handlers of a server: `GreeterServer::new(service).with(interceptor)`.
pub trait ServerInterceptor: Send + Sync + 'static {
    /// Runs before the request is decoded, on the thread of the handler.
    ///
    /// # Errors
    /// The answer to a request whose handler is not to run.
    fn before(&self, call: &IncomingCall<'_>) -> Result<(), Error> {
        let _ = call;
        Ok(())
    }

    /// Runs after the handler, before its reply is sent, if [`before`](Self::before) returned no error. If the caller has cancelled the call
    /// meanwhile, and its handler is a future, the end is CANCELLED; after a panic the end is INTERNAL.
    fn after(&self, call: &IncomingCall<'_>, end: &CallEnd<'_>) {
        let _ = (call, end);
    }
}

/// A call of a client, as its interceptors see the call.
#[derive(Debug)]
pub struct OutgoingCall<'a> {
    pub(super) method: &'static str,
    pub(super) timeout: Option<Duration>,
    pub(super) deadline: Option<Time>,
    pub(super) metadata: &'a mut Metadata,
}

impl OutgoingCall<'_> {
    /// Returns the name of the method: `greeter.Greeter/Hello`.
    pub fn method(&self) -> &'static str {
        self.method
    }

    /// Returns the call's own timeout.
    pub fn timeout(&self) -> Option<Duration> {
        self.timeout
    }

    /// Returns the call's own deadline.
    pub fn deadline(&self) -> Option<Time> {
        self.deadline
    }

    /// Returns the metadata, to be read and changed before the call begins.
    pub fn metadata(&mut self) -> &mut Metadata {
        self.metadata
    }

    /// Returns the metadata that were sent.
    pub fn sent_metadata(&self) -> &Metadata {
        self.metadata
    }
}

/// A call at the server, as its interceptors see the call.
#[derive(Clone, Copy, Debug)]
pub struct IncomingCall<'a> {
    pub(super) method: &'static str,
    pub(super) peer: Option<&'a Peer>,
    pub(super) deadline: Option<Time>,
    pub(super) envelope: Option<&'a Envelope>,
}

impl<'a> IncomingCall<'a> {
    /// Returns the name of the method: `greeter.Greeter/Hello`.
    pub fn method(&self) -> &'static str {
        self.method
    }

    /// Returns the caller's identity. `None` if the session has ended meanwhile.
    pub fn peer(&self) -> Option<&'a Peer> {
        self.peer
    }

    /// Returns when the caller stops waiting.
    pub fn deadline(&self) -> Option<Time> {
        self.deadline
    }

    /// Returns the metadata of the request.
    pub fn metadata(&self) -> &'a Metadata {
        Envelope::request_of(self.envelope)
    }

    /// Adds an entry to the metadata of the reply. A caller without an envelope reads none: the entry is dropped.
    ///
    /// # Errors
    /// As [`Metadata::insert`].
    pub fn reply_metadata(&self, key: &str, value: impl AsRef<[u8]>) -> Result<(), Error> {
        Envelope::insert_reply(self.envelope, key, value.as_ref())
    }
}

/// The end of a call, as interceptors see it.
#[derive(Clone, Copy, Debug)]
pub struct CallEnd<'a> {
    error: Option<&'a Error>,
    duration: Duration,
}

impl<'a> CallEnd<'a> {
    pub(super) fn new(error: Option<&'a Error>, began: Time, now: Time) -> Self {
        Self { error, duration: now.since(began) }
    }

    /// Returns the error; `None` for a reply.
    pub fn error(&self) -> Option<&'a Error> {
        self.error
    }

    /// Returns the status: OK for a reply.
    pub fn status(&self) -> Status {
        self.error.map_or(Status::Ok, |error| error.status)
    }

    /// Returns the time since the interceptor's `before`.
    pub fn duration(&self) -> Duration {
        self.duration
    }
}

/// The call of a method by a client with these interceptors: a [`Call`] if there are none, else an [`AnnotatedCall`].
pub type CallOf<T, I> = <I as ClientInterceptors>::Call<T>;

/// The interceptors of a client: `()`, or an interceptor and the list of the earlier interceptors.
pub trait ClientInterceptors: Clone + Send + Sync + 'static {
    /// The type of calls.
    type Call<T: 'static>;

    #[doc(hidden)]
    fn wrap<T: 'static>(&self, call: Call<T>, method: &'static str) -> Self::Call<T>;

    #[doc(hidden)]
    fn watch(&self, method: &'static str) -> Option<Box<dyn AroundStream>>;

    #[doc(hidden)]
    fn before(&self, call: &mut OutgoingCall<'_>) -> Result<(), Error>;

    #[doc(hidden)]
    fn after(&self, call: &OutgoingCall<'_>, end: &CallEnd<'_>) -> Result<(), Error>;
}

impl ClientInterceptors for () {
    type Call<T: 'static> = Call<T>;

    #[inline(always)]
    fn wrap<T: 'static>(&self, call: Call<T>, _: &'static str) -> Call<T> {
        call
    }

    fn watch(&self, _: &'static str) -> Option<Box<dyn AroundStream>> {
        None
    }

    fn before(&self, _: &mut OutgoingCall<'_>) -> Result<(), Error> {
        Ok(())
    }

    fn after(&self, _: &OutgoingCall<'_>, _: &CallEnd<'_>) -> Result<(), Error> {
        Ok(())
    }
}

/// The interceptor that was added first runs first, and last at the end.
impl<F: ClientInterceptor, R: ClientInterceptors> ClientInterceptors for (F, R) {
    type Call<T: 'static> = AnnotatedCall<T, Self>;

    fn wrap<T: 'static>(&self, call: Call<T>, method: &'static str) -> Self::Call<T> {
        AnnotatedCall::new(call, self.clone(), method)
    }

    fn watch(&self, method: &'static str) -> Option<Box<dyn AroundStream>> {
        Some(Around::of_stream(self.clone(), method))
    }

    fn before(&self, call: &mut OutgoingCall<'_>) -> Result<(), Error> {
        self.1.before(call)?;
        let begun = in_call(NAME, Execution::NotSent, || self.0.before(call)).flatten();
        if let Err(error) = &begun {
            self.1.after(call, &CallEnd { error: Some(error), duration: Duration::ZERO })?;
        }
        begun
    }

    fn after(&self, call: &OutgoingCall<'_>, end: &CallEnd<'_>) -> Result<(), Error> {
        let own = in_call(NAME, Execution::MayHaveExecuted, || self.0.after(call, end));
        self.1.after(call, end).and(own)
    }
}

/// The interceptors of a server: `()`, or an interceptor and the list of the earlier interceptors.
pub trait ServerInterceptors: Send + Sync + 'static {
    #[doc(hidden)]
    const ARE_NONE: bool;

    #[doc(hidden)]
    fn before(&self, call: &IncomingCall<'_>) -> Result<(), Error>;

    #[doc(hidden)]
    fn after(&self, call: &IncomingCall<'_>, end: &CallEnd<'_>) -> Result<(), Error>;
}

impl ServerInterceptors for () {
    const ARE_NONE: bool = true;

    fn before(&self, _: &IncomingCall<'_>) -> Result<(), Error> {
        Ok(())
    }

    fn after(&self, _: &IncomingCall<'_>, _: &CallEnd<'_>) -> Result<(), Error> {
        Ok(())
    }
}

/// The interceptor that was added first runs first, and last at the end.
impl<F: ServerInterceptor, R: ServerInterceptors> ServerInterceptors for (F, R) {
    const ARE_NONE: bool = false;

    fn before(&self, call: &IncomingCall<'_>) -> Result<(), Error> {
        self.1.before(call)?;
        let begun = in_call(NAME, Execution::Answered, || self.0.before(call)).flatten();
        if let Err(error) = &begun {
            self.1.after(call, &CallEnd { error: Some(error), duration: Duration::ZERO })?;
        }
        begun
    }

    fn after(&self, call: &IncomingCall<'_>, end: &CallEnd<'_>) -> Result<(), Error> {
        let own = in_call(NAME, Execution::Answered, || self.0.after(call, end));
        self.1.after(call, end).and(own)
    }
}

/// A handler that runs between the interceptors of its server: the end is told once, also if the handler is dropped.
pub(super) struct Watch<'a, I: ServerInterceptors, N: Fn() -> Time> {
    interceptors: &'a I,
    call: IncomingCall<'a>,
    now: N,
    began: Time,
    has_ended: bool,
}

impl<'a, I: ServerInterceptors, N: Fn() -> Time> Watch<'a, I, N> {
    /// Runs the interceptors before a handler.
    ///
    /// # Errors
    /// An interceptor refuses the call.
    pub(super) fn begin(
        interceptors: &'a I,
        call: IncomingCall<'a>,
        now: N,
    ) -> Result<Self, Error> {
        let began = if I::ARE_NONE { Time::from_ns(0) } else { now() };
        interceptors.before(&call)?;
        Ok(Self { interceptors, call, now, began, has_ended: false })
    }

    /// Runs the interceptors after the handler.
    ///
    /// # Errors
    /// An interceptor has panicked.
    pub(super) fn end(mut self, error: Option<&Error>) -> Result<(), Error> {
        self.tell(error)
    }

    fn tell(&mut self, error: Option<&Error>) -> Result<(), Error> {
        assert!(!self.has_ended, "a call ends once");
        self.has_ended = true;
        if I::ARE_NONE {
            return Ok(());
        }
        let end = CallEnd::new(error, self.began, (self.now)());
        self.interceptors.after(&self.call, &end)
    }
}

impl<I: ServerInterceptors, N: Fn() -> Time> Drop for Watch<'_, I, N> {
    fn drop(&mut self) {
        if self.has_ended || I::ARE_NONE {
            return;
        }
        let (status, text) = match thread::panicking() {
            true => (Status::Internal, "the handler panicked"),
            false => (Status::Cancelled, "the caller no longer waits"),
        };
        // The call has ended: an interceptor that panics changes nothing.
        let _ = self.tell(Some(&Error::of(status, text, Execution::MayHaveExecuted)));
    }
}
