//! Virtual time.

/// A point in virtual time, in picoseconds since the start of the run.
///
/// The unit is the picosecond because one byte takes 80 of them at 100 Gbit/s: with nanoseconds a link
/// would gain or lose rate by rounding. 64 bits last 213 days. Outside of the fabric, time is in
/// nanoseconds, as everywhere in Petrel.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Time(u64);

const PS_PER_NS: u64 = 1_000;

impl Time {
    /// The start of the run.
    pub const ZERO: Self = Self(0);
    /// Later than every event.
    pub const NEVER: Self = Self(u64::MAX);

    /// Converts nanoseconds. A value out of range becomes [`Time::NEVER`].
    pub const fn from_ns(ns: u64) -> Self {
        Self(ns.saturating_mul(PS_PER_NS))
    }

    /// Whole nanoseconds since the start.
    pub const fn ns(self) -> u64 {
        self.0 / PS_PER_NS
    }

    /// Picoseconds since the start.
    pub const fn ps(self) -> u64 {
        self.0
    }

    /// `ns` nanoseconds later.
    #[must_use]
    pub const fn plus_ns(self, ns: u64) -> Self {
        self.plus_ps(ns.saturating_mul(PS_PER_NS))
    }

    /// `ps` picoseconds later.
    #[must_use]
    pub const fn plus_ps(self, ps: u64) -> Self {
        Self(self.0.saturating_add(ps))
    }
}

/// Shows nanoseconds with the picoseconds behind the point.
impl std::fmt::Display for Time {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}.{:03}", self.ns(), self.0 % PS_PER_NS)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn time__converts_and_saturates() {
        assert_eq!(Time::from_ns(3).ps(), 3_000);
        assert_eq!(Time::from_ns(3).plus_ps(999).ns(), 3);
        assert_eq!(Time::from_ns(u64::MAX), Time::NEVER);
        assert_eq!(Time::NEVER.plus_ns(1), Time::NEVER);
        assert_eq!(Time::from_ns(12).plus_ps(34).to_string(), "12.034");
    }
}
