//! Methods with streams.

use std::rc::Rc;
use std::sync::Arc;

use petrel_proto::{Execution, Status};

use super::client::{Stub, append_request};
use super::codec::{Decode, Encode, Malformed};
use super::ctx::Ctx;
use super::interceptor::{ClientInterceptors, IncomingCall, ServerInterceptors, Watch};
use super::server::Between;
use crate::error::Error;
use crate::stream::{Kind, Opened, Receiver, Reply, Sender, StreamCall};
use crate::values::Envelope;
use crate::values::method_table::{MethodEntry, hash};

/// A method with streams. Made by the attribute [`service`](macro@crate::service).
pub trait StreamMethod: 'static {
    /// The codec of all messages.
    type Codec: Encode<Self::Request> + Encode<Self::Input> + Encode<Self::Output>;
    /// The type of the request, or that of the answer without one.
    type Request: 'static;
    /// The type of the client's messages, or that of the answer without a stream of the client.
    type Input: 'static;
    /// The type of the server's messages, or of the reply.
    type Output: 'static;
    /// The name, with that of the service.
    const NAME: &'static str;
    /// Whether the method has a request.
    const HAS_REQUEST: bool;
    /// Whether the client sends a stream, and whether the server does.
    const STREAMS: (bool, bool);
}

impl MethodEntry {
    /// Returns the entry of a method with streams in the table of its service.
    pub const fn of_stream<M: StreamMethod>(name: &'static str, id: Option<u16>) -> Self {
        let codec = <M::Codec as Encode<M::Output>>::NAME;
        Self { name, id, is_idempotent: false, streams: M::STREAMS, codec, schema: schema::<M> }
    }
}

/// Returns the fingerprint of a method's messages and streams: never that of a method without streams, whose messages may differ.
fn schema<M: StreamMethod>() -> u64 {
    let request = <M::Codec as Encode<M::Request>>::schema();
    let input = <M::Codec as Encode<M::Input>>::schema();
    let output = <M::Codec as Encode<M::Output>>::schema();
    let (of_request, of_input) =
        (<M::Codec as Encode<M::Request>>::NAME, <M::Codec as Encode<M::Input>>::NAME);
    let kind = format!("{:?} {} ", M::STREAMS, M::HAS_REQUEST);
    hash([&*kind, &format!("{request:x} {input:x} {output:x} "), of_request, " ", of_input]) | 1
}

/// Reads a message that a client sends.
fn decode_sent<C: Decode<T>, T, M: StreamMethod>(bytes: &[u8]) -> Result<T, Error> {
    C::decode(bytes).map_err(|why| {
        let text = format!("{}: a message of the stream is malformed: {why}", M::NAME);
        Error::new(Status::InvalidArgument, text)
    })
}

/// Reads a message that a server sends.
fn decode_answer<C: Decode<T>, T, M: StreamMethod>(bytes: &[u8]) -> Result<T, Error> {
    C::decode(bytes).map_err(|why: Malformed| {
        let text = format!("{}: a message of the stream is malformed: {why}", M::NAME);
        Error::of(Status::Internal, text, Execution::Answered)
    })
}

/// Appends a message.
fn append<C: Encode<T>, T>(message: &T, out: &mut Vec<u8>) {
    C::append(message, out);
}

fn request_bytes<M: StreamMethod>(request: Option<&M::Request>) -> Result<Option<Vec<u8>>, Error> {
    let Some(request) = request else { return Ok(None) };
    let mut out = Vec::new();
    append_request::<M::Codec, _>(M::NAME, request, &mut out)?;
    Ok(Some(out))
}

/// The client's ends of a stream of the client, and of streams of both sides.
type Sending<M> = (Sender<<M as StreamMethod>::Input>, Reply<<M as StreamMethod>::Output>);
type Both<M> = (Sender<<M as StreamMethod>::Input>, Receiver<<M as StreamMethod>::Output>);

impl<I: ClientInterceptors> Stub<I> {
    /// Returns a stream of the server by the method at this place of the table.
    pub fn server_stream<M: StreamMethod>(
        &self,
        index: usize,
        request: Option<&M::Request>,
    ) -> StreamCall<Receiver<M::Output>>
    where
        M::Codec: Decode<M::Output>,
    {
        let kind = Kind::server(decode_answer::<M::Codec, M::Output, M>);
        self.stream((index, M::NAME), request_bytes::<M>(request), kind)
    }

    /// Returns a stream of the client by the method at this place of the table.
    pub fn client_stream<M: StreamMethod>(
        &self,
        index: usize,
        request: Option<&M::Request>,
    ) -> StreamCall<Sending<M>>
    where
        M::Codec: Decode<M::Output>,
    {
        let append = append::<M::Codec, M::Input>;
        let kind = Kind::client(append, decode_answer::<M::Codec, M::Output, M>);
        self.stream((index, M::NAME), request_bytes::<M>(request), kind)
    }

    /// Returns streams of both sides by the method at this place of the table.
    pub fn both_streams<M: StreamMethod>(
        &self,
        index: usize,
        request: Option<&M::Request>,
    ) -> StreamCall<Both<M>>
    where
        M::Codec: Decode<M::Output>,
    {
        let append = append::<M::Codec, M::Input>;
        let kind = Kind::both(append, decode_answer::<M::Codec, M::Output, M>);
        self.stream((index, M::NAME), request_bytes::<M>(request), kind)
    }
}

impl<I: ServerInterceptors> Between<'_, I> {
    /// Adds the handler of a method with streams: a future, which gets the request if there is one, and both directions. `reply` makes the
    /// reply of its output, if the server sends no stream.
    pub fn stream<M: StreamMethod, H: 'static, R: 'static>(
        &mut self,
        service: &Arc<H>,
        handler: impl AsyncFn(
            &H,
            &Ctx,
            Option<M::Request>,
            Receiver<M::Input>,
            Sender<M::Output>,
        ) -> Result<R, Error>
        + Copy
        + 'static,
        reply: fn(R) -> Option<M::Output>,
    ) where
        M::Codec: Decode<M::Request> + Decode<M::Input>,
    {
        let (service, interceptors) = (Arc::clone(service), Arc::clone(&self.interceptors));
        self.push_stream(Rc::new(move |opened: Opened<'_>| {
            let metadata = opened.take_metadata();
            let is_seen = !(I::ARE_NONE && metadata.is_empty());
            let envelope = is_seen.then(|| Envelope::new(metadata));
            let cx = Ctx::of_stream(opened.handle().clone(), opened.request(), envelope);
            let (service, interceptors) = (Arc::clone(&service), Arc::clone(&interceptors));
            let ends = opened.ends();
            opened.run(async move {
                let outcome = 'stream: {
                    let watch = || {
                        let (peer, deadline, envelope) = (cx.peer(), cx.deadline(), cx.envelope());
                        let call = IncomingCall { method: M::NAME, peer, deadline, envelope };
                        let watch = Watch::begin(&*interceptors, call, || cx.handle().clock_now());
                        watch.map(Box::new)
                    };
                    let watch = match (!I::ARE_NONE).then(watch).transpose() {
                        Ok(watch) => watch,
                        Err(error) => break 'stream Err(error),
                    };
                    // The ends are made where the handler takes them, and no block is a future of its own: a future keeps a place for each
                    // move of a value.
                    let outcome = 'handler: {
                        let mut requests = ends.receiver(decode_sent::<M::Codec, M::Request, M>);
                        let mut request = None;
                        if M::HAS_REQUEST {
                            match requests.next().await.unwrap_or_else(|| Err(no_request())) {
                                Ok(first) => request = Some(first),
                                Err(error) => break 'handler Err(error),
                            }
                        }
                        let input = requests.reading(decode_sent::<M::Codec, M::Input, M>);
                        let output = ends.sender(append::<M::Codec, M::Output>);
                        handler(&service, &cx, request, input, output).await
                    };
                    let told = watch.map_or(Ok(()), |watch| watch.end(outcome.as_ref().err()));
                    match told.and(outcome).map(reply) {
                        Ok(Some(message)) => {
                            ends.sender(append::<M::Codec, M::Output>).send(message).await
                        }
                        Ok(None) => Ok(()),
                        Err(error) => Err(error),
                    }
                };
                (outcome, cx.envelope().map(Envelope::take_reply).unwrap_or_default())
            });
        }));
    }
}

fn no_request() -> Error {
    Error::new(Status::InvalidArgument, "the stream has no request")
}
