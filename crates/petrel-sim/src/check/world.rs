//! A world: its nodes, and the run from the first call to the last check.

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::iter;
use std::rc::Rc;

use petrel::Endpoint;
use petrel::endpoint::{EndpointId, PanicPolicy, SessionId};
use petrel_proto::Recovery;
use petrel_proto::counters::Counters;
use petrel_transport::Transport as _;

use super::attacker;
use super::client_call::SimulatedCaller;
use super::ledger::Ledger;
use super::nemesis::{self, FaultAction};
use super::node::{Common, Limits, Node, Phase, Shared, Target, data_port};
use super::options::Options;
use super::regions::RegionCaller;
use super::report::Report;
use super::scenario::{READ_NS_MAX, Scenario};
use super::service;
use super::several_paths::Announcing;
use super::swarm::{Feature, Swarm};
use super::watch::WireChecker;
use super::worker_pool::WorkerPool;
use crate::control::{ControlNetwork, CrashKind};
use crate::fabric::{
    Action, ActorId, FabricHandle, FaultPlan, HostId, LinkId, LinkSet, SimAddr, Stopped,
};
use crate::ring::WakeFaults;
use crate::rng::Rng;
use crate::simulation::Simulation;
use crate::trace::Trace;
use crate::transport::SimTransport;
use crate::world::{self, World as _};

/// Virtual time limit: a call or phase that has not ended by then never will.
pub(super) const TIME_LIMIT_NS: u64 = 60_000_000_000;

/// The first and the longest interval between checks for the end of a phase.
const CHECK_INTERVAL_NS: u64 = 500_000;
const CHECK_INTERVAL_NS_MAX: u64 = 10_000_000;

/// Time limit for a client to leave a draining server after its last call: twice the client's check interval.
const LEAVE_NS: u64 = 400_000;

/// One world in this number, on average, has shared memory between neighbours.
const WORLDS_PER_RINGS: u64 = 2;

/// Worlds for each world with ordered calls.
const WORLDS_PER_ORDER: u64 = 4;

/// One world in this number has sessions of several paths, and a quarter of these also rings.
const WORLDS_PER_PATHS: u64 = 3;
const PATH_WORLDS_PER_RINGS: u64 = 4;

/// The share of worlds with regions, among worlds whose features include regions.
const WORLDS_PER_REGIONS: u64 = 3;

/// Worlds per world with sealed links and an attacker.
const WORLDS_PER_SEALING: u64 = 6;

/// Worlds per world whose servers open sessions to their clients.
const WORLDS_PER_REVERSE: u64 = 3;

/// Chosen so that the seeds on the regression list have none: they keep their worlds.
const STREAM_OF_REVERSE: u32 = 2_670_651;

/// The stream for the decision on sealing.
const STREAM_OF_SEALING: u32 = 872_971;

const REGION_HOSTS_MAX: u64 = 2;

/// A stream of its own decides on regions: none of the seeds on the regression list has regions.
const STREAM_OF_REGIONS: u32 = 872_970;

/// Average number of worlds per large world.
const WORLDS_PER_LARGE_WORLD: u64 = 1_000;

/// Worlds drawn with the largest messages, per world that keeps the largest messages: such a world costs as much as
/// twenty usual worlds.
const WORLDS_PER_LARGEST: u64 = 4;

/// One endpoint in this number, on average, has a device that reads messages in place, after the flush.
const ENDPOINTS_PER_DEVICE: u64 = 3;

/// Random streams of a world; see [`FabricHandle::rng`].
const STREAM_CONTROL: u32 = 0;
const STREAM_NEMESIS: u32 = 1;
const STREAM_DRAINS: u32 = 2;
const STREAM_CUTS: u32 = 4;
const STREAM_KEYS: u32 = 5;
const STREAM_ATTACKS: u32 = 6;
/// Chosen so that the seeds on the regression list draw no stalls.
const STREAM_STALLS: u32 = 304;
const STREAM_ENDPOINT: u32 = 0x1_0000;
const STREAM_CALLER: u32 = 0x2_0000;
const STREAM_MEDIUM: u32 = 0x3_0000;
const STREAM_PATHS: u32 = 0x4_0000;
const STREAM_REGIONS: u32 = 0x5_0000;
const STREAM_REGION_TURNS: u32 = 0x6_0000;
const STREAM_SEALS: u32 = 0x7_0000;

pub(super) struct World {
    pub(super) common: Rc<Common>,
    pub(super) simulation: Simulation<Node>,
    rng: Rng,
    pending_crashes: BTreeMap<HostId, CrashKind>,
    endpoints_made: u32,
    /// Counters of all crashed endpoints, and at the end of all endpoints.
    pub(super) counters: Counters,
    /// Reused request buffers; of crashed endpoints, and at the end of all.
    pub(super) buffers_reused: u64,
}

impl World {
    pub(super) fn new(seed: u64, options: &Options, trace: Trace) -> Result<Self, String> {
        let [mut settings, mut features] = options.generators(seed);
        let mut scenario = Scenario::draw(&mut settings);
        if !options.has_everything {
            let rng = &mut features;
            scenario.omit_features(Swarm::draw(rng));
            if rng.below(WORLDS_PER_LARGE_WORLD) == 0 {
                scenario.make_large(rng);
            }
            if scenario.has_large && rng.below(WORLDS_PER_LARGEST) != 0 {
                scenario.limit_messages();
            }
            scenario.has_udp = true;
            scenario.has_leaders = true;
            scenario.has_rings =
                rng.below(WORLDS_PER_RINGS) == 0 && scenario.swarm.allows(Feature::Rings);
            scenario.has_order =
                rng.below(WORLDS_PER_ORDER) == 0 && scenario.swarm.allows(Feature::Order);
            if rng.below(WORLDS_PER_PATHS) == 0 && scenario.swarm.allows(Feature::Paths) {
                scenario.make_ways(rng);
                scenario.has_rings &= rng.below(PATH_WORLDS_PER_RINGS) == 0;
                scenario.has_order |=
                    rng.below(WORLDS_PER_ORDER) == 0 && scenario.swarm.allows(Feature::Order);
            }
            let rng = &mut Rng::stream(seed, u32::MAX, STREAM_OF_REGIONS);
            if rng.below(WORLDS_PER_REGIONS) == 0 && scenario.swarm.allows(Feature::Regions) {
                scenario.region_hosts = rng.between(1, REGION_HOSTS_MAX) as u16;
            }
            let rng = &mut Rng::stream(seed, u32::MAX, STREAM_OF_REVERSE);
            scenario.has_reverse =
                rng.below(WORLDS_PER_REVERSE) == 0 && scenario.swarm.allows(Feature::Reverse);
            let rng = &mut Rng::stream(seed, u32::MAX, STREAM_OF_SEALING);
            let is_sealed = rng.below(WORLDS_PER_SEALING) == 0;
            if is_sealed {
                scenario.seal(rng);
            }
        }
        let fabric = FabricHandle::new(&scenario.topology, scenario.fabric, seed)
            .map_err(|error| error.to_string())?;
        fabric.set_trace(trace);
        let control = ControlNetwork::new(&fabric, scenario.control, fabric.rng(STREAM_CONTROL));
        if scenario.has_rings {
            control.share_memory();
        }
        if let Some(epoch_bits) = scenario.epoch_bits {
            control.seal(fabric.rng(STREAM_KEYS).next_u64(), epoch_bits);
        }
        scenario.plain_host.into_iter().for_each(|host| control.leave_plain(host));
        let mut ledger = Ledger::default();
        ledger.fault_windows.aftermath_ns = scenario.aftermath_ns();
        ledger.has_little_memory = scenario.has_little_memory;
        ledger.has_short_timeouts = scenario.has_short_timeouts;
        ledger.late_ns_max = scenario.late_ns_max();
        ledger.has_few_sessions = scenario.has_few_sessions;
        ledger.has_worker_pools = scenario.has_client_calls();
        ledger.has_reverse = scenario.has_reverse;
        ledger.message_bytes_max = scenario.message_bytes_max;
        let ledger = Rc::new(RefCell::new(ledger));
        let wire_checker = Rc::new(RefCell::new(WireChecker::of_calls(Rc::clone(&ledger))));
        let common = Rc::new(Common {
            scenario,
            fabric: fabric.clone(),
            control,
            ledger,
            wire_checker: Rc::clone(&wire_checker),
            has_batches: options.has_batches,
            largest_batch: Cell::new(0),
            phase: Cell::new(Phase::Active),
        });
        let of_frames = Rc::clone(&wire_checker);
        fabric.watch(move |observation| of_frames.borrow_mut().see(observation));
        common.control.watch(move |agreement| wire_checker.borrow_mut().add(agreement));
        let rng = options.faults(seed, fabric.rng(STREAM_NEMESIS));
        let simulation = Simulation::new(fabric);
        let counters = Counters::default();
        let pending_crashes = BTreeMap::new();
        let mut world = Self {
            common,
            simulation,
            rng,
            pending_crashes,
            endpoints_made: 0,
            counters,
            buffers_reused: 0,
        };
        (0..world.common.scenario.hosts).try_for_each(|host| world.on_restart(HostId(host)))?;
        Ok(world)
    }

    /// Runs from the first call to the last check.
    pub(super) fn run(mut self, seed: u64) -> Result<Report, String> {
        self.run_faults()?;
        self.end_faults()?;
        self.begin(Phase::Draining);
        self.run_until_done()?;
        // Wait until dead links are detected: nodes must not probe over dead links.
        self.run_for(self.common.scenario.aftermath_ns())?;
        self.common.ledger.borrow_mut().fault_windows.aftermath_ns = 0;
        self.begin(Phase::Probing);
        self.run_until_done()?;
        self.begin(Phase::Resting);
        self.run_until_done()?;
        self.check_credits()?;
        self.check_paths()?;
        self.begin(Phase::Measuring);
        self.measure(seed)?;
        self.begin(Phase::Closing);
        self.run_until_done()?;
        self.check_end(seed)
    }

    fn run_faults(&mut self) -> Result<(), String> {
        let common = Rc::clone(&self.common);
        let scenario = &common.scenario;
        common.fabric.set_faults(scenario.faults);
        common.fabric.set_wake_faults(scenario.wake_faults());
        if scenario.is_attacked || scenario.epoch_bits.is_some() {
            common.fabric.start_recording(nemesis::RECORDED);
        }
        let mut actions = nemesis::plan(scenario, &mut self.rng);
        if scenario.has_client_calls() {
            nemesis::add_drains(scenario, &mut common.fabric.rng(STREAM_DRAINS), &mut actions);
        }
        nemesis::add_stalls(scenario, &mut common.fabric.rng(STREAM_STALLS), &mut actions);
        attacker::add_attacks(scenario, &mut common.fabric.rng(STREAM_ATTACKS), &mut actions);
        scenario.add_cuts(&mut common.fabric.rng(STREAM_CUTS), &mut actions);
        actions.retain(|(_, action)| scenario.swarm.allows_action(action));
        for (at_ns, action) in actions {
            self.run_to(at_ns)?;
            self.check_tables()?;
            self.perform(action)?;
        }
        self.run_to(scenario.active_ns)
    }

    fn perform(&mut self, action: FaultAction) -> Result<(), String> {
        let common = Rc::clone(&self.common);
        let now_ns = common.fabric.now_ns();
        match action {
            FaultAction::FaultWindow { action, hosts, for_ns } => {
                let mut ledger = common.ledger.borrow_mut();
                match action {
                    Action::Pause { host, for_ns } => {
                        ledger.fault_windows.add_pause(Stopped { host, from_ns: now_ns, for_ns });
                    }
                    _ => ledger.fault_windows.add(hosts, now_ns, for_ns),
                }
                drop(ledger);
                common.fabric.apply(action);
            }
            FaultAction::Stall { host, after, for_ns } => {
                common.fabric.apply(Action::Stall { host, after, for_ns });
            }
            FaultAction::Crash { host, kind, down_ns } => {
                if common.fabric.is_up(host) {
                    common.ledger.borrow_mut().fault_windows.add([host], now_ns, down_ns);
                    self.pending_crashes.insert(host, kind);
                    common.fabric.apply(Action::Crash { host, down_ns });
                }
            }
            FaultAction::Replace { at } => {
                common.ledger.borrow_mut().fault_windows.add([at.host], now_ns, 0);
                return self.replace(at);
            }
            FaultAction::Drain { at, for_ns } => self.begin_drain(at, for_ns),
            FaultAction::EndDrain { at } => return self.end_drain(at),
            FaultAction::Cut { link, hosts, lost_ns, reconverge_ns } => {
                if !hosts.is_empty() {
                    common.ledger.borrow_mut().fault_windows.add(hosts, now_ns, lost_ns);
                }
                self.set_cable(link, false, reconverge_ns);
            }
            FaultAction::Mend { link, reconverge_ns } => self.set_cable(link, true, reconverge_ns),
            FaultAction::Restore => common.fabric.set_faults(common.scenario.faults),
            FaultAction::Forge { count } => {
                (0..count).for_each(|_| nemesis::forge(&common, &mut self.rng));
            }
            FaultAction::Attack { count } => {
                (0..count).for_each(|_| attacker::attack(&common, &mut self.rng));
            }
        }
        Ok(())
    }

    /// Replaces an endpoint in a running process.
    fn replace(&mut self, at: SimAddr) -> Result<(), String> {
        let Some(id) = self.actor_at(at) else { return Ok(()) };
        self.common.fabric.note(format_args!("REPLACE {at}"));
        if let Some(node) = self.simulation.remove(id) {
            self.retire_node(node);
        }
        let node = self.make_node(at, EndpointId(at.port - 1))?;
        self.simulation.spawn(at, node);
        Ok(())
    }

    pub(super) fn actor_at(&self, at: SimAddr) -> Option<ActorId> {
        self.simulation.actors().find(|(_, node)| node.shared.at == at).map(|(id, _)| id)
    }

    /// Makes an endpoint ask its clients to leave.
    fn begin_drain(&mut self, at: SimAddr, for_ns: u64) {
        let Some(id) = self.actor_at(at) else { return };
        let now_ns = self.common.fabric.now_ns();
        self.common.fabric.note(format_args!("DRAIN {at}"));
        let mut ledger = self.common.ledger.borrow_mut();
        ledger.client_call_counts.drains += 1;
        ledger.fault_windows.add_drain(at.host, now_ns, for_ns);
        drop(ledger);
        if let Some(node) = self.simulation.actor_mut(id) {
            node.is_draining = true;
            node.endpoint.begin_drain();
        }
        self.simulation.wake(id);
    }

    /// Replaces the drained endpoint. Calls may be lost only if some clients have not left.
    fn end_drain(&mut self, at: SimAddr) -> Result<(), String> {
        self.check_leaving()?;
        let node = self.actor_at(at).and_then(|id| self.simulation.actor(id));
        let Some(node) = node.filter(|node| node.is_draining) else { return Ok(()) };
        let (left, now_ns) = (node.endpoint.sessions_served(), self.common.fabric.now_ns());
        let mut ledger = self.common.ledger.borrow_mut();
        match left {
            0 => ledger.client_call_counts.drains_completed += 1,
            _ => ledger.fault_windows.add([at.host], now_ns, 0),
        }
        drop(ledger);
        self.replace(at)
    }

    /// Checks that clients leave a draining server as soon as their last call has ended.
    fn check_leaving(&mut self) -> Result<(), String> {
        let now_ns = self.common.fabric.now_ns();
        let staying = self.sessions_to_leave();
        self.run_for(LEAVE_NS + self.common.scenario.late_ns_max())?;
        let until_ns = self.common.fabric.now_ns();
        let still = self.sessions_to_leave();
        let is_stopped = |at: SimAddr| {
            self.common.ledger.borrow().fault_windows.justify([at.host; 2], now_ns, until_ns)
        };
        let found = still.iter().find(|one| staying.contains(one) && !is_stopped(one.1));
        match found {
            Some((_, at, session)) => Err(format!("{at} stays on {session:?}, which drains")),
            None => Ok(()),
        }
    }

    /// Returns sessions without calls to draining servers, and their clients.
    fn sessions_to_leave(&self) -> Vec<(ActorId, SimAddr, SessionId)> {
        let is_to_leave = |node: &Node, session: SessionId| {
            let core = node.endpoint.core();
            core.is_draining(session) && core.pending_calls(session) == 0
        };
        let nodes = self.simulation.actors();
        let sessions = nodes.flat_map(|(id, node)| {
            let to_leave = node.open.iter().filter(move |open| is_to_leave(node, open.session));
            to_leave.map(move |open| (id, node.shared.at, open.session))
        });
        sessions.collect()
    }

    fn retire_node(&mut self, mut node: Node) {
        node.retire_clients();
        self.common.ledger.borrow_mut().record_crash(node.shared.endpoint_number);
        self.counters += *node.endpoint.core().counters();
        self.buffers_reused += node.shared.free_list.borrow().reused;
        self.count_workers(&node);
    }

    /// Adds the counters of a node's workers, at its end.
    pub(super) fn count_workers(&self, node: &Node) {
        let [executed, refused, skipped] = node.shared.worker_pool.borrow().counts();
        let counts = &mut self.common.ledger.borrow_mut().client_call_counts;
        counts.worker_executed += executed;
        counts.worker_refused += refused;
        counts.worker_skipped += skipped;
    }

    fn set_cable(&self, link: LinkId, is_up: bool, reconverge_ns: Option<u64>) {
        self.common.fabric.apply(Action::Link {
            links: LinkSet::Cable(link),
            is_up,
            reconverge_ns,
        });
    }

    /// Ends all faults. Crashed hosts restart, or stay down.
    fn end_faults(&mut self) -> Result<(), String> {
        self.common.fabric.set_faults(FaultPlan::NONE);
        self.common.fabric.set_wake_faults(WakeFaults::default());
        self.common.fabric.apply(Action::HealAll);
        if self.common.scenario.ways.is_some() {
            let (links, reconverge_ns) = (LinkSet::All, Some(0));
            self.common.fabric.apply(Action::Link { links, is_up: true, reconverge_ns });
        }
        self.run_for(0)
    }

    fn begin(&mut self, phase: Phase) {
        self.common.phase.set(phase);
        self.common.fabric.note(format_args!("PHASE {phase:?}"));
        let actors: Vec<_> = self.simulation.actors().map(|(id, _)| id).collect();
        actors.into_iter().for_each(|id| self.simulation.wake(id));
    }

    fn run_until_done(&mut self) -> Result<(), String> {
        let longer = |ns: &u64| Some((ns + ns / 4).min(CHECK_INTERVAL_NS_MAX));
        let intervals_ns = iter::successors(Some(CHECK_INTERVAL_NS), longer);
        let ends = self.run_until(TIME_LIMIT_NS, intervals_ns, |world| {
            world.check_tables()?;
            Ok(world.is_done())
        })?;
        if ends { Ok(()) } else { Err(self.describe_stuck()) }
    }

    /// Returns true if all nodes are done, and no host has yet to restart.
    fn is_done(&self) -> bool {
        self.simulation.actors().all(|(_, node)| node.is_done()) && self.pending_crashes.is_empty()
    }

    /// Describes the nodes that keep a phase from ending.
    fn describe_stuck(&self) -> String {
        let phase = self.common.phase.get();
        let pending = self.common.ledger.borrow().pending();
        let nodes: Vec<String> = self
            .simulation
            .actors()
            .filter(|(_, node)| !node.is_done())
            .map(|(_, node)| {
                let stats = node.endpoint.stats();
                let clients =
                    node.caller.as_ref().map(SimulatedCaller::describe).unwrap_or_default();
                let (sessions, tasks) = (stats.sessions, stats.tasks);
                let is_end = phase == Phase::Closing;
                let left = if is_end { node.left_at_end() } else { node.left_at_rest() };
                let at = node.shared.at;
                format!("{at} has {sessions} sessions, {tasks} tasks {clients}, left: {left:?}")
            })
            .collect();
        format!("{phase:?} never ended: {}; pending: {pending}", nodes.join(", "))
    }

    pub(super) fn check_now(&self) -> Result<(), String> {
        let broken = self.common.ledger.borrow().violation.clone();
        let in_frames = || self.common.wire_checker.borrow().violation.clone();
        match broken.or_else(|| self.common.control.fault()).or_else(in_frames) {
            Some(what) => Err(what),
            None => Ok(()),
        }
    }

    fn make_node(&mut self, at: SimAddr, id: EndpointId) -> Result<Node, String> {
        let common = Rc::clone(&self.common);
        let endpoint_number = self.endpoints_made;
        self.endpoints_made += 1;
        let mut rng = common.fabric.rng(STREAM_ENDPOINT + endpoint_number);
        let targets = self.draw_targets(at.host, &mut rng);
        let mut settings = common.scenario.draw_transport(&mut rng);
        let mut medium_rng = common.fabric.rng(STREAM_MEDIUM + endpoint_number);
        settings.medium = common.scenario.draw_medium(&mut medium_rng);
        if medium_rng.below(ENDPOINTS_PER_DEVICE) == 0 {
            settings.read_ns = READ_NS_MAX >> medium_rng.below(5);
        }
        let mut config = common.scenario.draw_endpoint(&mut rng);
        let announcing = if common.scenario.seals(at.host) {
            let mut rng = common.fabric.rng(STREAM_SEALS + endpoint_number);
            Scenario::fit_for_sealing(&mut rng, &mut settings);
            Announcing::Nothing
        } else {
            let mut rng = common.fabric.rng(STREAM_PATHS + endpoint_number);
            common.scenario.draw_paths(&mut rng, &mut settings, &mut config)
        };
        let is_controlled = common.scenario.is_controlled(&config);
        if is_controlled {
            common.ledger.borrow_mut().controlled.insert(endpoint_number);
        }
        // A handler that finds a rule broken ends the run.
        config.panics = PanicPolicy::Unwind;
        let goes_back_n = config.protocol.recovery == Recovery::GoBackN;
        common.wire_checker.borrow_mut().add_endpoint(at, goes_back_n);
        let transport =
            SimTransport::bind(&common.fabric, at, settings).map_err(|error| error.to_string())?;
        let tokens = Rng::new(rng.next_u64());
        let ports = match announcing {
            Announcing::Nothing => (&[][..], false),
            Announcing::Answers => (transport.further_ports(), false),
            Announcing::Asks => (transport.further_ports(), true),
        };
        let frame_bytes = settings.max_frame_bytes as u32;
        let control = common.control.attach_with_paths(at, id, frame_bytes, tokens, ports);
        let scripted = control.scripted();
        let mut endpoint = Endpoint::new(transport, control, &config)?;
        let shared = Rc::new(Shared {
            common: Rc::clone(&common),
            endpoint_number,
            at,
            rng: RefCell::new(rng),
            deferred: RefCell::default(),
            nested_sessions: RefCell::default(),
            served: RefCell::default(),
            pending: Cell::new(0),
            to_cancel: RefCell::default(),
            free_list: RefCell::default(),
            worker_pool: RefCell::new(WorkerPool::new(endpoint_number)),
        });
        service::serve(&shared, &mut endpoint);
        if let Some(regions) = common.ledger.borrow().regions.regions_at(at) {
            // Turns that copy little make reads of a few words go on over several turns.
            let mut rng = common.fabric.rng(STREAM_REGION_TURNS + endpoint_number);
            match rng.below(2) {
                0 => endpoint.serve_regions(&regions),
                _ => endpoint.serve_regions_in_turns(&regions, 1 << rng.between(4, 13)),
            }
        }
        let region_hosts = common.scenario.region_hosts;
        let region_caller = (region_hosts > 0).then(|| {
            let rng = common.fabric.rng(STREAM_REGIONS + endpoint_number);
            RegionCaller::new(rng, region_hosts, common.scenario.calls / 2 + 8)
        });
        let client_calls = common.scenario.calls / 3 + 4;
        let caller = common.scenario.has_client_calls().then(|| {
            SimulatedCaller::new(common.fabric.rng(STREAM_CALLER + endpoint_number), client_calls)
        });
        Ok(Node {
            endpoint,
            shared,
            targets,
            open: Vec::new(),
            over: Vec::new(),
            calls_left: common.scenario.calls,
            bytes_left: common.scenario.bytes,
            is_controlled,
            rto_ns_min: config.protocol.rto.min_ns,
            path_policy: config.sessions.path_policy,
            limits: Limits::of(&config),
            turns: 0,
            next_work_ns: 0,
            retry_ns: 0,
            scripted,
            begun: Phase::Active,
            probed: false,
            caller,
            region_caller,
            is_draining: false,
        })
    }

    /// Draws some endpoints on other hosts.
    fn draw_targets(&self, here: HostId, rng: &mut Rng) -> Vec<Target> {
        let scenario = &self.common.scenario;
        let may_call = |host: &HostId| *host != here && scenario.may_call(here, *host);
        let others = (0..scenario.hosts).map(HostId).filter(may_call);
        let all = others.flat_map(|host| {
            (0..scenario.endpoints_per_host).map(move |endpoint| Target {
                remote: ControlNetwork::address_of(host),
                endpoint: EndpointId(endpoint),
                at: data_port(host, endpoint),
            })
        });
        let mut targets: Vec<Target> = all.collect();
        while targets.len() as u64 > scenario.targets_max {
            targets.swap_remove(rng.below(targets.len() as u64) as usize);
        }
        targets
    }
}

impl world::World for World {
    type Actor = Node;

    fn simulation(&mut self) -> &mut Simulation<Node> {
        &mut self.simulation
    }

    fn control(&self) -> ControlNetwork {
        self.common.control.clone()
    }

    fn on_crash(&mut self, host: HostId, dead: Vec<(ActorId, Node)>) {
        let kind = self.pending_crashes.remove(&host).unwrap_or(CrashKind::Killed);
        self.common.fabric.note(format_args!("CRASH of {host}: {}", kind.name()));
        self.common.control.stop_process(host, kind);
        self.common.ledger.borrow_mut().regions.end_process(data_port(host, 0));
        // Some processes corrupt their memory, and memory shared with peers, when they crash.
        let corrupts = self.common.scenario.has_rings && self.rng.below(2) == 0;
        dead.iter().for_each(|(_, node)| node.endpoint.transport().crash(corrupts));
        dead.into_iter().for_each(|(_, node)| self.retire_node(node));
    }

    /// Starts a process with its endpoints on a host.
    fn on_restart(&mut self, host: HostId) -> Result<(), String> {
        self.common.control.start_process(host);
        if host.0 < self.common.scenario.region_hosts {
            self.common.ledger.borrow_mut().regions.start_process(data_port(host, 0));
        }
        for endpoint in 0..self.common.scenario.endpoints_per_host {
            let at = data_port(host, endpoint);
            let node = self.make_node(at, EndpointId(endpoint))?;
            self.simulation.spawn(at, node);
        }
        Ok(())
    }

    fn check(&mut self) -> Result<(), String> {
        let common = &self.common;
        common.ledger.borrow_mut().update_clock(&common.fabric);
        self.check_now()
    }
}
