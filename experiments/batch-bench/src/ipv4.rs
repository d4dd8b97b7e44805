//! The longest prefix of an IPv4 address by DIR-24-8: a table for the first 24 bits, and tables for the last 8 (G-Opt §4).

use std::collections::HashMap;

use petrel_batch::{batched, prefetch};

use crate::futures::{self, fetched};
use crate::harness::{Forms, Measured, Pace, Report, for_each_width, summed};
use crate::memory::{bytes_of, filled};
use crate::random::Numbers;
use crate::served::{Service, Size, WIDTH, Workload};

const PREFIXES: usize = 500_000;
/// The share of prefixes by length, in thousandths: roughly that of public routing tables, most of which are of 24 bits.
const LENGTHS: [(u32, usize); 12] = [
    (8, 1),
    (12, 1),
    (14, 2),
    (16, 17),
    (18, 15),
    (19, 27),
    (20, 45),
    (21, 50),
    (22, 117),
    (23, 105),
    (24, 610),
    (28, 10),
];
/// The entry names a table of 256 entries for the last 8 bits.
const IS_LONG: u32 = 1 << 31;

struct Routes {
    first: Box<[u32]>,
    last: Vec<u32>,
}

impl Routes {
    /// Builds the tables. Longer prefixes come later.
    fn new(prefixes: &[(u32, u32, u32)]) -> Self {
        let mut routes = Self { first: filled(1 << 24, |_| 0), last: Vec::new() };
        for (prefix, length, hop) in prefixes {
            let start = (prefix >> 8) as usize;
            if *length <= 24 {
                routes.first[start..start + (1 << (24 - length))].fill(*hop);
                continue;
            }
            if routes.first[start] & IS_LONG == 0 {
                let former = routes.first[start];
                routes.first[start] = IS_LONG | (routes.last.len() >> 8) as u32;
                routes.last.extend([former; 256]);
            }
            let group = (routes.first[start] & !IS_LONG) as usize;
            let start = (group << 8) + (prefix & 0xff) as usize;
            routes.last[start..start + (1 << (32 - length))].fill(*hop);
        }
        routes
    }

    #[inline(always)]
    fn first(&self, address: u32) -> &u32 {
        &self.first[(address >> 8) as usize]
    }

    #[inline(always)]
    fn last(&self, entry: u32, address: u32) -> &u32 {
        &self.last[((entry & !IS_LONG) << 8 | address & 0xff) as usize]
    }
}

#[batched(width = WIDTH)]
fn hop<const WIDTH: usize>(#[shared] routes: &Routes, address: u32) -> u32 {
    prefetch!(routes.first(address));
    let entry = *routes.first(address);
    if entry & IS_LONG == 0 {
        return entry;
    }
    prefetch!(routes.last(entry, address));
    *routes.last(entry, address)
}

fn by_hand<const WIDTH: usize>(routes: &Routes, addresses: &[u32], mut each: impl FnMut(u32)) {
    for addresses in addresses.chunks(WIDTH) {
        for address in addresses {
            prefetch(std::ptr::from_ref(routes.first(*address)).cast());
        }
        let mut long = [(0, 0); WIDTH];
        let mut count = 0;
        for address in addresses {
            let entry = *routes.first(*address);
            if entry & IS_LONG == 0 {
                each(entry);
            } else {
                prefetch(std::ptr::from_ref(routes.last(entry, *address)).cast());
                long[count] = (entry, *address);
                count += 1;
            }
        }
        long[..count].iter().for_each(|(entry, address)| each(*routes.last(*entry, *address)));
    }
}

async fn as_future(routes: &Routes, address: u32) -> u32 {
    fetched(routes.first(address)).await;
    let entry = *routes.first(address);
    if entry & IS_LONG == 0 {
        return entry;
    }
    fetched(routes.last(entry, address)).await;
    *routes.last(entry, address)
}

fn forms<const WIDTH: usize>(routes: &Routes) -> Forms<'_, u32> {
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

fn prefixes(count: usize) -> Vec<(u32, u32, u32)> {
    let mut numbers = Numbers::new(4);
    let mut prefixes = Vec::with_capacity(count);
    for (length, share) in LENGTHS {
        for _ in 0..count * share / 1000 {
            let prefix = numbers.next() as u32 & (u32::MAX << (32 - length));
            prefixes.push((prefix, length, 1 + numbers.below(4095) as u32));
        }
    }
    prefixes
}

/// Returns the tables, and the longest prefix of an address by other means.
fn world(smaller: usize) -> (Routes, impl Fn(u32) -> u32) {
    let prefixes = prefixes(PREFIXES / smaller);
    let routes = Routes::new(&prefixes);
    let hops: HashMap<(u32, u32), u32> =
        prefixes.iter().map(|(prefix, length, hop)| ((*prefix, *length), *hop)).collect();
    let longest = move |address: u32| {
        let mut found = LENGTHS.iter().rev().filter_map(|(length, _)| {
            hops.get(&(address & (u32::MAX << (32 - length)), *length)).copied()
        });
        found.next().unwrap_or(0)
    };
    (routes, longest)
}

fn addresses(count: usize) -> Vec<u32> {
    let mut numbers = Numbers::new(5);
    (0..count).map(|_| numbers.next() as u32).collect()
}

fn title(smaller: usize) -> String {
    let count: usize = LENGTHS.iter().map(|(_, share)| PREFIXES / smaller * share / 1000).sum();
    format!("IPv4 routes by DIR-24-8, {count} prefixes, 64 MiB")
}

/// Returns the tables for a server, with requests.
pub(crate) fn workload(size: Size) -> Workload<impl Service> {
    let (routes, longest) = world(size.smaller);
    Workload::new(title(size.smaller), routes, addresses(size.requests), longest)
}

impl Service for Routes {
    type Key = u32;
    type Message = [u8; 4];

    fn message(address: u32) -> [u8; 4] {
        address.to_be_bytes()
    }

    #[inline]
    fn key(message: &[u8]) -> u32 {
        message.try_into().map_or(0, u32::from_be_bytes)
    }

    #[inline]
    fn first_line(&self, address: u32) -> *const u8 {
        std::ptr::from_ref(self.first(address)).cast()
    }

    fn arrays(&self) -> Vec<*const [u8]> {
        vec![bytes_of(&self.first), bytes_of(&self.last)]
    }

    #[inline]
    fn find(&self, address: u32) -> u32 {
        hop::<WIDTH>(self, address)
    }

    #[inline]
    fn find_batch(&self, addresses: impl Iterator<Item = u32>, each: impl FnMut(usize, u32)) {
        hop_batch::<WIDTH>(self, addresses, each);
    }
}

pub(crate) fn measure(pace: &Pace) -> Report {
    let (routes, longest) = world(pace.smaller);
    Measured {
        title: title(pace.smaller),
        inputs: addresses((1 << 22) / pace.smaller),
        inputs_per_round: 16_384,
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
