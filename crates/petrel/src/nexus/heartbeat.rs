//! Signs of life, and everything else that time brings (`docs/wire-protocol.md` §8.6).

use std::io::ErrorKind;
use std::time::{Duration, Instant};

use petrel_proto::Status;
use petrel_proto::control::Ping;

use super::closing::Farewell;
use super::connection::{Connection, ConnectionId, Phase};
use super::deadlines::{Deadlines, Due};
use super::limits::{HELLO_TIMEOUT, IDLE_TIMEOUT, LINGER, MESSAGE_TIMEOUT, WRITE_TIMEOUT};
use super::reactor::Reactor;
use crate::control::Reason;

/// What time has brought a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Care {
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

impl Connection {
    /// What is to be done about this connection, the most urgent first.
    fn care(&self, now: Instant, step_timeout: Duration) -> Care {
        let has_passed = |since: Instant, limit| now.saturating_duration_since(since) >= limit;
        let in_phase = |limit| has_passed(self.since, limit);
        match &self.phase {
            Phase::Connecting if in_phase(step_timeout) => Care::DialTimeout,
            Phase::Greeting if in_phase(HELLO_TIMEOUT) => Care::HelloTimeout,
            Phase::Closing if in_phase(LINGER) => Care::LingerOver,
            Phase::Open(peer) => {
                let is_stalled =
                    self.out.stalled_since.is_some_and(|t| has_passed(t, WRITE_TIMEOUT));
                let is_slow = self.midway_since.is_some_and(|t| has_passed(t, MESSAGE_TIMEOUT));
                if is_stalled {
                    Care::NotReading
                } else if !self.is_paused && has_passed(self.heard, peer.silence_max) {
                    Care::Silent
                } else if !self.is_paused && is_slow {
                    Care::SlowMessage
                } else if self.links.is_empty() && has_passed(self.idle_since, self.idle_max()) {
                    Care::Idle
                } else if now >= self.ping_at {
                    Care::Ping
                } else {
                    Care::Nothing
                }
            }
            _ => Care::Nothing,
        }
    }

    fn idle_max(&self) -> Duration {
        if self.is_opener { IDLE_TIMEOUT } else { 2 * IDLE_TIMEOUT }
    }
}

impl Reactor {
    /// Does for each connection what its time has come for.
    pub(super) fn look_after_connections(&mut self) {
        let (now, step_timeout) = (self.now, self.settings.step_timeout);
        let cares = self.connections.iter().map(|(id, c)| (*id, c.care(now, step_timeout)));
        let cares: Vec<_> = cares.filter(|(_, care)| *care != Care::Nothing).collect();
        for (id, care) in cares {
            self.take_care(id, care);
        }
    }

    fn take_care(&mut self, id: ConnectionId, care: Care) {
        match care {
            Care::Nothing => {}
            Care::DialTimeout => self.on_dial_failed(id, &ErrorKind::TimedOut.into()),
            Care::HelloTimeout => self.on_hello_timeout(id),
            Care::Silent => self.on_silence(id),
            Care::SlowMessage => self.on_slow_message(id),
            Care::NotReading => self.on_not_reading(id),
            Care::Idle => self.on_idle(id),
            Care::Ping => self.ping(id),
            Care::LingerOver => self.remove_connection(id),
        }
    }

    fn ping(&mut self, id: ConnectionId) {
        if let Some(connection) = self.connections.get_mut(&id) {
            connection.ping_at = self.now + self.settings.heartbeat;
            self.send(id, Ping { nonce: id.0 as u64 });
        }
    }

    fn on_hello_timeout(&mut self, id: ConnectionId) {
        self.counters.dropped_hello_timeout.increment();
        let why = format!("no HELLO within {HELLO_TIMEOUT:?}: the peer is hung, or not Petrel");
        let reason = Reason::new(Status::Unavailable, why);
        self.close(id, &reason, Farewell::Silent);
    }

    /// Too long without a byte, unless this thread itself was held up and the bytes are here.
    fn on_silence(&mut self, id: ConnectionId) {
        self.read(id);
        let Some(connection) = self.connections.get(&id) else { return };
        let Some(peer) = connection.peer() else { return };
        let silence = self.now.saturating_duration_since(connection.heard);
        if silence < peer.silence_max {
            return;
        }
        self.counters.dropped_silent.increment();
        let why = format!(
            "no sign of life from {} for {} ms: the peer is dead or hung",
            connection.remote,
            silence.as_millis()
        );
        let reason = Reason::new(Status::Unavailable, why);
        self.close(id, &reason, Farewell::Say(reason.clone()));
    }

    fn on_slow_message(&mut self, id: ConnectionId) {
        self.counters.dropped_slow_message.increment();
        let why = format!("a message was not complete within {MESSAGE_TIMEOUT:?}");
        let reason = Reason::new(Status::Unavailable, why);
        self.close(id, &reason, Farewell::Say(reason.clone()));
    }

    /// What this process says is not read. There is no use in one more message.
    pub(super) fn on_not_reading(&mut self, id: ConnectionId) {
        self.counters.dropped_not_reading.increment();
        let why = "the peer does not read its control connection: it is hung or overloaded";
        self.close(id, &Reason::new(Status::Unavailable, why), Farewell::Silent);
    }

    fn on_idle(&mut self, id: ConnectionId) {
        self.counters.connections_idle.increment();
        let reason = Reason::new(Status::Ok, "no links");
        self.close(id, &reason, Farewell::Say(reason.clone()));
    }

    /// Ends what was not answered in time.
    pub(super) fn run_deadlines(&mut self) {
        while let Some(due) = self.deadlines.take(self.now) {
            match due {
                Due::Link(link) => self.on_link_due(link),
                Due::Session(link, request) => self.on_session_due(link, request),
                Due::Exchange(exchange) => self.on_exchange_due(exchange),
                Due::Redial(remote) => self.on_redial_due(remote),
                Due::Stats(collection) => self.on_stats_due(collection),
            }
        }
        if self.deadlines.is_crowded() {
            self.sweep_deadlines();
        }
    }

    fn sweep_deadlines(&mut self) {
        let mut deadlines: Deadlines = std::mem::take(&mut self.deadlines);
        deadlines.sweep(|due| match due {
            Due::Link(link) => self.links.get(link).is_some_and(|link| !link.is_up()),
            Due::Session(link, request) => {
                self.links.get(link).is_some_and(|link| link.proposals.contains_key(request))
            }
            Due::Exchange(exchange) => self.exchanges.contains_key(exchange),
            Due::Redial(remote) => self.outgoing.contains_key(remote),
            Due::Stats(id) => self.collection.as_ref().is_some_and(|c| c.id == *id),
        });
        self.deadlines = deadlines;
    }
}
