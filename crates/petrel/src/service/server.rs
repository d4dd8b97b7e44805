//! The server of a typed service: the handlers of its methods.

use std::future::Future;
use std::marker::PhantomData;
use std::sync::Arc;

use petrel_transport::Transport;
use petrel_transport::buf::BufPool;

use super::codec::{Decode, Encode, Read};
use super::ctx::Ctx;
use super::method::{Method, decode_request, read_request};
use crate::control::{ControlPlane, EndpointId};
use crate::endpoint::handle::Handle as Handler;
use crate::endpoint::serve::{Answer, Serving};
use crate::endpoint::{Callbacks, Context, Endpoint, Handled, Request};
use crate::error::Error;
use crate::local::Handle;
use crate::msgbuf::MsgBuf;
use crate::stream::{Begin, Place};
use crate::task::OwnRequest;
use crate::values::State;
use crate::values::method_table::ServiceTable;
use crate::workers::on_endpoint::pass_on;
use crate::workers::{WorkerRequest, Workers};

/// Bytes of the largest request whose message a handler keeps: a client's large request must not hold memory for good.
const KEPT_BYTES_MAX: usize = 16 * 1024;

/// A service with its handlers, for [`Endpoint::serve`]. Made by the attribute [`service`](macro@crate::service).
pub trait Service {
    /// Returns the table of the methods.
    fn table(&self) -> &'static ServiceTable;

    /// Adds the handlers, in the order of the table.
    fn add_to(self, methods: &mut Methods);
}

/// The handlers of a service, in the order of its table.
pub struct Methods {
    handlers: Vec<Box<dyn Handler>>,
    /// The handlers of streams, by the place of their methods.
    streams: Vec<(usize, Begin)>,
    handle: Handle,
    endpoint: EndpointId,
}

impl<S: 'static, T: Transport, C: ControlPlane<T::Link>> Endpoint<S, T, C> {
    /// Serves a [typed service](mod@crate::service): an endpoint may serve several, beside methods by number.
    ///
    /// # Panics
    /// When the endpoint serves a service of the name already, or has a handler for a method's `id`.
    pub fn serve(&mut self, service: impl Service) {
        let table = service.table();
        let handle = Handle::new(self.handle().hub().clone());
        let Methods { handlers, streams, .. } = Methods::of(service, handle, self.id());
        let numbers = self.add_service(table, handlers);
        for (index, begin) in streams {
            self.serve_streams(numbers[index], begin);
        }
    }
}

impl Callbacks {
    /// Serves a [typed service](mod@crate::service) to the servers of the client.
    ///
    /// # Panics
    /// When a service of the name is there already, a method's `id` has a handler, or a method has streams.
    pub fn serve(&mut self, service: impl Service) {
        let table = service.table();
        let methods = Methods::of(service, self.handle().clone(), EndpointId(0));
        assert!(methods.streams.is_empty(), "{}: callbacks have no streams", table.name);
        self.add_service(table, methods.handlers);
    }
}

/// Writes the reply of a method.
struct Encoded<M>(PhantomData<M>);

impl<M: Method> Answer<M::Reply> for Encoded<M> {
    #[inline]
    fn message(pool: &BufPool, reply: M::Reply) -> Result<MsgBuf, Error> {
        let len = <M::Codec as Encode<M::Reply>>::len(&reply);
        let mut message = MsgBuf::from_pool(pool, len)?;
        <M::Codec as Encode<M::Reply>>::encode(&reply, &mut message);
        Ok(message)
    }
}

/// Answers with a reply, which is written into the message.
#[inline]
fn answer<M: Method>(
    cx: &mut Context<'_>,
    request: Request<'_>,
    outcome: Result<M::Reply, Error>,
) -> Handled {
    match outcome {
        Ok(reply) => {
            let len = <M::Codec as Encode<M::Reply>>::len(&reply);
            request.reply_with(cx, len, |_, out| {
                <M::Codec as Encode<M::Reply>>::encode(&reply, out);
                len
            })
        }
        Err(error) => request.fail(cx, error.status, &error.message),
    }
}

impl Methods {
    /// Returns the handlers of a service of an endpoint.
    fn of(service: impl Service, handle: Handle, endpoint: EndpointId) -> Self {
        let mut methods = Self { handlers: Vec::new(), streams: Vec::new(), handle, endpoint };
        service.add_to(&mut methods);
        methods
    }

    /// Adds the handler of streams, and the answer to clients that ask for their place.
    pub(super) fn push_stream(&mut self, begin: Begin) {
        let endpoint = self.endpoint;
        self.streams.push((self.handlers.len(), begin));
        self.push(move |_, cx, request| {
            let place = Place::answer(endpoint, request.method());
            request.reply(cx, &place)
        });
    }

    fn push(
        &mut self,
        handler: impl FnMut(State<'_>, &mut Context<'_>, Request<'_>) -> Handled + 'static,
    ) {
        self.handlers.push(Box::new(handler));
    }

    /// Adds a handler that runs in the event loop.
    pub fn dispatch<M: Method>(
        &mut self,
        handler: impl Fn(&mut Context<'_>, M::Request) -> Result<M::Reply, Error> + 'static,
    ) where
        M::Request: Sized,
        M::Codec: Decode<M::Request>,
    {
        self.push(move |_, cx, request| {
            let outcome =
                decode_request::<M>(request.data()).and_then(|message| handler(cx, message));
            answer::<M>(cx, request, outcome)
        });
    }

    /// Adds a handler that runs in the event loop, and reads its requests in place.
    pub fn dispatch_in_place<M: Method>(
        &mut self,
        handler: impl Fn(&mut Context<'_>, &M::Request) -> Result<M::Reply, Error> + 'static,
    ) where
        M::Codec: Read<M::Request>,
    {
        let mut kept = <M::Codec as Read<M::Request>>::Kept::default();
        self.push(move |_, cx, request| {
            let is_small = request.data().len() <= KEPT_BYTES_MAX;
            let (kept, mut own) = (&mut kept, Default::default());
            let kept = if is_small { kept } else { &mut own };
            let message = read_request::<M>(request.data(), kept);
            let outcome = message.and_then(|message| handler(cx, message));
            answer::<M>(cx, request, outcome)
        });
    }

    fn push_tasks<M: Method, F: Future<Output = Result<M::Reply, Error>> + 'static>(
        &mut self,
        mut handler: impl FnMut(Handle, OwnRequest) -> F + 'static,
    ) {
        let serving = Serving::<(), F, Encoded<M>>::new(self.handle.clone());
        self.push(move |_, cx, request| serving.begin(cx, request, &mut handler));
    }

    /// Adds a handler that is a future.
    pub fn task<M: Method, H: 'static>(
        &mut self,
        service: &Arc<H>,
        handler: impl AsyncFn(&H, &Ctx, M::Request) -> Result<M::Reply, Error> + Copy + 'static,
    ) where
        M::Request: Sized,
        M::Codec: Decode<M::Request>,
    {
        let service = Arc::clone(service);
        self.push_tasks::<M, _>(move |handle, request| {
            let service = Arc::clone(&service);
            async move {
                let message = decode_request::<M>(request.data())?;
                handler(&service, &Ctx::new(handle, request), message).await
            }
        });
    }

    /// Adds a handler that is a future, and reads its requests in place.
    pub fn task_in_place<M: Method, H: 'static>(
        &mut self,
        service: &Arc<H>,
        handler: impl AsyncFn(&H, &Ctx, &M::Request) -> Result<M::Reply, Error> + Copy + 'static,
    ) where
        M::Codec: Read<M::Request>,
    {
        let service = Arc::clone(service);
        self.push_tasks::<M, _>(move |handle, request| {
            let service = Arc::clone(&service);
            async move {
                let (cx, mut kept) = (Ctx::new(handle, request), Default::default());
                let message = read_request::<M>(cx.data(), &mut kept)?;
                handler(&service, &cx, message).await
            }
        });
    }

    fn push_worker<M: Method, H: Send + Sync + 'static>(
        &mut self,
        (service, workers): (&Arc<H>, &Workers),
        handler: impl Fn(&H, &WorkerRequest) -> Result<M::Reply, Error> + Copy + Send + 'static,
    ) {
        let (service, queue) = (Arc::clone(service), workers.queue());
        self.push(move |_, cx, request| {
            let service = Arc::clone(&service);
            pass_on(&queue, cx, request, move |request| match handler(&service, &request) {
                Ok(reply) => {
                    let mut out = Vec::new();
                    <M::Codec as Encode<M::Reply>>::append(&reply, &mut out);
                    request.reply_vec(out);
                }
                Err(error) => request.fail(error.status, &error.message),
            })
        });
    }

    /// Adds a handler that runs on a worker.
    pub fn worker<M: Method, H: Send + Sync + 'static>(
        &mut self,
        on: (&Arc<H>, &Workers),
        handler: impl Fn(&H, &WorkerRequest, M::Request) -> Result<M::Reply, Error>
        + Copy
        + Send
        + 'static,
    ) where
        M::Request: Sized,
        M::Codec: Decode<M::Request>,
    {
        self.push_worker::<M, H>(on, move |service, request| {
            handler(service, request, decode_request::<M>(request.data())?)
        });
    }

    /// Adds a handler that runs on a worker, and reads its requests in place.
    pub fn worker_in_place<M: Method, H: Send + Sync + 'static>(
        &mut self,
        on: (&Arc<H>, &Workers),
        handler: impl Fn(&H, &WorkerRequest, &M::Request) -> Result<M::Reply, Error>
        + Copy
        + Send
        + 'static,
    ) where
        M::Codec: Read<M::Request>,
    {
        self.push_worker::<M, H>(on, move |service, request| {
            let mut kept = Default::default();
            handler(service, request, read_request::<M>(request.data(), &mut kept)?)
        });
    }
}
