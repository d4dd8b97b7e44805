//! Random numbers of a session.

/// Marsaglia's xorshift of 64 bits: enough to spread packets, and repeatable from a seed. Secrecy is no concern: an
/// observer of the packets sees the paths anyway.
#[derive(Debug)]
pub(super) struct Random(u64);

impl Random {
    pub(super) fn new(seed: u64) -> Self {
        // Zero would stay zero. Neighbouring seeds begin far apart.
        let mut new = Self((seed ^ 0x9E37_79B9_7F4A_7C15).max(1));
        (0..8).for_each(|_| {
            new.next();
        });
        new
    }

    fn next(&mut self) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0
    }

    /// Returns a number below `end`, at least 1.
    pub(super) fn below(&mut self, end: u32) -> u32 {
        assert!(end > 0, "a number is drawn from some");
        (((self.next() >> 32) * u64::from(end)) >> 32) as u32
    }
}
