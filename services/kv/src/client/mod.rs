//! The client: finds and follows the leader, and has each write applied once.
//!
//! A [`KvClient`] lives on an endpoint's thread, and its operations are futures that the endpoint's event loop
//! drives; clones are the same client. It keeps a session to every member, follows what replicas say of the
//! leader, and asks all in turn when nobody knows. Each write has a number in a client session of the cluster
//! and keeps it however often it is sent, so that it is applied once. [`KvRemote`] is for other threads.
//!
//! | operation | by | its answer |
//! | --- | --- | --- |
//! | put, delete, compare and set, batches | the leader | once a majority has it |
//! | get, scan | the leader; any replica for [`Consistency::Stale`] | with every write that was answered before |
//! | members, transfer of leadership | the leader | once it is so |
//! | status | the replica that is named | at once |
//!
//! ```
//! use petrel::endpoint::EndpointConfig;
//! use petrel::Nexus;
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
//! let mut endpoint = Nexus::builder().start()?.endpoint(EndpointConfig::default())?;
//! let client = KvClient::new(endpoint.handle(), addresses, KvClientConfig::new(7))?;
//! endpoint.block_on(async {
//!     let put = client.put(b"colour", b"grey").await?;
//!     let value = client.get(b"colour").await?.expect("it was written");
//!     assert_eq!((&value[..], value.revision()), (&b"grey"[..], put.revision));
//!
//!     // Nobody has changed it in between.
//!     let expected = Expected::Revision(value.revision());
//!     let cas = client.cas(b"colour", expected, b"white").await?;
//!     assert!(matches!(cas, Cas::Done { .. }));
//!     Ok(())
//! })
//! # }
//! ```
//!
//! What it does not do: reads from the nearest replica, writes of several clusters, watches. Pages of a scan are
//! each of one moment, and a scan of several pages is not.

mod admin;
mod changes;
mod config;
mod error;
mod members;
mod pursuit;
mod read;
mod remote;
mod scan;
mod session;
mod window;
mod write;

use std::cell::RefCell;
use std::net::SocketAddr;
use std::rc::Rc;
use std::time::Duration;

use petrel::task::Handle;

pub use crate::api::Consistency;
pub use config::KvClientConfig;
pub use error::KvError;
pub use read::Value;
pub use remote::{KvRemote, RemoteError, RemoteOperation};
pub use scan::{OwnedPair, Page, Scan};
pub use write::{Batched, Cas, Put};

use crate::replica::rng::Rng;
use members::Members;
use session::ClientSession;

/// A client of the store. Clones are the same client; it stays on the endpoint's thread.
#[derive(Clone, Debug)]
pub struct KvClient {
    inner: Rc<Inner>,
    timeout: Duration,
}

pub(super) struct Inner {
    handle: Handle,
    config: KvClientConfig,
    members: Members,
    session: RefCell<ClientSession>,
    rng: RefCell<Rng>,
    /// Where requests are put together.
    request: RefCell<Vec<u8>>,
}

impl KvClient {
    /// A client of the cluster to which the replicas at these addresses belong. One that is alive is enough: the
    /// client learns of the others. The event loop connects while it runs.
    ///
    /// # Errors
    /// [`KvError::InvalidArgument`] without addresses.
    pub fn new(
        handle: Handle,
        addresses: impl IntoIterator<Item = SocketAddr>,
        config: KvClientConfig,
    ) -> Result<Self, KvError> {
        let timeout = config.timeout;
        let rng = RefCell::new(Rng::new(config.seed));
        let inner = Rc::new(Inner {
            handle,
            config,
            members: Members::default(),
            session: RefCell::default(),
            rng,
            request: RefCell::default(),
        });
        for address in addresses {
            inner.connection(address, true);
        }
        if inner.members.len() == 0 {
            return Err(KvError::InvalidArgument("a client needs the address of a replica"));
        }
        Ok(Self { inner, timeout })
    }

    /// The same client; its operations take this long at most.
    #[must_use]
    pub fn within(&self, timeout: Duration) -> Self {
        Self { inner: Rc::clone(&self.inner), timeout }
    }

    /// The replicas that the client knows.
    pub fn addresses(&self) -> Vec<SocketAddr> {
        self.inner.members.addresses()
    }

    fn deadline_ns(&self) -> u64 {
        let timeout_ns = u64::try_from(self.timeout.as_nanos()).unwrap_or(u64::MAX);
        self.inner.handle.now_ns().saturating_add(timeout_ns)
    }
}

impl Inner {
    fn random(&self) -> u64 {
        self.rng.borrow_mut().next()
    }
}

impl Drop for Inner {
    fn drop(&mut self) {
        self.members.close();
    }
}

impl std::fmt::Debug for Inner {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("KvClient")
            .field("members", &self.members)
            .field("session", &self.session.borrow())
            .finish_non_exhaustive()
    }
}
