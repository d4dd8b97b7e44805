//! The action that the time demands for a connection (`docs/wire-protocol.md` §8.6).

use std::time::{Duration, Instant};

use petrel_planted::planted;

use super::connection::{Connection, Phase};
use super::limits::{
    HELLO_TIMEOUT, IDLE_PING_HEARTBEATS, IDLE_PING_MIN, IDLE_TIMEOUT, LINGER, MESSAGE_TIMEOUT,
    WRITE_TIMEOUT,
};
use super::net::Network;

/// The action that is due for a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum DueAction {
    Nothing,
    DialTimeout,
    HelloTimeout,
    Silent,
    SlowMessage,
    NotReading,
    Idle,
    Ping,
    LingerOver,
}

impl<N: Network> Connection<N> {
    /// Returns the most urgent action due for the connection.
    pub(super) fn due_action(&self, now: Instant, step_timeout: Duration) -> DueAction {
        let has_passed = |since: Instant, limit| now.saturating_duration_since(since) >= limit;
        let in_phase = |limit| has_passed(self.since, limit);
        match &self.phase {
            Phase::Connecting if in_phase(step_timeout) => DueAction::DialTimeout,
            Phase::AwaitingHello if in_phase(HELLO_TIMEOUT) => DueAction::HelloTimeout,
            Phase::Closing { .. } if in_phase(LINGER) && !planted("nexus_closes_for_ever") => {
                DueAction::LingerOver
            }
            Phase::Open(peer) => {
                let is_stalled =
                    self.out.stalled_since.is_some_and(|t| has_passed(t, WRITE_TIMEOUT));
                let is_slow = self.midway_since.is_some_and(|t| has_passed(t, MESSAGE_TIMEOUT));
                if is_stalled {
                    DueAction::NotReading
                } else if !self.is_paused && has_passed(self.last_received, peer.silence_max) {
                    DueAction::Silent
                } else if !self.is_paused && is_slow {
                    DueAction::SlowMessage
                } else if self.links.is_empty()
                    && has_passed(self.links.idle_since(), self.idle_max())
                {
                    DueAction::Idle
                } else if now >= self.ping_at {
                    DueAction::Ping
                } else {
                    DueAction::Nothing
                }
            }
            _ => DueAction::Nothing,
        }
    }

    /// Returns the time until the next PING.
    pub(super) fn ping_interval(&self, heartbeat: Duration) -> Duration {
        let is_in_use = self.is_opener || self.links.are_in_use();
        if is_in_use || heartbeat < IDLE_PING_MIN {
            heartbeat
        } else {
            heartbeat * IDLE_PING_HEARTBEATS
        }
    }

    /// Postpones the acceptor's next PING. A PONG proves life as well, and a server may have thousands of clients that
    /// send PINGs each second. The opener's PINGs go on: they cause the acceptor's PONGs, and the opener measures the
    /// path with every PING.
    pub(super) fn note_pong(&mut self, now: Instant, heartbeat: Duration) {
        if !self.is_opener && heartbeat >= IDLE_PING_MIN {
            self.ping_at = self.ping_at.max(now + heartbeat + heartbeat / 2);
        }
    }

    fn idle_max(&self) -> Duration {
        if self.is_opener { IDLE_TIMEOUT } else { 2 * IDLE_TIMEOUT }
    }
}
