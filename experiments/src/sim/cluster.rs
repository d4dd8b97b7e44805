//! Endpoints on a fabric, with sessions between them: from the first connection to the last answer.

use std::rc::Rc;

use petrel::Endpoint;
use petrel::endpoint::EndpointId;
use petrel::endpoint::{EndpointConfig, SessionId};
use petrel_proto::Recovery;
use petrel_proto::congestion::CongestionCounters;
use petrel_proto::counters::Counters;
use petrel_proto::path::PathPolicy;
use petrel_proto::recovery::rtt::RtoBounds;
use petrel_transport::Transport as _;

use super::caller::{Caller, Load, Tally};
use super::driver::{Driver, Phase};
use super::node::Node;
use super::{Controller, ExperimentError};
use petrel_sim::SimEndpoint;
use petrel_sim::Simulation;
use petrel_sim::control::{ControlConfig, ControlNetwork};
use petrel_sim::fabric::{
    ActorId, CpuConfig, FabricConfig, FabricHandle, HostId, SimAddr, Topology,
};
use petrel_sim::{SimTransport, SimTransportConfig};

/// Virtual time limit for opening sessions and ending calls.
const TIME_LIMIT_NS: u64 = 60_000_000_000;

/// Interval between checks for the end of a phase.
const CHECK_INTERVAL_NS: u64 = 200_000;

/// Maximum memory for messages of one endpoint.
const MEMORY_BYTES_MAX: usize = 4 << 30;

/// Settings shared by all endpoints of a cluster.
#[derive(Clone, Copy, Debug)]
pub(super) struct Settings {
    pub(super) seed: u64,
    pub(super) controller: Controller,
    pub(super) recovery: Recovery,
    pub(super) rto: RtoBounds,
    /// The rate of the hosts' links.
    pub(super) line_gbit: u64,
    /// Payload of the largest UDP datagram.
    pub(super) frame_bytes: usize,
    pub(super) cpu: CpuConfig,
    /// Credits of a session.
    pub(super) credits: u16,
    /// Whether requests allow packets of their response beyond the first.
    pub(super) response_grants: bool,
    /// The way of the control plane's packets, from which sessions learn the length of their paths: half of
    /// the round trip that kernels measure.
    pub(super) one_way_ns: u64,
    pub(super) paths: Paths,
}

impl Settings {
    /// Returns the settings of most experiments: eRPC's credits, Ethernet packets, and sessions of one path with the
    /// default timeouts.
    pub(super) fn new(seed: u64, controller: Controller, line_gbit: u64, cpu: CpuConfig) -> Self {
        Self {
            seed,
            controller,
            recovery: Recovery::Selective,
            rto: RtoBounds::default(),
            line_gbit,
            frame_bytes: FRAME_BYTES,
            cpu,
            credits: CREDITS,
            response_grants: true,
            one_way_ns: ONE_WAY_NS,
            paths: Paths::ONE,
        }
    }
}

/// The paths of all sessions.
#[derive(Clone, Copy, Debug)]
pub(super) struct Paths {
    pub(super) policy: PathPolicy,
    /// Source ports of each endpoint.
    pub(super) ports: u8,
}

impl Paths {
    pub(super) const ONE: Self = Self { policy: PathPolicy::Single, ports: 1 };
}

/// Payload of a UDP datagram in an Ethernet packet.
pub(super) const FRAME_BYTES: usize = 1_472;

/// Credits of a session in eRPC, to compare with its figures.
const CREDITS: u16 = 32;

/// Half of the round trip under a switch, measured by kernels.
const ONE_WAY_NS: u64 = 5_000;

/// An endpoint, by host and number.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Place {
    pub(super) host: HostId,
    pub(super) endpoint: u16,
}

impl Place {
    pub(super) const fn new(host: HostId, endpoint: u16) -> Self {
        Self { host, endpoint }
    }

    /// Returns the address of the endpoint.
    pub(super) fn data(self) -> SimAddr {
        SimAddr::new(self.host, self.endpoint + 1)
    }
}

pub(super) struct Cluster {
    pub(super) fabric: FabricHandle,
    settings: Settings,
    control: ControlNetwork,
    simulation: Simulation<Node>,
    pub(super) phase: Rc<Phase>,
    callers: Vec<Rc<Caller>>,
    started_hosts: Vec<bool>,
    /// Whether the sessions of endpoints keep an order.
    is_ordered: bool,
    /// Number of random streams handed out.
    streams: u32,
}

impl Cluster {
    pub(super) fn new(topology: &Topology, settings: Settings) -> Result<Self, ExperimentError> {
        let config = FabricConfig {
            overhead_bytes: FabricConfig::ETHERNET_OVERHEAD_BYTES,
            verify_checksums: true,
            cpu: settings.cpu,
            ..FabricConfig::default()
        };
        let fabric = FabricHandle::new(topology, config, settings.seed)?;
        // No process crashes here: heartbeats would only cost time.
        let quiet = ControlConfig {
            heartbeat_ns: 1_000_000_000,
            step_timeout_ns: 1_000_000_000,
            delay_ns: (settings.one_way_ns, settings.one_way_ns),
            ..ControlConfig::default()
        };
        Ok(Self {
            control: ControlNetwork::new(&fabric, quiet, fabric.rng(0)),
            simulation: Simulation::new(fabric.clone()),
            started_hosts: vec![false; fabric.host_count()],
            is_ordered: false,
            phase: Rc::default(),
            callers: Vec::new(),
            streams: 1,
            settings,
            fabric,
        })
    }

    /// Lets the sessions of endpoints that start from now on keep an order.
    pub(super) fn keep_order(&mut self) {
        self.is_ordered = true;
    }

    /// Starts an endpoint.
    pub(super) fn add(&mut self, at: Place) -> Result<ActorId, ExperimentError> {
        self.add_with(at, self.settings.paths)
    }

    /// Starts an endpoint with different paths than in the settings.
    pub(super) fn add_with(&mut self, at: Place, paths: Paths) -> Result<ActorId, ExperimentError> {
        if !std::mem::replace(&mut self.started_hosts[usize::from(at.host.0)], true) {
            self.control.start_process(at.host);
        }
        let settings = SimTransportConfig {
            max_frame_bytes: self.settings.frame_bytes,
            ecn_capable: self.settings.controller.heeds_marks(),
            source_ports: paths.ports,
            ..SimTransportConfig::default()
        };
        let transport = SimTransport::bind(&self.fabric, at.data(), settings)?;
        let (id, frame) = (EndpointId(at.endpoint), self.settings.frame_bytes as u32);
        let tokens = self.next_rng();
        let ports = (transport.further_ports(), true);
        let control = self.control.attach_with_paths(at.data(), id, frame, tokens, ports);
        let endpoint = Endpoint::new(transport, control, &self.endpoint_config(paths)?)
            .map_err(ExperimentError::Settings)?;
        Ok(self.simulation.spawn(at.data(), Node::new(endpoint, Rc::clone(&self.phase))))
    }

    fn endpoint_config(&self, paths: Paths) -> Result<EndpointConfig, ExperimentError> {
        let mut config = EndpointConfig::default();
        // A receiver of large requests from a hundred senders buffers all of them.
        config.memory.max_bytes = MEMORY_BYTES_MAX;
        // eRPC's number of slots; the default is for waiting calls.
        config.sessions.slots = 8;
        config.sessions.credits = self.settings.credits;
        config.sessions.path_policy = paths.policy;
        config.sessions.ordered = self.is_ordered;
        config.protocol.recovery = self.settings.recovery;
        config.protocol.rto = self.settings.rto;
        config.protocol.response_grants = self.settings.response_grants;
        config.protocol.congestion = self.settings.controller.control(self.settings.line_gbit)?;
        Ok(config)
    }

    /// Returns a new random stream.
    pub(super) fn next_rng(&mut self) -> petrel_sim::Rng {
        self.streams += 1;
        self.fabric.rng(self.streams)
    }

    /// Adds a caller to an endpoint, with a session to every target.
    pub(super) fn add_caller(
        &mut self,
        actor: ActorId,
        targets: &[Place],
        load: Load,
    ) -> Result<Rc<Caller>, ExperimentError> {
        self.add_caller_in(Rc::clone(&self.phase), actor, targets, load)
    }

    /// Like [`Cluster::add_caller`], for a caller that begins and ends with a phase of its own.
    pub(super) fn add_caller_in(
        &mut self,
        phase: Rc<Phase>,
        actor: ActorId,
        targets: &[Place],
        load: Load,
    ) -> Result<Rc<Caller>, ExperimentError> {
        let rng = self.next_rng();
        let sessions = targets.iter().map(|&target| self.connect(actor, target));
        let sessions = sessions.collect::<Result<Vec<_>, _>>()?;
        let caller = Rc::new(Caller::new(load, sessions.clone(), phase, rng));
        self.add_driver(actor, Rc::clone(&caller), &sessions);
        self.callers.push(Rc::clone(&caller));
        Ok(caller)
    }

    /// Begins to open a session.
    pub(super) fn connect(
        &mut self,
        actor: ActorId,
        target: Place,
    ) -> Result<SessionId, ExperimentError> {
        let remote = ControlNetwork::address_of(target.host);
        Ok(self.endpoint_mut(actor).connect_to(remote, EndpointId(target.endpoint))?)
    }

    /// Adds a driver for the given sessions to an endpoint.
    pub(super) fn add_driver(
        &mut self,
        actor: ActorId,
        driver: Rc<impl Driver + 'static>,
        sessions: &[SessionId],
    ) {
        let node = self.simulation.actor_mut(actor).expect("nobody crashes in an experiment");
        node.add_driver(driver, sessions);
        self.simulation.wake(actor);
    }

    /// Runs until all sessions are open, and starts the callers.
    pub(super) fn begin(&mut self) -> Result<(), ExperimentError> {
        self.run_until("opening sessions", Self::is_connected)?;
        self.phase.is_calling.set(true);
        self.wake_all();
        Ok(())
    }

    fn is_connected(&mut self) -> Result<bool, ExperimentError> {
        for id in self.actors() {
            let node = self.simulation.actor_mut(id).expect("nobody crashes in an experiment");
            match node.is_connected() {
                Ok(true) => {}
                Ok(false) => return Ok(false),
                Err(what) => return Err(self.broken(what)),
            }
        }
        Ok(true)
    }

    /// Starts the measurement: calls that end from now on count, and link counters are reset.
    pub(super) fn begin_measuring(&mut self) {
        self.phase.is_measuring.set(true);
        self.fabric.begin_measuring();
    }

    pub(super) fn end_measuring(&mut self) {
        self.phase.is_measuring.set(false);
    }

    /// Runs until the calls of all callers have ended, without new calls. All calls must have been answered
    /// correctly.
    pub(super) fn drain(&mut self) -> Result<(), ExperimentError> {
        self.phase.is_calling.set(false);
        self.wake_all();
        self.run_until("the last calls", |cluster| {
            Ok(cluster.simulation.actors().all(|(_, node)| node.pending() == 0))
        })?;
        let total = tally_of(&self.callers);
        self.check(&total)
    }

    fn check(&self, total: &Tally) -> Result<(), ExperimentError> {
        match &total.wrong {
            Some(what) => Err(self.broken(what.clone())),
            None if total.started != total.succeeded => {
                let Tally { started, succeeded, .. } = total;
                Err(self.broken(format!("{started} calls began, {succeeded} were answered")))
            }
            None if total.started == 0 && !self.callers.is_empty() => {
                Err(self.broken("no caller has made a call".to_owned()))
            }
            None if !self.fabric.stats().is_balanced() => {
                Err(self.broken("the fabric has lost count of packets".to_owned()))
            }
            None => self.control.fault().map_or(Ok(()), |what| Err(self.broken(what))),
        }
    }

    /// Returns the error of a broken rule.
    pub(super) fn broken(&self, what: String) -> ExperimentError {
        ExperimentError::Broken { what, seed: self.settings.seed }
    }

    /// Runs until the condition holds, checked at intervals.
    pub(super) fn run_until(
        &mut self,
        what: &str,
        mut is_over: impl FnMut(&mut Self) -> Result<bool, ExperimentError>,
    ) -> Result<(), ExperimentError> {
        let time_limit_ns = self.fabric.now_ns() + TIME_LIMIT_NS;
        while !is_over(self)? {
            if self.fabric.now_ns() > time_limit_ns {
                return Err(ExperimentError::Stuck {
                    what: what.to_owned(),
                    virtual_ms: TIME_LIMIT_NS / 1_000_000,
                    seed: self.settings.seed,
                });
            }
            self.run_for(CHECK_INTERVAL_NS);
        }
        Ok(())
    }

    /// Runs actors and control planes for a time.
    pub(super) fn run_for(&mut self, duration_ns: u64) {
        let ran = petrel_sim::World::run_for(self, duration_ns);
        ran.expect("no rule is checked meanwhile, and nobody crashes");
    }

    /// Returns an endpoint.
    pub(super) fn endpoint(&self, actor: ActorId) -> &SimEndpoint {
        &self.simulation.actor(actor).expect("nobody crashes in an experiment").endpoint
    }

    pub(super) fn endpoint_mut(&mut self, actor: ActorId) -> &mut SimEndpoint {
        &mut self.simulation.actor_mut(actor).expect("nobody crashes in an experiment").endpoint
    }

    /// Returns the protocol counters of one endpoint.
    pub(super) fn counters(&self, actor: ActorId) -> Counters {
        *self.endpoint(actor).core().counters()
    }

    /// Returns the protocol counters of all endpoints, added up.
    pub(super) fn all_counters(&self) -> Counters {
        let mut sum = Counters::default();
        self.simulation.actors().for_each(|(_, node)| sum += *node.endpoint.core().counters());
        sum
    }

    /// Returns the congestion counters of all endpoints, added up.
    pub(super) fn all_congestion_counters(&self) -> CongestionCounters {
        let mut sum = CongestionCounters::default();
        for (_, node) in self.simulation.actors() {
            sum += *node.endpoint.core().congestion_counters();
        }
        sum
    }

    /// Returns the calls of all callers that were answered correctly.
    pub(super) fn calls(&self) -> u64 {
        tally_of(&self.callers).succeeded
    }

    /// Lets the callers of a phase call, or no longer.
    pub(super) fn set_calling(&mut self, phase: &Phase, is_calling: bool) {
        phase.is_calling.set(is_calling);
        self.wake_all();
    }

    fn wake_all(&mut self) {
        self.actors().into_iter().for_each(|id| self.simulation.wake(id));
    }

    fn actors(&self) -> Vec<ActorId> {
        self.simulation.actors().map(|(id, _)| id).collect()
    }
}

impl petrel_sim::World for Cluster {
    type Actor = Node;

    fn simulation(&mut self) -> &mut Simulation<Node> {
        &mut self.simulation
    }

    fn control(&self) -> ControlNetwork {
        self.control.clone()
    }
}

/// Adds up the results of some callers.
pub(super) fn tally_of<'a>(callers: impl IntoIterator<Item = &'a Rc<Caller>>) -> Tally {
    let mut total = Tally::default();
    callers.into_iter().for_each(|caller| total.add(&caller.tally()));
    total
}
