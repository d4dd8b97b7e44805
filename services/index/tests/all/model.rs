//! The tables against a model, in a single thread: every answer equals a `BTreeMap`'s.

use std::collections::BTreeMap;
use std::ops::{Bound, ControlFlow};

use petrel_index::{Bytes, Words};
use proptest::collection::vec;
use proptest::prelude::*;

#[derive(Clone, Debug)]
enum Step<K, V> {
    Put(K, V),
    Delete(K),
    Get(K),
    Scan(Bound<K>, usize),
}

fn steps<K: Clone + std::fmt::Debug + 'static, V: std::fmt::Debug + 'static>(
    key: impl Strategy<Value = K> + Clone + 'static,
    value: impl Strategy<Value = V> + 'static,
    count: usize,
) -> impl Strategy<Value = Vec<Step<K, V>>> {
    let from = prop_oneof![
        1 => Just(Bound::Unbounded),
        4 => key.clone().prop_map(Bound::Included),
        4 => key.clone().prop_map(Bound::Excluded),
    ];
    let step = prop_oneof![
        6 => (key.clone(), value).prop_map(|(key, value)| Step::Put(key, value)),
        3 => key.clone().prop_map(Step::Delete),
        2 => key.prop_map(Step::Get),
        2 => (from, 0..300usize).prop_map(|(from, limit)| Step::Scan(from, limit)),
    ];
    vec(step, 1..count)
}

/// Neighbouring words, distant words, and words at the two ends.
fn word() -> impl Strategy<Value = u64> + Clone {
    prop_oneof![4 => 0..1_000u64, 1 => any::<u64>(), 1 => Just(0), 1 => Just(u64::MAX)]
}

/// Typical errors of ordered maps: common prefixes of all lengths, keys as prefixes of keys, zeros.
fn name() -> impl Strategy<Value = Vec<u8>> + Clone {
    prop_oneof![
        3 => vec(prop_oneof![Just(0u8), Just(b'a'), Just(255u8)], 0..6),
        3 => ("(abcdefgh){1,3}[a-c]{0,3}").prop_map(String::into_bytes),
        1 => vec(any::<u8>(), 0..40),
        1 => (0..2_000u32).prop_map(|number| [&b"common/prefix/"[..], &number.to_be_bytes()].concat()),
    ]
}

/// The scan of a `BTreeMap`. The map's own `range` panics if a bound excludes all keys.
fn scan_model<K: Ord + Clone, V: Clone>(
    model: &BTreeMap<K, V>,
    from: &Bound<K>,
    limit: usize,
) -> Vec<(K, V)> {
    let is_in = |key: &K| match from {
        Bound::Unbounded => true,
        Bound::Included(first) => key >= first,
        Bound::Excluded(before) => key > before,
    };
    let pairs = model.iter().filter(|(key, _)| is_in(key)).take(limit);
    pairs.map(|(key, value)| (key.clone(), value.clone())).collect()
}

fn scan_bytes(bytes: &Bytes, from: Bound<&[u8]>, limit: usize) -> Vec<(Vec<u8>, Vec<u8>)> {
    let mut pairs = Vec::new();
    bytes.scan(from, |key, value| {
        if pairs.len() == limit {
            return ControlFlow::Break(());
        }
        pairs.push((key.to_vec(), value.to_vec()));
        ControlFlow::Continue(())
    });
    pairs
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(96))]

    #[test]
    fn words__are_a_map(steps in steps(word(), any::<u64>(), 3_000)) {
        let (words, mut model) = (Words::new(1, u64::MAX), BTreeMap::new());
        for step in steps {
            match step {
                Step::Put(key, value) => prop_assert_eq!(words.put(key, value), Ok(model.insert(key, value))),
                Step::Delete(key) => prop_assert_eq!(words.delete(key), model.remove(&key)),
                Step::Get(key) => prop_assert_eq!(words.get(key), model.get(&key).copied()),
                Step::Scan(from, limit) => {
                    let mut pairs = Vec::new();
                    words.scan(from, limit, |key, value| pairs.push((key, value)));
                    prop_assert_eq!(pairs, scan_model(&model, &from, limit));
                }
            }
            prop_assert_eq!(words.len(), model.len() as u64);
        }
        let expected = scan_model(&model, &Bound::Excluded(7), 128);
        let sum = expected.iter().fold(0u64, |sum, (_, value)| sum.wrapping_add(*value));
        prop_assert_eq!(words.sum_after(7, 128), (expected.len(), sum));
    }

    #[test]
    fn bytes__are_a_map(steps in steps(name(), vec(any::<u8>(), 0..30), 2_000)) {
        let (bytes, mut model) = (Bytes::new(u64::MAX), BTreeMap::new());
        for step in steps {
            match step {
                Step::Put(key, value) => {
                    let was_there = model.insert(key.clone(), value.clone()).is_some();
                    prop_assert_eq!(bytes.put(&key, &value), Ok(was_there));
                }
                Step::Delete(key) => prop_assert_eq!(bytes.delete(&key), model.remove(&key).is_some()),
                Step::Get(key) => {
                    let value = bytes.get(&key);
                    prop_assert_eq!(value.as_deref(), model.get(&key).map(Vec::as_slice));
                }
                Step::Scan(from, limit) => {
                    let pairs = scan_bytes(&bytes, from.as_ref().map(Vec::as_slice), limit);
                    prop_assert_eq!(pairs, scan_model(&model, &from, limit));
                }
            }
            prop_assert_eq!(bytes.len(), model.len() as u64);
        }
        let used: usize = model.iter().map(|(key, value)| key.len() + value.len() + 128).sum();
        prop_assert_eq!(bytes.bytes(), used as u64);
    }
}

#[test]
fn put__beyond_the_limit_is_refused_and_changes_nothing() {
    let words = Words::new(1, 2);
    assert_eq!([words.put(1, 1), words.put(2, 2)], [Ok(None), Ok(None)]);
    let error = words.put(3, 3).unwrap_err();
    assert!(error.to_string().starts_with("the table is full: 2 keys."), "{error}");
    assert_eq!((words.get(3), words.len()), (None, 2));
    // Existing keys may still be overwritten, and a deletion makes room.
    assert_eq!(words.put(2, 5), Ok(Some(2)));
    assert_eq!((words.delete(1), words.put(3, 3)), (Some(1), Ok(None)));

    let bytes = Bytes::new(2 * 128 + 10);
    assert_eq!(bytes.put(b"a", b"1234"), Ok(false));
    assert_eq!(bytes.put(b"b", b"1234"), Ok(false));
    assert!(bytes.put(b"c", b"").is_err() && bytes.put(b"a", b"12345").is_err());
    assert_eq!((bytes.get(b"c"), bytes.get(b"a").as_deref()), (None, Some(&b"1234"[..])));
    assert_eq!((bytes.len(), bytes.bytes()), (2, 266));
    assert_eq!(bytes.put(b"a", b"1"), Ok(true));
    assert_eq!(bytes.put(b"b", b"1234567"), Ok(true));
}

#[test]
fn put__of_what_is_too_long_says_how_long_it_may_be() {
    let bytes = Bytes::new(u64::MAX);
    let error = bytes.put(&[0; 1025], b"").unwrap_err();
    assert_eq!(error.to_string(), "a key of 1025 bytes; at most 1024 are taken");
    let error = bytes.put(b"", &vec![0; (64 << 10) + 1]).unwrap_err();
    assert_eq!(error.to_string(), "a value of 65537 bytes; at most 65536 are taken");
    assert_eq!(bytes.put(&[0; 1024], &vec![0; 64 << 10]), Ok(false));
    assert_eq!(bytes.put(b"", b""), Ok(false));
}
