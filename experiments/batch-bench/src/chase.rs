//! Chains of dependent accesses: `place = links[place]` (G-Opt §2.5, §3.3).

use petrel_batch::{batched, prefetch};

use crate::futures::{self, fetched};
use crate::harness::{Forms, Measured, Pace, Report, for_each_width, summed};
use crate::memory::{bytes_of, filled};
use crate::random::Numbers;
use crate::served::{Service, Size, WIDTH, Workload};

/// 1 GiB of links.
const LINKS: usize = 1 << 28;

/// Returns the place behind a place. Every step of the computation can be undone: the links are a permutation.
fn link(place: usize, links: usize) -> u32 {
    let mask = links - 1;
    let bits = links.trailing_zeros();
    let mut place = place;
    for factor in [0x9e37_79b1, 0x85eb_ca77, 0xc2b2_ae3d] {
        place = place.wrapping_mul(factor) & mask;
        place ^= place >> (bits / 2);
    }
    place as u32
}

#[batched(width = WIDTH)]
fn chase<const WIDTH: usize>(#[shared] links: &[u32], #[shared] steps: usize, start: u32) -> u32 {
    let mut place = start;
    for _ in 0..steps {
        prefetch!(&links[place as usize]);
        place = links[place as usize];
    }
    place
}

fn by_hand<const WIDTH: usize>(
    links: &[u32],
    steps: usize,
    starts: &[u32],
    mut each: impl FnMut(u32),
) {
    let mut places = [0; WIDTH];
    for starts in starts.chunks(WIDTH) {
        let places = &mut places[..starts.len()];
        places.copy_from_slice(starts);
        for place in &*places {
            prefetch(std::ptr::from_ref(&links[*place as usize]).cast());
        }
        for _ in 1..steps {
            for place in &mut *places {
                *place = links[*place as usize];
                prefetch(std::ptr::from_ref(&links[*place as usize]).cast());
            }
        }
        places.iter().for_each(|place| each(links[*place as usize]));
    }
}

async fn as_future(links: &[u32], steps: usize, start: u32) -> u32 {
    let mut place = start;
    for _ in 0..steps {
        fetched(&links[place as usize]).await;
        place = links[place as usize];
    }
    place
}

fn forms<const WIDTH: usize>(links: &[u32], steps: usize) -> Forms<'_, u32> {
    Forms {
        batched: summed(move |starts, sum| {
            let starts = starts.iter().copied();
            chase_batch::<WIDTH>(links, steps, starts, |_, place| *sum += u64::from(place));
        }),
        by_hand: Some(summed(move |starts, sum| {
            by_hand::<WIDTH>(links, steps, starts, |place| *sum += u64::from(place))
        })),
        futures: summed(move |starts, sum| {
            let make = |start| as_future(links, steps, start);
            futures::run(WIDTH, starts, make, |place| *sum += u64::from(place));
        }),
    }
}

/// Links in memory: a link names the next place. A request has a place, and its answer is a later place.
pub struct Chain {
    links: Box<[u32]>,
    steps: usize,
}

impl Chain {
    pub(crate) fn workload(size: Size) -> Workload<Self> {
        let count = (LINKS / size.smaller).next_power_of_two();
        let links = filled(count, |place| link(place, count));
        let mut numbers = Numbers::new(2);
        let keys = (0..size.requests).map(|_| numbers.below(count) as u32).collect();
        let title = format!("chains in {} MiB", count >> 18);
        Workload::new(title, Self { links, steps: 1 }, keys, move |key| link(key as usize, count))
    }

    /// Sets the accesses per request, and returns the answers for requests.
    pub(crate) fn set_steps(&mut self, steps: usize, keys: &[u32]) -> Vec<u32> {
        self.steps = steps;
        let count = self.links.len();
        let computed = |key: &u32| (0..steps).fold(*key, |place, _| link(place as usize, count));
        keys.iter().map(computed).collect()
    }
}

impl Service for Chain {
    type Key = u32;
    type Message = [u8; 4];

    fn message(place: u32) -> [u8; 4] {
        place.to_le_bytes()
    }

    /// Returns place 0 for bytes that are no request. The caller's places have to be below the number of links.
    #[inline]
    fn key(message: &[u8]) -> u32 {
        message.try_into().map_or(0, u32::from_le_bytes)
    }

    #[inline]
    fn first_line(&self, place: u32) -> *const u8 {
        std::ptr::from_ref(&self.links[place as usize]).cast()
    }

    fn arrays(&self) -> Vec<*const [u8]> {
        vec![bytes_of(&self.links)]
    }

    #[inline]
    fn find(&self, place: u32) -> u32 {
        chase::<WIDTH>(&self.links, self.steps, place)
    }

    #[inline]
    fn find_batch(&self, places: impl Iterator<Item = u32>, each: impl FnMut(usize, u32)) {
        chase_batch::<WIDTH>(&self.links, self.steps, places, each);
    }
}

pub(crate) fn measure(pace: &Pace, steps: usize) -> Report {
    let count = (LINKS / pace.smaller).next_power_of_two();
    let links = filled(count, |place| link(place, count));
    let mut numbers = Numbers::new(1);
    let computed = |start: u32| (0..steps).fold(start, |place, _| link(place as usize, count));
    Measured {
        title: format!("chase of {steps} accesses in {} MiB", count >> 18),
        inputs: (0..(1 << 22) / steps / pace.smaller)
            .map(|_| numbers.below(count) as u32)
            .collect(),
        inputs_per_round: 49_152 / steps,
        answer: Box::new(move |starts| {
            starts.iter().map(|start| u64::from(computed(*start))).sum()
        }),
        naive: Box::new(|starts| {
            starts.iter().map(|start| u64::from(chase::<1>(&links, steps, *start))).sum()
        }),
        forms: for_each_width!(forms(&links, steps)),
    }
    .run(pace)
}
