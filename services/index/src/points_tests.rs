use std::collections::BTreeMap;
use std::sync::atomic::AtomicBool;
use std::thread;

use proptest::prelude::*;

use super::*;

#[derive(Clone, Debug)]
enum Step {
    Put(u64, u64),
    Remove(u64),
    Get(u64),
}

/// Few keys, and even fewer homes, for long chains.
fn steps() -> impl Strategy<Value = Vec<Step>> {
    let key = || 0..2_000u64;
    let step = prop_oneof![
        3 => (key(), any::<u64>()).prop_map(|(key, value)| Step::Put(key, value)),
        2 => key().prop_map(Step::Remove),
        1 => key().prop_map(Step::Get),
    ];
    prop::collection::vec(step, 1..4_000)
}

fn put(points: &Points, key: u64, value: u64) -> Option<u64> {
    let writer = points.writer(key);
    let former = writer.replace(value);
    if former.is_none() {
        writer.insert(value);
    }
    former
}

/// A table with the fewest possible homes.
fn fewest_homes() -> Points {
    Points::for_keys(1)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    #[test]
    fn points__are_a_map(steps in steps()) {
        let (points, mut model) = (fewest_homes(), BTreeMap::new());
        for step in steps {
            match step {
                Step::Put(key, value) => prop_assert_eq!(put(&points, key, value), model.insert(key, value)),
                Step::Remove(key) => prop_assert_eq!(points.writer(key).remove(), model.remove(&key)),
                Step::Get(key) => prop_assert_eq!(points.get(key), model.get(&key).copied()),
            }
        }
        for key in 0..2_000 {
            prop_assert_eq!(points.get(key), model.get(&key).copied());
            prop_assert_eq!(points.writer(key).get(), model.get(&key).copied());
        }
    }
}

#[test]
fn remove__releases_all_overflow_lines() {
    let points = fewest_homes();
    for key in 0..10_000 {
        assert_eq!(put(&points, key, !key), None);
    }
    // 256 homes have room for 768.
    assert!(points.overflow_lines() >= (10_000 - 768) / 3);
    for key in 0..10_000 {
        assert_eq!(points.writer(key).remove(), Some(!key));
    }
    assert_eq!(points.overflow_lines(), 0);
    assert!((0..10_000).all(|key| points.get(key).is_none()));
}

#[test]
fn place__covers_the_segments_without_gaps() {
    let mut expected = (0, 0);
    for number in 0..100_000 {
        assert_eq!(place(number), expected);
        expected.1 += 1;
        if expected.1 == FIRST_SEGMENT_LINES << expected.0 {
            expected = (expected.0 + 1, 0);
        }
    }
    assert!(place(u32::MAX - 1).0 < SEGMENTS);
}

/// Stable keys are always found, with a value written for that key; absent keys never are. The chains are long, and
/// change all the time: lines move from chain to chain.
#[test]
fn get__under_churn_finds_what_stays_and_nothing_else() {
    const STABLE: u64 = 600;
    const CHURNED: u64 = 6_000;
    let points = fewest_homes();
    let value = |key: u64, round: u64| key << 32 | round;
    for key in 0..STABLE {
        put(&points, key, value(key, 0));
    }
    let is_over = AtomicBool::new(false);
    thread::scope(|scope| {
        for part in 0..2 {
            let (points, is_over) = (&points, &is_over);
            scope.spawn(move || {
                let mut round = 1;
                while !is_over.load(Ordering::Relaxed) {
                    let churned = (STABLE..STABLE + CHURNED).filter(|key| key % 2 == part);
                    churned.clone().for_each(|key| {
                        put(points, key, value(key, round));
                    });
                    (0..STABLE).filter(|key| key % 2 == part).for_each(|key| {
                        put(points, key, value(key, round));
                    });
                    churned.for_each(|key| assert!(points.writer(key).remove().is_some()));
                    round += 1;
                }
            });
        }
        // A failure must end the threads, too.
        let _over = EndsOnDrop(&is_over);
        let mut last = vec![0; STABLE as usize];
        for _ in 0..400 {
            for key in 0..STABLE {
                let found = points.get(key).unwrap_or_else(|| panic!("{key} is not there"));
                let (whose, round) = (found >> 32, found & 0xFFFF_FFFF);
                assert_eq!(whose, key);
                assert!(round >= last[key as usize], "{key} went back in time");
                last[key as usize] = round;
            }
            for key in STABLE..STABLE + CHURNED {
                assert!(points.get(key).is_none_or(|found| found >> 32 == key));
                assert_eq!(points.get(key + CHURNED), None);
            }
        }
    });
}

struct EndsOnDrop<'a>(&'a AtomicBool);

impl Drop for EndsOnDrop<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}
