//! Heartbeats and timeouts of connections (`docs/wire-protocol.md` §8.6), and the round trips of their paths.
//!
//! The kernel measures round trips on the control connections, for congestion control (`docs/congestion.md`). By the time a
//! link is up, at least two messages have gone each way, after TCP's handshake. The kernel's shortest round trip includes
//! no time of the peer's process or of a sleeping thread.

use std::io::ErrorKind;
use std::time::Duration;

use petrel_planted::planted;
use petrel_proto::Status;
use petrel_proto::control::{Ping, Pong};

use super::Reactor;
use crate::control::{FromNexus, LinkId, Reason};
use crate::nexus::deadlines::{Deadlines, Due};
use crate::nexus::due::DueAction;
use crate::nexus::goodbye::GoodbyeMode;
use crate::nexus::ids::ConnectionId;
use crate::nexus::limits::{HELLO_TIMEOUT, MESSAGE_TIMEOUT};
use crate::nexus::net::Network;

impl<N: Network> Reactor<N> {
    /// Performs all due actions of the connections.
    pub(super) fn run_connection_timers(&mut self) {
        let (now, step_timeout) = (self.now, self.settings.step_timeout);
        let actions = self.connections.iter().map(|(id, c)| (*id, c.due_action(now, step_timeout)));
        let mut actions: Vec<_> =
            actions.filter(|(_, action)| *action != DueAction::Nothing).collect();
        // Equal events lead to an equal order in every run, and simulated runs repeat.
        actions.sort_unstable_by_key(|(id, _)| *id);
        for (id, action) in actions {
            self.perform(id, action);
        }
    }

    /// Does not count time in which the thread did not run as silence or slowness of peers. If the whole host stood
    /// still, its processes could not send a PING either.
    pub(super) fn discount_own_delay(&mut self, late: Duration) {
        if late >= self.tick_interval() {
            let now = self.now;
            for connection in self.connections.values_mut() {
                let times =
                    [&mut connection.out.stalled_since, &mut connection.midway_since].into_iter();
                let last_received = std::iter::once(&mut connection.last_received);
                times
                    .flatten()
                    .chain(last_received)
                    .for_each(|since| *since = (*since + late).min(now));
            }
        }
    }

    fn perform(&mut self, id: ConnectionId, action: DueAction) {
        match action {
            DueAction::Nothing => {}
            DueAction::DialTimeout => self.on_dial_failed(id, &ErrorKind::TimedOut.into()),
            DueAction::HelloTimeout => self.on_hello_timeout(id),
            DueAction::Silent => self.on_silence(id),
            DueAction::SlowMessage => self.on_slow_message(id),
            DueAction::NotReading => self.on_not_reading(id),
            DueAction::Idle => self.on_idle(id),
            DueAction::Ping => self.ping(id),
            DueAction::LingerOver => self.remove_connection(id),
        }
    }

    fn ping(&mut self, id: ConnectionId) {
        self.measure_path(id);
        if let Some(connection) = self.connections.get_mut(&id) {
            connection.ping_at = self.now + connection.ping_interval(self.settings.heartbeat);
            if planted("nexus_no_ping_beside_other_messages") && connection.out.len() > 0 {
                return;
            }
            self.send(id, Ping { nonce: id.0 as u64 });
        }
    }

    /// Reports the round trip of the path to the endpoint of a link that has come up. A shorter round trip is also
    /// reported to the endpoints of the connection's other links.
    pub(super) fn report_path(&mut self, link: LinkId) {
        let Some(id) = self.links.get(&link).map(|link| link.connection()) else { return };
        if self.measure_path(id) {
            return;
        }
        let measured = self.connections.get(&id).and_then(|connection| connection.path_rtt_ns());
        if let Some(rtt_ns) = measured {
            self.report_path_of(link, rtt_ns);
        }
    }

    /// Reports to the endpoints of a connection's links if the path's round trip is shorter than known. Returns true if
    /// so.
    fn measure_path(&mut self, id: ConnectionId) -> bool {
        // Congestion control needs the path at clients, and only the opener's endpoints are clients.
        let connection = self.connections.get_mut(&id).filter(|connection| connection.is_opener);
        let Some(connection) = connection else { return false };
        let Some(rtt_ns) = connection.measure_path() else { return false };
        let links = connection.links.in_order();
        links.into_iter().for_each(|link| self.report_path_of(link, rtt_ns));
        true
    }

    fn report_path_of(&self, id: LinkId, rtt_ns: u32) {
        let Some(link) = self.links.get(&id) else { return };
        if link.is_up_at_opener() {
            self.notify(link.endpoint(), FromNexus::PathMeasured { link: id, rtt_ns });
        }
    }

    pub(super) fn answer_ping(&mut self, id: ConnectionId, ping: Ping) {
        if let Some(connection) = self.connections.get_mut(&id) {
            connection.note_pong(self.now, self.settings.heartbeat);
            self.send(id, Pong { nonce: ping.nonce });
        }
    }

    fn on_hello_timeout(&mut self, id: ConnectionId) {
        self.counters.dropped_hello_timeout.increment();
        let why = format!("no HELLO within {HELLO_TIMEOUT:?}: the peer is hung, or not Petrel");
        let reason = Reason::new(Status::Unavailable, why);
        self.close(id, &reason, GoodbyeMode::Silent);
    }

    /// Drops a peer silent for too long, unless this thread was delayed and the bytes are in the socket.
    fn on_silence(&mut self, id: ConnectionId) {
        if !planted("nexus_no_last_look") {
            self.read(id);
        }
        let Some(connection) = self.connections.get(&id) else { return };
        let Some(peer) = connection.peer() else { return };
        let silence = self.now.saturating_duration_since(connection.last_received);
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
        self.close(id, &reason, GoodbyeMode::Send(reason.clone()));
    }

    fn on_slow_message(&mut self, id: ConnectionId) {
        self.counters.dropped_slow_message.increment();
        let why = format!("a message was not complete within {MESSAGE_TIMEOUT:?}");
        let reason = Reason::new(Status::Unavailable, why);
        self.close(id, &reason, GoodbyeMode::Send(reason.clone()));
    }

    /// Drops a peer that does not read. A GOODBYE would not be read either.
    pub(super) fn on_not_reading(&mut self, id: ConnectionId) {
        self.counters.dropped_not_reading.increment();
        let why = "the peer does not read its control connection: it is hung or overloaded";
        self.close(id, &Reason::new(Status::Unavailable, why), GoodbyeMode::Silent);
    }

    fn on_idle(&mut self, id: ConnectionId) {
        self.counters.connections_idle.increment();
        let reason = Reason::new(Status::Ok, "no links");
        self.close(id, &reason, GoodbyeMode::Send(reason.clone()));
    }

    /// Fails the requests whose deadlines have passed.
    pub(super) fn run_deadlines(&mut self) {
        while let Some(due) = self.deadlines.take(self.now) {
            match due {
                Due::EarlyLink(id, link) => self.on_early_link_due(id, link),
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
            Due::EarlyLink(id, link) => self.early_links.contains(*id, *link),
            Due::Link(link) => self.links.get(link).is_some_and(|link| !link.is_up()),
            Due::Session(link, request) => {
                self.links.get(link).is_some_and(|link| link.proposal(*request).is_some())
            }
            Due::Exchange(exchange) => self.exchanges.contains_key(exchange),
            Due::Redial(remote) => self.outgoing.contains_key(remote),
            Due::Stats(id) => self.collector.is_under_way(*id),
        });
        self.deadlines = deadlines;
    }
}

#[cfg(test)]
mod tests {
    use std::io::Write;
    use std::net::{SocketAddr, TcpListener};

    use mio::net::TcpStream;
    use petrel_proto::control::PREFACE;

    use super::*;
    use crate::nexus::connection::{Connection, Peer, Phase};
    use crate::nexus::limits::{IDLE_PING_HEARTBEATS, IDLE_TIMEOUT, LINGER, WRITE_TIMEOUT};
    use crate::nexus::reactor::tests::{open_connection, reactor};
    use std::time::Instant;

    const STEP: Duration = Duration::from_secs(7);
    const SILENCE: Duration = Duration::from_secs(3);

    /// A connection in this phase since `now`, over a socket without traffic.
    fn connection(phase: Phase, is_opener: bool, now: Instant) -> Connection {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let remote: SocketAddr = listener.local_addr().unwrap();
        let stream = TcpStream::connect(remote).unwrap();
        let mut connection = Connection::new(stream, (remote, remote), is_opener, now);
        connection.ping_at = now + Duration::from_secs(1);
        connection.enter(phase, now);
        connection
    }

    fn open() -> Phase {
        let (host_identity, rendezvous) = (None, None);
        Phase::Open(Peer { incarnation: 1, silence_max: SILENCE, host_identity, rendezvous })
    }

    /// The actions due just before and just at a time.
    fn around(connection: &Connection, at: Instant) -> (DueAction, DueAction) {
        let before = at.checked_sub(Duration::from_millis(1)).unwrap();
        (connection.due_action(before, STEP), connection.due_action(at, STEP))
    }

    #[test]
    fn due_action__of_each_phase_at_its_time() {
        let now = Instant::now();
        let connecting = connection(Phase::Connecting, true, now);
        assert_eq!(around(&connecting, now + STEP), (DueAction::Nothing, DueAction::DialTimeout));
        let awaiting_hello = connection(Phase::AwaitingHello, false, now);
        assert_eq!(
            around(&awaiting_hello, now + HELLO_TIMEOUT),
            (DueAction::Nothing, DueAction::HelloTimeout)
        );
        let closing = connection(Phase::Closing { is_shut_down: true }, false, now);
        assert_eq!(around(&closing, now + LINGER), (DueAction::Nothing, DueAction::LingerOver));
        let open = connection(open(), true, now);
        assert_eq!(
            around(&open, now + Duration::from_secs(1)),
            (DueAction::Nothing, DueAction::Ping)
        );
        assert_eq!(around(&open, now + SILENCE), (DueAction::Ping, DueAction::Silent));
    }

    #[test]
    fn due_action__of_an_open_connection_that_does_not_go_on() {
        let now = Instant::now();
        let mut stuck = connection(open(), true, now);
        stuck.last_received = now + STEP;
        stuck.ping_at = now + STEP;
        stuck.midway_since = Some(now);
        assert_eq!(
            around(&stuck, now + MESSAGE_TIMEOUT),
            (DueAction::Nothing, DueAction::SlowMessage)
        );
        // While this process itself pauses reading, the peer is not at fault.
        stuck.is_paused = true;
        assert_eq!(stuck.due_action(now + MESSAGE_TIMEOUT, STEP), DueAction::Nothing);
        stuck.out.stalled_since = Some(now);
        assert_eq!(
            around(&stuck, now + WRITE_TIMEOUT),
            (DueAction::Nothing, DueAction::NotReading)
        );
    }

    #[test]
    fn due_action__of_connections_without_links() {
        let now = Instant::now();
        for (is_opener, limit) in [(true, IDLE_TIMEOUT), (false, 2 * IDLE_TIMEOUT)] {
            let mut idle = connection(open(), is_opener, now);
            idle.last_received = now + limit;
            idle.ping_at = now + 2 * limit;
            assert_eq!(around(&idle, now + limit), (DueAction::Nothing, DueAction::Idle));
            idle.links.insert(0, LinkId(0), now);
            assert_eq!(idle.due_action(now + limit, STEP), DueAction::Nothing);
        }
    }

    #[test]
    fn ping_interval__is_longer_where_nothing_depends_on_it() {
        let second = Duration::from_secs(1);
        let mut connection = connection(open(), false, Instant::now());
        assert_eq!(connection.ping_interval(second), IDLE_PING_HEARTBEATS * second);
        let short = Duration::from_millis(5);
        assert_eq!(connection.ping_interval(short), short, "a PING may be late by a tick");
        connection.links.set_test_charge((1, 0), 0);
        assert_eq!(connection.ping_interval(second), second);
        connection.links.set_test_charge((0, 0), 1);
        assert_eq!(connection.ping_interval(second), second);
        connection.links.set_test_charge((0, 0), 0);
        // The side that connected cannot know whether the peer's endpoints are in use.
        connection.is_opener = true;
        assert_eq!(connection.ping_interval(second), second);
    }

    #[test]
    fn note_pong__takes_the_place_of_the_acceptors_ping() {
        let (now, second) = (Instant::now(), Duration::from_secs(1));
        let mut acceptor = connection(open(), false, now);
        // The peer sends a PING each second, and late by a tick.
        for asked in 0..5 {
            let asked = now + asked * (second + second / 4);
            acceptor.last_received = asked;
            assert_eq!(acceptor.due_action(asked, STEP), DueAction::Nothing);
            acceptor.note_pong(asked, second);
            assert_eq!(
                around(&acceptor, asked + second * 3 / 2),
                (DueAction::Nothing, DueAction::Ping)
            );
        }
        let mut opener = connection(open(), true, now);
        opener.note_pong(now, second);
        assert_eq!(around(&opener, now + second), (DueAction::Nothing, DueAction::Ping));
    }

    #[test]
    fn note_midway__from_the_first_byte_of_the_message_under_way() {
        let now = Instant::now();
        let later = now + Duration::from_secs(1);
        let mut connection = connection(Phase::AwaitingHello, false, now);
        connection.decoder.decode(&mut &PREFACE[..3]).unwrap();
        connection.note_midway(false, now);
        connection.note_midway(false, later);
        assert_eq!(connection.midway_since, Some(now));
        connection.note_midway(true, later);
        assert_eq!(connection.midway_since, Some(later));
        connection.decoder.decode(&mut &PREFACE[3..]).unwrap();
        connection.note_midway(false, later);
        assert_eq!(connection.midway_since, None);
    }

    /// A repeated seed must produce the same order.
    #[test]
    fn run_connection_timers__in_the_order_of_their_numbers_and_once_each() {
        let (mut reactor, _) = reactor();
        let all: Vec<_> = (1..=12).map(ConnectionId).collect();
        for id in &all {
            let mut connection = connection(open(), true, reactor.now);
            connection.ping_at = reactor.now;
            reactor.connections.insert(*id, connection);
        }
        reactor.run_connection_timers();
        assert_eq!(reactor.unsent, all, "each has a PING to send");
        reactor.run_connection_timers();
        assert_eq!(reactor.unsent, all, "the next is due later");
    }

    /// Bytes in the socket that are not read yet prove life; an empty socket does not.
    #[test]
    fn on_silence__reads_once_more() {
        for is_alive in [true, false] {
            let (mut reactor, _) = reactor();
            let (id, mut peer) = open_connection(&mut reactor, false);
            if is_alive {
                peer.write_all(&PREFACE[..3]).unwrap();
                let stream = &reactor.connections[&id].stream;
                while stream.peek(&mut [0]).is_err() {
                    std::thread::yield_now();
                }
            }
            let silence_max = reactor.connections[&id].peer().unwrap().silence_max;
            reactor.now += silence_max;
            reactor.connections.get_mut(&id).unwrap().ping_at = reactor.now + silence_max;
            reactor.run_connection_timers();
            let connection = &reactor.connections[&id];
            assert_eq!(connection.is_closing(), !is_alive);
            assert_eq!(connection.last_received == reactor.now, is_alive);
            let dropped = reactor.counters.snapshot().dropped_silent;
            assert_eq!(dropped, u64::from(!is_alive));
        }
    }
}
