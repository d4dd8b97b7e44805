//! When a session to a server is opened again.

use petrel_planted::planted;

use crate::overload::{Backoff, BackoffConfig};

/// A session that stayed open for this long was worth opening: the next pause is a first one. One that
/// ends at once, again and again, is not. Opening one takes a few round trips, so that sessions which end no sooner cost
/// little, and servers that are replaced several times a second are followed at once.
const SETTLED_NS: u64 = 50_000_000;

/// The pauses between a server's sessions.
#[derive(Debug)]
pub(super) struct Reconnect {
    backoff: Backoff,
    /// When the session that is open was opened.
    opened_ns: Option<u64>,
}

impl Reconnect {
    pub(super) fn new(config: BackoffConfig) -> Self {
        Self { backoff: Backoff::new(config), opened_ns: None }
    }

    /// A session is open.
    pub(super) fn opened(&mut self, now_ns: u64) {
        assert!(self.opened_ns.is_none(), "a server has one session of the client");
        self.opened_ns = Some(now_ns);
    }

    /// The open session takes no further calls.
    pub(super) fn left(&mut self, now_ns: u64) {
        let opened_ns = self.opened_ns.take().expect("a session that is left was open");
        let has_settled = now_ns.saturating_sub(opened_ns) >= SETTLED_NS;
        if has_settled && !planted("service_slow_for_ever") {
            self.backoff.reset();
        }
    }

    /// How long to wait until the next attempt, from evenly distributed random bits.
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
        reconnect.left(5 + SETTLED_NS);
        assert_eq!(reconnect.pause_ns(LONGEST), 10_000_000);
    }

    #[test]
    fn pause_ns__after_a_session_that_ended_early_goes_on_growing() {
        let mut reconnect = reconnect();
        after_failures(&mut reconnect, 3);
        reconnect.opened(5);
        reconnect.left(5 + SETTLED_NS - 1);
        assert_eq!(reconnect.pause_ns(LONGEST), 80_000_000);
    }
}
