//! A 2-8 cuckoo hash table: two buckets per key, eight entries per bucket, a line per bucket (G-Opt §3.3).

use petrel_batch::{batched, prefetch};

use crate::futures::{self, fetched};
use crate::harness::{Forms, Measured, Pace, Report, for_each_width, summed};
use crate::memory::filled;
use crate::random::{Numbers, number};

/// 1 GiB of buckets.
const BUCKETS: usize = 1 << 24;
/// The share of entries that are full, of 16.
const LOAD: usize = 12;

/// A bucket whose entries have a key and a value.
pub(crate) trait Bucket: Copy {
    type Key: Copy;
    const EMPTY: Self;
    fn value(&self, key: Self::Key) -> Option<u32>;
    /// Writes a free entry, or replaces the entry `victim` and returns the former one.
    fn put(&mut self, key: Self::Key, value: u32, victim: usize) -> Option<(Self::Key, u32)>;
    fn hash(key: Self::Key) -> u64;
}

/// Eight keys and values of 32 bits. No key is 0.
#[derive(Clone, Copy)]
#[repr(align(64))]
pub(crate) struct Small {
    keys: [u32; 8],
    values: [u32; 8],
}

impl Bucket for Small {
    type Key = u32;
    const EMPTY: Self = Self { keys: [0; 8], values: [0; 8] };

    #[inline(always)]
    fn value(&self, key: u32) -> Option<u32> {
        let mut found = 0_u32;
        for (index, other) in self.keys.iter().enumerate() {
            found |= u32::from(*other == key) << index;
        }
        (found != 0).then(|| self.values[found.trailing_zeros() as usize % 8])
    }

    fn put(&mut self, key: u32, value: u32, victim: usize) -> Option<(u32, u32)> {
        let free = self.keys.iter().position(|key| *key == 0);
        let place = free.unwrap_or(victim % 8);
        let former = (self.keys[place], self.values[place]);
        (self.keys[place], self.values[place]) = (key, value);
        free.is_none().then_some(former)
    }

    #[inline(always)]
    fn hash(key: u32) -> u64 {
        number(u64::from(key))
    }
}

/// A table of such buckets.
pub(crate) struct Table<B> {
    buckets: Box<[B]>,
}

impl<B: Bucket> Table<B> {
    pub(crate) fn new(buckets: usize) -> Self {
        Self { buckets: filled(buckets, |_| B::EMPTY) }
    }

    /// The two buckets of a key.
    #[inline(always)]
    pub(crate) fn places(&self, key: B::Key) -> (usize, usize) {
        let (hash, mask) = (B::hash(key), self.buckets.len() - 1);
        (hash as usize & mask, (hash >> 32) as usize & mask)
    }

    pub(crate) fn bytes(&self) -> usize {
        size_of_val(&*self.buckets)
    }

    pub(crate) fn buckets(&self) -> &[B] {
        &self.buckets
    }

    #[inline(always)]
    pub(crate) fn bucket(&self, place: usize) -> &B {
        &self.buckets[place]
    }

    /// Adds a key that the table does not have.
    ///
    /// # Panics
    /// If the table is too full.
    pub(crate) fn insert(&mut self, key: B::Key, value: u32) {
        let (mut key, mut value) = (key, value);
        let mut last = usize::MAX;
        for attempt in 0..500 {
            let (first, second) = self.places(key);
            let place = if first == last { second } else { first };
            let Some(former) = self.buckets[place].put(key, value, attempt) else { return };
            (key, value) = former;
            last = place;
        }
        panic!("the table is too full");
    }
}

#[batched(width = WIDTH)]
fn find<const WIDTH: usize>(#[shared] table: &Table<Small>, key: u32) -> Option<u32> {
    let (first, second) = table.places(key);
    prefetch!(table.bucket(first));
    if let Some(value) = table.bucket(first).value(key) {
        return Some(value);
    }
    prefetch!(table.bucket(second));
    table.bucket(second).value(key)
}

pub(crate) fn by_hand<const WIDTH: usize, B: Bucket>(
    table: &Table<B>,
    keys: &[B::Key],
    mut each: impl FnMut(Option<u32>),
) {
    let mut places = [(0, 0); WIDTH];
    for keys in keys.chunks(WIDTH) {
        for (key, places) in keys.iter().zip(&mut places) {
            *places = table.places(*key);
            prefetch(std::ptr::from_ref(table.bucket(places.0)).cast());
        }
        let mut missed = [0_u8; WIDTH];
        let mut count = 0;
        for (index, (key, places)) in keys.iter().zip(&places).enumerate() {
            match table.bucket(places.0).value(*key) {
                Some(value) => each(Some(value)),
                None => {
                    prefetch(std::ptr::from_ref(table.bucket(places.1)).cast());
                    missed[count] = index as u8;
                    count += 1;
                }
            }
        }
        for index in &missed[..count] {
            let index = usize::from(*index);
            each(table.bucket(places[index].1).value(keys[index]));
        }
    }
}

pub(crate) async fn as_future<B: Bucket>(table: &Table<B>, key: B::Key) -> Option<u32> {
    let (first, second) = table.places(key);
    fetched(table.bucket(first)).await;
    if let Some(value) = table.bucket(first).value(key) {
        return Some(value);
    }
    fetched(table.bucket(second)).await;
    table.bucket(second).value(key)
}

/// The part of a sum that a result is.
pub(crate) fn summand(value: Option<u32>) -> u64 {
    value.map_or(1 << 32, u64::from)
}

fn forms<const WIDTH: usize>(table: &Table<Small>) -> Forms<'_, u32> {
    Forms {
        batched: summed(|keys, sum| {
            find_batch::<WIDTH>(table, keys.iter().copied(), |_, value| *sum += summand(value))
        }),
        by_hand: Some(summed(|keys, sum| {
            by_hand::<WIDTH, _>(table, keys, |value| *sum += summand(value))
        })),
        futures: summed(|keys, sum| {
            futures::run(WIDTH, keys, |key| as_future(table, key), |value| *sum += summand(value))
        }),
    }
}

pub(crate) fn measure(pace: &Pace) -> Report {
    let buckets = (BUCKETS / pace.smaller).next_power_of_two();
    let entries = (buckets * 8 / 16 * LOAD) as u32;
    let mut table = Table::new(buckets);
    // Keys are the numbers from 1 on, which the hash spreads.
    (1..=entries).for_each(|key| table.insert(key, key ^ 0x5555));
    let mut numbers = Numbers::new(2);
    let answer = move |key: u32| (key <= entries).then_some(key ^ 0x5555);
    Measured {
        title: format!("cuckoo hash table of {} MiB, {entries} entries", buckets >> 14),
        // An eighth of the keys is absent.
        inputs: (0..(1 << 22) / pace.smaller)
            .map(|_| 1 + numbers.below(entries as usize / 7 * 8) as u32)
            .collect(),
        inputs_per_round: 16_384,
        answer: Box::new(move |keys| keys.iter().map(|key| summand(answer(*key))).sum()),
        naive: Box::new(|keys| keys.iter().map(|key| summand(find::<1>(&table, *key))).sum()),
        forms: for_each_width!(forms(&table)),
    }
    .run(pace)
}
