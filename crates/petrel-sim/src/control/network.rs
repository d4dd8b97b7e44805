//! The nexuses of all processes, and the times at which their threads run.

use std::collections::BTreeSet;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use petrel::endpoint::{AllowedTransports, EndpointId};
use petrel::nexus::stepped::{NexusHandle, SteppedNexus};
use petrel::nexus::{Attach, Nexus, NexusBuilder, NexusStats, ShmAttach, UdpAttach};
use petrel_proto::control::PathPorts;
use petrel_transport::seal::OVERHEAD_BYTES;
use petrel_transport::shm::ShmConfig;
use petrel_transport::udp::Mtu;
use petrel_transport::wake::Waker;

use super::stand_in::StandIn;
use super::{Agreement, ControlConfig, ControlNetwork, ControlStats, CrashKind};
use crate::fabric::{FabricHandle, HostId, SimAddr};
use crate::net::{Conditions, Family, Net, NetRef, ProcessId, SimNetwork};
use crate::queue::EventQueue;
use crate::ring::DataLink;
use crate::rng::{Probability, Rng};
use crate::time::Time;

/// The cost of a turn of a nexus.
const TURN_NS: u64 = 3_000;

/// Turns of a nexus between two checks of its tables.
const TURNS_PER_CHECK: u64 = 64;

/// Bytes between the ends of a control connection.
const WINDOW_BYTES: usize = 64 << 10;

/// The largest IP packet: datagrams of any length have a path.
const MTU_BYTES: usize = 65_535;

/// IP and UDP header of a datagram.
const HEADER_BYTES: usize = 20 + 8;

/// The limits of descriptors, assumed and real: no process of a fabric lacks any.
const DESCRIPTORS: (u64, u64) = (1 << 20, 1 << 20);

/// How often a step towards a link through memory fails: about an eighth of these links use packets.
const SCARCE_MEMORY: Probability = Probability::percent(3);

type SimNexus = SteppedNexus<SimNetwork<DataLink>>;

/// Sees the sessions that open.
type Watcher = Box<dyn FnMut(Agreement)>;

pub(super) struct Network {
    fabric: FabricHandle,
    config: ControlConfig,
    rng: Rng,
    net: NetRef,
    /// By host.
    processes: Vec<Option<Process>>,
    queue: EventQueue<Event>,
    /// Counters of ended processes.
    ended: ControlStats,
    pub(super) links_sealed: u64,
    pub(super) watcher: Option<Watcher>,
    pub(super) fault: Option<String>,
    /// Whether neighbours share memory; see [`ControlNetwork::share_memory`].
    has_memory: bool,
    pub(super) sealing: Option<Sealing>,
    /// Hosts whose processes have no credentials.
    plain: BTreeSet<HostId>,
}

/// The keys of sealed links.
#[derive(Clone, Copy, Debug)]
pub(super) struct Sealing {
    pub(super) seed: u64,
    /// The length of epochs as a power of two.
    pub(super) epoch_bits: u32,
}

struct Process {
    id: ProcessId,
    nexus: SimNexus,
    endpoints: Vec<Local>,
    /// The number of the current wait of the thread.
    wait: u64,
    /// Whether a token is ready, and the wait is about to end.
    is_waking: bool,
    turns: u64,
}

/// An endpoint of a process.
struct Local {
    data: SimAddr,
    /// Whether the nexus has woken the endpoint since the last look.
    is_woken: Arc<AtomicBool>,
}

#[derive(Debug)]
enum Event {
    /// The wait of a process's thread ends, if its number still matches.
    Wake(ProcessId, u64),
}

/// An endpoint's port to its nexus.
#[derive(Debug)]
pub(super) struct Port {
    pub(super) handle: NexusHandle<SimNetwork<DataLink>>,
    pub(super) incarnation: u64,
    is_woken: Arc<AtomicBool>,
}

impl std::fmt::Debug for Network {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Network").field("config", &self.config).finish_non_exhaustive()
    }
}

impl Network {
    pub(super) fn new(fabric: FabricHandle, config: ControlConfig, mut rng: Rng) -> Self {
        let conditions = Conditions {
            delay_ns: config.delay_ns,
            window_bytes: WINDOW_BYTES,
            choppy: Probability::NEVER,
            harsh_resets: Probability::NEVER,
            scarce: Probability::NEVER,
            scarce_shm: Probability::NEVER,
            family: Family::Fabric,
            machine_hosts: 1,
            mtu: MTU_BYTES,
        };
        let net = Net::new(Rng::new(rng.next_u64()), conditions, fabric.host_count());
        net.borrow_mut().follow_partitions(&fabric, config.retry_ns);
        Self {
            processes: (0..fabric.host_count()).map(|_| None).collect(),
            fabric,
            config,
            rng,
            net,
            queue: EventQueue::new(),
            ended: ControlStats::default(),
            links_sealed: 0,
            watcher: None,
            fault: None,
            has_memory: false,
            sealing: None,
            plain: BTreeSet::new(),
        }
    }

    pub(super) fn next_ns(&self) -> u64 {
        let queued_ns = match self.queue.next_at() {
            Time::NEVER => u64::MAX,
            at => at.ns(),
        };
        queued_ns.min(self.net.borrow().next_ns())
    }

    fn now_ns(&self) -> u64 {
        self.fabric.now_ns()
    }

    pub(super) fn share_memory(&mut self) {
        self.has_memory = true;
        let conditions = &mut self.net.borrow_mut().conditions;
        (conditions.machine_hosts, conditions.scarce_shm) = (2, SCARCE_MEMORY);
    }

    pub(super) fn seal(&mut self, sealing: Sealing) {
        self.sealing = Some(sealing);
    }

    pub(super) fn leave_plain(&mut self, host: HostId) {
        self.plain.insert(host);
    }

    fn is_sealed(&self, host: HostId) -> bool {
        self.sealing.is_some() && !self.plain.contains(&host)
    }

    /// Handles all due events.
    pub(super) fn run(&mut self) {
        let now_ns = self.now_ns();
        self.net.borrow_mut().advance(now_ns);
        self.handle_signals();
        while let Some((_, Event::Wake(id, wait))) = self.queue.pop_until(Time::from_ns(now_ns)) {
            self.wake(id, wait);
            self.handle_signals();
        }
    }

    /// Ends the waits of threads with ready tokens after a while.
    pub(super) fn handle_signals(&mut self) {
        let signals = self.net.borrow_mut().take_signals();
        for id in signals {
            let after_ns = self.rng.between(1, self.config.hop_ns_max);
            let Some(process) = self.process(id).filter(|process| !process.is_waking) else {
                continue;
            };
            process.is_waking = true;
            process.wait += 1;
            let wake = Event::Wake(id, process.wait);
            self.queue.push(Time::from_ns(self.now_ns() + after_ns), wake);
        }
    }

    fn process(&mut self, id: ProcessId) -> Option<&mut Process> {
        let host = self.net.borrow().processes[id].host;
        self.processes[host].as_mut().filter(|process| process.id == id)
    }

    /// Ends the wait of a thread, and runs a turn of its nexus; on a paused host at the end of the pause.
    fn wake(&mut self, id: ProcessId, wait: u64) {
        let now_ns = self.now_ns();
        let host = self.net.borrow().processes[id].host;
        let paused_until_ns = self.fabric.paused_until_ns(HostId(host as u16));
        if paused_until_ns > now_ns {
            return self.queue.push(Time::from_ns(paused_until_ns), Event::Wake(id, wait));
        }
        let Some(process) = self.processes[host].as_mut() else { return };
        if process.id != id || process.wait != wait {
            return;
        }
        self.net.borrow_mut().end_wait(id);
        let goes_on = process.nexus.turn().expect("the simulated network can always wait");
        assert!(goes_on, "the nexus of a process runs until the process ends");
        process.turns += 1;
        process.wait += 1;
        let has_ready = self.net.borrow().has_ready(id);
        let timeout = process.nexus.poll_timeout().map(|timeout| timeout.as_nanos() as u64);
        let sleep_ns = if has_ready { Some(0) } else { timeout };
        process.is_waking = sleep_ns == Some(0);
        if let Some(sleep_ns) = sleep_ns {
            let at = Time::from_ns(now_ns + sleep_ns + TURN_NS);
            self.queue.push(at, Event::Wake(id, process.wait));
        }
        for local in &process.endpoints {
            if local.is_woken.swap(false, Ordering::Relaxed) {
                self.fabric.borrow_mut().wake_owner(local.data);
            }
        }
        if process.turns.is_multiple_of(TURNS_PER_CHECK) {
            self.check(host);
        }
    }

    /// Checks the tables of a process, and that no peer has broken the protocol.
    fn check(&mut self, host: usize) {
        let Some(process) = &self.processes[host] else { return };
        let stats = process.nexus.stats();
        let broken = [
            ("unsendable_messages", stats.unsendable_messages),
            ("refused_strangers", stats.refused_strangers),
            ("refused_malformed", stats.refused_malformed),
            ("refused_version", stats.refused_version),
            ("refused_untrusted", stats.refused_untrusted),
        ];
        let broken = broken.into_iter().find(|(_, count)| *count > 0);
        let fault = match (process.nexus.check_tables(), broken) {
            (Err(fault), _) => fault,
            (Ok(()), Some((name, count))) => format!("it counts {count} {name}"),
            (Ok(()), None) => return,
        };
        self.fault.get_or_insert_with(|| format!("the nexus of {}: {fault}", HostId(host as u16)));
    }

    pub(super) fn start_process(&mut self, host: HostId) {
        let place = usize::from(host.0);
        assert!(self.processes[place].is_none(), "{host} runs a process");
        let mut net = self.net.borrow_mut();
        net.advance(self.fabric.now_ns());
        net.set_power(place, true);
        let id = net.add_process(place, DESCRIPTORS);
        drop(net);
        let network = SimNetwork::new(&self.net, id, usize::MAX);
        let waker = network.waker();
        let settings = self.settings(host);
        let nexus = SteppedNexus::start(&settings, network, waker);
        let nexus = nexus.expect("the settings of a world are sound");
        let process =
            Process { id, nexus, endpoints: Vec::new(), wait: 0, is_waking: true, turns: 0 };
        self.processes[place] = Some(process);
        self.queue.push(Time::from_ns(self.now_ns() + TURN_NS), Event::Wake(id, 0));
    }

    fn settings(&self, host: HostId) -> NexusBuilder {
        let transports = AllowedTransports { shm: self.has_memory, ..AllowedTransports::UDP };
        let settings = Nexus::builder()
            .listen(ControlNetwork::address_of(host))
            .transports(transports)
            .heartbeat(Duration::from_nanos(self.config.heartbeat_ns))
            .connect_timeout(Duration::from_nanos(self.config.step_timeout_ns));
        match self.is_sealed(host) {
            true => settings.credentials(Arc::new(StandIn)),
            false => settings.insecure(),
        }
    }

    pub(super) fn stop_process(&mut self, host: HostId, kind: CrashKind) {
        let place = usize::from(host.0);
        let mut net = self.net.borrow_mut();
        net.advance(self.fabric.now_ns());
        if kind == CrashKind::PowerLoss {
            net.set_power(place, false);
        }
        let Some(process) = &self.processes[place] else { return };
        net.forget_process(process.id, true);
        drop(net);
        self.check(place);
        // The process is forgotten first: the kernel has closed the sockets that the nexus drops.
        if let Some(process) = self.processes[place].take() {
            self.ended.add(&process.nexus.stats());
        }
    }

    pub(super) fn attach(
        &mut self,
        data: SimAddr,
        id: EndpointId,
        max_frame: u32,
        (further_ports, uses_paths): (PathPorts, bool),
    ) -> Port {
        let place = usize::from(data.host.0);
        let overhead = if self.is_sealed(data.host) { OVERHEAD_BYTES } else { 0 };
        let udp = UdpAttach {
            local: SocketAddr::new(ControlNetwork::address_of(data.host).ip(), data.port),
            mtu: Mtu::Fixed(max_frame as usize + HEADER_BYTES + overhead),
            // Simulated transports get their ECN setting at construction.
            reads_marks: false,
            heeds_marks: false,
            further_ports,
            uses_paths,
        };
        let shm = self.has_memory.then(|| ShmAttach { config: draw_rings(&mut self.rng) });
        let is_woken = Arc::new(AtomicBool::new(false));
        let bell = Arc::clone(&is_woken);
        let waker = Waker::with_bell(move || bell.store(true, Ordering::Relaxed));
        let waker = waker.expect("an endpoint needs a descriptor");
        let process = self.processes[place].as_mut();
        let process = process.expect("an endpoint needs a process that runs");
        let attach = Attach { id: Some(id), udp: Some(udp), shm, stream: false, waker };
        let handle = process.nexus.attach(&attach).expect("the number of an endpoint is free");
        process.endpoints.push(Local { data, is_woken: Arc::clone(&is_woken) });
        Port { handle, incarnation: process.nexus.incarnation(), is_woken }
    }

    /// Forgets an endpoint that has gone.
    pub(super) fn detach(&mut self, data: SimAddr, port: &Port) {
        if let Some(process) = &mut self.processes[usize::from(data.host.0)] {
            process.endpoints.retain(|local| !Arc::ptr_eq(&local.is_woken, &port.is_woken));
        }
    }

    pub(super) fn stats(&self) -> ControlStats {
        let mut all = self.ended;
        self.processes.iter().flatten().for_each(|process| all.add(&process.nexus.stats()));
        ControlStats { links_sealed: self.links_sealed, ..all }
    }
}

impl ControlStats {
    fn add(&mut self, stats: &NexusStats) {
        self.links_up += stats.links_opened;
        self.links_lost += stats.links_opened - stats.links_up;
        self.links_failed += stats.links_failed;
        self.silences += stats.dropped_silent;
        self.resets += stats.connections_broken;
        self.sessions_unanswered += stats.sessions_unanswered;
    }
}

/// Draws the sizes of an endpoint's rings, which are small, to be full occasionally.
fn draw_rings(rng: &mut Rng) -> ShmConfig {
    let ring_bytes = 4_096 << rng.below(3);
    let most = (ring_bytes / 2 - 8) as u64;
    // Room for the records of ordered calls (§14.6).
    let max_frame_bytes =
        if rng.below(2) == 0 { 1_472 } else { rng.between(1_232, most).max(1_242) } as usize;
    ShmConfig { ring_bytes, max_frame_bytes, ..ShmConfig::default() }
}
