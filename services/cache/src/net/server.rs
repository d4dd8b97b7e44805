//! Starting and stopping the server.

use std::fmt;
use std::io;
use std::net::{SocketAddr, TcpListener};
use std::sync::Arc;
use std::sync::atomic::AtomicUsize;
use std::sync::mpsc::{self, Sender};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use mio::{Poll, Waker};

use super::drive::Router;
use super::inbox::{Inbox, Parcel};
use super::owner::Owner;
use super::report::Snapshot;
use super::thread::{ConnectionCounters, Limits, Presence, Shared, Thread, WAKER, unix_seconds};
use crate::error::ConfigError;
use crate::key::Hasher;
use crate::limits::{
    BATCH_HELD_BYTES, BUFFER_BYTES_MIN, BUFFER_SHARE, CONNECTIONS_MAX_DEFAULT,
    ITEM_BYTES_EXPECTED_DEFAULT, PROCESS_BYTES, THREADS_MAX,
};
use crate::memcached::Clock;
use crate::partition::{Mode, Partition, PartitionConfig};

/// Runs at the start of each thread with its number, for example to bind it to a CPU.
pub type Placement = Arc<dyn Fn(usize) -> io::Result<()> + Send + Sync>;

/// The settings of a server.
#[derive(Clone)]
pub struct CacheConfig {
    /// Address and TCP port of memcached's protocol; port 0 chooses any free port.
    pub memcached: SocketAddr,
    /// Whether other hosts may connect, without any authentication.
    pub insecure: bool,
    /// Memory of the process, in bytes: items, index, buffers and the rest.
    pub memory_bytes: u64,
    /// Threads, with a partition each.
    pub threads: u16,
    /// The behaviour when the memory is in use.
    pub mode: Mode,
    /// The expected mean size of an item (key, value and 24 bytes).
    pub item_bytes_expected: u32,
    /// Most connections.
    pub connections_max: usize,
    /// Time after which a connection without a request is closed; `None` for never.
    pub idle: Option<Duration>,
    /// Runs first in each thread.
    pub placement: Option<Placement>,
}

/// The reason why a server did not start, or ended.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ServerError {
    /// The configuration breaks a rule.
    #[error("{0}")]
    Config(String),
    /// An operation of the operating system failed, for example because the address is in use.
    #[error(transparent)]
    Io(#[from] io::Error),
    /// A thread has panicked.
    #[error("a thread of the server has ended by an internal error")]
    Ended,
}

/// A running server. Dropping this value does not end the server; [`CacheServer::stop`] does.
pub struct CacheServer {
    address: SocketAddr,
    shared: Arc<Shared>,
    threads: Vec<JoinHandle<Result<Snapshot, ServerError>>>,
}

/// The final report of a stopped server.
#[derive(Clone, Debug)]
pub struct Stopped {
    /// The last counters of all partitions together.
    pub counters: Vec<(&'static str, u64)>,
}

impl CacheConfig {
    /// A server with one thread and 64 MiB, as memcached's default.
    pub fn at(memcached: SocketAddr) -> Self {
        Self {
            memcached,
            insecure: false,
            memory_bytes: 64 << 20,
            threads: 1,
            mode: Mode::Cache,
            item_bytes_expected: ITEM_BYTES_EXPECTED_DEFAULT,
            connections_max: CONNECTIONS_MAX_DEFAULT,
            idle: None,
            placement: None,
        }
    }

    fn check(&self) -> Result<(), ServerError> {
        let refuse = |text: &str| Err(ServerError::Config(text.to_owned()));
        if self.threads == 0 || self.threads > THREADS_MAX {
            return refuse("a cache has 1 to 256 threads");
        }
        if self.connections_max == 0 {
            return refuse("a cache without connections serves nobody");
        }
        if !self.insecure && !self.memcached.ip().to_canonical().is_loopback() {
            let address = self.memcached;
            return Err(ServerError::Config(format!(
                "other hosts could reach {address}, and there is no authentication: \
                 listen on loopback, or allow it (--insecure)"
            )));
        }
        Ok(())
    }

    /// Divides the memory: bytes for each thread's buffers, and bytes for each partition.
    fn shares(&self) -> Result<(u64, u64), ServerError> {
        let threads = u64::from(self.threads);
        let least = BUFFER_BYTES_MIN + (threads - 1) * BATCH_HELD_BYTES;
        let buffers = (self.memory_bytes / BUFFER_SHARE / threads).max(least);
        let rest = self.memory_bytes.checked_sub(PROCESS_BYTES + buffers * threads);
        let least = PROCESS_BYTES + (buffers + BUFFER_BYTES_MIN) * threads;
        match rest {
            Some(rest) if self.memory_bytes >= least => Ok((buffers, rest / threads)),
            _ => Err(ServerError::Config(format!(
                "{} bytes of memory are too few for {threads} threads: give {least} at least",
                self.memory_bytes
            ))),
        }
    }
}

impl CacheServer {
    /// Starts a server. When this function returns, connections are accepted.
    ///
    /// # Errors
    /// [`ServerError`].
    pub fn start(config: &CacheConfig) -> Result<Self, ServerError> {
        config.check()?;
        let (buffer_bytes, partition_bytes) = config.shares()?;
        let mut seed = [0; 8];
        getrandom::fill(&mut seed).map_err(|error| io::Error::other(error.to_string()))?;
        let hasher = Hasher::new(u64::from_le_bytes(seed));
        let socket = TcpListener::bind(config.memcached)?;
        socket.set_nonblocking(true)?;
        let address = socket.local_addr()?;
        let (polls, inboxes) = polls(config.threads)?;
        let started = unix_seconds();
        let shared = Arc::new(Shared {
            inboxes,
            partitions: config.threads.into(),
            servers: config.threads.into(),
            finished: AtomicUsize::new(0),
            mode: config.mode,
            clock: Clock::starting_at(started),
            started,
            connections: ConnectionCounters::default(),
            limits: Limits {
                memory_bytes: config.memory_bytes,
                connections_max: config.connections_max,
                idle_s: config.idle.map(|idle| idle.as_secs().clamp(1, u32::MAX.into()) as u32),
                buffer_bytes_max: buffer_bytes as usize,
            },
        });
        let partition = PartitionConfig {
            mode: config.mode,
            item_bytes_expected: config.item_bytes_expected,
            ..PartitionConfig::new(partition_bytes)
        };
        let mut server = Self { address, shared, threads: Vec::new() };
        let (started, starts) = mpsc::channel();
        let mut listener = Some(mio::net::TcpListener::from_std(socket));
        for (number, poll) in polls.into_iter().enumerate() {
            let parts = Parts {
                number,
                poll,
                listener: listener.take(),
                partition: partition.clone(),
                hasher: hasher.clone(),
                shared: Arc::clone(&server.shared),
                placement: config.placement.clone(),
                started: started.clone(),
            };
            let name = format!("cache-{number}");
            server.threads.push(thread::Builder::new().name(name).spawn(move || parts.run())?);
        }
        drop(started);
        match starts.iter().take(server.threads.len()).count() == server.threads.len() {
            true => Ok(server),
            // A thread has ended: its result has the reason.
            false => Err(server.stop().err().unwrap_or(ServerError::Ended)),
        }
    }

    /// The address, with the port that the system chose.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Returns true if all threads run.
    pub fn is_healthy(&self) -> bool {
        self.threads.iter().all(|thread| !thread.is_finished())
    }

    /// Ends the server: accepts nothing any more, answers the requests that have been read, and closes the connections.
    ///
    /// # Errors
    /// [`ServerError`] if a thread had already ended by an internal error.
    pub fn stop(self) -> Result<Stopped, ServerError> {
        self.shared.inboxes.iter().for_each(|inbox| inbox.push(Parcel::Stop));
        let mut sum = Snapshot::default();
        for thread in self.threads {
            sum.add(&thread.join().unwrap_or(Err(ServerError::Ended))?);
        }
        Ok(Stopped { counters: sum.named().collect() })
    }
}

/// A readiness loop for each thread, and the inboxes that wake them.
fn polls(threads: u16) -> io::Result<(Vec<Poll>, Box<[Inbox]>)> {
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
    Ok((polls, inboxes.into_boxed_slice()))
}

/// The parts of a thread, which it puts together itself: memory is then near its CPU.
struct Parts {
    number: usize,
    poll: Poll,
    listener: Option<mio::net::TcpListener>,
    partition: PartitionConfig,
    hasher: Hasher,
    shared: Arc<Shared>,
    placement: Option<Placement>,
    started: Sender<()>,
}

impl Parts {
    fn run(self) -> Result<Snapshot, ServerError> {
        let presence = Presence::new(self.number, Arc::clone(&self.shared));
        if let Some(place) = &self.placement {
            place(self.number)?;
        }
        let clock = self.shared.clock;
        let partition = Partition::new(&self.partition, self.hasher.clone())?;
        let owner = Owner { partition, clock };
        let router = Router::new(self.number, Some(owner), self.hasher, self.shared);
        let thread = Thread::new(self.poll, self.listener, router, presence)?;
        // Without a listener another thread has failed, and the inbox has an end.
        let _ = self.started.send(());
        drop(self.started);
        Ok(thread.run()?)
    }
}

impl From<ConfigError> for ServerError {
    fn from(error: ConfigError) -> Self {
        Self::Config(error.to_string())
    }
}

impl fmt::Debug for CacheConfig {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { memcached, threads, memory_bytes, mode, .. } = self;
        write!(f, "CacheConfig({memcached}, {threads} threads, {memory_bytes} bytes, {mode:?})")
    }
}

impl fmt::Debug for CacheServer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "CacheServer({}, {} threads)", self.address, self.threads.len())
    }
}
