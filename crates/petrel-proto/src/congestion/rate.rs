//! Rates, and the time that bytes take at a rate.

/// Bytes per second.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Rate(u64);

impl Rate {
    /// The lowest rate that can be paced, 1 Mbit/s: a full packet of 1.4 KB every 11 ms. Below, the
    /// retransmission timer serves a sender better.
    pub const MIN: Self = Self::mbit(1);

    /// The highest rate that can be paced, 1 Tbit/s.
    pub const MAX: Self = Self::gbit(1000);

    /// Makes a rate from bytes per second.
    pub const fn bytes_per_second(bytes: u64) -> Self {
        Self(bytes)
    }

    /// Makes a rate from 10⁶ bits per second.
    pub const fn mbit(mbit: u64) -> Self {
        Self(mbit * 125_000)
    }

    /// Makes a rate from 10⁹ bits per second.
    pub const fn gbit(gbit: u64) -> Self {
        Self::mbit(gbit * 1000)
    }

    /// Returns the bytes per second.
    pub const fn get(self) -> u64 {
        self.0
    }

    pub(super) const fn as_f64(self) -> f64 {
        self.0 as f64
    }

    /// Makes a rate from a controller's result, clamped to rates that can be paced.
    pub(super) fn from_f64(bytes_per_second: f64) -> Self {
        // The cast takes NaN to 0 and saturates.
        Self(bytes_per_second as u64).clamp(Self::MIN, Self::MAX)
    }
}

/// Fraction bits of [`Pace`]. The 32 bits of a pace hold up to 8 192 ns per byte, as [`Rate::MIN`] needs, and
/// 25 Gbit/s to one part in 10⁵.
const FRACTION_BITS: u32 = 19;

/// Nanoseconds per byte in fixed point: the inverse of a rate, so that a packet costs a multiplication and no
/// division. Zero means no pacing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Pace(u32);

impl Pace {
    /// Packets leave at once.
    pub const UNLIMITED: Self = Self(0);

    /// Returns the pace of a rate, clamped to [`Rate::MIN`] and [`Rate::MAX`].
    pub fn of(rate: Rate) -> Self {
        let rate = rate.clamp(Rate::MIN, Rate::MAX);
        let pace = (1_000_000_000_u64 << FRACTION_BITS) / rate.get();
        Self(u32::try_from(pace).expect("the least rate takes 8 000 ns per byte"))
    }

    /// Returns true if packets leave at once.
    #[inline(always)]
    pub const fn is_unlimited(self) -> bool {
        self.0 == 0
    }

    /// Returns the time of `bytes` in whole nanoseconds, and the remaining fraction. `fraction` is the
    /// remainder of the packets before.
    #[inline]
    pub(super) const fn time_of(self, bytes: u32, fraction: u32) -> (u64, u32) {
        let total = self.0 as u64 * bytes as u64 + fraction as u64;
        (total >> FRACTION_BITS, total as u32 & ((1 << FRACTION_BITS) - 1))
    }
}

const _: () = {
    assert!((1_000_000_000 << FRACTION_BITS) / Rate::MIN.get() <= u32::MAX as u64);
    assert!((1_000_000_000 << FRACTION_BITS) / Rate::MAX.get() >= 1 << 12);
};

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pace_of__known_rates() {
        let time = |rate, bytes| Pace::of(rate).time_of(bytes, 0).0;
        assert_eq!(time(Rate::gbit(1), 125), 1_000);
        assert_eq!(time(Rate::gbit(8), 1_000_000), 1_000_000);
        assert_eq!(time(Rate::gbit(25), 1_500), 480 - 1, "rounded down, the rest is carried");
        assert_eq!(time(Rate::MIN, 1_500), 12_000_000);
        assert_eq!(time(Rate::bytes_per_second(0), 125_000), 1_000_000_000, "clamped to MIN");
    }

    #[test]
    fn time_of__carries_fractions() {
        let pace = Pace::of(Rate::gbit(100));
        let (mut whole, mut fraction) = (0, 0);
        for _ in 0..1_000_000 {
            let (time, rest) = pace.time_of(64, fraction);
            whole += time;
            fraction = rest;
        }
        // 64 MB at 12.5 GB/s take 5.12 ms.
        assert!((5_119_000..5_121_000).contains(&whole), "{whole}");
    }

    #[test]
    fn from_f64__has_no_bad_values() {
        assert_eq!(Rate::from_f64(f64::NAN), Rate::MIN);
        assert_eq!(Rate::from_f64(f64::INFINITY), Rate::MAX);
        assert_eq!(Rate::from_f64(-1.0), Rate::MIN);
        assert_eq!(Rate::from_f64(1e9), Rate::gbit(8));
    }
}
