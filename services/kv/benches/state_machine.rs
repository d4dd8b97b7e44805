//! The cost of the state machine: nanoseconds per command and per lookup, with a million keys of 16 B and values of 64
//! B, in random order, from 64 sessions.
//!
//! `cargo bench --locked -p petrel-kv --bench state_machine [-- KEYS]`

use std::hint::black_box;
use std::time::Instant;

use petrel_kv::api::{Outcome, WriteReply};
use petrel_kv::command::{Command, Op};
use petrel_kv::store::{Builder, Cursor, Image, PREFETCH_MAX, Store};

const SESSIONS: u64 = 64;
const ROUNDS: u64 = 40;
/// Operations of a round.
const ROUND: u64 = 100_000;
const VALUE_BYTES: usize = 64;

fn main() {
    let keys = std::env::args().find_map(|word| word.parse().ok()).unwrap_or(1_000_000);
    for (name, key) in [("random keys", random_key as Key), ("keys that begin alike", decimal_key)]
    {
        println!("{keys} {name}, {VALUE_BYTES} B values:");
        measure(&mut Replica::new(keys, key));
    }
}

fn measure(replica: &mut Replica) {
    let keys = replica.keys;
    let resident_before = resident_bytes();
    let mut order: Vec<u64> = (0..keys).collect();
    replica.shuffle(&mut order);
    let mut order = order.into_iter();
    report("put, key not there", ROUNDS, keys / ROUNDS, |count| {
        order.by_ref().take(count as usize).for_each(|key| replica.put(key, false));
    });
    order.for_each(|key| replica.put(key, false));
    assert_eq!(replica.store.keys(), keys);
    let resident = resident_bytes().saturating_sub(resident_before);
    println!("  {:26} {:8.1} B", "memory per key", resident as f64 / keys as f64);
    report("put, key there", ROUNDS, ROUND, |count| replica.put_at_random(count));
    report("the same, prefetched in groups", ROUNDS, ROUND, |count| replica.put_in_groups(count));
    report("get", ROUNDS, ROUND, |count| replica.get_at_random(count));
    report("scan, per pair", 4, keys, |_| {
        let mut count = 0;
        let pairs = replica.store.scan(b"", None);
        pairs.for_each(|pair| count += u64::from(!black_box(pair).key.is_empty()));
        assert_eq!(count, keys);
    });
    let mut image = None;
    report("image", 10, 1, |_| image = Some(replica.store.image()));
    report("first puts after an image", 4, ROUND / 20, |count| replica.put_at_random(count));
    let image = image.expect("was made");
    let mut built = None;
    report("copy by chunks, per pair", 2, keys, |_| built = Some(copy(&image)));
    assert_eq!(built.expect("was built").digest(), image.digest());
    assert_ne!(replica.store.digest(), image.digest());
}

/// Prints the fastest and the median round: other load on the machine only slows rounds down.
fn report(name: &str, rounds: u64, count: u64, mut work: impl FnMut(u64)) {
    let mut round = || {
        let start = Instant::now();
        work(count);
        start.elapsed().as_nanos() as f64 / count as f64
    };
    let mut times: Vec<f64> = (0..rounds).map(|_| round()).collect();
    times.sort_by(f64::total_cmp);
    println!("  {name:26} {:8.1} ns, median {:8.1}", times[0], times[times.len() / 2]);
}

fn copy(image: &Image) -> Store {
    let mut builder = Builder::new();
    let mut cursor = Some(Cursor::default());
    while let Some(at) = cursor {
        let chunk = image.chunk(&at, 64 << 10);
        builder.add(&chunk.bytes).expect("the image's own chunk");
        cursor = chunk.next;
    }
    builder.finish().expect("the image's own chunks")
}

type Key = fn(u64) -> [u8; 16];

/// A store, and its log.
struct Replica {
    store: Store,
    keys: u64,
    key: Key,
    index: u64,
    random: u64,
    command: Vec<u8>,
    reply: Vec<u8>,
}

impl Replica {
    fn new(keys: u64, key: Key) -> Replica {
        let (command, reply) = (Vec::new(), Vec::new());
        let mut replica =
            Replica { store: Store::new(), keys, key, index: 0, random: 1, command, reply };
        for _ in 0..SESSIONS {
            Command::OpenSession.encode(&mut replica.command);
            replica.apply();
        }
        replica
    }

    fn put_at_random(&mut self, count: u64) {
        for _ in 0..count {
            let key = self.below(self.keys);
            self.put(key, true);
        }
    }

    /// Applies commands in groups, like a follower with the entries of an append.
    fn put_in_groups(&mut self, count: u64) {
        let mut group: Vec<Vec<u8>> = vec![Vec::new(); PREFETCH_MAX];
        for _ in 0..count / PREFETCH_MAX as u64 {
            for (index, command) in (self.index..).zip(&mut group) {
                let key = self.below(self.keys);
                command.clear();
                self.write(index, key, command);
            }
            self.store.prefetch(group.iter().map(Vec::as_slice));
            for command in &mut group {
                std::mem::swap(command, &mut self.command);
                self.apply();
                self.check(true);
            }
        }
    }

    fn get_at_random(&mut self, count: u64) {
        for _ in 0..count {
            let key = (self.key)(self.below(self.keys));
            let (value, _) = self.store.get(black_box(&key)).expect("was put");
            assert_eq!(black_box(value).len(), VALUE_BYTES);
        }
    }

    fn put(&mut self, key: u64, replaced: bool) {
        let mut command = std::mem::take(&mut self.command);
        self.write(self.index, key, &mut command);
        self.command = command;
        self.apply();
        self.check(replaced);
    }

    /// The command after the first `index` commands. Every session has a single pending write.
    fn write(&self, index: u64, key: u64, command: &mut Vec<u8>) {
        let (session, sequence) = (1 + index % SESSIONS, index / SESSIONS);
        let op = Op::Put { key: &(self.key)(key), value: &[index as u8; VALUE_BYTES] };
        Command::Write { session, sequence, first_pending: sequence, op }.encode(command);
    }

    fn check(&self, replaced: bool) {
        match WriteReply::decode(&self.reply) {
            Ok(WriteReply::Applied(applied)) => {
                assert_eq!(applied.outcome, Outcome::Put { replaced });
            }
            other => panic!("{other:?}"),
        }
    }

    fn apply(&mut self) {
        self.index += 1;
        self.reply.clear();
        self.store.apply(self.index, black_box(&self.command), &mut self.reply);
        self.command.clear();
    }

    fn below(&mut self, end: u64) -> u64 {
        self.random = self.random.wrapping_add(1);
        scatter(self.random) % end
    }

    fn shuffle(&mut self, order: &mut [u64]) {
        for at in (1..order.len()).rev() {
            order.swap(at, self.below(at as u64 + 1) as usize);
        }
    }
}

/// A different number for each, as if random (the last step of SplitMix64).
fn scatter(number: u64) -> u64 {
    let mut z = number.wrapping_mul(0x9E37_79B9_7F4A_7C15);
    z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
    z ^ (z >> 31)
}

fn random_key(number: u64) -> [u8; 16] {
    let mut key = [0; 16];
    key[..8].copy_from_slice(&scatter(number).to_le_bytes());
    key[8..].copy_from_slice(&scatter(!number).to_le_bytes());
    key
}

fn decimal_key(number: u64) -> [u8; 16] {
    let mut key = [0; 16];
    key.copy_from_slice(format!("key-{number:012}").as_bytes());
    key
}

/// Memory of the process, or 0 where the system does not report it.
fn resident_bytes() -> u64 {
    let status = std::fs::read_to_string("/proc/self/statm").unwrap_or_default();
    let pages: u64 = status.split(' ').nth(1).and_then(|pages| pages.parse().ok()).unwrap_or(0);
    pages * 4096
}
