//! Chains of dependent accesses: `place = links[place]` (G-Opt §2.5, §3.3).

use petrel_batch::{batched, prefetch};

use crate::futures::{self, fetched};
use crate::harness::{Forms, Measured, Pace, Report, for_each_width};
use crate::memory::filled;
use crate::random::Numbers;

/// 1 GiB of links.
const LINKS: usize = 1 << 28;

/// Returns the place behind a place. Each step of the computation can be undone, so that the links are a permutation.
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
        batched: Box::new(move |starts| {
            let mut sum = 0;
            let starts = starts.iter().copied();
            chase_batch::<WIDTH>(links, steps, starts, |_, place| sum += u64::from(place));
            sum
        }),
        by_hand: Some(Box::new(move |starts| {
            let mut sum = 0;
            by_hand::<WIDTH>(links, steps, starts, |place| sum += u64::from(place));
            sum
        })),
        futures: Box::new(move |starts| {
            let mut sum = 0;
            let make = |start| as_future(links, steps, start);
            futures::run(WIDTH, starts, make, |place| sum += u64::from(place));
            sum
        }),
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
