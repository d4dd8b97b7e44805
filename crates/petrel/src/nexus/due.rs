//! The action that the time demands for a connection (`docs/wire-protocol.md` §8.6).

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

#[cfg(test)]
pub(super) mod tests {
    use std::net::{SocketAddr, TcpListener};
    use std::time::{Duration, Instant};

    use mio::net::TcpStream;
    use petrel_proto::control::PREFACE;

    use super::*;
    use crate::control::LinkId;
    use crate::nexus::connection::{Connection, Peer, Phase};
    use crate::nexus::limits::{
        HELLO_TIMEOUT, IDLE_PING_HEARTBEATS, IDLE_TIMEOUT, LINGER, MESSAGE_TIMEOUT, WRITE_TIMEOUT,
    };

    const STEP: Duration = Duration::from_secs(7);
    const SILENCE: Duration = Duration::from_secs(3);

    /// A connection in this phase since `now`, over a socket without traffic.
    pub(in crate::nexus) fn connection(phase: Phase, is_opener: bool, now: Instant) -> Connection {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let remote: SocketAddr = listener.local_addr().unwrap();
        let stream = TcpStream::connect(remote).unwrap();
        let mut connection = Connection::new(stream.into(), (remote, remote), is_opener, now);
        *connection.test_ping_at() = now + Duration::from_secs(1);
        connection.enter_test(phase, now);
        connection
    }

    pub(in crate::nexus) fn open() -> Phase {
        Phase::Open(Peer::of_test(1, SILENCE))
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
        *stuck.test_last_received() = now + STEP;
        *stuck.test_ping_at() = now + STEP;
        *stuck.test_midway_since() = Some(now);
        assert_eq!(
            around(&stuck, now + MESSAGE_TIMEOUT),
            (DueAction::Nothing, DueAction::SlowMessage)
        );
        // While this process itself pauses reading, the peer is not at fault.
        *stuck.test_is_paused() = true;
        assert_eq!(stuck.due_action(now + MESSAGE_TIMEOUT, STEP), DueAction::Nothing);
        *stuck.test_stalled_since() = Some(now);
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
            *idle.test_last_received() = now + limit;
            *idle.test_ping_at() = now + 2 * limit;
            assert_eq!(around(&idle, now + limit), (DueAction::Nothing, DueAction::Idle));
            idle.links_mut().insert(0, LinkId(0), now);
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
        connection.links_mut().set_test_charge((1, 0), 0);
        assert_eq!(connection.ping_interval(second), second);
        connection.links_mut().set_test_charge((0, 0), 1);
        assert_eq!(connection.ping_interval(second), second);
        connection.links_mut().set_test_charge((0, 0), 0);
        // The side that connected cannot know whether the peer's endpoints are in use.
        *connection.test_is_opener() = true;
        assert_eq!(connection.ping_interval(second), second);
    }

    #[test]
    fn note_pong__takes_the_place_of_the_acceptors_ping() {
        let (now, second) = (Instant::now(), Duration::from_secs(1));
        let mut acceptor = connection(open(), false, now);
        // The peer sends a PING each second, and late by a tick.
        for asked in 0..5 {
            let asked = now + asked * (second + second / 4);
            *acceptor.test_last_received() = asked;
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
        connection.decode(&mut &PREFACE[..3]).unwrap();
        connection.note_midway(false, now);
        connection.note_midway(false, later);
        assert_eq!(*connection.test_midway_since(), Some(now));
        connection.note_midway(true, later);
        assert_eq!(*connection.test_midway_since(), Some(later));
        connection.decode(&mut &PREFACE[3..]).unwrap();
        connection.note_midway(false, later);
        assert_eq!(*connection.test_midway_since(), None);
    }
}
