//! The action that the time demands for a connection (`docs/wire-protocol.md` §8.6).

/// The action that is due for a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum DueAction {
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
        HELLO_TIMEOUT, IDLE_TIMEOUT, KEEP_ALIVE_HEARTBEATS, LINGER, MESSAGE_TIMEOUT, WRITE_TIMEOUT,
    };

    const STEP: Duration = Duration::from_secs(7);
    pub(in crate::nexus) const HEARTBEAT: Duration = Duration::from_secs(1);

    /// A connection in this phase since `now`, over a socket without traffic. Its first PING is due after a heartbeat.
    pub(in crate::nexus) fn connection(phase: Phase, is_opener: bool, now: Instant) -> Connection {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let remote: SocketAddr = listener.local_addr().unwrap();
        let stream = TcpStream::connect(remote).unwrap();
        let mut connection = Connection::new(stream.into(), (remote, remote), is_opener, now);
        connection.enter_test(phase, now);
        connection.signs_mut().begin(now, HEARTBEAT);
        connection
    }

    pub(in crate::nexus) fn open() -> Phase {
        Phase::Open(Peer::of_test(1, HEARTBEAT))
    }

    #[test]
    fn next_action__of_each_phase_at_its_time() {
        let now = Instant::now();
        let next = |phase, is_opener| connection(phase, is_opener, now).next_action(STEP);
        let dial = next(Phase::Connecting, true);
        assert_eq!(dial, Some((now + STEP, DueAction::DialTimeout)));
        let hello = next(Phase::AwaitingHello, false);
        assert_eq!(hello, Some((now + HELLO_TIMEOUT, DueAction::HelloTimeout)));
        let closing = next(Phase::Closing { is_shut_down: true }, false);
        assert_eq!(closing, Some((now + LINGER, DueAction::LingerOver)));
        assert_eq!(next(open(), true), Some((now + HEARTBEAT, DueAction::Ping)));
    }

    #[test]
    fn next_action__of_a_silent_peer() {
        let now = Instant::now();
        let mut opener = connection(open(), true, now);
        opener.signs_mut().ask(now + HEARTBEAT, HEARTBEAT);
        let dead = Some((now + 4 * HEARTBEAT, DueAction::Silent));
        assert_eq!(opener.next_action(STEP), dead);
        *opener.test_is_paused() = true;
        assert!(opener.next_action(STEP).is_none_or(|(_, action)| action != DueAction::Silent));
        // The other side asks nothing, and waits for the questions of its peer.
        let mut acceptor = connection(open(), false, now);
        acceptor.links_mut().insert(0, LinkId(0), now);
        let dead = Some((now + 3 * KEEP_ALIVE_HEARTBEATS * HEARTBEAT, DueAction::Silent));
        assert_eq!(acceptor.next_action(STEP), dead);
    }

    #[test]
    fn next_action__of_an_open_connection_that_does_not_go_on() {
        let now = Instant::now();
        let mut stuck = connection(open(), false, now);
        *stuck.test_midway_since() = Some(now);
        assert_eq!(stuck.next_action(STEP), Some((now + MESSAGE_TIMEOUT, DueAction::SlowMessage)));
        // While this process itself pauses reading, the peer is not at fault.
        *stuck.test_is_paused() = true;
        assert_eq!(stuck.next_action(STEP), Some((now + 2 * IDLE_TIMEOUT, DueAction::Idle)));
        *stuck.test_stalled_since() = Some(now);
        assert_eq!(stuck.next_action(STEP), Some((now + WRITE_TIMEOUT, DueAction::NotReading)));
    }

    #[test]
    fn next_action__of_connections_without_links() {
        let now = Instant::now();
        for (is_opener, limit) in [(true, IDLE_TIMEOUT), (false, 2 * IDLE_TIMEOUT)] {
            let mut idle = connection(open(), is_opener, now);
            // No PING is due before.
            idle.signs_mut().begin(now, 2 * limit);
            assert_eq!(idle.next_action(STEP), Some((now + limit, DueAction::Idle)));
            idle.links_mut().insert(0, LinkId(0), now);
            assert!(idle.next_action(STEP).is_none_or(|(_, action)| action != DueAction::Idle));
        }
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
