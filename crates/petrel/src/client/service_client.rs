//! A client of a service, and what its clones share.

use std::fmt;
use std::future::Future;
use std::pin::Pin;
use std::sync::mpsc;
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use petrel_proto::Status;

use super::background::{Background, Family};
use super::call::Call;
use super::servers_file::ServersFile;
use super::state::CallState;
use super::targets::{Kind, Names, Targets};
use super::{ClientConfig, ClientShared, ClientStats, Counters, Target, park};
use crate::endpoint::{CallOptions, HEALTH_METHOD, Health};
use crate::error::Error;
use crate::post::{LookUp, OpenService, Post};
use crate::sync::{Arc, Mutex, Weak, lock};

/// Calls a service, from any thread or task; see the [module](super). Clones are the same client. When the last one is
/// dropped, its sessions are closed.
#[derive(Clone)]
pub struct Client {
    service: Arc<Service>,
}

/// What the clones of a client share.
pub(crate) struct Service {
    key: ServiceKey,
    /// How long a call may take that does not say.
    timeout: Duration,
    endpoint: Arc<ClientShared>,
    counters: Arc<Counters>,
    /// Kept for as long as there is the client, if the endpoint is one of these.
    background: Option<Background>,
}

/// How a client is set up before it connects. Made by [`Client::builder`].
#[derive(Clone, Debug, Default)]
pub struct ClientBuilder {
    config: ClientConfig,
    background: Option<Background>,
    beside: Option<Client>,
    is_insecure: bool,
}

impl Client {
    /// Connects to a service at one or several servers ([`Targets`] has what they may be given as), with the defaults of
    /// [`ClientConfig`], and waits until the first of them takes calls.
    ///
    /// # Errors
    /// UNAVAILABLE when no server can be reached, or a file of servers cannot be read; INVALID_ARGUMENT for a text that is no name of
    /// a server.
    pub async fn connect(targets: impl Into<Targets>) -> Result<Self, Error> {
        Self::builder().connect(targets).await
    }

    /// [`Client::connect`] with the thread parked.
    ///
    /// # Errors
    /// As [`Client::connect`].
    pub fn connect_wait(targets: impl Into<Targets>) -> Result<Self, Error> {
        Self::builder().connect_wait(targets)
    }

    /// A client with other settings.
    pub fn builder() -> ClientBuilder {
        ClientBuilder::default()
    }

    /// A call, which begins when it is [awaited](Call), [waited for](Call::wait) or [started](Call::started).
    pub fn call(&self, method: u16, request: impl Into<Vec<u8>>) -> Call {
        Call::new(self.clone(), method, request.into(), Ok)
    }

    /// Changes the servers. Sessions to those that stay go on; those that go get no further calls, and their sessions are
    /// closed when the calls that they have on the way are answered. A client that was connected to names looks these up
    /// again by itself when a server cannot be reached any more, at most every five seconds, and one that was connected to a
    /// [file](Targets::file) follows it.
    ///
    /// # Panics
    /// Without a target.
    pub fn set_targets<T: Into<Target>>(&self, targets: impl IntoIterator<Item = T>) {
        let targets: Vec<Target> = targets.into_iter().map(Into::into).collect();
        assert!(!targets.is_empty(), "a client has a target");
        // Without its endpoint no call is made.
        let _ = self.endpoint().poster.post(Post::SetTargets(self.key(), targets));
    }

    /// What the client has done: sessions, attempts, and how they failed.
    pub fn stats(&self) -> ClientStats {
        self.service.counters.snapshot()
    }

    /// Asks whether a server can serve: as a whole, or one of its methods. It ends with INTERNAL if the answer is none.
    pub fn health(&self, method: Option<u16>) -> Call<Health> {
        let request = method.map_or(Vec::new(), |method| method.to_le_bytes().to_vec());
        Call::new(self.clone(), HEALTH_METHOD, request, |answer| Health::from_answer(&answer))
    }

    pub(crate) fn endpoint(&self) -> &Arc<ClientShared> {
        &self.service.endpoint
    }

    pub(crate) fn key(&self) -> ServiceKey {
        self.service.key
    }

    /// What its clones have in common with it, and no other client.
    pub(crate) fn name(&self) -> usize {
        Arc::as_ptr(&self.service).addr()
    }

    /// The options of a call, with the time of the client's configuration if they do not say when the call ends.
    #[inline]
    pub(crate) fn timed(&self, options: CallOptions) -> CallOptions {
        if options.has_limits() { options } else { options.timeout(self.service.timeout) }
    }
}

impl ClientBuilder {
    /// Timeouts, retries and pauses.
    #[must_use]
    pub fn config(mut self, config: ClientConfig) -> Self {
        self.config = config;
        self
    }

    /// Has the calls made by these threads, and not by those that all clients of the process share.
    #[must_use]
    pub fn background(mut self, background: &Background) -> Self {
        self.background = Some(background.clone());
        self
    }

    /// Has the calls made by the endpoint that makes those of another client, in place of any threads that are set here.
    #[must_use]
    pub fn beside(mut self, client: &Client) -> Self {
        self.beside = Some(client.clone());
        self
    }

    /// Allows servers on other hosts, though none proves who it is: for networks where everybody who can connect may also
    /// call. It says nothing beside [`ClientBuilder::background`], which has its own setting.
    #[must_use]
    pub fn insecure(mut self) -> Self {
        self.is_insecure = true;
        self
    }

    /// As [`Client::connect`].
    ///
    /// # Errors
    /// As [`Client::connect`].
    pub async fn connect(self, targets: impl Into<Targets>) -> Result<Client, Error> {
        let targets = targets.into();
        let found = match Found::takes_time(&targets) {
            false => Found::of(targets)?,
            true => Finding::begin(targets)?.await?,
        };
        let (client, opened) = self.open(found)?;
        opened.await?;
        Ok(client)
    }

    /// As [`Client::connect_wait`].
    ///
    /// # Errors
    /// As [`Client::connect`].
    pub fn connect_wait(self, targets: impl Into<Targets>) -> Result<Client, Error> {
        let (client, opened) = self.open(Found::of(targets.into())?)?;
        client.endpoint().check_thread();
        park::park(opened)?;
        Ok(client)
    }

    /// A client whose endpoint is asked to connect.
    fn open(self, found: Found) -> Result<(Client, Opened), Error> {
        let family = Family::of(&found.servers);
        let client = match (self.beside, self.background) {
            (Some(other), _) => {
                let Service { endpoint, background, .. } = &*other.service;
                Client::new(Arc::clone(endpoint), &self.config, background.clone())
            }
            (None, background) => {
                let background =
                    background.map_or_else(|| Background::shared(self.is_insecure, family), Ok)?;
                let endpoint = background.next_endpoint(family)?;
                Client::new(endpoint, &self.config, Some(background))
            }
        };
        let (state, opened) = CallState::new(None);
        let look_up = client.look_up(found.by)?;
        let service = Arc::downgrade(&client.service);
        let open =
            OpenService { service, targets: found.servers, look_up, config: self.config, opened };
        // Without the endpoint it is dropped, and that ends the wait.
        let _ = client.endpoint().poster.post(Post::OpenService(Box::new(open)));
        Ok((client, Opened(state)))
    }
}

impl Client {
    /// A client of an endpoint that has not heard of it.
    fn new(
        endpoint: Arc<ClientShared>,
        config: &ClientConfig,
        background: Option<Background>,
    ) -> Self {
        let (key, timeout) = (endpoint.services.take(), config.timeout);
        let counters = Arc::default();
        let service = Service { key, timeout, endpoint, counters, background };
        Self { service: Arc::new(service) }
    }

    /// A client whose sessions are the endpoint's own, and what that has to open for it.
    pub(crate) fn of_endpoint(
        endpoint: Arc<ClientShared>,
        targets: Vec<Target>,
        config: ClientConfig,
    ) -> (Self, OpenService) {
        let client = Self::new(endpoint, &config, None);
        let (_, opened) = CallState::new(None);
        let service = Arc::downgrade(&client.service);
        let open = OpenService { service, targets, look_up: None, config, opened };
        (client, open)
    }

    /// What looks for the servers again, on a thread, and has the endpoint connect to those that are found.
    fn look_up(&self, by: FoundBy) -> Result<Option<LookUp>, Error> {
        let service = Arc::downgrade(&self.service);
        match by {
            FoundBy::Address => Ok(None),
            FoundBy::Name(names) => Ok(Some(Box::new(move || {
                let (service, names) = (Weak::clone(&service), names.clone());
                // What cannot be found now is looked for again when the next attempt to connect has failed.
                let _ = on_thread(move || {
                    if let Ok(targets) = names.resolve() {
                        set_targets_of(&service, targets);
                    }
                });
            }))),
            FoundBy::File(file) => {
                let (ask, asked) = mpsc::sync_channel(1);
                // For as long as the endpoint has the service, which has what asks.
                on_thread(move || {
                    file.follow(&asked, |targets| set_targets_of(&service, targets))
                })?;
                Ok(Some(Box::new(move || {
                    // Where one is asked for already, that does.
                    let _ = ask.try_send(());
                })))
            }
        }
    }
}

/// The servers of a service, and what tells when they are others.
struct Found {
    servers: Vec<Target>,
    by: FoundBy,
}

enum FoundBy {
    Address,
    Name(Names),
    File(ServersFile),
}

impl Found {
    /// Whether the system has to be asked, or a file be read.
    fn takes_time(targets: &Targets) -> bool {
        match &targets.0 {
            Kind::Names(names) => names.have_to_be_asked_for(),
            Kind::File(_) => true,
        }
    }

    fn of(targets: Targets) -> Result<Self, Error> {
        match targets.0 {
            Kind::Names(names) => {
                let servers = names.resolve()?;
                let is_named = names.have_to_be_asked_for();
                let by = if is_named { FoundBy::Name(names) } else { FoundBy::Address };
                Ok(Self { servers, by })
            }
            Kind::File(path) => {
                let file = ServersFile::open(path)?;
                Ok(Self { servers: file.targets(), by: FoundBy::File(file) })
            }
        }
    }
}

/// What a thread finds, and who waits for it.
type Place = Mutex<(Option<Result<Found, Error>>, Option<Waker>)>;

/// The servers of a service, for which a thread looks.
struct Finding(Arc<Place>);

impl Finding {
    fn begin(targets: Targets) -> Result<Self, Error> {
        let place: Arc<Place> = Arc::new(Mutex::new((None, None)));
        let put = Arc::clone(&place);
        on_thread(move || {
            let found = Found::of(targets);
            let waker = {
                let (result, waker) = &mut *lock(&put);
                *result = Some(found);
                waker.take()
            };
            waker.into_iter().for_each(Waker::wake);
        })?;
        Ok(Self(place))
    }
}

impl Future for Finding {
    type Output = Result<Found, Error>;

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let (result, waker) = &mut *lock(&self.0);
        *waker = Some(cx.waker().clone());
        result.take().map_or(Poll::Pending, Poll::Ready)
    }
}

/// Changes the servers of a client, if there still is one.
fn set_targets_of(service: &Weak<Service>, targets: Vec<Target>) {
    if let Some(service) = service.upgrade() {
        Client { service }.set_targets(targets);
    }
}

/// Asks the system for addresses, or reads a file, which may take seconds.
fn on_thread(resolve: impl FnOnce() + Send + 'static) -> Result<(), Error> {
    let named = std::thread::Builder::new().name("petrel-names".to_owned());
    let started = named.spawn(resolve).map(drop);
    started.map_err(|error| {
        let message = format!("no thread to ask for addresses: {error}");
        Error::not_sent(Status::ResourceExhausted, message)
    })
}

/// Ends when a client's first session is open.
struct Opened(Arc<CallState>);

impl Future for Opened {
    type Output = Result<(), Error>;

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        self.0.poll(cx.waker()).map(|outcome| outcome.map(drop))
    }
}

impl Service {
    pub(crate) fn key(&self) -> ServiceKey {
        self.key
    }

    pub(crate) fn counters(&self) -> &Arc<Counters> {
        &self.counters
    }
}

impl Drop for Service {
    fn drop(&mut self) {
        // The endpoint gives the number back; without it there is none to have.
        let _ = self.endpoint.poster.post(Post::CloseService(self.key));
    }
}

/// The number of a service at its endpoint.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct ServiceKey(u32);

impl ServiceKey {
    pub(crate) fn index(self) -> usize {
        self.0 as usize
    }
}

/// Numbers of services, small ones first.
#[derive(Default)]
pub(crate) struct ServiceKeys(Mutex<FreeKeys>);

#[derive(Default)]
struct FreeKeys {
    next: u32,
    given_back: Vec<u32>,
}

impl ServiceKeys {
    fn take(&self) -> ServiceKey {
        let mut free = lock(&self.0);
        let number = free.given_back.pop().unwrap_or_else(|| {
            free.next += 1;
            free.next - 1
        });
        ServiceKey(number)
    }

    /// The endpoint has forgotten the service.
    pub(crate) fn give_back(&self, key: ServiceKey) {
        lock(&self.0).given_back.push(key.0);
    }
}

impl fmt::Debug for Client {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Client({})", self.service.key.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// An endpoint has a table by these numbers, which is to stay as small as there are services at a time.
    #[test]
    fn take__the_smallest_numbers_and_those_given_back() {
        let keys = ServiceKeys::default();
        let taken = [(); 4].map(|()| keys.take());
        assert_eq!(taken.map(ServiceKey::index), [0, 1, 2, 3]);
        keys.give_back(taken[1]);
        keys.give_back(taken[2]);
        let mut again = [(); 3].map(|()| keys.take().index());
        again.sort_unstable();
        assert_eq!(again, [1, 2, 4]);
    }
}
