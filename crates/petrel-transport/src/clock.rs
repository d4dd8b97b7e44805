//! Nanoseconds from a calibrated time stamp counter.
//!
//! Reading the counter costs about 10 ns where `CLOCK_MONOTONIC` costs 24 ns. The counter is
//! calibrated once per process, at the first call, against `CLOCK_MONOTONIC_RAW`, which no daemon
//! slews. Some 0.2 ms, from [`prepare`] on, yield the rate to 10 parts per million. The precision suffices
//! for round-trip times and timers, and not for the time of day.
//!
//! Machines without a constant tick rate in every sleep state, and architectures other than x86-64,
//! read `CLOCK_MONOTONIC` instead.

use std::fmt;
use std::rc::Rc;
use std::sync::OnceLock;

use rustix::time::{ClockId, clock_gettime};

/// How long the calibration watches the two clocks. An error of 30 ns at either end, half of a reading, then is 300
/// parts per million of the rate at worst, better than RTT estimates need; 10 are usual.
const CALIBRATION_NS: u64 = 200_000;

/// Readings at either end of the calibration. The tightest reading counts, hence a preemption
/// between the two clocks does no harm.
const CALIBRATION_READS: u32 = 16;

/// The first reading of the calibration.
static START: OnceLock<Reading> = OnceLock::new();

/// Begins the calibration: a later reading of the clock waits for the rest only.
pub fn prepare() {
    START.get_or_init(read_both);
}

/// Binary digits behind the point of [`Scale::multiplier`].
const SCALE_SHIFT: u32 = 32;

/// Returns monotonic nanoseconds since an arbitrary start. Never goes back within a thread.
///
/// The first call in a process calibrates the clock, unless [`prepare`] was called some 0.2 ms before.
#[inline]
pub fn now_ns() -> u64 {
    static SOURCE: OnceLock<Source> = OnceLock::new();
    SOURCE.get_or_init(Source::detect).now_ns()
}

/// Returns the nanoseconds of `CLOCK_MONOTONIC`, which all processes of a host and a time namespace share. The calibrated counters of two
/// processes drift apart.
pub fn shared_ns() -> u64 {
    system_ns(ClockId::Monotonic)
}

/// A handle to a transport's clock that can be read while the transport delivers frames.
#[derive(Clone)]
pub struct Clock(Option<Rc<dyn Fn() -> u64>>);

impl Clock {
    /// The machine's clock: [`now_ns`].
    pub const fn machine() -> Self {
        Self(None)
    }

    /// A custom clock, such as a simulator's.
    pub fn of(read_ns: impl Fn() -> u64 + 'static) -> Self {
        Self(Some(Rc::new(read_ns)))
    }

    /// The time now, in nanoseconds.
    #[inline]
    pub fn now_ns(&self) -> u64 {
        match &self.0 {
            None => now_ns(),
            Some(read_ns) => read_ns(),
        }
    }
}

impl fmt::Debug for Clock {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Clock({})", self.now_ns())
    }
}

/// The clock that this process reads.
#[derive(Clone, Copy, Debug)]
enum Source {
    Counter(Scale),
    System,
}

impl Source {
    fn detect() -> Self {
        if counter::is_invariant() {
            calibrate().map_or(Self::System, Self::Counter)
        } else {
            Self::System
        }
    }

    #[inline]
    fn now_ns(self) -> u64 {
        match self {
            Self::Counter(scale) => scale.to_ns(counter::read()),
            Self::System => system_ns(ClockId::Monotonic),
        }
    }
}

/// Converts counter ticks to nanoseconds: `ns = base_ns + ((ticks - base_ticks) * multiplier >> 32)`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Scale {
    base_ticks: u64,
    base_ns: u64,
    multiplier: u64,
}

impl Scale {
    /// The scale through two readings, or `None` for implausible readings: a counter at a
    /// standstill, slower than 1 MHz or faster than 100 GHz.
    fn between(start: Reading, end: Reading) -> Option<Self> {
        let ticks = end.ticks.checked_sub(start.ticks).filter(|&ticks| ticks > 0)?;
        let ns = end.ns.checked_sub(start.ns).filter(|&ns| ns > 0)?;
        let multiplier = (u128::from(ns) << SCALE_SHIFT) / u128::from(ticks);
        let plausible = (1 << SCALE_SHIFT) / 100..=1000 << SCALE_SHIFT;
        plausible.contains(&multiplier).then_some(Self {
            base_ticks: end.ticks,
            base_ns: end.ns,
            multiplier: multiplier as u64,
        })
    }

    /// Converts counter ticks to nanoseconds. The product is 128 bits wide and cannot overflow
    /// within the counter's range.
    ///
    /// A core whose counter lags slightly behind the calibrating core may read less than the base.
    /// Such a reading returns the base, not a time centuries ahead.
    #[inline]
    fn to_ns(self, ticks: u64) -> u64 {
        let elapsed = ticks.saturating_sub(self.base_ticks);
        let scaled = (u128::from(elapsed) * u128::from(self.multiplier)) >> SCALE_SHIFT;
        self.base_ns.wrapping_add(scaled as u64)
    }
}

/// The counter and the system clock, read at about the same moment.
#[derive(Clone, Copy, Debug)]
struct Reading {
    ticks: u64,
    ns: u64,
}

fn calibrate() -> Option<Scale> {
    let start = *START.get_or_init(read_both);
    while system_ns(ClockId::MonotonicRaw) < start.ns + CALIBRATION_NS {
        std::hint::spin_loop();
    }
    Scale::between(start, read_both())
}

/// Returns the reading whose two counter values around the system clock's lie closest together.
fn read_both() -> Reading {
    let mut best = (u64::MAX, Reading { ticks: 0, ns: 0 });
    for _ in 0..CALIBRATION_READS {
        let before = counter::read();
        let ns = system_ns(ClockId::MonotonicRaw);
        let width = counter::read().saturating_sub(before);
        if width <= best.0 {
            best = (width, Reading { ticks: before + width / 2, ns });
        }
    }
    best.1
}

fn system_ns(clock: ClockId) -> u64 {
    let time = clock_gettime(clock);
    time.tv_sec as u64 * 1_000_000_000 + time.tv_nsec as u64
}

#[cfg(all(target_arch = "x86_64", not(miri)))]
mod counter {
    use std::arch::x86_64::{__cpuid, _rdtsc};

    /// CPUID leaf with the power-management flags, and the bit that promises a constant tick rate
    /// in all states.
    const POWER_LEAF: u32 = 0x8000_0007;
    const INVARIANT_TSC: u32 = 1 << 8;

    pub(super) fn is_invariant() -> bool {
        __cpuid(0x8000_0000).eax >= POWER_LEAF && __cpuid(POWER_LEAF).edx & INVARIANT_TSC != 0
    }

    #[inline]
    pub(super) fn read() -> u64 {
        // SAFETY: RDTSC exists on every x86_64 processor and only reads a register. Systems that
        // forbid it to user code (CR4.TSD) do not run ordinary Linux programs.
        unsafe { _rdtsc() }
    }
}

#[cfg(not(all(target_arch = "x86_64", not(miri))))]
mod counter {
    pub(super) fn is_invariant() -> bool {
        false
    }

    #[inline]
    pub(super) fn read() -> u64 {
        0
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn scale(ticks: u64, ns: u64) -> Option<Scale> {
        let base = 1_000;
        Scale::between(
            Reading { ticks: base, ns: base },
            Reading { ticks: base + ticks, ns: base + ns },
        )
    }

    #[test]
    fn to_ns__at_2600_mhz() {
        let scale = scale(2_600_000, 1_000_000).unwrap();
        let hour_ticks = 2_600_000_000 * 3600;
        let hour_ns = scale.to_ns(scale.base_ticks + hour_ticks) - scale.base_ns;
        assert!(hour_ns.abs_diff(3_600_000_000_000) < 2_000, "{hour_ns}");
    }

    #[test]
    fn to_ns__before_the_base_is_the_base() {
        let scale = scale(3_000, 1_000).unwrap();
        assert_eq!(scale.to_ns(scale.base_ticks - 1), scale.base_ns);
        assert_eq!(scale.to_ns(0), scale.base_ns);
    }

    #[test]
    fn between__refuses_nonsense() {
        assert_eq!(scale(0, 1_000), None);
        assert_eq!(scale(1_000, 0), None);
        assert_eq!(scale(1, 1_000_000), None);
        assert_eq!(scale(u64::MAX / 2, 1), None);
        let late = Reading { ticks: 5, ns: 5 };
        assert_eq!(Scale::between(late, Reading { ticks: 4, ns: 9 }), None);
        assert_eq!(Scale::between(late, Reading { ticks: 9, ns: 4 }), None);
    }

    #[test]
    fn now_ns__never_goes_back() {
        let mut last = now_ns();
        for _ in 0..100_000 {
            let now = now_ns();
            assert!(now >= last);
            last = now;
        }
    }

    #[test]
    fn now_ns__advances_with_the_system_clock() {
        let (start, system_start) = (now_ns(), system_ns(ClockId::MonotonicRaw));
        while system_ns(ClockId::MonotonicRaw) < system_start + 1_000_000 {
            std::thread::yield_now();
        }
        assert!(now_ns() > start);
    }

    proptest! {
        #[test]
        fn to_ns__is_monotonic(mhz in 100u64..10_000, a: u64, b: u64) {
            let scale = scale(mhz * 1_000, 1_000_000).unwrap();
            let (a, b) = (a.min(b) >> 4, a.max(b) >> 4);
            prop_assert!(scale.to_ns(a) <= scale.to_ns(b));
        }

        #[test]
        fn to_ns__matches_exact_division(mhz in 100u64..10_000, ticks in 0u64..1 << 50) {
            let scale = scale(mhz * 1_000, 1_000_000).unwrap();
            let exact = u128::from(ticks) * 1_000 / u128::from(mhz);
            let got = u128::from(scale.to_ns(scale.base_ticks + ticks) - scale.base_ns);
            // The truncated multiplier is at most 2^-32 ns per tick too small.
            prop_assert!(got <= exact && exact - got <= (u128::from(ticks) >> 32) + 1);
        }
    }
}
