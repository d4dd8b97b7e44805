//! Time at 10 ns a reading: the processor's counter where there is one, because the calls of some
//! peers take 100 ns, and `Instant::now` 24 ns of those.

use std::time::{Duration, Instant};

/// How long the counter is compared with the system's clock.
const CALIBRATION: Duration = Duration::from_millis(20);

/// A clock.
#[derive(Clone, Copy, Debug)]
pub struct Clock {
    ticks_per_ns: f64,
}

impl Clock {
    /// A clock; takes 20 ms to set it.
    pub fn calibrated() -> Self {
        let (started, first) = (Instant::now(), ticks());
        while started.elapsed() < CALIBRATION {
            std::hint::spin_loop();
        }
        let (elapsed, last) = (started.elapsed(), ticks());
        Self { ticks_per_ns: (last - first) as f64 / elapsed.as_nanos() as f64 }
    }

    /// A time in nanoseconds as a number of ticks.
    pub fn ticks_of(&self, time: Duration) -> u64 {
        (time.as_nanos() as f64 * self.ticks_per_ns) as u64
    }

    /// A number of ticks in nanoseconds.
    #[inline]
    pub fn ns_of(&self, ticks: u64) -> u64 {
        (ticks as f64 / self.ticks_per_ns) as u64
    }
}

/// The time, in ticks.
#[cfg(target_arch = "x86_64")]
#[inline]
pub fn ticks() -> u64 {
    // SAFETY: the instruction reads a counter, and every x86-64 processor has it.
    unsafe { std::arch::x86_64::_rdtsc() }
}

/// The time, in ticks.
#[cfg(not(target_arch = "x86_64"))]
#[inline]
pub fn ticks() -> u64 {
    static START: std::sync::OnceLock<Instant> = std::sync::OnceLock::new();
    START.get_or_init(Instant::now).elapsed().as_nanos() as u64
}
