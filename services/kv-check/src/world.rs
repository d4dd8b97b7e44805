//! A world: its nodes, and the run from the first operation to the last check.

mod clients;

use std::cell::{Cell, RefCell};
use std::collections::{BTreeMap, BTreeSet};
use std::iter;
use std::rc::Rc;

use petrel_kv::api::{MemberKind, Role, Status};
use petrel_kv::persist::{LogStore, Volatile};
use petrel_kv::{KvClient, Replica, ReplicaConfig};
use petrel_sim::control::{ControlNetwork, CrashKind};
use petrel_sim::fabric::{Action, ActorId, FabricHandle, FaultPlan, HostId, SimAddr};
use petrel_sim::{
    Rng, SimEndpoint, SimTransportConfig, Simulation, Trace, World as _, start_endpoint,
};

use crate::common::{Common, Counters, address_of, node_of};
use crate::disk::SimDisk;
use crate::history::History;
use crate::logger;
use crate::nemesis::{self, FaultAction, FaultTarget};
use crate::node::{ClientNode, Node, ReplicaNode};
use crate::observer::{Observer, Seen};
use crate::operator::{OperatorQueue, OperatorRequest, operate};
use crate::scenario::Scenario;

/// Timeout for recovery, in virtual time after the last fault: a number of election timeouts, and a minimum.
const RECOVERY_TIMEOUT_ELECTIONS: u64 = 300;
const RECOVERY_TIMEOUT_NS_MIN: u64 = 30_000_000_000;

/// Random streams of a world; see `FabricHandle::rng`.
const STREAM_CONTROL: u32 = 0;
const STREAM_NEMESIS: u32 = 1;
const STREAM_STALLS: u32 = 2;
const STREAM_LIVES: u32 = 0x1_0000;

pub(crate) struct World {
    pub(crate) common: Rc<Common>,
    simulation: Simulation<Node>,
    rng: Rng,
    operator: Rc<RefCell<OperatorQueue>>,
    disks: BTreeMap<HostId, SimDisk>,
    /// Hosts that return without their disks, and the kinds of the current crashes.
    disks_lost: BTreeSet<HostId>,
    crash_kinds: BTreeMap<HostId, CrashKind>,
    /// Hosts that should be nodes of the cluster.
    expected: BTreeSet<HostId>,
    /// The client of the user of leases, if the scenario has one.
    lease_client: Option<KvClient>,
    lives: u32,
    clients: u32,
}

impl World {
    pub(crate) fn new(seed: u64, trace: Trace) -> Result<Self, String> {
        let scenario = Scenario::of(seed);
        let fabric = FabricHandle::new(&scenario.topology(), scenario.fabric, seed)
            .map_err(|error| error.to_string())?;
        fabric.set_trace(trace);
        fabric.note(format_args!("{scenario:?}"));
        let control = ControlNetwork::new(&fabric, scenario.control, fabric.rng(STREAM_CONTROL));
        let (rng, simulation) = (fabric.rng(STREAM_NEMESIS), Simulation::new(fabric.clone()));
        let expected = (0..scenario.nodes).map(HostId).collect();
        let common = Rc::new(Common {
            scenario,
            fabric,
            control,
            history: RefCell::new(History::default()),
            observer: RefCell::new(Observer::default()),
            leases: RefCell::default(),
            violation: RefCell::new(None),
            watches_busy: Cell::new(0),
            watches_end: Cell::new(false),
            clients_busy: Cell::new(0),
            counters: RefCell::new(Counters::default()),
        });
        let mut world = Self {
            common,
            simulation,
            rng,
            operator: Rc::default(),
            disks: BTreeMap::new(),
            disks_lost: BTreeSet::new(),
            crash_kinds: BTreeMap::new(),
            expected,
            lease_client: None,
            lives: 0,
            clients: 0,
        };
        world.start()?;
        Ok(world)
    }

    fn start(&mut self) -> Result<(), String> {
        (0..self.common.scenario.nodes).try_for_each(|host| self.start_replica(HostId(host)))?;
        let common = Rc::clone(&self.common);
        for host in common.scenario.client_hosts() {
            common.control.start_process(host);
            let mut endpoint = self.endpoint(host)?;
            self.start_clients(&mut endpoint)?;
            let connection = self.connection(&endpoint);
            if common.scenario.has_leases && host.0 + 1 == common.scenario.hosts() {
                self.start_lease_user(&mut endpoint)?;
            }
            let last = host.0 + 1 == common.scenario.hosts();
            for _ in 0..if last { common.scenario.watches } else { 0 } {
                self.start_watch_user(&mut endpoint)?;
            }
            if host.0 == common.scenario.replica_hosts() {
                endpoint.handle().spawn(operate(connection, Rc::clone(&self.operator)));
            }
            self.simulation.spawn(data_port(host), Node::Client(Box::new(ClientNode { endpoint })));
        }
        Ok(())
    }

    /// Runs from the first operation to the last check.
    pub(crate) fn run(&mut self) -> Result<(), String> {
        self.run_fault_window()?;
        self.end_faults()?;
        self.run_until_well("the clients' operations", |world| {
            world.common.clients_busy.get() == 0 && world.operator.borrow().is_clear()
        })?;
        self.run_until_well("the replicas", Self::is_recovered_and_equal)?;
        self.leave_a_lease();
        self.run_until_well("the leases", |world| {
            let has_leases = |node: &ReplicaNode| {
                let counters = &mut node.status.counters.iter();
                counters.any(|(name, value)| name == "leases" && *value > 0)
            };
            world.common.clients_busy.get() == 0 && !world.replicas().any(has_leases)
        })?;
        self.read_all();
        self.run_until_well("the last reads", |world| world.common.clients_busy.get() == 0)?;
        self.common.watches_end.set(true);
        self.run_until_well("the watches", |world| world.common.watches_busy.get() == 0)?;
        self.add_up();
        Ok(())
    }

    fn run_fault_window(&mut self) -> Result<(), String> {
        let common = Rc::clone(&self.common);
        common.fabric.set_faults(common.scenario.faults);
        let stalls = &mut common.fabric.rng(STREAM_STALLS);
        for (at_ns, fault) in nemesis::plan(&common.scenario, &mut self.rng, stalls) {
            self.run_and_complete(at_ns)?;
            self.perform(fault)?;
        }
        self.run_and_complete(common.scenario.active_ns)
    }

    /// Ends all faults. Hosts that are down come back.
    fn end_faults(&mut self) -> Result<(), String> {
        self.common.fabric.set_faults(FaultPlan::NONE);
        self.common.fabric.apply(Action::HealAll);
        self.disks.values().for_each(SimDisk::end_stalls);
        self.common.fabric.note(format_args!("FAULTS END"));
        self.check()
    }

    fn perform(&mut self, fault: FaultAction) -> Result<(), String> {
        self.common.fabric.note(format_args!("FAULT {fault:?}"));
        match fault {
            FaultAction::Network(action) => self.common.fabric.apply(action),
            FaultAction::Restore => self.common.fabric.set_faults(self.common.scenario.faults),
            FaultAction::Pause { target, for_ns } => {
                if let Some(host) = self.resolve(target) {
                    self.common.fabric.apply(Action::Pause { host, for_ns });
                }
            }
            FaultAction::Crash { target, crash_kind, down_ns, loses_disk } => {
                if let Some(host) = self.resolve(target) {
                    self.crash(host, crash_kind, down_ns, loses_disk);
                }
            }
            FaultAction::PowerLossOfAll { down_ns } => {
                if !self.common.scenario.is_volatile {
                    let hosts: Vec<HostId> = self.replicas().map(|node| node.host).collect();
                    hosts
                        .into_iter()
                        .for_each(|host| self.crash(host, CrashKind::PowerLoss, down_ns, false));
                }
            }
            FaultAction::Isolate { for_ns } => self.isolate(for_ns),
            FaultAction::Stall { target, after, for_ns } => {
                if let Some(host) = self.resolve(target) {
                    self.common.fabric.apply(Action::Stall { host, after, for_ns });
                }
            }
            FaultAction::IsolateAndStall { cut_ns, stall_in_ns, after, stall_ns } => {
                let Some(host) = self.leader().map(|node| node.host) else { return Ok(()) };
                self.isolate(cut_ns);
                let at_ns = self.common.fabric.now_ns() + stall_in_ns;
                let stall = Action::Stall { host, after, for_ns: stall_ns };
                self.common.fabric.schedule(at_ns, stall);
            }
            FaultAction::Transfer => self.request_transfer(),
            FaultAction::Grow => return self.grow(),
            FaultAction::Shrink => self.shrink(),
        }
        Ok(())
    }

    fn isolate(&self, for_ns: u64) {
        let Some(leader) = self.leader().map(|node| node.host) else { return };
        let others = (0..self.common.scenario.replica_hosts()).map(HostId);
        let to = others.filter(|host| *host != leader).collect();
        let cut = Action::Partition { from: vec![leader], to, one_way: false, for_ns };
        self.common.fabric.apply(cut);
    }

    fn resolve(&self, target: FaultTarget) -> Option<HostId> {
        let running: Vec<HostId> = self.replicas().map(|node| node.host).collect();
        match target {
            FaultTarget::Leader => self.leader().map(|node| node.host).or(running.first().copied()),
            FaultTarget::Host(host) => Some(host).filter(|host| running.contains(host)),
        }
    }

    /// Crashes a host. A node without its former disk returns as a new replica; the old replica is gone for good. A
    /// majority of the voters has to remain at each step of a membership change. A disk is therefore lost only while
    /// the cluster is complete.
    fn crash(&mut self, host: HostId, crash_kind: CrashKind, down_ns: u64, loses_disk: bool) {
        // Without a stored name, the replica does not return either.
        let loses_disk = loses_disk || !self.disks.get(&host).is_some_and(SimDisk::has_name);
        if !self.common.fabric.is_up(host) || (loses_disk && !self.is_recovered()) {
            return;
        }
        if loses_disk {
            self.common.counters.borrow_mut().disks_lost += 1;
            self.disks_lost.insert(host);
        }
        self.crash_kinds.insert(host, crash_kind);
        self.common.fabric.apply(Action::Crash { host, down_ns });
    }

    fn request_transfer(&mut self) {
        let hosts: Vec<HostId> = self.expected.iter().copied().collect();
        let host = hosts[self.rng.below(hosts.len() as u64) as usize];
        self.common.counters.borrow_mut().transfers += 1;
        self.operator.borrow_mut().wanted.push_back(OperatorRequest::Transfer(host));
    }

    fn grow(&mut self) -> Result<(), String> {
        let all = (0..self.common.scenario.replica_hosts()).map(HostId);
        let is_free = |host: &HostId| {
            let is_idle = !self.expected.contains(host) && !self.is_running(*host);
            // A host removed while down comes back first.
            is_idle && self.common.fabric.is_up(*host)
        };
        let free: Vec<HostId> = all.filter(is_free).collect();
        if free.is_empty() || !self.is_recovered() {
            return Ok(());
        }
        let host = free[self.rng.below(free.len() as u64) as usize];
        self.expected.insert(host);
        self.operator.borrow_mut().wanted.push_back(OperatorRequest::Add(host));
        self.start_replica(host)
    }

    fn shrink(&mut self) {
        if self.expected.len() <= 3 || !self.is_recovered() {
            return;
        }
        let hosts: Vec<HostId> = self.expected.iter().copied().collect();
        let host = hosts[self.rng.below(hosts.len() as u64) as usize];
        self.expected.remove(&host);
        self.operator.borrow_mut().wanted.push_back(OperatorRequest::Remove(host));
    }

    /// Handles the consequences of completed requests.
    fn handle_completed(&mut self) {
        let done = std::mem::take(&mut self.operator.borrow_mut().done);
        for request in done {
            match request {
                OperatorRequest::Add(_) => self.common.counters.borrow_mut().nodes_added += 1,
                OperatorRequest::Remove(host) => {
                    self.common.counters.borrow_mut().nodes_removed += 1;
                    self.check_removed(host);
                    self.stop_replica(host);
                }
                OperatorRequest::Transfer(_) => {}
            }
        }
    }

    /// Checks that a node reported as removed is no member, according to the replica with the highest applied index.
    fn check_removed(&self, host: HostId) {
        let address = address_of(host).to_string();
        let ahead = self.replicas().max_by_key(|node| node.status.applied);
        let has = |node: &&ReplicaNode| {
            node.status.members.iter().any(|member| member.address == address)
        };
        if ahead.filter(has).is_some() {
            self.common.fail(format!("{host} is said to be removed, and is a member"));
        }
    }

    /// Switches off a superfluous node, and removes the disk.
    fn stop_replica(&mut self, host: HostId) {
        self.disks.remove(&host);
        self.disks_lost.remove(&host);
        let found = self.actor_of(host);
        if let Some(id) = found {
            self.simulation.remove(id);
            self.common.control.stop_process(host, CrashKind::Killed);
        }
    }

    fn actor_of(&self, host: HostId) -> Option<ActorId> {
        let is_it = |node: &Node| matches!(node, Node::Replica(node) if node.host == host);
        self.simulation.actors().find(|(_, node)| is_it(node)).map(|(id, _)| id)
    }

    pub(crate) fn replicas(&self) -> impl Iterator<Item = &ReplicaNode> {
        self.simulation.actors().filter_map(|(_, node)| match node {
            Node::Replica(node) => Some(&**node),
            Node::Client(_) => None,
        })
    }

    fn is_running(&self, host: HostId) -> bool {
        self.replicas().any(|node| node.host == host)
    }

    fn leader(&self) -> Option<&ReplicaNode> {
        let leaders = self.replicas().filter(|node| node.status.role == Role::Leader);
        leaders.max_by_key(|node| node.status.term)
    }

    /// Returns true if all expected nodes run, and every node's members are exactly these, as voters.
    fn is_recovered(&self) -> bool {
        let names: BTreeSet<u64> = self
            .replicas()
            .filter(|node| self.expected.contains(&node.host))
            .map(|node| node.status.raft_id)
            .collect();
        let is_clear = self.operator.borrow().is_clear() && self.disks_lost.is_empty();
        let nodes: Vec<&ReplicaNode> =
            self.replicas().filter(|node| self.expected.contains(&node.host)).collect();
        is_clear
            && nodes.len() == self.expected.len()
            && nodes.iter().all(|node| voters(&node.status).as_ref() == Some(&names))
    }

    fn is_recovered_and_equal(&self) -> bool {
        let mut applied = self.replicas().map(|node| node.replica.digest());
        let first = applied.next().flatten();
        self.is_recovered()
            && self.leader().is_some()
            && first.is_some()
            && applied.all(|other| other == first)
    }

    fn add_up(&self) {
        let counters = &mut *self.common.counters.borrow_mut();
        for node in self.replicas() {
            for (name, value) in &node.status.counters {
                match name.as_ref() {
                    "images" => counters.images += value,
                    "snapshots_fetched" => counters.snapshots_fetched += value,
                    _ => {}
                }
            }
        }
    }

    fn run_until_well(
        &mut self,
        what: &str,
        is_well: impl Fn(&Self) -> bool,
    ) -> Result<(), String> {
        let election_ns = self.common.scenario.election_ns();
        let timeout_ns = (RECOVERY_TIMEOUT_ELECTIONS * election_ns).max(RECOVERY_TIMEOUT_NS_MIN);
        let ends = self.run_until(timeout_ns, iter::repeat(election_ns / 4), |world| {
            world.complete()?;
            Ok(is_well(world))
        })?;
        match ends {
            true => Ok(()),
            false => Err(format!("{what} never came to an end: {}", self.describe())),
        }
    }

    /// Runs until a time, and handles the consequences of completed requests.
    fn run_and_complete(&mut self, limit_ns: u64) -> Result<(), String> {
        self.run_to(limit_ns)?;
        self.complete()
    }

    /// Handles the consequences of completed requests.
    fn complete(&mut self) -> Result<(), String> {
        self.handle_completed();
        self.check()
    }

    fn describe(&self) -> String {
        let describe = |node: &ReplicaNode| {
            let status = &node.status;
            let members: Vec<String> = status
                .members
                .iter()
                .map(|member| format!("{:x} {:?}", member.raft_id, member.kind))
                .collect();
            format!(
                "{} {:x} {:?} term {} commit {} applied {} last {} of {members:?}",
                node.host,
                status.raft_id,
                status.role,
                status.term,
                status.commit,
                status.applied,
                status.last_index
            )
        };
        let nodes: Vec<String> = self.replicas().map(describe).collect();
        let (busy, operator) = (self.common.clients_busy.get(), self.operator.borrow());
        format!("{busy} clients; {operator:?}; expected {:?}; {}", self.expected, nodes.join("; "))
    }

    fn start_replica(&mut self, host: HostId) -> Result<(), String> {
        let common = Rc::clone(&self.common);
        common.control.start_process(host);
        let mut endpoint = self.endpoint(host)?;
        let mut rng = self.next_rng();
        let (heartbeat, election) = common.scenario.draw_clock(&mut rng);
        // A restarted replica gets the present list of nodes.
        let mut nodes: BTreeSet<HostId> = (0..common.scenario.nodes).map(HostId).collect();
        nodes.extend(&self.expected);
        let peers = nodes.into_iter().map(|host| (node_of(host), address_of(host))).collect();
        let (node, address) = (node_of(host), address_of(host));
        let config = ReplicaConfig {
            heartbeat,
            election,
            reads: common.scenario.reads,
            clock_drift: common.scenario.drift,
            log_entries_max: common.scenario.log_entries_max,
            log_entries_kept: common.scenario.log_entries_kept,
            log_bytes_max: common.scenario.log_bytes_max,
            history_bytes_max: common.scenario.history_bytes_max,
            logger: logger::logger(),
            ..ReplicaConfig::new(node, address, peers, rng.next_u64())
        };
        let disk = (!common.scenario.is_volatile).then(|| self.disk_of(host));
        let recovered = disk.as_ref().and_then(SimDisk::recover);
        let log: Box<dyn LogStore> = match &disk {
            Some(disk) => Box::new(disk.clone()),
            None => Box::<Volatile>::default(),
        };
        let replica = Replica::start(&mut endpoint, config, log, recovered)
            .map_err(|error| error.to_string())?;
        logger::flush(&common.fabric, host);
        let status = replica.status();
        let seen = Seen::default();
        let node = ReplicaNode { host, endpoint, replica, disk, common, seen, status };
        self.simulation.spawn(data_port(host), Node::Replica(Box::new(node)));
        Ok(())
    }

    fn disk_of(&mut self, host: HostId) -> SimDisk {
        let rng = self.next_rng();
        let scenario = &self.common.scenario;
        let is_slow = scenario.slow_disk == Some(host);
        let config = if is_slow { scenario.disk.slowed() } else { scenario.disk };
        let fabric = self.common.fabric.clone();
        self.disks.entry(host).or_insert_with(|| SimDisk::new(fabric, config, rng)).clone()
    }

    fn endpoint(&mut self, host: HostId) -> Result<SimEndpoint, String> {
        let (rng, common) = (self.next_rng(), &self.common);
        let (fabric, control) = (&common.fabric, &common.control);
        let (at, settings) = (data_port(host), SimTransportConfig::default());
        start_endpoint(fabric, control, at, settings, rng, &common.scenario.endpoint())
    }

    fn next_rng(&mut self) -> Rng {
        self.lives += 1;
        self.common.fabric.rng(STREAM_LIVES + self.lives)
    }
}

impl petrel_sim::World for World {
    type Actor = Node;

    fn simulation(&mut self) -> &mut Simulation<Node> {
        &mut self.simulation
    }

    fn control(&self) -> ControlNetwork {
        self.common.control.clone()
    }

    fn after_turn(&self) -> impl FnMut() -> bool + use<> {
        let common = Rc::clone(&self.common);
        move || !common.has_failed()
    }

    fn on_crash(&mut self, host: HostId, dead: Vec<(ActorId, Node)>) {
        let crash_kind = self.crash_kinds.remove(&host).unwrap_or(CrashKind::Killed);
        self.common.fabric.note(format_args!("CRASH of {host}: {crash_kind:?}"));
        self.common.control.stop_process(host, crash_kind);
        drop(dead);
        if let Some(disk) = self.disks.get(&host) {
            disk.crash();
        }
    }

    fn on_restart(&mut self, host: HostId) -> Result<(), String> {
        if self.disks_lost.remove(&host) {
            self.disks.remove(&host);
        }
        // A removed node stays away.
        let is_removed = !self.expected.contains(&host) && !self.disks.contains_key(&host);
        if is_removed { Ok(()) } else { self.start_replica(host) }
    }

    fn check(&mut self) -> Result<(), String> {
        let broken = self.common.violation.borrow().clone();
        broken.or_else(|| self.common.control.fault()).map_or(Ok(()), Err)
    }
}

/// The voters, if the cluster has only voters.
fn voters(status: &Status) -> Option<BTreeSet<u64>> {
    let is_voter = |kind: MemberKind| kind == MemberKind::Voter;
    let all_vote = status.members.iter().all(|member| is_voter(member.kind));
    all_vote.then(|| status.members.iter().map(|member| member.raft_id).collect())
}

fn data_port(host: HostId) -> SimAddr {
    SimAddr::new(host, 1)
}
