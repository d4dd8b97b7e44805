//! Many calls, but not too many at once.

use std::fmt;

use super::error::{NotStarted, NotStartedReason};
use super::park;
use super::places::{Place, Places};
use super::remote_call::RemoteCall;
use super::session_client::SessionClient;
use crate::CallOptions;
use crate::sync::Arc;

/// Makes any number of calls, of which no more than a limit are on their way at once: who starts
/// another waits for one to end.
///
/// ```no_run
/// # async fn example(client: petrel::SessionClient) -> Result<(), Box<dyn std::error::Error>> {
/// let parallel = client.parallel(16);
/// let mut calls = Vec::new();
/// for number in 0..10_000u32 {
///     calls.push(parallel.start(1, number.to_le_bytes(), 100).await?);
/// }
/// for call in calls {
///     call.await?;
/// }
/// # Ok(())
/// # }
/// ```
#[derive(Clone)]
pub struct ParallelClient {
    client: SessionClient,
    places: Arc<Places>,
}

/// The right to start one call at once. Dropped, it leaves the place to others.
#[must_use = "it keeps a place"]
pub struct Permit {
    client: SessionClient,
    place: Place,
    of_parallel: Option<Place>,
}

impl ParallelClient {
    pub(super) fn new(client: SessionClient, max_outstanding: usize) -> Self {
        assert!(max_outstanding > 0, "without a place no call could ever start");
        Self { client, places: Places::new(max_outstanding) }
    }

    /// Starts a call when fewer than the limit are on their way.
    ///
    /// # Errors
    /// [`NotStarted`] with [`NotStartedReason::EndpointGone`].
    pub async fn start(
        &self,
        method: u16,
        request: impl Into<Vec<u8>>,
        response_max: usize,
    ) -> Result<RemoteCall, NotStarted> {
        match self.reserve().await {
            Ok(permit) => permit.start(method, request, response_max),
            Err(reason) => Err(NotStarted { reason, request: request.into() }),
        }
    }

    /// [`ParallelClient::start`] with the thread parked while it waits.
    ///
    /// # Errors
    /// As [`ParallelClient::start`].
    pub fn start_wait(
        &self,
        method: u16,
        request: impl Into<Vec<u8>>,
        response_max: usize,
    ) -> Result<RemoteCall, NotStarted> {
        park::wait(self.start(method, request, response_max))
    }

    /// A place for one call, when there is one.
    ///
    /// # Errors
    /// [`NotStartedReason::EndpointGone`].
    pub async fn reserve(&self) -> Result<Permit, NotStartedReason> {
        // These places are never closed: calls that end with the endpoint give them back.
        let gone = |super::places::Gone| NotStartedReason::EndpointGone;
        let of_parallel = self.places.take().await.map_err(gone)?;
        let permit = self.client.reserve().await?;
        Ok(Permit { of_parallel: Some(of_parallel), ..permit })
    }
}

impl Permit {
    pub(super) fn new(client: SessionClient, place: Place, of_parallel: Option<Place>) -> Self {
        Self { client, place, of_parallel }
    }

    /// Starts a call; see [`SessionClient::start`].
    ///
    /// # Errors
    /// [`NotStarted`] with [`NotStartedReason::EndpointGone`].
    pub fn start(
        self,
        method: u16,
        request: impl Into<Vec<u8>>,
        response_max: usize,
    ) -> Result<RemoteCall, NotStarted> {
        self.start_with(method, request, response_max, CallOptions::new())
    }

    /// Starts a call with [`CallOptions`]; see [`SessionClient::start_with`].
    ///
    /// # Errors
    /// As [`Permit::start`].
    pub fn start_with(
        self,
        method: u16,
        request: impl Into<Vec<u8>>,
        response_max: usize,
        options: CallOptions,
    ) -> Result<RemoteCall, NotStarted> {
        let Self { client, place, of_parallel } = self;
        let places = [Some(place), of_parallel];
        client.post(places, method, request.into(), response_max, options)
    }
}

impl fmt::Debug for Permit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Permit({:?})", self.client)
    }
}

impl fmt::Debug for ParallelClient {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "ParallelClient({:?})", self.client)
    }
}
