//! The control plane: how processes find each other, set up links and sessions, and detect failures.
//!
//! A process has one [`Nexus`]. Its thread speaks `docs/wire-protocol.md` §8 over TCP with the nexuses of other
//! processes, opens links and sessions for local endpoints, and exchanges heartbeats. Endpoints never wait for the
//! thread: they [`post`](ControlPort::post) requests and [`poll`](ControlPort::poll) for messages.
//!
//! ```
//! use petrel::nexus::{Attach, Nexus, fetch_stats};
//! use petrel_transport::wake::Waker;
//! use std::time::Duration;
//!
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! let nexus = Nexus::builder().listen("127.0.0.1:0".parse()?).start()?;
//! let port = nexus.attach(Attach { id: None, udp: None, shm: None, stream: false, waker: Waker::new()? })?;
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
//! Without [credentials](NexusBuilder::credentials) a nexus listens on, and connects to, loopback addresses only, unless
//! [`NexusBuilder::insecure`] declares the network trusted.
//!
//! # Effects of a bad peer
//!
//! A bad peer can waste one connection and a bounded amount of memory. A peer that does not say HELLO, speaks another
//! protocol, sends slowly, does not read, or falls silent is disconnected and counted in [`NexusStats`]. No peer makes
//! the thread wait, and every request of an endpoint is answered in bounded time.
//!
//! All connections from an address share the address's limits of connections, links and session memory, which leaves room
//! for other addresses. If connections run short, a connection without a session yields to a new connection, and then a
//! connection without a request. If the memory for sessions runs short, connections without a request yield. Processes at a
//! remote address have one share together; on this host each user has a share, where the kernel tells users (`sock_diag`).
//!
//! # Shutdown
//!
//! The nexus ends with the last [`Nexus`] handle and the last [`ControlPort`]: it says GOODBYE to the peers, whose
//! links then go down at once.

mod attach;
mod channel;
mod connection;
mod connection_links;
mod connections;
mod counters;
mod deadlines;
mod due;
mod endpoint;
mod fetch;
mod goodbye;
mod host;
mod idle_connections;
mod ids;
mod limits;
mod link;
mod links;
mod mailbox;
pub mod media;
#[doc(hidden)]
pub mod net;
mod port;
mod random;
mod reactor;
mod relay;
mod rendezvous;
mod request;
mod routes;
mod settings;
mod signs;
#[doc(hidden)]
pub mod stepped;
mod thread;
mod usage;
mod validity;

use std::io;
use std::net::{IpAddr, Ipv4Addr, SocketAddr, TcpListener};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use petrel_proto::control::{HEARTBEAT_MS_MAX, may_be_a_host};
use petrel_transport::host::HostLink;
use petrel_transport::udp::Device;

use crate::control::AllowedTransports;
use crate::security::{Authorize, Security};
use counters::Counters;
use limits::{
    CONNECTIONS_MAX, CONNECTIONS_MAX_RANGE, HEARTBEAT_DEFAULT, SOURCE_SHARE_RANGE,
    STEP_TIMEOUT_DEFAULT,
};
use mailbox::Mailbox;
use media::{HostLinks, Medium};
use net::{MioNetwork, Network};
use port::NexusHandle;
use reactor::{MAILBOX, Reactor};
use settings::Settings;
use thread::Owner;

pub(crate) use net::{is_within_host, new_address_within_host};

pub use crate::error::SetupError;

pub use attach::{Attach, ShmAttach, UdpAttach};
pub use channel::accept_other;
pub use counters::NexusStats;
pub use fetch::{fetch_stats, fetch_stats_inside};
pub use port::ControlPort;

/// The name of the implementation that peers get.
const AGENT: &str = concat!("petrel ", env!("CARGO_PKG_VERSION"));

/// The control plane of this process. Clones share it.
///
/// `L` is the link type of its endpoints' transports, by default for the two built-in media.
#[derive(Debug)]
pub struct Nexus<L: HostLinks = HostLink> {
    owner: Arc<Owner<MioNetwork<L>>>,
    counters: Arc<Counters>,
    local: Option<SocketAddr>,
    incarnation: u64,
    /// The address of endpoints' data ports by default.
    data_address: IpAddr,
    device: Device,
}

impl<L: HostLinks> Clone for Nexus<L> {
    fn clone(&self) -> Self {
        let (owner, counters, device) =
            (self.owner.clone(), self.counters.clone(), self.device.clone());
        Self { owner, counters, device, ..*self }
    }
}

impl Nexus {
    /// Returns a builder with default settings, to be [started](NexusBuilder::start).
    pub fn builder() -> NexusBuilder {
        NexusBuilder::default()
    }
}

impl<L: HostLinks> Nexus<L> {
    /// Stops accepting connections; existing ones continue. Another process can then listen at the address, or has a
    /// shared socket for itself.
    pub fn stop_listening(&self) {
        self.owner.stop_listening();
    }

    /// Returns the control address for peers to connect to, with the port chosen by the system; `None` for a nexus that
    /// does not listen.
    pub fn local_addr(&self) -> Option<SocketAddr> {
        self.local
    }

    /// Returns the random number that distinguishes the process from earlier ones at its address.
    pub fn incarnation(&self) -> u64 {
        self.incarnation
    }

    /// Returns the current counters.
    pub fn stats(&self) -> NexusStats {
        self.counters.snapshot()
    }

    /// Returns the address of endpoints' data ports by default.
    pub(crate) fn data_address(&self) -> IpAddr {
        self.data_address
    }

    /// Returns the device of endpoints whose own settings name none.
    pub(crate) fn device(&self) -> &Device {
        &self.device
    }

    /// Attaches an endpoint, and returns its port to the nexus.
    ///
    /// # Errors
    /// When the wanted number or all numbers are in use.
    pub fn attach(&self, attach: Attach) -> Result<ControlPort<L>, SetupError> {
        self.attach_with(attach, Vec::new())
    }

    /// Attaches an endpoint with media besides the built-in ones: preferred to UDP, in this order.
    ///
    /// # Errors
    /// As [`Nexus::attach`].
    ///
    /// # Panics
    /// When a kind below [`OTHER_KIND_MIN`](media::OTHER_KIND_MIN) is not that of RDMA cards, or two media have one kind.
    pub fn attach_with(
        &self,
        attach: Attach,
        others: Vec<Box<dyn Medium<L>>>,
    ) -> Result<ControlPort<L>, SetupError> {
        for (index, medium) in others.iter().enumerate() {
            let kind = medium.kind();
            let is_free = kind >= media::OTHER_KIND_MIN || kind == media::verbs::KIND;
            assert!(is_free, "kind {kind} is that of another medium");
            let is_first = others[..index].iter().all(|former| former.kind() != kind);
            assert!(is_first, "two media have kind {kind}");
        }
        NexusHandle::attach(&self.owner, &attach, others).map(ControlPort::new)
    }
}

/// Settings of a [`Nexus`].
///
/// ```
/// use std::time::Duration;
///
/// use petrel::Nexus;
///
/// // Loopback only: other addresses need `insecure`.
/// let nexus = Nexus::builder().listen("127.0.0.1:0".parse()?).connect_timeout(Duration::from_secs(1));
/// let nexus = nexus.start()?;
/// assert!(nexus.local_addr().is_some());
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Debug)]
pub struct NexusBuilder {
    listen: Option<Listen>,
    insecure: bool,
    transports: AllowedTransports,
    heartbeat: Duration,
    connect_timeout: Duration,
    meeting_dir: Option<PathBuf>,
    data_ip: Option<IpAddr>,
    device: Device,
    connections_max: usize,
    source_share: Option<u8>,
    security: Option<Arc<dyn Security>>,
    authorization: Option<Arc<dyn Authorize>>,
}

/// Where a nexus listens.
#[derive(Clone, Debug)]
enum Listen {
    At(SocketAddr),
    /// On a socket bound by the program.
    On(Arc<TcpListener>),
}

impl Default for NexusBuilder {
    fn default() -> Self {
        Self {
            listen: None,
            insecure: false,
            transports: AllowedTransports::ALL,
            heartbeat: HEARTBEAT_DEFAULT,
            connect_timeout: STEP_TIMEOUT_DEFAULT,
            meeting_dir: None,
            data_ip: None,
            device: Device::Kernel,
            connections_max: CONNECTIONS_MAX,
            source_share: None,
            security: None,
            authorization: None,
        }
    }
}

impl NexusBuilder {
    /// Sets the control address to listen on; port 0 picks a free one. By default a nexus does not listen, which
    /// suffices for a mere client.
    pub fn listen(mut self, address: SocketAddr) -> Self {
        self.listen = Some(Listen::At(address));
        self
    }

    /// Listens on a bound socket: inherited from the process's parent
    /// ([`inherited_listeners`](crate::server::inherited_listeners)), or shared with another process. The system passes
    /// each connection to one of the listening processes. Default: none; the last call of this method or
    /// [`listen`](Self::listen) counts.
    pub fn listen_on(mut self, socket: TcpListener) -> Self {
        self.listen = Some(Listen::On(Arc::new(socket)));
        self
    }

    /// Allows peers on other hosts, without authentication: for networks in which everybody able to connect may also
    /// call. By default only peers on the same host may connect, over loopback.
    pub fn insecure(mut self) -> Self {
        self.insecure = true;
        self
    }

    /// Gives the process credentials, for example of the crate `petrel-tls`: all connections, local ones included, are then
    /// inside TLS, and each side proves an identity. A process without credentials cannot call it, nor be called. Default: none,
    /// and peers on this host only.
    pub fn credentials(mut self, security: Arc<dyn Security>) -> Self {
        self.security = Some(security);
        self
    }

    /// Sets the rights of callers: methods at any endpoint of the process, regions included, and the counters of the process. After a change
    /// of the decisions, open sessions are judged again within two seconds. An endpoint's own
    /// [`authorize`](crate::Endpoint::authorize) takes precedence for the endpoint's sessions. Default: every client may call
    /// everything, and processes of the host see the counters.
    pub fn authorize(mut self, rules: Arc<dyn Authorize>) -> Self {
        self.authorization = Some(rules);
        self
    }

    /// Sets the transports of the process. Default: both, UDP and shared memory.
    pub fn transports(mut self, transports: AllowedTransports) -> Self {
        self.transports = transports;
        self
    }

    /// Sets the heartbeat, 1 ms to 10 s; 1 s by default: in this time the process answers a peer's question whether it lives,
    /// and asks servers whose calls give no sign. A process that has not answered for three of its heartbeats counts as dead.
    /// Without calls there are questions every 48 heartbeats (`docs/wire-protocol.md` §8.6).
    pub fn heartbeat(mut self, interval: Duration) -> Self {
        self.heartbeat = interval;
        self
    }

    /// Sets the time for each step of another process: to accept a connection, to answer a link or a session. 5 s by
    /// default.
    pub fn connect_timeout(mut self, timeout: Duration) -> Self {
        self.connect_timeout = timeout;
        self
    }

    /// Shares memory with processes of this host and user that name the same directory, whatever their network namespace:
    /// containers with a common volume, also under different paths. A process without the directory uses UDP. The directory
    /// must exist and be writable for this user; the nexus has a socket there until the end of the nexus. In a directory that is for a
    /// group (mode 3770) the processes of all users of the group meet; regions of another user they use by messages. Default: none:
    /// processes of one network namespace share memory.
    pub fn meeting_dir(mut self, path: impl Into<PathBuf>) -> Self {
        self.meeting_dir = Some(path.into());
        self
    }

    /// Names the IP address to which clients send datagrams, with the ports that the endpoints have here: where TCP connections come
    /// through an address that does not pass datagrams on. Without datagrams calls go through TCP, slower. Default: the address
    /// that the client has connected to.
    pub fn data_ip(mut self, ip: IpAddr) -> Self {
        self.data_ip = Some(ip.to_canonical());
        self
    }

    /// Sends and receives the datagrams of all endpoints by a network device, as `"xdp:eth0".parse()?` names it, and not by the kernel's
    /// network stack; an endpoint's own [setting](petrel_transport::udp::UdpConfig::device) comes first. Peers need no setting, and cannot
    /// tell. `docs/kernel-bypass.md` has the conditions; where they fail, datagrams go by the kernel.
    pub fn device(mut self, device: Device) -> Self {
        self.device = device;
        self
    }

    /// Sets how many connections other processes may have here, 8 to 65 536; 4 096 by default, or three quarters of the process's
    /// descriptors (`ulimit -n`) if there are few. A client process needs one connection, and one host gets at most six
    /// sevenths of all (`docs/operating.md`, Limits).
    pub fn connections_max(mut self, connections: usize) -> Self {
        self.connections_max = connections;
        self
    }

    /// Sets the share of the connections with links, and of the memory for sessions (1 GiB), that the processes of one address
    /// may have together, or on this host the processes of one user: 1 to 100 per cent; one process may have half of the memory.
    /// Default: seven eighths of the connections, and an eighth of the memory.
    pub fn source_share(mut self, percent: u8) -> Self {
        self.source_share = Some(percent);
        self
    }

    /// Starts the nexus's thread.
    ///
    /// # Errors
    /// A setting is out of its range, the address cannot be listened on, or the system lacks a thread or descriptor.
    pub fn start(self) -> Result<Nexus, SetupError> {
        self.start_for()
    }

    /// Starts the nexus's thread, for endpoints with a transport of another link type.
    ///
    /// # Errors
    /// As [`NexusBuilder::start`].
    pub fn start_for<L: HostLinks>(self) -> Result<Nexus<L>, SetupError> {
        self.check()?;
        // The endpoints will read the clock.
        petrel_transport::clock::prepare();
        let (mut net, waker) = MioNetwork::new(MAILBOX).map_err(cannot_start)?;
        if let Some(path) = &self.meeting_dir {
            net.meet_in(path).map_err(|source| cannot_meet(path, source))?;
        }
        let (mut reactor, mut local) = self.reactor(net, waker)?;
        if let Some(Listen::On(socket)) = &self.listen {
            local = Some(reactor.listen_on(socket).map_err(cannot_listen_on)?);
        }
        let data_address = self.data_address(local);
        let (mailbox, counters) = (reactor.mailbox().clone(), reactor.counters().clone());
        let incarnation = reactor.incarnation();
        let owner = Arc::new(Owner::start(mailbox, reactor).map_err(cannot_start)?);
        Ok(Nexus { owner, counters, local, incarnation, data_address, device: self.device })
    }

    /// Returns a listening reactor and its address.
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
            // Without a rendezvous (no /proc, for example) UDP remains, and links restricted to shared memory get an
            // error.
            let opened = reactor.open_rendezvous();
            if let Some(path) = &self.meeting_dir {
                opened.map_err(|source| cannot_meet(path, source))?;
            }
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

    /// Peers send data to the address of their control connection.
    fn data_address(&self, local: Option<SocketAddr>) -> IpAddr {
        match local {
            Some(address) if is_within_host(address) => Ipv4Addr::LOCALHOST.into(),
            Some(address) => address.ip(),
            None if self.reaches_others() => Ipv4Addr::UNSPECIFIED.into(),
            None => Ipv4Addr::LOCALHOST.into(),
        }
    }

    /// Returns true if peers may be on other hosts.
    fn reaches_others(&self) -> bool {
        self.insecure || self.security.is_some()
    }

    fn check(&self) -> Result<(), SetupError> {
        let heartbeat = self.heartbeat;
        let longest = Duration::from_millis(u64::from(HEARTBEAT_MS_MAX));
        if !(Duration::from_millis(1)..=longest).contains(&heartbeat) {
            return Err(SetupError::refused(format!(
                "a heartbeat of {heartbeat:?} is out of range; choose 1 ms to 10 s"
            )));
        }
        let connections = self.connections_max;
        if !CONNECTIONS_MAX_RANGE.contains(&connections) {
            return Err(SetupError::refused(format!(
                "{connections} connections are out of range; choose 8 to 65536"
            )));
        }
        if let Some(percent) = self.source_share.filter(|share| !SOURCE_SHARE_RANGE.contains(share))
        {
            return Err(SetupError::refused(format!(
                "a share of {percent} % is out of range; choose 1 to 100"
            )));
        }
        if let Some(ip) = self.data_ip.filter(|ip| !may_be_a_host(*ip)) {
            let text = format!("datagrams cannot be sent to {ip}: name an address of one host");
            return Err(SetupError::refused(text));
        }
        let address = match &self.listen {
            Some(Listen::At(address)) => Some(*address),
            Some(Listen::On(socket)) => Some(socket.local_addr().map_err(cannot_listen_on)?),
            None => None,
        };
        match address {
            Some(address)
                if !self.reaches_others()
                    && !address.ip().to_canonical().is_loopback()
                    && !is_within_host(address) =>
            {
                Err(SetupError::NotLoopback { address })
            }
            _ => Ok(()),
        }
    }

    fn settings(&self, incarnation: u64) -> Settings {
        let times = (self.heartbeat, self.connect_timeout);
        Settings::new(self.insecure, self.transports, times, incarnation)
            .with_data_ip(self.data_ip)
            .with_connections_max(self.connections_max)
            .with_source_share(self.source_share)
            .with_security(self.security.clone())
            .with_authorization(self.authorization.clone())
    }
}

/// The address is in use, not local, or has a privileged port.
fn cannot_listen(address: SocketAddr, source: io::Error) -> SetupError {
    let message = format!("cannot listen on {address}: {source}; choose another address or port 0");
    SetupError::System { message, source }
}

fn cannot_listen_on(source: io::Error) -> SetupError {
    SetupError::System { message: format!("cannot listen on the given socket: {source}"), source }
}

/// The directory does not exist, or has no room for a socket.
fn cannot_meet(path: &Path, source: io::Error) -> SetupError {
    let message = format!(
        "cannot meet other processes in {}: {source}; make the directory, writable for this user",
        path.display()
    );
    SetupError::System { message, source }
}

/// The system lacks a thread, descriptor or random number.
fn cannot_start(source: io::Error) -> SetupError {
    let message = format!(
        "cannot start the control plane: {source}; look at the process's limits (ulimit -a)"
    );
    SetupError::System { message, source }
}
