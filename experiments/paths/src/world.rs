//! Senders, parallel links and one receiver, packet by packet in virtual time.

use std::cmp::{Ordering, Reverse};
use std::collections::BinaryHeap;

use petrel_proto::bitmap::{Insert, Window, Words};
use petrel_proto::path::{PathPolicy, Paths};

use crate::endless::{Arrivals, EndlessSender};
use crate::link::{Link, Marking};
use crate::random::Random;
use crate::sender::{Counts, Credit, Packet, Sender};
use crate::{PAYLOAD_BYTES, TICK_NS};

/// A change of a link.
#[derive(Clone, Copy, Debug)]
pub enum Change {
    /// The link drops everything from now on, in both directions.
    Cut(usize),
    /// The link works again.
    Return(usize),
}

/// A world to build.
#[derive(Clone, Debug)]
pub struct Setup {
    /// The parallel links between the two switches.
    pub links: Vec<Link>,
    /// Source ports of a sender: a port reaches a link by chance.
    pub ports: usize,
    /// Senders, on separate hosts.
    pub flows: usize,
    /// The rate of every sender's link, in Gbit/s.
    pub host_gbit: f64,
    /// The rate of the receiver's link, in Gbit/s.
    pub receiver_gbit: f64,
    /// The way back of a CREDIT, in nanoseconds: its links are empty.
    pub back_ns: u64,
    /// Whether senders and receiver track any number of packets, instead of those of a window. Then no packet may be lost.
    pub is_endless: bool,
    /// Marks of the queue before the receiver's link.
    pub marking: Marking,
    /// How senders choose paths.
    pub policy: PathPolicy,
    /// Packets in flight of a sender at most.
    pub packets_most: u32,
    /// Later packets of a path that show a loss.
    pub threshold: u16,
    /// Changes, with their times in nanoseconds.
    pub changes: Vec<(u64, Change)>,
    /// The source of all random choices.
    pub seed: u64,
}

#[derive(Clone, Copy)]
enum Event {
    AtLink(Packet),
    AtLastLink(Packet),
    AtReceiver(Packet),
    Credit(Credit),
    Tick(usize),
    Change(Change),
}

/// An event at its time; the number keeps events of one time in order.
struct Scheduled {
    at_ns: u64,
    number: u64,
    event: Event,
}

impl Scheduled {
    fn key(&self) -> (u64, u64) {
        (self.at_ns, self.number)
    }
}

impl PartialEq for Scheduled {
    fn eq(&self, other: &Self) -> bool {
        self.key() == other.key()
    }
}

impl Eq for Scheduled {}

impl PartialOrd for Scheduled {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for Scheduled {
    fn cmp(&self, other: &Self) -> Ordering {
        self.key().cmp(&other.key())
    }
}

/// The sender's end of a flow.
enum Sends {
    Window(Box<Sender>),
    Endless(Box<EndlessSender>),
}

impl Sends {
    fn handle_credit(&mut self, now_ns: u64, credit: &Credit) {
        match self {
            Self::Window(sender) => sender.handle_credit(now_ns, credit),
            Self::Endless(sender) => sender.handle_credit(now_ns, credit),
        }
    }

    fn handle_tick(&mut self, now_ns: u64) {
        if let Self::Window(sender) = self {
            sender.handle_tick(now_ns);
        }
    }

    fn poll_transmit(&mut self, now_ns: u64) -> Option<Packet> {
        match self {
            Self::Window(sender) => sender.poll_transmit(now_ns),
            Self::Endless(sender) => sender.poll_transmit(now_ns),
        }
    }

    fn counts(&self) -> Counts {
        match self {
            Self::Window(sender) => sender.counts(),
            Self::Endless(sender) => sender.counts(),
        }
    }
}

/// The receiver's end of a flow.
enum Received {
    Window(Window),
    Endless(Arrivals),
}

impl Received {
    fn cumulative(&self) -> u32 {
        match self {
            Self::Window(window) => window.cumulative(),
            Self::Endless(arrivals) => arrivals.cumulative(),
        }
    }

    fn words(&self) -> Words {
        match self {
            Self::Window(window) => *window.words(),
            Self::Endless(_) => Words::default(),
        }
    }

    fn is_new(&mut self, packet: u32) -> bool {
        match self {
            Self::Window(window) => window.insert(packet) == Insert::New,
            Self::Endless(arrivals) => arrivals.insert(packet),
        }
    }
}

struct Flow {
    sender: Sends,
    host: Link,
    /// The link that each source port reaches.
    route: Vec<usize>,
    received: Received,
    delivered: u64,
    needless: u64,
}

/// A running world.
pub struct World {
    now_ns: u64,
    events: BinaryHeap<Reverse<Scheduled>>,
    scheduled: u64,
    random: Random,
    links: Vec<Link>,
    last_link: Link,
    back_ns: u64,
    flows: Vec<Flow>,
    /// Packets delivered in each tenth of a millisecond.
    bins: Vec<u64>,
    /// Packets by their distance from the first missing packet of their flow.
    disorder: Vec<u64>,
}

/// Width of a bin of delivered packets, in nanoseconds.
const BIN_NS: u64 = 100_000;

impl World {
    /// Builds a world.
    pub fn new(setup: &Setup) -> Self {
        let mut random = Random::new(setup.seed);
        let marking = (setup.flows > 1).then_some(setup.marking);
        let flow = |flow| {
            let route = route(setup, &mut random);
            let paths = Paths::new(setup.policy, setup.ports, setup.packets_most, random.next());
            Flow {
                sender: match setup.is_endless {
                    true => Sends::Endless(Box::new(EndlessSender::new(flow, paths))),
                    false => Sends::Window(Box::new(Sender::new(flow, paths, setup.threshold))),
                },
                host: Link::of_host(setup.host_gbit),
                route,
                received: match setup.is_endless {
                    true => Received::Endless(Arrivals::default()),
                    false => Received::Window(Window::new()),
                },
                delivered: 0,
                needless: 0,
            }
        };
        let flows: Vec<Flow> = (0..setup.flows).map(flow).collect();
        let mut world = Self {
            now_ns: 0,
            events: BinaryHeap::new(),
            scheduled: 0,
            random,
            links: setup.links.clone(),
            last_link: Link::new(setup.receiver_gbit, marking),
            back_ns: setup.back_ns,
            flows,
            bins: Vec::new(),
            disorder: Vec::new(),
        };
        for flow in 0..setup.flows {
            let at_ns = world.random.next() % TICK_NS;
            world.schedule(at_ns, Event::Tick(flow));
        }
        for (at_ns, change) in &setup.changes {
            world.schedule(*at_ns, Event::Change(*change));
        }
        world
    }

    fn schedule(&mut self, at_ns: u64, event: Event) {
        self.scheduled += 1;
        self.events.push(Reverse(Scheduled { at_ns, number: self.scheduled, event }));
    }

    /// Runs until this time, in nanoseconds.
    pub fn run_until(&mut self, end_ns: u64) {
        while self.events.peek().is_some_and(|next| next.0.at_ns <= end_ns)
            && let Some(Reverse(next)) = self.events.pop()
        {
            self.now_ns = next.at_ns;
            self.handle(next.event);
        }
    }

    fn handle(&mut self, event: Event) {
        match event {
            Event::AtLink(packet) => {
                let link = self.flows[packet.flow].route[packet.path.index()];
                let passed = self.links[link].pass(self.now_ns, &mut self.random);
                self.forward(packet, passed, Event::AtLastLink);
            }
            Event::AtLastLink(packet) => {
                let passed = self.last_link.pass(self.now_ns, &mut self.random);
                self.forward(packet, passed, Event::AtReceiver);
            }
            Event::AtReceiver(packet) => self.receive(packet),
            Event::Credit(credit) => {
                let flow = credit.echo.flow;
                self.flows[flow].sender.handle_credit(self.now_ns, &credit);
                self.transmit(flow);
            }
            Event::Tick(flow) => {
                self.flows[flow].sender.handle_tick(self.now_ns);
                self.transmit(flow);
                self.schedule(self.now_ns + TICK_NS, Event::Tick(flow));
            }
            Event::Change(Change::Cut(link)) => self.links[link].is_up = false,
            Event::Change(Change::Return(link)) => self.links[link].is_up = true,
        }
    }

    fn forward(&mut self, packet: Packet, passed: Option<(u64, bool)>, event: fn(Packet) -> Event) {
        if let Some((at_ns, is_marked)) = passed {
            let is_marked = packet.is_marked || is_marked;
            self.schedule(at_ns, event(Packet { is_marked, ..packet }));
        }
    }

    /// Takes a packet, and answers with a CREDIT over the packet's path.
    fn receive(&mut self, packet: Packet) {
        let flow = &mut self.flows[packet.flow];
        let ahead = packet.number.saturating_sub(flow.received.cumulative()) as usize;
        self.disorder.resize(self.disorder.len().max(ahead + 1), 0);
        self.disorder[ahead] += 1;
        if flow.received.is_new(packet.number) {
            flow.delivered += 1;
            let bin = (self.now_ns / BIN_NS) as usize;
            self.bins.resize(self.bins.len().max(bin + 1), 0);
            self.bins[bin] += 1;
        } else {
            flow.needless += 1;
        }
        let (cumulative, words) = (flow.received.cumulative(), flow.received.words());
        let link = &self.links[flow.route[packet.path.index()]];
        if link.is_up && !self.random.happens(link.loss) {
            let credit = Credit { cumulative, words, echo: packet };
            self.schedule(self.now_ns + self.back_ns, Event::Credit(credit));
        }
    }

    fn transmit(&mut self, flow: usize) {
        while let Some(packet) = self.flows[flow].sender.poll_transmit(self.now_ns) {
            let passed = self.flows[flow].host.pass(self.now_ns, &mut self.random);
            self.forward(packet, passed, Event::AtLink);
        }
    }

    /// Returns the goodput of all flows between two times, in Gbit/s. Both are multiples of 100 µs.
    pub fn goodput_gbit(&self, from_ns: u64, to_ns: u64) -> f64 {
        let bins = (from_ns / BIN_NS) as usize..(to_ns / BIN_NS) as usize;
        let packets: u64 = bins.filter_map(|bin| self.bins.get(bin)).sum();
        (packets * PAYLOAD_BYTES * 8) as f64 / (to_ns - from_ns) as f64
    }

    /// Returns the packets delivered by each flow.
    pub fn delivered(&self) -> Vec<u64> {
        self.flows.iter().map(|flow| flow.delivered).collect()
    }

    /// Returns the packets that came more than once.
    pub fn needless(&self) -> u64 {
        self.flows.iter().map(|flow| flow.needless).sum()
    }

    /// Returns the sum of all senders' counts.
    pub fn counts(&self) -> Counts {
        let counts = self.flows.iter().map(|flow| flow.sender.counts());
        counts.fold(Counts::default(), |sum, flow| Counts {
            sent: sum.sent + flow.sent,
            repeated: sum.repeated + flow.repeated,
            probes: sum.probes + flow.probes,
        })
    }

    /// Forgets the figures of links and of disorder so far.
    pub fn begin_span(&mut self) {
        self.links.iter_mut().for_each(Link::begin_span);
        self.disorder.clear();
    }

    /// Returns the parallel links.
    pub fn links(&self) -> &[Link] {
        &self.links
    }

    /// Returns the distance from the first missing packet of its flow that a packet in this many exceeds when it arrives.
    pub fn disorder_packets(&self, one_in: u64) -> usize {
        let all: u64 = self.disorder.iter().sum();
        let mut above = 0;
        let exceeds = self.disorder.iter().rposition(|packets| {
            above += packets;
            above > all / one_in
        });
        exceeds.unwrap_or(0)
    }

    /// Returns the mean queue before the receiver's link, in packets.
    pub fn receiver_queue_packets(&self) -> f64 {
        self.last_link.mean_queue_packets()
    }
}

/// Draws the link of each port, as a hash would; again until the ports reach every link, if there are enough.
fn route(setup: &Setup, random: &mut Random) -> Vec<usize> {
    let links = setup.links.len();
    loop {
        let route: Vec<usize> = (0..setup.ports).map(|_| random.below(links)).collect();
        if setup.ports < links || (0..links).all(|link| route.contains(&link)) {
            return route;
        }
    }
}
