//! HELLO.

use std::time::Instant;

use mio::net::TcpStream;
use petrel_proto::control::{Message, PREFACE};

use super::super::*;
use crate::nexus::connection::Phase;
use crate::nexus::reactor::tests::{attach, open_connection, reactor};

type Reactor = super::super::Reactor<crate::nexus::net::MioNetwork>;

/// A connection made by this process, before HELLO, over a socket without traffic.
fn dialed(reactor: &mut Reactor, remote: SocketAddr) -> ConnectionId {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let stream = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
    let id = ConnectionId(1_000 + reactor.relay.connections.len());
    let connection = Connection::new(stream.into(), (remote, remote), true, Instant::now());
    reactor.relay.connections.add(id, connection);
    id
}

fn hello(versions: VersionRange) -> Hello {
    Hello {
        versions,
        incarnation: 9,
        heartbeat_ms: 70,
        agent: String::new(),
        host_identity: Some([3; 32]),
        rendezvous: Some(vec![1]),
    }
}

/// A connection whose peer has not said HELLO, and the peer's socket.
fn silent(reactor: &mut Reactor, is_opener: bool) -> (ConnectionId, std::net::TcpStream) {
    let (id, peer) = open_connection(reactor, is_opener);
    let now = reactor.relay.now();
    reactor.relay.connections.get_mut(id).unwrap().enter_test(Phase::AwaitingHello, now);
    if !is_opener {
        reactor.relay.connections.test_awaiting_hello().insert(id);
    }
    reactor.relay.connections.note_use(id);
    assert_eq!(reactor.check_tables(), Ok(()));
    (id, peer)
}

#[test]
fn send_hello__at_once_and_when_the_first_ping_is_due() {
    for is_opener in [false, true] {
        let (mut reactor, _) = reactor();
        let (id, _peer) = silent(&mut reactor, is_opener);
        reactor.relay.begin_turn(reactor.relay.now() + Duration::from_secs(5));
        reactor.send_hello(id);
        let heartbeat = reactor.relay.settings().heartbeat();
        let (now, connection) =
            (reactor.relay.now(), reactor.relay.connections.get_mut(id).unwrap());
        assert_eq!(connection.signs().ask_at(), Some(now + heartbeat));
        let mut expected = PREFACE.to_vec();
        Message::from(reactor.own_hello()).encode(&mut expected).unwrap();
        assert_eq!(reactor.relay.connections[&id].unsent_bytes(), expected.len());
        assert_eq!(*reactor.relay.connections.test_unsent(), [id]);
    }
}

#[test]
fn on_hello__opens_the_connection_and_sends_waiting_requests() {
    for is_opener in [false, true] {
        let (mut reactor, mailbox) = reactor();
        let _inbox = attach(&mailbox);
        reactor.run_commands();
        let (id, _peer) = silent(&mut reactor, is_opener);
        let now = reactor.relay.now();
        let connection = reactor.relay.connections.get_mut(id).unwrap();
        let requests = if is_opener { 2 } else { 0 };
        *connection.test_waiting() = (0..requests)
            .map(|request| OpenRequest::of_test(request, connection.remote(), now))
            .collect();
        reactor.relay.begin_turn(reactor.relay.now() + Duration::from_secs(5));
        reactor.on_hello(id, hello(VersionRange::OWN));
        let now = reactor.relay.now();
        let connection = reactor.relay.connections.get_mut(id).unwrap();
        let since = *connection.test_since();
        let peer = connection.peer().unwrap();
        assert_eq!((peer.incarnation(), peer.heartbeat()), (9, Duration::from_millis(70)));
        assert_eq!((peer.host_identity(), peer.rendezvous()), (Some([3; 32]), Some(&[1][..])));
        assert_eq!((since, connection.links().idle_since()), (now, now));
        assert!(connection.waiting().is_empty());
        assert_eq!(reactor.relay.links.len() as u64, requests);
        assert_eq!(reactor.check_tables(), Ok(()));
    }
}

#[test]
fn on_hello__of_another_version_is_the_end() {
    let (mut reactor, _) = reactor();
    let (id, _peer) = silent(&mut reactor, false);
    let (min, max) = (u16::MAX - 1, u16::MAX);
    reactor.on_hello(id, hello(VersionRange { min, max }));
    assert!(reactor.relay.connections[&id].is_closing());
    assert_eq!(reactor.relay.counters().snapshot().refused_version, 1);
    assert_eq!(reactor.check_tables(), Ok(()));
}

#[test]
fn note_incarnation__counts_restarts_of_peers_that_this_process_connects_to() {
    let (mut reactor, _) = reactor();
    let remote = SocketAddr::from(([127, 0, 0, 1], 7));
    let dialed = dialed(&mut reactor, remote);
    let (accepted, _peer) = open_connection(&mut reactor, false);
    for (id, incarnation, restarts) in
        [(dialed, 7, 0), (accepted, 7, 0), (dialed, 7, 0), (accepted, 8, 0), (dialed, 8, 1)]
    {
        reactor.note_incarnation(id, incarnation);
        assert_eq!(reactor.relay.counters().snapshot().peers_restarted, restarts);
    }
}
