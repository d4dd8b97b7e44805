//! The arrival process of a source.

use crate::rng::Rng;
use crate::time::Time;

/// The pattern in which a source sends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Arrivals {
    /// A packet per interval of this length in picoseconds.
    Periodic {
        /// The time between packets.
        every_ps: u64,
    },
    /// A Poisson process: the gaps are exponentially distributed.
    Poisson {
        /// The average gap, in picoseconds.
        mean_ps: u64,
    },
    /// Bursts and silences, with exponentially distributed durations.
    OnOff {
        /// The time from one packet of a burst to the next, in picoseconds.
        every_ps: u64,
        /// How long a burst lasts on average, in picoseconds.
        on_mean_ps: u64,
        /// How long the silence lasts on average, in picoseconds.
        off_mean_ps: u64,
    },
    /// A constant number of packets in flight: a small packet answers each arrival, and lets the next one
    /// go. Nothing is retransmitted: losses shrink the window, and copies enlarge the window.
    Window {
        /// Packets in the window.
        packets: u32,
        /// The payload of an answer, in bytes.
        reply_bytes: u32,
    },
}

impl Arrivals {
    /// Returns a description of an impossible setting.
    pub(super) fn problem(&self) -> Option<&'static str> {
        match *self {
            Self::Periodic { every_ps: 0 } | Self::OnOff { every_ps: 0, .. } => {
                Some("every_ps must not be zero")
            }
            Self::Poisson { mean_ps: 0 } => Some("mean_ps must not be zero"),
            Self::Window { packets: 0, .. } => Some("a window has at least one packet"),
            _ => None,
        }
    }
}

/// The pattern with its state.
#[derive(Debug)]
pub(super) struct ArrivalProcess {
    arrivals: Arrivals,
    rng: Rng,
    burst_until: Time,
}

impl ArrivalProcess {
    pub(super) fn new(arrivals: Arrivals, rng: Rng) -> Self {
        Self { arrivals, rng, burst_until: Time::ZERO }
    }

    /// Returns the time of the first packet of a source that starts at `start`.
    pub(super) fn first(&mut self, start: Time) -> Time {
        match self.arrivals {
            Arrivals::Periodic { .. } | Arrivals::Window { .. } => start,
            Arrivals::Poisson { .. } => self.next(start),
            Arrivals::OnOff { .. } => self.next_burst(start),
        }
    }

    /// Returns the time of the next packet, after one at `last`. A window never schedules packets by time.
    pub(super) fn next(&mut self, last: Time) -> Time {
        match self.arrivals {
            Arrivals::Periodic { every_ps } => last.plus_ps(every_ps),
            Arrivals::Poisson { mean_ps } => last.plus_ps(exponential(mean_ps, &mut self.rng)),
            Arrivals::OnOff { every_ps, .. } => {
                let next = last.plus_ps(every_ps);
                if next < self.burst_until { next } else { self.next_burst(self.burst_until) }
            }
            Arrivals::Window { .. } => Time::NEVER,
        }
    }

    /// Returns a uniformly drawn index below `count`.
    pub(super) fn pick(&mut self, count: usize) -> usize {
        if count == 1 { 0 } else { self.rng.below(count as u64) as usize }
    }

    /// Returns the start of the burst after the silence that begins at `silent_from`.
    fn next_burst(&mut self, silent_from: Time) -> Time {
        let Arrivals::OnOff { on_mean_ps, off_mean_ps, .. } = self.arrivals else {
            return Time::NEVER;
        };
        let start = silent_from.plus_ps(exponential(off_mean_ps, &mut self.rng));
        self.burst_until = start.plus_ps(exponential(on_mean_ps, &mut self.rng));
        start
    }
}

/// Returns an exponentially distributed number.
pub fn exponential(mean: u64, rng: &mut Rng) -> u64 {
    const STEPS: f64 = (1u64 << 53) as f64;
    // Above zero and at most one.
    let uniform = ((rng.next_u64() >> 11) + 1) as f64 / STEPS;
    (mean as f64 * -logarithm(uniform)).round() as u64
}

/// Returns the natural logarithm of a positive, normal number.
///
/// Written out, because the logarithm of a platform's mathematical library may differ in the last bit, and
/// with it the meaning of a seed. Sums, products and quotients are the same on every platform.
fn logarithm(x: f64) -> f64 {
    const FRACTION_BITS: u32 = 52;
    let bits = x.to_bits();
    let mut exponent = f64::from((bits >> FRACTION_BITS) as i32 - 1023);
    let mut mantissa = f64::from_bits(bits & ((1 << FRACTION_BITS) - 1) | 1023 << FRACTION_BITS);
    if mantissa > std::f64::consts::SQRT_2 {
        mantissa /= 2.0;
        exponent += 1.0;
    }
    // ln m = 2 artanh((m - 1) / (m + 1)); the argument is below 0.172: every term of the series is a 33rd
    // of the term before.
    let s = (mantissa - 1.0) / (mantissa + 1.0);
    let square = s * s;
    let series = (0..11).rev().fold(0.0, |sum, k| sum * square + 1.0 / f64::from(2 * k + 1));
    2.0 * s * series + exponent * std::f64::consts::LN_2
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn logarithm__agrees_with_the_library() {
        let mut rng = Rng::new(1);
        for _ in 0..10_000 {
            let x = (rng.next_u64() >> 11) as f64 / 1e10 + 1e-17;
            assert!((logarithm(x) - x.ln()).abs() <= 4e-16 * x.ln().abs().max(1.0), "{x}");
        }
        assert_eq!(logarithm(1.0), 0.0);
    }

    #[test]
    fn exponential__has_its_mean_and_its_spread() {
        const DRAWS: u32 = 100_000;
        let mut rng = Rng::new(2);
        let draws: Vec<f64> = (0..DRAWS).map(|_| exponential(1_000_000, &mut rng) as f64).collect();
        let mean = draws.iter().sum::<f64>() / f64::from(DRAWS);
        // The deviation of an exponential is its mean: the average deviates by mean / sqrt n.
        assert!((mean / 1e6 - 1.0).abs() < 4.0 / f64::from(DRAWS).sqrt(), "{mean}");
        let beyond = draws.iter().filter(|&&draw| draw > 2e6).count() as f64 / f64::from(DRAWS);
        assert!((beyond - (-2f64).exp()).abs() < 0.005, "{beyond}");
    }

    #[test]
    fn on_off__sends_its_share() {
        let arrivals =
            Arrivals::OnOff { every_ps: 1_000, on_mean_ps: 300_000, off_mean_ps: 700_000 };
        let mut process = ArrivalProcess::new(arrivals, Rng::new(3));
        let end = Time::from_ns(2_000_000);
        let mut at = process.first(Time::ZERO);
        let mut count = 0;
        while at < end {
            count += 1;
            let next = process.next(at);
            assert!(next > at);
            at = next;
        }
        // 30 % of the time; a burst of length T has T / 1000 packets and a part of one.
        let share = f64::from(count) * 1_000.0 / end.ps() as f64;
        assert!((0.27..0.33).contains(&share), "{share}");
    }
}
