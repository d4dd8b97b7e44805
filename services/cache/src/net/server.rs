//! Starting and stopping the server.

use std::fmt;
use std::fs::Permissions;
use std::io;
use std::net::{SocketAddr, TcpListener};
use std::os::unix::fs::{FileTypeExt, PermissionsExt};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc::{self, Sender};
use std::sync::{Arc, PoisonError};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use mio::{Poll, Waker};
use petrel::Nexus;
use petrel::endpoint::{AllowedTransports, Device, EndpointConfig, IdlePolicy};
use petrel::nexus::SetupError;
use petrel::security::{Authorize, Security, SecurityError};
use petrel::server::RunningServer;

use super::clients::Clients;
use super::drive::Router;
use super::inbox::{Inbox, Parcel};
use super::owner::Owner;
use super::pool::Pool;
use super::report::Snapshot;
use super::thread::{
    ConnectionCounters, Limits, Listener, Presence, Shared, Thread, WAKER, unix_seconds,
};
use super::tls::TlsPort;
use crate::error::ConfigError;
use crate::key::Hasher;
use crate::limits::{
    CONNECTIONS_MAX_DEFAULT, ENDPOINT_BYTES, ITEM_BYTES_EXPECTED_DEFAULT, POOL_BYTES_MIN,
    POOL_SHARE, PROCESS_BYTES, SERVED_PARTITION_BYTES_MIN, THREAD_BYTES, THREADS_MAX,
    TLS_CONNECTION_BYTES, VALUE_BYTES_MAX,
};
use crate::memcached::{Clock, Passwords};
use crate::partition::{Mode, Partition, PartitionConfig};
use crate::rpc::{Bell, Endpoints, Report, State};

/// Time for clients of Petrel to leave at the end.
const DRAIN_LIMIT: Duration = Duration::from_secs(10);

/// Runs at the start of each thread with its number, for example to bind it to a CPU.
pub type Placement = Arc<dyn Fn(usize) -> io::Result<()> + Send + Sync>;

/// The settings of a server.
#[derive(Clone)]
pub struct CacheConfig {
    /// Address and TCP port of Petrel's control plane, for [`CacheClient`](crate::CacheClient).
    pub listen: Option<SocketAddr>,
    /// Transports that clients of Petrel may use.
    pub transports: AllowedTransports,
    /// How the endpoints wait for packets.
    pub endpoint_idle: IdlePolicy,
    /// Address and TCP port of memcached's protocol; port 0 chooses any free port.
    pub memcached: Option<SocketAddr>,
    /// Whether other hosts may connect, without any authentication.
    pub insecure: bool,
    /// Credentials, for instance of the crate `petrel-tls`. All connections are then inside TLS, memcached's clients included.
    pub security: Option<Arc<dyn Security>>,
    /// The rights of Petrel's clients; everything by default.
    pub authorization: Option<Arc<dyn Authorize>>,
    /// The exit of datagrams to clients of Petrel.
    pub device: Device,
    /// Whether memcached's port does without TLS in spite of credentials.
    pub memcached_plain: bool,
    /// Whether memcached's clients need a certificate, too.
    pub memcached_mutual: bool,
    /// A file of lines `user:password` for memcached's clients, read again after changes. By default clients need no password.
    pub memcached_auth: Option<PathBuf>,
    /// Memory of the process, in bytes: items, index, buffers and the rest.
    pub memory_bytes: u64,
    /// Partitions, with a thread each. With both addresses, as many threads serve memcached's protocol.
    pub threads: u16,
    /// The behaviour when the memory is in use.
    pub mode: Mode,
    /// The expected mean size of an item (key, value and 24 bytes).
    pub item_bytes_expected: u32,
    /// The longest value, in bytes: at most [`VALUE_BYTES_MAX`], and what a partition takes.
    pub value_bytes_max: usize,
    /// Whether `flush_all` of memcached's clients is refused.
    pub refuses_flush: bool,
    /// A socket in the file system for memcached's clients. A socket that was left there is replaced.
    pub memcached_path: Option<PathBuf>,
    /// Most connections.
    pub connections_max: usize,
    /// Time after which a connection without a request is closed; `None` for never.
    pub idle: Option<Duration>,
    /// Runs first in each thread with connections.
    pub placement: Option<Placement>,
}

/// The reason why a server did not start, or ended.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ServerError {
    /// The configuration breaks a rule.
    #[error("{0}")]
    Config(String),
    /// No endpoint could be created, for example because the address is in use.
    #[error(transparent)]
    Setup(#[from] SetupError),
    /// An operation of the operating system failed, for example because the address is in use.
    #[error(transparent)]
    Io(#[from] io::Error),
    /// A thread has panicked.
    #[error("a thread of the server has ended by an internal error")]
    Ended,
}

/// A running server. Dropping this value does not end the server; [`CacheServer::stop`] does.
pub struct CacheServer {
    memcached: Option<SocketAddr>,
    endpoints: Option<RunningServer>,
    report: Report,
    shared: Arc<Shared>,
    threads: Vec<Running>,
}

/// The final report of a stopped server.
#[derive(Clone, Debug)]
pub struct Stopped {
    /// The last counters of all partitions together.
    pub counters: Vec<(&'static str, u64)>,
}

impl CacheConfig {
    /// A server of memcached's protocol with one thread and 64 MiB, as memcached's default.
    pub fn at(memcached: SocketAddr) -> Self {
        Self { memcached: Some(memcached), ..Self::default() }
    }

    /// A server for clients of Petrel with one thread and 64 MiB.
    pub fn listening_at(listen: SocketAddr) -> Self {
        Self { listen: Some(listen), ..Self::default() }
    }
}

impl Default for CacheConfig {
    /// Without an address, which a server needs.
    fn default() -> Self {
        Self {
            listen: None,
            transports: AllowedTransports::ALL,
            endpoint_idle: IdlePolicy::default(),
            memcached: None,
            insecure: false,
            security: None,
            device: Device::Kernel,
            authorization: None,
            memcached_plain: false,
            memcached_mutual: false,
            memcached_auth: None,
            memory_bytes: 64 << 20,
            threads: 1,
            mode: Mode::Cache,
            item_bytes_expected: ITEM_BYTES_EXPECTED_DEFAULT,
            value_bytes_max: VALUE_BYTES_MAX,
            refuses_flush: false,
            memcached_path: None,
            connections_max: CONNECTIONS_MAX_DEFAULT,
            idle: None,
            placement: None,
        }
    }
}

impl CacheConfig {
    fn check(&self) -> Result<(), ServerError> {
        let refuse = |text: &str| Err(ServerError::Config(text.to_owned()));
        if self.threads == 0 || self.threads > THREADS_MAX {
            return refuse("a cache has 1 to 256 threads");
        }
        if self.connections_max == 0 {
            return refuse("a cache needs at least one connection");
        }
        let tls = self.tls();
        if self.listen.is_none() && !self.has_memcached() {
            return refuse("a cache needs an address, for memcached's protocol or for Petrel's");
        }
        if !self.has_memcached() && (self.memcached_auth.is_some() || self.memcached_mutual) {
            return refuse(
                "passwords and certificates are for memcached's clients: give an address for them (--memcached)",
            );
        }
        if self.memcached_mutual && tls.is_none() {
            return refuse(
                "certificates of memcached's clients need TLS: give credentials (--credentials), and leave out --memcached-plain",
            );
        }
        if self.authorization.is_some() && self.listen.is_none() {
            return refuse(
                "a policy is for clients of Petrel: give an address for them (--listen); memcached's have --auth-file",
            );
        }
        let listen = self.listen.filter(|_| self.security.is_none());
        let memcached = self.memcached.filter(|_| tls.is_none());
        let mut open = listen.into_iter().chain(memcached);
        let far = open.find(|address| !address.ip().to_canonical().is_loopback());
        if let (Some(address), false) = (far, self.insecure) {
            return Err(ServerError::Config(format!(
                "other hosts could reach {address}, which is not encrypted: listen on loopback, give credentials (--credentials) and leave \
                 out --memcached-plain, or allow it (--insecure)"
            )));
        }
        // Unsuitable credentials would refuse every client.
        tls.map_or(Ok(()), |tls| tls.accept().map(drop).map_err(ServerError::from))
    }

    /// Returns how memcached's port speaks TLS, if at all.
    fn tls(&self) -> Option<TlsPort> {
        let security = self.security.clone().filter(|_| !self.memcached_plain)?;
        self.has_memcached().then_some(TlsPort { security, is_mutual: self.memcached_mutual })
    }

    fn has_memcached(&self) -> bool {
        self.memcached.is_some() || self.memcached_path.is_some()
    }

    /// Divides the memory: bytes for the buffers of all threads, and bytes for each partition.
    fn shares(&self) -> Result<(u64, u64), ServerError> {
        let threads = u64::from(self.threads);
        let (mut process, mut pool) = (PROCESS_BYTES, 0);
        if self.has_memcached() {
            process += THREAD_BYTES * threads;
            pool = (self.memory_bytes / POOL_SHARE).max(POOL_BYTES_MIN);
        }
        if self.listen.is_some() {
            process += ENDPOINT_BYTES * threads;
        }
        if self.tls().is_some() {
            process += TLS_CONNECTION_BYTES * self.connections_max as u64;
        }
        let least = process + pool + SERVED_PARTITION_BYTES_MIN * threads;
        if self.memory_bytes < least {
            return Err(ServerError::Config(format!(
                "{} bytes of memory are too few for {threads} threads: give {least} at least",
                self.memory_bytes
            )));
        }
        Ok((pool, (self.memory_bytes - process - pool) / threads))
    }
}

/// Parts of the start.
impl CacheConfig {
    pub(super) fn shared(&self, inboxes: Box<[Inbox]>, servers: usize, pool_bytes: u64) -> Shared {
        Shared {
            inboxes,
            partitions: self.threads.into(),
            servers,
            finished: AtomicUsize::new(0),
            ended_endpoints: AtomicUsize::new(0),
            mode: self.mode,
            clock: Clock::starting_at(unix_seconds()),
            started: Instant::now(),
            connections: ConnectionCounters::default(),
            clients: Clients::default(),
            memory_limit: self.memory_bytes.into(),
            limits: Limits {
                memory_bytes: self.memory_bytes,
                connections_max: self.connections_max,
                idle_s: self.idle.map(|idle| idle.as_secs().clamp(1, u32::MAX.into()) as u32),
                value_bytes_max: VALUE_BYTES_MAX,
                log_bytes: 0,
                may_flush: !self.refuses_flush,
            },
            pool: Pool::new(pool_bytes as usize, servers),
            tls: self.tls(),
            passwords: None,
        }
    }

    fn start_endpoints(
        &self,
        address: SocketAddr,
        endpoints: Endpoints,
    ) -> Result<RunningServer, ServerError> {
        let mut endpoint = EndpointConfig::default();
        endpoint.transports = self.transports;
        endpoint.idle = self.endpoint_idle;
        endpoint.host.udp.device = Some(self.device.clone());
        let mut nexus = Nexus::builder().transports(self.transports);
        match &self.security {
            Some(security) => nexus = nexus.credentials(Arc::clone(security)),
            None if self.insecure => nexus = nexus.insecure(),
            None => {}
        }
        if let Some(rules) = &self.authorization {
            nexus = nexus.authorize(Arc::clone(rules));
        }
        let server = petrel::Server::bind(address)
            .threads(self.threads.into())
            .nexus(nexus)
            .endpoint(endpoint)
            .drain_limit(DRAIN_LIMIT);
        let set_up = move |endpoint: &mut petrel::Endpoint<State>| endpoints.set_up(endpoint);
        Ok(server.serve(|_| State::default(), set_up).start()?)
    }
}

impl CacheServer {
    /// Starts a server. When this function returns, connections are accepted.
    ///
    /// # Errors
    /// [`ServerError`].
    pub fn start(config: &CacheConfig) -> Result<Self, ServerError> {
        config.check()?;
        let (pool_bytes, partition_bytes) = config.shares()?;
        let mut seed = [0; 8];
        getrandom::fill(&mut seed).map_err(|error| io::Error::other(error.to_string()))?;
        let hasher = Hasher::new(u64::from_le_bytes(seed));
        let passwords = config.memcached_auth.clone().map(Passwords::from_file).transpose()?;
        let sockets = Sockets {
            tcp: config.memcached.map(listen).transpose()?,
            unix: config.memcached_path.as_deref().map(listen_at).transpose()?,
        };
        let memcached = sockets.tcp.as_ref().map(TcpListener::local_addr).transpose()?;
        let bells: Arc<[Bell]> = match config.listen {
            Some(_) => (0..config.threads).map(|_| Bell::default()).collect(),
            None => Arc::new([]),
        };
        let servers = if config.has_memcached() { config.threads } else { 0 };
        let (polls, inboxes) = polls(servers)?;
        let owners = bells.iter().map(|bell| Inbox::new(bell.wake()));
        let inboxes = owners.chain(inboxes).collect();
        let partition = PartitionConfig {
            mode: config.mode,
            item_bytes_expected: config.item_bytes_expected,
            value_bytes_max: config.value_bytes_max,
            ..PartitionConfig::new(partition_bytes)
        };
        partition.check()?;
        let mut shared = config.shared(inboxes, servers.into(), pool_bytes);
        shared.limits.value_bytes_max = partition.value_bytes_max();
        shared.limits.log_bytes = partition.log_bytes();
        let shared = Shared { passwords, ..shared };
        let report = Report::default();
        let mut server = Self {
            memcached,
            endpoints: None,
            report: Arc::clone(&report),
            shared: Arc::new(shared),
            threads: Vec::new(),
        };
        let endpoints = Endpoints {
            partition: partition.clone(),
            hasher: hasher.clone(),
            shared: Arc::clone(&server.shared),
            bells,
            report,
        };
        if let Some(address) = config.listen {
            server.endpoints = Some(config.start_endpoints(address, endpoints)?);
        }
        let partition = config.listen.is_none().then_some(partition);
        server.start_threads(config, polls, sockets, partition.as_ref(), &hasher, spawn)
    }

    /// Starts the threads with connections. They own the partitions, unless endpoints do.
    fn start_threads(
        mut self,
        config: &CacheConfig,
        polls: Vec<Poll>,
        sockets: Sockets,
        partition: Option<&PartitionConfig>,
        hasher: &Hasher,
        spawn: Spawn,
    ) -> Result<Self, ServerError> {
        let (started, starts) = mpsc::channel();
        let mut listeners = sockets.into_iter().collect::<Vec<_>>();
        let mut failure = None;
        let first = self.shared.inboxes.len() - self.shared.servers;
        // All parts exist before the first thread starts: if a thread fails to start, the started threads learn of its
        // end.
        let all: Vec<_> = polls
            .into_iter()
            .zip(first..)
            .map(|(poll, number)| Parts {
                number,
                presence: Presence::new(number, Arc::clone(&self.shared)),
                poll,
                listeners: std::mem::take(&mut listeners),
                partition: partition.cloned(),
                hasher: hasher.clone(),
                shared: Arc::clone(&self.shared),
                placement: config.placement.clone(),
                started: started.clone(),
            })
            .collect();
        drop(started);
        for (number, parts) in all.into_iter().enumerate() {
            match spawn(format!("cache-{number}"), parts) {
                Ok(thread) => self.threads.push(thread),
                Err(error) => failure = failure.or(Some(error)),
            }
        }
        if let Some(error) = failure {
            // The threads that run must not stay; their results do not matter.
            let _ = self.stop();
            return Err(error.into());
        }
        match starts.iter().take(self.threads.len()).count() == self.threads.len() {
            true => Ok(self),
            // A thread has ended: its result has the reason.
            false => Err(self.stop().err().unwrap_or(ServerError::Ended)),
        }
    }

    /// The address of memcached's protocol, with the port that the system chose.
    pub fn memcached(&self) -> Option<SocketAddr> {
        self.memcached
    }

    /// The address for clients of Petrel, with the port that the system chose.
    pub fn listen(&self) -> Option<SocketAddr> {
        self.endpoints.as_ref().map(RunningServer::local_addr)
    }

    /// Returns true if all threads run, with connections and with endpoints.
    pub fn is_healthy(&self) -> bool {
        let has_endpoints = self.shared.ended_endpoints.load(Ordering::SeqCst) == 0;
        has_endpoints && self.threads.iter().all(|thread| !thread.is_finished())
    }

    /// Ends the server: accepts nothing any more, answers the requests that have been read, and closes the connections.
    ///
    /// # Errors
    /// [`ServerError`] if a thread had already ended by an internal error.
    pub fn stop(self) -> Result<Stopped, ServerError> {
        let first = self.shared.inboxes.len() - self.shared.servers;
        self.shared.inboxes[first..].iter().for_each(|inbox| inbox.push(Parcel::Stop));
        let mut sum = Snapshot::default();
        // All threads end before the first error returns.
        let mut ends = Vec::new();
        for thread in self.threads {
            let last = thread.join().unwrap_or(Err(ServerError::Ended));
            ends.push(last.map(|last| sum.add(&last)));
        }
        if let Some(endpoints) = self.endpoints {
            endpoints.stop();
            ends.push(endpoints.wait().map_err(ServerError::from));
        }
        ends.into_iter().collect::<Result<(), _>>()?;
        sum.add(&self.report.lock().unwrap_or_else(PoisonError::into_inner));
        Ok(Stopped { counters: sum.named().collect() })
    }
}

/// A readiness loop for every thread, and the inboxes for wake-ups.
fn polls(threads: u16) -> io::Result<(Vec<Poll>, Vec<Inbox>)> {
    let (mut polls, mut inboxes) = (Vec::new(), Vec::new());
    for _ in 0..threads {
        let poll = Poll::new()?;
        let waker = Waker::new(poll.registry(), WAKER)?;
        inboxes.push(Inbox::new(Box::new(move || {
            // The waker's counter cannot overflow: one wake-up is outstanding at most.
            let _ = waker.wake();
        })));
        polls.push(poll);
    }
    Ok((polls, inboxes))
}

/// The sockets on which memcached's clients arrive.
struct Sockets {
    tcp: Option<TcpListener>,
    unix: Option<UnixListener>,
}

impl Sockets {
    fn into_iter(self) -> impl Iterator<Item = Listener> {
        let tcp = self.tcp.map(|socket| Listener::Tcp(mio::net::TcpListener::from_std(socket)));
        let unix = self.unix.map(|socket| Listener::Unix(mio::net::UnixListener::from_std(socket)));
        tcp.into_iter().chain(unix)
    }
}

/// Listens on a path that only the owner of the process may open. A socket without a server is replaced.
fn listen_at(path: &Path) -> io::Result<UnixListener> {
    let named =
        |error: io::Error| io::Error::new(error.kind(), format!("{}: {error}", path.display()));
    let is_socket = path.symlink_metadata().is_ok_and(|found| found.file_type().is_socket());
    if is_socket && UnixStream::connect(path).is_err() {
        std::fs::remove_file(path).map_err(named)?;
    }
    let socket = UnixListener::bind(path).map_err(named)?;
    std::fs::set_permissions(path, Permissions::from_mode(0o700)).map_err(named)?;
    socket.set_nonblocking(true)?;
    Ok(socket)
}

fn listen(address: SocketAddr) -> io::Result<TcpListener> {
    let socket = TcpListener::bind(address)?;
    socket.set_nonblocking(true)?;
    Ok(socket)
}

/// Starts a thread of this name.
type Spawn = fn(String, Parts) -> io::Result<Running>;

/// A thread with connections, which returns the last counters of its partition.
type Running = JoinHandle<Result<Snapshot, ServerError>>;

fn spawn(name: String, parts: Parts) -> io::Result<Running> {
    thread::Builder::new().name(name).spawn(move || parts.run())
}

/// The parts of a thread. The thread itself puts them together, so memory is near its CPU.
struct Parts {
    number: usize,
    presence: Presence,
    poll: Poll,
    listeners: Vec<Listener>,
    partition: Option<PartitionConfig>,
    hasher: Hasher,
    shared: Arc<Shared>,
    placement: Option<Placement>,
    started: Sender<()>,
}

impl Parts {
    fn run(self) -> Result<Snapshot, ServerError> {
        if let Some(place) = &self.placement {
            place(self.number)?;
        }
        let clock = self.shared.clock;
        let owner = match &self.partition {
            Some(config) => {
                let partition = Partition::new(config, self.hasher.clone())?;
                Some(Owner { partition, clock })
            }
            None => None,
        };
        let router = Router::new(self.number, owner, self.hasher, self.shared);
        let thread = Thread::new(self.poll, self.listeners, router, self.presence)?;
        // Without a listener another thread has failed, and the inbox has an end.
        let _ = self.started.send(());
        drop(self.started);
        Ok(thread.run()?)
    }
}

impl From<SecurityError> for ServerError {
    fn from(error: SecurityError) -> Self {
        Self::Config(error.to_string())
    }
}

impl From<ConfigError> for ServerError {
    fn from(error: ConfigError) -> Self {
        Self::Config(error.to_string())
    }
}

impl fmt::Debug for CacheConfig {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { listen, memcached, threads, memory_bytes, mode, .. } = self;
        write!(
            f,
            "CacheConfig({listen:?}, {memcached:?}, {threads} threads, {memory_bytes} bytes, {mode:?})"
        )
    }
}

impl fmt::Debug for CacheServer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "CacheServer({:?}, {:?})", self.listen(), self.memcached)
    }
}

#[cfg(test)]
mod tests {
    use std::net::TcpStream;

    use super::*;

    fn local() -> SocketAddr {
        ([127, 0, 0, 1], 0).into()
    }

    #[test]
    fn listening_at__has_one_thread_and_64_mib() {
        let config = CacheConfig::listening_at(local());
        assert_eq!((config.threads, config.memory_bytes), (1, 64 << 20));
    }

    #[test]
    fn shares__items_get_four_fifths_however_many_threads_there_are() {
        for (threads, mebibytes) in [(1, 64), (4, 64), (4, 1024), (64, 256)] {
            let memory_bytes = mebibytes << 20;
            let config = CacheConfig { threads, memory_bytes, ..CacheConfig::at(local()) };
            let (pool, partition) = config.shares().unwrap();
            let used = PROCESS_BYTES + pool + u64::from(threads) * (partition + THREAD_BYTES);
            assert!(used <= memory_bytes && used + u64::from(threads) > memory_bytes, "{used}");
            let log = PartitionConfig::new(partition).log_bytes() * u64::from(threads);
            assert!(log >= memory_bytes * 4 / 5, "{log} of {memory_bytes} with {threads} threads");
        }
    }

    /// Starts the first thread alone.
    fn spawn_first(name: String, parts: Parts) -> io::Result<Running> {
        match name.as_str() {
            "cache-0" => spawn(name, parts),
            _ => Err(io::ErrorKind::OutOfMemory.into()),
        }
    }

    #[test]
    fn start__ends_all_threads_if_one_cannot_start() {
        let config = CacheConfig { threads: 3, ..CacheConfig::at(local()) };
        let socket = listen(local()).unwrap();
        let address = socket.local_addr().unwrap();
        let (polls, inboxes) = polls(3).unwrap();
        let server = CacheServer {
            memcached: Some(address),
            endpoints: None,
            report: Report::default(),
            shared: Arc::new(config.shared(inboxes.into(), 3, 4 << 20)),
            threads: Vec::new(),
        };
        let partition = PartitionConfig::new(1 << 20);
        let started = server.start_threads(
            &config,
            polls,
            Sockets { tcp: Some(socket), unix: None },
            Some(&partition),
            &Hasher::new(1),
            spawn_first,
        );
        assert!(matches!(started, Err(ServerError::Io(_))), "{started:?}");
        assert!(TcpStream::connect(address).is_err(), "the first thread still listens");
    }

    #[test]
    fn is_healthy__watches_the_endpoints() {
        let config =
            CacheConfig { endpoint_idle: IdlePolicy::Block, ..CacheConfig::listening_at(local()) };
        let server = CacheServer::start(&config).unwrap();
        assert!(server.is_healthy());
        server.endpoints.as_ref().unwrap().stop();
        while server.is_healthy() {
            // The limit of the whole test ends this loop.
            thread::yield_now();
        }
        server.stop().unwrap();
    }
}
