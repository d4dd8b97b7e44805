//! An Ethernet switch: the port of a destination address, by the cuckoo hash table of CuckooSwitch (G-Opt §4).

use std::collections::HashMap;

use petrel_batch::batched;

use crate::cuckoo::{Bucket, Table, as_future, by_hand, summand};
use crate::futures;
use crate::harness::{Forms, Measured, Pace, Report, for_each_width, summed};
use crate::memory::bytes_of;
use crate::random::{Numbers, number};
use crate::served::{ABSENT, Service, Size, WIDTH, Workload};

/// 1 GiB of buckets.
const BUCKETS: usize = 1 << 24;
/// Half of the entries are full.
const ADDRESSES: usize = BUCKETS * 4;

/// Eight entries: an address of 48 bits, and above it a port of 16. No address is 0.
#[derive(Clone, Copy)]
#[repr(align(64))]
struct Ports([u64; 8]);

const ADDRESS_MASK: u64 = (1 << 48) - 1;

impl Bucket for Ports {
    type Key = u64;
    const EMPTY: Self = Self([0; 8]);

    #[inline(always)]
    fn value(&self, address: u64) -> Option<u32> {
        let mut found = 0_u32;
        for (index, entry) in self.0.iter().enumerate() {
            found |= u32::from(*entry & ADDRESS_MASK == address) << index;
        }
        (found != 0).then(|| (self.0[found.trailing_zeros() as usize % 8] >> 48) as u32)
    }

    fn put(&mut self, address: u64, port: u32, victim: usize) -> Option<(u64, u32)> {
        let free = self.0.iter().position(|entry| *entry == 0);
        let place = free.unwrap_or(victim % 8);
        let former = self.0[place];
        self.0[place] = address | u64::from(port) << 48;
        free.is_none().then_some((former & ADDRESS_MASK, (former >> 48) as u32))
    }

    #[inline(always)]
    fn hash(address: u64) -> u64 {
        number(address)
    }
}

#[batched(width = WIDTH)]
fn port<const WIDTH: usize>(#[shared] table: &Table<Ports>, address: u64) -> Option<u32> {
    let (first, second) = table.places(address);
    prefetch!(table.bucket(first));
    if let Some(port) = table.bucket(first).value(address) {
        return Some(port);
    }
    prefetch!(table.bucket(second));
    table.bucket(second).value(address)
}

fn forms<const WIDTH: usize>(table: &Table<Ports>) -> Forms<'_, u64> {
    Forms {
        batched: summed(|addresses, sum| {
            port_batch::<WIDTH>(table, addresses.iter().copied(), |_, port| *sum += summand(port))
        }),
        by_hand: Some(summed(|addresses, sum| {
            by_hand::<WIDTH, _>(table, addresses, |port| *sum += summand(port))
        })),
        futures: summed(|addresses, sum| {
            let make = |address| as_future(table, address);
            futures::run(WIDTH, addresses, make, |port| *sum += summand(port));
        }),
    }
}

/// The `index`-th station. Multiplication by an odd number gives each another address.
fn station(index: usize) -> u64 {
    (index as u64 + 1).wrapping_mul(0x9e37_79b9_7f4b) & ADDRESS_MASK
}

fn port_of(index: usize) -> u32 {
    (number(index as u64) & 0xffff) as u32
}

/// Returns the table, and the number of stations.
fn world(smaller: usize) -> (Table<Ports>, usize) {
    let mut table = Table::new((BUCKETS / smaller).next_power_of_two());
    let count = ADDRESSES / smaller;
    (0..count).for_each(|index| table.insert(station(index), port_of(index)));
    (table, count)
}

fn stations(requests: usize, count: usize) -> Vec<usize> {
    let mut numbers = Numbers::new(3);
    (0..requests).map(|_| numbers.below(count)).collect()
}

fn title(table: &Table<Ports>, count: usize) -> String {
    format!("Ethernet switch of {count} addresses, {} MiB", table.bytes() >> 20)
}

/// The ports of some stations.
fn ports(indices: &[usize]) -> HashMap<u64, u32> {
    indices.iter().map(|index| (station(*index), port_of(*index))).collect()
}

/// Returns the table for a server, with requests.
pub(crate) fn workload(size: Size) -> Workload<impl Service> {
    let (table, count) = world(size.smaller);
    let indices = stations(size.requests, count);
    let addresses = indices.iter().map(|index| station(*index)).collect();
    let ports = ports(&indices);
    Workload::new(title(&table, count), table, addresses, move |address| ports[&address])
}

impl Service for Table<Ports> {
    type Key = u64;
    type Message = [u8; 8];

    fn message(address: u64) -> [u8; 8] {
        address.to_le_bytes()
    }

    #[inline]
    fn key(message: &[u8]) -> u64 {
        message.try_into().map_or(0, u64::from_le_bytes) & ADDRESS_MASK
    }

    #[inline]
    fn first_line(&self, address: u64) -> *const u8 {
        std::ptr::from_ref(self.bucket(self.places(address).0)).cast()
    }

    fn arrays(&self) -> Vec<*const [u8]> {
        vec![bytes_of(self.buckets())]
    }

    #[inline]
    fn find(&self, address: u64) -> u32 {
        port::<WIDTH>(self, address).unwrap_or(ABSENT)
    }

    #[inline]
    fn find_batch(&self, addresses: impl Iterator<Item = u64>, mut each: impl FnMut(usize, u32)) {
        port_batch::<WIDTH>(self, addresses, |index, port| each(index, port.unwrap_or(ABSENT)));
    }
}

pub(crate) fn measure(pace: &Pace) -> Report {
    let (table, count) = world(pace.smaller);
    let indices = stations((1 << 22) / pace.smaller, count);
    let ports = ports(&indices);
    Measured {
        title: title(&table, count),
        inputs: indices.iter().map(|index| station(*index)).collect(),
        inputs_per_round: 16_384,
        answer: Box::new(|addresses| {
            addresses.iter().map(|address| summand(ports.get(address).copied())).sum()
        }),
        naive: Box::new(|addresses| {
            addresses.iter().map(|address| summand(port::<1>(&table, *address))).sum()
        }),
        forms: for_each_width!(forms(&table)),
    }
    .run(pace)
}
