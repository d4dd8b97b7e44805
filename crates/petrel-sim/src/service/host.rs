//! A host of a run, for the code of its server or client.

use std::cell::RefMut;
use std::fmt;
use std::net::SocketAddr;
use std::time::Duration;

use petrel::client::{Client, ClientConfig};
use petrel::task::Handle;
use petrel::workers::Workers;

use super::SharedHandle;
use crate::rng::Rng;

/// The host of a server or client. Clones are the same host; after a crash the server gets another value.
#[derive(Clone)]
pub struct Host {
    name: String,
    handle: Handle,
    workers: Workers,
    shared: SharedHandle,
}

impl Host {
    pub(super) fn new(name: &str, handle: Handle, workers: Workers, shared: SharedHandle) -> Self {
        Self { name: name.to_owned(), handle, workers, shared }
    }

    /// Returns the name of the server or client.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Returns the address of a server, for clients with several servers or other settings: [`Handle::client`] in tasks, and
    /// [`Endpoint::client`](petrel::Endpoint::client) in the closure that starts a server.
    ///
    /// # Panics
    /// If no server has the name.
    pub fn address(&self, server: &str) -> SocketAddr {
        let found = self.shared.servers.get(server);
        *found.unwrap_or_else(|| panic!("no server has the name {server:?}"))
    }

    /// Returns a client of a server. For code of tasks: clients, and async handlers.
    ///
    /// # Panics
    /// If no server has the name, and outside of tasks.
    pub fn client(&self, server: &str) -> Client {
        self.handle.client([self.address(server)], ClientConfig::default())
    }

    /// Returns the handle of the endpoint's tasks.
    pub fn handle(&self) -> &Handle {
        &self.handle
    }

    /// Returns a pool without threads: its handlers run in virtual time, and may not wait.
    pub fn workers(&self) -> &Workers {
        &self.workers
    }

    /// Returns the virtual time since the begin of the run.
    pub fn now(&self) -> Duration {
        Duration::from_nanos(self.shared.fabric.now_ns())
    }

    /// Waits for a virtual time.
    pub async fn sleep(&self, time: Duration) {
        self.handle.sleep(time).await;
    }

    /// Returns random numbers of the seed.
    pub fn rng(&self) -> RefMut<'_, Rng> {
        self.shared.rng.borrow_mut()
    }

    /// Adds a line to the record of the run.
    pub fn note(&self, text: &str) {
        self.shared.fabric.note(format_args!("{}: {text}", self.name));
    }
}

impl fmt::Debug for Host {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Host({})", self.name)
    }
}
