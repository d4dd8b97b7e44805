//! A partition beside an exact model of log and index, over many laps of the log.
//!
//! `model.rs` lets a cache lose any item at any time. The model here computes the place of every item in the log and in a bucket, and
//! foretells every hit, miss and version, and all counters. The partition runs alone, and behind the handlers of an endpoint.

use std::borrow::Cow;
use std::collections::{BTreeSet, HashMap, VecDeque};

use petrel::endpoint::{AllowedTransports, Endpoint};
use petrel::server::RunningServer;
use petrel::{Client, Server};
use petrel_cache::wire::StoreMessage;
use petrel_cache::{
    CacheClient, Counters, Hasher, KeyRange, Lookups, Partition, PartitionConfig, Removed, Store,
    StoreError, Stored, Verb, serve_partition,
};
use proptest::prelude::*;

const MEMORY_BYTES: u64 = 64 << 10;
/// Buckets have 64 bytes, for five items of 160.
const BUCKETS: u64 = MEMORY_BYTES / (5 * 160 + 64);
const ENTRIES_PER_BUCKET: usize = 8;
/// A line is for the log's alignment.
const LOG_BYTES: u64 = MEMORY_BYTES - (BUCKETS + 1) * 64;
const ITEM_BYTES_MAX: u64 = LOG_BYTES / 8;
const HEADER_BYTES: u64 = 24;
/// The bytes after which positions repeat in the index.
const POSITIONS: u64 = 8 << 44;
/// The method of the test's endpoint for time and positions.
const CONTROL: u16 = 100;
const FIRST_SECOND: u32 = 2;
const STEPS_PER_ROUND_MAX: u32 = 4_000;

#[derive(Clone, Copy, Debug)]
enum Request {
    Get(u16),
    Set {
        key: u16,
        bytes: u64,
        ttl: u32,
        flags: u32,
    },
    Delete(u16),
    Touch(u16, u32),
    /// A second passes.
    Advance,
    /// All items go, and positions of some bytes pass.
    Skip(u64),
}

/// Version, flags and value of a found item; the version of a stored value; zeros for further requests with success.
type Reply = Option<(u64, u32, Vec<u8>)>;

const DONE: Reply = Some((0, 0, Vec::new()));

type Stats = Vec<(Cow<'static, str>, u64)>;

trait Cache {
    fn run(&mut self, request: Request) -> Reply;
    fn stats(&mut self) -> Stats;
}

/// A key in eight is long.
fn key_of(number: u16) -> Vec<u8> {
    let mut bytes = number.to_le_bytes().to_vec();
    bytes.resize(if number % 8 == 7 { 250 } else { 2 }, b'k');
    bytes
}

fn value_of(bytes: u64, flags: u32) -> Vec<u8> {
    vec![flags as u8; bytes as usize]
}

fn stats_of(items: u64, live_bytes: u64, counters: &Counters) -> Stats {
    let sizes = [("curr_items", items), ("bytes", live_bytes), ("partition_bytes", MEMORY_BYTES)];
    sizes.into_iter().chain(counters.named()).map(|(name, value)| (name.into(), value)).collect()
}

struct Item {
    position: u64,
    space: u64,
    bytes: u64,
    flags: u32,
    expiry: u32,
    cas: u64,
    is_fetched: bool,
    is_referenced: bool,
}

/// The rarer paths of a run.
#[derive(Debug, Default)]
struct Paths {
    in_place: u64,
    renewed: u64,
    ended_at_tail: u64,
    ended_in_bucket: u64,
    largest: u64,
}

struct Model {
    hasher: Hasher,
    head: u64,
    tail: u64,
    /// The position of the memory's first byte in the present lap.
    lap: u64,
    /// The objects from the tail on: bytes, and the key of an appended item.
    log: VecDeque<(u64, Option<u16>)>,
    items: HashMap<u16, Item>,
    /// Positions and keys of a bucket's items.
    buckets: Vec<BTreeSet<(u64, u16)>>,
    now: u32,
    cas: u64,
    counters: Counters,
    paths: Paths,
    /// Bytes that may still move from the tail to the head.
    renewal_bytes: u64,
    /// Appended items.
    appends: u64,
}

impl Model {
    fn new(hasher: Hasher, first_position: u64) -> Self {
        Self {
            hasher,
            head: first_position,
            tail: first_position,
            lap: first_position,
            log: VecDeque::new(),
            items: HashMap::new(),
            buckets: vec![BTreeSet::new(); BUCKETS as usize],
            now: FIRST_SECOND,
            cas: 0,
            counters: Counters::default(),
            paths: Paths::default(),
            renewal_bytes: 0,
            appends: 0,
        }
    }

    fn bucket(&mut self, key: u16) -> &mut BTreeSet<(u64, u16)> {
        let hash = self.hasher.key(&key_of(key)).unwrap().hash();
        let part = (hash >> 20) & 0xffff_ffff;
        &mut self.buckets[((part * BUCKETS) >> 32) as usize]
    }

    fn take(&mut self, key: u16) -> Option<Item> {
        let item = self.items.remove(&key)?;
        assert!(self.bucket(key).remove(&(item.position, key)));
        Some(item)
    }

    fn has_ended(&self, item: &Item) -> bool {
        item.expiry != 0 && item.expiry <= self.now
    }

    /// Removes a displaced or expired item. Returns whether the item was evicted.
    fn displace(&mut self, key: u16) -> bool {
        let item = self.take(key).unwrap();
        let has_ended = self.has_ended(&item);
        let (all, unfetched) = match has_ended {
            true => (&mut self.counters.reclaimed, &mut self.counters.expired_unfetched),
            false => (&mut self.counters.evictions, &mut self.counters.evicted_unfetched),
        };
        *all += 1;
        *unfetched += u64::from(!item.is_fetched);
        !has_ended
    }

    /// Finds an item, and removes an expired item.
    fn find(&mut self, key: u16) -> Option<&mut Item> {
        if self.has_ended(self.items.get(&key)?) {
            self.displace(key);
        }
        self.items.get_mut(&key)
    }

    /// Returns the position of a new item at the head. The oldest items make place.
    fn append(&mut self, key: u16, space: u64) -> u64 {
        self.renewal_bytes = (self.renewal_bytes + 4 * space).min(2 << 20);
        while !self.has_room(space) {
            let (bytes, oldest) = self.log.pop_front().unwrap();
            let is_there =
                |key: &u16| self.items.get(key).is_some_and(|it| it.position == self.tail);
            let oldest = oldest.filter(is_there);
            self.tail += bytes;
            let Some(oldest) = oldest else { continue };
            let item = &self.items[&oldest];
            let is_kept = item.is_referenced && !self.has_ended(item);
            if is_kept && bytes <= self.renewal_bytes && self.has_room(bytes) {
                self.renew(oldest);
            } else {
                self.paths.ended_at_tail += u64::from(!self.displace(oldest));
            }
        }
        self.push(key, space)
    }

    /// The bytes before the end of the memory that an item of this space leaves out, if it leaves any out.
    fn padding(&self, space: u64) -> Option<u64> {
        Some(LOG_BYTES - (self.head - self.lap)).filter(|left| *left < space)
    }

    fn has_room(&self, space: u64) -> bool {
        self.head - self.tail + self.padding(space).unwrap_or(0) + space <= LOG_BYTES
    }

    /// Returns the position of an object at the head.
    fn push(&mut self, key: u16, space: u64) -> u64 {
        if let Some(padding) = self.padding(space) {
            self.log.push_back((padding, None));
            self.head += padding;
            self.lap = self.head;
        }
        self.log.push_back((space, Some(key)));
        self.head += space;
        self.appends += 1;
        self.head - space
    }

    /// Moves the item at the tail, which was in use, to the head.
    fn renew(&mut self, key: u16) {
        let item = self.take(key).unwrap();
        self.renewal_bytes -= item.space;
        let position = self.push(key, item.space);
        self.bucket(key).insert((position, key));
        self.items.insert(key, Item { position, is_referenced: false, ..item });
        self.counters.moved_items += 1;
        self.paths.renewed += 1;
    }

    fn set(&mut self, key: u16, bytes: u64, flags: u32, expiry: u32) -> Option<u64> {
        self.counters.cmd_set += 1;
        let old = self.find(key).map(|old| (old.position, old.space));
        let space = (HEADER_BYTES + key_of(key).len() as u64 + bytes).next_multiple_of(8);
        if space > ITEM_BYTES_MAX {
            self.counters.store_too_large += 1;
            self.take(key);
            return None;
        }
        self.paths.largest += u64::from(space == ITEM_BYTES_MAX);
        let in_place = old.filter(|(_, old)| *old == space).map(|(position, _)| position);
        self.paths.in_place += u64::from(in_place.is_some());
        let position = match in_place {
            Some(position) => position,
            None => self.append(key, space),
        };
        self.take(key);
        if self.bucket(key).len() == ENTRIES_PER_BUCKET {
            let (_, oldest) = *self.bucket(key).first().unwrap();
            let is_evicted = self.displace(oldest);
            self.counters.index_evictions += u64::from(is_evicted);
            self.paths.ended_in_bucket += u64::from(!is_evicted);
        }
        self.cas += 1;
        self.counters.total_items += 1;
        self.bucket(key).insert((position, key));
        let (cas, is_referenced) = (self.cas, in_place.is_some());
        let is_fetched = false;
        let item = Item { position, space, bytes, flags, expiry, cas, is_fetched, is_referenced };
        self.items.insert(key, item);
        Some(self.cas)
    }

    fn get(&mut self, key: u16) -> Reply {
        self.counters.cmd_get += 1;
        let was_there = self.items.contains_key(&key);
        let found = self.find(key).map(|item| {
            (item.is_fetched, item.is_referenced) = (true, true);
            (item.cas, item.flags, value_of(item.bytes, item.flags))
        });
        self.counters.get_hits += u64::from(found.is_some());
        self.counters.get_misses += u64::from(found.is_none());
        self.counters.get_expired += u64::from(was_there && found.is_none());
        found
    }

    fn expiry(&self, ttl: u32) -> u32 {
        if ttl == 0 { 0 } else { self.now + ttl }
    }
}

impl Cache for Model {
    fn run(&mut self, request: Request) -> Reply {
        match request {
            Request::Get(key) => return self.get(key),
            Request::Set { key, bytes, ttl, flags } => {
                let cas = self.set(key, bytes, flags, self.expiry(ttl))?;
                return Some((cas, 0, Vec::new()));
            }
            Request::Delete(key) => {
                let is_there = self.find(key).is_some();
                self.counters.delete_hits += u64::from(is_there);
                self.counters.delete_misses += u64::from(!is_there);
                self.take(key)?;
            }
            Request::Touch(key, ttl) => {
                let expiry = self.expiry(ttl);
                let found = self.find(key).map(|item| {
                    (item.expiry, item.is_referenced) = (expiry, true);
                });
                self.counters.cmd_touch += 1;
                self.counters.touch_hits += u64::from(found.is_some());
                self.counters.touch_misses += u64::from(found.is_none());
                found?;
            }
            Request::Advance => self.now += 1,
            Request::Skip(bytes) => {
                self.log.clear();
                self.items.clear();
                self.buckets.iter_mut().for_each(BTreeSet::clear);
                self.head += bytes;
                self.lap += bytes;
                self.tail = self.head;
            }
        }
        DONE
    }

    fn stats(&mut self) -> Stats {
        let live_bytes = self.items.values().map(|item| item.space).sum();
        stats_of(self.items.len() as u64, live_bytes, &self.counters)
    }
}

fn partition(hasher: &Hasher, first_position: u64) -> Partition {
    let config = PartitionConfig { first_position, ..PartitionConfig::new(MEMORY_BYTES) };
    let mut partition = Partition::new(&config, hasher.clone()).unwrap();
    partition.set_time(FIRST_SECOND);
    partition
}

impl Cache for (Partition, Hasher) {
    fn run(&mut self, request: Request) -> Reply {
        let (partition, hasher) = self;
        let bytes = match request {
            Request::Get(key) | Request::Delete(key) | Request::Touch(key, _) => key_of(key),
            Request::Set { key, .. } => key_of(key),
            Request::Advance | Request::Skip(_) => vec![0],
        };
        let key = hasher.key(&bytes).unwrap();
        let expiry = |ttl| if ttl == 0 { 0 } else { partition.time() + ttl };
        let is_done = match request {
            Request::Get(_) => {
                return partition.get(key).map(|it| (it.cas, it.flags, it.value.to_vec()));
            }
            Request::Set { bytes, ttl, flags, .. } => {
                let value = value_of(bytes, flags);
                let request = Store { flags, expiry: expiry(ttl), ..Store::set(key, &value) };
                return match partition.store(&request) {
                    Ok(Stored::Done { cas }) => Some((cas, 0, Vec::new())),
                    Err(StoreError::TooLarge { .. }) => None,
                    outcome => panic!("{outcome:?}"),
                };
            }
            Request::Delete(_) => partition.delete(key, None) == Removed::Done,
            Request::Touch(_, ttl) => partition.touch(key, expiry(ttl)),
            Request::Advance => {
                partition.set_time(partition.time() + 1);
                true
            }
            Request::Skip(bytes) => {
                partition.skip_positions(bytes);
                true
            }
        };
        if is_done { DONE } else { None }
    }

    fn stats(&mut self) -> Stats {
        stats_of(self.0.items(), self.0.live_bytes(), self.0.counters())
    }
}

/// A partition behind an endpoint, with a method for time and positions.
struct Served {
    client: CacheClient,
    control: Client,
    server: RunningServer,
}

impl Served {
    fn start(hasher: &Hasher, first_position: u64, lookups: Lookups) -> Self {
        let (own, range) = (hasher.clone(), KeyRange::new(hasher.clone(), 0, 1));
        let set_up = move |endpoint: &mut Endpoint<Partition>| {
            serve_partition(endpoint, &range, lookups, |partition| partition);
            endpoint.on(CONTROL, |partition, cx, request| {
                match u64::from_le_bytes(request.data().try_into().unwrap()) {
                    0 => partition.set_time(partition.time() + 1),
                    bytes => partition.skip_positions(bytes),
                }
                request.reply(cx, &[])
            });
        };
        let make = move |_| partition(&own, first_position);
        let server = Server::in_process().serve(make, set_up).start().unwrap();
        let builder = Client::builder().transports(AllowedTransports::SHM);
        let client = CacheClient::connect_wait(builder, server.local_addr()).unwrap();
        Self { client, control: server.client().unwrap(), server }
    }

    fn stop(self) {
        drop((self.client, self.control));
        self.server.stop();
        self.server.wait().unwrap();
    }
}

impl Cache for Served {
    fn run(&mut self, request: Request) -> Reply {
        let client = &self.client;
        let is_done = match request {
            Request::Get(key) => {
                let found = client.get(&key_of(key)).wait().unwrap();
                return found.map(|found| (found.cas, found.flags, found.bytes));
            }
            Request::Set { key, bytes, ttl: ttl_s, flags } => {
                let (key, value) = (&key_of(key)[..], &value_of(bytes, flags)[..]);
                let (verb, compare) = (Verb::Set, None);
                let message = StoreMessage { verb, compare, flags, ttl_s, key, value };
                return match client.store(&message).wait() {
                    Ok(Stored::Done { cas }) => Some((cas, 0, Vec::new())),
                    Ok(outcome) => panic!("{outcome:?}"),
                    Err(error) => {
                        assert_eq!(error.status(), petrel::Status::InvalidArgument, "{error}");
                        None
                    }
                };
            }
            Request::Delete(key) => {
                client.delete(&key_of(key), None).wait().unwrap() == Removed::Done
            }
            Request::Touch(key, ttl) => client.touch(&key_of(key), ttl).wait().unwrap(),
            Request::Advance | Request::Skip(_) => {
                let bytes = if let Request::Skip(bytes) = request { bytes } else { 0 };
                self.control.call(CONTROL, bytes.to_le_bytes()).wait().unwrap();
                true
            }
        };
        if is_done { DONE } else { None }
    }

    fn stats(&mut self) -> Stats {
        let stats = self.client.stats().wait().unwrap();
        stats.into_iter().map(|(name, value)| (name.into(), value)).collect()
    }
}

/// A generator of equal numbers for equal seeds (SplitMix64).
struct Draws(u64);

impl Draws {
    fn below(&mut self, limit: u64) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mixed = (self.0 ^ self.0 >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let mixed = (mixed ^ mixed >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
        (mixed ^ mixed >> 31) % limit
    }

    fn ttl(&mut self) -> u32 {
        self.below(3) as u32 * self.below(12) as u32
    }

    /// A request for a key below `keys`, with a value of `least` to `most` bytes.
    fn request(&mut self, keys: u64, least: u64, most: u64) -> Request {
        let key = self.below(keys) as u16;
        match self.below(40) {
            0 => Request::Advance,
            1 => Request::Delete(key),
            2 => Request::Touch(key, self.ttl()),
            3..16 => Request::Get(key),
            draw => {
                // The largest item, and an item beyond the limit.
                let edge = ITEM_BYTES_MAX - HEADER_BYTES - key_of(key).len() as u64;
                let bytes = match draw {
                    16..24 if most > 1_000 => edge + self.below(2),
                    _ => least + self.below(most - least + 1),
                };
                Request::Set { key, bytes, ttl: self.ttl(), flags: self.below(1 << 32) as u32 }
            }
        }
    }
}

/// Keys, least and most bytes of the values of a round: items that overflow the buckets, items of any size, items of
/// one size that replace their predecessors, and items up to the largest.
const ROUNDS: [(u64, u64, u64); 5] =
    [(4_000, 0, 16), (400, 0, 600), (230, 300, 300), (4_000, 0, 16), (60, 0, ITEM_BYTES_MAX - 300)];

/// Runs rounds of a lap on a partition and on the model.
///
/// Counters are compared after every `every` requests, and after every round.
fn compare(cache: &mut impl Cache, mut model: Model, rounds: usize, every: u32, seed: u64) {
    let (mut draws, mut repeats) = (Draws(seed), 0);
    for round in 0..rounds {
        let (keys, least, most) = ROUNDS[round % ROUNDS.len()];
        let (start, appends) = (model.head, model.appends);
        for step in 0..STEPS_PER_ROUND_MAX {
            let request = draws.request(keys, least, most);
            assert_eq!(cache.run(request), model.run(request), "round {round}: {request:?}");
            if step % every == 0 {
                assert_eq!(cache.stats(), model.stats(), "round {round}: {request:?}");
            }
            if model.head - start > LOG_BYTES {
                break;
            }
        }
        repeats += model.head / POSITIONS - start / POSITIONS;
        assert_eq!(cache.stats(), model.stats(), "round {round}");
        if round % 4 == 3 {
            for key in 0..keys as u16 {
                let get = Request::Get(key);
                assert_eq!(cache.run(get), model.run(get), "round {round}: {get:?}");
            }
        }
        // Entries of full buckets are left behind. Two laps later, their positions are in the log again.
        if round % ROUNDS.len() == 0 {
            let skip = Request::Skip(POSITIONS - 2 * LOG_BYTES);
            assert_eq!(cache.run(skip), model.run(skip));
        }
        let appends = model.appends - appends;
        assert!(
            appends >= BUCKETS || round % ROUNDS.len() != 1,
            "{appends} do not visit all buckets"
        );
    }
    assert_eq!(cache.stats(), model.stats());
    let Model { counters, paths, .. } = model;
    let Paths { in_place, renewed, ended_at_tail, ended_in_bucket, largest } = paths;
    let rare = [repeats, in_place, renewed, ended_at_tail, ended_in_bucket, largest];
    let counted = [counters.index_evictions, counters.store_too_large, counters.delete_hits];
    assert!(rare.into_iter().chain(counted).all(|count| count > 0), "{paths:?}, {counters:?}");
}

/// The position of the first item: 0, or some items before positions repeat.
fn first_position(is_late: bool) -> u64 {
    if is_late { POSITIONS - 4_000 } else { 0 }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(12))]

    #[test]
    fn partition__is_foretold(seed: u64, is_late: bool) {
        let (hasher, first) = (Hasher::new(seed), first_position(is_late));
        let mut cache = (partition(&hasher, first), hasher.clone());
        compare(&mut cache, Model::new(hasher, first), 40, 1, seed);
    }
}

#[test]
fn service__is_foretold() {
    for (number, lookups) in [Lookups::Prefetched, Lookups::Batched].into_iter().enumerate() {
        let (hasher, first) = (Hasher::new(7), first_position(number == 0));
        let mut served = Served::start(&hasher, first, lookups);
        compare(&mut served, Model::new(hasher, first), 16, 100, number as u64);
        served.stop();
    }
}
