//! Signs of life on a connection (`docs/wire-protocol.md` §8.6).
//!
//! The opener of a connection asks by PING: soon if there is a reason to doubt the peer's life, and seldom otherwise.
//! A server may have thousands of idle clients, and asks only those that it calls, if in doubt.

use std::time::{Duration, Instant};

use super::limits::{KEEP_ALIVE_HEARTBEATS, PAUSE_GROWTH, SILENT_HEARTBEATS_MAX};

/// The signs of life of the peer, and the questions for them.
#[derive(Debug)]
pub(super) struct Signs {
    /// When the last byte arrived.
    heard: Instant,
    /// When the last PING was sent, or HELLO before the first.
    asked: Instant,
    /// Time from one PING to the next if nothing raises a doubt.
    pause: Duration,
    /// When a doubt demands a PING, unless a byte arrives before.
    doubt: Option<Instant>,
    /// The time since which an answer to a PING is awaited.
    awaits: Option<Instant>,
}

impl Signs {
    pub(super) fn new(now: Instant) -> Self {
        Self { heard: now, asked: now, pause: Duration::ZERO, doubt: None, awaits: None }
    }

    /// Begins at the sending of HELLO: the first PING follows after a heartbeat.
    pub(super) fn begin(&mut self, now: Instant, heartbeat: Duration) {
        self.asked = now;
        self.pause = heartbeat;
    }

    /// Notes arrived bytes.
    pub(super) fn hear(&mut self, now: Instant) {
        assert!(now >= self.heard, "the time does not go back");
        self.heard = now;
        self.doubt = None;
        self.awaits = None;
    }

    /// Returns when the last byte arrived.
    pub(super) fn heard(&self) -> Instant {
        self.heard
    }

    /// Notes that the peer may be dead if no byte arrives until `at`. There is at most one PING in a heartbeat.
    pub(super) fn doubt(&mut self, at: Instant, heartbeat: Duration) {
        let at = at.max(self.asked + heartbeat);
        self.doubt = Some(self.doubt.map_or(at, |sooner| sooner.min(at)));
    }

    /// Notes that a PING is sent now.
    pub(super) fn ask(&mut self, now: Instant, heartbeat: Duration) {
        assert!(self.awaits.is_none(), "the answer to a PING is awaited before the next one");
        self.asked = now;
        self.pause = (PAUSE_GROWTH * self.pause).min(KEEP_ALIVE_HEARTBEATS * heartbeat);
        self.doubt = None;
        self.awaits = Some(now);
    }

    /// Returns true if an answer to a PING is awaited.
    pub(super) fn is_awaited(&self) -> bool {
        self.awaits.is_some()
    }

    /// Returns when the opener's next PING is due, if no byte arrives before. TCP repeats lost bytes: a second PING would say
    /// no more than the first.
    pub(super) fn ask_at(&self) -> Option<Instant> {
        let kept_alive = self.asked + self.pause;
        let at = self.doubt.map_or(kept_alive, |doubt| doubt.min(kept_alive));
        self.awaits.is_none().then_some(at)
    }

    /// Returns when the acceptor's next PING is due: a doubt demands it.
    pub(super) fn doubt_at(&self) -> Option<Instant> {
        self.doubt.filter(|_| self.awaits.is_none())
    }

    /// Returns when the peer that was asked counts as dead or hung, by the peer's heartbeat.
    pub(super) fn unanswered_at(&self, heartbeat: Duration) -> Option<Instant> {
        self.awaits.map(|asked| asked + SILENT_HEARTBEATS_MAX * heartbeat)
    }

    /// Returns when the peer counts as dead or hung at the acceptor, by the heartbeat of the peer, who asks.
    pub(super) fn unasked_at(&self, heartbeat: Duration) -> Instant {
        self.heard + SILENT_HEARTBEATS_MAX * KEEP_ALIVE_HEARTBEATS * heartbeat
    }

    /// Does not count a pause of the own thread as silence of the peer. After a pause of the whole host the peer needs some
    /// time, too: at least a heartbeat more for an answer, and three for a PING.
    pub(super) fn discount(&mut self, late: Duration, now: Instant, heartbeat: Duration) {
        let shift = |since: Instant, intervals: u32| {
            let earliest = now.checked_sub(intervals * heartbeat).unwrap_or(since);
            (since + late).clamp(earliest.min(now), now)
        };
        self.heard = shift(self.heard, SILENT_HEARTBEATS_MAX * (KEEP_ALIVE_HEARTBEATS - 1));
        self.awaits = self.awaits.map(|asked| shift(asked, SILENT_HEARTBEATS_MAX - 1));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: Duration = Duration::from_secs(1);

    fn begun() -> (Signs, Instant) {
        let now = Instant::now();
        let mut signs = Signs::new(now);
        signs.begin(now, SECOND);
        (signs, now)
    }

    #[test]
    fn ask__seldom_while_nothing_raises_a_doubt() {
        let (mut signs, begin) = begun();
        let mut pauses = Vec::new();
        let mut before = begin;
        for _ in 0..5 {
            let at = signs.ask_at().unwrap();
            pauses.push((at - before).as_secs());
            signs.ask(at, SECOND);
            assert_eq!(
                (signs.ask_at(), signs.unanswered_at(SECOND)),
                (None, Some(at + 3 * SECOND))
            );
            signs.hear(at);
            before = at;
        }
        assert_eq!(pauses, [1, 4, 16, 48, 48]);
        assert_eq!(signs.unanswered_at(SECOND), None);
        assert_eq!(signs.unasked_at(SECOND), before + 144 * SECOND);
    }

    #[test]
    fn doubt__is_put_to_the_peer_once_a_heartbeat() {
        let (mut signs, begin) = begun();
        signs.ask(begin + SECOND, SECOND);
        let now = begin + SECOND + SECOND / 4;
        signs.hear(now);
        signs.doubt(now, SECOND);
        assert_eq!(signs.ask_at(), Some(begin + 2 * SECOND));
        signs.doubt(begin + 9 * SECOND, SECOND);
        assert_eq!(signs.ask_at(), Some(begin + 2 * SECOND), "the sooner of two");
        signs.hear(now);
        assert_eq!(signs.ask_at(), Some(begin + 5 * SECOND), "a sign of life ends the doubt");
        signs.doubt(begin + 9 * SECOND, SECOND);
        assert_eq!(signs.ask_at(), Some(begin + 5 * SECOND), "the connection is kept alive");
    }

    #[test]
    fn discount__gives_the_peer_the_time_of_a_pause() {
        let (mut signs, begin) = begun();
        signs.ask(begin + SECOND, SECOND);
        let now = begin + 9 * SECOND;
        signs.discount(7 * SECOND, now, SECOND);
        assert_eq!(signs.unanswered_at(SECOND), Some(now + 2 * SECOND));
        assert_eq!(signs.heard(), begin + 7 * SECOND);
        signs.discount(100 * SECOND, now, SECOND);
        assert_eq!((signs.heard(), signs.unanswered_at(SECOND)), (now, Some(now + 3 * SECOND)));
        // Short as the pause was, the peer may have stood still for longer.
        let now = now + 200 * SECOND;
        signs.discount(SECOND, now, SECOND);
        assert_eq!(signs.unanswered_at(SECOND), Some(now + SECOND));
        assert_eq!(signs.unasked_at(SECOND), now + 3 * SECOND);
    }

    panics! {
        hear__before_the_last_byte: "the time does not go back" => {
            let (mut signs, begin) = begun();
            signs.hear(begin + SECOND);
            signs.hear(begin);
        };
        ask__before_the_answer: "awaited before the next one" => {
            let (mut signs, begin) = begun();
            signs.ask(begin, SECOND);
            signs.ask(begin + SECOND, SECOND);
        };
    }
}
