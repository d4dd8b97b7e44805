//! A nexus without a thread, driven turn by turn by its owner: for simulators.

use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use super::attach::Attach;
use super::net::Network;
use super::reactor::{MAILBOX, Reactor};
use super::thread::{Owner, thread_ended, thread_has_ended};
use super::{NexusBuilder, NexusStats};
use crate::error::SetupError;

pub use super::port::NexusHandle;
pub use super::reactor::table_sizes::TableSizes;

/// The token by which the network reports a use of the waker.
pub const WAKER: usize = MAILBOX;

/// A nexus over some network. Dropping it simulates the process's sudden end.
#[derive(Debug)]
pub struct SteppedNexus<N: Network> {
    reactor: Reactor<N>,
    events: N::Events,
    owner: Option<Arc<Owner<N>>>,
    local: Option<SocketAddr>,
}

impl<N: Network> SteppedNexus<N> {
    /// Starts a nexus with these settings; `waker` ends the waits of `net`.
    ///
    /// # Errors
    /// As [`NexusBuilder::start`].
    pub fn start(settings: &NexusBuilder, net: N, waker: N::Waker) -> Result<Self, SetupError> {
        settings.check()?;
        let (reactor, local) = settings.reactor(net, waker)?;
        let owner = Some(Arc::new(Owner::of(reactor.mailbox().clone())));
        let events = reactor.new_events();
        Ok(Self { reactor, events, owner, local })
    }

    /// Returns the address for peers to connect to.
    pub fn local_addr(&self) -> Option<SocketAddr> {
        self.local
    }

    /// Returns the number that distinguishes the process from earlier processes.
    pub fn incarnation(&self) -> u64 {
        self.reactor.incarnation()
    }

    /// Attaches an endpoint.
    ///
    /// # Errors
    /// When its number is in use, or the handle was given up.
    pub fn attach(&self, attach: &Attach) -> Result<NexusHandle<N>, SetupError> {
        let owner = self.owner.as_ref().ok_or_else(thread_has_ended)?;
        NexusHandle::attach(owner, attach, Vec::new())
    }

    /// Gives the handle up: the nexus ends when its last endpoint has gone.
    pub fn let_go(&mut self) {
        self.owner = None;
    }

    /// Returns true if the handle was given up.
    pub fn is_let_go(&self) -> bool {
        self.owner.is_none()
    }

    /// Returns how long the nexus may sleep without events; `None` is forever.
    pub fn poll_timeout(&self) -> Option<Duration> {
        self.reactor.poll_timeout()
    }

    /// Takes a turn. Returns true if there are more to take.
    ///
    /// # Errors
    /// When the network cannot wait. Endpoints have been notified then, and the nexus is of no further use.
    pub fn turn(&mut self) -> io::Result<bool> {
        if let Err(error) = self.reactor.turn(&mut self.events) {
            self.reactor.abandon(&thread_ended());
            return Err(error);
        }
        if self.reactor.is_stopping() {
            self.reactor.say_goodbye_to_all();
        }
        Ok(!self.reactor.is_stopping())
    }

    /// Returns the current counters.
    pub fn stats(&self) -> NexusStats {
        self.reactor.counters().snapshot()
    }

    /// Returns the sizes of its tables.
    pub fn table_sizes(&self) -> TableSizes {
        self.reactor.table_sizes()
    }

    /// Compares its tables with each other.
    ///
    /// # Errors
    /// The first disagreement between two tables.
    pub fn check_tables(&self) -> Result<(), String> {
        self.reactor.check_tables()
    }
}
