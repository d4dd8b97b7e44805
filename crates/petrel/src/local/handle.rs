//! The endpoint's handle for futures.

use std::future::Future;
use std::marker::PhantomData;
use std::net::SocketAddr;
use std::rc::Rc;
use std::time::Duration;

use petrel_proto::SessionId;

use super::connect::open;
use super::hub::Hub;
use super::orders::Destination;
use super::session::Session;
use super::sleep::{Sleep, Timeout};
use super::task::Task;
use crate::control::EndpointId;
use crate::error::Error;
use crate::msgbuf::MsgBuf;
use crate::panics::Closure;
use crate::time::{Time, as_ns};
use crate::values::SharedMsg;

/// A handle of an endpoint for futures: to connect, spawn, wait for a time. Clones are the same handle; a handle stays
/// on the endpoint's thread. `S` is the type of the endpoint's [state](crate::Endpoint::state).
///
/// ```
/// use std::time::Duration;
///
/// # let server = petrel::Server::bind("127.0.0.1:0").serve(|_| (), |endpoint| {
/// #     endpoint.on(1, |_, cx, request| request.reply(cx, b"value"));
/// # });
/// # let server = server.start()?;
/// # let address = server.local_addr();
/// let nexus = petrel::Nexus::builder().start()?;
/// let mut endpoint = nexus.endpoint(Default::default())?;
/// let handle = endpoint.handle();
/// let value = endpoint.block_on(async move {
///     let session = handle.connect(address).await?;
///     handle.sleep(Duration::from_millis(1)).await;
///     session.call(1, b"key").await
/// })?;
/// assert_eq!(value[..], *b"value");
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug)]
pub struct Handle<S = ()> {
    hub: Rc<Hub>,
    state: PhantomData<fn(&mut S)>,
}

impl<S> Clone for Handle<S> {
    fn clone(&self) -> Self {
        Self::new(Rc::clone(&self.hub))
    }
}

impl<S: 'static> Handle<S> {
    /// Runs a closure with the endpoint's state, in a task of the endpoint. Futures cannot keep a reference to the
    /// state while waiting, because handlers and other tasks use it then.
    ///
    /// # Panics
    /// Outside of the endpoint's tasks, and within another `with`.
    pub fn with<R>(&self, run: impl FnOnce(&mut S) -> R) -> R {
        // SAFETY: a handle of an endpoint with this type of state; only the endpoint's own tasks can use it.
        self.hub.with_state(|state| run(unsafe { state.get::<S>() }))
    }
}

impl<S> Handle<S> {
    pub(crate) fn new(hub: Rc<Hub>) -> Self {
        Self { hub, state: PhantomData }
    }

    pub(crate) fn hub(&self) -> &Rc<Hub> {
        &self.hub
    }

    /// Opens a session to endpoint 0 of the process whose control address is `remote`, and waits until it is open.
    ///
    /// # Errors
    /// The status and text with which the session ended, in bounded time.
    pub async fn connect(&self, remote: SocketAddr) -> Result<Session, Error> {
        self.connect_to(remote, EndpointId(0)).await
    }

    /// Opens a session to an endpoint, and waits until it is open. Dropping the future earlier closes the session.
    ///
    /// # Errors
    /// As [`Handle::connect`].
    pub async fn connect_to(
        &self,
        remote: SocketAddr,
        endpoint: EndpointId,
    ) -> Result<Session, Error> {
        open(&self.hub, Destination::To(remote, endpoint, None)).await
    }

    /// Opens a session back to the client of a session that this endpoint serves, named by a request: see [`Session::reverse`].
    ///
    /// # Errors
    /// As [`Session::reverse`].
    pub async fn reverse(&self, session: SessionId) -> Result<Session, Error> {
        open(&self.hub, Destination::BackOf(session)).await
    }

    /// Opens a session, and waits until it is open. Dropping the future earlier closes the session.
    pub(crate) async fn open(&self, destination: Destination) -> Result<Session, Error> {
        open(&self.hub, destination).await
    }

    /// Spawns a future: the event loop polls it until ready, beside other work. A future spawned by a task of a request
    /// inherits the request's deadline, too.
    pub fn spawn<T: 'static>(&self, future: impl Future<Output = T> + 'static) -> Task<T> {
        Task::spawn(&self.hub, Closure::Task, self.hub.inherited_ns(), future)
    }

    /// Spawns a future of the library with an inherited deadline; `kind` tells the kind of the application's code inside.
    pub(crate) fn spawn_within<T: 'static>(
        &self,
        kind: Closure,
        deadline_ns: Option<u64>,
        future: impl Future<Output = T> + 'static,
    ) -> Task<T> {
        Task::spawn(&self.hub, kind, deadline_ns, future)
    }

    /// Returns the deadline inherited by calls made here: the deadline of the task's request.
    pub(crate) fn inherited_ns(&self) -> Option<u64> {
        self.hub.inherited_ns()
    }

    /// Returns a future that is ready `duration` after its first poll.
    pub fn sleep(&self, duration: Duration) -> Sleep {
        Sleep::new(Rc::clone(&self.hub), as_ns(duration))
    }

    /// Returns random bits, for jitter.
    pub(crate) fn random(&self) -> u64 {
        self.hub.random()
    }

    /// Limits the time of a future. For calls a deadline is better: it reaches the server, too.
    pub fn timeout<F: Future>(&self, duration: Duration, future: F) -> Timeout<F> {
        Timeout::new(future, self.sleep(duration))
    }

    /// Returns the time of the turn of the event loop in which tasks were last polled.
    pub fn now(&self) -> Time {
        Time::from_ns(self.hub.now_ns())
    }

    /// Returns the current time, on the same clock: for decisions that hold only now
    /// ([`Context::clock_now`](crate::Context::clock_now)).
    pub fn clock_now(&self) -> Time {
        Time::from_ns(self.hub.clock_now_ns())
    }

    /// Returns a message for many receivers, built once.
    ///
    /// # Errors
    /// RESOURCE_EXHAUSTED when the endpoint's memory limit is reached.
    pub fn share(&self, message: &[u8]) -> Result<SharedMsg, Error> {
        Ok(MsgBuf::holding(self.hub.pool(), message)?.into())
    }

    /// Returns an empty buffer for up to `capacity` bytes.
    ///
    /// # Errors
    /// RESOURCE_EXHAUSTED when the endpoint's memory limit is reached.
    pub fn alloc(&self, capacity: usize) -> Result<MsgBuf, Error> {
        Ok(MsgBuf::from_pool(self.hub.pool(), capacity)?)
    }
}
