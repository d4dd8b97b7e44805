//! The tables under many threads. The tests run until a number of scans is done, and assert properties of every
//! interleaving.

use std::ops::{Bound, ControlFlow};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread;

use petrel_index::{Bytes, Tree, Words};

/// Stable keys, which are 0 modulo 4, among three times as many volatile keys.
const STABLE: u64 = 1_000;
const SCANS: usize = 300;

/// Spreads numbers, one to one.
fn spread(number: u64) -> u64 {
    (number ^ (number >> 32)).wrapping_mul(0x9E37_79B9_7F4A_7C15)
}

fn stable_keys() -> impl Iterator<Item = u64> {
    (0..STABLE).map(|number| 4 * number)
}

fn is_stable(key: u64) -> bool {
    key.is_multiple_of(4) && key < 4 * STABLE
}

/// The keys that a churning thread puts and deletes.
fn churned_keys(thread: u64) -> impl Iterator<Item = u64> {
    (0..STABLE).map(move |number| 4 * number + 1 + thread)
}

/// Two threads put and delete all the time, while `reader` runs.
fn under_churn(change: impl Fn(u64, u64, bool) + Sync, reader: impl FnOnce()) {
    let is_over = AtomicBool::new(false);
    let rounds = AtomicU64::new(0);
    thread::scope(|scope| {
        for thread in 0..2 {
            let (is_over, rounds, change) = (&is_over, &rounds, &change);
            scope.spawn(move || {
                while !is_over.load(Ordering::Relaxed) {
                    let round = rounds.fetch_add(1, Ordering::Relaxed);
                    churned_keys(thread).for_each(|key| change(key, round, true));
                    churned_keys(thread).for_each(|key| change(key, round, false));
                }
            });
        }
        // A failure must end the threads, too.
        let over = EndsOnDrop(&is_over);
        // Without churn the test would check nothing.
        while rounds.load(Ordering::Relaxed) < 2 {
            thread::yield_now();
        }
        reader();
        drop(over);
    });
}

struct EndsOnDrop<'a>(&'a AtomicBool);

impl Drop for EndsOnDrop<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

/// Checks keys in the order of a scan: they ascend, and no stable key is missing.
fn assert_complete(keys: &[u64]) {
    assert!(keys.is_sorted_by(|a, b| a < b), "keys are out of order, or twice there");
    let stable: Vec<u64> = keys.iter().copied().filter(|key| is_stable(*key)).collect();
    let missing: Vec<u64> = stable_keys().filter(|key| !stable.contains(key)).collect();
    assert!(missing.is_empty(), "missing: {missing:?}");
    assert!(keys.iter().all(|key| *key < 4 * STABLE), "a key that nobody put");
}

#[test]
fn tree__scans_miss_nothing_that_stays() {
    let map = Tree::<u64, u64>::default();
    stable_keys().for_each(|key| assert!(map.insert(key, !key)));
    let change = |key: u64, _, is_put: bool| {
        assert!(if is_put { map.insert(key, !key) } else { map.remove(&key) });
    };
    under_churn(change, || {
        for _ in 0..SCANS {
            let mut keys = Vec::new();
            map.scan(Bound::<&u64>::Unbounded, |key, value| {
                assert_eq!(*value, !key);
                keys.push(*key);
                ControlFlow::Continue(())
            });
            assert_complete(&keys);
        }
    });
}

#[test]
fn words__scans_and_gets_miss_nothing_that_stays() {
    let words = Words::new(1, u64::MAX);
    stable_keys().for_each(|key| assert_eq!(words.put(key, spread(key)), Ok(None)));
    let change = |key: u64, _, is_put: bool| match is_put {
        true => assert_eq!(words.put(key, spread(key)), Ok(None)),
        false => assert_eq!(words.delete(key), Some(spread(key))),
    };
    under_churn(change, || {
        for scan in 0..SCANS {
            let mut keys = Vec::new();
            words.scan(Bound::Unbounded, usize::MAX, |key, value| {
                assert_eq!(value, spread(key));
                keys.push(key);
            });
            assert_complete(&keys);
            stable_keys().for_each(|key| assert_eq!(words.get(key), Some(spread(key))));
            // Every scan with enough stable keys after its start finds the requested number.
            assert_eq!(words.sum_after(scan as u64, 128).0, 128);
        }
    });
}

#[test]
fn bytes__scans_and_gets_miss_nothing_that_stays() {
    let bytes = Bytes::new(u64::MAX);
    let name = |key: u64| [&b"some prefix/"[..], &key.to_be_bytes()].concat();
    stable_keys().for_each(|key| assert_eq!(bytes.put(&name(key), &[0; 8]), Ok(false)));
    let change = |key: u64, round: u64, is_put: bool| {
        let name_of = name(key);
        match is_put {
            true => assert_eq!(bytes.put(&name_of, &round.to_le_bytes()), Ok(false)),
            false => assert!(bytes.delete(&name_of)),
        }
        // Both threads overwrite stable values, which leaves no gap.
        let stable = name(key / 4 * 4);
        assert_eq!(bytes.put(&stable, &round.to_le_bytes()), Ok(true));
    };
    under_churn(change, || {
        for _ in 0..SCANS {
            let mut keys = Vec::new();
            bytes.scan(Bound::Unbounded, |key, value| {
                assert_eq!(value.len(), 8);
                let number = key.strip_prefix(b"some prefix/").expect("a key that somebody put");
                keys.push(u64::from_be_bytes(number.try_into().unwrap()));
                ControlFlow::Continue(())
            });
            assert_complete(&keys);
            stable_keys().for_each(|key| assert!(bytes.get(&name(key)).is_some()));
        }
    });
}

/// Several threads put and delete the same keys: at the end both structures and the count agree. Without exclusion
/// between writers, a key would remain in only one structure.
#[test]
fn words__agree_with_their_order_after_a_race() {
    const KEYS: u64 = 3;
    let words = Words::new(1, u64::MAX);
    thread::scope(|scope| {
        for thread in 0..3u64 {
            let words = &words;
            scope.spawn(move || {
                let mut state = thread;
                for _ in 0..300_000 {
                    state = spread(state + 1);
                    let key = (state >> 20) % KEYS;
                    match state >> 63 {
                        0 => words.put(key, state).unwrap(),
                        _ => words.delete(key),
                    };
                }
            });
        }
    });
    let mut scanned = Vec::new();
    words.scan(Bound::Unbounded, usize::MAX, |key, value| scanned.push((key, value)));
    let got: Vec<_> = (0..KEYS).filter_map(|key| Some((key, words.get(key)?))).collect();
    assert_eq!(scanned, got);
    assert_eq!(words.len(), got.len() as u64);
    // No key was left in the ordered map, which would keep the key from coming back.
    for key in 0..KEYS {
        words.put(key, key).unwrap();
    }
    assert_eq!((words.sum_after(0, 128).0 as u64, words.len()), (KEYS - 1, KEYS));
}

/// A thread increments a word. A reader never sees a smaller number than before, by GET or by scan.
#[test]
fn words__never_go_back_in_time() {
    const LAST: u64 = 30_000;
    let words = Words::new(1, u64::MAX);
    words.put(500, 0).unwrap();
    thread::scope(|scope| {
        scope.spawn(|| (1..=LAST).for_each(|number| assert!(words.put(500, number).is_ok())));
        let mut seen = 0;
        while seen < LAST {
            let got = words.get(500).expect("it stays");
            let (found, sum) = words.sum_after(499, 1);
            assert!(got >= seen && sum >= got && found == 1, "{seen}, then {got}, then {sum}");
            seen = sum;
        }
    });
}
