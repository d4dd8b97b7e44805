//! The state of all processes' control planes, and their event queue.

use std::collections::BTreeMap;

use petrel::endpoint::{EndpointId, Reason};
use petrel::unstable::control::{FromNexus, LinkId, ToNexus};
use petrel_proto::Status;
use petrel_proto::control::{PathPorts, SessionAccept, SessionOpen};

use super::connection::{Connection, ConnectionId};
use super::links::{Links, ProposalName};
use super::{ControlConfig, CrashKind, Inbox};
use crate::fabric::{FabricHandle, HostId, SimAddr};
use crate::queue::EventQueue;
use crate::ring::DataLink;
use crate::rng::Rng;
use crate::time::Time;

/// An endpoint of an incarnation of a process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct EndpointKey {
    pub(super) host: HostId,
    pub(super) incarnation: u64,
    pub(super) endpoint: EndpointId,
    /// Counts attachments, to distinguish an endpoint from its predecessor of equal number.
    pub(super) serial: u64,
}

/// Counters of the control plane.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct ControlStats {
    /// Links that came up, counted on either side.
    pub links_up: u64,
    /// Sealed links that came up, counted on either side.
    pub links_sealed: u64,
    /// Links that ended with their connection.
    pub links_lost: u64,
    /// Links that could not be established.
    pub links_failed: u64,
    /// Connections whose peer gave no sign of life in time.
    pub silences: u64,
    /// Connections ended by the other side.
    pub resets: u64,
    /// Sessions accepted.
    pub sessions_accepted: u64,
    /// Sessions refused by the server.
    pub sessions_refused: u64,
    /// Sessions not answered in time.
    pub sessions_unanswered: u64,
    /// Sessions closed by one side while the link was up.
    pub sessions_closed: u64,
}

#[derive(Debug)]
pub(super) struct Network {
    pub(super) fabric: FabricHandle,
    pub(super) config: ControlConfig,
    pub(super) rng: Rng,
    pub(super) processes: Vec<Process>,
    pub(super) connections: BTreeMap<ConnectionId, Connection>,
    pub(super) connection_count: u32,
    pub(super) link_count: u64,
    attached_count: u64,
    pub(super) stats: ControlStats,
    pub(super) fault: Option<String>,
    pub(super) agreements: Vec<Agreement>,
    /// Whether all faults have ended; see [`ControlNetwork::end_faults`](super::ControlNetwork::end_faults).
    pub(super) is_fault_free: bool,
    /// Whether neighbours share memory; see [`ControlNetwork::share_memory`](super::ControlNetwork::share_memory).
    pub(super) memory_seed: Option<u64>,
    /// The seed of keys, and the length of epochs as a power of two; see [`ControlNetwork::seal`](super::ControlNetwork::seal).
    pub(super) sealing: Option<(u64, u32)>,
    queue: EventQueue<Event>,
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

#[derive(Debug, Default)]
pub(super) struct Process {
    /// 0 without a process.
    pub(super) incarnation: u64,
    /// Whether the host is down, too: then no kernel refuses connections.
    pub(super) is_silent: bool,
    pub(super) endpoints: BTreeMap<EndpointId, Local>,
    /// Connections that this process opened.
    pub(super) dialled: BTreeMap<HostId, ConnectionId>,
    pub(super) links: Links,
    /// Numbers of sealed links so far.
    pub(super) key_paths: u32,
}

/// An endpoint of a process.
#[derive(Debug)]
pub(super) struct Local {
    serial: u64,
    pub(super) data: SimAddr,
    pub(super) max_frame: u32,
    /// Its further source ports.
    pub(super) paths: PathPorts,
    /// Whether the endpoint announces its ports for its own sessions, and not only to peers that ask.
    asks_for_paths: bool,
    /// Whether links to sealing peers are sealed.
    pub(super) seals: bool,
    inbox: Inbox,
    /// Arrival time of the endpoint's last message at the control thread; later messages must not overtake it.
    posted_ns: u64,
}

impl Local {
    /// Returns the source ports that the endpoint announces for its own sessions.
    pub(super) fn asked_paths(&self) -> PathPorts {
        if self.asks_for_paths { self.paths } else { PathPorts::NONE }
    }
}

#[derive(Debug)]
pub(super) enum Event {
    /// A message of an endpoint reaches the control thread.
    Post(EndpointKey, ToNexus),
    /// A connection request reaches its destination host.
    Dial(ConnectionId),
    /// Items sent by one side of a connection may have arrived.
    Pump(ConnectionId, Side),
    /// One side of a connection is due to ask for a sign of life, or to give the peer up.
    Tick(ConnectionId, Side),
    /// The time limit of a link's opening ends.
    LinkDue(HostId, LinkId),
    /// The time limit of a proposal ends.
    ProposalDue(HostId, LinkId, ProposalName),
}

/// A side of a connection: the opener is 0.
pub(super) type Side = usize;

impl Network {
    pub(super) fn new(fabric: FabricHandle, config: ControlConfig, rng: Rng) -> Self {
        let processes = (0..fabric.host_count()).map(|_| Process::default()).collect();
        Self {
            fabric,
            config,
            rng,
            processes,
            connections: BTreeMap::new(),
            connection_count: 0,
            link_count: 0,
            attached_count: 0,
            stats: ControlStats::default(),
            fault: None,
            agreements: Vec::new(),
            is_fault_free: false,
            memory_seed: None,
            sealing: None,
            queue: EventQueue::new(),
        }
    }

    pub(super) fn next_ns(&self) -> u64 {
        match self.queue.next_at() {
            Time::NEVER => u64::MAX,
            at => at.ns(),
        }
    }

    pub(super) fn now_ns(&self) -> u64 {
        self.fabric.now_ns()
    }

    pub(super) fn schedule(&mut self, at_ns: u64, event: Event) {
        self.queue.push(Time::from_ns(at_ns), event);
    }

    /// Handles all due events.
    pub(super) fn run(&mut self) {
        let now = Time::from_ns(self.now_ns());
        while let Some((_, event)) = self.queue.pop_until(now) {
            self.handle(event);
        }
    }

    fn handle(&mut self, event: Event) {
        if let Some(host) = self.host_of_event(&event) {
            let paused_until_ns = self.fabric.paused_until_ns(host);
            if paused_until_ns > self.now_ns() {
                return self.schedule(paused_until_ns, event);
            }
        }
        match event {
            Event::Post(from, message) => self.on_post(from, message),
            Event::Dial(connection) => self.on_dial(connection),
            Event::Pump(connection, side) => self.on_pump(connection, side),
            Event::Tick(connection, side) => self.on_tick(connection, side),
            Event::LinkDue(host, link) => self.on_link_due(host, link),
            Event::ProposalDue(host, link, name) => self.on_proposal_due(host, link, name),
        }
    }

    /// Returns the host of the process that handles an event. The event is delayed while this host is paused.
    fn host_of_event(&self, event: &Event) -> Option<HostId> {
        match *event {
            Event::Post(from, _) => Some(from.host),
            Event::Dial(_) => None,
            Event::Pump(id, side) => Some(self.connections.get(&id)?.ends[1 - side].host),
            Event::Tick(id, side) => Some(self.connections.get(&id)?.ends[side].host),
            Event::LinkDue(host, _) | Event::ProposalDue(host, ..) => Some(host),
        }
    }

    pub(super) fn process(&mut self, host: HostId) -> &mut Process {
        &mut self.processes[usize::from(host.0)]
    }

    pub(super) fn start_process(&mut self, host: HostId) {
        let incarnation = self.rng.next_u64() | 1;
        *self.process(host) = Process { incarnation, ..Process::default() };
    }

    pub(super) fn stop_process(&mut self, host: HostId, kind: CrashKind) {
        let is_silent = kind == CrashKind::PowerLoss;
        *self.process(host) = Process { is_silent, ..Process::default() };
        self.abandon_connections(host, is_silent);
    }

    pub(super) fn attach(
        &mut self,
        data: SimAddr,
        endpoint: EndpointId,
        max_frame: u32,
        inbox: Inbox,
    ) -> EndpointKey {
        self.attached_count += 1;
        let serial = self.attached_count;
        let process = self.process(data.host);
        assert!(process.incarnation != 0, "an endpoint needs a process that runs");
        let incarnation = process.incarnation;
        let key = EndpointKey { host: data.host, incarnation, endpoint, serial };
        let paths = PathPorts::NONE;
        let (asks_for_paths, seals, posted_ns) = (false, false, 0);
        let local =
            Local { serial, data, max_frame, paths, asks_for_paths, seals, inbox, posted_ns };
        process.endpoints.insert(endpoint, local);
        key
    }

    /// Sets the source ports that the endpoint's links announce from now on; without `asks`, only on links of peers that announce some.
    pub(super) fn announce(&mut self, from: EndpointKey, paths: PathPorts, asks: bool) {
        if let Some(local) = self.process(from.host).endpoints.get_mut(&from.endpoint) {
            (local.paths, local.asks_for_paths) = (paths, asks);
        }
    }

    /// Seals the endpoint's links to sealing peers from now on.
    pub(super) fn seal_links_of(&mut self, from: EndpointKey) {
        if let Some(local) = self.process(from.host).endpoints.get_mut(&from.endpoint) {
            local.seals = true;
        }
    }

    /// Accepts a message of an endpoint for its control thread.
    pub(super) fn post(&mut self, from: EndpointKey, message: ToNexus) {
        if !self.is_alive(from) {
            return;
        }
        if matches!(message, ToNexus::Gone) {
            // The end is handled at once: the next endpoint with this number may follow soon.
            return self.on_gone(from.host, from.endpoint);
        }
        let earliest_ns = self.now_ns() + self.rng.between(1, self.config.hop_ns_max);
        let Some(local) = self.process(from.host).endpoints.get_mut(&from.endpoint) else { return };
        local.posted_ns = local.posted_ns.max(earliest_ns);
        let at_ns = local.posted_ns;
        self.schedule(at_ns, Event::Post(from, message));
    }

    /// Returns true if the endpoint still exists, in its process.
    fn is_alive(&self, key: EndpointKey) -> bool {
        let process = &self.processes[usize::from(key.host.0)];
        let local = process.endpoints.get(&key.endpoint);
        process.incarnation == key.incarnation
            && local.is_some_and(|local| local.serial == key.serial)
    }

    fn on_post(&mut self, from: EndpointKey, message: ToNexus) {
        if !self.is_alive(from) {
            return;
        }
        let EndpointKey { host, .. } = from;
        match message {
            ToNexus::OpenLink { request, remote, remote_endpoint, reverse, .. } => {
                self.open_link(from, request, (remote, remote_endpoint), reverse);
            }
            ToNexus::OpenSession { link, open } => self.propose_session(host, link, open),
            ToNexus::AnswerSession { link, request, answer } => {
                self.answer_session(host, link, request, answer);
            }
            ToNexus::CloseSession { link, peer_session, peer_token, from_client, reason } => {
                self.close_session(host, link, (peer_session, peer_token), from_client, reason);
            }
            ToNexus::DrainSession { link, peer_session, peer_token, message } => {
                self.drain_session(host, link, (peer_session, peer_token), message);
            }
            ToNexus::CloseLink { link, reason } => self.close_link(host, link, reason),
            ToNexus::JoinGroup { link, join } => self.offer_group(host, link, join),
            ToNexus::AnswerGroup { link, request, answer } => {
                self.answer_group(host, link, request, answer);
            }
            ToNexus::LeaveGroup { link, group } => self.leave_group(host, link, group),
            ToNexus::CheckPeer { link } => self.check_peer(host, link),
            // The simulation does not use these counters.
            ToNexus::Unreached { .. }
            | ToNexus::LinkUsed { .. }
            | ToNexus::SessionEnded { .. }
            | ToNexus::Stats { .. }
            | ToNexus::Gone => {}
        }
    }

    fn on_gone(&mut self, host: HostId, endpoint: EndpointId) {
        self.process(host).endpoints.remove(&endpoint);
        let own = self.process(host).links.select(|link| link.endpoint == endpoint);
        for link in own {
            self.close_link(host, link, unavailable("the endpoint is gone"));
        }
    }

    pub(super) fn tell(
        &mut self,
        host: HostId,
        endpoint: EndpointId,
        message: FromNexus<DataLink>,
    ) {
        let Some(local) = self.process(host).endpoints.get(&endpoint) else { return };
        local.inbox.borrow_mut().push_back(message);
        let data = local.data;
        self.fabric.borrow_mut().wake_owner(data);
    }
}

pub(super) fn unavailable(message: &str) -> Reason {
    Reason::new(Status::Unavailable, message)
}
