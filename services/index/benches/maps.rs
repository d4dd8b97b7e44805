//! The maps of the store, compared with the alternatives: `cargo bench -p petrel-index --bench maps`.
//!
//! One thread, random words. Ordered maps: an insertion, a lookup, a sum over the 128 pairs that follow a key. Tables
//! for lookups: an insertion and a lookup. Every map is measured several times; the program prints medians, in
//! nanoseconds.

use std::collections::BTreeMap;
use std::hash::{BuildHasher, Hasher};
use std::hint::black_box;
use std::ops::{Bound, ControlFlow};
use std::sync::RwLock;
use std::time::Instant;

use petrel_index::{OrderedMap, Points, Tree, Words};

const KEYS: u64 = 1_000_000;
const LOOKUPS: u64 = 1_000_000;
const SCANS: u64 = 20_000;
const SUMMED: usize = 128;
const TURNS: usize = 3;

/// Nanoseconds of an insertion, a lookup, a scan.
type Costs = [Option<f64>; 3];

/// Measures a map with the given number of keys.
type Measure = fn(u64) -> Costs;

fn main() {
    // `cargo test` runs benches, too, only as a check.
    let is_test = !std::env::args().any(|argument| argument == "--bench");
    let (keys, turns) = if is_test { (1_000, 1) } else { (KEYS, TURNS) };
    let candidates: [(&str, Measure); 11] = [
        ("scc::TreeIndex", tree),
        ("crossbeam SkipMap", skip_map),
        ("RwLock<BTreeMap>", locked_b_tree),
        ("concurrent-map", concurrent_map),
        ("Words: Points and keys in scc::TreeIndex", words),
        ("Points", points),
        ("scc::HashIndex", hash_index),
        ("scc::HashMap", hash_map),
        ("papaya", papaya),
        ("DashMap, 256 shards", dash_map),
        ("std HashMap, no concurrency", plain),
    ];
    let mut all = candidates.map(|_| Vec::new());
    for _ in 0..turns {
        for ((_, measure), costs) in candidates.iter().zip(&mut all) {
            costs.push(measure(keys));
        }
    }
    println!("| map | insertion | lookup | {SUMMED} following |\n| --- | --- | --- | --- |");
    for ((name, _), costs) in candidates.iter().zip(&all) {
        let cells = [0, 1, 2].map(|which| median(costs, which));
        println!("| {name} | {} | {} | {} |", cells[0], cells[1], cells[2]);
    }
}

fn median(costs: &[Costs], which: usize) -> String {
    let mut values: Vec<f64> = costs.iter().filter_map(|costs| costs[which]).collect();
    values.sort_by(f64::total_cmp);
    values.get(values.len() / 2).map_or("-".to_owned(), |ns| format!("{ns:.0} ns"))
}

/// The mean time of this number of calls; their results are used.
fn time(count: u64, mut call: impl FnMut(u64) -> u64) -> Option<f64> {
    let begin = Instant::now();
    black_box((0..count).fold(0u64, |sum, number| sum.wrapping_add(call(number))));
    Some(begin.elapsed().as_nanos() as f64 / count as f64)
}

/// The three measurements of a map.
fn costs(
    keys: u64,
    mut insert: impl FnMut(u64),
    lookup: impl Fn(u64) -> Option<u64>,
    scan: Option<&dyn Fn(u64) -> u64>,
) -> Costs {
    let inserted = time(keys, |number| {
        insert(mix(number));
        0
    });
    let some_key = |number: u64| mix(mix(number ^ 0x55) % keys);
    let looked_up = time(LOOKUPS.min(keys * 10), |number| {
        let key = some_key(number);
        let value = lookup(key);
        assert_eq!(value, Some(!key));
        key
    });
    let scanned = scan.and_then(|scan| time(SCANS.min(keys), |number| scan(some_key(number))));
    [inserted, looked_up, scanned]
}

fn tree(keys: u64) -> Costs {
    let map = Tree::<u64, u64>::default();
    let insert = |key: u64| assert!(map.insert(key, !key));
    let scan = |key: u64| {
        let (mut left, mut sum) = (SUMMED, 0u64);
        map.scan(Bound::Excluded(&key), |_, value| {
            sum = sum.wrapping_add(*value);
            left -= 1;
            if left == 0 { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
        });
        sum
    };
    costs(keys, insert, |key| map.read(&key, |value| *value), Some(&scan))
}

fn skip_map(keys: u64) -> Costs {
    let map = crossbeam_skiplist::SkipMap::new();
    let insert = |key: u64| drop(map.insert(key, !key));
    let scan = |key: u64| {
        let following = map.range((Bound::Excluded(key), Bound::Unbounded)).take(SUMMED);
        following.fold(0u64, |sum, entry| sum.wrapping_add(*entry.value()))
    };
    costs(keys, insert, |key| Some(*map.get(&key)?.value()), Some(&scan))
}

fn locked_b_tree(keys: u64) -> Costs {
    let map = RwLock::new(BTreeMap::new());
    let insert = |key: u64| assert!(map.write().unwrap().insert(key, !key).is_none());
    let scan = |key: u64| {
        let map = map.read().unwrap();
        let following = map.range((Bound::Excluded(key), Bound::Unbounded)).take(SUMMED);
        following.fold(0u64, |sum, (_, value)| sum.wrapping_add(*value))
    };
    costs(keys, insert, |key| map.read().unwrap().get(&key).copied(), Some(&scan))
}

fn concurrent_map(keys: u64) -> Costs {
    let map = concurrent_map::ConcurrentMap::<u64, u64>::default();
    let insert = |key: u64| assert!(map.insert(key, !key).is_none());
    let scan = |key: u64| {
        let following = map.range((Bound::Excluded(key), Bound::Unbounded)).take(SUMMED);
        following.fold(0u64, |sum, (_, value)| sum.wrapping_add(value))
    };
    costs(keys, insert, |key| map.get(&key), Some(&scan))
}

fn words(keys: u64) -> Costs {
    let words = Words::<Tree<u64, ()>>::new(keys, u64::MAX);
    let insert = |key: u64| assert_eq!(words.put(key, !key), Ok(None));
    let scan = |key: u64| words.sum_after(key, SUMMED).1;
    costs(keys, insert, |key| words.get(key), Some(&scan))
}

fn points(keys: u64) -> Costs {
    let points = Points::for_keys(keys);
    costs(keys, |key| points.writer(key).insert(!key), |key| points.get(key), None)
}

fn hash_index(keys: u64) -> Costs {
    let map = scc::HashIndex::with_capacity_and_hasher(2 * keys as usize, Fold);
    let insert = |key: u64| assert!(map.insert_sync(key, !key).is_ok());
    costs(keys, insert, |key| map.peek_with(&key, |_, value| *value), None)
}

fn hash_map(keys: u64) -> Costs {
    let map = scc::HashMap::with_capacity_and_hasher(2 * keys as usize, Fold);
    let insert = |key: u64| assert!(map.insert_sync(key, !key).is_ok());
    costs(keys, insert, |key| map.read_sync(&key, |_, value| *value), None)
}

fn papaya(keys: u64) -> Costs {
    let map = papaya::HashMap::with_capacity_and_hasher(2 * keys as usize, Fold);
    let insert = |key: u64| assert!(map.pin().insert(key, !key).is_none());
    costs(keys, insert, |key| map.pin().get(&key).copied(), None)
}

fn dash_map(keys: u64) -> Costs {
    let capacity = 2 * keys as usize;
    let map = dashmap::DashMap::with_capacity_and_hasher_and_shard_amount(capacity, Fold, 256);
    let insert = |key: u64| assert!(map.insert(key, !key).is_none());
    costs(keys, insert, |key| map.get(&key).map(|value| *value), None)
}

fn plain(keys: u64) -> Costs {
    let capacity = 2 * keys as usize;
    let map = std::cell::RefCell::new(std::collections::HashMap::with_capacity_and_hasher(
        capacity, Fold,
    ));
    let insert = |key: u64| assert!(map.borrow_mut().insert(key, !key).is_none());
    costs(keys, insert, |key| map.borrow().get(&key).copied(), None)
}

/// Spreads numbers over all words, one to one (splitmix64).
fn mix(number: u64) -> u64 {
    let mut word = number.wrapping_add(0x9E37_79B9_7F4A_7C15);
    word = (word ^ (word >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
    word = (word ^ (word >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
    word ^ (word >> 31)
}

/// The hash of [`Points`], to charge no candidate for a slower hash.
#[derive(Clone, Copy)]
struct Fold;

struct Folded(u64);

impl BuildHasher for Fold {
    type Hasher = Folded;

    fn build_hasher(&self) -> Folded {
        Folded(0)
    }
}

impl Hasher for Folded {
    fn finish(&self) -> u64 {
        self.0
    }

    fn write(&mut self, bytes: &[u8]) {
        bytes.iter().for_each(|byte| self.write_u64((*byte).into()));
    }

    fn write_u64(&mut self, word: u64) {
        let product = u128::from(self.0 ^ word) * 0x9E37_79B9_7F4A_7C15;
        self.0 = (product >> 64) as u64 ^ product as u64;
    }
}
