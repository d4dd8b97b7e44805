//! The server of a typed service: the handlers of its methods.

use std::future::Future;
use std::marker::PhantomData;
use std::sync::Arc;

use petrel_proto::Status;
use petrel_transport::Transport;
use petrel_transport::buf::BufPool;

use super::around::HasEnvelope;
use super::codec::{Decode, Encode, Read};
use super::ctx::Ctx;
use super::interceptor::ServerInterceptors;
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

/// The handlers of a service, in the order of its table: each for calls without and with an envelope.
pub struct Methods {
    handlers: Vec<(Box<dyn Handler>, Box<dyn Handler>)>,
    /// The handlers of streams, by the place of their methods.
    streams: Vec<(usize, Begin)>,
    handle: Handle,
    /// The endpoint to which clients send streams; `None` for callbacks.
    endpoint: Option<EndpointId>,
}

/// [`Methods`] whose handlers run between interceptors.
pub struct Between<'a, I> {
    pub(super) methods: &'a mut Methods,
    pub(super) interceptors: Arc<I>,
}

impl<S: 'static, T: Transport, C: ControlPlane<T::Link>> Endpoint<S, T, C> {
    /// Serves a [typed service](mod@crate::service): an endpoint may serve several, beside methods by number.
    ///
    /// # Panics
    /// When the endpoint serves a service of the name already, or has a handler for a method's `id`.
    pub fn serve(&mut self, service: impl Service) {
        let table = service.table();
        let handle = Handle::new(self.handle().hub().clone());
        let Methods { handlers, streams, .. } = Methods::of(service, handle, Some(self.id()));
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
        let methods = Methods::of(service, self.handle().clone(), None);
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
        Err(error) => request.fail_with(cx, &error),
    }
}

impl Methods {
    /// Returns the handlers of a service.
    fn of(service: impl Service, handle: Handle, endpoint: Option<EndpointId>) -> Self {
        let mut methods = Self { handlers: Vec::new(), streams: Vec::new(), handle, endpoint };
        service.add_to(&mut methods);
        methods
    }

    /// Returns the handlers that run between these interceptors.
    pub fn between<I: ServerInterceptors>(&mut self, interceptors: I) -> Between<'_, I> {
        Between { methods: self, interceptors: Arc::new(interceptors) }
    }
}

/// Returns a handler as the endpoint stores it.
pub(super) fn boxed(
    handler: impl FnMut(State<'_>, &mut Context<'_>, Request<'_>) -> Handled + 'static,
) -> Box<dyn Handler> {
    Box::new(handler)
}

impl<I: ServerInterceptors> Between<'_, I> {
    /// Adds the handler of streams, and the answer to clients that ask for their place.
    pub(super) fn push_stream(&mut self, begin: Begin) {
        let endpoint = self.methods.endpoint.expect("a client opens streams: callbacks have none");
        self.methods.streams.push((self.methods.handlers.len(), begin));
        let place = boxed(move |_, cx, request| {
            let place = Place::answer(endpoint, request.method());
            request.reply(cx, &place)
        });
        let no_envelope = boxed(|_, cx, request| {
            request.fail(cx, Status::Unimplemented, "the metadata of a stream are in OPEN")
        });
        self.methods.handlers.push((place, no_envelope));
    }

    /// Adds the handlers of a method. Without interceptors and without an envelope the handler runs by itself.
    fn push(
        &mut self,
        plain: impl FnOnce(&Handle) -> Box<dyn Handler>,
        around: impl Fn(&Self, HasEnvelope) -> Box<dyn Handler>,
    ) {
        let own = match I::ARE_NONE {
            true => plain(&self.methods.handle),
            false => around(self, HasEnvelope(false)),
        };
        let enveloped = around(self, HasEnvelope(true));
        self.methods.handlers.push((own, enveloped));
    }

    pub(super) fn handle(&self) -> &Handle {
        &self.methods.handle
    }

    /// Adds a handler that runs in the event loop.
    pub fn dispatch<M: Method>(
        &mut self,
        handler: impl Fn(&mut Context<'_>, M::Request) -> Result<M::Reply, Error> + Clone + 'static,
    ) where
        M::Request: Sized,
        M::Codec: Decode<M::Request>,
    {
        let other = handler.clone();
        let plain = move |_: &Handle| {
            boxed(move |_, cx, request| {
                let message = decode_request::<M>(request.data());
                let outcome = message
                    .and_then(|message| cx.serving(request.session(), |cx| handler(cx, message)));
                answer::<M>(cx, request, outcome)
            })
        };
        self.push(plain, move |between, has_envelope| {
            let handler = other.clone();
            between.around_dispatch::<M>(has_envelope, move |cx, bytes| {
                handler(cx, decode_request::<M>(bytes)?)
            })
        });
    }

    /// Adds a handler that runs in the event loop, and reads its requests in place.
    pub fn dispatch_in_place<M: Method>(
        &mut self,
        handler: impl Fn(&mut Context<'_>, &M::Request) -> Result<M::Reply, Error> + Clone + 'static,
    ) where
        M::Codec: Read<M::Request>,
    {
        let other = handler.clone();
        let plain = move |_: &Handle| {
            let mut kept = <M::Codec as Read<M::Request>>::Kept::default();
            boxed(move |_, cx, request| {
                let is_nothing = size_of::<<M::Codec as Read<M::Request>>::Kept>() == 0;
                let is_small = is_nothing || request.data().len() <= KEPT_BYTES_MAX;
                let (kept, mut own) = (&mut kept, Default::default());
                let kept = if is_small { kept } else { &mut own };
                let message = read_request::<M>(request.data(), kept);
                let outcome = message
                    .and_then(|message| cx.serving(request.session(), |cx| handler(cx, message)));
                answer::<M>(cx, request, outcome)
            })
        };
        self.push(plain, move |between, has_envelope| {
            let handler = other.clone();
            between.around_dispatch::<M>(has_envelope, move |cx, bytes| {
                handler(cx, read_request::<M>(bytes, &mut Default::default())?)
            })
        });
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
        let own = Arc::clone(service);
        let plain = move |handle: &Handle| {
            tasks::<M, _>(handle, move |handle, request| {
                // Made before the future: its parts move once.
                let (service, cx) = (Arc::clone(&own), Ctx::new(handle, request));
                async move {
                    let message = decode_request::<M>(cx.data())?;
                    handler(&service, &cx, message).await
                }
            })
        };
        self.push(plain, |between, has_envelope| {
            let run = async move |service: &H, cx: &Ctx| {
                handler(service, cx, decode_request::<M>(cx.data())?).await
            };
            between.around_task::<M, H>(has_envelope, service, run)
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
        let own = Arc::clone(service);
        let plain = move |handle: &Handle| {
            tasks::<M, _>(handle, move |handle, request| {
                let (service, cx) = (Arc::clone(&own), Ctx::new(handle, request));
                async move {
                    let mut kept = Default::default();
                    let message = read_request::<M>(cx.data(), &mut kept)?;
                    handler(&service, &cx, message).await
                }
            })
        };
        self.push(plain, |between, has_envelope| {
            let run = async move |service: &H, cx: &Ctx| {
                let mut kept = Default::default();
                handler(service, cx, read_request::<M>(cx.data(), &mut kept)?).await
            };
            between.around_task::<M, H>(has_envelope, service, run)
        });
    }

    fn push_worker<M: Method, H: Send + Sync + 'static>(
        &mut self,
        (service, workers): (&Arc<H>, &Workers),
        handler: impl Fn(&H, &WorkerRequest) -> Result<M::Reply, Error> + Copy + Send + 'static,
    ) {
        let (own, queue) = (Arc::clone(service), workers.queue());
        let plain = move |_: &Handle| {
            boxed(move |_, cx, request| {
                let service = Arc::clone(&own);
                pass_on(&queue, cx, request, move |request| match handler(&service, &request) {
                    Ok(reply) => {
                        let mut out = Vec::new();
                        <M::Codec as Encode<M::Reply>>::append(&reply, &mut out);
                        request.reply_vec(out);
                    }
                    Err(error) => request.fail_with(&error),
                })
            })
        };
        self.push(plain, |between, has_envelope| {
            between.around_worker::<M, H>(has_envelope, (service, workers), handler)
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

/// Returns a handler that runs as tasks.
fn tasks<M: Method, F: Future<Output = Result<M::Reply, Error>> + 'static>(
    handle: &Handle,
    mut handler: impl FnMut(Handle, OwnRequest) -> F + 'static,
) -> Box<dyn Handler> {
    let serving = Serving::<(), F, Encoded<M>>::new(handle.clone());
    boxed(move |_, cx, request| serving.begin(cx, request, &mut handler))
}
