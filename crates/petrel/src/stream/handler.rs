//! The handlers of streams that clients open.

use std::future::Future;
use std::pin::Pin;
use std::rc::Rc;
use std::task::{Context, Poll};

use petrel_proto::{Execution, SessionId, Status};

use super::receiver::{Decode, Receiver};
use super::sender::{Append, Sender};
use super::shared::{Held, register};
use crate::endpoint::Peer;
use crate::endpoint::serve::OwnRequest;
use crate::error::Error;
use crate::local::{Handle, TaskFuture};
use crate::panics::Closure;
use crate::values::Metadata;

/// Begins the handler of a stream.
pub(crate) type Begin = Rc<dyn Fn(Opened<'_>)>;

/// The outcome of a handler, with the metadata of the end.
pub(crate) type Outcome = (Result<(), Error>, Metadata);

/// A stream that a client has opened.
pub(crate) struct Opened<'a> {
    pub(super) stream: Held,
    pub(super) handle: &'a Handle,
    pub(super) method: u16,
    pub(super) session: SessionId,
    pub(super) peer: Option<std::sync::Arc<Peer>>,
}

impl Opened<'_> {
    pub(crate) fn handle(&self) -> &Handle {
        self.handle
    }

    /// Returns the request as handlers see it, without a message.
    pub(crate) fn request(&self) -> OwnRequest {
        let peer = self.peer.clone();
        OwnRequest::of_stream((self.method, self.session), self.deadline_ns(), peer)
    }

    fn deadline_ns(&self) -> Option<u64> {
        let at_ns = self.stream.with(|pair, key| pair.deadline_ns(key));
        (at_ns != u64::MAX).then_some(at_ns)
    }

    /// Returns the maker of the handler's ends.
    pub(crate) fn ends(&self) -> HandlerEnds {
        HandlerEnds(self.stream.another())
    }

    /// Takes the metadata with which the client has opened the stream.
    pub(crate) fn take_metadata(&self) -> Metadata {
        let metadata = self.stream.with(|pair, key| pair.metadata(key).take());
        metadata.map_or_else(Metadata::new, |metadata| *metadata)
    }

    /// Runs the handler. Its outcome ends the stream.
    pub(crate) fn run(self, handler: impl Future<Output = Outcome> + 'static) {
        let (hub, deadline_ns) = (Rc::clone(self.handle.hub()), self.deadline_ns());
        let running = Running { future: Some(handler), stream: self.stream };
        // If the endpoint is gone, the drop ends the stream.
        hub.spawn(Closure::Handler, Box::pin(running), deadline_ns);
    }
}

/// Makes the ends of a stream for its handler.
pub(crate) struct HandlerEnds(Held);

impl HandlerEnds {
    /// Returns the messages of the client.
    pub(crate) fn receiver<T>(&self, decode: Decode<T>) -> Receiver<T> {
        Receiver::new(self.0.another(), decode, None)
    }

    /// Returns the end for the messages of the server.
    pub(crate) fn sender<T>(&self, append: Append<T>) -> Sender<T> {
        Sender::new(self.0.another(), append)
    }
}

impl Held {
    /// Ends a stream whose handler has not run.
    pub(super) fn refuse(self, status: Status, text: &str) {
        self.with(|pair, key| pair.refuse(key, status, text));
    }
}

/// The task of a handler. It ends with the stream.
struct Running<F> {
    /// Never moved once polled.
    future: Option<F>,
    stream: Held,
}

impl<F: Future<Output = Outcome>> Future for Running<F> {
    type Output = ();

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<()> {
        // SAFETY: the future is pinned with the whole, from which it is not moved. It has no other access.
        let Self { future, stream } = unsafe { self.get_unchecked_mut() };
        let (is_over, _former) = stream.with(|pair, key| {
            let is_over = pair.is_over(key);
            let waiters = if is_over { None } else { pair.user(key) };
            (is_over, waiters.and_then(|waiters| register(&mut waiters.handler, cx.waker())))
        });
        if is_over {
            *future = None;
            return Poll::Ready(());
        }
        let running = future.as_mut().expect("a task is polled until it is ready");
        // SAFETY: as above.
        let Poll::Ready((outcome, metadata)) = unsafe { Pin::new_unchecked(running) }.poll(cx)
        else {
            return Poll::Pending;
        };
        *future = None;
        stream.with(|pair, key| pair.finish(key, outcome, metadata));
        Poll::Ready(())
    }
}

impl<F: Future<Output = Outcome>> TaskFuture for Running<F> {
    fn retire(self: Pin<Box<Self>>) {}
}

impl<F> Drop for Running<F> {
    /// Tells the client of a handler without an outcome: it has panicked, or its endpoint is gone.
    fn drop(&mut self) {
        self.stream.with(|pair, key| {
            let text = "the server's handler ended without an outcome";
            let error = Error::of(Status::Internal, text, Execution::Answered);
            pair.finish(key, Err(error), Metadata::new());
        });
    }
}
