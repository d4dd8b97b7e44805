//! The client's side of streams: the pairs with its servers, and streams before they begin.

use std::collections::BTreeMap;
use std::fmt;
use std::future::{Future, IntoFuture};
use std::net::SocketAddr;
use std::pin::Pin;
use std::time::Duration;

use petrel_proto::{Execution, Status};

use super::pair::Role;
use super::pump::{self, Ends};
use super::receiver::{Decode, Receiver, Reply};
use super::registry::{Registry, client_handler};
use super::sender::{Append, Sender};
use super::shared::{Held, Shared};
use super::wire::METHOD;
use crate::client::{Call, Client, Response, inherited_ns, wait};
use crate::endpoint::{Callbacks, EndpointId, Local};
use crate::error::Error;
use crate::local::{Destination, Handle};
use crate::sync::{Arc, Mutex, lock};
use crate::time::as_ns;
use crate::values::client::ServiceKey;
use crate::values::{CallbacksKey, Metadata};

/// A server's answer to a request of a method with streams: where its streams are served.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Place {
    server: SocketAddr,
    endpoint: EndpointId,
    method: u16,
}

impl Place {
    /// Returns the answer of an endpoint.
    pub(crate) fn answer(endpoint: EndpointId, method: u16) -> [u8; 4] {
        let ([a, b], [c, d]) = (endpoint.0.to_le_bytes(), method.to_le_bytes());
        [a, b, c, d]
    }

    /// Reads the answer of a server.
    pub(crate) fn of(response: &Response) -> Result<Self, Error> {
        let Ok([a, b, c, d]) = <[u8; 4]>::try_from(&response[..]) else {
            let text = "the server's answer about a stream is malformed";
            return Err(Error::new(Status::Internal, text));
        };
        let (endpoint, method) = (u16::from_le_bytes([a, b]), u16::from_le_bytes([c, d]));
        Ok(Self { server: response.server(), endpoint: EndpointId(endpoint), method })
    }
}

/// The pairs of a client with its servers. Each ends with its last stream after a drop of this.
#[derive(Default)]
pub(crate) struct Pairs(Mutex<BTreeMap<(SocketAddr, EndpointId), Arc<Shared>>>);

impl Pairs {
    /// Returns the pair with a server, begun for the first stream.
    fn pair(&self, client: &Client, place: &Place) -> Arc<Shared> {
        let mut pairs = lock(&self.0);
        let to = (place.server, place.endpoint);
        if let Some(pair) = pairs.get(&to).filter(|pair| !pair.has_failed()) {
            return Arc::clone(pair);
        }
        let (config, message_bytes_max) = client.endpoint().stream_limits();
        let pair = Shared::new(Role::Client, config, message_bytes_max);
        pairs.insert(to, Arc::clone(&pair));
        let (own, client_key) = (Arc::clone(&pair), client.key());
        let is_begun = client.run(move |handle| {
            let ends = Ends::new(handle, &own);
            handle.hub().spawn_unwatched(run(ends, own, (client_key, to)));
        });
        if !is_begun {
            pair.fail(&Error::not_sent(Status::Unavailable, "the client's endpoint is gone"));
        }
        pair
    }
}

impl Drop for Pairs {
    fn drop(&mut self) {
        lock(&self.0).values().for_each(|pair| pair.retire());
    }
}

/// Runs a pair of a client, from the session to the end.
async fn run(
    ends: Ends,
    pair: Arc<Shared>,
    (client, (server, endpoint)): (ServiceKey, (SocketAddr, EndpointId)),
) {
    let handle = ends.handle().clone();
    let link = OwnLink::new(&handle, &pair, client);
    let opened = handle.open(Destination::To(server, endpoint, Some(link.callbacks))).await;
    pump::run(ends, opened).await;
}

/// The link of a pair, whose server may send batches, and call the client's callbacks. It ends with this.
struct OwnLink {
    handle: Handle,
    callbacks: CallbacksKey,
}

impl OwnLink {
    fn new(handle: &Handle, pair: &Arc<Shared>, client: ServiceKey) -> Self {
        let registry = Registry::of(handle.hub());
        let callbacks = Local::of_task(handle.hub(), |local| {
            registry.be_told(local);
            let mut callbacks = Callbacks::of_link(handle.clone(), local, client);
            callbacks.on(METHOD, client_handler(&registry, pair));
            local.add_callbacks(callbacks)
        });
        Self { handle: handle.clone(), callbacks }
    }
}

impl Drop for OwnLink {
    fn drop(&mut self) {
        let remove = |local: &mut Local| local.remove_callbacks(self.callbacks);
        // An endpoint that is gone has no links.
        let _ = Local::try_of_task(self.handle.hub(), remove);
    }
}

/// A stream that has not begun: [start](Self::start) or await it.
#[must_use = "a stream begins when it is started"]
pub struct StreamCall<T> {
    place: Call<Place>,
    client: Client,
    pairs: Arc<Pairs>,
    /// The bytes of the request.
    request: Option<Vec<u8>>,
    /// Whether the client sends no stream.
    ends: bool,
    timeout: Option<Duration>,
    /// The metadata; the error of an entry that is not allowed, or of the request.
    metadata: Result<Metadata, Error>,
    watch: Option<Box<dyn AroundStream>>,
    make: Make<T>,
}

/// The interceptors around a stream. A drop before the end is a cancellation.
pub trait AroundStream: Send + Sync {
    /// Runs before the stream. Returns the metadata to be sent.
    ///
    /// # Errors
    /// The stream is not to begin.
    fn begin(
        &mut self,
        client: &Client,
        timeout: Option<Duration>,
        metadata: Metadata,
    ) -> Result<Metadata, Error>;

    /// Runs behind the stream, once.
    ///
    /// # Errors
    /// An interceptor has panicked.
    fn end(&mut self, error: Option<&Error>) -> Result<(), Error>;
}

/// Makes the ends of a stream.
type Make<T> = Box<dyn FnOnce(Held, Option<Box<dyn AroundStream>>) -> T + Send>;

impl<T> StreamCall<T> {
    /// Returns a stream whose server is found by the call `place`.
    pub(crate) fn new(
        (client, pairs): (Client, Arc<Pairs>),
        place: Call<Place>,
        request: Result<Option<Vec<u8>>, Error>,
        watch: Option<Box<dyn AroundStream>>,
        kind: Kind<T>,
    ) -> Self {
        let Kind { ends, make } = kind;
        let (request, metadata) = match request {
            Ok(request) => (request, Ok(Metadata::new())),
            Err(error) => (None, Err(error)),
        };
        let timeout = None;
        Self { place, client, pairs, request, ends, timeout, metadata, watch, make }
    }

    /// Adds an entry of [metadata](Metadata), in place of an entry with the same key. The handler reads it by `cx.metadata()`. Entries that are not
    /// allowed, or beyond 1 KiB, end the stream before anything is sent.
    pub fn metadata(self, key: &str, value: impl AsRef<[u8]>) -> Self {
        self.change(|metadata| metadata.insert(key, value))
    }

    /// Adds an entry of metadata that the nested calls and streams of the server's handler may inherit.
    pub fn inherited_metadata(self, key: &str, value: impl AsRef<[u8]>) -> Self {
        self.change(|metadata| metadata.insert_inherited(key, value))
    }

    /// Takes on the entries of a request's metadata that are marked as inherited: for streams in a handler.
    pub fn inherit(self, metadata: &Metadata) -> Self {
        self.change(|own| own.inherit(metadata))
    }

    fn change(mut self, change: impl FnOnce(&mut Metadata) -> Result<(), Error>) -> Self {
        let changed = self.metadata.as_mut().map_or(Ok(()), change);
        if let Err(error) = changed {
            self.metadata = Err(error.with_execution(Execution::NotSent));
        }
        self
    }

    /// Sets the timeout of the whole stream, from its start: until the last message and the handler's end. By default there is none.
    pub fn timeout(mut self, timeout: Duration) -> Self {
        self.place = self.place.timeout(timeout);
        self.timeout = Some(timeout);
        self
    }

    /// Waits for a server until the timeout when none can be reached: the client's, or that of the stream.
    pub fn wait_for_ready(mut self) -> Self {
        self.place = self.place.wait_for_ready();
        self
    }

    /// Begins the stream at the server that the key maps to, if available: see [`Call::key`].
    pub fn key(mut self, key: impl AsRef<[u8]>) -> Self {
        self.place = self.place.key(key);
        self
    }

    /// Begins the stream: asks a server for its place, and sends the request.
    ///
    /// # Errors
    /// No server has the method, or can be reached; an interceptor refuses the stream. The errors of the handler come behind its messages.
    pub async fn start(mut self) -> Result<T, Error> {
        let mut metadata = std::mem::replace(&mut self.metadata, Ok(Metadata::new()))?;
        let mut watch = self.watch.take();
        if let Some(watch) = &mut watch {
            metadata = watch.begin(&self.client, self.timeout, metadata)?;
        }
        match self.open(metadata).await {
            Ok((stream, make)) => Ok(make(stream, watch)),
            Err(error) => watch.map_or(Ok(()), |mut watch| watch.end(Some(&error))).and(Err(error)),
        }
    }

    async fn open(self, metadata: Metadata) -> Result<(Held, Make<T>), Error> {
        let Self { place, client, pairs, request, ends, timeout, make, .. } = self;
        let own_ns = timeout.map(|time| client.now().as_ns().saturating_add(as_ns(time)));
        let end_ns = own_ns.unwrap_or(u64::MAX).min(inherited_ns().unwrap_or(u64::MAX));
        let place = place.await?;
        let pair = pairs.pair(&client, &place);
        let key = pair.with(|pair| {
            let key = pair.open(place.method, end_ns, metadata)?;
            if let Some(request) = request {
                let sent = pair.send(key, |out| out.extend_from_slice(&request));
                sent.expect("a new stream has room for a message");
            }
            if ends {
                pair.finish(key, Ok(()), Metadata::new());
            }
            Ok::<_, Error>(key)
        })?;
        Ok((Held::new(&pair, key), make))
    }

    /// Begins the stream like [`start`](Self::start), with the thread parked.
    ///
    /// # Errors
    /// As [`start`](Self::start).
    ///
    /// # Panics
    /// On the thread of the client's endpoint.
    pub fn start_wait(self) -> Result<T, Error>
    where
        T: 'static,
    {
        self.client.endpoint().check_thread();
        wait(self.start())
    }
}

/// The directions of a stream, and its ends at the client.
pub(crate) struct Kind<T> {
    ends: bool,
    make: Make<T>,
}

impl<T: 'static> Kind<Receiver<T>> {
    /// Messages from the server.
    pub(crate) fn server(decode: Decode<T>) -> Self {
        let make = move |stream, watch| Receiver::new(stream, decode, watch);
        Self { ends: true, make: Box::new(make) }
    }
}

impl<I: 'static, T: 'static> Kind<(Sender<I>, Reply<T>)> {
    /// Messages to the server, and a reply.
    pub(crate) fn client(append: Append<I>, decode: Decode<T>) -> Self {
        let make = move |stream: Held, watch| {
            let sender = Sender::new(stream.another(), append);
            (sender, Reply::new(Receiver::new(stream, decode, watch)))
        };
        Self { ends: false, make: Box::new(make) }
    }
}

impl<I: 'static, T: 'static> Kind<(Sender<I>, Receiver<T>)> {
    /// Messages in both directions.
    pub(crate) fn both(append: Append<I>, decode: Decode<T>) -> Self {
        let make = move |stream: Held, watch| {
            let sender = Sender::new(stream.another(), append);
            (sender, Receiver::new(stream, decode, watch))
        };
        Self { ends: false, make: Box::new(make) }
    }
}

/// Both ends of a stream by number: whole messages as bytes.
pub type RawEnds = (Sender<Vec<u8>>, Receiver<Vec<u8>>);

impl Client {
    /// Returns a stream of a method by its number at the servers, whose messages are bytes in the codec of the method: for tools. The first message
    /// is the request, if the method has one; drop the sender behind the request of a method whose client sends no stream.
    pub fn stream(&self, method: u16) -> StreamCall<RawEnds> {
        let read = |answer: Response, _| Place::of(&answer);
        let place = Call::reading(self.clone(), method, Vec::new(), 0, read).idempotent();
        let append = |message: &Vec<u8>, out: &mut Vec<u8>| out.extend_from_slice(message);
        let kind = Kind::both(append, |bytes| Ok(bytes.to_vec()));
        StreamCall::new((self.clone(), Arc::default()), place, Ok(None), None, kind)
    }
}

impl<T: 'static> IntoFuture for StreamCall<T> {
    type Output = Result<T, Error>;
    type IntoFuture = Pin<Box<dyn Future<Output = Self::Output> + Send>>;

    fn into_future(self) -> Self::IntoFuture {
        Box::pin(self.start())
    }
}

impl<T> fmt::Debug for StreamCall<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("StreamCall").finish_non_exhaustive()
    }
}
