//! Named data networking: the longest prefix of a name in a cuckoo hash table, whose entries point to the names (G-Opt §4).

use std::collections::HashMap;

use petrel_batch::batched;

use crate::cuckoo::{Bucket, Small, Table, summand};
use crate::futures::{self, fetched};
use crate::harness::{Forms, Measured, Pace, Report, for_each_width, summed};
use crate::memory::{bytes_of, filled};
use crate::random::{Numbers, number};
use crate::served::{ABSENT, Service, Size, WIDTH, Workload};

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
        batched: summed(|names, sum| {
            route_batch::<WIDTH>(routes, names, |_, index| *sum += summand(index))
        }),
        // Group prefetching needs a list per step here, which is the state machine again.
        by_hand: None,
        futures: summed(|names, sum| {
            let names: Vec<&Name> = names.iter().collect();
            let make = |name| as_future(routes, name);
            futures::run(WIDTH, &names, make, |index| *sum += summand(index));
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

/// Returns the table of all names, and the longest prefix of a name by other means.
fn world(smaller: usize) -> (Routes, impl Fn(&Name) -> Option<u32>) {
    let count = NAMES / smaller;
    let routes = routes(count, (BUCKETS / smaller).next_power_of_two());
    let mut indices: HashMap<Name, u32> = HashMap::with_capacity(count);
    indices.extend(routes.names.iter().zip(0..).map(|(name, index)| (*name, index)));
    let longest = move |name: &Name| {
        let mut found =
            (1..=COMPONENTS).rev().filter_map(|components| indices.get(&prefix(name, components)));
        found.next().copied()
    };
    (routes, longest)
}

fn title(routes: &Routes) -> String {
    let bytes = routes.table.bytes() + size_of_val(&*routes.names);
    format!("named data routes, {} names, {} MiB", routes.names.len(), bytes >> 20)
}

/// Returns full names whose prefixes are in the table.
fn names(count: usize, routes: &Routes) -> Vec<Name> {
    let mut numbers = Numbers::new(8);
    let name = |_| {
        let known = routes.names[numbers.below(routes.names.len())];
        known.map(|component| if component == 0 { numbers.next() | 1 } else { component })
    };
    (0..count).map(name).collect()
}

/// Returns the table for a server, with requests.
pub(crate) fn workload(size: Size) -> Workload<impl Service> {
    let (routes, longest) = world(size.smaller);
    let names = names(size.requests, &routes);
    let answer = move |name| longest(&name).unwrap_or(ABSENT);
    Workload::new(title(&routes), routes, names, answer)
}

impl Service for Routes {
    type Key = Name;
    type Message = [u8; 8 * COMPONENTS];

    fn message(name: Name) -> Self::Message {
        let mut message = [0; 8 * COMPONENTS];
        for (bytes, component) in message.as_chunks_mut().0.iter_mut().zip(name) {
            *bytes = component.to_le_bytes();
        }
        message
    }

    #[inline]
    fn key(message: &[u8]) -> Name {
        let mut name = [0; COMPONENTS];
        for (component, bytes) in name.iter_mut().zip(message.as_chunks().0) {
            *component = u64::from_le_bytes(*bytes);
        }
        name
    }

    #[inline]
    fn first_line(&self, name: Name) -> *const u8 {
        let (first, _) = self.table.places(key(&name));
        std::ptr::from_ref(self.table.bucket(first)).cast()
    }

    fn arrays(&self) -> Vec<*const [u8]> {
        vec![bytes_of(self.table.buckets()), bytes_of(&self.names)]
    }

    #[inline]
    fn find(&self, name: Name) -> u32 {
        route::<WIDTH>(self, &name).unwrap_or(ABSENT)
    }

    #[inline]
    fn find_batch(&self, names: impl Iterator<Item = Name>, mut each: impl FnMut(usize, u32)) {
        // Lanes keep references: names of messages are not aligned.
        let names: Vec<Name> = names.collect();
        route_batch::<WIDTH>(self, &names, |index, route| each(index, route.unwrap_or(ABSENT)));
    }
}

pub(crate) fn measure(pace: &Pace) -> Report {
    let (routes, longest) = world(pace.smaller);
    Measured {
        title: title(&routes),
        inputs: names((1 << 20) / pace.smaller, &routes),
        inputs_per_round: 8_192,
        answer: Box::new(move |names| names.iter().map(|name| summand(longest(name))).sum()),
        naive: Box::new(|names| names.iter().map(|name| summand(route::<1>(&routes, name))).sum()),
        forms: for_each_width!(forms(&routes)),
    }
    .run(pace)
}
