//! The control plane: how processes find each other, agree, and notice that the other is gone.
//!
//! A process has one [`Nexus`]. It runs a thread that speaks `docs/wire-protocol.md` §8 over TCP
//! with the nexuses of other processes: it makes links and sessions for the endpoints of this
//! process, and sends and expects signs of life. Endpoints never wait for it: they
//! [`post`](ControlPort::post) what they want and [`poll`](ControlPort::poll) what there is.
//!
//! ```
//! use petrel::nexus::{Attach, Nexus, fetch_stats};
//! use petrel_transport::wake::Waker;
//! use std::time::Duration;
//!
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! let nexus = Nexus::builder().listen("127.0.0.1:0".parse()?).start()?;
//! let port = nexus.attach(Attach { id: None, udp: None, shm: None, waker: Waker::new()? })?;
//! assert_eq!(port.id().0, 0);
//!
//! let address = nexus.local_addr().ok_or("it listens")?;
//! let json = fetch_stats(address, Duration::from_secs(10))?;
//! assert!(json.starts_with("{\"incarnation\":"));
//! # Ok(())
//! # }
//! ```
//!
//! # Who may connect
//!
//! There are no credentials yet. So a nexus listens on, and connects to, loopback addresses only,
//! unless [`NexusBuilder::insecure`] says that the network is trusted.
//!
//! # What a bad peer can do
//!
//! Waste one connection and a bounded amount of memory. A peer that does not say HELLO, sends what
//! is not the protocol, sends slowly, does not read, or gives no sign of life is disconnected and
//! counted in [`NexusStats`]; nothing that a peer does makes the thread wait, and everything that
//! an endpoint asks for is answered in bounded time.
//!
//! Many connections of one address get the address's share of connections, links and session
//! memory, which leaves room for other addresses. Where connections are short, one without a
//! session yields to a newcomer. Processes of one address are not told apart: on loopback, all
//! users of the host share one share.
//!
//! # When it ends
//!
//! With the last [`Nexus`] handle and the last [`ControlPort`]: it says GOODBYE to its peers, whose
//! links then go down at once.

mod census;
mod closing;
mod connection;
mod counters;
mod deadlines;
mod dial;
mod early;
mod endpoints;
mod fetch;
mod groups;
mod handshake;
mod heartbeat;
mod host;
mod idlers;
mod limits;
mod links;
mod listener;
mod mailbox;
#[doc(hidden)]
pub mod net;
mod offers;
mod path;
mod port;
mod reactor;
mod rendezvous;
mod seats;
mod sessions;
mod shares;
mod stats;
#[doc(hidden)]
pub mod stepped;
mod stream;
mod thread;

use std::io;
use std::net::{IpAddr, Ipv4Addr, SocketAddr, TcpListener};
use std::sync::Arc;
use std::time::Duration;

use petrel_proto::control::HEARTBEAT_MS_MAX;

use crate::control::AllowedTransports;
use counters::Counters;
use limits::{HEARTBEAT_DEFAULT, STEP_TIMEOUT_DEFAULT};
use mailbox::Mailbox;
use net::{MioNetwork, Network};
use reactor::{MAILBOX, Reactor, Settings};
use thread::Owner;

#[cfg(test)]
pub(crate) use limits::TABLE_ROOM_MIN;
pub(crate) use limits::shrink;

pub use crate::error::SetupError;

pub use counters::NexusStats;
pub use fetch::fetch_stats;
pub use port::{Attach, ControlPort, ShmAttach, UdpAttach};

/// The control plane of this process. Clones share it.
#[derive(Clone, Debug)]
pub struct Nexus {
    owner: Arc<Owner>,
    counters: Arc<Counters>,
    local: Option<SocketAddr>,
    incarnation: u64,
    /// Where endpoints have their data ports, unless they say otherwise.
    data_address: IpAddr,
}

impl Nexus {
    /// Settings for a nexus, to be [started](NexusBuilder::start).
    pub fn builder() -> NexusBuilder {
        NexusBuilder::default()
    }

    /// Takes no further connections; those that are there go on. Another process can listen at the address then, or has the
    /// socket for itself.
    pub fn stop_listening(&self) {
        self.owner.stop_listening();
    }

    /// The control address that peers connect to, with the port that the system chose; `None` for
    /// a nexus that does not listen.
    pub fn local_addr(&self) -> Option<SocketAddr> {
        self.local
    }

    /// The random number by which peers tell this process from the one that was here before.
    pub fn incarnation(&self) -> u64 {
        self.incarnation
    }

    /// The counters so far.
    pub fn stats(&self) -> NexusStats {
        self.counters.snapshot()
    }

    /// Where endpoints have their data ports, unless they say otherwise.
    pub(crate) fn data_address(&self) -> IpAddr {
        self.data_address
    }

    /// Takes an endpoint in, and returns its line to the nexus.
    ///
    /// # Errors
    /// When the wanted number or all numbers are taken.
    pub fn attach(&self, attach: Attach) -> Result<ControlPort, SetupError> {
        self.owner.attach(attach).map(ControlPort::new)
    }
}

/// Settings of a [`Nexus`].
#[derive(Clone, Debug)]
pub struct NexusBuilder {
    listen: Option<Listen>,
    insecure: bool,
    transports: AllowedTransports,
    heartbeat: Duration,
    connect_timeout: Duration,
}

/// Where a nexus listens.
#[derive(Clone, Debug)]
enum Listen {
    At(SocketAddr),
    /// On a socket that the program has bound.
    On(Arc<TcpListener>),
}

impl Default for NexusBuilder {
    fn default() -> Self {
        Self {
            listen: None,
            insecure: false,
            transports: AllowedTransports { udp: true, shm: true },
            heartbeat: HEARTBEAT_DEFAULT,
            connect_timeout: STEP_TIMEOUT_DEFAULT,
        }
    }
}

impl NexusBuilder {
    /// The control address to listen on; port 0 takes a free one. By default a nexus does not
    /// listen, which is enough for a process that is only a client.
    pub fn listen(mut self, address: SocketAddr) -> Self {
        self.listen = Some(Listen::At(address));
        self
    }

    /// Listens on a socket that is bound already: one that the process was started with
    /// ([`inherited_listeners`](crate::server::inherited_listeners)), or that another process has, too. The system gives each
    /// connection to one of those that listen on it. None by default; the last of this and [`listen`](Self::listen) holds.
    pub fn listen_on(mut self, socket: TcpListener) -> Self {
        self.listen = Some(Listen::On(Arc::new(socket)));
        self
    }

    /// Allows peers of other hosts, though nobody proves who they are: for networks where
    /// everybody who can connect may also call. By default there are peers of this host alone, on loopback.
    pub fn insecure(mut self) -> Self {
        self.insecure = true;
        self
    }

    /// The transports that this process may use. Both by default, UDP and shared memory.
    pub fn transports(mut self, transports: AllowedTransports) -> Self {
        self.transports = transports;
        self
    }

    /// How often peers get a sign of life, 1 ms to 10 s; 1 s by default. They take this process
    /// for dead after three intervals without one.
    pub fn heartbeat(mut self, interval: Duration) -> Self {
        self.heartbeat = interval;
        self
    }

    /// The time that another process has for each step: to take a connection, to answer a link or
    /// a session. 5 s by default.
    pub fn connect_timeout(mut self, timeout: Duration) -> Self {
        self.connect_timeout = timeout;
        self
    }

    /// Starts the nexus's thread.
    ///
    /// # Errors
    /// A setting is out of its range, the address cannot be listened on, or the system has no thread or descriptor to give.
    pub fn start(self) -> Result<Nexus, SetupError> {
        self.check()?;
        let (net, waker) = MioNetwork::new(MAILBOX).map_err(cannot_start)?;
        let (mut reactor, mut local) = self.reactor(net, waker)?;
        if let Some(Listen::On(socket)) = &self.listen {
            local = Some(reactor.listen_on(socket).map_err(cannot_listen_on)?);
        }
        let data_address = self.data_address(local);
        let (mailbox, counters) = (reactor.mailbox.clone(), reactor.counters.clone());
        let incarnation = reactor.settings.incarnation;
        let owner = Arc::new(Owner::start(mailbox, reactor).map_err(cannot_start)?);
        Ok(Nexus { owner, counters, local, incarnation, data_address })
    }

    /// A reactor that listens, and its address.
    fn reactor<N: Network>(
        &self,
        net: N,
        waker: N::Waker,
    ) -> Result<(Reactor<N>, Option<SocketAddr>), SetupError> {
        let mut incarnation = [0; 8];
        net.fill_random(&mut incarnation).map_err(cannot_start)?;
        let settings = self.settings(u64::from_ne_bytes(incarnation).max(1));
        let mailbox = Arc::new(Mailbox::new(waker));
        let mut reactor = Reactor::new(settings, net, mailbox, Arc::new(Counters::default()));
        if self.transports.shm {
            // Where it cannot be had (no /proc, for example), UDP remains, and links that ask
            // for shared memory alone are told.
            let _ = reactor.open_rendezvous();
        }
        let local = match self.listen {
            Some(Listen::At(address)) => {
                let local = reactor.listen(address);
                Some(local.map_err(|source| cannot_listen(address, source))?)
            }
            Some(Listen::On(_)) | None => None,
        };
        Ok((reactor, local))
    }

    /// Peers send data to the address to which they connected.
    fn data_address(&self, local: Option<SocketAddr>) -> IpAddr {
        match local {
            Some(address) => address.ip(),
            None if self.insecure => Ipv4Addr::UNSPECIFIED.into(),
            None => Ipv4Addr::LOCALHOST.into(),
        }
    }

    fn check(&self) -> Result<(), SetupError> {
        let heartbeat = self.heartbeat;
        let longest = Duration::from_millis(u64::from(HEARTBEAT_MS_MAX));
        if !(Duration::from_millis(1)..=longest).contains(&heartbeat) {
            return Err(SetupError::refused(format!(
                "a heartbeat of {heartbeat:?} is out of range; choose 1 ms to 10 s"
            )));
        }
        let address = match &self.listen {
            Some(Listen::At(address)) => Some(*address),
            Some(Listen::On(socket)) => Some(socket.local_addr().map_err(cannot_listen_on)?),
            None => None,
        };
        match address {
            Some(address) if !self.insecure && !address.ip().to_canonical().is_loopback() => {
                Err(SetupError::NotLoopback { address })
            }
            _ => Ok(()),
        }
    }

    fn settings(&self, incarnation: u64) -> Settings {
        Settings {
            insecure: self.insecure,
            transports: self.transports,
            heartbeat: self.heartbeat,
            step_timeout: self.connect_timeout,
            incarnation,
        }
    }
}

/// The address is taken, not local, or a privileged port.
fn cannot_listen(address: SocketAddr, source: io::Error) -> SetupError {
    let message = format!("cannot listen on {address}: {source}; choose another address or port 0");
    SetupError::System { message, source }
}

/// The socket that it was given is not one to listen on.
fn cannot_listen_on(source: io::Error) -> SetupError {
    SetupError::System { message: format!("cannot listen on the given socket: {source}"), source }
}

/// The system has no thread, descriptor or random number to give.
fn cannot_start(source: io::Error) -> SetupError {
    let message = format!(
        "cannot start the control plane: {source}; look at the process's limits (ulimit -a)"
    );
    SetupError::System { message, source }
}
