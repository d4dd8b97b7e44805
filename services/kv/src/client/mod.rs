//! The client: finds and follows the leader, and has each write applied once.
//!
//! A [`KvClient`] works on any thread and executor, like the [`petrel::Client`] below; clones share a client. The
//! latter keeps a session to every member, follows redirects to the leader, and asks all members in turn while no
//! leader is known. A [`Judge`](petrel::client::Judge) reads the replicas' refusals. Each write has a number in a
//! client session of the cluster, and keeps the number however often it is sent. The cluster therefore applies it once.
//!
//! | operation | served by | answered |
//! | --- | --- | --- |
//! | put, delete, compare and set, batches | the leader | once a majority has the write |
//! | leases | the leader | once a majority has the write |
//! | get, scan | the leader; any replica for [`Consistency::Stale`] | with every write that was answered before |
//! | members, transfer of leadership | the leader | once the change is done |
//! | save | the leader; any replica for [`Consistency::Stale`] | with all keys at one moment |
//! | restore | the leader | once a majority has each step |
//! | revision | the leader | at least that of every write that was answered before |
//! | watch | any replica, one after the other | with each change once, in order |
//! | status | the named replica | at once |
//!
//! ```
//! use petrel::client::wait;
//! # use petrel::endpoint::EndpointConfig;
//! # use petrel::Nexus;
//! use petrel::Client;
//! use petrel_kv::client::{Cas, KvClient, KvClientConfig};
//! use petrel_kv::command::Expected;
//! # use petrel_kv::{Replica, ReplicaConfig, persist::Volatile};
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! # let nexus = Nexus::builder().listen("127.0.0.1:0".parse()?).start()?;
//! # let address = nexus.local_addr().expect("it listens");
//! # std::thread::spawn(move || {
//! #     let mut endpoint = nexus.endpoint(EndpointConfig::default()).expect("an endpoint");
//! #     let config = ReplicaConfig::new(1, address, vec![(1, address)], 1);
//! #     let replica = Replica::start(&mut endpoint, config, Box::<Volatile>::default(), None).expect("a replica");
//! #     replica.run(&mut endpoint, || false).expect("it goes on");
//! # });
//! # let addresses = [address];
//!
//! // On a thread without an executor; in one, each is awaited.
//! let client = wait(KvClient::connect(Client::builder(), addresses, KvClientConfig::default()))?;
//! let put = wait(client.put(b"colour", b"grey"))?;
//! let value = wait(client.get(b"colour"))?.expect("it was written");
//! assert_eq!((&value[..], value.revision()), (&b"grey"[..], put.revision));
//!
//! // Nobody has changed it in between.
//! let expected = Expected::Revision(value.revision());
//! let cas = wait(client.cas(b"colour", expected, b"white"))?;
//! assert!(matches!(cas, Cas::Done { .. }));
//! # Ok(())
//! # }
//! ```
//!
//! Not supported: reads from the nearest replica, writes to several clusters. A page of a scan shows a single
//! moment; a scan of several pages does not.

mod admin;
mod config;
mod error;
mod judge;
mod lease;
mod members;
mod read;
mod restore;
mod save;
mod scan;
mod session;
mod watch;
mod write;

use std::net::SocketAddr;
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use petrel::client::{Call, ClientBuilder, ClientConfig, Response, Spawned};
use petrel::endpoint::CallOptions;
use petrel::overload::BackoffConfig;
use petrel::{Client, Time};

pub use crate::api::Consistency;
pub use config::KvClientConfig;
pub use error::KvError;
pub use lease::HeldLease;
pub use read::Value;
pub use restore::Restore;
pub use save::{Save, SavedBlock};
pub use scan::{OwnedPair, Page, Scan};
pub use watch::{RevisionChanges, Watch};
pub use write::{Batched, Cas, Put};

use crate::api::WatchingClient;
pub use crate::wire::after_prefix;
use members::Members;
use session::ClientSession;

/// Initial room for a request, enough for most requests.
const REQUEST_BYTES: usize = 256;

/// A client of the store. Clones are the same client.
#[derive(Clone, Debug)]
pub struct KvClient {
    shared: Arc<Shared>,
    timeout: Duration,
}

/// State shared by clones.
#[derive(Debug)]
struct Shared {
    client: Client,
    members: Arc<Members>,
    session: ClientSession,
    /// Pauses while no replica serves a watch.
    backoff: BackoffConfig,
    watching: OnceLock<WatchingClient>,
    /// Follows the members as long as the client exists.
    _watch: Spawned<()>,
}

impl KvClient {
    /// Connects to the cluster of the replicas at these addresses. One live replica is enough: the client learns the
    /// others' addresses. The builder chooses the threads for the calls, and allows insecure networks or not; its
    /// configuration is replaced.
    ///
    /// # Errors
    /// [`KvError::InvalidArgument`] without addresses, [`KvError::Unavailable`] if no replica can be reached.
    pub async fn connect(
        builder: ClientBuilder,
        addresses: impl IntoIterator<Item = SocketAddr>,
        config: KvClientConfig,
    ) -> Result<Self, KvError> {
        let members = Members::new(addresses)?;
        let connected = builder.config(config.calls()).connect(members.addresses()).await;
        Ok(Self::of(connected.map_err(KvError::of_read)?, members, &config))
    }

    /// A client on an endpoint of the application, whose event loop makes the calls:
    ///
    /// ```
    /// # use petrel_kv::client::{KvClient, KvClientConfig};
    /// # use petrel::{Nexus, endpoint::EndpointConfig};
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let (address, config) = ("127.0.0.1:9".parse()?, KvClientConfig::default());
    /// let mut endpoint = Nexus::builder().start()?.endpoint(EndpointConfig::default())?;
    /// let client = KvClient::on([address], config, |named, config| endpoint.client(named, config))?;
    /// # drop(client);
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// [`KvError::InvalidArgument`] without addresses.
    pub fn on(
        addresses: impl IntoIterator<Item = SocketAddr>,
        config: KvClientConfig,
        client: impl FnOnce(Vec<SocketAddr>, ClientConfig) -> Client,
    ) -> Result<Self, KvError> {
        let members = Members::new(addresses)?;
        Ok(Self::of(client(members.addresses(), config.calls()), members, &config))
    }

    fn of(client: Client, members: Members, config: &KvClientConfig) -> Self {
        let (refresh, members) = (config.refresh, Arc::new(members));
        let (asks, learns) = (client.clone(), Arc::clone(&members));
        let watch = client.spawn(move |handle| members::watch(handle, asks, learns, refresh));
        let session = ClientSession::default();
        let (backoff, watching) = (config.backoff, OnceLock::new());
        let shared =
            Arc::new(Shared { client, members, session, backoff, watching, _watch: watch });
        Self { shared, timeout: config.timeout }
    }

    /// Returns a handle to the client with another timeout for operations.
    #[must_use]
    pub fn within(&self, timeout: Duration) -> Self {
        Self { shared: Arc::clone(&self.shared), timeout }
    }

    /// The addresses of the known replicas.
    pub fn addresses(&self) -> Vec<SocketAddr> {
        self.shared.members.addresses()
    }

    /// Returns when an operation ends that begins now.
    fn deadline(&self) -> Time {
        self.shared.client.now() + self.timeout
    }

    /// Returns a call to the cluster. The client below follows redirects, and repeats the call until it is answered or
    /// the time is over: a repetition is harmless, since writes have numbers, and an operator's request names a state.
    fn ask(&self, method: u16, deadline: Time, encode: impl FnOnce(&mut Vec<u8>)) -> Call {
        let mut request = Vec::with_capacity(REQUEST_BYTES);
        encode(&mut request);
        let options = CallOptions::new().deadline(deadline).idempotent().wait_for_ready();
        self.shared.client.call(method, request).options(options)
    }

    /// Reads from the leader, or from any replica: then always from the same replica for a key.
    async fn read(
        &self,
        method: u16,
        consistency: Consistency,
        key: &[u8],
        encode: impl FnOnce(&mut Vec<u8>),
    ) -> Result<Response, KvError> {
        let call = self.ask(method, self.deadline(), encode);
        let call = match consistency {
            Consistency::Linearizable => call,
            Consistency::Stale => call.key(key),
        };
        call.await.map_err(KvError::of_read)
    }
}
