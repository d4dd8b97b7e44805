//! The choice of mutants to run.

use super::copy::Copy;
use super::crates::CRATES;

/// Draws `count` mutants, from every chosen crate in proportion to its number of mutants.
pub(super) fn draw(copy: &Copy, count: usize, seed: u64) -> Vec<u32> {
    let mut random = Random(seed);
    let by_crate: Vec<Vec<u32>> = (0..CRATES.len())
        .map(|crate_| copy.candidates().filter(|m| m.crate_ == crate_).map(|m| m.id).collect())
        .collect();
    let sizes: Vec<usize> = by_crate.iter().map(Vec::len).collect();
    let shares = shares(&sizes, count);
    let mut drawn = Vec::new();
    for (mut ids, share) in by_crate.into_iter().zip(shares) {
        random.shuffle(&mut ids, share);
        drawn.extend_from_slice(&ids[..share]);
    }
    // After a shuffle, the mutants run so far are always a sample, too.
    let all = drawn.len();
    random.shuffle(&mut drawn, all);
    drawn
}

/// Divides `count` in proportion to `sizes`; the rest goes to the largest remainders.
fn shares(sizes: &[usize], count: usize) -> Vec<usize> {
    let all: usize = sizes.iter().sum();
    let count = count.min(all);
    let mut shares: Vec<usize> = sizes.iter().map(|size| size * count / all.max(1)).collect();
    let mut order: Vec<usize> = (0..sizes.len()).collect();
    order.sort_by_key(|place| std::cmp::Reverse(sizes[*place] * count % all.max(1)));
    let left = count - shares.iter().sum::<usize>();
    order.into_iter().take(left).for_each(|place| shares[place] += 1);
    shares
}

/// SplitMix64 (Steele, Lea and Flood, 2014): the same sample everywhere.
struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut mixed = self.0;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        mixed ^ (mixed >> 31)
    }

    /// Moves a random choice of all elements to the first places.
    fn shuffle(&mut self, ids: &mut [u32], places: usize) {
        for place in 0..places {
            let other = place + self.below(ids.len() - place);
            ids.swap(place, other);
        }
    }

    fn below(&mut self, limit: usize) -> usize {
        ((u128::from(self.next()) * limit as u128) >> 64) as usize
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shares__are_in_proportion_and_add_up() {
        assert_eq!(shares(&[600, 300, 100], 100), [60, 30, 10]);
        assert_eq!(shares(&[1, 1, 1], 2).iter().sum::<usize>(), 2);
        assert_eq!(shares(&[3, 0, 2], 100), [3, 0, 2], "no more than there are");
        assert_eq!(shares(&[0, 0], 5), [0, 0]);
    }

    #[test]
    fn below__reaches_all_and_no_more() {
        let mut random = Random(7);
        let seen: std::collections::BTreeSet<usize> = (0..200).map(|_| random.below(5)).collect();
        assert_eq!(seen, (0..5).collect());
    }
}
