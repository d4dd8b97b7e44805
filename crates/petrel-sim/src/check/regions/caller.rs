//! The callers of operations, and the host's part: keys that are revoked, and new memory. All draws come from separate
//! streams: worlds without regions stay unchanged.

use std::rc::Rc;
use std::time::Duration;

use petrel::client::{Call, ClientConfig};
use petrel::endpoint::EndpointId;
use petrel::overload::BackoffConfig;
use petrel::region::{Access, RegionKey, RemoteRegion};
use petrel::task::Task;
use petrel::{Client, Error};

use super::model::{
    Kind, Model, Operation, PLAIN, SUMS, SWAPPED, VERSIONED, WORDS, value_of, words,
};
use crate::check::node::{Node, Shared, data_port};
use crate::check::scenario::Scenario;
use crate::control::ControlNetwork;
use crate::fabric::{HostId, SimAddr};
use crate::rng::Rng;

/// Maximum number of operations begun at once.
const BURST_MAX: u64 = 6;

/// The most memories that a process registers.
const MEMORIES_MAX: usize = 8;

/// Timeout of a read after the faults, which must succeed; and where servers have no room for sessions.
const PROBE_NS: u64 = 20_000_000_000;
const FEW_SESSIONS_PROBE_NS: u64 = 1_000_000_000;

pub(in crate::check) struct RegionCaller {
    rng: Rng,
    hosts: u16,
    left: u32,
    clients: Vec<RegionClient>,
    running: Vec<(u32, Task<()>)>,
}

struct RegionClient {
    client: Client,
    server: SimAddr,
    attempts_max: u32,
}

#[derive(Clone, Copy)]
struct Options {
    timeout_ns: u64,
    is_ordered: bool,
    is_idempotent: bool,
    waits: bool,
}

impl Options {
    fn draw(rng: &mut Rng, scenario: &Scenario, kind: &Kind, is_probe: bool) -> Self {
        Self {
            timeout_ns: match rng.below(5) {
                _ if is_probe && scenario.has_few_sessions => FEW_SESSIONS_PROBE_NS,
                _ if is_probe => PROBE_NS,
                0 => rng.between(2_000, 200_000),
                1 => rng.between(20_000, 2_000_000),
                _ => 1 << rng.between(20, 28),
            },
            is_ordered: scenario.has_order && !is_probe && rng.below(3) == 0,
            is_idempotent: matches!(kind, Kind::Write(_)) && rng.below(8) == 0,
            waits: is_probe || rng.below(3) == 0,
        }
    }

    fn set<T>(self, call: Call<T>) -> Call<T> {
        let call = call.timeout(Duration::from_nanos(self.timeout_ns));
        let call = if self.is_ordered { call.ordered() } else { call };
        let call = if self.is_idempotent { call.idempotent() } else { call };
        if self.waits { call.wait_for_ready() } else { call }
    }
}

impl RegionCaller {
    pub(in crate::check) fn new(rng: Rng, hosts: u16, operations: u32) -> Self {
        Self { rng, hosts, left: operations, clients: Vec::new(), running: Vec::new() }
    }

    /// Drops the clients.
    pub(in crate::check) fn retire(&mut self) {
        self.clients.clear();
    }
}

impl Node {
    /// Begins some operations, drops some, and revokes and registers keys as a host of regions.
    pub(in crate::check) fn run_region_calls(&mut self) {
        let Some(mut caller) = self.region_caller.take() else { return };
        self.change_regions(&mut caller.rng);
        let shared = Rc::clone(&self.shared);
        caller.running.retain(|(id, _)| shared.ledger().regions.is_pending(*id));
        if !caller.clients.is_empty() && caller.rng.below(20) == 0 {
            caller.clients.swap_remove(0);
        }
        self.make_region_clients(&mut caller);
        for _ in 0..caller.rng.between(0, BURST_MAX).min(caller.left.into()) {
            let count = caller.clients.len() as u64;
            if count == 0 {
                break;
            }
            caller.left -= 1;
            let place = caller.rng.below(count) as usize;
            self.operate(&mut caller, place, false);
        }
        if !caller.running.is_empty() && caller.rng.below(4) == 0 {
            let place = caller.rng.below(caller.running.len() as u64) as usize;
            let (id, task) = caller.running.swap_remove(place);
            if self.shared.ledger().drop_operation(id) {
                self.shared.pending.set(self.shared.pending.get() - 1);
                task.abort();
            }
        }
        self.region_caller = Some(caller);
    }

    /// Reads by every client, after the faults.
    pub(in crate::check) fn probe_regions(&mut self) {
        let Some(mut caller) = self.region_caller.take() else { return };
        self.make_region_clients(&mut caller);
        (0..caller.clients.len()).for_each(|place| self.operate(&mut caller, place, true));
        self.region_caller = Some(caller);
    }

    /// Revokes a key of the host, or registers new memory, now and then.
    fn change_regions(&mut self, rng: &mut Rng) {
        let at = self.shared.at;
        let regions = &mut self.shared.ledger().regions;
        let keys = regions.keys_at(at, true);
        let count = regions.memories_at(at);
        if count > 0 && rng.below(4) == 0 {
            let may_register = count < MEMORIES_MAX;
            match rng.below(3) {
                0 | 1 if keys.len() > 1 || may_register && !keys.is_empty() => {
                    regions.revoke(keys[rng.below(keys.len() as u64) as usize]);
                }
                _ if may_register => {
                    let few = [Access::READ, Access::WRITE, Access::ATOMIC];
                    let [few, other] = [(); 2].map(|()| few[rng.below(3) as usize]);
                    regions.register(at, few | other);
                }
                _ => {}
            }
        }
    }

    /// Makes the missing clients, one for each host with regions.
    fn make_region_clients(&mut self, caller: &mut RegionCaller) {
        for host in (0..caller.hosts).map(HostId).filter(|&host| host != self.shared.at.host) {
            let server = data_port(host, 0);
            if caller.clients.iter().any(|client| client.server == server) {
                continue;
            }
            let mut config = ClientConfig::default();
            config.attempts_max = caller.rng.between(1, 3) as u32;
            let backoff = |first_ns, max_ns| BackoffConfig {
                first: Duration::from_nanos(first_ns),
                max: Duration::from_nanos(max_ns),
                growth_percent: 200,
            };
            config.retry_backoff = backoff(1 << caller.rng.between(12, 20), 5_000_000);
            config.connect_backoff = backoff(1 << caller.rng.between(14, 22), 60_000_000);
            let attempts_max = config.attempts_max;
            let target = (ControlNetwork::address_of(host), EndpointId(0));
            let client = self.endpoint.client([target], config);
            caller.clients.push(RegionClient { client, server, attempts_max });
        }
    }

    /// Begins an operation in a task.
    fn operate(&mut self, caller: &mut RegionCaller, place: usize, is_probe: bool) {
        let RegionClient { client, server, attempts_max } = &caller.clients[place];
        let (rng, scenario) = (&mut caller.rng, &self.shared.common.scenario);
        let ends = (self.shared.at, *server);
        let mut ledger = self.shared.ledger();
        let regions = &mut ledger.regions;
        let Some((kind, key, is_guess)) = draw_operation(rng, regions, *server, is_probe) else {
            return;
        };
        let options = Options::draw(rng, scenario, &kind, is_probe);
        let mut operation = Operation::new(kind.clone(), key, ends, self.shared.endpoint_number);
        operation.is_guess = is_guess;
        operation.may_repeat = options.is_idempotent;
        operation.must_succeed = is_probe;
        operation.attempts_max = *attempts_max;
        let region_key = regions.key(key);
        let region_key = if is_guess { guess(region_key) } else { region_key };
        let id = regions.issue(operation);
        drop(ledger);
        let (shared, remote) = (Rc::clone(&self.shared), RemoteRegion::new(client, region_key));
        shared.pending.set(shared.pending.get() + 1);
        let task = self.endpoint.handle().spawn(run(shared, id, remote, kind, options));
        caller.running.push((id, task));
    }
}

/// Runs an operation from its begin to its end.
async fn run(shared: Rc<Shared>, id: u32, remote: RemoteRegion, kind: Kind, options: Options) {
    // The call itself makes the next reading of the clock.
    let from_ns = shared.common.fabric.next_reading_ns();
    shared.ledger().begin_operation(id, options.timeout_ns, from_ns);
    let reply = call(id, &remote, kind, options).await;
    shared.pending.set(shared.pending.get() - 1);
    shared.ledger().end_operation(id, &reply);
}

/// Makes the call of an operation. Returns the words of the result.
async fn call(
    id: u32,
    remote: &RemoteRegion,
    kind: Kind,
    options: Options,
) -> Result<Vec<u64>, Error> {
    let at = |word: usize| 8 * word as u64;
    let data = |words: usize| value_of(id).to_le_bytes().repeat(words);
    match kind {
        Kind::Read(pieces) => {
            let pieces: Vec<(u64, u32)> =
                pieces.iter().map(|&(first, count)| (at(first), 8 * count as u32)).collect();
            let call = match pieces[..] {
                [(offset, len)] => remote.read(offset, len),
                _ => remote.read_many(&pieces),
            };
            options.set(call).await.map(|bytes| words(&bytes))
        }
        Kind::Write(range) => {
            let call = remote.write(at(range.start), data(range.len()));
            options.set(call).await.map(|()| Vec::new())
        }
        Kind::ReadVersioned(place) => {
            let range = &VERSIONED[place];
            let call = remote.read_versioned(at(range.start), 8 * (range.len() as u32 - 1));
            let read = options.set(call).await;
            read.map(|read| [vec![read.version], words(&read.value)].concat())
        }
        Kind::WriteVersioned(place) => {
            let range = &VERSIONED[place];
            let call = remote.write_versioned(at(range.start), data(range.len() - 1));
            options.set(call).await.map(|word| vec![word])
        }
        Kind::Swap { word, expected } => {
            let call = remote.compare_swap(at(word), expected, value_of(id));
            options.set(call).await.map(|word| vec![word])
        }
        Kind::Add { word, bit } => {
            options.set(remote.fetch_add(at(word), bit)).await.map(|word| vec![word])
        }
    }
}

/// Draws the actions and the key of an operation, and whether its secret is guessed; `None` without a key.
fn draw_operation(
    rng: &mut Rng,
    regions: &Model,
    server: SimAddr,
    is_probe: bool,
) -> Option<(Kind, usize, bool)> {
    // The keys come in pairs: all rights, and fewer. Most operations use one of the latest keys.
    let is_valid = is_probe || rng.below(10) > 0;
    let mut keys = regions.keys_at(server, is_valid);
    keys.retain(|&key| !is_probe || regions.may_read(key));
    let latest = keys.len().saturating_sub(1 + rng.below(2) as usize);
    let key = match rng.below(4) {
        0 => keys.get(rng.below(keys.len() as u64) as usize),
        _ => keys.get(latest),
    };
    let key = *key?;
    let (is_guess, is_beyond) = (rng.below(24) == 0, rng.below(24) == 0);
    if is_probe {
        return Some((Kind::Read(vec![(0, SWAPPED.end)]), key, false));
    }
    let kind = match rng.below(16) {
        0 => Kind::Read(vec![draw_range(rng, is_beyond)]),
        1 => Kind::Read((0..rng.between(2, 5)).map(|_| draw_range(rng, is_beyond)).collect()),
        2 => Kind::Read(vec![(0, SWAPPED.end)]),
        3 => Kind::ReadVersioned(rng.below(2) as usize),
        4 | 5 => Kind::WriteVersioned(rng.below(2) as usize),
        6..9 => {
            let word = SWAPPED.start + rng.below(SWAPPED.len() as u64) as usize;
            let expected = match rng.below(8) {
                0 => 0,
                1 => rng.next_u64(),
                _ => regions.last_seen(key, word),
            };
            Kind::Swap { word, expected }
        }
        9..12 => {
            let word = rng.below(SUMS.len() as u64) as usize;
            regions.next_add(key, word).unwrap_or(Kind::Read(vec![(word, 1)]))
        }
        _ => {
            let (first, count) = draw_range(rng, is_beyond);
            Kind::Write(first..first + count)
        }
    };
    Some((kind, key, is_guess))
}

/// Draws some plain words, or a range beyond the end.
fn draw_range(rng: &mut Rng, is_beyond: bool) -> (usize, usize) {
    let most = match rng.below(4) {
        0 => 4,
        1 => 200,
        2 => 800,
        _ => PLAIN.len() as u64,
    };
    let count = rng.between(1, most) as usize;
    if is_beyond {
        return (WORDS + 1 - count, count);
    }
    // Many operations share words.
    let places = if rng.below(2) == 0 { 1 } else { PLAIN.len() - count + 1 };
    (PLAIN.start + rng.below(places as u64) as usize, count)
}

/// Returns the key with another secret.
fn guess(key: RegionKey) -> RegionKey {
    let mut bytes = key.to_bytes();
    bytes[4] ^= 1;
    RegionKey::from_bytes(&bytes).expect("the length of a key")
}
