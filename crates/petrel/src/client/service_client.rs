//! A client of a service, and the state shared by its clones.

use std::fmt;
use std::future::Future;
use std::pin::Pin;
use std::sync::mpsc;
use std::task::{Context, Poll};
use std::time::Duration;

use super::background::{Background, Family, nexus};
use super::caller::SetCallbacks;
use super::lookup::{Finding, Found, FoundBy, on_thread};
use super::park;
use super::targets::{Names, Targets};
use crate::endpoint::{
    AllowedTransports, Callbacks, ClientShared, CongestionControl, Device, EndpointConfig,
    IdlePolicy,
};
use crate::error::Error;
use crate::inbox_message::{InboxMessage, LookUp, OpenService, ServiceWay};
use crate::local::client_call::state::{CallState, Pending};
use crate::security::Security;
use crate::sync::{Arc, Mutex, Weak, lock};
use crate::values::client::{ClientConfig, ClientStats, Counters, ServiceKey, Target};
use crate::values::expected::Expected;
use crate::values::method_table::ServiceTable;

/// Calls a service, from any thread or task; see the [module](super). Clones are the same client. Dropping the last one
/// closes the sessions.
#[derive(Clone)]
pub struct Client {
    service: Arc<Service>,
}

/// The time between two questions for the addresses of names without addresses.
const LOOK_UP_INTERVAL: Duration = Duration::from_secs(1);

/// The state shared by the clones of a client.
struct Service {
    key: ServiceKey,
    /// Timeout of calls without their own.
    timeout: Duration,
    endpoint: Arc<ClientShared>,
    counters: Arc<Counters>,
    /// The methods of typed services.
    tables: Mutex<Vec<Arc<Expected>>>,
    /// Keeps the threads of the endpoint alive.
    background: Option<Background>,
}

/// Settings of a client before it connects. Made by [`Client::builder`].
///
/// ```
/// # let server = petrel::Server::bind("127.0.0.1:0").serve(|_| (), |endpoint| {
/// #     endpoint.on(1, |_, cx, request| request.reply(cx, b"value"));
/// # });
/// # let server = server.start()?;
/// // A second client on the threads and sessions' endpoint of the first.
/// let first = petrel::Client::builder().connect_wait(server.local_addr())?;
/// let second = petrel::Client::builder().beside(&first).connect_wait(server.local_addr())?;
/// assert_eq!(second.call(1, "key").wait()?, b"value");
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Debug, Default)]
pub struct ClientBuilder {
    config: ClientConfig,
    background: Option<Background>,
    beside: Option<Client>,
    /// Settings of an endpoint of the client's own.
    endpoint: Option<Box<EndpointConfig>>,
    is_insecure: bool,
    security: Option<std::sync::Arc<dyn Security>>,
    callbacks: Option<SetCallbacks>,
    is_lazy: bool,
}

impl Client {
    /// Connects to a service on one or several servers (see [`Targets`]), with the defaults of [`ClientConfig`], and
    /// waits until the first of them accepts calls.
    ///
    /// # Errors
    /// UNAVAILABLE if no server can be reached, or a file of servers cannot be read. INVALID_ARGUMENT if a text is not
    /// the name of a server.
    pub async fn connect(targets: impl Into<Targets>) -> Result<Self, Error> {
        Self::builder().connect(targets).await
    }

    /// Connects like [`Client::connect`], with the thread parked.
    ///
    /// # Errors
    /// As [`Client::connect`].
    pub fn connect_wait(targets: impl Into<Targets>) -> Result<Self, Error> {
        Self::builder().connect_wait(targets)
    }

    /// Returns a builder for a client with other settings.
    pub fn builder() -> ClientBuilder {
        ClientBuilder::default()
    }

    /// Changes the servers. Sessions to remaining servers continue; removed servers get no further calls, and their
    /// sessions close when their outstanding calls have ended. A client connected to names looks them up again by
    /// itself when a server becomes unreachable, at most every five seconds. A client connected to a
    /// [file](Targets::file) follows the file.
    ///
    /// The client keeps its endpoint, whose data port has the address family of the first servers. Servers that have
    /// only addresses of the other family are reached through shared memory, or not at all: connect another client.
    ///
    /// Names are looked up now, which may take seconds, and a file is read once.
    ///
    /// # Errors
    /// INVALID_ARGUMENT without a target, or if a text is not the name of a server; UNAVAILABLE if a name has no address.
    pub fn set_targets(&self, targets: impl Into<Targets>) -> Result<(), Error> {
        self.replace_targets(Found::of(targets.into())?.servers);
        Ok(())
    }

    fn replace_targets(&self, targets: Vec<Target>) {
        // Without its endpoint no call is made.
        self.endpoint().post(InboxMessage::SetTargets(self.key(), targets));
    }

    /// Returns counters of sessions, attempts, and their failures.
    pub fn stats(&self) -> ClientStats {
        self.service.counters.snapshot()
    }

    pub(crate) fn endpoint(&self) -> &Arc<ClientShared> {
        &self.service.endpoint
    }

    pub(crate) fn key(&self) -> ServiceKey {
        self.service.key
    }

    /// Returns the timeout of calls without their own.
    #[inline]
    pub(crate) fn call_timeout(&self) -> Duration {
        self.service.timeout
    }

    /// Expects the methods of a table at the servers, and returns the client's numbers of the methods.
    pub(crate) fn expect_methods(&self, table: &'static ServiceTable) -> Arc<Expected> {
        let mut tables = lock(&self.service.tables);
        let known = tables.iter().find(|expected| std::ptr::eq(expected.table(), table));
        if let Some(known) = known {
            return Arc::clone(known);
        }
        let is_taken = |number: u16| tables.iter().any(|other| other.numbers().contains(&number));
        let expected = Expected::new(table, table.numbers(is_taken));
        tables.push(Arc::clone(&expected));
        // Before any call of the methods. Without its endpoint no call is made.
        self.endpoint().post(InboxMessage::ExpectTable(self.key(), Arc::clone(&expected)));
        expected
    }

    /// Returns an identity shared by clones, and unique otherwise.
    pub(crate) fn name(&self) -> usize {
        Arc::as_ptr(&self.service).addr()
    }
}

impl ClientBuilder {
    /// Sets timeouts, retries and pauses.
    #[must_use]
    pub fn config(mut self, config: ClientConfig) -> Self {
        self.config = config;
        self
    }

    /// Sets the [name](ClientConfig::service) of the wanted service: servers of other services get no calls.
    #[must_use]
    pub fn service(mut self, name: impl Into<String>) -> Self {
        self.config.service = Some(name.into());
        self
    }

    /// Makes the calls on these threads, instead of the threads shared by all clients of the process.
    #[must_use]
    pub fn background(mut self, background: &Background) -> Self {
        self.background = Some(background.clone());
        self
    }

    /// Makes the calls on the endpoint of another client, overriding any threads set here.
    #[must_use]
    pub fn beside(mut self, client: &Client) -> Self {
        self.beside = Some(client.clone());
        self
    }

    /// Sets the transports to be used; all by default. This setting gives the client a thread of its own.
    #[must_use]
    pub fn transports(mut self, allowed: AllowedTransports) -> Self {
        self.own_endpoint().transports = allowed;
        self
    }

    /// Sets the largest request and response, in bytes: up to 1 GiB, and 8 MiB by default. Servers have a limit of their own. This setting
    /// gives the client a thread of its own.
    #[must_use]
    pub fn message_bytes_max(mut self, bytes: u32) -> Self {
        self.own_endpoint().sessions.message_bytes_max = bytes;
        self
    }

    /// Sets how the client's thread waits when it is idle; by default the thread polls for 100 µs, then sleeps. This setting gives the
    /// client a thread of its own.
    #[must_use]
    pub fn idle(mut self, idle: IdlePolicy) -> Self {
        self.own_endpoint().idle = idle;
        self
    }

    /// Sets how the client's sessions over UDP react to congestion; DCQCN by default. This setting gives the client a thread of its own.
    #[must_use]
    pub fn congestion(mut self, control: CongestionControl) -> Self {
        self.own_endpoint().protocol.congestion = control;
        self
    }

    /// Sets all of the settings of the client's endpoint. The client then has a thread of its own. Call this method first: the
    /// method replaces earlier settings.
    #[must_use]
    pub fn endpoint(mut self, config: EndpointConfig) -> Self {
        *self.own_endpoint() = config;
        self
    }

    /// Sends and receives the client's datagrams by a network device, and not by the kernel's network stack: see
    /// [`NexusBuilder::device`](crate::nexus::NexusBuilder::device). The client then has a thread of its own, except with
    /// [`Device::Kernel`], the default.
    #[must_use]
    pub fn device(mut self, device: Device) -> Self {
        if device != Device::Kernel {
            self.own_endpoint().host.udp.device = Some(device);
        }
        self
    }

    fn own_endpoint(&mut self) -> &mut EndpointConfig {
        self.endpoint.get_or_insert_default()
    }

    /// Allows servers on other hosts, without authentication: for networks in which everybody able to connect may also
    /// call. No effect with [`ClientBuilder::background`], which has a setting of its own.
    #[must_use]
    pub fn insecure(mut self) -> Self {
        self.is_insecure = true;
        self
    }

    /// Returns the client without waiting for a server: a program may start before the servers, and before their names have addresses. The client connects by itself,
    /// and calls meanwhile fail or [wait](crate::client::Call::wait_for_ready) by their options.
    #[must_use]
    pub fn lazy(mut self) -> Self {
        self.is_lazy = true;
        self
    }

    /// Gives the client credentials, for example of the crate `petrel-tls`: client and servers then prove their identities,
    /// and no other process can read the traffic. A server named by host name has to prove the name. The client has a thread
    /// of its own.
    #[must_use]
    pub fn credentials(mut self, security: std::sync::Arc<dyn Security>) -> Self {
        self.security = Some(security);
        self
    }

    /// Lets the servers of the client call the client back, by [`Request::caller`](crate::Request::caller): `set` sets the handlers. Only servers
    /// that the client has connected to reach them, and the handlers of other clients stay out of their reach. Without this setting no
    /// server can call the client. The last call of this method counts.
    ///
    /// `set` runs on the thread that makes the client's calls, and so do the handlers, which should take microseconds at most:
    /// the clients of a process that have callbacks share a thread, apart from that of other clients. A client
    /// [beside](Self::beside) another, or on its own [threads](Self::background), runs them there, and callers' own threads no longer
    /// run that endpoint's event loop. When the last clone of the client is dropped, its servers get UNAVAILABLE.
    #[must_use]
    pub fn serve(mut self, set: impl Fn(&mut Callbacks) + Send + Sync + 'static) -> Self {
        self.callbacks = Some(SetCallbacks::new(set));
        self
    }

    /// Connects as [`Client::connect`] does, within [`ClientConfig::timeout`].
    ///
    /// # Errors
    /// As [`Client::connect`].
    pub async fn connect(self, targets: impl Into<Targets>) -> Result<Client, Error> {
        let (targets, is_lazy) = (targets.into(), self.is_lazy);
        let found = match Found::takes_time(&targets) {
            false => Found::of(targets)?,
            true => Finding::begin(targets, is_lazy)?.await?,
        };
        let (client, opened) = self.open(found)?;
        if !is_lazy {
            opened.await?;
        }
        Ok(client)
    }

    /// Connects as [`Client::connect_wait`] does.
    ///
    /// # Errors
    /// As [`Client::connect`].
    pub fn connect_wait(self, targets: impl Into<Targets>) -> Result<Client, Error> {
        let (targets, is_lazy) = (targets.into(), self.is_lazy);
        let found = if is_lazy { Found::of_lazy(targets) } else { Found::of(targets) };
        let (client, opened) = self.open(found?)?;
        client.endpoint().check_thread();
        if !is_lazy {
            park::park(opened)?;
        }
        Ok(client)
    }

    /// Creates a client and asks its endpoint to connect.
    fn open(self, found: Found) -> Result<(Client, Opened), Error> {
        let family = Family::of(&found.servers);
        let client = match (self.beside, self.background) {
            (Some(other), _) => {
                let Service { endpoint, background, .. } = &*other.service;
                Client::new(Arc::clone(endpoint), &self.config, background.clone())
            }
            (None, background) => {
                let background = match (background, self.endpoint) {
                    (Some(background), _) => background,
                    (None, None) if self.security.is_none() => {
                        Background::shared((self.is_insecure, self.callbacks.is_some()), family)?
                    }
                    (None, config) => {
                        let nexus = nexus(self.is_insecure, self.security);
                        Background::own(nexus, config.map(|config| *config), family)?
                    }
                };
                let endpoint = background.next_endpoint(family)?;
                Client::new(endpoint, &self.config, Some(background))
            }
        };
        let (state, opened) = CallState::new(None);
        let look_up = client.look_up(found.by)?;
        let mut open = client.open_message(found.servers, look_up, self.config, opened);
        if let Some(callbacks) = self.callbacks {
            client.endpoint().bind()?;
            open.way = ServiceWay::Serving(callbacks.into_make());
        }
        // Without the endpoint the message is dropped, which ends the wait.
        client.endpoint().post(InboxMessage::OpenService(Box::new(open)));
        Ok((client, Opened(state)))
    }
}

impl Client {
    /// Creates a client unknown to the endpoint so far.
    fn new(
        endpoint: Arc<ClientShared>,
        config: &ClientConfig,
        background: Option<Background>,
    ) -> Self {
        let (key, timeout) = (endpoint.take_service(), config.timeout);
        let counters = Arc::default();
        let tables = Mutex::default();
        let service = Service { key, timeout, endpoint, counters, tables, background };
        Self { service: Arc::new(service) }
    }

    /// Creates a client of the endpoint itself, and the order for the endpoint to open it.
    pub(crate) fn of_endpoint(
        endpoint: Arc<ClientShared>,
        targets: Vec<Target>,
        config: ClientConfig,
    ) -> (Self, OpenService) {
        let client = Self::new(endpoint, &config, None);
        let (_, opened) = CallState::new(None);
        let open = client.open_message(targets, None, config, opened);
        (client, open)
    }

    /// Returns the order for the endpoint to open the service.
    fn open_message(
        &self,
        targets: Vec<Target>,
        look_up: Option<LookUp>,
        config: ClientConfig,
        opened: Pending,
    ) -> OpenService {
        let (number, counters) = (self.key(), Arc::downgrade(&self.service.counters));
        let way = ServiceWay::To;
        OpenService { number, counters, targets, look_up, config, way, opened }
    }

    /// Returns a function that looks up the servers again, on a thread, and makes the endpoint connect to them.
    fn look_up(&self, by: FoundBy) -> Result<Option<LookUp>, Error> {
        let service = Arc::downgrade(&self.service);
        match by {
            FoundBy::Address => Ok(None),
            FoundBy::Nothing(names) => {
                let (found_by, client) = (names.clone(), Weak::clone(&service));
                on_thread(move || look_until_found(&client, &names))?;
                self.look_up(FoundBy::Name(found_by))
            }
            FoundBy::Name(names) => Ok(Some(Box::new(move || {
                let (service, names) = (Weak::clone(&service), names.clone());
                // A failed lookup is repeated after the next failed attempt to connect.
                let _ = on_thread(move || {
                    if let Ok(targets) = names.resolve() {
                        set_targets_of(&service, targets);
                    }
                });
            }))),
            FoundBy::File(file) => {
                let (ask, asked) = mpsc::sync_channel(1);
                // Ends with the endpoint's service, which owns the sender.
                on_thread(move || {
                    file.follow(&asked, |targets| set_targets_of(&service, targets))
                })?;
                Ok(Some(Box::new(move || {
                    // A pending request suffices.
                    let _ = ask.try_send(());
                })))
            }
        }
    }
}

/// Looks names up until there is an address, or the client has ended.
fn look_until_found(service: &Weak<Service>, names: &Names) {
    while service.strong_count() > 0 {
        if let Ok(targets) = names.resolve() {
            return set_targets_of(service, targets);
        }
        std::thread::sleep(LOOK_UP_INTERVAL);
    }
}

/// Changes the servers of a client that still exists.
fn set_targets_of(service: &Weak<Service>, targets: Vec<Target>) {
    if let Some(service) = service.upgrade() {
        Client { service }.replace_targets(targets);
    }
}

/// Ends when a client's first session is open.
struct Opened(Arc<CallState>);

impl Future for Opened {
    type Output = Result<(), Error>;

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        // SAFETY: the state is this future's, which is borrowed exclusively.
        unsafe { self.0.poll(cx.waker()) }.map(|outcome| outcome.map(drop))
    }
}

impl Drop for Service {
    fn drop(&mut self) {
        // The endpoint returns the number; without the endpoint none exists.
        self.endpoint.post(InboxMessage::CloseService(self.key));
    }
}

impl fmt::Debug for Client {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Client({})", self.service.key.index())
    }
}
