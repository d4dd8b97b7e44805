//! A nexus world: its processes, and their scheduling.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BinaryHeap};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::rc::Rc;

use petrel::endpoint::EndpointId;
use petrel::nexus::stepped::SteppedNexus;
use petrel::nexus::{Attach, NexusStats, ShmAttach, UdpAttach};
use petrel_proto::control::PathPorts;
use petrel_transport::shm::ShmConfig;
use petrel_transport::udp::Mtu;
use petrel_transport::wake::Waker;

use super::actor::{Actor, ActorContext, DelayedAction, MessageCounts};
use super::foreign_peer::{Behaviour, ForeignPeer};
use super::link::SimLink;
use super::report::Report;
use super::scenario::{DataPort, Plan, Scenario};
use crate::net::{HostId, Net, NetRef, ProcessId, SimNetwork};
use crate::rng::Rng;
use crate::trace::Trace;

/// Time from readiness to the end of the wait.
const WAKE_NS: (u64, u64) = (1_000, 20_000);
const TURN_NS: u64 = 3_000;
/// Number of turns between two checks of the tables.
const TURNS_PER_CHECK: u64 = 16;

/// Names an endpoint of the world; never reused.
pub(super) type ActorId = usize;

#[derive(Clone, Copy, Debug)]
pub(super) enum Event {
    /// The wait of a process's thread ends, if the number of the wait still matches.
    Wake(ProcessId, u64),
    Turn(ProcessId),
    DelayedAction(ActorId, DelayedAction),
    /// A step of the workload.
    Ask,
    Fault,
    Start(usize),
    Heal(HostId, HostId),
    Power(HostId),
    Revive(ProcessId),
    Connect(usize, ProcessId, Behaviour),
    /// A foreign peer connects to a rendezvous.
    ConnectRendezvous(usize, ProcessId),
    /// Foreign peers act, and time bounds are checked.
    Tick,
}

pub(super) struct Process {
    pub(super) plan: Plan,
    /// Its index in the plans.
    pub(super) index: usize,
    pub(super) nexus: Option<SteppedNexus<SimNetwork<SimLink>>>,
    pub(super) incarnation: u64,
    state: Running,
    /// Distinguishes waits.
    wait: u64,
    pub(super) paused_until_ns: u64,
    /// Accumulated lateness of turns.
    pub(super) lateness_ns: u64,
    /// When a turn was last late.
    pub(super) excused_ns: u64,
    pub(super) ended_ns: Option<u64>,
    /// Message counts of removed endpoints.
    pub(super) counts: MessageCounts,
    /// Whether removed endpoints may have missed messages.
    pub(super) has_lost_endpoints: bool,
}

impl Process {
    /// Returns true if its thread runs or sleeps without delay.
    pub(super) fn is_prompt(&self, now_ns: u64) -> bool {
        let is_delayed = matches!(self.state, Running::Awake(since_ns) if since_ns < now_ns);
        self.nexus.is_some() && now_ns >= self.paused_until_ns && !is_delayed
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Running {
    /// Waits for events.
    Asleep,
    /// A token is ready; the wait is about to end.
    Waking,
    /// The wait ended at this time, and the turn is about to begin.
    Awake(u64),
}

pub(super) struct World {
    pub(super) scenario: Scenario,
    pub(super) net: NetRef,
    pub(super) rng: Rng,
    pub(super) events: BinaryHeap<Reverse<(u64, u64)>>,
    contents: BTreeMap<u64, Event>,
    sequence: u64,
    /// The processes by their numbers in the network, without those of foreign peers.
    pub(super) processes: BTreeMap<ProcessId, Process>,
    /// The current process of each plan.
    pub(super) current: Vec<Option<ProcessId>>,
    pub(super) actors: BTreeMap<ActorId, Actor>,
    next_actor: ActorId,
    pub(super) foreign_peers: Vec<ForeignPeer>,
    next_token: u32,
    waker: Option<Waker>,
    /// Whether faults and workload have ended.
    pub(super) is_fault_free: bool,
    /// When the last cut was healed or the last host came back.
    pub(super) healed_ns: u64,
    /// Cut pairs of hosts, and the times of the cuts.
    pub(super) cut_since: BTreeMap<(HostId, HostId), u64>,
    pub(super) report: Report,
    seed: u64,
    trace: Trace,
}

impl World {
    pub(super) fn new(seed: u64, trace: Trace) -> Self {
        let scenario = Scenario::draw(&mut Rng::stream(seed, 0x7e7_0001, 0));
        // Foreign peers have separate hosts at the end, and a third may be on the first host.
        let net =
            Net::new(Rng::stream(seed, 0x7e7_0000, 0), scenario.conditions, scenario.hosts + 2);
        let count = scenario.plans.len();
        Self {
            scenario,
            net,
            rng: Rng::stream(seed, 0x7e7_0002, 0),
            events: BinaryHeap::new(),
            contents: BTreeMap::new(),
            sequence: 0,
            processes: BTreeMap::new(),
            current: vec![None; count],
            actors: BTreeMap::new(),
            next_actor: 0,
            foreign_peers: Vec::new(),
            next_token: 0,
            waker: None,
            is_fault_free: false,
            healed_ns: 0,
            cut_since: BTreeMap::new(),
            report: Report { seed, ..Report::default() },
            seed,
            trace,
        }
    }

    pub(super) fn into_trace(self) -> Trace {
        self.trace
    }

    pub(super) fn run(&mut self) -> Result<Report, String> {
        // No simulated endpoint sleeps on this waker; production's endpoints do.
        self.waker = Some(Waker::new().map_err(|error| error.to_string())?);
        (0..self.current.len()).try_for_each(|index| self.start(index))?;
        self.schedule_events();
        let active_ns = self.scenario.active_ns;
        self.run_until(active_ns)?;
        self.finish()?;
        self.report.virtual_ns = self.now_ns();
        self.report.digest = self.net.borrow().digest ^ self.seed;
        Ok(self.report)
    }

    pub(super) fn now_ns(&self) -> u64 {
        self.net.borrow().now_ns()
    }

    pub(super) fn at(&mut self, at_ns: u64, event: Event) {
        self.sequence += 1;
        self.events.push(Reverse((at_ns, self.sequence)));
        self.contents.insert(self.sequence, event);
    }

    pub(super) fn after(&mut self, ns: u64, event: Event) {
        self.at(self.now_ns() + ns, event);
    }

    /// Writes a line of the trace, if it is on.
    pub(super) fn note(&mut self, what: std::fmt::Arguments<'_>) {
        use std::fmt::Write as _;
        if self.trace.is_on() {
            let now_ns = self.now_ns();
            // Writing to a string cannot fail.
            self.trace.write(|line, _| {
                let _ = write!(line, "{now_ns} nexus {what}");
            });
        }
    }

    pub(super) fn run_until(&mut self, until_ns: u64) -> Result<(), String> {
        loop {
            self.process_signals();
            let event_ns = self.events.peek().map_or(u64::MAX, |Reverse((at_ns, _))| *at_ns);
            let arrival_ns = self.net.borrow().next_ns();
            let next_ns = event_ns.min(arrival_ns);
            if next_ns > until_ns {
                self.net.borrow_mut().advance(until_ns);
                return Ok(());
            }
            self.net.borrow_mut().advance(next_ns);
            if event_ns <= next_ns
                && let Some(Reverse((_, number))) = self.events.pop()
                && let Some(event) = self.contents.remove(&number)
            {
                self.perform(event)?;
            }
        }
    }

    /// Wakes the threads and foreign peers with ready tokens.
    fn process_signals(&mut self) {
        let signals = self.net.borrow_mut().take_signals();
        for id in signals {
            let latency_ns = self.rng.between(WAKE_NS.0, WAKE_NS.1);
            match self.processes.get_mut(&id) {
                Some(process) if process.state == Running::Asleep => {
                    process.state = Running::Waking;
                    process.wait += 1;
                    let wait = process.wait;
                    self.after(latency_ns, Event::Wake(id, wait));
                }
                Some(_) => {}
                None => self.run_foreign_peer(id),
            }
        }
    }

    fn run_foreign_peer(&mut self, id: ProcessId) {
        let mut net = self.net.borrow_mut();
        net.end_wait(id);
        net.forget_found(id);
        if let Some(foreign_peer) = self.foreign_peers.iter_mut().find(|s| s.process == id) {
            foreign_peer.act(&mut net, &mut self.rng, false);
        }
    }

    fn perform(&mut self, event: Event) -> Result<(), String> {
        match event {
            Event::Wake(id, wait) => self.wake(id, wait),
            Event::Turn(id) => return self.turn(id),
            Event::DelayedAction(id, action) => return self.run_action(id, action),
            Event::Tick => return self.tick(),
            other => return self.handle_event(other),
        }
        Ok(())
    }

    /// Ends the wait of a thread. The thread may start late, and events in the meantime are for its next turn.
    fn wake(&mut self, id: ProcessId, wait: u64) {
        let now_ns = self.now_ns();
        let Some(process) = self.processes.get_mut(&id) else { return };
        if process.wait != wait || process.nexus.is_none() {
            return;
        }
        process.wait += 1;
        process.state = Running::Awake(now_ns);
        let is_late = self.rng.chance(process.plan.late);
        let late_ns = if is_late { self.rng.below(process.plan.late_ns_max) } else { 0 };
        self.net.borrow_mut().end_wait(id);
        self.after(late_ns, Event::Turn(id));
    }

    /// Runs a turn of a process's nexus, after the end of a pause, and checks the turn's effects.
    fn turn(&mut self, id: ProcessId) -> Result<(), String> {
        let now_ns = self.now_ns();
        let Some(process) = self.processes.get_mut(&id) else { return Ok(()) };
        let Running::Awake(since_ns) = process.state else { return Ok(()) };
        if now_ns < process.paused_until_ns {
            let at_ns = process.paused_until_ns;
            self.at(at_ns, Event::Turn(id));
            return Ok(());
        }
        process.lateness_ns += now_ns - since_ns;
        if now_ns > since_ns {
            process.excused_ns = now_ns;
            self.report.late_turns += 1;
        }
        self.report.turns += 1;
        let is_check_due = self.report.turns.is_multiple_of(TURNS_PER_CHECK);
        let Some(mut nexus) = process.nexus.take() else { return Ok(()) };
        let before = nexus.stats();
        let silent = self.silent_peers(id, now_ns);
        let Ok(goes_on) = nexus.turn() else {
            self.on_thread_end(id, &nexus);
            return Ok(());
        };
        let after = nexus.stats();
        self.net
            .borrow_mut()
            .add_to_digest(4, id as u64 ^ after.links_opened << 8 ^ after.links_failed << 20);
        if goes_on {
            self.sleep(id, &nexus);
        } else {
            // The kernel closes the sockets in order, before the nexus drops them.
            self.net.borrow_mut().forget_process(id, true);
        }
        if let Some(process) = self.processes.get_mut(&id) {
            process.nexus = goes_on.then_some(nexus);
        }
        self.check_silences(id, &before, &after, silent)?;
        if goes_on && is_check_due {
            self.check_tables(id)?;
        }
        self.fetch_news(id);
        if !goes_on {
            self.on_ended(id, &after);
        }
        Ok(())
    }

    /// Puts a thread back to sleep.
    fn sleep(&mut self, id: ProcessId, nexus: &SteppedNexus<SimNetwork<SimLink>>) {
        let timeout_ns = nexus.poll_timeout().map(|timeout| timeout.as_nanos() as u64);
        let has_ready = self.net.borrow().has_ready(id);
        let Some(process) = self.processes.get_mut(&id) else { return };
        process.wait += 1;
        let wait = process.wait;
        let sleep_ns = if has_ready { Some(0) } else { timeout_ns };
        process.state = if sleep_ns == Some(0) { Running::Waking } else { Running::Asleep };
        if let Some(sleep_ns) = sleep_ns {
            self.after(sleep_ns + TURN_NS, Event::Wake(id, wait));
        }
    }

    /// Handles a nexus that has sent GOODBYE: the thread ends, and the kernel closes the sockets.
    fn on_ended(&mut self, id: ProcessId, stats: &NexusStats) {
        self.add_stats(stats);
        let now_ns = self.now_ns();
        if let Some(process) = self.processes.get_mut(&id) {
            process.ended_ns = Some(now_ns);
            let index = process.index;
            self.current[index] = None;
        }
    }

    /// Handles a thread that ended with an error. Its endpoints live on, and are notified of everything.
    fn on_thread_end(&mut self, id: ProcessId, nexus: &SteppedNexus<SimNetwork<SimLink>>) {
        self.note(format_args!("p{id} has no thread any more"));
        let stats = nexus.stats();
        self.on_ended(id, &stats);
        self.net.borrow_mut().forget_process(id, true);
        self.fetch_news(id);
    }

    /// Fetches answers of the port, which come at once from a nexus without a thread.
    fn fetch_if_no_thread(&mut self, id: ProcessId) {
        if self.processes.get(&id).is_some_and(|process| process.nexus.is_none()) {
            self.fetch_news(id);
        }
    }

    pub(super) fn fetch_news(&mut self, id: ProcessId) {
        let now_ns = self.now_ns();
        let think_ns = self.think_ns();
        let of_process = self.actors.iter_mut().filter(|(_, actor)| actor.process == id);
        let with_news = of_process.filter_map(|(id, actor)| actor.fetch(now_ns).then_some(*id));
        for actor in with_news.collect::<Vec<_>>() {
            let delay_ns = self.rng.below(think_ns);
            self.after(delay_ns, Event::DelayedAction(actor, DelayedAction::Listen));
        }
    }

    /// Returns the longest time of an endpoint for an answer.
    fn think_ns(&self) -> u64 {
        self.scenario.conditions.delay_ns.1.max(10_000)
    }

    pub(super) fn run_action(&mut self, id: ActorId, action: DelayedAction) -> Result<(), String> {
        let now_ns = self.now_ns();
        let think_ns_max = self.think_ns();
        let hangs = self.scenario.features.hangs && !self.is_fault_free;
        let slow_ns_max = 3 * self.scenario.step_ns_max();
        let Some(actor) = self.actors.get_mut(&id) else { return Ok(()) };
        if now_ns < actor.hangs_until_ns {
            let at_ns = actor.hangs_until_ns;
            self.at(at_ns, Event::DelayedAction(id, action));
            return Ok(());
        }
        let mut later = Vec::new();
        let (rng, next_token) = (&mut self.rng, &mut self.next_token);
        let mut cx = ActorContext {
            now_ns,
            rng,
            later: &mut later,
            next_token,
            hangs,
            think_ns_max,
            slow_ns_max,
        };
        actor.perform(action, &mut cx)?;
        let process = actor.process;
        self.note(format_args!("p{process} e{id} {action:?}"));
        later.into_iter().for_each(|(ns, action)| self.after(ns, Event::DelayedAction(id, action)));
        self.fetch_if_no_thread(process);
        Ok(())
    }

    /// Lets an endpoint act at once.
    pub(super) fn with_actor(
        &mut self,
        id: ActorId,
        act: impl FnOnce(&mut Actor, &mut ActorContext<'_>, u64),
    ) {
        let (now_ns, think_ns_max) = (self.now_ns(), self.think_ns());
        let slow_ns_max = 3 * self.scenario.step_ns_max();
        let Some(actor) = self.actors.get_mut(&id) else { return };
        let lateness_ns = self.processes.get(&actor.process).map_or(0, |p| p.lateness_ns);
        let mut later = Vec::new();
        let (rng, next_token) = (&mut self.rng, &mut self.next_token);
        let mut cx = ActorContext {
            now_ns,
            rng,
            later: &mut later,
            next_token,
            hangs: false,
            think_ns_max,
            slow_ns_max,
        };
        act(actor, &mut cx, lateness_ns);
        let process = actor.process;
        later.into_iter().for_each(|(ns, action)| self.after(ns, Event::DelayedAction(id, action)));
        self.fetch_if_no_thread(process);
    }

    /// Starts the process of a plan, with its endpoints.
    pub(super) fn start(&mut self, index: usize) -> Result<(), String> {
        let plan = self.scenario.plans[index].clone();
        if self.is_fault_free
            || self.current[index].is_some()
            || !self.net.borrow().is_up(plan.host)
        {
            return Ok(());
        }
        let id = self
            .net
            .borrow_mut()
            .add_process(plan.host, (plan.descriptors_max, plan.descriptors_real));
        let network = SimNetwork::new(&self.net, id, plan.events_max);
        let waker = network.waker();
        let nexus = SteppedNexus::start(&plan.settings, network, waker);
        let nexus = nexus.map_err(|error| error.to_string())?;
        let incarnation = nexus.incarnation();
        let endpoints = plan.endpoints;
        self.note(format_args!("p{id} START {} {incarnation:x}", plan.address));
        let process = Process {
            plan,
            index,
            nexus: Some(nexus),
            incarnation,
            state: Running::Asleep,
            wait: 0,
            paused_until_ns: 0,
            lateness_ns: 0,
            excused_ns: 0,
            ended_ns: None,
            counts: MessageCounts::default(),
            has_lost_endpoints: false,
        };
        self.processes.insert(id, process);
        self.current[index] = Some(id);
        (0..endpoints).try_for_each(|endpoint| self.attach(id, EndpointId(endpoint)))
    }

    pub(super) fn attach(&mut self, id: ProcessId, endpoint: EndpointId) -> Result<(), String> {
        let Some(process) = self.processes.get(&id) else { return Ok(()) };
        let Some(nexus) = &process.nexus else { return Ok(()) };
        let port = 20_000 + endpoint.0 + 100 * process.index as u16;
        let udp = data_port(&process.plan, port);
        let shm = process.plan.has_shm.then(|| ShmAttach { config: ShmConfig::default() });
        let Some(waker) = self.waker.clone() else { return Ok(()) };
        let attach = Attach { id: Some(endpoint), udp, shm, stream: false, waker };
        let handle = nexus.attach(&attach).map_err(|error| error.to_string())?;
        self.actors.insert(self.next_actor, Actor::new(id, handle));
        self.next_actor += 1;
        Ok(())
    }

    pub(super) fn detach(&mut self, id: ActorId) {
        let Some(actor) = self.actors.remove(&id) else { return };
        self.report.counts.add(actor.counts);
        self.note(format_args!("{} GONE", actor.name()));
        if let Some(process) = self.processes.get_mut(&actor.process) {
            process.counts.add(actor.counts);
            process.has_lost_endpoints = true;
        }
    }

    /// Kills a process; its kernel may notify the peers.
    pub(super) fn kill(&mut self, id: ProcessId, notifies_peers: bool) {
        let now_ns = self.now_ns();
        let Some(process) = self.processes.get_mut(&id) else { return };
        let Some(nexus) = process.nexus.take() else { return };
        process.ended_ns = Some(now_ns);
        let index = process.index;
        self.current[index] = None;
        self.report.crashes += 1;
        let stats = nexus.stats();
        self.add_stats(&stats);
        self.note(format_args!("p{id} KILLED, {notifies_peers}"));
        // The process is forgotten first, because later drops must find no process.
        self.net.borrow_mut().forget_process(id, notifies_peers);
        let dead: Vec<_> =
            self.actors.iter().filter(|(_, a)| a.process == id).map(|(id, _)| *id).collect();
        dead.into_iter().for_each(|actor| self.detach(actor));
        drop(nexus);
    }

    pub(super) fn add_stats(&mut self, stats: &NexusStats) {
        let all = &mut self.report.stats;
        macro_rules! add {
            ($($name:ident)*) => { $(all.$name += stats.$name;)* };
        }
        add!(
            links_early links_refused sessions_unanswered stats_answered stats_refused
            connections_dialed dials_failed connections_redialed connections_accepted accept_errors
            connections_broken connections_idle goodbyes_received peers_restarted dropped_silent
            dropped_hello_timeout dropped_slow_message dropped_not_reading refused_strangers
            refused_malformed dropped_ungreeted_full dropped_idle_full dropped_connections_full
            shm_fallbacks rendezvous_dropped late_messages
        );
    }

    /// Adds a foreign peer's process on a host.
    pub(super) fn add_foreign_peer(&mut self, host: HostId, heartbeat_ms: u32) -> usize {
        let mut net = self.net.borrow_mut();
        let process = net.add_process(host, (4_096, 4_096));
        let address = (self.scenario.conditions.family.address(host), 666).into();
        let foreign_peer = ForeignPeer::new(&mut net, process, address, heartbeat_ms);
        drop(net);
        self.foreign_peers.push(foreign_peer);
        self.foreign_peers.len() - 1
    }

    pub(super) fn connect(&mut self, foreign_peer: usize, target: ProcessId, behaviour: Behaviour) {
        let Some(process) = self.processes.get(&target) else { return };
        let address = process.plan.address;
        self.report.foreign_connections += 1;
        self.note(format_args!("FOREIGN {foreign_peer} to p{target}: {behaviour:?}"));
        let net = Rc::clone(&self.net);
        self.foreign_peers[foreign_peer].connect(&mut net.borrow_mut(), address, behaviour);
    }

    pub(super) fn tick_foreign_peers(&mut self) {
        let mut net = self.net.borrow_mut();
        for foreign_peer in &mut self.foreign_peers {
            foreign_peer.act(&mut net, &mut self.rng, true);
        }
    }
}

/// Returns the UDP settings of an endpoint.
fn data_port(plan: &Plan, port: u16) -> Option<UdpAttach> {
    let proper = plan.address.ip();
    let (any, other): (IpAddr, IpAddr) = match proper {
        IpAddr::V4(_) => (Ipv4Addr::UNSPECIFIED.into(), [10, 77, 0, 1].into()),
        IpAddr::V6(_) => (Ipv6Addr::UNSPECIFIED.into(), Ipv6Addr::LOCALHOST.into()),
    };
    let (ip, port, mtu) = match plan.port {
        DataPort::Proper => (proper, port, Mtu::default()),
        DataPort::Any => (any, port, Mtu::default()),
        DataPort::Small => (proper, port, Mtu::Fixed(1_400)),
        DataPort::TooLarge => (proper, port, Mtu::Fixed(9_000)),
        DataPort::Elsewhere => (other, port, Mtu::default()),
        DataPort::Zero => (proper, 0, Mtu::default()),
        DataPort::None => return None,
    };
    let local = SocketAddr::new(ip, port);
    Some(UdpAttach {
        local,
        mtu,
        reads_marks: true,
        heeds_marks: true,
        further_ports: PathPorts::NONE,
        uses_paths: false,
    })
}
