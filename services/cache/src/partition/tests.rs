//! Look-ups in batches, beside plain ones.

use proptest::prelude::*;

use super::{Fetched, Mode, Partition, PartitionConfig, Store};
use crate::key::{Hasher, Key};

/// Positions repeat in the index after so many bytes.
const POSITIONS: u64 = 8 << 44;

#[derive(Clone, Debug)]
enum Step {
    LookUp(Vec<u8>),
    Store { key: u8, bytes: usize, ttl: u32 },
    Delete(u8),
    Advance(u32),
    Flush,
}

fn step() -> impl Strategy<Value = Step> {
    let bytes = prop_oneof![4 => 0..200usize, 1 => 0..2_000usize];
    let ttl = prop_oneof![2 => Just(0), 1 => 1..6u32];
    prop_oneof![
        // A batch of the handler, and longer ones; keys come twice in them.
        6 => prop::collection::vec(any::<u8>(), 0..80).prop_map(Step::LookUp),
        3 => prop::collection::vec(0..8u8, 0..40).prop_map(Step::LookUp),
        16 => (any::<u8>(), bytes, ttl).prop_map(|(key, bytes, ttl)| Step::Store { key, bytes, ttl }),
        1 => any::<u8>().prop_map(Step::Delete),
        2 => (1..4u32).prop_map(Step::Advance),
        1 => (0..40u8).prop_map(|choice| if choice == 0 { Step::Flush } else { Step::Advance(1) }),
    ]
}

/// The version and the value of each item that was found.
type Found = Vec<Option<(u64, Vec<u8>)>>;

/// A partition, and a function that looks several items up: version and value of each, or `None`.
struct Side {
    partition: Partition,
    hasher: Hasher,
    look_up: fn(&mut Partition, &[Key<'_>]) -> Found,
}

fn plain(partition: &mut Partition, keys: &[Key<'_>]) -> Found {
    let get = |key: &Key<'_>| partition.get(*key).map(|item| (item.cas, item.value.to_vec()));
    keys.iter().map(get).collect()
}

fn batched(partition: &mut Partition, keys: &[Key<'_>]) -> Found {
    let mut results = Vec::new();
    partition.get_batch(keys.iter().copied().enumerate(), |index, item| {
        assert_eq!(index, results.len(), "results come in the order of the keys");
        results.push(item.map(|item| (item.cas, item.value.to_vec())));
    });
    results
}

impl Side {
    fn run(&mut self, step: &Step) -> Found {
        let Self { partition, hasher, look_up } = self;
        let key = |at: &u8| hasher.key(&BYTES[usize::from(*at)..][..1]).unwrap();
        match step {
            Step::LookUp(keys) => {
                let keys: Vec<_> = keys.iter().map(key).collect();
                return look_up(partition, &keys);
            }
            Step::Store { key: at, bytes, ttl } => {
                let expiry = if *ttl == 0 { 0 } else { partition.time() + ttl };
                let value = vec![*at; *bytes];
                // A full store refuses both sides alike.
                let _ = partition.store(&Store { expiry, ..Store::set(key(at), &value) });
            }
            Step::Delete(at) => {
                partition.delete(key(at), None);
            }
            Step::Advance(seconds) => partition.set_time(partition.time() + seconds),
            Step::Flush => partition.flush(),
        }
        Vec::new()
    }

    /// The items with the marks of accesses.
    fn items(&mut self) -> Vec<Option<(Vec<u8>, bool, u32)>> {
        let Self { partition, hasher, .. } = self;
        let seen = |fetched: Fetched<'_>| {
            (fetched.item.value.to_vec(), fetched.was_fetched, fetched.idle_s)
        };
        BYTES.iter().map(|at| partition.peek(hasher.key(&[*at]).unwrap()).map(seen)).collect()
    }
}

/// The numbers from 0 to 255: keys of one byte.
static BYTES: [u8; 256] = {
    let mut bytes = [0; 256];
    let mut at = 0;
    while at < 256 {
        bytes[at] = at as u8;
        at += 1;
    }
    bytes
};

fn compare(mode: Mode, first_position: u64, steps: &[Step]) {
    let hasher = Hasher::new(1);
    let config = PartitionConfig { mode, first_position, ..PartitionConfig::new(64 << 10) };
    let mut sides = [plain, batched].map(|look_up: fn(&mut Partition, &[Key<'_>]) -> _| {
        let mut partition = Partition::new(&config, hasher.clone()).unwrap();
        partition.set_time(2);
        Side { partition, hasher: hasher.clone(), look_up }
    });
    for step in steps {
        let [plain, batched] = sides.each_mut().map(|side| side.run(step));
        assert_eq!(plain, batched, "{step:?}");
        let [plain, batched] = sides.each_ref().map(|side| {
            (*side.partition.counters(), side.partition.items(), side.partition.live_bytes())
        });
        assert_eq!(plain, batched, "{step:?}");
    }
    let [plain, batched] = sides.each_mut().map(Side::items);
    assert_eq!(plain, batched);
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(200))]

    #[test]
    fn get_batch__equals_plain_look_ups(
        steps in prop::collection::vec(step(), 0..400), is_store: bool, is_late: bool,
    ) {
        let mode = if is_store { Mode::Store } else { Mode::Cache };
        compare(mode, if is_late { POSITIONS - 90_000 } else { 0 }, &steps);
    }
}

/// An item whose time is over is removed, and counted, by the first of two look-ups of a batch.
#[test]
fn get_batch__removes_an_ended_item_once() {
    let steps = [
        Step::Store { key: 7, bytes: 10, ttl: 1 },
        Step::Advance(1),
        Step::LookUp(vec![7, 8, 7, 7]),
    ];
    compare(Mode::Store, 0, &steps);
    compare(Mode::Cache, 0, &steps);
}

/// Items with one hash have equal tags in one bucket: the key decides.
#[test]
fn get__finds_each_of_several_items_with_equal_tags() {
    for mode in [Mode::Cache, Mode::Store] {
        let config = PartitionConfig { mode, ..PartitionConfig::new(64 << 10) };
        let mut partition = Partition::new(&config, Hasher::new(1)).unwrap();
        let keys = [&b"a"[..], b"b", b"c", b"d"].map(|bytes| Key::hashed(bytes, 77));
        for key in &keys[..3] {
            partition.store(&Store::set(*key, key.bytes())).unwrap();
        }
        let expected = [Some(&b"a"[..]), Some(b"b"), Some(b"c"), None];
        for look_up in [plain, batched] {
            let found = look_up(&mut partition, &keys);
            let values = found.iter().map(|found| found.as_ref().map(|(_, value)| &value[..]));
            assert!(values.eq(expected), "{found:?}");
        }
    }
}

/// Expired items make place in the log and in a full bucket: no client loses an item.
#[test]
fn evictions__count_no_item_whose_time_is_over() {
    // Equal hashes fill a bucket with small values. Large values fill the log before any bucket.
    for (hash_step, bytes) in [(0, 10), (u64::MAX / 200, 1_000)] {
        let config = PartitionConfig::new(64 << 10);
        let mut partition = Partition::new(&config, Hasher::new(1)).unwrap();
        partition.set_time(3);
        let value = vec![1; bytes];
        for number in 0..100u8 {
            let key =
                Key::hashed(&BYTES[usize::from(number)..][..1], u64::from(number) * hash_step);
            partition.store(&Store { expiry: 3, ..Store::set(key, &value) }).unwrap();
        }
        let counters = partition.counters();
        assert_eq!((counters.evictions, counters.index_evictions), (0, 0), "{bytes} bytes");
        assert_eq!(counters.reclaimed, 100 - partition.items());
        assert_eq!(counters.expired_unfetched, counters.reclaimed);
    }
}

/// A flush that was due is over: items that are stored afterwards stay.
#[test]
fn flush_at__removes_items_once() {
    let hasher = Hasher::new(1);
    let mut partition = Partition::new(&PartitionConfig::new(64 << 10), hasher.clone()).unwrap();
    assert_eq!(partition.time(), 0);
    partition.flush_at(3);
    partition.set_time(3);
    partition.store(&Store::set(hasher.key(b"key").unwrap(), b"value")).unwrap();
    partition.set_time(4);
    assert_eq!((partition.items(), partition.counters().cmd_flush), (1, 1));
}

/// The index of a store for few large items is full before the log.
#[test]
fn store__of_items_that_the_index_refuses_counts_none() {
    let hasher = Hasher::new(1);
    let config = PartitionConfig {
        mode: Mode::Store,
        item_bytes_expected: 8 << 10,
        ..PartitionConfig::new(64 << 10)
    };
    let mut partition = Partition::new(&config, hasher.clone()).unwrap();
    let mut store = |at| partition.store(&Store::set(hasher.key(&[at]).unwrap(), b"value")).is_ok();
    let stored = BYTES.iter().filter(|at| store(**at)).count() as u64;
    assert!((1..100).contains(&stored), "{stored} stored");
    assert_eq!(partition.items(), stored);
}
