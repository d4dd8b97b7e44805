//! Calls from any thread: handles that post calls to an endpoint, which makes them.

mod call;
mod error;
mod parallel;
mod park;
pub(crate) mod places;
pub(crate) mod state;

use std::fmt;

use petrel_proto::{CallLimits, SessionId};

pub use call::RemoteCall;
pub use error::{NotStarted, NotStartedReason};
pub use parallel::{ParallelClient, Permit};

use crate::CallOptions;
use crate::error::Error;
use crate::inbox::Poster;
use crate::post::{Post, StartCall};
use crate::sync::thread::ThreadId;
use crate::sync::{Arc, now_ns};
use crate::workers::inherited_deadline_ns;
use places::{Place, Places};
use state::CallState;

/// A session that any thread can call on: the calls are posted to the endpoint, whose thread makes
/// them in its event loop. [`Endpoint::client`](crate::Endpoint::client) gives it.
///
/// What it costs more than a call of the endpoint's own thread is in PERFORMANCE.md, section
/// "Threads". Calls on their way are limited by `EndpointConfig::client_calls_max`, for all handles of
/// the endpoint together.
///
/// ```
/// use petrel::{Client, EndpointConfig, Nexus};
///
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// # let nexus = Nexus::builder().listen("127.0.0.1:0".parse()?).start()?;
/// # let address = nexus.local_addr().expect("it listens");
/// # let (ready, started) = std::sync::mpsc::channel();
/// # std::thread::spawn(move || {
/// #     let mut endpoint = nexus.endpoint(EndpointConfig::default()).expect("an endpoint");
/// #     endpoint.register(1, |cx, request| { let data = request.data().to_vec(); request.reply(cx, &data) });
/// #     ready.send(()).expect("somebody waits");
/// #     endpoint.run_until(|_| false);
/// # });
/// # started.recv()?;
/// // The endpoint lives on a thread of its own, and hands a client out.
/// let (give, take) = std::sync::mpsc::channel();
/// std::thread::spawn(move || {
///     let mut endpoint = Nexus::builder().start().unwrap().endpoint(EndpointConfig::default()).unwrap();
///     let session = endpoint.connect_wait(address).unwrap();
///     give.send(endpoint.client(session)).unwrap();
///     endpoint.run_until(|_| false);
/// });
/// let client: Client = take.recv()?;
/// let calls: Vec<_> = (0..10u8).map(|number| client.start(1, [number], 1)).collect();
/// for (number, call) in calls.into_iter().enumerate() {
///     assert_eq!(call?.wait()?, [number as u8]);
/// }
/// # Ok(())
/// # }
/// ```
#[derive(Clone)]
pub struct Client {
    session: SessionId,
    shared: Arc<ClientShared>,
}

/// What the handles of an endpoint share.
pub(crate) struct ClientShared {
    pub(crate) poster: Poster<Post>,
    pub(crate) places: Arc<Places>,
    pub(crate) places_max: usize,
    pub(crate) endpoint_thread: ThreadId,
}

impl Client {
    pub(crate) fn new(session: SessionId, shared: Arc<ClientShared>) -> Self {
        Self { session, shared }
    }

    /// Starts a call; the response may have up to `response_max` bytes.
    ///
    /// # Errors
    /// [`NotStarted`] gives the request back: too many calls are on their way, or the endpoint is gone.
    pub fn start(
        &self,
        method: u16,
        request: impl Into<Vec<u8>>,
        response_max: usize,
    ) -> Result<RemoteCall, NotStarted> {
        self.start_with(method, request, response_max, CallOptions::new())
    }

    /// [`Client::start`] with [`CallOptions`]. Times count from now.
    ///
    /// In a handler that a worker runs, the call inherits the deadline of the request, with options or
    /// without; elsewhere [`CallOptions::within`] passes a request's deadline on.
    ///
    /// # Errors
    /// As [`Client::start`].
    pub fn start_with(
        &self,
        method: u16,
        request: impl Into<Vec<u8>>,
        response_max: usize,
        options: CallOptions,
    ) -> Result<RemoteCall, NotStarted> {
        let Some(place) = self.shared.places.try_take() else {
            let reason = match self.shared.poster.is_open() {
                true => NotStartedReason::Full { max: self.shared.places_max },
                false => NotStartedReason::EndpointGone,
            };
            return Err(NotStarted { reason, request: request.into() });
        };
        self.post([Some(place), None], method, request.into(), response_max, options)
    }

    /// Calls, and waits for room if there is none.
    ///
    /// # Errors
    /// Why the call failed, and whether it may have been executed.
    pub async fn call(
        &self,
        method: u16,
        request: impl Into<Vec<u8>>,
        response_max: usize,
    ) -> Result<Vec<u8>, Error> {
        self.call_with(method, request, response_max, CallOptions::new()).await
    }

    /// [`Client::call`] with [`CallOptions`]. Times count from when there is room.
    ///
    /// # Errors
    /// As [`Client::call`].
    pub async fn call_with(
        &self,
        method: u16,
        request: impl Into<Vec<u8>>,
        response_max: usize,
        options: CallOptions,
    ) -> Result<Vec<u8>, Error> {
        self.reserve().await?.start_with(method, request, response_max, options)?.await
    }

    /// Calls and waits for the response, with the thread parked.
    ///
    /// # Errors
    /// Why the call failed, and whether it may have been executed.
    ///
    /// # Panics
    /// On the thread that runs the endpoint, which would wait for itself.
    pub fn call_wait(
        &self,
        method: u16,
        request: impl Into<Vec<u8>>,
        response_max: usize,
    ) -> Result<Vec<u8>, Error> {
        self.call_wait_with(method, request, response_max, CallOptions::new())
    }

    /// [`Client::call_wait`] with [`CallOptions`]. Times count from when there is room.
    ///
    /// # Errors
    /// As [`Client::call_wait`].
    ///
    /// # Panics
    /// As [`Client::call_wait`].
    pub fn call_wait_with(
        &self,
        method: u16,
        request: impl Into<Vec<u8>>,
        response_max: usize,
        options: CallOptions,
    ) -> Result<Vec<u8>, Error> {
        self.reserve_wait()?.start_with(method, request, response_max, options)?.wait()
    }

    /// A place for one call, when there is one.
    ///
    /// # Errors
    /// [`NotStartedReason::EndpointGone`].
    pub async fn reserve(&self) -> Result<Permit, NotStartedReason> {
        let place = self.shared.places.take().await;
        let place = place.map_err(|places::Gone| NotStartedReason::EndpointGone)?;
        Ok(Permit::new(self.clone(), place, None))
    }

    /// [`Client::reserve`] with the thread parked.
    ///
    /// # Errors
    /// As [`Client::reserve`].
    pub fn reserve_wait(&self) -> Result<Permit, NotStartedReason> {
        park::wait(self.reserve())
    }

    /// A way to have no more than `max_outstanding` calls on their way, however many are to be made.
    ///
    /// # Panics
    /// When `max_outstanding` is 0.
    pub fn parallel(&self, max_outstanding: usize) -> ParallelClient {
        ParallelClient::new(self.clone(), max_outstanding)
    }

    /// The session that it calls on.
    pub fn session(&self) -> SessionId {
        self.session
    }

    fn post(
        &self,
        places: [Option<Place>; 2],
        method: u16,
        request: Vec<u8>,
        response_max: usize,
        options: CallOptions,
    ) -> Result<RemoteCall, NotStarted> {
        let (state, pending) = CallState::new(places);
        let (session, limits) = (self.session, limits(options));
        let start = StartCall { pending, session, method, request, response_max, limits };
        match self.shared.poster.post(Post::Start(start)) {
            Ok(()) => Ok(RemoteCall::new(state, Arc::clone(&self.shared))),
            Err(Post::Start(StartCall { request, .. })) => {
                Err(NotStarted { reason: NotStartedReason::EndpointGone, request })
            }
            Err(_) => unreachable!("what comes back is what was posted"),
        }
    }
}

/// When a call is over that is started now, on this thread.
fn limits(options: CallOptions) -> CallLimits {
    let inherited_ns = inherited_deadline_ns();
    let own_ns = match options == CallOptions::new() {
        // Most calls: they need no clock.
        true => None,
        false => options.limits(now_ns()).deadline_ns,
    };
    CallLimits { deadline_ns: [own_ns, inherited_ns].into_iter().flatten().min() }
}

impl fmt::Debug for Client {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Client({:?})", self.session)
    }
}
