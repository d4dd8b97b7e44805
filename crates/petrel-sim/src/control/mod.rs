//! The simulated control plane in virtual time, in place of the nexus and its TCP.
//!
//! Endpoints use a [`SimControl`] like the real control plane, and the messages of `docs/wire-protocol.md`
//! §8 pass between processes through the real encoder and decoder. Only the streams are simulated: they
//! deliver in order, are delayed by partitions, and end by a reset, or by silence after a question.
//!
//! | event | effect on the other side |
//! | --- | --- |
//! | a process is killed | a reset, after the delay of the network |
//! | a host loses power | silence, and three heartbeats after a question [`FromNexus::LinkDown`] |
//! | a host is paused | as with a power loss if the pause is long; the paused side notices when it resumes |
//! | a partition | messages arrive when it heals, or both sides see a power loss |
//! | a restart | another incarnation; old connections are reset |
//! | no process listens | [`FromNexus::LinkFailed`], at once if the host is up |
//!
//! Every host runs one process; the control address contains the host's number.

mod connection;
mod groups;
mod links;
mod network;
mod sessions;

use std::cell::{Cell, RefCell};
use std::collections::VecDeque;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::rc::Rc;

use petrel::endpoint::EndpointId;
use petrel::unstable::control::{ControlPlane, FromNexus, ToNexus};
use petrel_proto::control::{DEFAULT_PORT, PathPorts};

use crate::fabric::{FabricHandle, HostId, SimAddr};
use crate::ring::DataLink;
use crate::rng::Rng;
use network::{EndpointKey, Network};

pub use network::{Agreement, ControlStats};

/// Settings of the control plane.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ControlConfig {
    /// Interval of PINGs; whole milliseconds.
    pub heartbeat_ns: u64,
    /// Minimum and maximum delay of a message between processes.
    pub delay_ns: (u64, u64),
    /// Maximum delay between an endpoint and its process's control thread.
    pub hop_ns_max: u64,
    /// Time limit for a step of the peer's process.
    pub step_timeout_ns: u64,
    /// Retry interval of a stream while the network is cut.
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

/// The control planes of all processes of a fabric. Clones share the state.
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
        self.network.borrow_mut().start_process(host);
    }

    /// Ends the process of a host.
    pub fn stop_process(&self, host: HostId, kind: CrashKind) {
        self.with(|network| network.stop_process(host, kind));
    }

    /// Makes every pair of hosts (0 and 1, 2 and 3, and so on) stand for two processes of one machine, with rings in
    /// shared memory. `seed` chooses the sizes of rings, and the links that use packets nevertheless.
    pub fn share_memory(&self, seed: u64) {
        self.network.borrow_mut().memory_seed = Some(seed);
    }

    /// Seals the links between [sealing](SimControl::sealing) endpoints. The keys follow from `seed`, and change after 2 to the power
    /// of `epoch_bits` datagrams.
    pub fn seal(&self, seed: u64, epoch_bits: u32) {
        self.network.borrow_mut().sealing = Some((seed, epoch_bits));
    }

    /// Declares that from now on no process ends, and no network is cut. Connections with two live sides
    /// then need no further heartbeats, which saves most events of quiet times.
    pub fn end_faults(&self) {
        self.network.borrow_mut().is_fault_free = true;
    }

    /// Connects an endpoint to the control plane of the host's process, which must run. `data` is the
    /// address of its transport; the port's owner is woken when there is a message to read.
    pub fn attach(&self, data: SimAddr, id: EndpointId, max_frame: u32, rng: Rng) -> SimControl {
        let inbox = Rc::new(RefCell::new(VecDeque::new()));
        let key = self.network.borrow_mut().attach(data, id, max_frame, Rc::clone(&inbox));
        SimControl { network: self.clone(), key, inbox, rng, scripted: Rc::default() }
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
        self.network.borrow().stats
    }

    /// Returns the sessions opened since the last call.
    pub fn take_agreements(&self) -> Vec<Agreement> {
        std::mem::take(&mut self.network.borrow_mut().agreements)
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

/// Messages that wait for an endpoint.
type Inbox = Rc<RefCell<VecDeque<FromNexus<DataLink>>>>;

/// Numbers that [`ControlPlane::random`] returns before drawn numbers; `None` stands for a drawn number.
pub type Scripted = Rc<RefCell<VecDeque<Option<u64>>>>;

/// An endpoint's handle to the control plane.
#[derive(Debug)]
pub struct SimControl {
    network: ControlNetwork,
    key: EndpointKey,
    inbox: Inbox,
    rng: Rng,
    scripted: Scripted,
}

impl SimControl {
    /// Returns the queue of the next "random" numbers, to be filled by a test: for example, equal request
    /// numbers of two sessions.
    pub fn scripted(&self) -> Scripted {
        Rc::clone(&self.scripted)
    }
}

impl SimControl {
    /// Announces further source ports of the endpoint's transport: its links have several paths if the peer
    /// announces some, too.
    pub fn announcing(self, ports: &[u16]) -> Self {
        self.announce(ports, true)
    }

    /// Announces further source ports only to peers that announce some, as an endpoint does whose own sessions
    /// have one path.
    pub fn answering_with(self, ports: &[u16]) -> Self {
        self.announce(ports, false)
    }

    /// Seals the endpoint's links to sealing peers. The endpoint's transport needs the medium of UDP, and room for sealing in the largest
    /// datagrams.
    pub fn sealing(self) -> Self {
        self.network.network.borrow_mut().seal_links_of(self.key);
        self
    }

    fn announce(self, ports: &[u16], asks: bool) -> Self {
        let ports = PathPorts::new(ports).expect("a transport has up to 31 further source ports");
        self.network.network.borrow_mut().announce(self.key, ports, asks);
        self
    }
}

impl ControlPlane<DataLink> for SimControl {
    fn post(&self, message: ToNexus) {
        self.network.with(|network| network.post(self.key, message));
    }

    fn poll(&mut self) -> Option<FromNexus<DataLink>> {
        self.inbox.borrow_mut().pop_front()
    }

    fn endpoint_id(&self) -> EndpointId {
        self.key.endpoint
    }

    fn random(&mut self) -> u64 {
        let scripted = self.scripted.borrow_mut().pop_front().flatten();
        scripted.unwrap_or_else(|| self.rng.next_u64())
    }
}

impl Drop for SimControl {
    fn drop(&mut self) {
        self.post(ToNexus::Gone);
    }
}
