//! Ordered operations on a region, made without waiting: an operation sees all earlier ones, and no later one.
//!
//! Operations of all kinds under all faults, with a model of the memory, are in the worlds of `petrel sim`
//! (`src/check/regions`).
//!
//! `PETREL_REGION_SEEDS=10000` runs as many seeds, from `PETREL_REGION_SEED` on.

use std::cell::Cell;
use std::rc::Rc;

use crate::common::*;
use petrel::endpoint::EndpointConfig;
use petrel::region::{Access, RegionKey, RegionMemory, Regions};
use petrel_sim::control::{ControlConfig, ControlNetwork};
use petrel_sim::fabric::{ActorId, FabricHandle, FaultPlan, LinkConfig, SwitchConfig};
use petrel_sim::{Probability, Rng, SimTransportConfig, Simulation, start_endpoint};

/// Seeds of a usual run.
const SEEDS: u64 = 60;
const MS: u64 = 1_000_000;

// The operations, as §15.1 of the specification has them.
const READ: u16 = 65_520;
const WRITE: u16 = 65_521;
const FETCH_ADD: u16 = 65_523;

/// Bytes of the region: three packets.
const REGION_BYTES: u64 = 3_600;

fn seeds() -> std::ops::Range<u64> {
    let number = |name: &str, usual: u64| match std::env::var(name) {
        Ok(value) => value.parse().unwrap_or_else(|_| panic!("{name} is a number, not {value}")),
        Err(_) => usual,
    };
    let first = number("PETREL_REGION_SEED", 0);
    first..first + number("PETREL_REGION_SEEDS", SEEDS)
}

fn header(key: RegionKey, offset: u64, len: u32) -> Vec<u8> {
    let key = key.to_bytes();
    [&key[..4], &len.to_le_bytes(), &key[4..12], &offset.to_le_bytes()].concat()
}

fn words(bytes: &[u8]) -> Vec<u64> {
    let (words, rest) = bytes.as_chunks::<8>();
    assert!(rest.is_empty(), "whole words");
    words.iter().map(|word| u64::from_le_bytes(*word)).collect()
}

/// A server with a region, and a client.
struct World {
    fabric: FabricHandle,
    control: ControlNetwork,
    simulation: Simulation<Node>,
    client: ActorId,
}

impl World {
    fn new(seed: u64, regions: &Regions) -> Self {
        let fabric = star_with(2, SwitchConfig::default(), LinkConfig::default(), seed);
        let control = ControlNetwork::new(&fabric, ControlConfig::default(), Rng::new(seed));
        let mut simulation = Simulation::new(fabric.clone());
        let [_, client] = [H0, H1].map(|host| {
            control.start_process(host);
            let read_ns = if (seed + u64::from(host.0)).is_multiple_of(2) { 4_000 } else { 0 };
            let settings = SimTransportConfig { read_ns, ..SimTransportConfig::default() };
            let rng = Rng::stream(seed, 1, host.0.into());
            let mut config = EndpointConfig::default();
            config.protocol.fast_path = !seed.is_multiple_of(3);
            config.memory.poison = true;
            config.sessions.ordered = true;
            let started = start_endpoint(&fabric, &control, addr(host), settings, rng, &config);
            let mut endpoint = started.unwrap();
            if host == H0 {
                endpoint.serve_regions(regions);
            }
            simulation.spawn(addr(host), Node(endpoint))
        });
        Self { fabric, control, simulation, client }
    }

    fn run_for(&mut self, duration_ns: u64) {
        petrel_sim::World::run_for(self, duration_ns).unwrap();
    }
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

fn faults(rng: &mut Rng) -> FaultPlan {
    let mut some = |per_million| Probability::per_million(rng.below(per_million) as u32);
    FaultPlan {
        loss: some(30_000),
        duplicate: some(100_000),
        reorder: some(200_000),
        spike: some(10_000),
        duplicate_within_ns: MS,
        reorder_within_ns: 50_000,
        spike_within_ns: MS,
        ..FaultPlan::NONE
    }
}

/// Operations of one session that demand the order, and none of which waits for another.
const ORDERED: u64 = 40;

/// Runs ordered operations of a seed. Returns the operations whose responses were right: all of them.
fn run_ordered(seed: u64) -> u64 {
    let rng = &mut Rng::stream(seed, 3, 0);
    let regions = Regions::new();
    let access = Access::READ | Access::WRITE | Access::ATOMIC;
    let memory = RegionMemory::private(REGION_BYTES).unwrap();
    let region = regions.register(memory, access).unwrap();
    let mut world = World::new(seed, &regions);
    world.fabric.set_faults(faults(rng));
    let client = world.client;
    let endpoint = &mut world.simulation.actor_mut(client).unwrap().0;
    let session = endpoint.connect(ControlNetwork::address_of(H0)).unwrap();
    world.run_for(20 * MS);
    let right = Rc::new(Cell::new(0));
    let mut memory = vec![0_u64; REGION_BYTES as usize / 8];
    for number in 1..=ORDERED {
        // All words, or the first and some others: of one packet, or of several.
        let some = if rng.below(2) == 0 { memory.len() } else { rng.between(1, 100) as usize };
        let (method, request, expected) = match rng.below(3) {
            0 => {
                memory[..some].fill(number);
                let data = number.to_le_bytes().repeat(some);
                (WRITE, [header(region.key(), 0, 0), data].concat(), Vec::new())
            }
            1 => {
                let former = memory[0];
                memory[0] += 1 << 32;
                let operand = u64::to_le_bytes(1 << 32).to_vec();
                (FETCH_ADD, [header(region.key(), 0, 0), operand].concat(), vec![former])
            }
            _ => (READ, header(region.key(), 0, 8 * some as u32), memory[..some].to_vec()),
        };
        let right = Rc::clone(&right);
        let endpoint = &mut world.simulation.actor_mut(client).unwrap().0;
        let call = endpoint.call(session, method, &request[..]).response_bytes(8 * expected.len());
        let called = call.ordered().then(move |_, _, reply| {
            let message = reply.message().expect("nothing ends the call");
            assert_eq!(words(message), expected, "seed {seed}, operation {number}");
            right.set(right.get() + 1);
        });
        called.expect("the session keeps an order");
        if rng.below(4) == 0 {
            world.simulation.wake(client);
            let pause_ns = rng.below(100_000);
            world.run_for(pause_ns);
        }
    }
    world.simulation.wake(client);
    for _ in 0..200 {
        world.run_for(50 * MS);
        if right.get() == ORDERED {
            break;
        }
    }
    let mut all = vec![0; REGION_BYTES as usize];
    region.read(0, &mut all).unwrap();
    assert_eq!(words(&all), memory, "seed {seed}");
    right.get()
}

#[test]
fn ordered_operations__see_all_earlier_ones_and_no_later_one() {
    for seed in seeds() {
        assert_eq!(run_ordered(seed), ORDERED, "seed {seed}: an operation does not end");
    }
}
