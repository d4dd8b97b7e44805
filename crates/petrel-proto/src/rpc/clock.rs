//! The latest known time, and the deadline that new calls inherit (`docs/wire-protocol.md` §7.3).

use petrel_planted::planted;

use crate::session::backlog::NEVER;

/// The latest known time, and the deadline that new calls inherit.
pub(super) struct Clock {
    /// The owner's latest reading of the clock.
    latest_ns: u64,
    /// How long the frames that are handled now have waited for the poll.
    waited_ns: u64,
    /// The deadline inherited by new calls, and a flag for its presence.
    inherited_ns: u64,
    inherits: bool,
}

impl Clock {
    pub(super) const fn new(now_ns: u64) -> Self {
        Self { latest_ns: now_ns, waited_ns: 0, inherited_ns: NEVER, inherits: false }
    }

    /// Takes a reading of the clock. A reading before the latest one counts for nothing.
    #[inline]
    pub(super) fn set(&mut self, clock_ns: u64) {
        self.latest_ns = self.latest_ns.max(clock_ns);
    }

    /// Returns the latest known time. Deadlines are compared with this time, and not with the time of the
    /// burst.
    #[inline]
    pub(super) fn latest_ns(&self, now_ns: u64) -> u64 {
        now_ns.max(self.latest_ns)
    }

    /// Sets how long the next frames have waited for the poll.
    pub(super) fn set_waited(&mut self, waited_ns: u64) {
        self.waited_ns = waited_ns;
    }

    /// Returns the time of arrival of the frames of a burst that was polled at `now_ns`.
    #[inline]
    pub(super) fn arrival_ns(&self, now_ns: u64) -> u64 {
        if planted("proto_arrival_is_poll") { now_ns } else { now_ns.wrapping_sub(self.waited_ns) }
    }

    /// Sets the deadline that calls inherit from now on.
    pub(super) fn inherit(&mut self, deadline_ns: Option<u64>) {
        assert!(deadline_ns != Some(NEVER), "an inherited deadline is a time");
        self.inherited_ns = deadline_ns.unwrap_or(NEVER);
        self.inherits = deadline_ns.is_some();
    }

    /// Returns true if new calls inherit a deadline.
    #[inline(always)]
    pub(super) fn inherits(&self) -> bool {
        self.inherits
    }

    /// Returns the deadline that calls inherit, or [`NEVER`].
    #[inline]
    pub(super) fn inherited_ns(&self) -> u64 {
        self.inherited_ns
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn latest_ns__never_goes_back() {
        let mut clock = Clock::new(10);
        clock.set(30);
        clock.set(20);
        assert_eq!([5, 30, 40].map(|now_ns| clock.latest_ns(now_ns)), [30, 30, 40]);
    }

    #[test]
    fn inherit__until_it_is_taken_back() {
        let mut clock = Clock::new(10);
        for (deadline_ns, inherited_ns) in [(None, NEVER), (Some(7), 7), (None, NEVER)] {
            clock.inherit(deadline_ns);
            assert_eq!(clock.inherits(), deadline_ns.is_some());
            assert_eq!(clock.inherited_ns(), inherited_ns);
        }
    }

    panics! {
        inherit__a_time_that_never_comes: "an inherited deadline is a time"
            => Clock::new(1).inherit(Some(NEVER));
    }
}
