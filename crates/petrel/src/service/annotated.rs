//! Calls with metadata or interceptors.

use std::fmt;
use std::future::Future;
use std::pin::Pin;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use petrel_proto::{Execution, Status};

use super::interceptor::{CallEnd, ClientInterceptors, OutgoingCall};
use crate::client::{Call, ReadResponse, Response};
use crate::endpoint::CallOptions;
use crate::error::Error;
use crate::stream::AroundStream;
use crate::time::Time;
use crate::values::Metadata;

/// The panic for metadata of a call that is under way.
const TOO_LATE: &str = "a call gets its metadata before it begins";

/// A [`Call`] of a typed service with metadata, or by a client with [interceptors](super::ClientInterceptor). It has the options of a
/// [`Call`], and is awaited, waited for and started as a [`Call`] is.
///
/// Metadata that are not allowed, or beyond 1 KiB, end the call before anything is sent: with INVALID_ARGUMENT, or RESOURCE_EXHAUSTED. A server
/// of a version without metadata ends the call with UNIMPLEMENTED. All attempts of the call have the same metadata.
#[must_use = "a call begins when it is awaited, waited for or started"]
pub struct AnnotatedCall<T, I: ClientInterceptors = ()> {
    call: Call,
    read: ReadResponse<T>,
    around: Around<I>,
    state: State,
}

#[derive(Debug)]
enum State {
    New,
    /// Refused before the call was made.
    Refused(Error),
    /// Begun; whether with an envelope.
    Begun {
        has_envelope: bool,
    },
    Ended,
}

/// The interceptors of a call or a stream, and the data that they see.
pub(super) struct Around<I: ClientInterceptors> {
    interceptors: I,
    method: &'static str,
    metadata: Metadata,
    wants_reply_metadata: bool,
    timeout: Option<Duration>,
    deadline: Option<Time>,
    /// The begin and the client's clock, until the interceptors are told of the end.
    began: Option<(Time, crate::Client)>,
}

impl<I: ClientInterceptors> Around<I> {
    fn new(interceptors: I, method: &'static str) -> Self {
        Self {
            interceptors,
            method,
            metadata: Metadata::new(),
            wants_reply_metadata: false,
            timeout: None,
            deadline: None,
            began: None,
        }
    }

    /// Returns the interceptors of a stream.
    pub(super) fn of_stream(interceptors: I, method: &'static str) -> Box<dyn AroundStream> {
        Box::new(Self::new(interceptors, method))
    }

    fn outgoing(&mut self) -> (&I, OutgoingCall<'_>) {
        let &mut Self { method, timeout, deadline, .. } = self;
        (
            &self.interceptors,
            OutgoingCall { method, timeout, deadline, metadata: &mut self.metadata },
        )
    }

    /// Runs the interceptors before the call.
    fn begin(&mut self, client: &crate::Client) -> Result<(), Error> {
        let (interceptors, mut call) = self.outgoing();
        interceptors.before(&mut call)?;
        self.began = Some((client.now(), client.clone()));
        Ok(())
    }

    /// Runs the interceptors after the call, once.
    ///
    /// # Errors
    /// An interceptor has panicked.
    fn end(&mut self, error: Option<&Error>) -> Result<(), Error> {
        let Some((began, client)) = self.began.take() else { return Ok(()) };
        let (interceptors, call) = self.outgoing();
        interceptors.after(&call, &CallEnd::new(error, began, client.now()))
    }
}

impl<I: ClientInterceptors> AroundStream for Around<I> {
    fn begin(
        &mut self,
        client: &crate::Client,
        timeout: Option<Duration>,
        metadata: Metadata,
    ) -> Result<Metadata, Error> {
        (self.timeout, self.metadata) = (timeout, metadata);
        let begun = Self::begin(self, client);
        begun.map_err(|error| error.with_execution(Execution::NotSent))?;
        Ok(self.metadata.clone())
    }

    fn end(&mut self, error: Option<&Error>) -> Result<(), Error> {
        Self::end(self, error)
    }
}

impl<I: ClientInterceptors> Drop for Around<I> {
    fn drop(&mut self) {
        if self.began.is_some() {
            let text = "the caller dropped the call";
            let error = Error::of(Status::Cancelled, text, Execution::MayHaveExecuted);
            // No caller is left to be told of a panic.
            let _ = self.end(Some(&error));
        }
    }
}

impl<T: 'static> Call<T> {
    /// Adds an entry of [metadata](Metadata) to a call of a typed service. The server's handler reads it by `cx.metadata()`.
    ///
    /// # Panics
    /// When the call has begun.
    pub fn metadata(self, key: &str, value: impl AsRef<[u8]>) -> AnnotatedCall<T> {
        AnnotatedCall::new(self, (), "").metadata(key, value)
    }

    /// Takes on the entries of a request's metadata that are marked as inherited: for calls of a typed service in a handler.
    ///
    /// # Panics
    /// When the call has begun.
    pub fn inherit(self, metadata: &Metadata) -> AnnotatedCall<T> {
        AnnotatedCall::new(self, (), "").inherit(metadata)
    }

    /// Asks the server for the metadata of its reply, too: for calls of a typed service. An error has [details](Error::details) in their place.
    ///
    /// # Panics
    /// When the call has begun.
    pub fn with_reply_metadata(self) -> WithReplyMetadata<T> {
        AnnotatedCall::new(self, (), "").with_reply_metadata()
    }
}

macro_rules! options {
    ($($name:ident($($argument:ident: $type:ty)?);)*) => {
        $(#[doc = concat!("As [`Call::", stringify!($name), "`].")]
        pub fn $name(self $(, $argument: $type)?) -> Self {
            Self { call: self.call.$name($($argument)?), ..self }
        })*
    };
}

impl<T: 'static, I: ClientInterceptors> AnnotatedCall<T, I> {
    pub(super) fn new(call: Call<T>, interceptors: I, method: &'static str) -> Self {
        let (call, read) = call.into_unread();
        Self { call, read, around: Around::new(interceptors, method), state: State::New }
    }

    options! {
        timeout(timeout: Duration);
        deadline(at: Time);
        idempotent();
        hedge_after(time: Duration);
        wait_for_ready();
        key(key: impl AsRef<[u8]>);
        ordered();
        options(options: CallOptions);
    }

    /// Adds an entry of metadata, in place of an entry with the same key. As all methods that add metadata, it panics when the call has begun.
    pub fn metadata(self, key: &str, value: impl AsRef<[u8]>) -> Self {
        self.change(|metadata| metadata.insert(key, value))
    }

    /// Adds an entry of metadata that the nested calls of the server's handler may inherit.
    pub fn inherited_metadata(self, key: &str, value: impl AsRef<[u8]>) -> Self {
        self.change(|metadata| metadata.insert_inherited(key, value))
    }

    /// Takes on the entries of a request's metadata that are marked as inherited: for calls in a handler.
    pub fn inherit(self, metadata: &Metadata) -> Self {
        self.change(|own| own.inherit(metadata))
    }

    /// Asks the server for the metadata of its reply, too.
    pub fn with_reply_metadata(mut self) -> WithReplyMetadata<T, I> {
        self.around.wants_reply_metadata = true;
        WithReplyMetadata(self)
    }

    fn change(mut self, change: impl FnOnce(&mut Metadata) -> Result<(), Error>) -> Self {
        let has_begun = matches!(self.state, State::Begun { .. } | State::Ended);
        assert!(!has_begun, "{TOO_LATE}");
        if let Err(error) = change(&mut self.around.metadata)
            && let State::New = self.state
        {
            self.state = State::Refused(error.with_execution(Execution::NotSent));
        }
        self
    }

    /// As [`Call::started`].
    pub fn started(mut self) -> Self {
        match self.begin() {
            Ok(_) => self.call = self.call.started(),
            Err(error) => self.state = State::Refused(error),
        }
        self
    }

    /// As [`Call::detach`]. Interceptors do not see the end of the call.
    pub fn detach(mut self) {
        if self.begin().is_ok() {
            self.around.began = None;
            self.call.detach();
        }
    }

    /// As [`Call::wait`].
    ///
    /// # Errors
    /// As [`Call::wait`], or why the call was not made.
    pub fn wait(self) -> Result<T, Error> {
        self.wait_for_both().map(|(reply, _)| reply)
    }

    fn wait_for_both(mut self) -> Result<(T, Metadata), Error> {
        let has_envelope = self.begin()?;
        let Self { call, read, mut around, .. } = self;
        let outcome = call.wait().and_then(|response| open(response, has_envelope, read));
        around.end(outcome.as_ref().err()).and(outcome)
    }

    /// Runs the interceptors, and adds the envelope, once. Returns whether the call has an envelope.
    fn begin(&mut self) -> Result<bool, Error> {
        match std::mem::replace(&mut self.state, State::Ended) {
            State::New => {}
            State::Begun { has_envelope } => {
                self.state = State::Begun { has_envelope };
                return Ok(has_envelope);
            }
            State::Refused(error) => return Err(error),
            State::Ended => panic!("a call was polled after it had ended"),
        }
        let options = self.call.call_options();
        self.around.timeout = options.timeout_ns().map(Duration::from_nanos);
        self.around.deadline = options.deadline_ns().map(Time::from_ns);
        let not_sent = |error: Error| error.with_execution(Execution::NotSent);
        self.around.begin(self.call.client()).map_err(not_sent)?;
        let metadata = &self.around.metadata;
        let has_envelope = !metadata.is_empty() || self.around.wants_reply_metadata;
        if has_envelope && let Err(error) = self.call.add_envelope(metadata) {
            self.around.end(Some(&error))?;
            return Err(error);
        }
        self.state = State::Begun { has_envelope };
        Ok(has_envelope)
    }

    fn poll_both(&mut self, cx: &mut Context<'_>) -> Poll<Result<(T, Metadata), Error>> {
        let has_envelope = self.begin()?;
        let outcome = ready!(Pin::new(&mut self.call).poll(cx));
        let outcome = outcome.and_then(|response| open(response, has_envelope, self.read));
        self.state = State::Ended;
        Poll::Ready(self.around.end(outcome.as_ref().err()).and(outcome))
    }
}

/// Reads a reply, with its metadata if there is an envelope.
fn open<T>(
    mut response: Response,
    has_envelope: bool,
    read: ReadResponse<T>,
) -> Result<(T, Metadata), Error> {
    if !has_envelope {
        return Ok((read(response, 0)?, Metadata::new()));
    }
    let Some((message, metadata)) = Metadata::split(&response) else {
        let text = "the metadata of the reply are malformed";
        return Err(Error::of(Status::Internal, text, Execution::Answered));
    };
    let len = message.len();
    response.cut(len);
    Ok((read(response, 0)?, metadata))
}

// Nothing in a call is pinned.
impl<T, I: ClientInterceptors> Unpin for AnnotatedCall<T, I> {}

impl<T: 'static, I: ClientInterceptors> Future for AnnotatedCall<T, I> {
    type Output = Result<T, Error>;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        self.poll_both(cx).map_ok(|(reply, _)| reply)
    }
}

impl<T, I: ClientInterceptors> fmt::Debug for AnnotatedCall<T, I> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // Values may be secrets.
        let keys: Vec<_> = self.around.metadata.iter().map(|entry| entry.key).collect();
        write!(f, "{:?} with {keys:?}", self.call)
    }
}

/// A call that ends with the reply and its [`Metadata`], which are empty if the handler has added none.
#[must_use = "a call begins when it is awaited, waited for or started"]
pub struct WithReplyMetadata<T, I: ClientInterceptors = ()>(AnnotatedCall<T, I>);

impl<T: 'static, I: ClientInterceptors> WithReplyMetadata<T, I> {
    /// As [`Call::started`].
    pub fn started(self) -> Self {
        Self(self.0.started())
    }

    /// As [`Call::wait`].
    ///
    /// # Errors
    /// As [`Call::wait`], or why the call was not made.
    pub fn wait(self) -> Result<(T, Metadata), Error> {
        self.0.wait_for_both()
    }
}

impl<T: 'static, I: ClientInterceptors> Future for WithReplyMetadata<T, I> {
    type Output = Result<(T, Metadata), Error>;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        self.0.poll_both(cx)
    }
}

impl<T, I: ClientInterceptors> fmt::Debug for WithReplyMetadata<T, I> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Server;
    use crate::service::{Ctx, Raw, ServedService, TABLES, parse};

    #[crate::service(name = "test.Words", version = "1", codec = Raw)]
    trait Words {
        #[id(1)]
        async fn read(&self, cx: &Ctx, word: String) -> Result<String, Error>;
        async fn find(&self, cx: &Ctx, word: String) -> Result<String, Error>;
    }

    struct Book;

    impl Words for Book {
        async fn read(&self, cx: &Ctx, word: String) -> Result<String, Error> {
            Ok(format!("{word} {:?}", cx.metadata()))
        }

        async fn find(&self, _: &Ctx, word: String) -> Result<String, Error> {
            Ok(word)
        }
    }

    /// A client with metadata at a server of a version without; and at two servers, of both versions.
    #[test]
    fn metadata__at_a_server_of_an_earlier_version() {
        let start = |is_earlier: bool| {
            let server = Server::bind("127.0.0.1:0").serve(
                |_| (),
                move |endpoint| {
                    endpoint.serve(WordsServer::new(Book));
                    if is_earlier {
                        endpoint.hide_envelopes();
                    }
                },
            );
            server.start().unwrap()
        };
        let (earlier, later) = (start(true), start(false));
        let client = WordsClient::connect_wait(earlier.local_addr()).unwrap();
        let tables = client.client().call(crate::endpoint::HEALTH_METHOD, TABLES).wait().unwrap();
        let services: Vec<ServedService> = parse(&tables).unwrap();
        assert!(services[0].methods.iter().all(|method| method.envelope.is_none()));
        let word = || "tern".to_owned();
        assert_eq!(client.read(word()).wait().unwrap(), "tern {}");
        let error = client.find(word()).metadata("tenant", "a").wait().unwrap_err();
        let expected = (Status::Unimplemented, Execution::NotSent);
        assert_eq!((error.status, error.execution), expected);
        let text = "test.Words/Find of version 1: the server takes no metadata: call without";
        assert!(error.message.ends_with(text), "{error}");
        let both = [earlier.local_addr(), later.local_addr()];
        let client = WordsClient::connect_wait(both).unwrap();
        while client.client().stats().servers_ready < 2 {
            std::thread::yield_now();
        }
        for _ in 0..20 {
            let reply = client.read(word()).metadata("tenant", "a").wait().unwrap();
            assert_eq!(reply, "tern {\"tenant\": \"a\"}", "calls go to the later server");
            assert_eq!(client.read(word()).wait().unwrap(), "tern {}");
        }
    }
}
