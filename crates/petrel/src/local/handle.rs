//! The endpoint as its futures have it.

use std::future::Future;
use std::marker::PhantomData;
use std::net::SocketAddr;
use std::rc::Rc;
use std::time::Duration;

use petrel_proto::SessionId;

use super::calls::Call;
use super::connect::{ConnectAnswer, Connecting};
use super::executor::Task;
use super::hub::{Command, Hub};
use super::session::Session;
use super::sleep::{Sleep, Timeout};
use crate::client::{Client, ClientConfig, Target};
use crate::control::EndpointId;
use crate::endpoint::{CallOptions, Local, SharedMsg};
use crate::error::Error;
use crate::msgbuf::MsgBuf;
use crate::time::as_ns;

/// What futures can do with their endpoint: connect, spawn, wait for a time. Clones are the same; it
/// stays on the endpoint's thread. `S` is the type of the endpoint's [state](crate::Endpoint::state).
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
    /// Runs something with the endpoint's state, in a task of the endpoint. Futures cannot keep a reference to it while
    /// they wait, as handlers and other tasks use it then.
    ///
    /// # Panics
    /// Outside of the endpoint's tasks, and within another `with`.
    pub fn with<R>(&self, run: impl FnOnce(&mut S) -> R) -> R {
        // SAFETY: a handle of an endpoint with this type of state; only those of its own tasks get at it.
        self.hub.with_state(|state| run(unsafe { state.get::<S>() }))
    }
}

impl<S> Handle<S> {
    pub(crate) fn new(hub: Rc<Hub>) -> Self {
        Self { hub, state: PhantomData }
    }

    pub(super) fn hub(&self) -> &Rc<Hub> {
        &self.hub
    }

    /// Does something with the endpoint, in one of its tasks.
    pub(crate) fn with_local<R>(&self, run: impl FnOnce(&mut Local) -> R) -> R {
        self.hub.with_local(run)
    }

    /// Opens a session to endpoint 0 of the process whose control address is `remote`, and waits
    /// until it is open.
    ///
    /// # Errors
    /// The status and the words with which the session ended, in bounded time.
    pub async fn connect(&self, remote: SocketAddr) -> Result<Session, Error> {
        self.connect_to(remote, EndpointId(0)).await
    }

    /// Opens a session to an endpoint, and waits until it is open. When the future is dropped before, so is
    /// the session.
    ///
    /// # Errors
    /// As [`Handle::connect`].
    pub async fn connect_to(
        &self,
        remote: SocketAddr,
        endpoint: EndpointId,
    ) -> Result<Session, Error> {
        let answer = Rc::new(ConnectAnswer::default());
        self.hub.command(Command::Connect(remote, endpoint, Rc::clone(&answer)));
        let mut connecting = Connecting::new(&self.hub, &answer);
        let session = connecting.begun().await?;
        let opened = session.opened().await;
        connecting.finish();
        match opened {
            Ok(()) => Ok(session),
            Err(reason) => Err(Error::cannot_connect(remote, &reason)),
        }
    }

    /// A client of a service whose sessions are this endpoint's, as [`Endpoint::client`](crate::Endpoint::client) gives it.
    ///
    /// # Panics
    /// Without a target, and outside of the endpoint's tasks.
    pub fn client<T: Into<Target>>(
        &self,
        targets: impl IntoIterator<Item = T>,
        config: ClientConfig,
    ) -> Client {
        let targets = targets.into_iter().map(Into::into).collect();
        self.hub.with_local(|local| local.client(targets, config))
    }

    /// Starts a call with a message that goes to others too, on a session that is known by its name. Its options
    /// have [begun](CallOptions::begun).
    pub(crate) fn start_shared(
        &self,
        session: SessionId,
        method: u16,
        request: &SharedMsg,
        options: CallOptions,
    ) -> Call {
        self.hub.start(session, method, request, options)
    }

    /// Has the event loop poll a future until it is ready, beside everything else it does. Spawned by a task that
    /// runs for a request, it inherits the request's deadline, too.
    pub fn spawn<T: 'static>(&self, future: impl Future<Output = T> + 'static) -> Task<T> {
        self.spawn_within(self.hub.inherited_ns(), future)
    }

    /// The same with a deadline that the calls of the future inherit.
    pub(crate) fn spawn_within<T: 'static>(
        &self,
        deadline_ns: Option<u64>,
        future: impl Future<Output = T> + 'static,
    ) -> Task<T> {
        self.hub.spawn(deadline_ns, future)
    }

    /// The deadline that calls made here inherit: that of the request for which the task runs.
    pub(crate) fn inherited_ns(&self) -> Option<u64> {
        self.hub.inherited_ns()
    }

    /// A future that is ready this time after it was first polled.
    pub fn sleep(&self, duration: Duration) -> Sleep {
        Sleep::new(Rc::clone(&self.hub), as_ns(duration))
    }

    /// Random bits, for jitter.
    pub(crate) fn random(&self) -> u64 {
        self.hub.random()
    }

    /// A future with a limit of time. For calls a deadline is better: it goes to the server too.
    pub fn timeout<F: Future>(&self, duration: Duration, future: F) -> Timeout<F> {
        Timeout::new(future, self.sleep(duration))
    }

    /// Time of the turn of the event loop in which tasks were last polled, in nanoseconds of the
    /// transport's clock.
    pub fn now_ns(&self) -> u64 {
        self.hub.now_ns()
    }

    /// The time at this moment, on the same clock: for decisions that hold only now
    /// ([`Context::clock_now_ns`](crate::Context::clock_now_ns)).
    pub fn clock_now_ns(&self) -> u64 {
        self.hub.clock_now_ns()
    }

    /// A message that goes to many, built once.
    ///
    /// # Errors
    /// RESOURCE_EXHAUSTED when the endpoint's memory limit is reached.
    pub fn share(&self, message: &[u8]) -> Result<SharedMsg, Error> {
        Ok(self.hub.alloc_message(message)?.into())
    }

    /// An empty buffer for up to `capacity` bytes.
    ///
    /// # Errors
    /// RESOURCE_EXHAUSTED when the endpoint's memory limit is reached.
    pub fn alloc(&self, capacity: usize) -> Result<MsgBuf, Error> {
        Ok(self.hub.alloc(capacity)?)
    }
}
