//! When a session to a server is reopened.

use petrel_planted::planted;

use crate::overload::{Backoff, BackoffConfig};

/// A session open for this long resets the back-off; sessions that end at once, again and again, do not. Opening a
/// session takes a few round trips: longer sessions than this cost little. Servers replaced several times a second are
/// followed at once.
const SETTLED_NS: u64 = 50_000_000;

/// The pauses between a server's sessions.
#[derive(Debug)]
pub(super) struct Reconnect {
    backoff: Backoff,
    /// When the current session was opened.
    opened_ns: Option<u64>,
}

impl Reconnect {
    pub(super) fn new(config: BackoffConfig) -> Self {
        Self { backoff: Backoff::new(config), opened_ns: None }
    }

    /// Records an open session.
    pub(super) fn opened(&mut self, now_ns: u64) {
        assert!(self.opened_ns.is_none(), "a server has one session of the client");
        self.opened_ns = Some(now_ns);
    }

    /// Records that the open session accepts no further calls.
    pub(super) fn lost(&mut self, now_ns: u64) {
        let opened_ns = self.opened_ns.take().expect("a session that is lost was open");
        let has_settled = now_ns.saturating_sub(opened_ns) >= SETTLED_NS;
        if has_settled && !planted("service_slow_for_ever") {
            self.backoff.reset();
        }
    }

    /// Returns the pause until the next attempt, from evenly distributed random bits.
    pub(super) fn pause_ns(&mut self, random: u64) -> u64 {
        assert!(self.opened_ns.is_none(), "an open session needs no other");
        self.backoff.next_ns(random)
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    const LONGEST: u64 = u64::MAX;

    fn reconnect() -> Reconnect {
        let (first, max) = (Duration::from_millis(10), Duration::from_secs(2));
        Reconnect::new(BackoffConfig { first, max, ..BackoffConfig::default() })
    }

    fn after_failures(reconnect: &mut Reconnect, count: u32) {
        for _ in 0..count {
            reconnect.pause_ns(LONGEST);
        }
    }

    #[test]
    fn pause_ns__after_a_session_that_settled_is_a_first_one() {
        let mut reconnect = reconnect();
        after_failures(&mut reconnect, 20);
        assert_eq!(reconnect.pause_ns(LONGEST), 2_000_000_000);
        reconnect.opened(5);
        reconnect.lost(5 + SETTLED_NS);
        assert_eq!(reconnect.pause_ns(LONGEST), 10_000_000);
    }

    #[test]
    fn pause_ns__after_a_session_that_ended_early_goes_on_growing() {
        let mut reconnect = reconnect();
        after_failures(&mut reconnect, 3);
        reconnect.opened(5);
        reconnect.lost(5 + SETTLED_NS - 1);
        assert_eq!(reconnect.pause_ns(LONGEST), 80_000_000);
    }

    panics! {
        opened__with_an_open_session: "one session of the client" => {
            let mut reconnect = reconnect();
            reconnect.opened(5);
            reconnect.opened(6);
        };
        pause_ns__with_an_open_session: "needs no other" => {
            let mut reconnect = reconnect();
            reconnect.opened(5);
            reconnect.pause_ns(0);
        };
    }
}
