//! Scheduling of actors on hosts that sleep, pause, crash and restart.

use std::cell::RefCell;
use std::rc::Rc;

use crate::common::*;
use petrel_sim::fabric::{
    Action, CpuConfig, DropReason, FabricConfig, FabricHandle, FaultPlan, HostId, LinkConfig,
    NicConfig, SimAddr, SwitchConfig, Topology,
};
use petrel_sim::{Actor, Probability, SimTransport, Simulation, Stop, Trace};
use petrel_transport::{PeerId, Transport};

const POLL_NS: u64 = 100;
const LENGTH: usize = 958;
/// 958 bytes and their overhead at 8 Gbit/s.
const WIRE_NS: u64 = 1_000;
const DELAY_NS: u64 = 500;

fn pair(nic: NicConfig) -> FabricHandle {
    pair_with(nic, LinkConfig::gbit(8, DELAY_NS), 1)
}

/// An actor from a closure.
struct Script<F>(F);

impl<F: FnMut(u64) -> Option<u64>> Actor for Script<F> {
    fn poll(&mut self, now_ns: u64) -> Option<u64> {
        (self.0)(now_ns)
    }
}

/// Sends every received frame back.
struct Echo {
    transport: SimTransport,
    served: u32,
}

impl Echo {
    fn new(fabric: &FabricHandle, host: HostId) -> Self {
        Self { transport: bind(fabric, host), served: 0 }
    }

    fn poll(&mut self) -> Option<u64> {
        let mut replies = Vec::new();
        self.transport.rx_burst(64, |peer, bytes| replies.push((peer, bytes.to_vec())));
        for (peer, bytes) in &replies {
            let refused = self.transport.tx_burst(&[frame(HostId(peer.0 as u16), bytes)]);
            assert_eq!(refused, 0);
            self.served += 1;
        }
        None
    }
}

/// Makes sequential calls to an echo, and retries calls without an answer.
struct Caller {
    transport: SimTransport,
    to: HostId,
    left: u32,
    call: u32,
    call_at_ns: Option<u64>,
    round_trips_ns: Vec<u64>,
    timeouts: u32,
}

const TIMEOUT_NS: u64 = 50_000;

impl Caller {
    fn new(fabric: &FabricHandle, host: HostId, to: HostId, count: u32) -> Self {
        let transport = bind(fabric, host);
        let round_trips_ns = Vec::new();
        Self { transport, to, left: count, call: 0, call_at_ns: None, round_trips_ns, timeouts: 0 }
    }

    fn poll(&mut self, now_ns: u64) -> Option<u64> {
        assert_eq!(now_ns, self.transport.now());
        let answers = receive_numbers(&mut self.transport);
        if let (Some(at_ns), true) = (self.call_at_ns, answers.contains(&self.call)) {
            self.round_trips_ns.push(now_ns - at_ns);
            self.call_at_ns = None;
            self.call += 1;
            self.left -= 1;
        }
        let is_late = self.call_at_ns.is_some_and(|at_ns| now_ns >= at_ns + TIMEOUT_NS);
        self.timeouts += u32::from(is_late);
        if self.left > 0 && (is_late || self.call_at_ns.is_none()) {
            send(&mut self.transport, self.to, self.call, 1, LENGTH);
            self.call_at_ns = Some(now_ns);
        }
        self.call_at_ns.map(|at_ns| at_ns + TIMEOUT_NS)
    }
}

enum Node {
    Echo(Echo),
    Caller(Caller),
}

impl Actor for Node {
    fn poll(&mut self, now_ns: u64) -> Option<u64> {
        match self {
            Self::Echo(echo) => echo.poll(),
            Self::Caller(caller) => caller.poll(now_ns),
        }
    }

    fn outstanding(&self) -> usize {
        match self {
            Self::Echo(_) => 0,
            Self::Caller(caller) => caller.left as usize,
        }
    }
}

fn spawn_echo(simulation: &mut Simulation<Node>, host: HostId) {
    let echo = Echo::new(simulation.fabric(), host);
    simulation.spawn(addr(host), Node::Echo(echo));
}

fn spawn_caller(simulation: &mut Simulation<Node>, host: HostId, to: HostId, count: u32) {
    let caller = Caller::new(simulation.fabric(), host, to, count);
    simulation.spawn(addr(host), Node::Caller(caller));
}

fn callers(simulation: &Simulation<Node>) -> Vec<&Caller> {
    let nodes = simulation.actors().map(|(_, node)| node);
    nodes.filter_map(|node| if let Node::Caller(c) = node { Some(c) } else { None }).collect()
}

#[test]
fn round_trip__takes_its_parts() {
    let mut simulation = Simulation::new(pair(NicConfig::default()));
    spawn_echo(&mut simulation, H1);
    spawn_caller(&mut simulation, H0, H1, 10);
    assert!(matches!(simulation.run_until(1_000_000), Stop::Idle));
    let expected = 2 * (WIRE_NS + DELAY_NS + POLL_NS);
    assert_eq!(callers(&simulation)[0].round_trips_ns, [expected; 10]);
}

#[test]
fn seed__decides_a_whole_simulation() {
    let run = |seed| {
        let topology =
            Topology::star(4, NicConfig::default(), SwitchConfig::default(), LinkConfig::default());
        let fabric = FabricHandle::new(&topology, FabricConfig::default(), seed).unwrap();
        fabric.set_trace(Trace::last(100_000));
        let plan = FaultPlan { loss: Probability::percent(5), ..FaultPlan::NONE };
        fabric.set_faults(plan);
        let mut simulation = Simulation::new(fabric);
        spawn_echo(&mut simulation, H0);
        (1..4).for_each(|host| spawn_caller(&mut simulation, HostId(host), H0, 100));
        assert!(matches!(simulation.run_until(u64::MAX), Stop::Idle));
        assert!(callers(&simulation).iter().all(|caller| caller.left == 0));
        assert!(callers(&simulation).iter().any(|caller| caller.timeouts > 0));
        let fabric = simulation.fabric();
        assert!(fabric.stats().is_balanced());
        (fabric.trace_lines(), fabric.digest(), fabric.now())
    };
    assert_eq!(run(1), run(1));
    assert_ne!(run(1), run(2));
}

#[test]
fn deadline__wakes_at_its_time_and_may_move() {
    let times = Rc::new(RefCell::new(Vec::new()));
    let seen = times.clone();
    let mut simulation = Simulation::new(pair(NicConfig::default()));
    let actor = simulation.spawn(
        addr(H0),
        Script(move |now_ns| {
            seen.borrow_mut().push(now_ns);
            match seen.borrow().len() {
                1 => Some(10_000),
                2 => Some(50_000),
                3 => Some(20_000),
                _ => None,
            }
        }),
    );
    assert!(matches!(simulation.run_until(12_000), Stop::Limit));
    simulation.wake(actor);
    assert!(matches!(simulation.run_until(1_000_000), Stop::Idle));
    // A turn begins when its cost is paid. A deadline of 20 µs replaced the deadline of 50 µs.
    assert_eq!(*times.borrow(), [100, 10_100, 12_100, 20_100]);
}

#[test]
fn wait__is_a_deadline_too() {
    let fabric = pair(NicConfig::default());
    let mut transport = bind(&fabric, H0);
    let times = Rc::new(RefCell::new(Vec::new()));
    let seen = times.clone();
    let mut simulation = Simulation::new(fabric);
    simulation.spawn(
        addr(H0),
        Script(move |now_ns| {
            seen.borrow_mut().push(now_ns);
            transport.wait(if now_ns < 5_000 { Some(2_000) } else { None });
            None
        }),
    );
    assert!(matches!(simulation.run_until(1_000_000), Stop::Idle));
    assert_eq!(*times.borrow(), [100, 2_200, 4_300, 6_400]);
}

#[test]
fn waker__wakes_from_outside() {
    let fabric = pair(NicConfig::default());
    let transport = bind(&fabric, H0);
    let waker = transport.waker();
    let turns = Rc::new(RefCell::new(0));
    let counted = turns.clone();
    let mut simulation = Simulation::new(fabric);
    simulation.spawn(
        addr(H0),
        Script(move |_| {
            assert!(transport.stats().rx_frames == 0);
            *counted.borrow_mut() += 1;
            None
        }),
    );
    assert!(matches!(simulation.run_until(1_000), Stop::Idle));
    assert_eq!(*turns.borrow(), 1);
    waker.wake();
    assert!(matches!(simulation.run_until(2_000), Stop::Idle));
    assert_eq!(*turns.borrow(), 2);
}

#[test]
fn waker__lets_one_actor_wake_another() {
    let fabric = pair(NicConfig::default());
    let transport = bind(&fabric, H0);
    let waker = transport.waker();
    let turns = Rc::new(RefCell::new(0));
    let counted = turns.clone();
    let mut simulation: Simulation<Box<dyn Actor>> = Simulation::new(fabric);
    simulation.spawn(
        addr(H0),
        Box::new(Script(move |_| {
            *counted.borrow_mut() += 1;
            None
        })),
    );
    simulation.spawn(
        addr(H1),
        Box::new(Script(move |now_ns| {
            if (10_000..11_000).contains(&now_ns) {
                waker.wake();
            }
            (now_ns < 10_000).then_some(10_000)
        })),
    );
    assert!(matches!(simulation.run_until(1_000_000), Stop::Idle));
    assert_eq!(*turns.borrow(), 2);
}

#[test]
fn tx_room__wakes_refused_actors() {
    let nic = NicConfig { tx_packets: 8, ..NicConfig::default() };
    let fabric = pair(nic);
    let (mut sender, mut receiver) = (bind(&fabric, H0), bind(&fabric, H1));
    let mut next = 0;
    let mut simulation = Simulation::new(fabric);
    simulation.spawn(
        addr(H0),
        Script(move |_| {
            next += send(&mut sender, H1, next, 100 - next, LENGTH);
            None
        }),
    );
    assert!(matches!(simulation.run_until(1_000_000), Stop::Idle));
    assert_eq!(receive_numbers(&mut receiver), (0..100).collect::<Vec<_>>());
    assert!(simulation.fabric().stats().tx_blocked > 10);
}

#[test]
fn cpu__frames_keep_the_core_busy() {
    let cpu = CpuConfig { poll_ns: 100, poll_jitter_ns: 0, frame_ns: 1_000 };
    let topology = Topology::pair(NicConfig::default(), LinkConfig::gbit(100, 0));
    let config = FabricConfig { cpu, ..FabricConfig::default() };
    let fabric = FabricHandle::new(&topology, config, 1).unwrap();
    let (mut sender, mut receiver) = (bind(&fabric, H0), bind(&fabric, H1));
    send(&mut sender, H1, 0, 20, LENGTH);
    let turns = Rc::new(RefCell::new(Vec::new()));
    let seen = turns.clone();
    let mut simulation = Simulation::new(fabric);
    simulation.spawn(
        addr(H1),
        Script(move |now_ns| {
            let count = receive(&mut receiver).len();
            seen.borrow_mut().push((now_ns, count));
            None
        }),
    );
    assert!(matches!(simulation.run_until(1_000_000), Stop::Idle));
    // A packet arrives every 80 ns. The first turn takes one packet, and needs a microsecond for it;
    // meanwhile twelve more arrive, and so on.
    let turns = turns.borrow();
    assert_eq!(turns.iter().map(|&(_, count)| count).sum::<usize>(), 20);
    for pair in turns.windows(2) {
        assert!(pair[1].0 >= pair[0].0 + pair[0].1 as u64 * 1_000 + 100, "{turns:?}");
    }
}

#[test]
fn busy_actor__cannot_stop_time() {
    let cpu = CpuConfig { poll_ns: 0, poll_jitter_ns: 0, frame_ns: 0 };
    let topology = Topology::pair(NicConfig::default(), LinkConfig::default());
    let config = FabricConfig { cpu, ..FabricConfig::default() };
    let fabric = FabricHandle::new(&topology, config, 1).unwrap();
    let mut simulation = Simulation::new(fabric);
    simulation.spawn(addr(H0), Script(Some));
    assert!(matches!(simulation.run_until(1_000), Stop::Limit));
}

#[test]
fn run_while__stops_when_the_condition_fails() {
    let mut simulation = Simulation::new(pair(NicConfig::default()));
    spawn_echo(&mut simulation, H1);
    spawn_caller(&mut simulation, H0, H1, 10);
    let goes_on = |node: &Node| !matches!(node, Node::Caller(caller) if caller.left == 4);
    assert!(matches!(simulation.run_while(u64::MAX, goes_on), Stop::Satisfied));
    assert_eq!(callers(&simulation)[0].left, 4);
    assert!(matches!(simulation.run_until(u64::MAX), Stop::Idle));
    assert_eq!(callers(&simulation)[0].left, 0);
}

/// Asks once, and never again.
struct Trusting {
    transport: SimTransport,
    waits: bool,
    begun: bool,
}

impl Actor for Trusting {
    fn poll(&mut self, _now_ns: u64) -> Option<u64> {
        if !std::mem::replace(&mut self.begun, true) {
            send(&mut self.transport, H1, 0, 1, LENGTH);
        }
        self.waits &= receive(&mut self.transport).is_empty();
        None
    }

    fn outstanding(&self) -> usize {
        usize::from(self.waits)
    }
}

#[test]
fn deadlock__is_reported_with_who_waits() {
    let fabric = pair(NicConfig::default());
    let transport = bind(&fabric, H0);
    let mut simulation = Simulation::new(fabric);
    let waiter = simulation.spawn(addr(H0), Trusting { transport, waits: true, begun: false });
    match simulation.run_until(1_000_000) {
        Stop::Deadlock { waiting } => assert_eq!(waiting, [(waiter, 1)]),
        other => panic!("{other:?}"),
    }
    assert_eq!(simulation.fabric().stats().dropped(DropReason::NoPort), 1);
}

impl std::fmt::Debug for Trusting {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Trusting")
    }
}

#[test]
fn pause__stops_the_actors_but_not_the_nic() {
    let nic = NicConfig { rx_packets: 5, ..NicConfig::default() };
    let fabric = pair(nic);
    fabric.apply(Action::Pause { host: H1, for_ns: 100_000 });
    let mut sender = bind(&fabric, H0);
    let mut simulation = Simulation::new(fabric.clone());
    spawn_echo(&mut simulation, H1);
    send(&mut sender, H1, 0, 8, LENGTH);
    assert!(matches!(simulation.run_until(90_000), Stop::Limit));
    assert_eq!((fabric.stats().delivered, fabric.stats().in_flight), (0, 5));
    assert_eq!(fabric.stats().dropped(DropReason::RxQueue), 3);
    assert!(matches!(simulation.run_until(1_000_000), Stop::Idle));
    assert_eq!(receive_numbers(&mut sender), [0, 1, 2, 3, 4]);
    assert_eq!(fabric.stats().pauses, 1);
}

#[test]
fn crash__hands_out_the_dead_and_lets_others_take_their_place() {
    let fabric = pair(NicConfig::default());
    let mut simulation = Simulation::new(fabric.clone());
    spawn_echo(&mut simulation, H1);
    spawn_caller(&mut simulation, H0, H1, 100);
    fabric.schedule(100_000, Action::Crash { host: H1, down_ns: 500_000 });
    // A host that is down cannot crash again.
    fabric.schedule(200_000, Action::Crash { host: H1, down_ns: 1 });

    let Stop::Crashed { host, mut dead } = simulation.run_until(u64::MAX) else { panic!() };
    assert_eq!((host, dead.len(), fabric.now_ns()), (H1, 1, 100_000));
    let Some((id, Node::Echo(echo))) = dead.pop() else { panic!() };
    let served_before = echo.served;
    assert!(served_before > 10 && simulation.actor(id).is_none());

    let Stop::Restarted { host } = simulation.run_until(u64::MAX) else { panic!() };
    assert_eq!((host, fabric.now_ns()), (H1, 600_000));
    spawn_echo(&mut simulation, H1);
    // Dropping the old transport late must not close the port of the new one.
    drop(echo);
    assert!(matches!(simulation.run_until(u64::MAX), Stop::Idle));
    assert_eq!(callers(&simulation)[0].left, 0);
    assert!(callers(&simulation)[0].timeouts > 5);
    assert!(fabric.stats().is_balanced());
    assert_eq!((fabric.stats().crashes, fabric.stats().in_flight), (1, 0));
}

#[test]
#[should_panic(expected = "an actor needs a host")]
fn spawn__refuses_a_host_that_is_down() {
    let fabric = pair(NicConfig::default());
    fabric.apply(Action::Crash { host: H1, down_ns: u64::MAX });
    fabric.advance(1);
    Simulation::new(fabric).spawn(addr(H1), Script(|_| None));
}

#[test]
fn remove__ends_an_actor() {
    let mut simulation = Simulation::new(pair(NicConfig::default()));
    spawn_echo(&mut simulation, H1);
    spawn_caller(&mut simulation, H0, H1, 1_000);
    assert!(matches!(simulation.run_until(50_000), Stop::Limit));
    let (echo, _) = simulation.actors().find(|(_, node)| matches!(node, Node::Echo(_))).unwrap();
    assert!(matches!(simulation.remove(echo), Some(Node::Echo(_))));
    assert!(simulation.remove(echo).is_none());
    let left = callers(&simulation)[0].left;
    assert!(matches!(simulation.run_until(1_000_000), Stop::Limit));
    assert!(callers(&simulation)[0].left >= left - 1);
}

#[test]
fn listen__wakes_for_a_second_port() {
    let fabric = pair(NicConfig::default());
    let mut a = bind(&fabric, H0);
    let second = SimAddr::new(H1, 2);
    let mut b = SimTransport::bind(&fabric, second, Default::default()).unwrap();
    b.add_peer(addr(H0).into()).unwrap();
    let to_second = a.add_peer(second.into()).unwrap();
    assert_eq!(to_second, PeerId(2));
    let got = Rc::new(RefCell::new(Vec::new()));
    let seen = got.clone();
    let mut simulation = Simulation::new(fabric.clone());
    let actor = simulation.spawn(
        addr(H1),
        Script(move |_| {
            seen.borrow_mut().extend(receive_numbers(&mut b));
            None
        }),
    );
    simulation.listen(actor, second);
    assert!(matches!(simulation.run_until(10_000), Stop::Idle));
    send(&mut a, HostId(2), 7, 1, LENGTH);
    assert!(matches!(simulation.run_until(100_000), Stop::Idle));
    assert_eq!(*got.borrow(), [7]);
}

#[test]
fn trace__survives_a_panicking_actor() {
    let fabric = pair(NicConfig::default());
    fabric.set_trace(Trace::last(10));
    let mut transport = bind(&fabric, H0);
    let mut simulation = Simulation::new(fabric.clone());
    simulation.spawn(
        addr(H0),
        Script(move |_| {
            send(&mut transport, H1, 0, 1, LENGTH);
            panic!("a checker found something");
        }),
    );
    let run = std::panic::AssertUnwindSafe(move || simulation.run_until(1_000_000));
    assert!(std::panic::catch_unwind(run).is_err());
    fabric.note(format_args!("found by the checker"));
    let lines = fabric.trace_lines();
    assert_eq!(lines.len(), 2, "{lines:?}");
    assert_eq!(lines[0], "100.000 h0:1->h1:1 #0 len=958 at h0 SEND");
    assert_eq!(lines[1], "100.000 found by the checker");
}
