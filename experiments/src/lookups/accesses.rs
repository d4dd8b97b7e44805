//! Further accesses to memory before a look-up, each of which depends on the one before (HERD's figure 7).

use std::hint::black_box;
use std::time::Duration;

use petrel_batch::{batched, prefetch};
use petrel_batch_bench::memory::filled;
use petrel_transport::clock;

use super::side::Window;
use crate::turns::Turns;
use petrel_bench::cache::mix;

/// Largest table that further accesses read, in bytes: more than the caches of most processors.
const TABLE_BYTES_MAX: usize = 1 << 30;

/// Accesses of a burst that overlap.
pub(super) const WIDTH: usize = 32;

/// Groups of [`WIDTH`] chains between two readings of the clock.
const GROUPS: u64 = 16;

/// The table of further accesses: a power of two of words, in huge pages where the kernel provides them.
pub(super) struct Table(Box<[u64]>);

impl Table {
    /// A table of at most so many bytes, and of a word at least.
    pub(super) fn new(bytes: usize) -> Self {
        let words = (bytes.min(TABLE_BYTES_MAX) / size_of::<u64>()).max(1);
        Self(filled(1 << words.ilog2(), |place| mix(place as u64)))
    }

    /// Makes the accesses of one chain.
    pub(super) fn walk(&self, accesses: u8, start: u64) -> u64 {
        walk(&self.0, accesses, start)
    }

    /// Makes the accesses of several chains, overlapping.
    pub(super) fn walk_together(&self, accesses: u8, starts: impl Iterator<Item = u64>) {
        walk_batch(&self.0, accesses, starts, |_, end| {
            black_box(end);
        });
    }

    /// Makes the accesses of chains for a while, in groups of [`WIDTH`], by a loop written by hand and with nothing around it:
    /// what the memory allows.
    pub(super) fn window(&self, accesses: u8, length: Duration) -> Window {
        let (mut groups, mut wrong, mut turns) = (0, 0, Turns::default());
        let mut now_ns = clock::now_ns();
        let end_ns = now_ns + length.as_nanos() as u64;
        while now_ns < end_ns {
            let mut ends = [0; WIDTH];
            let starts =
                |group: u64| std::array::from_fn(|lane| mix(group * WIDTH as u64 + lane as u64));
            now_ns = clock::now_ns();
            for group in groups..groups + GROUPS {
                ends = walk_by_hand(&self.0, accesses, starts(group));
            }
            now_ns = turns.add(now_ns);
            groups += GROUPS;
            let expected = starts(groups - 1).map(|start| self.walk(accesses, start));
            wrong += u64::from(ends != expected);
        }
        let calls = groups * WIDTH as u64;
        let servers_ns = vec![turns.total_ns()];
        Window { calls, servers_ns, client_ns: 0.0, operations: vec![calls], wrong, missed: 0 }
    }
}

/// Reads words at random: a word decides about the place of the next.
#[batched(width = WIDTH)]
fn walk(#[shared] words: &[u64], #[shared] accesses: u8, start: u64) -> u64 {
    let mut at = start;
    for _ in 0..accesses {
        let word = &words[at as usize & (words.len() - 1)];
        prefetch!(word);
        at = mix(at ^ *word);
    }
    at
}

/// [`walk`] for a group of chains, with all of an access before the next.
fn walk_by_hand(words: &[u64], accesses: u8, mut chains: [u64; WIDTH]) -> [u64; WIDTH] {
    let word = |at: u64| &words[at as usize & (words.len() - 1)];
    for at in chains {
        prefetch(std::ptr::from_ref(word(at)).cast());
    }
    for _ in 0..accesses {
        for at in &mut chains {
            *at = mix(*at ^ *word(*at));
            prefetch(std::ptr::from_ref(word(*at)).cast());
        }
    }
    chains
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn walk__by_hand_and_in_a_batch_ends_at_the_same_places() {
        let table = Table::new(1 << 16);
        for accesses in [0, 1, 2, 8] {
            let starts: [u64; WIDTH] = std::array::from_fn(|lane| mix(lane as u64));
            let expected = starts.map(|start| table.walk(accesses, start));
            assert_eq!(walk_by_hand(&table.0, accesses, starts), expected);
            let mut ends = [0; WIDTH];
            walk_batch(&table.0, accesses, starts, |lane, end| ends[lane] = end);
            assert_eq!(ends, expected);
            let window = table.window(accesses, Duration::from_millis(1));
            assert!(window.calls > 0 && window.wrong == 0);
        }
    }
}
