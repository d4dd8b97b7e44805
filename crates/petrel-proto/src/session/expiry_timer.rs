//! The timer of a session for the deadlines of its calls (`docs/wire-protocol.md` §7.3).

use super::backlog::NEVER;
use crate::timer::{TimerEntry, TimerKey, TimerWheel};

/// The timer wheel's entry for the earliest deadline of a session's calls. A call with a later deadline costs one
/// comparison, and no entry.
pub(crate) struct ExpiryTimer {
    /// A lower bound of the calls' expiry times, exact when computed; the call with this deadline may have ended since.
    /// [`NEVER`] without calls that expire.
    next_ns: u64,
    /// The timer wheel's entry for `next_ns` or an earlier time.
    entry: Option<TimerEntry>,
}

impl ExpiryTimer {
    pub(crate) const fn new() -> Self {
        Self { next_ns: NEVER, entry: None }
    }

    /// Returns true if the timer knows of no call that expires by this time.
    #[inline]
    pub(crate) fn is_later_than(&self, at_ns: u64) -> bool {
        at_ns < self.next_ns
    }

    /// Sets the timer for an earlier time than before.
    pub(crate) fn set(&mut self, at_ns: u64, key: TimerKey, timers: &mut TimerWheel) {
        assert!(self.is_later_than(at_ns), "the timer of a session is moved to earlier times");
        self.next_ns = at_ns;
        if let Some(entry) = self.entry {
            if !timers.comes_after(entry, at_ns) {
                return;
            }
            timers.remove(entry);
        }
        let entry = timers.insert(key, at_ns);
        assert!(!timers.comes_after(entry, at_ns), "the entry of a session wakes it in time");
        self.entry = Some(entry);
    }

    /// Notes that the entry has come due. Returns true if a call may have expired. The caller looks for the
    /// next deadline and sets the timer again.
    pub(crate) fn note_due(&mut self, now_ns: u64) -> bool {
        assert!(self.entry.is_some(), "deadlines come due by the entry of their session");
        assert!(self.next_ns != NEVER, "a timer that comes due was set");
        self.entry = None;
        std::mem::replace(&mut self.next_ns, NEVER) <= now_ns
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const KEY: TimerKey = TimerKey { session: 1, generation: 2, slot: 3 };

    #[test]
    fn set__keeps_one_entry_for_the_earliest_time() {
        let (mut timers, mut timer) = (TimerWheel::new(0), ExpiryTimer::new());
        assert!(timer.is_later_than(NEVER - 1) && !timer.is_later_than(NEVER));
        for at_ns in [9_000_000_000, 8_000_000_000, 5_000_000, 4_999_999] {
            assert!(timer.is_later_than(at_ns));
            timer.set(at_ns, KEY, &mut timers);
            assert_eq!(timers.entry_count(), 1, "{at_ns}");
            assert!(!timer.is_later_than(at_ns));
        }
        timers.advance(10_000_000);
        assert_eq!((timers.pop_due(), timers.pop_due()), (Some(KEY), None));
        assert!(timer.note_due(10_000_000) && timer.is_later_than(NEVER - 1));
    }

    panics! {
        set__to_a_later_time: "the timer of a session is moved to earlier times" => {
            let (mut timers, mut timer) = (TimerWheel::new(0), ExpiryTimer::new());
            [5, 6].into_iter().for_each(|at_ns| timer.set(at_ns, KEY, &mut timers));
        };
        note_due__without_an_entry: "deadlines come due by the entry of their session"
            => ExpiryTimer::new().note_due(1);
        note_due__without_a_time: "a timer that comes due was set" => {
            let (mut timers, mut timer) = (TimerWheel::new(0), ExpiryTimer::new());
            timer.set(5, KEY, &mut timers);
            timer.next_ns = NEVER;
            timer.note_due(5);
        };
    }
}
