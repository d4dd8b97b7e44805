//! A partition beside a model: a `BTreeMap` that forgets nothing.
//!
//! In cache mode an item may be gone before its time; the model then drops it, too. Everything else must be equal. In
//! store mode nothing may be gone.

use std::collections::BTreeMap;

use petrel_cache::{
    Arithmetic, Counted, Hasher, Item, Mode, Partition, PartitionConfig, Removed, Store,
    StoreError, Stored, Verb,
};
use proptest::prelude::*;

/// Positions repeat in the index after so many bytes.
const POSITIONS: u64 = 8 << 44;

#[derive(Clone, Debug)]
enum Step {
    Get(u8),
    Store { key: u8, verb: Verb, compare: Compare, ttl: u32, flags: u32, bytes: usize, fill: u8 },
    Delete(u8, Compare),
    Touch(u8, u32),
    GetAndTouch(u8, u32),
    Count { key: u8, delta: u64, is_increment: bool, initial: Option<u64> },
    StoreNumber(u8, u64),
    Flush,
    Advance(u32),
}

/// The version that a request names.
#[derive(Clone, Copy, Debug)]
enum Compare {
    None,
    Current,
    Wrong,
}

#[derive(Clone, Debug, PartialEq)]
struct Expected {
    value: Vec<u8>,
    flags: u32,
    cas: u64,
    expiry: u32,
}

struct Pair {
    partition: Partition,
    hasher: Hasher,
    model: BTreeMap<Vec<u8>, Expected>,
    now: u32,
    /// Items that the partition had lost when the model looked.
    lost: u64,
}

fn compare() -> impl Strategy<Value = Compare> {
    prop_oneof![
        6 => Just(Compare::None),
        2 => Just(Compare::Current),
        1 => Just(Compare::Wrong)
    ]
}

fn verb() -> impl Strategy<Value = Verb> {
    prop_oneof![
        4 => Just(Verb::Set),
        1 => Just(Verb::Add),
        1 => Just(Verb::Replace),
        1 => Just(Verb::Append),
        1 => Just(Verb::Prepend)
    ]
}

fn ttl() -> impl Strategy<Value = u32> {
    prop_oneof![2 => Just(0), 1 => 1..20u32]
}

fn step() -> impl Strategy<Value = Step> {
    let bytes = prop_oneof![6 => 0..200usize, 2 => 0..2_000usize, 1 => 0..12_000usize];
    prop_oneof![
        8 => any::<u8>().prop_map(Step::Get),
        12 => (any::<u8>(), verb(), compare(), ttl(), any::<u32>(), bytes, any::<u8>()).prop_map(
            |(key, verb, compare, ttl, flags, bytes, fill)| Step::Store {
                key, verb, compare, ttl, flags, bytes, fill
            }
        ),
        2 => (any::<u8>(), compare()).prop_map(|(key, compare)| Step::Delete(key, compare)),
        1 => (any::<u8>(), ttl()).prop_map(|(key, ttl)| Step::Touch(key, ttl)),
        1 => (any::<u8>(), ttl()).prop_map(|(key, ttl)| Step::GetAndTouch(key, ttl)),
        2 => (any::<u8>(), any::<u64>(), any::<bool>(), any::<Option<u64>>()).prop_map(
            |(key, delta, is_increment, initial)| Step::Count { key, delta, is_increment, initial }
        ),
        1 => (any::<u8>(), any::<u64>()).prop_map(|(key, number)| Step::StoreNumber(key, number)),
        1 => (0..60u8).prop_map(|choice| if choice == 0 { Step::Flush } else { Step::Advance(1) }),
        1 => (0..4u32).prop_map(Step::Advance),
    ]
}

/// Keys of several lengths, some with equal beginnings.
fn key_bytes(number: u8) -> Vec<u8> {
    let mut bytes = vec![b'k'; 1 + usize::from(number % 7) * 40];
    bytes.push(number);
    bytes
}

impl Pair {
    fn new(mode: Mode, first_position: u64) -> Self {
        let hasher = Hasher::new(1);
        let config = PartitionConfig { mode, first_position, ..PartitionConfig::new(64 << 10) };
        let mut partition = Partition::new(&config, hasher.clone()).unwrap();
        partition.set_time(2);
        Self { partition, hasher, model: BTreeMap::new(), now: 2, lost: 0 }
    }

    /// Compares a key, and returns the model's item.
    fn look(&mut self, bytes: &[u8]) -> Option<Expected> {
        let now = self.now;
        let is_over = |item: &Expected| item.expiry != 0 && item.expiry <= now;
        if self.model.get(bytes).is_some_and(is_over) {
            self.model.remove(bytes);
        }
        let key = self.hasher.key(bytes).unwrap();
        let found = self.partition.peek(key).map(|fetched| expected(&fetched.item));
        let model = self.model.get(bytes).cloned();
        if found.is_none() && model.is_some() {
            assert_eq!(self.partition.mode(), Mode::Cache, "a store has lost {bytes:?}");
            self.model.remove(bytes);
            self.lost += 1;
            return None;
        }
        assert_eq!(found, model, "{bytes:?}");
        found
    }

    fn run(&mut self, step: &Step) {
        match *step {
            Step::Get(key) => self.get(key, None),
            Step::GetAndTouch(key, ttl) => self.get(key, Some(ttl)),
            Step::Store { key, verb, compare, ttl, flags, bytes, fill } => {
                self.store(key, verb, compare, ttl, flags, &vec![fill; bytes]);
            }
            Step::StoreNumber(key, number) => {
                let value = number.to_string().into_bytes();
                self.store(key, Verb::Set, Compare::None, 0, 0, &value);
            }
            Step::Delete(key, compare) => self.delete(key, compare),
            Step::Touch(key, ttl) => self.touch(key, ttl),
            Step::Count { key, delta, is_increment, initial } => {
                self.count(key, delta, is_increment, initial);
            }
            Step::Flush => {
                self.partition.flush();
                self.model.clear();
                assert_eq!((self.partition.items(), self.partition.live_bytes()), (0, 0));
            }
            Step::Advance(seconds) => {
                self.now += seconds;
                self.partition.set_time(self.now);
            }
        }
    }

    fn expiry(&self, ttl: u32) -> u32 {
        if ttl == 0 { 0 } else { self.now + ttl }
    }

    fn get(&mut self, number: u8, ttl: Option<u32>) {
        let bytes = key_bytes(number);
        let mut model = self.look(&bytes);
        let expiry = ttl.map(|ttl| self.expiry(ttl));
        let key = self.hasher.key(&bytes).unwrap();
        let found = match expiry {
            Some(expiry) => self.partition.get_and_touch(key, expiry),
            None => self.partition.get(key),
        };
        let found = found.map(|item| expected(&item));
        if let (Some(model), Some(expiry)) = (&mut model, expiry) {
            model.expiry = expiry;
            self.model.insert(bytes, model.clone());
        }
        assert_eq!(found, model);
    }

    fn store(
        &mut self,
        number: u8,
        verb: Verb,
        compare: Compare,
        ttl: u32,
        flags: u32,
        value: &[u8],
    ) {
        let bytes = key_bytes(number);
        let old = self.look(&bytes);
        let expiry = self.expiry(ttl);
        let compare = version(compare, old.as_ref());
        let key = self.hasher.key(&bytes).unwrap();
        let request = Store { key, value, flags, expiry, verb, compare, allows_stale: false };
        let outcome = self.partition.store(&request);
        let new = match (&old, compare) {
            (None, Some(_)) => Err(Stored::NotFound),
            (Some(old), Some(cas)) if old.cas != cas => Err(Stored::Exists),
            _ => stored(verb, old.as_ref(), value, flags, expiry),
        };
        match (outcome, new) {
            (Ok(Stored::Done { cas }), Ok(new)) => {
                assert!(old.is_none_or(|old| old.cas < cas), "versions grow");
                self.model.insert(bytes, Expected { cas, ..new });
            }
            (Ok(outcome), Err(refused)) => assert_eq!(outcome, refused),
            (Err(StoreError::TooLarge { .. }), Ok(new)) => {
                // 64 KiB, divided by 64 or by 8, with some bytes for the index.
                let least = if self.partition.mode() == Mode::Store { 500 } else { 5_000 };
                assert!(new.value.len() > least, "{} bytes are few", new.value.len());
                self.forget_failed(&bytes, verb);
            }
            (Err(StoreError::Full), Ok(new)) => {
                assert_eq!(self.partition.mode(), Mode::Store);
                let filled = self.partition.live_bytes() + new.value.len() as u64;
                assert!(filled > 40 << 10, "full with {filled} bytes");
            }
            (outcome, new) => panic!("{outcome:?} in place of {new:?}"),
        }
    }

    /// A SET that fails removes the item of a cache.
    fn forget_failed(&mut self, bytes: &[u8], verb: Verb) {
        if self.partition.mode() == Mode::Cache && verb == Verb::Set {
            self.model.remove(bytes);
        }
    }

    fn delete(&mut self, number: u8, compare: Compare) {
        let bytes = key_bytes(number);
        let old = self.look(&bytes);
        let compare = version(compare, old.as_ref());
        let key = self.hasher.key(&bytes).unwrap();
        let outcome = match old {
            None => Removed::NotFound,
            Some(old) if compare.is_some_and(|cas| cas != old.cas) => Removed::Exists,
            Some(_) => {
                self.model.remove(&bytes);
                Removed::Done
            }
        };
        assert_eq!(self.partition.delete(key, compare), outcome);
    }

    fn touch(&mut self, number: u8, ttl: u32) {
        let bytes = key_bytes(number);
        let old = self.look(&bytes);
        let expiry = self.expiry(ttl);
        let key = self.hasher.key(&bytes).unwrap();
        assert_eq!(self.partition.touch(key, expiry), old.is_some());
        if let Some(old) = old {
            self.model.insert(bytes, Expected { expiry, ..old });
        }
    }

    fn count(&mut self, number: u8, delta: u64, is_increment: bool, initial: Option<u64>) {
        let bytes = key_bytes(number);
        let old = self.look(&bytes);
        let key = self.hasher.key(&bytes).unwrap();
        let initial = initial.map(|number| (number, 0));
        let request = Arithmetic { key, delta, is_increment, compare: None, touch: None, initial };
        let outcome = self.partition.count(&request);
        let sum = |number: u64| match is_increment {
            true => number.wrapping_add(delta),
            false => number.saturating_sub(delta),
        };
        let text = old.as_ref().map(|old| String::from_utf8_lossy(&old.value).into_owned());
        let new = match (&text, initial) {
            (None, None) => return assert_eq!(outcome, Ok(Counted::NotFound)),
            (None, Some((number, _))) => number,
            (Some(text), _) => match number_of(text.trim_ascii_end()) {
                Some(number) => sum(number),
                None => return assert_eq!(outcome, Ok(Counted::NotANumber)),
            },
        };
        match outcome {
            Ok(Counted::Number { number, cas, expiry }) => {
                assert_eq!(number, new);
                let (flags, before) = old.map_or((0, 0), |old| (old.flags, old.expiry));
                assert_eq!(expiry, before);
                let value = new.to_string().into_bytes();
                self.model.insert(bytes, Expected { value, flags, cas, expiry });
            }
            Err(StoreError::Full) => assert_eq!(self.partition.mode(), Mode::Store),
            outcome => panic!("{outcome:?} in place of {new}"),
        }
    }

    fn finish(mut self) -> Self {
        for number in 0..=u8::MAX {
            self.look(&key_bytes(number));
        }
        let counters = *self.partition.counters();
        assert!(self.lost <= counters.evictions, "{} lost, {counters:?}", self.lost);
        let live = self.model.len() as u64;
        assert!(live <= self.partition.items(), "{live} items, {}", self.partition.items());
        if self.partition.mode() == Mode::Store {
            assert_eq!((self.lost, counters.evictions), (0, 0));
        }
        self
    }
}

fn expected(item: &Item<'_>) -> Expected {
    let &Item { value, flags, cas, expiry } = item;
    Expected { value: value.to_vec(), flags, cas, expiry }
}

/// The number that a text of at most 20 digits shows. `str::parse` also takes a sign.
fn number_of(digits: &str) -> Option<u64> {
    let is_number = digits.len() <= 20 && digits.bytes().all(|byte| byte.is_ascii_digit());
    is_number.then(|| digits.parse().ok()).flatten()
}

fn version(compare: Compare, old: Option<&Expected>) -> Option<u64> {
    match compare {
        Compare::None => None,
        Compare::Current => Some(old.map_or(7, |old| old.cas)),
        Compare::Wrong => Some(old.map_or(7, |old| old.cas + 1)),
    }
}

/// The model's item after a request whose version agrees; the version is not yet known.
fn stored(
    verb: Verb,
    old: Option<&Expected>,
    value: &[u8],
    flags: u32,
    expiry: u32,
) -> Result<Expected, Stored> {
    let new = Expected { value: value.to_vec(), flags, cas: 0, expiry };
    match (verb, old) {
        (Verb::Set, _) | (Verb::Add, None) | (Verb::Replace, Some(_)) => Ok(new),
        (Verb::Append, Some(old)) => {
            Ok(Expected { value: [&old.value, value].concat(), ..old.clone() })
        }
        (Verb::Prepend, Some(old)) => {
            Ok(Expected { value: [value, &old.value].concat(), ..old.clone() })
        }
        _ => Err(Stored::Refused),
    }
}

fn check(mode: Mode, first_position: u64, steps: &[Step]) -> Pair {
    let mut pair = Pair::new(mode, first_position);
    for step in steps {
        pair.run(step);
    }
    pair.finish()
}

#[test]
fn count__numbers_with_many_spaces_behind_or_a_sign_before() {
    let store = |key, verb, bytes, fill| Step::Store {
        key,
        verb,
        compare: Compare::None,
        ttl: 0,
        flags: 0,
        bytes,
        fill,
    };
    let count = |key| Step::Count { key, delta: 5, is_increment: true, initial: None };
    let steps = [
        Step::StoreNumber(1, 7),
        store(1, Verb::Append, 30, b' '),
        count(1),
        Step::Get(1),
        Step::StoreNumber(2, 7),
        store(2, Verb::Prepend, 1, b'+'),
        count(2),
        Step::Get(2),
    ];
    let pair = check(Mode::Store, 0, &steps);
    assert_eq!(pair.model[&key_bytes(1)].value, b"12");
    assert_eq!(pair.model[&key_bytes(2)].value, b"+7");
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(200))]

    #[test]
    fn cache__is_never_wrong(steps in prop::collection::vec(step(), 0..800), is_late: bool) {
        check(Mode::Cache, if is_late { POSITIONS - 90_000 } else { 0 }, &steps);
    }

    #[test]
    fn store__is_exact_or_full(steps in prop::collection::vec(step(), 0..800), is_late: bool) {
        check(Mode::Store, if is_late { POSITIONS - 90_000 } else { 0 }, &steps);
    }
}

/// Values of one size until the partition has wrapped around several times.
fn fill(mode: Mode, keys: u8, bytes: usize, rounds: u32) -> Pair {
    let steps = (0..rounds).map(|round| Step::Store {
        key: (round % u32::from(keys)) as u8,
        verb: Verb::Set,
        compare: Compare::None,
        ttl: 0,
        flags: round,
        bytes,
        fill: round as u8,
    });
    check(mode, POSITIONS - 90_000, &steps.collect::<Vec<_>>())
}

#[test]
fn cache__evicts_in_the_order_of_storage() {
    let pair = fill(Mode::Cache, u8::MAX, 900, 2_000);
    assert!(pair.lost > 0 && pair.partition.counters().evictions > 1_000);
    // The last 40 items take less than the log.
    let kept =
        (0..40).filter(|back| pair.model.contains_key(&key_bytes(((1_999 - back) % 255) as u8)));
    assert!(kept.count() >= 38, "the index may have evicted some");
}

#[test]
fn store__cleans_for_ever() {
    // Values of two sizes in turn, so that each is written to the log's head.
    let mut pair = Pair::new(Mode::Store, 0);
    // Items that stay, and that the cleaner must move lap after lap.
    for number in 100..120 {
        pair.store(number, Verb::Set, Compare::None, 0, 0, &[number; 500]);
    }
    for round in 0..20_000u32 {
        let bytes = 400 + (round / 50 % 2) as usize * 40;
        pair.store(
            (round % 50) as u8,
            Verb::Set,
            Compare::None,
            0,
            round,
            &vec![round as u8; bytes],
        );
    }
    let pair = pair.finish();
    assert_eq!(pair.model.len(), 70);
    assert!(pair.partition.counters().moved_items > 0);
}

#[test]
fn store__is_full_and_has_room_again() {
    let mut pair = fill(Mode::Store, u8::MAX, 700, 255);
    let refused = pair.partition.counters().store_no_memory;
    assert!(refused > 100, "{refused} refused");
    let kept = pair.model.len() as u8;
    // A longer value is a new item, for which the former one makes room.
    pair.store(0, Verb::Set, Compare::None, 0, 0, &[2; 708]);
    assert_eq!(pair.partition.counters().store_no_memory, refused);
    for number in 0..kept / 2 {
        pair.delete(number, Compare::None);
    }
    for number in 0..kept / 2 {
        pair.store(number, Verb::Set, Compare::None, 0, 0, &[1; 700]);
    }
    assert_eq!(pair.partition.counters().store_no_memory, refused);
    pair.finish();
}

#[test]
fn store__reclaims_items_whose_time_is_over() {
    let mut pair = Pair::new(Mode::Store, 0);
    for number in 0..u8::MAX {
        pair.store(number, Verb::Set, Compare::None, 5, 0, &[1; 700]);
    }
    let refused = pair.partition.counters().store_no_memory;
    pair.run(&Step::Advance(5));
    for number in 0..50 {
        pair.store(number, Verb::Set, Compare::None, 0, 0, &[2; 700]);
    }
    let counters = *pair.partition.counters();
    assert!(refused > 0 && counters.store_no_memory == refused && counters.reclaimed > 0);
    pair.finish();
}

/// Items end one after the other. A full store must not visit all others each second.
#[test]
fn store__looks_for_ended_items_within_a_budget() {
    let hasher = Hasher::new(1);
    let bytes = 64 << 20;
    let config = PartitionConfig { mode: Mode::Store, ..PartitionConfig::new(bytes) };
    let mut partition = Partition::new(&config, hasher.clone()).unwrap();
    partition.set_time(2);
    let value = vec![7; 16 << 10];
    let store = |partition: &mut Partition, number: u32, expiry| {
        let bytes = number.to_le_bytes();
        let key = hasher.key(&bytes).unwrap();
        partition.store(&Store { expiry, ..Store::set(key, &value) })
    };
    let mut items = 0;
    while store(&mut partition, items, 3 + items).is_ok() {
        items += 1;
    }
    let (mut moved, mut most, mut stored) = (partition.counters().moved_items, 0, 0);
    for second in 0..200 {
        partition.set_time(3 + second);
        for attempt in 0..10 {
            let number = 1_000_000 + second * 10 + attempt;
            stored += u32::from(store(&mut partition, number, 0).is_ok());
        }
        let now = partition.counters().moved_items;
        most = most.max(now - moved);
        moved = now;
    }
    // A 16th of the log, the room for the stored items, and the last item of each request.
    assert!(most < u64::from(items) / 16 + 100, "{most} of {items} items moved in a second");
    assert!(stored >= 100, "{stored} items stored in place of 200 that have ended");
}
