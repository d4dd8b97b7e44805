//! Devices: messages that are read in place, and receive rings (eRPC §4.2.2, §4.3.1).
//!
//! `PETREL_DEVICE_CALLS=1000000` makes as many calls.

use std::cell::Cell;
use std::rc::Rc;

use crate::common::*;
use petrel::Status;
use petrel::endpoint::{EndpointConfig, SessionId, SessionState};
use petrel_sim::control::{ControlConfig, ControlNetwork};
use petrel_sim::fabric::{
    ActorId, CpuConfig, DropReason, FabricConfig, FabricHandle, FaultPlan, HostId, LinkConfig,
    NicConfig, SwitchConfig, Topology,
};
use petrel_sim::{Probability, Rng, SimTransportConfig, Simulation, start_endpoint};

const MS: u64 = 1_000_000;
const ECHO: u16 = 7;

/// A server, and clients with a session each.
struct World {
    fabric: FabricHandle,
    control: ControlNetwork,
    simulation: Simulation<Node>,
    server: ActorId,
    clients: Vec<(ActorId, SessionId)>,
    answered: Rc<Cell<u64>>,
}

impl petrel_sim::World for World {
    type Actor = Node;

    fn simulation(&mut self) -> &mut Simulation<Node> {
        &mut self.simulation
    }

    fn control(&self) -> ControlNetwork {
        self.control.clone()
    }
}

impl World {
    fn new(clients: u16, nic: NicConfig, settings: SimTransportConfig) -> Self {
        let hosts = 1 + usize::from(clients);
        let topology = Topology::star(hosts, nic, SwitchConfig::default(), LinkConfig::default());
        let cpu = CpuConfig { poll_ns: 100, poll_jitter_ns: 0, frame_ns: 1_000 };
        let config = FabricConfig { cpu, ..FabricConfig::default() };
        let fabric = FabricHandle::new(&topology, config, 1).unwrap();
        let control = ControlNetwork::new(&fabric, ControlConfig::default(), Rng::new(1));
        let mut simulation = Simulation::new(fabric.clone());
        let start = |host| {
            control.start_process(host);
            let rng = Rng::stream(1, 1, host.0.into());
            let config = EndpointConfig::default();
            let started = start_endpoint(&fabric, &control, addr(host), settings, rng, &config);
            started.unwrap()
        };
        let mut server = start(H0);
        server.on(ECHO, |_, cx, request| {
            let data = request.data().to_vec();
            request.reply(cx, &data)
        });
        let server = simulation.spawn(addr(H0), Node(server));
        let clients = (1..=clients).map(|number| {
            let mut endpoint = start(HostId(number));
            let session = endpoint.connect(ControlNetwork::address_of(H0)).unwrap();
            (simulation.spawn(addr(HostId(number)), Node(endpoint)), session)
        });
        let clients = clients.collect();
        let mut world =
            Self { fabric, control, simulation, server, clients, answered: Rc::default() };
        world.run_for(50 * MS);
        world
    }

    fn run_for(&mut self, duration_ns: u64) {
        petrel_sim::World::run_for(self, duration_ns).unwrap();
    }

    /// Makes a call of each client. The request is overwritten when it returns.
    fn call_all(&mut self, bytes: usize) {
        for &(client, session) in &self.clients {
            let answered = Rc::clone(&self.answered);
            let endpoint = &mut self.simulation.actor_mut(client).unwrap().0;
            let message: Vec<u8> = (0..bytes).map(|at| (at % 251) as u8).collect();
            let request = endpoint.alloc_message(&message).unwrap();
            let call = endpoint.call(session, ECHO, request).response_bytes(bytes);
            let called = call.then(move |_, _, mut reply| {
                assert_eq!(reply.message(), Ok(&message[..]));
                reply.request.fill(0xEE);
                answered.set(answered.get() + 1);
            });
            called.expect("a session");
            self.simulation.wake(client);
        }
    }

    fn waits(&self) -> u64 {
        let all = self.clients.iter().map(|(client, _)| client).chain([&self.server]);
        let stats = all.map(|actor| self.simulation.actor(*actor).unwrap().0.stats());
        stats.map(|stats| stats.transport.tx_waits).sum()
    }
}

/// Runs calls of one client, small and large ones, over devices that read 2 µs late. Returns the number of waits.
fn waits_of_calls(calls: u64, loss: u32) -> u64 {
    let settings = SimTransportConfig { read_ns: 2_000, ..SimTransportConfig::default() };
    let mut world = World::new(1, NicConfig::default(), settings);
    world.fabric.set_faults(FaultPlan { loss: Probability::per_million(loss), ..FaultPlan::NONE });
    while world.answered.get() < calls {
        let before = world.answered.get();
        let sizes = [32, 1_000, 9_000, 32, 40_000];
        sizes.iter().for_each(|bytes| world.call_all(*bytes));
        while world.answered.get() < before + sizes.len() as u64 {
            world.run_for(MS / 10);
        }
    }
    world.waits()
}

#[test]
fn await_reads__never_without_loss() {
    let calls = std::env::var("PETREL_DEVICE_CALLS").map_or(2_000, |text| text.parse().unwrap());
    assert_eq!(waits_of_calls(calls, 0), 0);
    assert!(waits_of_calls(500, 20_000) > 0, "repetitions are waited for");
}

#[test]
fn incast__of_100_sessions_loses_nothing_in_a_ring_of_512() {
    let nic = NicConfig { rx_packets: 512, ..NicConfig::default() };
    let settings = SimTransportConfig { has_ring: true, ..SimTransportConfig::default() };
    let mut world = World::new(100, nic, settings);
    (0..4).for_each(|_| world.call_all(40_000));
    for _ in 0..1_000 {
        world.run_for(MS);
    }
    assert_eq!(world.answered.get(), 400);
    assert_eq!(world.fabric.stats().dropped(DropReason::RxQueue), 0);
}

#[test]
fn connect__is_refused_when_the_ring_has_no_room() {
    let nic = NicConfig { rx_packets: 4, ..NicConfig::default() };
    let settings = SimTransportConfig { has_ring: true, ..SimTransportConfig::default() };
    let world = World::new(3, nic, settings);
    let is_open = |(client, session): &&(ActorId, SessionId)| {
        let endpoint = &world.simulation.actor(*client).unwrap().0;
        match endpoint.session_state(*session) {
            SessionState::Open => true,
            SessionState::Ended(Some(reason)) => {
                assert_eq!(reason.status, Status::ResourceExhausted);
                false
            }
            other => panic!("{other:?}"),
        }
    };
    assert_eq!(world.clients.iter().filter(is_open).count(), 2);
}
