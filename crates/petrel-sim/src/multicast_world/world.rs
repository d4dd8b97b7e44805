//! A multicast world, from its first session to its last check.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::iter;
use std::net::SocketAddr;
use std::rc::Rc;
use std::time::Duration;

use petrel::endpoint::EndpointId;
use petrel::endpoint::{
    CallOptions, EndpointConfig, MembershipState, MulticastConfig, SessionId, SessionState,
    SharedMsg,
};
use petrel::group::{Group, GroupCall, Late, Need};
use petrel_proto::counters::Counters;
use petrel_proto::recovery::rtt::RtoBounds;

use super::Report;
use super::ledger::{Ledger, request_of};
use super::node::{METHOD, Node};
use crate::control::{ControlConfig, ControlNetwork, CrashKind};
use crate::fabric::{
    Action, ActorId, FabricConfig, FabricHandle, FaultPlan, HostId, LinkConfig, NicConfig,
    Observation, SimAddr, SwitchConfig, Topology,
};
use crate::rng::{Probability, Rng};
use crate::simulation::Simulation;
use crate::transport::SimTransportConfig;
use crate::world::{self, FaultLevel, World as _, start_endpoint};

/// Virtual time limit: a phase that has not ended by then never will.
const TIME_LIMIT_NS: u64 = 30_000_000_000;

/// The first and the longest interval between checks for the end of a phase.
const CHECK_INTERVAL_NS: (u64, u64) = (100_000, 5_000_000);

/// How long after a fault calls may fail because of it: silences, timeouts of links and sessions, and the
/// slowest retries.
const AFTERMATH_NS: u64 = 400_000_000;

/// The worst faults of packets under which every call must still succeed.
const FAULTS_MOST: FaultPlan = FaultPlan {
    loss: Probability::per_million(30_000),
    duplicate_within_ns: 1 << 20,
    spike_within_ns: 1 << 20,
    ..FaultPlan::RECOVERABLE_MOST
};

/// More packets than any request has.
const PACKETS_MAX: u64 = 256;

/// Upper bounds of answer lengths: for answers of one packet, and for larger answers. The lengths depend on the call.
const ANSWER_BYTES: (usize, usize) = (200, 20_000);

/// Maximum number of outstanding calls.
const CALLS_AT_ONCE: usize = 4;

const CLIENT: SimAddr = SimAddr::new(HostId(0), 1);

/// Streams of random numbers of a world; see [`FabricHandle::rng`].
const STREAM_CONTROL: u32 = 0;
const STREAM_ACTIONS: u32 = 1;
const STREAM_NODE: u32 = 0x100;

pub(crate) fn run_world(seed: u64) -> Result<Report, String> {
    World::new(seed)?.run().map_err(|what| format!("multicast: {what}"))
}

struct World {
    fabric: FabricHandle,
    control: ControlNetwork,
    simulation: Simulation<Node>,
    ledger: Rc<RefCell<Ledger>>,
    /// Frames that members received, and sent, by address.
    traffic: Rc<RefCell<BTreeMap<SimAddr, (u64, u64)>>>,
    rng: Rng,
    fault_level: FaultLevel,
    members: Vec<SimAddr>,
    /// Upper bound of answer lengths.
    answer_bytes_max: usize,
    /// The client's sessions, and their servers.
    open: Vec<(SessionId, HostId)>,
    group: Option<Group>,
    messages: Vec<SharedMsg>,
    groups_made: u16,
    nodes_made: u32,
    /// Outstanding calls at the moment when their group's multicast was stopped.
    cut_short: u64,
    pending_crashes: BTreeMap<HostId, CrashKind>,
    counters: Counters,
    report: Report,
}

impl World {
    fn new(seed: u64) -> Result<Self, String> {
        let rng = &mut Rng::stream(seed, u32::MAX, 2);
        let fault_level = match rng.below(4) {
            0 => FaultLevel::None,
            1 => FaultLevel::Recoverable,
            _ => FaultLevel::Full,
        };
        let members = rng.between(2, 6) as u16;
        let has_large_answers = rng.below(2) == 0;
        let topology = draw_topology(rng, usize::from(members) + 1);
        let config = FabricConfig { verify_checksums: true, ..FabricConfig::default() };
        let fabric =
            FabricHandle::new(&topology, config, seed).map_err(|error| error.to_string())?;
        let control =
            ControlNetwork::new(&fabric, ControlConfig::default(), fabric.rng(STREAM_CONTROL));
        let traffic: Rc<RefCell<BTreeMap<SimAddr, (u64, u64)>>> = Rc::default();
        let seen = Rc::clone(&traffic);
        fabric.watch(move |observation| match observation {
            Observation::Taken { to, .. } => seen.borrow_mut().entry(to).or_default().0 += 1,
            Observation::Sent { from, .. } => seen.borrow_mut().entry(from).or_default().1 += 1,
        });
        let mut ledger = Ledger::default();
        ledger.fault_windows.aftermath_ns = AFTERMATH_NS;
        let mut world = Self {
            simulation: Simulation::new(fabric.clone()),
            rng: fabric.rng(STREAM_ACTIONS),
            fabric,
            control,
            ledger: Rc::new(RefCell::new(ledger)),
            traffic,
            fault_level,
            members: (1..=members).map(|host| SimAddr::new(HostId(host), 1)).collect(),
            answer_bytes_max: if has_large_answers { ANSWER_BYTES.1 } else { ANSWER_BYTES.0 },
            open: Vec::new(),
            group: None,
            messages: Vec::new(),
            groups_made: 0,
            nodes_made: 0,
            cut_short: 0,
            pending_crashes: BTreeMap::new(),
            counters: Counters::default(),
            report: Report::default(),
        };
        (0..=members).try_for_each(|host| world.on_restart(HostId(host)))?;
        Ok(world)
    }

    fn run(mut self) -> Result<Report, String> {
        let faults = match self.fault_level {
            FaultLevel::None => FaultPlan::NONE,
            FaultLevel::Recoverable | FaultLevel::Full => {
                FaultPlan::draw(&mut self.rng, &FAULTS_MOST)
            }
        };
        self.connect()?;
        self.form_group();
        // Without faults, members answer the join before the first large call.
        self.run_for(1_000_000)?;
        self.count_refusals();
        self.fabric.set_faults(faults);
        for _ in 0..self.rng.between(4, 20) {
            self.act()?;
            let pause = self.rng.between(8, 21);
            let pause_ns = self.rng.below(1 << pause);
            self.run_for(pause_ns)?;
        }
        self.end_faults()?;
        self.check_last_call()?;
        self.close()?;
        self.check_end()
    }

    /// Performs one action of the client, or one fault of a member.
    fn act(&mut self) -> Result<(), String> {
        let has_all_faults = self.fault_level == FaultLevel::Full;
        match self.rng.below(16) {
            0 if has_all_faults => self.kill(),
            1 if has_all_faults => self.pause(),
            2 if has_all_faults => self.block_multicast(),
            3 if has_all_faults => return self.close_one(),
            action @ 4..6 => {
                if self.fault_level == FaultLevel::None {
                    // Outstanding calls would be cut short.
                    self.run_until_over("calls", |world| world.ledger.borrow().pending() == 0)?;
                }
                self.cut_short += self.ledger.borrow().pending() as u64;
                match action {
                    4 => {
                        self.connect()?;
                        self.form_group();
                    }
                    _ => self.stop_multicast(),
                }
            }
            _ => self.call(),
        }
        Ok(())
    }

    fn draw_member(&mut self) -> HostId {
        self.members[self.rng.below(self.members.len() as u64) as usize].host
    }

    fn add_fault_window(&mut self, host: HostId, for_ns: u64) {
        self.ledger.borrow_mut().fault_windows.add([host], self.fabric.now_ns(), for_ns);
    }

    fn kill(&mut self) {
        let host = self.draw_member();
        if !self.fabric.is_up(host) || self.pending_crashes.contains_key(&host) {
            return;
        }
        let kind = CrashKind::draw(&mut self.rng);
        let down_ns = self.rng.below(1 << 25);
        self.add_fault_window(host, down_ns);
        self.pending_crashes.insert(host, kind);
        self.report.crashes += 1;
        self.fabric.apply(Action::Crash { host, down_ns });
    }

    fn pause(&mut self) {
        let (host, most) = (self.draw_member(), self.rng.between(12, 26));
        let for_ns = self.rng.below(1 << most);
        self.add_fault_window(host, for_ns);
        self.fabric.apply(Action::Pause { host, for_ns });
    }

    /// Makes a switch port block multicast, or stop blocking it. No call may fail because of this.
    fn block_multicast(&mut self) {
        let (host, is_blocked) = (self.draw_member(), self.rng.below(2) == 0);
        self.fabric.set_multicast_blocked(host, is_blocked);
    }

    fn close_one(&mut self) -> Result<(), String> {
        if self.open.is_empty() {
            return Ok(());
        }
        let place = self.rng.below(self.open.len() as u64) as usize;
        let (session, host) = self.open.swap_remove(place);
        self.add_fault_window(host, 0);
        let node = self.client()?;
        node.endpoint.close(session);
        self.wake_client();
        Ok(())
    }

    /// Opens the missing sessions to members.
    fn connect(&mut self) -> Result<(), String> {
        let mut open = std::mem::take(&mut self.open);
        let members = self.members.clone();
        let node = self.client()?;
        let is_over =
            |session| matches!(node.endpoint.session_state(session), SessionState::Ended(_));
        open.retain(|&(session, _)| !is_over(session));
        for at in members {
            if open.iter().all(|&(_, host)| host != at.host) {
                let remote = ControlNetwork::address_of(at.host);
                let session = node.endpoint.connect_to(remote, EndpointId(0));
                let session = session.map_err(|error| format!("cannot connect: {error}"))?;
                open.push((session, at.host));
            }
        }
        self.open = open;
        self.wake_client();
        self.run_until_over("opening sessions", |world| {
            let Some(node) = world.client_there() else { return false };
            let state = |session| node.endpoint.session_state(session);
            world.open.iter().all(|&(session, _)| state(session) != SessionState::Opening)
        })
    }

    /// Makes a group of the open sessions. Its large messages usually go by multicast.
    fn form_group(&mut self) {
        self.stop_multicast();
        let number = self.groups_made;
        let (mut address, packets_min) = (group_address(number), self.rng.between(2, 12) as u32);
        // Groups may share an address.
        if self.rng.below(4) == 0 {
            address = group_address(0);
        }
        let (has_multicast, open) = (self.rng.below(8) > 0, self.open.clone());
        let Ok(node) = self.client() else { return };
        let is_open = |session| node.endpoint.session_state(session) == SessionState::Open;
        let sessions = open.into_iter().map(|(session, _)| session).filter(|&it| is_open(it));
        let Ok(group) = Group::new(sessions) else {
            self.group = None;
            return;
        };
        if has_multicast {
            let config = MulticastConfig { packets_min, ..MulticastConfig::new(address) };
            if let Err(error) = node.endpoint.start_multicast(&group, config) {
                self.ledger.borrow_mut().violate(format!("no multicast: {error}"));
            }
        }
        self.groups_made += 1;
        self.group = Some(group);
        self.wake_client();
    }

    fn stop_multicast(&mut self) {
        let group = self.group.clone();
        if let (Some(group), Ok(node)) = (group, self.client()) {
            node.endpoint.stop_multicast(&group);
            self.wake_client();
        }
    }

    fn count_refusals(&mut self) {
        let group = self.group.clone();
        let (Some(group), Some(node)) = (group, self.client_there()) else { return };
        let members = node.endpoint.multicast_members(&group);
        let refused =
            members.iter().filter(|(_, hears)| matches!(hears, MembershipState::Refused(_)));
        self.report.refused += refused.count() as u64;
    }

    fn call(&mut self) {
        if self.ledger.borrow().pending() >= CALLS_AT_ONCE {
            return;
        }
        let len = match self.rng.below(4) {
            0 => self.rng.below(2_000),
            1 => self.rng.below(300_000),
            _ => self.rng.between(3_000, 60_000),
        } as usize;
        let need = match self.rng.below(4) {
            0 => Need::Any,
            1 | 2 => Need::All,
            _ => Need::Quorum(2),
        };
        let mostly = self.fault_level != FaultLevel::None && self.rng.below(4) == 0;
        let timeout_ns = mostly.then(|| 1 << self.rng.between(18, 28));
        let late = if self.rng.below(2) == 0 { Late::Cancel } else { Late::Finish };
        self.call_group(len, need, timeout_ns, late);
    }

    fn call_group(&mut self, len: usize, need: Need, timeout_ns: Option<u64>, late: Late) {
        let Some(group) = self.group.clone() else { return };
        let host_of = |id: &SessionId| {
            // A closed session is no longer in `open`, and its calls fail with a reason.
            self.open.iter().find(|(session, _)| session == id).map_or(HostId(0), |it| it.1)
        };
        let members: Vec<_> = group.members().iter().map(|id| (*id, host_of(id))).collect();
        if members.iter().any(|&(_, host)| host == CLIENT.host) {
            return;
        }
        let Ok(needed) = need.of(members.len()) else { return };
        let id = self.ledger.borrow_mut().issue(members, needed, timeout_ns.is_some());
        let mut call = GroupCall::new(METHOD, need);
        call.response_bytes_max = self.answer_bytes_max;
        call.late = late;
        if let Some(timeout_ns) = timeout_ns {
            call.options = CallOptions::new().timeout(Duration::from_nanos(timeout_ns));
        }
        let ledger = Rc::clone(&self.ledger);
        let Ok(node) = self.client() else { return };
        let message = match node.endpoint.handle().share(&request_of(id, len)) {
            Ok(message) => message,
            Err(error) => return ledger.borrow_mut().violate(format!("no message: {error}")),
        };
        let ended = Rc::clone(&ledger);
        let called =
            group.call(&mut node.endpoint.context(), &message, call, move |_, _, reply| {
                ended.borrow_mut().end(id, &reply);
            });
        if let Err(failure) = called {
            ledger.borrow_mut().end(id, &Err(failure));
        }
        self.messages.push(message);
        self.wake_client();
    }

    /// Ends all faults, and waits until outstanding calls have ended.
    fn end_faults(&mut self) -> Result<(), String> {
        self.fabric.set_faults(FaultPlan::NONE);
        self.members.iter().for_each(|at| self.fabric.set_multicast_blocked(at.host, false));
        self.run_until_over("the last calls", |world| {
            world.ledger.borrow().pending() == 0 && world.pending_crashes.is_empty()
        })?;
        // Broken links are detected.
        if self.ledger.borrow().fault_windows.count() > 0 {
            self.run_for(AFTERMATH_NS)?;
        }
        Ok(())
    }

    /// Calls all running members once more after the faults: all must answer.
    fn check_last_call(&mut self) -> Result<(), String> {
        self.connect()?;
        self.form_group();
        self.run_for(1_000_000)?;
        let before = self.ledger.borrow().succeeded;
        self.call_group(40_000, Need::All, None, Late::Finish);
        self.run_until_over("the very last call", |world| world.ledger.borrow().pending() == 0)?;
        let has_group = self.group.is_some();
        match has_group && self.ledger.borrow().succeeded == before {
            true => Err("a call to all members fails when nothing is wrong any more".to_owned()),
            false => Ok(()),
        }
    }

    fn close(&mut self) -> Result<(), String> {
        self.stop_multicast();
        self.messages.clear();
        let open = std::mem::take(&mut self.open);
        let node = self.client()?;
        open.into_iter().for_each(|(session, _)| node.endpoint.close(session));
        self.wake_client();
        self.run_until_over("closing everything", |world| {
            world.simulation.actors().all(|(_, node)| node.left_at_end().is_none())
        })
    }

    /// Checks that nothing is left of an ended run, and reports the run's counters.
    fn check_end(mut self) -> Result<Report, String> {
        let listeners = self.fabric.group_listeners();
        if listeners > 0 {
            return Err(format!("{listeners} ports listen to groups that are over"));
        }
        let stats = self.fabric.stats();
        if !stats.is_balanced() {
            return Err(format!("packets are not accounted for: {stats:?}"));
        }
        let mut client = Counters::default();
        for (_, node) in self.simulation.actors() {
            if node.at == CLIENT {
                client = *node.endpoint.core().counters();
            }
            self.counters += *node.endpoint.core().counters();
        }
        self.check_replies()?;
        self.check_economy(&client)?;
        let ledger = self.ledger.borrow();
        Ok(Report {
            digest: self.fabric.digest() ^ ledger.succeeded,
            calls: ledger.call_count(),
            succeeded: ledger.succeeded,
            multicast_sent: client.multicast_sent,
            adopted: self.counters.multicast_adopted,
            held: self.counters.multicast_held,
            missed: client.multicast_missed,
            replicated: stats.replicated,
            repeated: client.packets_retransmitted,
            ..self.report
        })
    }

    /// Checks that no member sends more frames than it receives. Long answers are exempt: a frame may grant
    /// many packets.
    fn check_replies(&self) -> Result<(), String> {
        if self.answer_bytes_max > ANSWER_BYTES.0 {
            return Ok(());
        }
        for (at, &(taken, sent)) in self.traffic.borrow().iter() {
            if *at != CLIENT && sent > taken {
                return Err(format!("{at} was given {taken} frames, and has sent {sent}"));
            }
        }
        Ok(())
    }

    /// Checks that retransmissions are in proportion to faults.
    fn check_economy(&self, client: &Counters) -> Result<(), String> {
        let (stats, ledger) = (self.fabric.stats(), self.ledger.borrow());
        let repeated = client.packets_retransmitted;
        if self.fault_level == FaultLevel::None {
            let missed = client.multicast_missed;
            let is_right = repeated + missed == 0 && stats.dropped_total() == 0;
            let what = format!("{repeated} packets were sent again, {missed} requests missed");
            return if is_right { Ok(()) } else { Err(format!("{what}, and nothing was lost")) };
        }
        if ledger.fault_windows.count() > 0 || self.fault_level == FaultLevel::Full {
            return Ok(());
        }
        let fault_count =
            stats.dropped_total() + stats.duplicated + stats.reordered + 20 * stats.spikes;
        let probes = client.timeouts + client.probes;
        let cut_short = self.cut_short * PACKETS_MAX;
        let most = 4 * (self.members.len() as u64 * (fault_count + cut_short) + probes) + 200;
        match repeated > most {
            true => Err(format!("{repeated} packets were sent again, and not {most}")),
            false => Ok(()),
        }
    }

    fn client_there(&self) -> Option<&Node> {
        self.simulation.actors().find(|(_, node)| node.at == CLIENT).map(|(_, node)| node)
    }

    fn client_id(&self) -> Option<ActorId> {
        self.simulation.actors().find(|(_, node)| node.at == CLIENT).map(|(id, _)| id)
    }

    fn client(&mut self) -> Result<&mut Node, String> {
        let id = self.client_id();
        let node = id.and_then(|id| self.simulation.actor_mut(id));
        node.ok_or_else(|| "the client has gone".to_owned())
    }

    fn wake_client(&mut self) {
        if let Some(id) = self.client_id() {
            self.simulation.wake(id);
        }
    }

    fn run_until_over(
        &mut self,
        what: &str,
        is_over: impl Fn(&Self) -> bool,
    ) -> Result<(), String> {
        let longer = |ns: &u64| Some((ns * 2).min(CHECK_INTERVAL_NS.1));
        let intervals_ns = iter::successors(Some(CHECK_INTERVAL_NS.0), longer);
        if self.run_until(TIME_LIMIT_NS, intervals_ns, |world| Ok(is_over(world)))? {
            return Ok(());
        }
        let nodes = self.simulation.actors().map(|(_, node)| (node.at, node.left_at_end()));
        let left: Vec<_> = nodes.collect();
        Err(format!("{what} takes for ever: {left:?}"))
    }
}

impl world::World for World {
    type Actor = Node;

    fn simulation(&mut self) -> &mut Simulation<Node> {
        &mut self.simulation
    }

    fn control(&self) -> ControlNetwork {
        self.control.clone()
    }

    fn after_turn(&self) -> impl FnMut() -> bool + use<> {
        let (ledger, fabric) = (Rc::clone(&self.ledger), self.fabric.clone());
        move || {
            ledger.borrow_mut().now_ns = fabric.now_ns();
            true
        }
    }

    fn on_crash(&mut self, host: HostId, dead: Vec<(ActorId, Node)>) {
        let kind = self.pending_crashes.remove(&host).unwrap_or(CrashKind::Killed);
        self.control.stop_process(host, kind);
        for (_, node) in dead {
            self.counters += *node.endpoint.core().counters();
        }
    }

    fn on_restart(&mut self, host: HostId) -> Result<(), String> {
        self.control.start_process(host);
        let at = SimAddr::new(host, 1);
        let rng = &mut self.fabric.rng(STREAM_NODE + self.nodes_made);
        self.nodes_made += 1;
        let settings = SimTransportConfig {
            coalesce: rng.below(2) == 0,
            ecn_capable: rng.below(2) == 0,
            read_ns: if self.nodes_made.is_multiple_of(2) { 4_000 } else { 0 },
            ..SimTransportConfig::default()
        };
        let tokens = Rng::new(rng.next_u64());
        let config = draw_endpoint(rng, self.fault_level, at == CLIENT);
        let endpoint = start_endpoint(&self.fabric, &self.control, at, settings, tokens, &config)?;
        self.simulation
            .spawn(at, Node::new(endpoint, at, Rc::clone(&self.ledger), self.answer_bytes_max));
        Ok(())
    }

    fn check(&mut self) -> Result<(), String> {
        let mut ledger = self.ledger.borrow_mut();
        ledger.now_ns = self.fabric.now_ns();
        ledger.violation.clone().or_else(|| self.control.fault()).map_or(Ok(()), Err)
    }
}

fn group_address(number: u16) -> SocketAddr {
    let [high, low] = number.to_be_bytes();
    SocketAddr::from(([239, 77, high, low], 7_000))
}

fn draw_topology(rng: &mut Rng, hosts: usize) -> Topology {
    let link = LinkConfig {
        rate_bps: rng.between(5, 100) * 1_000_000_000,
        delay_ns: 1 << rng.between(7, 13),
    };
    // Long queues: only links lose packets.
    let nic = NicConfig { rx_packets: 1 << 16, rx_bytes: 64 << 20, ..NicConfig::default() };
    Topology::star(hosts, nic, SwitchConfig::default(), link)
}

fn draw_endpoint(rng: &mut Rng, fault_level: FaultLevel, is_client: bool) -> EndpointConfig {
    let mut config = EndpointConfig::default();
    config.sessions.credits = rng.between(16, 512) as u16;
    config.sessions.slots = 1 << rng.between(1, 5);
    config.sessions.accept_multicast = is_client || rng.below(8) > 0;
    // Without faults, no timeout may expire while a hundred packets are in flight.
    let initial_ns =
        if fault_level == FaultLevel::None { 20_000_000 } else { rng.between(1, 8) * 500_000 };
    config.protocol.rto = RtoBounds {
        min_ns: initial_ns / 2,
        max_ns: 60_000_000,
        initial_ns,
        probe_min_ns: initial_ns / 2,
    };
    config.protocol.retries_max = 12;
    config.protocol.fast_path = rng.below(4) > 0;
    config.memory.poison = true;
    config
}
