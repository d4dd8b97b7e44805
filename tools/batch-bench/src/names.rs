//! Named data networking: the longest prefix of a name in a cuckoo hash table, whose entries point to the names (G-Opt §4).

use std::collections::HashMap;

use petrel_batch::batched;

use crate::cuckoo::{Bucket, Small, Table, summand};
use crate::futures::{self, fetched};
use crate::harness::{Forms, Measured, Pace, Report, for_each_width};
use crate::memory::filled;
use crate::random::{Numbers, number};

const NAMES: usize = 10_000_000;
const BUCKETS: usize = 1 << 21;
const COMPONENTS: usize = 4;

/// A name of 32 bytes: up to four components of 8 bytes, the absent ones 0.
type Name = [u64; COMPONENTS];

struct Routes {
    table: Table<Small>,
    names: Box<[Name]>,
}

fn prefix(name: &Name, components: usize) -> Name {
    let mut prefix = [0; COMPONENTS];
    prefix[..components].copy_from_slice(&name[..components]);
    prefix
}

/// The key of a name in the table. Names with the same key are told apart by their text.
#[inline(always)]
fn key(name: &Name) -> u32 {
    let hash = name.iter().fold(0, |hash, component| number(hash ^ component));
    (hash >> 32) as u32 | 1
}

#[batched(width = WIDTH)]
fn route<const WIDTH: usize>(#[shared] routes: &Routes, name: &Name) -> Option<u32> {
    for components in (1..=COMPONENTS).rev() {
        let wanted = prefix(name, components);
        let key = key(&wanted);
        let (first, second) = routes.table.places(key);
        // The iterator of an array needs drop, and a lane cannot keep it.
        for is_second in 0..2 {
            let place = if is_second == 1 { second } else { first };
            prefetch!(routes.table.bucket(place));
            let Some(index) = routes.table.bucket(place).value(key) else { continue };
            prefetch!(&routes.names[index as usize]);
            if routes.names[index as usize] == wanted {
                return Some(index);
            }
        }
    }
    None
}

async fn as_future(routes: &Routes, name: &Name) -> Option<u32> {
    for components in (1..=COMPONENTS).rev() {
        let wanted = prefix(name, components);
        let key = key(&wanted);
        let (first, second) = routes.table.places(key);
        for place in [first, second] {
            fetched(routes.table.bucket(place)).await;
            let Some(index) = routes.table.bucket(place).value(key) else { continue };
            fetched(&routes.names[index as usize]).await;
            if routes.names[index as usize] == wanted {
                return Some(index);
            }
        }
    }
    None
}

fn forms<const WIDTH: usize>(routes: &Routes) -> Forms<'_, Name> {
    Forms {
        batched: Box::new(|names| {
            let mut sum = 0;
            route_batch::<WIDTH>(routes, names, |_, index| sum += summand(index));
            sum
        }),
        // Group prefetching needs a list per step here, which is the state machine again.
        by_hand: None,
        futures: Box::new(|names| {
            let mut sum = 0;
            let names: Vec<&Name> = names.iter().collect();
            let make = |name| as_future(routes, name);
            futures::run(WIDTH, &names, make, |index| sum += summand(index));
            sum
        }),
    }
}

/// Builds the table, without names whose keys others have already: two of them could not be told apart by the key alone.
fn routes(count: usize, buckets: usize) -> Routes {
    let mut numbers = Numbers::new(7);
    let mut seen = HashMap::with_capacity(count);
    let mut list = Vec::with_capacity(count);
    while list.len() < count {
        let components = 1 + numbers.below(COMPONENTS);
        let whole = [(); COMPONENTS].map(|()| numbers.next() | 1);
        let name = prefix(&whole, components);
        if let std::collections::hash_map::Entry::Vacant(free) = seen.entry(key(&name)) {
            free.insert(());
            list.push(name);
        }
    }
    let mut table = Table::new(buckets);
    for (index, name) in list.iter().enumerate() {
        table.insert(key(name), index as u32);
    }
    Routes { table, names: filled(list.len(), |index| list[index]) }
}

pub(crate) fn measure(pace: &Pace) -> Report {
    let count = NAMES / pace.smaller;
    let routes = routes(count, (BUCKETS / pace.smaller).next_power_of_two());
    let mut numbers = Numbers::new(8);
    let inputs: Vec<Name> = (0..(1 << 20) / pace.smaller)
        .map(|_| {
            let known = routes.names[numbers.below(count)];
            known.map(|component| if component == 0 { numbers.next() | 1 } else { component })
        })
        .collect();
    let mut indices: HashMap<Name, u32> = HashMap::with_capacity(count);
    indices.extend(routes.names.iter().zip(0..).map(|(name, index)| (*name, index)));
    let longest = move |name: &Name| {
        let mut found =
            (1..=COMPONENTS).rev().filter_map(|components| indices.get(&prefix(name, components)));
        summand(found.next().copied())
    };
    Measured {
        title: format!("named data routes, {count} names"),
        inputs,
        inputs_per_round: 8_192,
        answer: Box::new(move |names| names.iter().map(&longest).sum()),
        naive: Box::new(|names| names.iter().map(|name| summand(route::<1>(&routes, name))).sum()),
        forms: for_each_width!(forms(&routes)),
    }
    .run(pace)
}
