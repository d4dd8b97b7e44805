//! The longest prefix of an IPv6 address by a trie: a table for the first 24 bits, then tables for 8 bits each (G-Opt §3.3).

use std::collections::HashMap;

use petrel_batch::{batched, prefetch};

use crate::futures::{self, fetched};
use crate::harness::{Forms, Measured, Pace, Report, for_each_width, summed};
use crate::memory::{bytes_of, filled};
use crate::random::Numbers;
use crate::served::{Service, Size, WIDTH, Workload};

const PREFIXES: usize = 200_000;
/// The entry names a table for the next 8 bits.
const HAS_MORE: u32 = 1 << 31;

struct Routes {
    first: Box<[u32]>,
    tables: Box<[u32]>,
}

impl Routes {
    /// Builds the tables. Longer prefixes come later.
    fn new(prefixes: &[(u128, u32, u32)]) -> Self {
        let mut first = filled(1 << 24, |_| 0);
        let mut tables = Vec::new();
        for (prefix, length, hop) in prefixes {
            let mut entry = child(&mut first[(prefix >> 104) as usize], &mut tables);
            let mut depth = 24;
            while *length > depth + 8 {
                let place = place(entry, *prefix, depth);
                let mut slot = tables[place];
                entry = child(&mut slot, &mut tables);
                tables[place] = slot;
                depth += 8;
            }
            let start = place(entry, *prefix, depth);
            tables[start..start + (1 << (depth + 8 - length))].fill(*hop);
        }
        Self { first, tables: filled(tables.len(), |place| tables[place]) }
    }
}

/// Returns the entry, with a table in any case.
fn child(entry: &mut u32, tables: &mut Vec<u32>) -> u32 {
    if *entry & HAS_MORE == 0 {
        let former = std::mem::replace(entry, HAS_MORE | (tables.len() >> 8) as u32);
        tables.extend([former; 256]);
    }
    *entry
}

/// The place of an address in the table that an entry names.
#[inline(always)]
fn place(entry: u32, address: u128, depth: u32) -> usize {
    ((entry & !HAS_MORE) as usize) << 8 | (address >> (120 - depth)) as usize & 0xff
}

#[batched(width = WIDTH)]
fn hop<const WIDTH: usize>(#[shared] routes: &Routes, address: u128) -> u32 {
    let first = (address >> 104) as usize;
    prefetch!(&routes.first[first]);
    let mut entry = routes.first[first];
    let mut depth = 24;
    while entry & HAS_MORE != 0 {
        let place = place(entry, address, depth);
        prefetch!(&routes.tables[place]);
        entry = routes.tables[place];
        depth += 8;
    }
    entry
}

fn by_hand<const WIDTH: usize>(routes: &Routes, addresses: &[u128], mut each: impl FnMut(u32)) {
    let mut lanes = [(0_usize, 0_u128); WIDTH];
    for addresses in addresses.chunks(WIDTH) {
        for (address, lane) in addresses.iter().zip(&mut lanes) {
            *lane = ((address >> 104) as usize, *address);
            prefetch(std::ptr::from_ref(&routes.first[lane.0]).cast());
        }
        let mut live = 0;
        for index in 0..addresses.len() {
            let (first, address) = lanes[index];
            let entry = routes.first[first];
            step(routes, entry, address, 24, &mut lanes, &mut live, &mut each);
        }
        let mut depth = 32;
        while live > 0 {
            let count = std::mem::take(&mut live);
            for index in 0..count {
                let (place, address) = lanes[index];
                let entry = routes.tables[place];
                step(routes, entry, address, depth, &mut lanes, &mut live, &mut each);
            }
            depth += 8;
        }
    }
}

/// Keeps a lane whose entry names a further table.
#[inline(always)]
fn step<const WIDTH: usize>(
    routes: &Routes,
    entry: u32,
    address: u128,
    depth: u32,
    lanes: &mut [(usize, u128); WIDTH],
    live: &mut usize,
    each: &mut impl FnMut(u32),
) {
    if entry & HAS_MORE == 0 {
        return each(entry);
    }
    let place = place(entry, address, depth);
    prefetch(std::ptr::from_ref(&routes.tables[place]).cast());
    lanes[*live] = (place, address);
    *live += 1;
}

async fn as_future(routes: &Routes, address: u128) -> u32 {
    let first = (address >> 104) as usize;
    fetched(&routes.first[first]).await;
    let mut entry = routes.first[first];
    let mut depth = 24;
    while entry & HAS_MORE != 0 {
        let place = place(entry, address, depth);
        fetched(&routes.tables[place]).await;
        entry = routes.tables[place];
        depth += 8;
    }
    entry
}

fn forms<const WIDTH: usize>(routes: &Routes) -> Forms<'_, u128> {
    Forms {
        batched: summed(|addresses, sum| {
            hop_batch::<WIDTH>(routes, addresses.iter().copied(), |_, hop| *sum += u64::from(hop))
        }),
        by_hand: Some(summed(|addresses, sum| {
            by_hand::<WIDTH>(routes, addresses, |hop| *sum += u64::from(hop))
        })),
        futures: summed(|addresses, sum| {
            let make = |address| as_future(routes, address);
            futures::run(WIDTH, addresses, make, |hop| *sum += u64::from(hop));
        }),
    }
}

fn random_address(numbers: &mut Numbers) -> u128 {
    u128::from(numbers.next()) << 64 | u128::from(numbers.next())
}

/// The trie, the prefixes, and the longest prefix of an address by other means.
struct World<L> {
    routes: Routes,
    /// Addresses, lengths and next hops.
    prefixes: Vec<(u128, u32, u32)>,
    longest: L,
    numbers: Numbers,
}

fn world(smaller: usize) -> World<impl Fn(u128) -> u32> {
    let mut numbers = Numbers::new(6);
    let mut prefixes: Vec<(u128, u32, u32)> = (0..PREFIXES / smaller)
        .map(|_| {
            let length = 48 + numbers.below(17) as u32;
            let prefix = random_address(&mut numbers) & (u128::MAX << (128 - length));
            (prefix, length, 1 + numbers.below(4095) as u32)
        })
        .collect();
    prefixes.sort_by_key(|(_, length, _)| *length);
    let routes = Routes::new(&prefixes);
    let hops: HashMap<(u128, u32), u32> =
        prefixes.iter().map(|(prefix, length, hop)| ((*prefix, *length), *hop)).collect();
    let longest = move |address: u128| {
        let mut found = (48..=64).rev().filter_map(|length| {
            hops.get(&(address & (u128::MAX << (128 - length)), length)).copied()
        });
        found.next().unwrap_or(0)
    };
    World { routes, prefixes, longest, numbers }
}

impl<L> World<L> {
    /// Returns addresses of random prefixes.
    fn addresses(&mut self, count: usize) -> Vec<u128> {
        let Self { prefixes, numbers, .. } = self;
        let address = |_| {
            let (prefix, length, _) = prefixes[numbers.below(prefixes.len())];
            prefix | random_address(numbers) >> length
        };
        (0..count).map(address).collect()
    }

    fn title(&self) -> String {
        format!(
            "IPv6 routes by a trie, {} prefixes, {} MiB",
            self.prefixes.len(),
            (self.routes.first.len() + self.routes.tables.len()) >> 18
        )
    }
}

/// Returns the trie for a server, with requests.
pub(crate) fn workload(size: Size) -> Workload<impl Service> {
    let mut world = world(size.smaller);
    let addresses = world.addresses(size.requests);
    Workload::new(world.title(), world.routes, addresses, world.longest)
}

impl Service for Routes {
    type Key = u128;
    type Message = [u8; 16];

    fn message(address: u128) -> [u8; 16] {
        address.to_be_bytes()
    }

    #[inline]
    fn key(message: &[u8]) -> u128 {
        message.try_into().map_or(0, u128::from_be_bytes)
    }

    #[inline]
    fn first_line(&self, address: u128) -> *const u8 {
        std::ptr::from_ref(&self.first[(address >> 104) as usize]).cast()
    }

    fn arrays(&self) -> Vec<*const [u8]> {
        vec![bytes_of(&self.first), bytes_of(&self.tables)]
    }

    #[inline]
    fn find(&self, address: u128) -> u32 {
        hop::<WIDTH>(self, address)
    }

    #[inline]
    fn find_batch(&self, addresses: impl Iterator<Item = u128>, each: impl FnMut(usize, u32)) {
        hop_batch::<WIDTH>(self, addresses, each);
    }
}

pub(crate) fn measure(pace: &Pace) -> Report {
    let mut world = world(pace.smaller);
    let (title, inputs) = (world.title(), world.addresses((1 << 20) / pace.smaller));
    let World { routes, longest, .. } = world;
    Measured {
        title,
        inputs,
        inputs_per_round: 8_192,
        answer: Box::new(move |addresses| {
            addresses.iter().map(|address| u64::from(longest(*address))).sum()
        }),
        naive: Box::new(|addresses| {
            addresses.iter().map(|address| u64::from(hop::<1>(&routes, *address))).sum()
        }),
        forms: for_each_width!(forms(&routes)),
    }
    .run(pace)
}
