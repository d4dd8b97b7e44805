//! The control plane in virtual time: a production nexus in each process, above a simulated network.
//!
//! Endpoints use a [`SimControl`] like the port of a nexus. The nexuses are `petrel::nexus`: reactor, tables, timers and queues, driven turn
//! by turn. Their sockets are those of the worlds of nexuses ([`nexus`](crate::nexus)): streams deliver in order, are delayed by partitions,
//! and end by a reset, or by silence after a question. With credentials there is a stand-in for TLS.
//!
//! | event | effect on the other side |
//! | --- | --- |
//! | a process is killed | its connections end, after the delay of the network |
//! | a host loses power | silence, and three heartbeats after a question [`FromNexus::LinkDown`] |
//! | a host is paused | as with a power loss if the pause is long; the paused side notices when it resumes |
//! | a partition | messages arrive when it heals, or both sides see a power loss |
//! | a restart | another incarnation; old connections are reset |
//! | no process listens | [`FromNexus::LinkFailed`], at once if the host is up |
//!
//! Every host runs one process; the control address contains the host's number.

mod network;
mod stand_in;

use std::cell::{Cell, RefCell};
use std::collections::{BTreeMap, VecDeque};
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::rc::Rc;

use petrel::endpoint::EndpointId;
use petrel::unstable::control::{ControlPlane, FromNexus, LinkId, PeerName, ToNexus};
use petrel_proto::control::{DEFAULT_PORT, LinkFeatures, PathPorts, SessionAccept, SessionOpen};
use petrel_transport::shm::Side;
use petrel_transport::udp::UdpLink;

use crate::fabric::{FabricHandle, HostId, SimAddr};
use crate::net::{Memory, NetLink, SimUnixConnection};
use crate::ring::{DataLink, RingLink, SealedPath};
use crate::rng::Rng;
use network::{Network, Port, Sealing};

/// Settings of the control plane.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ControlConfig {
    /// Interval of PINGs; whole milliseconds.
    pub heartbeat_ns: u64,
    /// Minimum and maximum delay of a message between processes.
    pub delay_ns: (u64, u64),
    /// Maximum time from readiness to a turn of a nexus's thread.
    pub hop_ns_max: u64,
    /// Time limit for a step of the peer's process.
    pub step_timeout_ns: u64,
    /// The longest time from the end of a partition to the first bytes of a stream that waited.
    pub retry_ns: u64,
}

impl Default for ControlConfig {
    fn default() -> Self {
        Self {
            heartbeat_ns: 5_000_000,
            // TCP through two kernels.
            delay_ns: (10_000, 100_000),
            hop_ns_max: 20_000,
            step_timeout_ns: 20_000_000,
            retry_ns: 1_000_000,
        }
    }
}

impl ControlConfig {
    /// Draws the settings of a network with heartbeats of up to 2 to the power of `heartbeat_ms_log2` milliseconds, and
    /// messages that take up to `delay_ns_max`.
    pub fn draw(rng: &mut Rng, heartbeat_ms_log2: u64, delay_ns_max: u64) -> Self {
        Self {
            heartbeat_ns: (1 << rng.between(0, heartbeat_ms_log2)) * 1_000_000,
            delay_ns: (5_000, rng.between(5_000, delay_ns_max)),
            hop_ns_max: rng.between(100, 100_000),
            step_timeout_ns: rng.between(3_000_000, 30_000_000),
            ..Self::default()
        }
    }
}

/// How a process ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CrashKind {
    /// Only the process crashes: the host's kernel resets the connections.
    Killed,
    /// The host loses power: silence.
    PowerLoss,
}

impl CrashKind {
    /// Draws one of the two.
    pub fn draw(rng: &mut Rng) -> Self {
        if rng.below(2) == 0 { Self::Killed } else { Self::PowerLoss }
    }
}

impl CrashKind {
    /// Returns the name for traces.
    pub fn name(self) -> &'static str {
        match self {
            CrashKind::Killed => "killed",
            CrashKind::PowerLoss => "power lost",
        }
    }
}

/// Counters of the nexuses of all processes, former processes included.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct ControlStats {
    /// Links that came up, counted on either side.
    pub links_up: u64,
    /// Sealed links that came up, counted on either side.
    pub links_sealed: u64,
    /// Links that have ended.
    pub links_lost: u64,
    /// Links that could not be established.
    pub links_failed: u64,
    /// Connections whose peer gave no sign of life in time.
    pub silences: u64,
    /// Connections that broke.
    pub resets: u64,
    /// Sessions not answered in time.
    pub sessions_unanswered: u64,
}

/// A session that its client knows to be open.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Agreement {
    /// The client's data port.
    pub client: SimAddr,
    /// The server's data port.
    pub server: SimAddr,
    /// The client's proposal.
    pub open: SessionOpen,
    /// The server's answer, which is in force.
    pub accept: SessionAccept,
    /// The further source ports of the client and of the server, if their link has several paths.
    pub ports: [PathPorts; 2],
    /// The key paths of the client and of the server, if their link is sealed.
    pub key_paths: Option<[u32; 2]>,
}

/// The nexuses of all processes of a fabric. Clones share the state.
#[derive(Clone, Debug)]
pub struct ControlNetwork {
    network: Rc<RefCell<Network>>,
    /// The time of the next event, in nanoseconds: read after every turn of an actor.
    next_ns: Rc<Cell<u64>>,
}

impl ControlNetwork {
    /// Makes a control plane without processes. Everything random in it follows from `rng`.
    pub fn new(fabric: &FabricHandle, config: ControlConfig, rng: Rng) -> Self {
        let network = Network::new(fabric.clone(), config, rng);
        Self { network: Rc::new(RefCell::new(network)), next_ns: Rc::new(Cell::new(u64::MAX)) }
    }

    /// Returns the control address of the process on a host.
    pub fn address_of(host: HostId) -> SocketAddr {
        let [high, low] = host.0.to_be_bytes();
        SocketAddr::new(IpAddr::V4(Ipv4Addr::new(10, 0, high, low)), DEFAULT_PORT)
    }

    /// Starts a process on a host without a process, in a new incarnation.
    pub fn start_process(&self, host: HostId) {
        self.with(|network| network.start_process(host));
    }

    /// Ends the process of a host.
    pub fn stop_process(&self, host: HostId, kind: CrashKind) {
        self.with(|network| network.stop_process(host, kind));
    }

    /// Makes every pair of hosts (0 and 1, 2 and 3, and so on) stand for two processes of one machine, with rings in
    /// shared memory. Some links use packets nevertheless, for lack of memory. Call this before the first process starts.
    pub fn share_memory(&self) {
        self.network.borrow_mut().share_memory();
    }

    /// Gives all processes credentials: their links are sealed. Endpoints need transports with the medium of UDP, and room for sealing in the
    /// largest datagrams. The keys follow from `seed`, and change after 2 to the power of `epoch_bits` datagrams. Call this before the first
    /// process starts.
    pub fn seal(&self, seed: u64, epoch_bits: u32) {
        self.network.borrow_mut().seal(Sealing { seed, epoch_bits });
    }

    /// Leaves the processes of a host without credentials: they cannot be called by processes with credentials.
    pub fn leave_plain(&self, host: HostId) {
        self.network.borrow_mut().leave_plain(host);
    }

    /// Connects an endpoint to the nexus of the host's process, which must run. `data` is the address of its transport; the port's owner is
    /// woken when there is a message to read.
    pub fn attach(&self, data: SimAddr, id: EndpointId, max_frame: u32, rng: Rng) -> SimControl {
        self.attach_with_paths(data, id, max_frame, rng, (&[], false))
    }

    /// Like [`ControlNetwork::attach`], for a transport with further source ports. The endpoint announces them: its links have several paths
    /// if the peer announces some, too. An endpoint whose own sessions have one path does not ask (`false`), and announces its ports to
    /// peers that announce some.
    pub fn attach_with_paths(
        &self,
        data: SimAddr,
        id: EndpointId,
        max_frame: u32,
        rng: Rng,
        (ports, asks): (&[u16], bool),
    ) -> SimControl {
        let ports = PathPorts::new(ports).expect("a transport has up to 31 further source ports");
        let mut network = self.network.borrow_mut();
        let port = network.attach(data, id, max_frame, (ports, asks));
        drop(network);
        self.with(Network::handle_signals);
        SimControl {
            network: self.clone(),
            data,
            port: Some(port),
            ports,
            links: BTreeMap::new(),
            proposals: RefCell::default(),
            rng,
            scripted: Rc::default(),
        }
    }

    /// Returns the time of the next event, in nanoseconds; `u64::MAX` for never. Let the fabric run until
    /// then, and call [`ControlNetwork::run`].
    pub fn next_ns(&self) -> u64 {
        self.next_ns.get()
    }

    /// Handles the events that are due at the fabric's time.
    pub fn run(&self) {
        self.with(Network::run);
    }

    /// Returns the counters of all processes.
    pub fn stats(&self) -> ControlStats {
        self.network.borrow().stats()
    }

    /// Calls a function for each session that opens, before its client sends anything.
    pub fn watch(&self, see: impl FnMut(Agreement) + 'static) {
        self.network.borrow_mut().watcher = Some(Box::new(see));
    }

    /// Returns the first violation of the control plane's own rules; a defect of Petrel.
    pub fn fault(&self) -> Option<String> {
        self.network.borrow().fault.clone()
    }

    fn with(&self, act: impl FnOnce(&mut Network)) {
        let mut network = self.network.borrow_mut();
        act(&mut network);
        self.next_ns.set(network.next_ns());
    }
}

/// Numbers that [`ControlPlane::random`] returns before drawn numbers; `None` stands for a drawn number.
pub type Scripted = Rc<RefCell<VecDeque<Option<u64>>>>;

/// An endpoint's port to the nexus of its process.
#[derive(Debug)]
pub struct SimControl {
    network: ControlNetwork,
    data: SimAddr,
    /// Taken by `drop` alone.
    port: Option<Port>,
    /// The further source ports of the endpoint's transport.
    ports: PathPorts,
    links: BTreeMap<LinkId, Way>,
    /// Proposed and unanswered sessions, by link and request.
    proposals: RefCell<BTreeMap<(LinkId, u32), SessionOpen>>,
    rng: Rng,
    scripted: Scripted,
}

/// The data path of a link, and the further source ports of this end and of the peer.
type Way = (DataLink, [PathPorts; 2]);

impl SimControl {
    /// Returns the queue of the next "random" numbers, to be filled by a test: for example, equal request
    /// numbers of two sessions.
    pub fn scripted(&self) -> Scripted {
        Rc::clone(&self.scripted)
    }

    fn port(&self) -> &Port {
        self.port.as_ref().expect("the port is taken at the end")
    }

    /// Completes the data path of a link as the two ends know it, and leaves out the features that the simulation does without.
    fn on_link_up(
        &mut self,
        (link, is_opener): (LinkId, bool),
        transport: &mut DataLink,
        (peer, incarnation): (PeerName, u64),
        features: &mut LinkFeatures,
    ) {
        match transport {
            DataLink::Packets { .. } => {}
            DataLink::Ring(ring) => ring.peer = data_port_of(peer),
            DataLink::Sealed(path) => {
                let mut network = self.network.network.borrow_mut();
                network.links_sealed += 1;
                let sealing =
                    network.sealing.expect("links are sealed between processes that seal");
                let ends = [
                    self.port().incarnation,
                    path.paths[0].into(),
                    incarnation,
                    path.paths[1].into(),
                ];
                let ends = if is_opener { ends } else { [ends[2], ends[3], ends[0], ends[1]] };
                path.secret = ends
                    .iter()
                    .fold(sealing.seed, |secret, word| Rng::new(secret ^ word).next_u64());
                (path.is_opener, path.epoch_bits) = (is_opener, sealing.epoch_bits);
            }
        }
        if !matches!(transport, DataLink::Packets { .. }) {
            features.paths = PathPorts::NONE;
        }
        // Links have no other medium to fall back to: calls find out whether packets get through.
        features.probe = false;
        let ports = match features.paths.is_empty() {
            true => [PathPorts::NONE; 2],
            false => [self.ports, features.paths],
        };
        self.links.insert(link, (*transport, ports));
    }

    /// Notes a session that is open for its client.
    fn note_agreement(&self, link: LinkId, accept: SessionAccept) {
        let open = self.proposals.borrow_mut().remove(&(link, accept.request));
        if let (Some(open), Some((transport, ports))) = (open, self.links.get(&link)) {
            let (client, server) = (self.data, transport.peer());
            let (ports, key_paths) = (*ports, transport.key_paths());
            let agreement = Agreement { client, server, open, accept, ports, key_paths };
            if let Some(see) = &mut self.network.network.borrow_mut().watcher {
                see(agreement);
            }
        }
    }
}

/// Returns the data port of an endpoint: its number is the port's, from 0.
fn data_port_of(PeerName { address, endpoint }: PeerName) -> SimAddr {
    SimAddr::new(host_of(address.ip()), endpoint.0 + 1)
}

fn host_of(ip: IpAddr) -> HostId {
    let IpAddr::V4(ip) = ip else { panic!("the hosts of a fabric have IPv4 addresses: {ip}") };
    let [_, _, high, low] = ip.octets();
    HostId(u16::from_be_bytes([high, low]))
}

/// The part of the path that the two nexuses agree on; [`SimControl`] adds the rest.
impl From<UdpLink> for DataLink {
    fn from(UdpLink { addr, max_frame, sealed, .. }: UdpLink) -> Self {
        let peer = SimAddr::new(host_of(addr.ip()), addr.port());
        let max_frame_bytes = max_frame.unwrap_or(usize::MAX);
        match sealed {
            None => Self::Packets { peer, max_frame_bytes },
            Some(keys) => Self::Sealed(SealedPath {
                peer,
                max_frame_bytes,
                paths: [keys.local_path, keys.remote_path],
                secret: 0,
                is_opener: false,
                epoch_bits: 0,
            }),
        }
    }
}

impl NetLink for DataLink {
    fn of_memory(memory: Memory, _side: Side, _connection: SimUnixConnection) -> Self {
        let Memory { number, ring_bytes, max_frame_bytes, .. } = memory;
        let peer = SimAddr::new(HostId(0), 0);
        Self::Ring(RingLink { peer, number, ring_bytes, max_frame_bytes })
    }
}

impl ControlPlane<DataLink> for SimControl {
    fn post(&self, message: ToNexus) {
        if let ToNexus::OpenSession { link, open } = message {
            self.proposals.borrow_mut().insert((link, open.request), open);
        }
        self.port().handle.post(message);
        self.network.with(Network::handle_signals);
    }

    fn poll(&mut self) -> Option<FromNexus<DataLink>> {
        let port = self.port.as_mut().expect("the port is taken at the end");
        let mut message = port.handle.poll()?;
        match &mut message {
            FromNexus::LinkUp { request, link, transport, peer, incarnation, features, .. } => {
                let of_peer = (*peer, *incarnation);
                self.on_link_up((*link, request.is_some()), transport, of_peer, features);
            }
            FromNexus::SessionOpened { link, accept } => self.note_agreement(*link, *accept),
            FromNexus::SessionRefused { link, request, .. } => {
                self.proposals.borrow_mut().remove(&(*link, *request));
            }
            FromNexus::LinkDown { link, .. } => {
                self.links.remove(link);
                self.proposals.borrow_mut().retain(|(of, _), _| of != link);
            }
            _ => {}
        }
        Some(message)
    }

    fn endpoint_id(&self) -> EndpointId {
        self.port().handle.id()
    }

    fn random(&mut self) -> u64 {
        let scripted = self.scripted.borrow_mut().pop_front().flatten();
        scripted.unwrap_or_else(|| self.rng.next_u64())
    }
}

impl Drop for SimControl {
    fn drop(&mut self) {
        let Some(port) = self.port.take() else { return };
        self.network.network.borrow_mut().detach(self.data, &port);
        // The nexus learns that the endpoint has gone.
        drop(port);
        self.network.with(Network::handle_signals);
    }
}
