//! Times in memcached's notation.

use std::time::Duration;

/// Longest time in seconds that a client may give as a distance; larger numbers are seconds since 1970.
const DISTANCE_MAX: i64 = 60 * 60 * 24 * 30;

/// The relation between a server's seconds and those of its clients.
#[derive(Clone, Copy, Debug)]
pub struct Clock {
    /// Seconds since 1970 at the server's second 0.
    zero: i64,
}

impl Clock {
    /// The first second of a server. An item of the second before has ended, and 0 means no end.
    pub const FIRST: u32 = 2;

    /// A clock that shows [`Clock::FIRST`] at this time, in seconds since 1970.
    pub fn starting_at(unix_seconds: i64) -> Self {
        Self { zero: unix_seconds - i64::from(Self::FIRST) }
    }

    /// The server's second after this time since the start. The time is of a monotonic clock: a step of the system's
    /// clock ends no item early, and keeps none.
    pub fn second(since_start: Duration) -> u32 {
        let seconds = since_start.as_secs().saturating_add(Self::FIRST.into());
        u32::try_from(seconds).unwrap_or(u32::MAX)
    }

    /// The seconds since 1970 of the server's second.
    pub(crate) fn unix(&self, second: u32) -> i64 {
        self.zero + i64::from(second)
    }

    /// The server's second of an exptime at the second `now`: 0 for never, `now` for a time that is over.
    pub fn expiry(&self, exptime: i64, now: u32) -> u32 {
        let second = match exptime {
            0 => return 0,
            ..0 => return now,
            1..=DISTANCE_MAX => i64::from(now) + exptime,
            _ => exptime.saturating_sub(self.zero),
        };
        u32::try_from(second.max(now.into())).unwrap_or(u32::MAX)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn second__counts_from_the_start() {
        let seconds = [0, 999, 1_000, 2_500].map(Duration::from_millis).map(Clock::second);
        assert_eq!(seconds, [2, 2, 3, 4]);
        assert_eq!(Clock::second(Duration::MAX), u32::MAX);
    }

    #[test]
    fn expiry__takes_distances_and_times() {
        let clock = Clock::starting_at(1_700_000_000);
        assert_eq!((clock.expiry(0, 50), clock.expiry(-1, 50), clock.expiry(7, 50)), (0, 50, 57));
        assert_eq!(clock.expiry(DISTANCE_MAX, 50), 50 + DISTANCE_MAX as u32);
        // More than 30 days are a time, here in 1970 and in the future.
        assert_eq!(clock.expiry(DISTANCE_MAX + 1, 50), 50);
        assert_eq!(clock.expiry(1_700_000_098, 50), 100);
        assert_eq!(clock.expiry(i64::MAX, 50), u32::MAX);
    }
}
