//! Connections to peers.

use petrel_proto::control::{Decoder, Message};

use super::super::*;
use crate::control::{AllowedTransports, EndpointId, FromNexus};
use crate::nexus::connection::Phase;
use crate::nexus::reactor::tests::{attach, reactor};
use std::time::Instant;

type Reactor = super::super::Reactor<crate::nexus::net::MioNetwork>;

/// A request for a link to `remote` with a timeout of an hour.
fn request(reactor: &Reactor, remote: SocketAddr, endpoint: u16, request: u64) -> OpenRequest {
    let transports = AllowedTransports::UDP;
    let give_up_at = reactor.relay.now() + Duration::from_secs(3_600);
    let from = (EndpointId(endpoint), request);
    OpenRequest::new(from, (remote, EndpointId(0)), (transports, false), give_up_at)
}

/// A connection that was retired breaks while another one, or the pause after it, has requests of its own.
#[test]
fn redial_later__keeps_the_requests_of_the_next_connection() {
    for has_broken in [false, true] {
        let (mut reactor, _) = reactor();
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let remote = listener.local_addr().unwrap();
        let mut ways = [1, 2].map(|number| {
            reactor.open_link(request(&reactor, remote, 0, number));
            let Some(id) = reactor.routes.connection(remote) else { panic!("a pause") };
            if number == 1 {
                reactor.retire(id);
            }
            id
        });
        ways.reverse();
        for id in &ways[usize::from(!has_broken)..] {
            reactor.on_stream_end(*id, "the test ends it");
        }
        let next = reactor.routes.connection(remote);
        assert_eq!(next, (!has_broken).then_some(ways[0]));
        let waiting = match next {
            None => &*reactor.routes.paused(remote).unwrap(),
            Some(id) => reactor.relay.connections[&id].waiting(),
        };
        let numbers: Vec<_> = waiting.iter().map(|request| request.number()).collect();
        assert_eq!(numbers, [2, 1], "each request waits for the next answer");
        assert_eq!(reactor.check_tables(), Ok(()));
    }
}

#[test]
fn dial__counts_the_tries_from_one_connection_to_the_next() {
    let (mut reactor, _) = reactor();
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let remote = listener.local_addr().unwrap();
    reactor.open_link(request(&reactor, remote, 0, 1));
    for attempt in 0..4 {
        let Some(id) = reactor.routes.connection(remote) else { panic!("a pause") };
        // The request joins the connection that is being made.
        reactor.open_link(request(&reactor, remote, 0, 2 + u64::from(2 * attempt)));
        let connection = &reactor.relay.connections[&id];
        let asked = 2 + 2 * attempt as usize;
        assert_eq!((connection.attempt(), connection.waiting().len()), (attempt, asked));
        reactor.on_stream_end(id, "the test ends it");
        reactor.open_link(request(&reactor, remote, 0, 3 + u64::from(2 * attempt)));
        assert_eq!(reactor.routes.test_attempt(remote), Some(attempt + 1));
        assert_eq!(reactor.routes.paused(remote).unwrap().len(), asked + 1);
        assert!(reactor.relay.connections.len() == 0);
        reactor.relay.begin_turn(reactor.relay.deadlines().next().unwrap());
        reactor.run_deadlines();
    }
    let stats = reactor.relay.counters().snapshot();
    assert_eq!((stats.connections_dialed, stats.connections_redialed), (5, 4));
    assert_eq!((stats.connections_broken, stats.dials_failed, stats.links_failed), (4, 0, 0));
}

#[test]
fn on_connected__says_hello_and_waits_for_the_peers() {
    let (mut reactor, _) = reactor();
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let remote = listener.local_addr().unwrap();
    reactor.open_link(request(&reactor, remote, 0, 1));
    let Some(id) = reactor.routes.connection(remote) else { panic!("a pause") };
    let end = Instant::now() + Duration::from_secs(60);
    reactor.relay.begin_turn(reactor.relay.now() + Duration::from_secs(5));
    while reactor.relay.connections[&id].is_connecting() {
        assert!(Instant::now() < end, "it is never connected");
        reactor.on_dial_progress(id);
    }
    let interval = reactor.relay.settings().heartbeat();
    let (now, incarnation) = (reactor.relay.now(), reactor.relay.settings().incarnation());
    let connection = reactor.relay.connections.get_mut(id).unwrap();
    assert!(matches!(connection.test_phase(), Phase::AwaitingHello));
    assert_eq!((*connection.test_since(), connection.signs().heard()), (now, now));
    assert_eq!(connection.signs().ask_at(), Some(now + interval));
    assert_eq!(connection.local(), listener.accept().unwrap().1);
    let (bytes, mut decoder) = (connection.take_unsent(), Decoder::new());
    let mut bytes = bytes.as_slice();
    let Ok(Some(Message::Hello(hello))) = decoder.decode(&mut bytes) else { panic!("no HELLO") };
    assert_eq!(hello.incarnation, incarnation);
    assert_eq!(u128::from(hello.heartbeat_ms), interval.as_millis());
    assert_eq!(decoder.decode(&mut bytes), Ok(None), "it asks when the peer has said HELLO");
    assert_eq!(connection.waiting().len(), 1);
    assert_eq!(*reactor.relay.connections.test_unsent(), [id]);
}

/// Events may arrive before the connection is made or has failed.
#[test]
fn on_dial_progress__waits_while_connecting() {
    let (mut reactor, _) = reactor();
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    // A single unaccepted connection fills the queue; further ones get no answer from the kernel.
    rustix::net::listen(&listener, 0).unwrap();
    let remote = listener.local_addr().unwrap();
    let _first = std::net::TcpStream::connect(remote).unwrap();
    reactor.open_link(request(&reactor, remote, 0, 1));
    let Some(id) = reactor.routes.connection(remote) else { panic!("a pause") };
    for _ in 0..3 {
        reactor.on_dial_progress(id);
        assert!(reactor.relay.connections[&id].is_connecting());
    }
    assert_eq!(reactor.relay.counters().snapshot().dials_failed, 0);
    drop(listener);
}

#[test]
fn on_gone__keeps_connections_and_requests_of_others() {
    let (mut reactor, _) = reactor();
    let listeners = [(); 3].map(|()| TcpListener::bind("127.0.0.1:0").unwrap());
    let [used, paused, own] = listeners.each_ref().map(|l| l.local_addr().unwrap());
    let asked_by = |reactor: &Reactor, remote, endpoints: &[u16]| -> Vec<_> {
        endpoints.iter().map(|endpoint| request(reactor, remote, *endpoint, 1)).collect()
    };
    for request in asked_by(&reactor, used, &[0, 1, 0]) {
        reactor.open_link(request);
    }
    reactor.redial_later(paused, asked_by(&reactor, paused, &[1, 0, 1]), 1);
    reactor.redial_later(own, asked_by(&reactor, own, &[0, 0]), 1);
    reactor.on_gone(EndpointId(0));
    let Some(id) = reactor.routes.connection(used) else { panic!("a pause") };
    assert_eq!(reactor.routes.test_attempt(paused), Some(1));
    assert!(!reactor.routes.contains(own), "no request waits there");
    let waiting = &*reactor.routes.paused(paused).unwrap();
    for (left, count) in [(reactor.relay.connections[&id].waiting(), 1), (waiting, 2)] {
        assert_eq!(left.len(), count);
        assert!(left.iter().all(|request| request.endpoint() == EndpointId(1)));
    }
    // The next request uses the existing connection.
    reactor.open_link(request(&reactor, used, 0, 2));
    assert_eq!(reactor.relay.connections.len(), 1);
}

#[test]
fn redial_pause__doubles_up_to_a_limit() {
    let pauses = [1, 2, 3, 4, 5, 6, 17, 18, u32::MAX].map(redial_pause);
    let ms = [20, 40, 80, 160, 320, 500, 500, 500, 500];
    assert_eq!(pauses, ms.map(Duration::from_millis));
}

#[test]
fn is_under_way__by_the_error_of_the_system() {
    let in_progress = rustix::io::Errno::INPROGRESS.raw_os_error();
    for kind in [ErrorKind::NotConnected, ErrorKind::WouldBlock] {
        assert!(is_under_way(&kind.into()));
    }
    assert!(is_under_way(&io::Error::from_raw_os_error(in_progress)));
    for kind in [ErrorKind::ConnectionRefused, ErrorKind::TimedOut] {
        assert!(!is_under_way(&kind.into()));
    }
}

#[test]
fn redial_later__after_its_pause_and_only_for_those_that_wait() {
    let (mut reactor, _) = reactor();
    let remote = ([127, 0, 0, 1], 9).into();
    reactor.redial_later(remote, Vec::new(), 1);
    assert!(reactor.routes.len() == 0 && reactor.relay.deadlines().next().is_none());
    assert_eq!(reactor.relay.counters().snapshot().connections_redialed, 0);
    let waiting = vec![request(&reactor, remote, 0, 1)];
    reactor.redial_later(remote, waiting, 3);
    assert_eq!(reactor.relay.deadlines().next(), Some(reactor.relay.now() + redial_pause(3)));
    assert_eq!(reactor.relay.counters().snapshot().connections_redialed, 1);
}

/// Another host without permission, and an address where no process listens: the endpoint gets an error, and a
/// failed attempt is counted.
#[test]
fn open_link__that_cannot_be_is_answered() {
    let (mut reactor, mailbox) = reactor();
    let inbox = attach(&mailbox);
    reactor.run_commands();
    let answer = || match inbox.pop() {
        Some(FromNexus::LinkFailed { request, reason }) => (request, reason.status),
        other => panic!("{other:?}"),
    };
    let (far, near) = (([192, 0, 2, 1], 9).into(), ([127, 0, 0, 1], 9).into());
    reactor.open_link(request(&reactor, far, 0, 1));
    assert_eq!(answer(), (1, Status::FailedPrecondition));
    assert!(reactor.routes.len() == 0 && reactor.relay.connections.len() == 0);
    reactor.open_link(request(&reactor, near, 0, 2));
    let Some(id) = reactor.routes.connection(near) else { panic!("a pause") };
    reactor.on_dial_failed(id, &ErrorKind::ConnectionRefused.into());
    assert_eq!(answer(), (2, Status::Unavailable));
    assert!(reactor.routes.len() == 0 && reactor.relay.connections.len() == 0);
    let stats = reactor.relay.counters().snapshot();
    assert_eq!((stats.connections_dialed, stats.dials_failed, stats.links_failed), (1, 1, 2));
}
