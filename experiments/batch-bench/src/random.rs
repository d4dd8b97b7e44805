//! Pseudo-random numbers, equal in all runs.

/// Returns the `index`-th number of a sequence (SplitMix64).
pub(crate) fn number(index: u64) -> u64 {
    let mut value = index.wrapping_add(1).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    value = (value ^ (value >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    value = (value ^ (value >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    value ^ (value >> 31)
}

/// A sequence of such numbers.
pub(crate) struct Numbers(u64);

impl Numbers {
    /// The sequence of a number.
    pub(crate) fn new(sequence: u64) -> Self {
        Self(sequence << 40)
    }

    pub(crate) fn next(&mut self) -> u64 {
        self.0 += 1;
        number(self.0)
    }

    pub(crate) fn below(&mut self, limit: usize) -> usize {
        ((u128::from(self.next()) * limit as u128) >> 64) as usize
    }
}
