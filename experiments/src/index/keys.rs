//! The words of the measurement: random keys, values derived from them, and the expected sums of scans.

use petrel_bench::cache::mix;

/// The keys, by number and in order.
pub(super) struct Keys {
    keys: Vec<u64>,
    /// The rank of a key, by its number.
    ranks: Vec<u32>,
    /// Sums of the values of all keys before a rank, modulo 2^64; one sum more than keys.
    sums: Vec<u64>,
}

impl Keys {
    pub(super) fn new(count: u32) -> Self {
        let keys: Vec<u64> = (0..count).map(|number| mix(number.into())).collect();
        let mut order: Vec<u32> = (0..count).collect();
        order.sort_unstable_by_key(|number| keys[*number as usize]);
        let mut ranks = vec![0; keys.len()];
        let mut sums = vec![0u64];
        for (rank, number) in (0..).zip(order) {
            ranks[number as usize] = rank;
            sums.push(sums[rank as usize].wrapping_add(value_of(keys[number as usize])));
        }
        Self { keys, ranks, sums }
    }

    pub(super) fn count(&self) -> u32 {
        self.keys.len() as u32
    }

    /// Returns a key. The key is computed anew: reading it would cost the client a cache miss per call.
    #[inline]
    pub(super) fn key(&self, number: u32) -> u64 {
        mix(number.into())
    }

    /// Returns the number of keys after a key, up to `count`, and the sum of their values.
    pub(super) fn sum_after(&self, number: u32, count: u32) -> (u32, u64) {
        let first = self.ranks[number as usize] as usize + 1;
        let end = (first + count as usize).min(self.keys.len());
        ((end - first) as u32, self.sums[end].wrapping_sub(self.sums[first]))
    }
}

/// Returns the value of a key.
#[inline]
pub(super) fn value_of(key: u64) -> u64 {
    key.rotate_left(32) ^ 0x7065_7472_656c
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sum_after__is_that_of_the_keys_in_order() {
        let keys = Keys::new(1_000);
        let mut sorted: Vec<u64> = (0..1_000).map(|number| keys.key(number)).collect();
        sorted.sort_unstable();
        for number in 0..1_000 {
            let place = sorted.binary_search(&keys.key(number)).unwrap() + 1;
            let following = &sorted[place..(place + 128).min(1_000)];
            let sum = following.iter().fold(0u64, |sum, key| sum.wrapping_add(value_of(*key)));
            assert_eq!(keys.sum_after(number, 128), (following.len() as u32, sum));
        }
        assert_eq!(keys.count(), 1_000);
    }
}
