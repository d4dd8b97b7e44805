//! The network: hosts, links and switches in virtual time.
//!
//! A packet goes from the transmit queue of a NIC over links and through switches to the receive queue of a port. A
//! link direction sends packets in sequence at the link's rate. Then its faults apply to the packet, and the packet
//! travels for the link's delay. A switch stores and forwards, or cuts through. It chooses among equal paths by a hash
//! of the addresses and ports, may mark packets when its queue is long, and drops packets that find no buffer.
//!
//! Packets come from endpoints, or from synthetic [sources](SourceConfig) that need no endpoint. `docs/simulator.md`
//! lists the omissions of the model, and compares it with closed forms and with another simulator.
//!
//! All events are in one queue with a total order, and every random decision comes from a stream that
//! follows from the seed. Therefore a seed makes one run, whatever else the process does. No container with
//! a random order is ever iterated.

mod act;
mod arrivals;
mod config;
mod cpu;
mod ecn;
mod fault;
mod handle;
mod histogram;
mod link;
mod link_state;
mod multicast;
mod nic;
mod packet;
mod path;
mod ports;
mod rings;
mod routes;
mod source;
mod stats;
mod switch;
mod topology;
mod trace_line;
mod wakers;
mod wiretap;

use std::cell::RefCell;
use std::rc::Rc;

pub use act::{Action, LinkSet};
pub use arrivals::Arrivals;
pub use arrivals::exponential;
pub use config::{
    BufferPolicy, CUT_THROUGH_BYTES, CpuConfig, EcnConfig, FabricConfig, Forwarding, LinkConfig,
    NicConfig, SwitchConfig,
};
pub(crate) use cpu::Stopped;
pub use cpu::{ActorId, TurnClock};
pub use ecn::Ecn;
pub use fault::FaultPlan;
pub use handle::{FabricError, FabricHandle};
pub use histogram::Histogram;
pub use packet::SimAddr;
pub use ports::BindError;
pub use source::{SOURCES_MAX, SourceConfig, SourceError, SourceId, SourceStats};
pub use stats::{DropReason, FabricStats, LinkStats, SwitchStats};
pub use topology::{
    HOSTS_MAX, HostId, LinkId, NodeId, SWITCHES_MAX, SwitchId, Topology, TopologyError,
};
pub use wiretap::{Attack, Observation, Recorded};

pub(crate) use packet::{Frames, PacketRef};
pub(crate) use ports::{Binding, SOURCE_PORT_FIRST};

use act::Partition;
use cpu::{BeforeStop, Core};
use link::Link;
use multicast::Multicast;
use nic::Host;
use packet::Packets;
use routes::Routes;
use source::Source;
use switch::Switch;
use trace_line::Place;
use wiretap::{Watcher, Wiretap};

use crate::queue::EventQueue;
use crate::ring::{RingState, WaitingEnds};
use crate::rng::Rng;
use crate::time::Time;
use crate::trace::Trace;

/// Domains of random streams; see [`Rng::stream`].
const STREAM_LINK: u32 = 1;
const STREAM_CORE: u32 = 2;
const STREAM_USER: u32 = 3;
const STREAM_WIRETAP: u32 = 4;
const STREAM_RED: u32 = 5;
const STREAM_ECMP: u32 = 6;
const STREAM_SOURCE: u32 = 7;

/// The state of the whole network.
#[derive(Debug)]
pub(crate) struct Fabric {
    pub(crate) now: Time,
    pub(crate) packets: Packets,
    config: FabricConfig,
    seed: u64,
    queue: EventQueue<Event>,
    hosts: Vec<Host>,
    switches: Vec<Switch>,
    links: Vec<Link>,
    routes: Routes,
    /// Nodes and links, to find routes anew.
    topology: Topology,
    cores: Vec<Core>,
    sources: Vec<Source>,
    /// Delays of sources count only packets that were sent after this time.
    measured_since: Time,
    partitions: Vec<Partition>,
    pub(crate) stats: FabricStats,
    digest: u64,
    trace: Trace,
    wiretap: Option<Wiretap>,
    watcher: Option<Watcher>,
    /// Frames that the current actor has sent and received in this turn.
    frames_in_turn: u64,
    /// Set while the current actor is in the part of its turn before a stop.
    before_stop: Option<BeforeStop>,
    /// The duration of a stop of this turn, once resumed.
    stopped_ns: u64,
    /// The actor's latest reading of the clock, if it has neither taken nor flushed a frame since.
    read: Option<Time>,
    /// Stops that have not been fetched yet.
    stopped: Vec<Stopped>,
    /// Rings that wait for their second side, and the faults of wake-ups.
    pub(crate) rings: WaitingEnds,
    pub(crate) multicast: Multicast,
}

#[derive(Debug)]
enum Event {
    /// The sender's device has read a packet.
    Read(PacketRef),
    /// A link has sent the last bit of its first packet.
    Sent(LinkId),
    /// A packet has reached the end of a link.
    Arrive(LinkId, PacketRef),
    /// A packet without a link has arrived: from a host to itself, or injected.
    Direct(PacketRef),
    /// An actor runs.
    Poll { actor: ActorId, token: u32 },
    /// An actor's deadline may have passed.
    Timer { actor: ActorId, token: u32 },
    /// A source sends.
    Emit(SourceId),
    /// A scheduled action.
    Act(Box<Action>),
    /// The routes follow the state of links.
    Reconverge(LinkSet),
    /// A partition ends.
    Heal(u32),
    /// A crashed host comes back.
    Restart(HostId),
    /// Wake-ups arrive for the consumer of a ring, as many as the number says.
    Ring(Rc<RefCell<RingState>>, u64),
}

/// Why [`Fabric::advance`] stopped.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Step {
    /// This actor runs now; [`Fabric::finish_poll`] ends its turn.
    Poll(ActorId),
    /// This host has lost its actors.
    Crashed(HostId),
    /// This host is back, without actors.
    Restarted(HostId),
    /// No event is scheduled.
    Idle,
    /// The limit is reached.
    Limit,
}

impl Fabric {
    fn new(topology: &Topology, config: FabricConfig, seed: u64) -> Result<Self, TopologyError> {
        let routes = topology.routes()?;
        Ok(Self {
            now: Time::ZERO,
            packets: Packets::default(),
            config,
            seed,
            queue: EventQueue::new(),
            hosts: topology.hosts.iter().map(|&nic| Host::new(nic)).collect(),
            switches: switches_of(topology, seed),
            links: links_of(topology, seed),
            routes,
            topology: topology.clone(),
            cores: Vec::new(),
            sources: Vec::new(),
            measured_since: Time::ZERO,
            partitions: Vec::new(),
            stats: FabricStats::default(),
            digest: seed,
            trace: Trace::off(),
            wiretap: None,
            watcher: None,
            frames_in_turn: 0,
            before_stop: None,
            stopped_ns: 0,
            read: None,
            stopped: Vec::new(),
            rings: WaitingEnds::default(),
            multicast: Multicast::default(),
        })
    }

    /// Handles events, in order, until the caller has to act.
    pub(crate) fn advance(&mut self, limit: Time) -> Step {
        loop {
            let Some((at, event)) = self.queue.pop_until(limit) else {
                return self.rest(limit);
            };
            debug_assert!(at >= self.now, "time runs backwards");
            self.now = at;
            if let Some(step) = self.handle(event) {
                return step;
            }
        }
    }

    fn rest(&mut self, limit: Time) -> Step {
        if self.queue.len() == 0 {
            return Step::Idle;
        }
        self.now = self.now.max(limit);
        Step::Limit
    }

    fn handle(&mut self, event: Event) -> Option<Step> {
        match event {
            Event::Read(packet) => self.handle_read(packet),
            Event::Sent(link) => self.handle_sent(link),
            Event::Arrive(link, packet) => self.handle_arrival(link, packet),
            Event::Direct(packet) => self.handle_direct(packet),
            Event::Poll { actor, token } => return self.handle_poll(actor, token),
            Event::Timer { actor, token } => self.handle_timer(actor, token),
            Event::Emit(source) => self.handle_emit(source),
            Event::Act(action) => return self.act(*action),
            Event::Reconverge(links) => self.reconverge(links),
            Event::Heal(partition) => self.heal(partition),
            Event::Restart(host) => return self.restart(host),
            Event::Ring(ring_state, count) => self.handle_ring(&ring_state, count),
        }
        None
    }
}

fn switches_of(topology: &Topology, seed: u64) -> Vec<Switch> {
    let numbered = topology.switches.iter().zip(0u32..);
    let switch =
        |(&config, index)| Switch::new(config, Rng::stream(seed, STREAM_ECMP, index).next_u64());
    numbered.map(switch).collect()
}

/// Makes the links of a topology, with random streams for each.
fn links_of(topology: &Topology, seed: u64) -> Vec<Link> {
    let numbered = topology.links.iter().zip(0u32..);
    let link = |(&direction, index): (&topology::Direction, u32)| {
        let stream = |domain| Rng::stream(seed, domain, index);
        let mut link = Link::new(direction, stream(STREAM_LINK), stream(STREAM_RED));
        link.ecn = topology.ecn_of(&direction);
        if let NodeId::Switch(switch) = direction.to {
            let switch = topology.switches[usize::from(switch.0)];
            link.cuts_through = switch.forwarding == Forwarding::CutThrough;
            link.node_latency_ns = switch.latency_ns;
        }
        link
    };
    numbered.map(link).collect()
}

/// The programs in `docs/simulator.md` compile and run.
#[cfg(doctest)]
#[doc = include_str!("../../../../docs/simulator.md")]
struct SimulatorDocument;
