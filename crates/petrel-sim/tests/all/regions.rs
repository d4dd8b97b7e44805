//! Operations on regions under loss, disorder, cancellation and reconnection, with a model of the memory.
//!
//! Tasks of two clients share a region. A word that all of them add 1 to, a word that they swap for values of their
//! own, and words of each task, few and many, show whether an operation ran twice, was lost after its response, or tore a
//! word. The many words are written by several packets, which take effect as they arrive.
//!
//! A further test makes ordered operations without waiting: each sees those before it, and none behind it.
//!
//! `PETREL_REGION_SEEDS=10000` runs as many seeds, from `PETREL_REGION_SEED` on.

use std::cell::{Cell, RefCell};
use std::collections::{BTreeMap, BTreeSet};
use std::rc::Rc;
use std::time::Duration;

use crate::common::*;
use petrel::Status;
use petrel::endpoint::EndpointConfig;
use petrel::region::{Access, Region, RegionKey, RegionMemory, Regions};
use petrel::task::Handle;
use petrel_sim::control::{ControlConfig, ControlNetwork};
use petrel_sim::fabric::{ActorId, FabricHandle, FaultPlan, LinkConfig, SwitchConfig};
use petrel_sim::{
    Actor, Probability, Rng, SimEndpoint, SimTransportConfig, Simulation, start_endpoint,
};

/// Seeds of a usual run.
const SEEDS: u64 = 60;
const TASKS: usize = 4;
const STEPS: u64 = 120;
const MS: u64 = 1_000_000;

// The operations, as §15.1 of the specification has them.
const READ: u16 = 65_520;
const WRITE: u16 = 65_521;
const COMPARE_SWAP: u16 = 65_522;
const FETCH_ADD: u16 = 65_523;
const READ_MANY: u16 = 65_524;

/// Offsets of the word that is added to, of the word that is swapped, and of the first owned words.
const SUM: u64 = 0;
const SWAPPED: u64 = 8;
const OWNED: u64 = 16;

/// Each task's many words, behind all others: three packets.
const MANY: u64 = OWNED + 16 * TASKS as u64;
const MANY_BYTES: u64 = 3_600;

/// Returns the seeds to run.
fn seeds() -> std::ops::Range<u64> {
    let number = |name: &str, usual: u64| match std::env::var(name) {
        Ok(value) => value.parse().unwrap_or_else(|_| panic!("{name} is a number, not {value}")),
        Err(_) => usual,
    };
    let first = number("PETREL_REGION_SEED", 0);
    first..first + number("PETREL_REGION_SEEDS", SEEDS)
}

struct Node(SimEndpoint);

impl Actor for Node {
    fn poll(&mut self, now_ns: u64) -> Option<u64> {
        if self.0.run_once() { Some(now_ns) } else { self.0.next_due().map(petrel::Time::as_ns) }
    }
}

/// Known outcomes, and operations that have begun.
#[derive(Default)]
struct Model {
    /// Former values of the sum, with the times at which the call began and ended.
    sums: Vec<(u64, u64, u64)>,
    adds_begun: u64,
    /// The successful swaps, by the expected value.
    swaps: BTreeMap<u64, u64>,
    swaps_begun: BTreeSet<u64>,
    /// The last value that a task has written, or begun to write.
    written: [u64; TASKS],
    write_begun: [u64; TASKS],
    /// The same for the many words.
    many_written: [u64; TASKS],
    many_begun: [u64; TASKS],
    /// Calls whose outcome is unknown, and reads that are checked.
    unknown: u64,
    reads: u64,
    refused: u64,
}

impl Model {
    fn end_add(&mut self, begin_ns: u64, end_ns: u64, former: u64) {
        for (began_ns, ended_ns, other) in &self.sums {
            assert_ne!(*other, former, "two additions saw the same sum");
            assert!(*ended_ns > begin_ns || *other < former, "{former} after {other}");
            assert!(*began_ns < end_ns || *other > former, "{other} after {former}");
        }
        assert!(former < self.adds_begun, "{former} of {}", self.adds_begun);
        self.sums.push((begin_ns, end_ns, former));
    }

    /// The least sum at a time: one more than each sum seen before.
    fn sum_at(&self, at_ns: u64) -> u64 {
        let before = self.sums.iter().filter(|(_, ended_ns, _)| *ended_ns <= at_ns);
        before.map(|(_, _, former)| former + 1).max().unwrap_or(0)
    }

    fn end_swap(&mut self, expected: u64, new: u64, former: u64) {
        assert!(former == 0 || self.swaps_begun.contains(&former), "{former:#x} is no value");
        if former == expected {
            assert_eq!(self.swaps.insert(expected, new), None, "{expected:#x} was replaced twice");
        }
    }
}

/// A task's view of the world.
#[derive(Clone)]
struct Shared {
    handle: Handle,
    key: RegionKey,
    revoked: RegionKey,
    is_revoked: Rc<Cell<bool>>,
    model: Rc<RefCell<Model>>,
    done: Rc<Cell<usize>>,
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

async fn run(shared: Shared, task: usize, mut rng: Rng) {
    let remote = ControlNetwork::address_of(H0);
    let Shared { handle, key, revoked, is_revoked, model, done } = shared;
    let mut session = handle.connect(remote).await.expect("no fault ends a connection");
    let mut seen = 0;
    for step in 0..STEPS {
        let begin_ns = handle.clock_now().as_ns();
        let kind = rng.below(6);
        if kind < 2 {
            let value = (task as u64 + 1) << 32 | step;
            let (method, operands) = match kind {
                0 => (FETCH_ADD, 1_u64.to_le_bytes().to_vec()),
                _ => (COMPARE_SWAP, [u64::to_le_bytes(seen), value.to_le_bytes()].concat()),
            };
            match kind {
                0 => model.borrow_mut().adds_begun += 1,
                _ => _ = model.borrow_mut().swaps_begun.insert(value),
            }
            let offset = if kind == 0 { SUM } else { SWAPPED };
            let request = [header(key, offset, 0), operands].concat();
            let call = session.call(method, &request[..]).response_bytes(8);
            let ends = rng.below(8);
            let patience = Duration::from_nanos(rng.between(2_000, 200_000));
            let call = if ends < 2 { call.timeout(patience) } else { call }.started();
            if ends == 2 {
                handle.sleep(Duration::from_nanos(rng.below(10_000))).await;
                session.close();
            }
            match call.await {
                Ok(response) => {
                    let former = words(&response)[0];
                    let mut model = model.borrow_mut();
                    if kind == 0 {
                        model.end_add(begin_ns, handle.clock_now().as_ns(), former);
                    } else {
                        model.end_swap(seen, value, former);
                        seen = if former == seen { value } else { former };
                    }
                }
                Err(_) => model.borrow_mut().unknown += 1,
            }
            if ends == 2 {
                session = handle.connect(remote).await.expect("no fault ends a connection");
            }
        } else if kind == 2 && rng.below(2) == 0 {
            let place = MANY + MANY_BYTES * task as u64;
            let value = step + 1;
            model.borrow_mut().many_begun[task] = value;
            let data = value.to_le_bytes().repeat(MANY_BYTES as usize / 8);
            let request = [header(key, place, 0), data].concat();
            session.call(WRITE, &request[..]).await.expect("a repeated write arrives");
            model.borrow_mut().many_written[task] = value;
        } else if kind == 2 {
            let place = OWNED + 16 * task as u64;
            let value = step + 1;
            model.borrow_mut().write_begun[task] = value;
            let data = [value.to_le_bytes(); 2].concat();
            let request = [header(key, place, 0), data].concat();
            session.call(WRITE, &request[..]).await.expect("a repeated write arrives");
            model.borrow_mut().written[task] = value;
        } else if kind == 4 && rng.below(2) == 0 {
            let other = rng.below(TASKS as u64) as usize;
            let least = model.borrow().many_written[other];
            let request = header(key, MANY + MANY_BYTES * other as u64, MANY_BYTES as u32);
            let call = session.call(READ, &request[..]).response_bytes(MANY_BYTES as usize);
            let read = words(&call.await.expect("a repeated read arrives"));
            let mut model = model.borrow_mut();
            let range = least..=model.many_begun[other];
            let wrong = read.iter().find(|word| !range.contains(word));
            assert_eq!(wrong, None, "task {other}: not in {range:?}");
            model.reads += 1;
        } else if kind < 5 {
            let (sum, written) = (model.borrow().sum_at(begin_ns), model.borrow().written);
            let len = 16 * TASKS as u32;
            let pieces = [header(key, SUM, 8), header(key, OWNED, len)];
            let all = [header(key, SUM, 16 + len)];
            let (method, request) =
                if kind == 3 { (READ_MANY, pieces.concat()) } else { (READ, all.concat()) };
            let call = session.call(method, &request[..]).response_bytes(16 + len as usize);
            let read = words(&call.await.expect("a repeated read arrives"));
            let mut model = model.borrow_mut();
            assert!((sum..=model.adds_begun).contains(&read[0]), "{} of {sum}", read[0]);
            let owned = &read[if kind == 3 { 1 } else { 2 }..];
            for (index, word) in owned.iter().enumerate() {
                let range = written[index / 2]..=model.write_begun[index / 2];
                assert!(range.contains(word), "task {}: {word} is not in {range:?}", index / 2);
            }
            model.reads += 1;
        } else {
            // A guessed secret, a range that overflows, and a key that is revoked in the middle of the run.
            let mut guessed = header(key, SUM, 0);
            guessed[8 + rng.below(8) as usize] ^= 1 << rng.below(8);
            guessed.extend(7_u64.to_le_bytes());
            let beyond = [header(key, u64::MAX - 7, 0), vec![7; 16]].concat();
            let was_revoked = is_revoked.get();
            let (method, request, expected) = match rng.below(3) {
                0 => (FETCH_ADD, guessed, Some(Status::PermissionDenied)),
                1 => (WRITE, beyond, Some(Status::OutOfRange)),
                _ => (READ, header(revoked, 0, 8), None),
            };
            let outcome = session.call(method, &request[..]).response_bytes(8).await;
            let status = outcome.as_ref().map_err(|error| error.status).err();
            match expected {
                Some(_) => assert_eq!(status, expected),
                None if was_revoked => assert_eq!(status, Some(Status::PermissionDenied)),
                None => assert!(status.is_none() || is_revoked.get(), "{status:?}"),
            }
            model.borrow_mut().refused += u64::from(status.is_some());
        }
    }
    done.set(done.get() + 1);
}

/// A server with a region, and two clients.
struct World {
    fabric: FabricHandle,
    control: ControlNetwork,
    simulation: Simulation<Node>,
    handles: Vec<Handle>,
    nodes: Vec<ActorId>,
}

impl World {
    fn new(seed: u64, regions: &Regions, is_ordered: bool) -> Self {
        let fabric = star_with(3, SwitchConfig::default(), LinkConfig::default(), seed);
        let control = ControlNetwork::new(&fabric, ControlConfig::default(), Rng::new(seed));
        let mut simulation = Simulation::new(fabric.clone());
        let (mut handles, mut nodes) = (Vec::new(), Vec::new());
        for host in [H0, H1, H2] {
            control.start_process(host);
            let holds = (seed + u64::from(host.0)).is_multiple_of(2);
            let settings = SimTransportConfig { holds, ..SimTransportConfig::default() };
            let rng = Rng::stream(seed, 1, host.0.into());
            let mut config = EndpointConfig::default();
            config.protocol.fast_path = !seed.is_multiple_of(3);
            config.memory.poison = true;
            config.sessions.ordered = is_ordered;
            let started = start_endpoint(&fabric, &control, addr(host), settings, rng, &config);
            let mut endpoint = started.unwrap();
            if host == H0 {
                endpoint.serve_regions(regions);
            }
            handles.push(endpoint.handle());
            nodes.push(simulation.spawn(addr(host), Node(endpoint)));
        }
        Self { fabric, control, simulation, handles, nodes }
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

/// Runs a seed, and returns the model at its end.
fn run_seed(seed: u64) -> Model {
    let rng = &mut Rng::stream(seed, 0, 0);
    let regions = Regions::new();
    let register = |bytes, access| -> Region {
        regions.register(RegionMemory::private(bytes).unwrap(), access).unwrap()
    };
    let bytes = MANY + MANY_BYTES * TASKS as u64;
    let region = register(bytes, Access::READ | Access::WRITE | Access::ATOMIC);
    let revoked = register(8, Access::READ);
    let mut world = World::new(seed, &regions, false);
    world.fabric.set_faults(faults(rng));
    let model = Rc::new(RefCell::new(Model::default()));
    let (done, is_revoked) = (Rc::new(Cell::new(0)), Rc::new(Cell::new(false)));
    let tasks: Vec<_> = (0..TASKS)
        .map(|task| {
            let shared = Shared {
                handle: world.handles[1 + task % 2].clone(),
                key: region.key(),
                revoked: revoked.key(),
                is_revoked: Rc::clone(&is_revoked),
                model: Rc::clone(&model),
                done: Rc::clone(&done),
            };
            let handle = shared.handle.clone();
            handle.spawn(run(shared, task, Rng::stream(seed, 2, task as u32)))
        })
        .collect();
    world.run_for(rng.between(1, 10) * MS);
    drop(revoked);
    is_revoked.set(true);
    for _ in 0..200 {
        world.run_for(50 * MS);
        if done.get() == TASKS {
            break;
        }
    }
    assert_eq!(done.get(), TASKS, "seed {seed}: a task does not end");
    // Late packets of calls that were given up may still be executed.
    world.run_for(100 * MS);
    drop((tasks, world));
    let model = Rc::try_unwrap(model).ok().expect("the tasks are gone").into_inner();
    let (sum, swapped) = (region.load(SUM).unwrap(), region.load(SWAPPED).unwrap());
    let known = model.sums.len() as u64;
    assert!((known..=model.adds_begun).contains(&sum), "seed {seed}: {sum} of {known}");
    assert!(model.sums.iter().all(|(_, _, former)| *former < sum), "seed {seed}");
    assert!(swapped == 0 || model.swaps_begun.contains(&swapped), "seed {seed}");
    assert!(!model.swaps.contains_key(&swapped), "seed {seed}: {swapped:#x} was replaced");
    for task in 0..TASKS as u64 {
        let value = [0, 8].map(|at| region.load(OWNED + 16 * task + at).unwrap());
        assert_eq!(value, [model.written[task as usize]; 2], "seed {seed}");
        let mut many = vec![0; MANY_BYTES as usize];
        region.read(MANY + MANY_BYTES * task, &mut many).unwrap();
        let expected = model.many_written[task as usize];
        assert!(words(&many).iter().all(|word| *word == expected), "seed {seed}, task {task}");
    }
    model
}

#[test]
fn seeds__keep_the_model_of_memory() {
    let (mut unknown, mut swaps, mut reads, mut refused) = (0, 0, 0, 0);
    let seeds = seeds();
    let count = seeds.end - seeds.start;
    for seed in seeds {
        let model = run_seed(seed);
        unknown += model.unknown;
        swaps += model.swaps.len();
        reads += model.reads;
        refused += model.refused;
    }
    assert!(unknown > count && refused > count, "{unknown} unknown, {refused} refused");
    assert!(swaps as u64 > count && reads > count, "{swaps} swaps, {reads} reads");
}

/// Operations of one session that demand the order, and none of which waits for another.
const ORDERED: u64 = 40;

/// Runs ordered operations of a seed. Returns the operations whose responses were right: all of them.
fn run_ordered(seed: u64) -> u64 {
    let rng = &mut Rng::stream(seed, 3, 0);
    let regions = Regions::new();
    let access = Access::READ | Access::WRITE | Access::ATOMIC;
    let memory = RegionMemory::private(MANY_BYTES).unwrap();
    let region = regions.register(memory, access).unwrap();
    let mut world = World::new(seed, &regions, true);
    world.fabric.set_faults(faults(rng));
    let client = world.nodes[1];
    let endpoint = &mut world.simulation.actor_mut(client).unwrap().0;
    let session = endpoint.connect(ControlNetwork::address_of(H0)).unwrap();
    world.run_for(20 * MS);
    let right = Rc::new(Cell::new(0));
    let mut memory = vec![0_u64; MANY_BYTES as usize / 8];
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
    let mut all = vec![0; MANY_BYTES as usize];
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
