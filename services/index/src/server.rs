//! A server: threads with endpoints, workers, and a common store.

use std::fmt;
use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::mpsc::{self, Sender};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use petrel::endpoint::{AllowedTransports, EndpointId};
use petrel::endpoint::{Device, EndpointConfig, EndpointStats, IdlePolicy, Stop};
use petrel::security::{Authorize, Security};
use petrel::workers::Workers;
use petrel::{Endpoint, Nexus};
use petrel_proto::limits::{SLOTS_MAX, WINDOW_PACKETS};

use crate::error::ServerError;
use crate::handlers::{prefetch_words, register};
use crate::limits::{DISPATCH_MAX, WORKERS_MAX};
use crate::metrics::Metrics;
use crate::store::{Store, StoreConfig};

/// A thread of the server.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ThreadKind {
    /// A thread with the endpoint of this number.
    Dispatch(u16),
    /// A worker thread.
    Worker,
}

/// Runs at the start of threads, for example to bind them to a CPU. Workers inherit the settings of their starting
/// thread.
pub type Placement = Arc<dyn Fn(ThreadKind) -> io::Result<()> + Send + Sync>;

/// The settings of a server.
#[derive(Clone)]
pub struct ServerConfig {
    /// Address and TCP port of the control plane; port 0 chooses any free port.
    pub listen: SocketAddr,
    /// Whether other hosts may connect, without any authentication.
    pub insecure: bool,
    /// Credentials, for example of the crate `petrel-tls`.
    pub security: Option<Arc<dyn Security>>,
    /// The rights of clients; everything by default.
    pub authorization: Option<Arc<dyn Authorize>>,
    /// The exit of datagrams.
    pub device: Device,
    /// Transports that clients may use.
    pub transports: AllowedTransports,
    /// Number of endpoints, with a thread each. Clients choose an endpoint by number, from 0.
    pub dispatch: u16,
    /// Threads that run scans, for all endpoints together.
    pub workers: u16,
    /// The idle policy of endpoints.
    pub idle: IdlePolicy,
    /// The limits of the store.
    pub store: StoreConfig,
    /// Whether the endpoints prefetch memory for lookups. Switch it off to measure its benefit.
    pub prefetches: bool,
    /// Runs first in each thread.
    pub placement: Option<Placement>,
}

/// A running server. Dropping this value does not end the server; [`Server::stop`] does.
#[derive(Debug)]
pub struct Server {
    address: SocketAddr,
    store: Arc<Store>,
    metrics: Arc<Metrics>,
    dispatchers: Vec<Dispatcher>,
    /// Declared after the endpoints' threads, whose requests the workers run.
    workers: Workers,
}

#[derive(Debug)]
struct Dispatcher {
    stop: Stop,
    drain: Sender<Duration>,
    thread: JoinHandle<Result<DispatchResult, ServerError>>,
}

/// The result of a dispatch thread.
#[derive(Debug)]
struct DispatchResult {
    stats: EndpointStats,
    /// Closed sessions, perhaps with outstanding calls.
    sessions_cut: usize,
}

/// The final report of a stopped server.
#[derive(Debug)]
pub struct Stopped {
    /// The last counters of each endpoint.
    pub endpoints: Vec<EndpointStats>,
    /// The last counters of the service.
    pub counters: Vec<(String, u64)>,
    /// Sessions of clients that had not left in time; calls may have failed.
    pub sessions_cut: usize,
}

impl ServerConfig {
    /// A server with one endpoint and two workers.
    pub fn at(listen: SocketAddr) -> Self {
        Self {
            listen,
            insecure: false,
            security: None,
            device: Device::Kernel,
            authorization: None,
            transports: AllowedTransports::ALL,
            dispatch: 1,
            workers: 2,
            idle: IdlePolicy::default(),
            store: StoreConfig::default(),
            prefetches: true,
            placement: None,
        }
    }

    fn check(&self) -> Result<(), ServerError> {
        if self.dispatch == 0 || self.dispatch > DISPATCH_MAX {
            return Err(ServerError::Config("a server has 1 to 256 endpoints"));
        }
        if self.workers == 0 || self.workers > WORKERS_MAX {
            return Err(ServerError::Config("a server has 1 to 256 workers"));
        }
        Ok(())
    }

    /// The settings of endpoint `number`. Clients choose their share of the slots and credits.
    fn endpoint(&self, number: u16) -> EndpointConfig {
        let mut config = EndpointConfig::default();
        config.id = Some(EndpointId(number));
        config.transports = self.transports;
        config.idle = self.idle;
        config.host.udp.device = Some(self.device.clone());
        config.sessions.slots = SLOTS_MAX;
        config.sessions.credits = WINDOW_PACKETS as u16;
        config
    }

    fn place(&self, thread: ThreadKind) -> io::Result<()> {
        self.placement.as_ref().map_or(Ok(()), |place| place(thread))
    }
}

impl Server {
    /// Starts a server. When this function returns, the endpoints answer.
    ///
    /// # Errors
    /// [`ServerError`].
    pub fn start(config: &ServerConfig) -> Result<Self, ServerError> {
        config.check()?;
        // Before clients can connect: creating a large store takes seconds.
        let store = Arc::new(Store::new(config.store));
        let metrics = Arc::new(Metrics::new(config.dispatch));
        let workers = start_workers(config)?;
        let mut builder = Nexus::builder().listen(config.listen).transports(config.transports);
        match &config.security {
            Some(security) => builder = builder.credentials(Arc::clone(security)),
            None if config.insecure => builder = builder.insecure(),
            None => {}
        }
        if let Some(rules) = &config.authorization {
            builder = builder.authorize(Arc::clone(rules));
        }
        let nexus = builder.start()?;
        let mut server = Self {
            address: nexus.local_addr().unwrap_or(config.listen),
            store,
            metrics,
            dispatchers: Vec::new(),
            workers,
        };
        for number in 0..config.dispatch {
            match server.dispatcher(&nexus, config, number) {
                Ok(dispatcher) => server.dispatchers.push(dispatcher),
                Err(error) => {
                    // Ends the running endpoints, too.
                    server.stop(Duration::ZERO)?;
                    return Err(error);
                }
            }
        }
        Ok(server)
    }

    /// The control address, with the port that the system chose.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// The store, to fill it without calls.
    pub fn store(&self) -> &Arc<Store> {
        &self.store
    }

    /// The counters, equal to the answer of the method `status`.
    pub fn counters(&self) -> Vec<(String, u64)> {
        self.metrics.report(&self.store)
    }

    /// Returns true if all endpoints run.
    pub fn is_healthy(&self) -> bool {
        self.dispatchers.iter().all(|dispatcher| !dispatcher.thread.is_finished())
    }

    /// Ends the server without losing a call: asks the clients to leave, serves them until they have left, and closes
    /// the remaining sessions after `limit`.
    ///
    /// # Errors
    /// [`ServerError`] if an endpoint had already ended by an internal error.
    pub fn stop(self, limit: Duration) -> Result<Stopped, ServerError> {
        for dispatcher in &self.dispatchers {
            // An ended endpoint does not listen.
            let _ = dispatcher.drain.send(limit);
            dispatcher.stop.stop();
        }
        let ended = self.dispatchers.into_iter().map(|dispatcher| join(dispatcher.thread));
        let ended = ended.collect::<Result<Vec<_>, _>>()?;
        let cut = |ended: &DispatchResult| ended.sessions_cut;
        Ok(Stopped {
            sessions_cut: ended.iter().map(cut).sum(),
            endpoints: ended.into_iter().map(|ended| ended.stats).collect(),
            counters: self.metrics.report(&self.store),
        })
    }

    fn dispatcher(
        &self,
        nexus: &Nexus,
        config: &ServerConfig,
        number: u16,
    ) -> Result<Dispatcher, ServerError> {
        let (nexus, config) = (nexus.clone(), config.clone());
        let (store, metrics) = (Arc::clone(&self.store), Arc::clone(&self.metrics));
        let workers = self.workers.clone();
        let (started, start) = mpsc::channel();
        let (drain, limit) = mpsc::channel();
        let run = move || {
            config.place(ThreadKind::Dispatch(number))?;
            let mut endpoint = nexus.endpoint(config.endpoint(number))?;
            register(&mut endpoint, &store, &metrics, number, &workers);
            if config.prefetches {
                prefetch_words(&mut endpoint, &store);
            }
            let stop = endpoint.stop_handle();
            // If the start of another endpoint failed, the receiver is gone, and `stop` follows at once.
            let _ = started.send(stop.clone());
            endpoint.run(&stop);
            Ok(end(endpoint, limit.try_recv().unwrap_or_default()))
        };
        let thread = thread::Builder::new().name(format!("index-{number}")).spawn(run)?;
        match start.recv() {
            Ok(stop) => Ok(Dispatcher { stop, drain, thread }),
            // The thread ended without sending a handle: the result has the reason.
            Err(_) => Err(join(thread).err().unwrap_or(ServerError::Ended)),
        }
    }
}

fn end(mut endpoint: Endpoint, limit: Duration) -> DispatchResult {
    let sessions_cut = endpoint.drain(limit);
    DispatchResult { stats: endpoint.stats(), sessions_cut }
}

fn join(
    thread: JoinHandle<Result<DispatchResult, ServerError>>,
) -> Result<DispatchResult, ServerError> {
    thread.join().unwrap_or(Err(ServerError::Ended))
}

/// Starts the workers from a separate thread, because workers inherit its placement.
fn start_workers(config: &ServerConfig) -> Result<Workers, ServerError> {
    let start = || {
        config.place(ThreadKind::Worker)?;
        let builder = Workers::builder().threads(config.workers.into()).name("index-scan");
        Ok(builder.start()?)
    };
    thread::scope(|scope| scope.spawn(start).join()).unwrap_or(Err(ServerError::Ended))
}

impl fmt::Debug for ServerConfig {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { listen, dispatch, workers, store, .. } = self;
        write!(f, "ServerConfig({listen}, {dispatch} endpoints, {workers} workers, {store:?})")
    }
}
