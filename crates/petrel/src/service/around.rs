//! Handlers of calls with an envelope, and handlers between interceptors.

use std::marker::PhantomData;
use std::sync::Arc;

use petrel_proto::Status;
use petrel_transport::buf::BufPool;

use super::codec::Encode;
use super::ctx::Ctx;
use super::interceptor::{IncomingCall, ServerInterceptors, Watch};
use super::method::Method;
use super::server::{Between, boxed};
use crate::endpoint::Context;
use crate::endpoint::handle::Handle as Handler;
use crate::endpoint::serve::{Answer, Serving};
use crate::error::Error;
use crate::msgbuf::MsgBuf;
use crate::sync::now_ns;
use crate::time::Time;
use crate::values::{Envelope, Metadata};
use crate::workers::on_endpoint::pass_on;
use crate::workers::{WorkerRequest, Workers};

/// Whether the calls of a handler have metadata behind their messages, and read metadata behind the reply.
#[derive(Clone, Copy, Debug)]
pub(super) struct HasEnvelope(pub(super) bool);

/// The envelope of a request, if there is one, and the length of the message.
type Opened = (Option<Arc<Envelope>>, usize);

impl HasEnvelope {
    /// Finds the metadata of a request.
    ///
    /// # Errors
    /// They are malformed.
    fn open<M: Method>(self, body: &[u8]) -> Result<Opened, Error> {
        if !self.0 {
            return Ok((None, body.len()));
        }
        let Some((message, metadata)) = Metadata::split(body) else {
            let text = format!("{}: the metadata of the request are malformed", M::NAME);
            return Err(Error::new(Status::InvalidArgument, text));
        };
        Ok((Some(Envelope::new(metadata)), message.len()))
    }
}

/// A reply with the metadata behind it, if the call has an envelope.
struct Enclosed<R> {
    reply: R,
    metadata: Option<Metadata>,
}

impl<R> Enclosed<R> {
    fn new(reply: R, envelope: Option<&Envelope>) -> Self {
        Self { reply, metadata: envelope.map(Envelope::take_reply) }
    }

    /// Returns the length of the message, and that of the body.
    fn lengths<M: Method<Reply = R>>(&self) -> (usize, usize) {
        let len = <M::Codec as Encode<R>>::len(&self.reply);
        (len, len + self.metadata.as_ref().map_or(0, Metadata::wire_len))
    }

    /// Writes the body, whose message has this length.
    fn write<M: Method<Reply = R>>(&self, len: usize, body: &mut [u8]) {
        let (message, behind) = body.split_at_mut(len);
        <M::Codec as Encode<R>>::encode(&self.reply, message);
        if let Some(metadata) = &self.metadata {
            metadata.write(behind);
        }
    }
}

/// Writes the reply of a method with its metadata.
struct EncodedBoth<M>(PhantomData<M>);

impl<M: Method> Answer<Enclosed<M::Reply>> for EncodedBoth<M> {
    fn message(pool: &BufPool, reply: Enclosed<M::Reply>) -> Result<MsgBuf, Error> {
        let (len, whole) = reply.lengths::<M>();
        let mut body = MsgBuf::from_pool(pool, whole)?;
        reply.write::<M>(len, &mut body);
        Ok(body)
    }
}

impl<I: ServerInterceptors> Between<'_, I> {
    /// Returns a handler that runs in the event loop.
    pub(super) fn around_dispatch<M: Method>(
        &self,
        has_envelope: HasEnvelope,
        run: impl Fn(&mut Context<'_>, &[u8]) -> Result<M::Reply, Error> + 'static,
    ) -> Box<dyn Handler> {
        let (interceptors, handle) = (Arc::clone(&self.interceptors), self.handle().clone());
        boxed(move |_, cx, request| {
            let (envelope, len) = match has_envelope.open::<M>(request.data()) {
                Ok(opened) => opened,
                Err(error) => return request.fail_with(cx, &error),
            };
            let (peer, deadline) = (request.shared_peer(cx), request.deadline(cx));
            let (peer, opened) = (peer.as_deref(), envelope.as_deref());
            let call = IncomingCall { method: M::NAME, peer, deadline, envelope: opened };
            let outcome = Watch::begin(&*interceptors, call, || handle.clock_now());
            let outcome = outcome.and_then(|watch| {
                cx.swap_envelope(envelope.clone());
                let outcome = cx.serving(request.session(), |cx| run(cx, &request.data()[..len]));
                cx.swap_envelope(None);
                watch.end(outcome.as_ref().err()).and(outcome)
            });
            match outcome {
                Ok(reply) => {
                    let reply = Enclosed::new(reply, opened);
                    let (len, whole) = reply.lengths::<M>();
                    request.reply_with(cx, whole, |_, out| {
                        reply.write::<M>(len, out);
                        whole
                    })
                }
                Err(error) => request.fail_with(cx, &error),
            }
        })
    }

    /// Returns a handler that runs as tasks.
    pub(super) fn around_task<M: Method, H: 'static>(
        &self,
        has_envelope: HasEnvelope,
        service: &Arc<H>,
        run: impl AsyncFn(&H, &Ctx) -> Result<M::Reply, Error> + Copy + 'static,
    ) -> Box<dyn Handler> {
        let (interceptors, service) = (Arc::clone(&self.interceptors), Arc::clone(service));
        let mut handler = move |handle, request: crate::task::OwnRequest| {
            let (interceptors, service) = (Arc::clone(&interceptors), Arc::clone(&service));
            async move {
                let opened = has_envelope.open::<M>(request.data())?;
                let cx = Ctx::around(handle, request, opened);
                let (peer, deadline, envelope) = (cx.peer(), cx.deadline(), cx.envelope());
                let call = IncomingCall { method: M::NAME, peer, deadline, envelope };
                let watch = Watch::begin(&*interceptors, call, || cx.handle().clock_now())?;
                let outcome = run(&service, &cx).await;
                watch.end(outcome.as_ref().err())?;
                Ok(Enclosed::new(outcome?, cx.envelope()))
            }
        };
        let serving = Serving::<(), _, EncodedBoth<M>>::new(self.handle().clone());
        boxed(move |_, cx, request| serving.begin(cx, request, &mut handler))
    }

    /// Returns a handler that runs on a worker.
    pub(super) fn around_worker<M: Method, H: Send + Sync + 'static>(
        &self,
        has_envelope: HasEnvelope,
        (service, workers): (&Arc<H>, &Workers),
        run: impl Fn(&H, &WorkerRequest) -> Result<M::Reply, Error> + Copy + Send + 'static,
    ) -> Box<dyn Handler> {
        let (interceptors, service) = (Arc::clone(&self.interceptors), Arc::clone(service));
        let queue = workers.queue();
        boxed(move |_, cx, request| {
            let (interceptors, service) = (Arc::clone(&interceptors), Arc::clone(&service));
            pass_on(&queue, cx, request, move |mut request| {
                let body = has_envelope.open::<M>(request.data()).and_then(|(envelope, len)| {
                    request.open(envelope.clone(), len);
                    let (peer, deadline) = (request.peer(), request.deadline());
                    let envelope = envelope.as_deref();
                    let call = IncomingCall { method: M::NAME, peer, deadline, envelope };
                    let watch = Watch::begin(&*interceptors, call, || Time::from_ns(now_ns()))?;
                    let outcome = run(&service, &request);
                    watch.end(outcome.as_ref().err())?;
                    let reply = Enclosed::new(outcome?, envelope);
                    let (len, whole) = reply.lengths::<M>();
                    let mut body = vec![0; whole];
                    reply.write::<M>(len, &mut body);
                    Ok(body)
                });
                match body {
                    Ok(body) => request.reply_vec(body),
                    Err(error) => request.fail_with(&error),
                }
            })
        })
    }
}
