//! Handlers that are futures.

use std::future::Future;
use std::marker::PhantomData;
use std::mem;
use std::pin::Pin;
use std::rc::Rc;
use std::sync::Arc;
use std::task::{Context as TaskContext, Poll};

use petrel_proto::SessionId;
use petrel_transport::buf::BufPool;

use super::{Context, Handled, Peer, Request, Responder, Watcher};
use crate::error::Error;
use crate::local::{Handle, Hub, Spares, TaskFuture};
use crate::msgbuf::MsgBuf;
use crate::panics::Closure;
use crate::time::Time;

/// A request owned by an async handler.
#[derive(Debug)]
pub struct OwnRequest {
    /// Absent in the request of a stream, whose messages come apart.
    message: Option<MsgBuf>,
    method: u16,
    session: SessionId,
    deadline_ns: Option<u64>,
    peer: Option<Arc<Peer>>,
}

impl OwnRequest {
    /// Returns the request of a stream.
    pub(crate) fn of_stream(
        (method, session): (u16, SessionId),
        deadline_ns: Option<u64>,
        peer: Option<Arc<Peer>>,
    ) -> Self {
        Self { message: None, method, session, deadline_ns, peer }
    }

    /// Returns the message.
    pub fn data(&self) -> &[u8] {
        self.message.as_deref().unwrap_or_default()
    }

    /// Leaves out the end of the message, beyond `len` bytes.
    pub(crate) fn cut(&mut self, len: usize) {
        self.message.as_mut().expect("the request of a call has a message").set_len(len);
    }

    /// Returns the message's buffer, to send it on without a copy.
    pub fn into_message(self) -> MsgBuf {
        self.message.expect("the request of a call has a message")
    }

    /// Returns the called method.
    pub fn method(&self) -> u16 {
        self.method
    }

    /// Returns the session of the request.
    pub fn session(&self) -> SessionId {
        self.session
    }

    /// Returns the caller's identity. `None` if the session had ended before the handler ran.
    pub fn peer(&self) -> Option<&Peer> {
        self.peer.as_deref()
    }

    /// Returns when the caller stops waiting, on the clock of [`Handle::now`]. The handler's own calls end no later.
    pub fn deadline(&self) -> Option<Time> {
        self.deadline_ns.map(Time::from_ns)
    }
}

/// Writes the answer of a handler into a message.
pub(crate) trait Answer<A> {
    fn message(pool: &BufPool, answer: A) -> Result<MsgBuf, Error>;
}

/// Copies the bytes of an answer.
pub(crate) struct Copied;

impl<A: AsRef<[u8]>> Answer<A> for Copied {
    fn message(pool: &BufPool, answer: A) -> Result<MsgBuf, Error> {
        Ok(MsgBuf::holding(pool, answer.as_ref())?)
    }
}

/// Runs the requests of an async handler as tasks, whose answers `W` writes.
pub(crate) struct Serving<S, F, W = Copied> {
    handle: Handle<S>,
    home: Rc<Home<F, W>>,
}

/// Where the tasks of a handler come from and return to.
struct Home<F, W> {
    hub: Rc<Hub>,
    /// Memory of ended tasks, for the next tasks.
    spares: Spares<Pin<Box<Running<F, W>>>>,
    writes: PhantomData<W>,
}

/// The task of a request: it answers with the outcome of the handler's future.
struct Running<F, W> {
    /// Present while the task runs. Never moved once polled.
    future: Option<F>,
    /// Dropping it answers with INTERNAL, if any caller waits.
    responder: Option<Responder>,
    /// Absent in a task that is kept: otherwise the home would own the home.
    home: Option<Rc<Home<F, W>>>,
}

/// The largest number of ended tasks of a handler whose memory is kept, and the most bytes of each.
const TASKS_MAX: usize = 64;
const TASK_BYTES_MAX: usize = 16 << 10;

impl<S: 'static, F, A, W> Serving<S, F, W>
where
    F: Future<Output = Result<A, Error>> + 'static,
    W: Answer<A> + 'static,
{
    pub(crate) fn new(handle: Handle<S>) -> Self {
        let room = if size_of::<Running<F, W>>() <= TASK_BYTES_MAX { TASKS_MAX } else { 0 };
        let home =
            Home { hub: Rc::clone(handle.hub()), spares: Spares::new(room), writes: PhantomData };
        Self { handle, home: Rc::new(home) }
    }

    /// Begins the task of a request. The task ends when its caller no longer waits.
    pub(crate) fn begin(
        &self,
        cx: &mut Context<'_, S>,
        request: Request<'_>,
        handler: &mut impl FnMut(Handle<S>, OwnRequest) -> F,
    ) -> Handled {
        let (method, session) = (request.method(), request.session());
        let (deadline_ns, peer) = (request.deadline(cx).map(Time::as_ns), request.shared_peer(cx));
        let (kept, handled) = request.defer_message(cx);
        let Some((responder, message)) = kept else { return handled };
        let name = responder.handle();
        let message = Some(message);
        let request = OwnRequest { message, method, session, deadline_ns, peer };
        let task = self.home.task(handler(self.handle.clone(), request), responder);
        if let Some(task) = self.home.hub.spawn(Closure::Handler, task, deadline_ns) {
            cx.untyped().watch(name, Watcher::Abort(task));
        }
        handled
    }
}

impl<F, W> Home<F, W> {
    /// Returns the task of a request.
    #[inline(always)]
    fn task(self: &Rc<Self>, future: F, responder: Responder) -> Pin<Box<Running<F, W>>> {
        let (responder, home) = (Some(responder), Some(Rc::clone(self)));
        let Some(mut spare) = self.spares.take() else {
            return Box::pin(Running { future: Some(future), responder, home });
        };
        // SAFETY: a task that is kept has no future, and nothing else in it is pinned.
        let running = unsafe { spare.as_mut().get_unchecked_mut() };
        // The three fields were absent: no instruction is spent on dropping them.
        mem::forget(running.future.replace(future));
        mem::forget(mem::replace(&mut running.responder, responder));
        mem::forget(mem::replace(&mut running.home, home));
        spare
    }
}

impl<F, A, W> Future for Running<F, W>
where
    F: Future<Output = Result<A, Error>>,
    W: Answer<A>,
{
    type Output = ();

    fn poll(self: Pin<&mut Self>, cx: &mut TaskContext<'_>) -> Poll<()> {
        // SAFETY: the future is pinned with the whole, from which it is not moved. It has no other access.
        let Self { future, responder, home } = unsafe { self.get_unchecked_mut() };
        let running = future.as_mut().expect("a task is polled until it is ready");
        // Here a panic of the handler drops the responder while the thread unwinds, which the caller is told.
        let answering = responder.take();
        // SAFETY: as above.
        let Poll::Ready(outcome) = unsafe { Pin::new_unchecked(running) }.poll(cx) else {
            *responder = answering;
            return Poll::Pending;
        };
        // Dropped before the answer, like the variables of a function that returns.
        *future = None;
        let home = home.as_ref().expect("a task that runs has its home");
        let outcome = outcome.and_then(|answer| W::message(home.hub.pool(), answer));
        answering.expect("a task answers once").answer_later(outcome);
        Poll::Ready(())
    }
}

impl<F, A, W> TaskFuture for Running<F, W>
where
    F: Future<Output = Result<A, Error>>,
    W: Answer<A>,
{
    fn retire(mut self: Pin<Box<Self>>) {
        // SAFETY: the home is not pinned.
        let home = unsafe { self.as_mut().get_unchecked_mut() }.home.take();
        home.expect("a task that runs has its home").spares.keep(self);
    }
}
