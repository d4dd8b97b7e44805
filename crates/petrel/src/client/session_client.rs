//! Calls from any thread on one session.

use std::fmt;

use petrel_proto::SessionId;

use super::error::{NotStarted, NotStartedReason};
use super::parallel::{ParallelClient, Permit};
use super::places::{self, Place};
use super::remote_call::RemoteCall;
use super::state::CallState;
use super::{ClientShared, begun, park};
use crate::CallOptions;
use crate::error::Error;
use crate::post::{Callee, Post, StartCall};
use crate::sync::Arc;

/// A session that any thread can call on: the calls are posted to the endpoint, whose thread makes
/// them in its event loop. [`Endpoint::session_client`](crate::Endpoint::session_client) gives it.
///
/// What it costs more than a call of the endpoint's own thread is in PERFORMANCE.md, section
/// "Threads". Calls on their way are limited by `EndpointConfig::client_calls_max`, for all handles of
/// the endpoint together.
///
/// ```
/// use petrel::{SessionClient, EndpointConfig, Nexus};
///
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// # let nexus = Nexus::builder().listen("127.0.0.1:0".parse()?).start()?;
/// # let address = nexus.local_addr().expect("it listens");
/// # let (ready, started) = std::sync::mpsc::channel();
/// # std::thread::spawn(move || {
/// #     let mut endpoint = nexus.endpoint(EndpointConfig::default()).expect("an endpoint");
/// #     endpoint.on(1, |_, cx, request| { let data = request.data().to_vec(); request.reply(cx, &data) });
/// #     ready.send(()).expect("somebody waits");
/// #     endpoint.run_until(|_, _| false);
/// # });
/// # started.recv()?;
/// // The endpoint lives on a thread of its own, and hands a client out.
/// let (give, take) = std::sync::mpsc::channel();
/// std::thread::spawn(move || {
///     let mut endpoint = Nexus::builder().start().unwrap().endpoint(EndpointConfig::default()).unwrap();
///     let session = endpoint.connect_wait(address).unwrap();
///     give.send(endpoint.session_client(session)).unwrap();
///     endpoint.run_until(|_, _| false);
/// });
/// let client: SessionClient = take.recv()?;
/// let calls: Vec<_> = (0..10u8).map(|number| client.start(1, [number], 1)).collect();
/// for (number, call) in calls.into_iter().enumerate() {
///     assert_eq!(call?.wait()?, [number as u8]);
/// }
/// # Ok(())
/// # }
/// ```
#[derive(Clone)]
pub struct SessionClient {
    session: SessionId,
    shared: Arc<ClientShared>,
}

impl SessionClient {
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

    /// [`SessionClient::start`] with [`CallOptions`]. Times count from now.
    ///
    /// In a handler that a worker runs, the call inherits the deadline of the request, with options or
    /// without; elsewhere [`CallOptions::within`] passes a request's deadline on.
    ///
    /// # Errors
    /// As [`SessionClient::start`].
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

    /// [`SessionClient::call`] with [`CallOptions`]. Times count from when there is room.
    ///
    /// # Errors
    /// As [`SessionClient::call`].
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

    /// [`SessionClient::call_wait`] with [`CallOptions`]. Times count from when there is room.
    ///
    /// # Errors
    /// As [`SessionClient::call_wait`].
    ///
    /// # Panics
    /// As [`SessionClient::call_wait`].
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

    /// [`SessionClient::reserve`] with the thread parked.
    ///
    /// # Errors
    /// As [`SessionClient::reserve`].
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

    pub(super) fn post(
        &self,
        places: [Option<Place>; 2],
        method: u16,
        request: Vec<u8>,
        response_max: usize,
        options: CallOptions,
    ) -> Result<RemoteCall, NotStarted> {
        let (state, pending) = CallState::new(places);
        let callee = Callee::Session { session: self.session, response_max };
        let options = begun(options);
        let start = StartCall { pending, callee, method, request, options };
        match self.shared.poster.post(Post::Start(start)) {
            Ok(()) => Ok(RemoteCall::new(state, Arc::clone(&self.shared))),
            Err(Post::Start(StartCall { request, .. })) => {
                Err(NotStarted { reason: NotStartedReason::EndpointGone, request })
            }
            Err(_) => unreachable!("what comes back is what was posted"),
        }
    }
}

impl fmt::Debug for SessionClient {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "SessionClient({:?})", self.session)
    }
}
