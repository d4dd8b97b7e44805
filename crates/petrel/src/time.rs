//! Times on the clock of an endpoint, and conversion of time spans.

use std::ops::Add;
use std::time::Duration;

/// A time on an endpoint's clock.
///
/// The clock counts nanoseconds from an unspecified start, never goes back, and is the same for all endpoints of a
/// process. In the simulator it is the virtual clock. [`std::time::Instant`] cannot stand for such a time: no other
/// clock than the system's can make one. Spans are [`Duration`]s.
///
/// ```
/// use std::time::Duration;
///
/// use petrel::Time;
///
/// let begun = Time::from_ns(2_000);
/// let end = begun + Duration::from_micros(3);
/// assert_eq!(end.as_ns(), 5_000);
/// assert_eq!(end.since(begun), Duration::from_micros(3));
/// assert_eq!(begun.since(end), Duration::ZERO);
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Time(u64);

impl Time {
    /// Makes a time from nanoseconds of the clock.
    #[inline]
    pub const fn from_ns(ns: u64) -> Self {
        Self(ns)
    }

    /// Returns the nanoseconds of the clock.
    #[inline]
    pub const fn as_ns(self) -> u64 {
        self.0
    }

    /// Returns the span since an earlier time; zero if `earlier` is later.
    #[inline]
    pub const fn since(self, earlier: Self) -> Duration {
        Duration::from_nanos(self.0.saturating_sub(earlier.0))
    }
}

/// Returns the time after a span; the last time of the clock if the span is too long.
impl Add<Duration> for Time {
    type Output = Self;

    #[inline]
    fn add(self, span: Duration) -> Self {
        Self(self.0.saturating_add(as_ns(span)))
    }
}

/// Returns a span in nanoseconds; a span over 584 years counts as that.
#[inline]
pub(crate) const fn as_ns(span: Duration) -> u64 {
    let ns = span.as_nanos();
    if ns > u64::MAX as u128 { u64::MAX } else { ns as u64 }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn add__ends_with_the_clock() {
        assert_eq!(Time::from_ns(5) + Duration::MAX, Time::from_ns(u64::MAX));
        assert!(Time::from_ns(5) + Duration::from_nanos(1) > Time::from_ns(5));
    }
}
