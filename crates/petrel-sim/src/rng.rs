//! A random number generator with fixed results.
//!
//! A seed in a regression list must select an unchanged run for years. The generator is therefore part of
//! this crate instead of a dependency: xoshiro256\*\* (Blackman and Vigna, 2018), seeded by SplitMix64 as
//! its authors advise. Integer arithmetic makes the results equal on every platform.

/// A seeded generator. Not for secrets.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Rng {
    state: [u64; 4],
    /// The bytes of the next draws, last first.
    script: Vec<u8>,
}

impl Rng {
    /// Returns a generator for `seed`.
    pub fn new(seed: u64) -> Self {
        let mut mix = seed;
        Self { state: std::array::from_fn(|_| split_mix(&mut mix)), script: Vec::new() }
    }

    /// Returns a generator whose first draws follow a script, a byte for each: the byte is the draw's highest bits, and selects among
    /// few alternatives. The other bits, and all later draws, follow from the seed.
    pub fn scripted(seed: u64, script: &[u8]) -> Self {
        let script = script.iter().rev().copied().collect();
        Self { script, ..Self::new(seed) }
    }

    /// Returns an independent generator for one part of a run.
    ///
    /// Every link, host and workload has a separate stream: more draws in a stream leave all others
    /// unchanged. `domain` names the kind of part and `index` the part.
    pub fn stream(seed: u64, domain: u32, index: u32) -> Self {
        let mut label = u64::from(domain) << 32 | u64::from(index);
        let mut mix = seed;
        Self::new(split_mix(&mut mix) ^ split_mix(&mut label).rotate_left(32))
    }

    /// Returns the next 64 bits.
    #[inline]
    pub fn next_u64(&mut self) -> u64 {
        let result = self.state[1].wrapping_mul(5).rotate_left(7).wrapping_mul(9);
        let shifted = self.state[1] << 17;
        self.state[2] ^= self.state[0];
        self.state[3] ^= self.state[1];
        self.state[1] ^= self.state[2];
        self.state[0] ^= self.state[3];
        self.state[2] ^= shifted;
        self.state[3] = self.state[3].rotate_left(45);
        if self.script.is_empty() { result } else { self.follow_script(result) }
    }

    #[cold]
    fn follow_script(&mut self, draw: u64) -> u64 {
        let byte = self.script.pop().unwrap_or_default();
        u64::from(byte) << 56 | draw >> 8
    }

    /// Returns a number from 0 to `bound - 1`, each equally likely, and zero for a bound of zero or one.
    ///
    /// Uses the high half of a 128-bit product, and draws again in the few cases that would favour some
    /// numbers (Lemire, 2019).
    #[inline]
    pub fn below(&mut self, bound: u64) -> u64 {
        if bound <= 1 {
            return 0;
        }
        let unfair = bound.wrapping_neg() % bound;
        loop {
            let product = u128::from(self.next_u64()) * u128::from(bound);
            if product as u64 >= unfair {
                return (product >> 64) as u64;
            }
        }
    }

    /// Returns a number from `low` to `high`, both included, or `low` if the range is empty.
    #[inline]
    pub fn between(&mut self, low: u64, high: u64) -> u64 {
        match high.saturating_sub(low).checked_add(1) {
            Some(count) => low + self.below(count),
            None => self.next_u64(),
        }
    }

    /// Returns true with the given probability. Always consumes exactly one draw: changing a probability
    /// leaves later draws unchanged.
    #[inline]
    pub fn chance(&mut self, probability: Probability) -> bool {
        let scaled = ((self.next_u64() >> 32) * u64::from(Probability::SCALE)) >> 32;
        scaled < u64::from(probability.0)
    }

    /// Fills a slice with random bytes.
    pub fn fill(&mut self, bytes: &mut [u8]) {
        let (words, rest) = bytes.as_chunks_mut();
        for word in words {
            *word = self.next_u64().to_le_bytes();
        }
        if !rest.is_empty() {
            rest.copy_from_slice(&self.next_u64().to_le_bytes()[..rest.len()]);
        }
    }
}

fn split_mix(state: &mut u64) -> u64 {
    *state = state.wrapping_add(0x9e37_79b9_7f4a_7c15);
    let mut word = *state;
    word = (word ^ word >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    word = (word ^ word >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
    word ^ word >> 31
}

/// A probability in parts per billion: links lose one packet of ten million.
///
/// An integer can be neither negative nor NaN, and compares equally everywhere. A draw has 32 bits: a part is 4 or 5 of
/// its values. Whole millionths succeed at the same draws as in versions whose unit was the millionth.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct Probability(u32);

impl Probability {
    const SCALE: u32 = 1_000_000_000;

    /// The event never happens.
    pub const NEVER: Self = Self(0);
    /// The event always happens.
    pub const ALWAYS: Self = Self(Self::SCALE);

    /// Parts per million; more than a million count as always.
    pub const fn per_million(parts: u32) -> Self {
        Self::per_billion(parts.saturating_mul(1_000))
    }

    /// Parts per billion; more than a billion count as always.
    pub const fn per_billion(parts: u32) -> Self {
        Self(if parts > Self::SCALE { Self::SCALE } else { parts })
    }

    /// Percent; more than a hundred count as always.
    pub const fn percent(percent: u32) -> Self {
        Self::per_million(percent.saturating_mul(10_000))
    }

    /// Returns parts per million, rounded down.
    pub const fn parts_per_million(self) -> u32 {
        self.0 / 1_000
    }

    /// Returns a number from 0 to 1.
    pub fn as_f64(self) -> f64 {
        f64::from(self.0) / f64::from(Self::SCALE)
    }
}

#[cfg(test)]
mod tests {
    /// The first draws come from the script, further draws from the seed.
    #[test]
    fn scripted__follows_the_script_first() {
        let (mut rng, mut plain) = (Rng::scripted(5, &[0, 255, 128]), Rng::new(5));
        assert_eq!([rng.below(10), rng.below(10), rng.below(10)], [0, 9, 5]);
        (0..3).for_each(|_| _ = plain.next_u64());
        assert_eq!(rng.next_u64(), plain.next_u64());
    }

    use super::*;

    #[test]
    fn next_u64__follows_the_reference() {
        // The authors' C code, started with the state 1, 2, 3, 4.
        let mut rng = Rng { state: [1, 2, 3, 4], script: Vec::new() };
        let expected = [11_520, 0, 1_509_978_240, 1_215_971_899_390_074_240];
        assert_eq!(expected, std::array::from_fn(|_| rng.next_u64()));
    }

    #[test]
    fn split_mix__follows_the_reference() {
        let mut state = 1_234_567;
        assert_eq!(split_mix(&mut state), 6_457_827_717_110_365_317);
        assert_eq!(split_mix(&mut state), 3_203_168_211_198_807_973);
    }

    #[test]
    fn seeds__keep_their_meaning() {
        // Changing these numbers changes what every recorded seed does.
        assert_eq!(Rng::new(0).next_u64(), 0x99ec_5f36_cb75_f2b4);
        let streams: Vec<u64> = (0..3).map(|index| Rng::stream(7, 1, index).next_u64()).collect();
        assert!(streams[0] != streams[1] && streams[1] != streams[2]);
        assert_ne!(Rng::stream(7, 1, 0), Rng::stream(7, 0, 1));
        assert_ne!(Rng::stream(7, 1, 0), Rng::stream(8, 1, 0));
    }

    #[test]
    fn below__covers_its_range_evenly() {
        let mut rng = Rng::new(3);
        let mut counts = [0u32; 7];
        for _ in 0..70_000 {
            counts[rng.below(7) as usize] += 1;
        }
        assert!(counts.iter().all(|&count| (9_500..10_500).contains(&count)), "{counts:?}");
        assert_eq!(rng.below(0), 0);
        assert_eq!(rng.below(1), 0);
    }

    #[test]
    fn between__includes_both_ends() {
        let mut rng = Rng::new(4);
        let drawn: std::collections::BTreeSet<u64> = (0..200).map(|_| rng.between(5, 8)).collect();
        assert_eq!(drawn.into_iter().collect::<Vec<_>>(), [5, 6, 7, 8]);
        assert_eq!(rng.between(9, 3), 9);
        rng.between(0, u64::MAX);
    }

    #[test]
    fn chance__meets_its_probability() {
        let mut rng = Rng::new(5);
        let hits = (0..100_000).filter(|_| rng.chance(Probability::percent(3))).count();
        assert!((2_700..3_300).contains(&hits), "{hits}");
        assert!((0..1_000).all(|_| rng.chance(Probability::ALWAYS)));
        assert!(!(0..1_000).any(|_| rng.chance(Probability::NEVER)));
    }

    #[test]
    fn chance__of_millionths_is_as_it_always_was() {
        let mut rng = Rng::new(6);
        for parts in [1, 7, 20_000, 333_333, 999_999] {
            let probability = Probability::per_million(parts);
            for _ in 0..10_000 {
                let before = ((rng.clone().next_u64() >> 32) * 1_000_000) >> 32;
                assert_eq!(rng.chance(probability), before < u64::from(parts));
            }
        }
        assert_eq!(Probability::per_billion(100).as_f64(), 1e-7);
    }

    #[test]
    fn fill__fills_every_length() {
        for length in 0..40 {
            let mut bytes = vec![0u8; length];
            Rng::new(length as u64).fill(&mut bytes);
            assert!(length < 8 || bytes.iter().any(|&byte| byte != 0));
        }
    }
}
