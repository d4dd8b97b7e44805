//! Connections that peers make.

use std::io::{Read, Write};
use std::net::TcpStream;
use std::time::{Duration, Instant};

use petrel_proto::control::{PREFACE, StatsRequest};
use petrel_proto::limits::SLOTS_MAX;

use super::super::*;
use crate::nexus::limits::{SESSION_BYTES_PER_SOURCE_MAX, session_bytes};
use crate::nexus::link::Stage;
use crate::nexus::reactor::tests::{attach, hello_bytes, open_connection, reactor};
use crate::nexus::relay::sessions::tests::open as session_open;
use crate::nexus::usage::Exhausted;
use crate::slot_shares::SLOTS_MIN;

type Reactor = super::super::Reactor<MioNetwork>;

/// Accepts until peers have made `count` connections; the kernel may take a moment.
fn accept_until(reactor: &mut Reactor, count: usize) {
    let end = Instant::now() + Duration::from_secs(60);
    let accepted = |reactor: &Reactor| reactor.relay.counters().snapshot().connections_accepted;
    while accepted(reactor) < count as u64 {
        assert!(Instant::now() < end, "it accepts nobody");
        reactor.on_listener_ready();
        let before = accepted(reactor);
        reactor.accept_more();
        assert!(accepted(reactor) - before <= ACCEPTS_PER_TURN as u64, "too many in a turn");
        assert_eq!(reactor.check_tables(), Ok(()));
    }
    assert_eq!(accepted(reactor), count as u64);
}

/// A reactor that listens and has accepted `count` connections from silent peers.
fn with_silent(count: usize, adjust: impl FnOnce(&mut Reactor)) -> (Reactor, Vec<TcpStream>) {
    let (mut reactor, mailbox) = reactor();
    let _inbox = attach(&mailbox);
    reactor.run_commands();
    adjust(&mut reactor);
    let address = reactor.listen(([127, 0, 0, 1], 0).into()).unwrap();
    let peers = (1..=count).map(|accepted| {
        let peer = TcpStream::connect(address).unwrap();
        accept_until(&mut reactor, accepted);
        peer
    });
    let peers = peers.collect();
    (reactor, peers)
}

#[test]
fn accept_more__too_many_without_hello_evict_the_oldest() {
    for (silent, dropped) in [(2, 0), (3, 1), (5, 3)] {
        let (reactor, _peers) = with_silent(silent, |reactor| {
            reactor.relay.connections.test_capacity().awaiting_hello_max = 2
        });
        let first = ConnectionId(3);
        let left = (first.0 + dropped..first.0 + silent).map(ConnectionId);
        assert!(
            reactor.relay.connections.awaiting_hello().iter().copied().eq(left),
            "{:?}",
            reactor.relay.connections.awaiting_hello()
        );
        let stats = reactor.relay.counters().snapshot();
        assert_eq!(stats.dropped_ungreeted_full, dropped as u64);
        assert_eq!((stats.dropped_connections_full, stats.dropped_idle_full), (0, 0));
    }
}

/// A peer with TLS that was faster than this thread still learns by the preface that this process does without.
#[test]
fn accept_more__a_handshake_that_has_come_already_gets_the_preface() {
    let (mut reactor, _mailbox) = reactor();
    let address = reactor.listen(([127, 0, 0, 1], 0).into()).unwrap();
    let mut peer = TcpStream::connect(address).unwrap();
    peer.write_all(b"\x16\x03\x01\x00\x04\x01\x00\x00\x00").unwrap();
    accept_until(&mut reactor, 1);
    assert_eq!(reactor.relay.counters().snapshot().refused_strangers, 1);
    let mut answer = [0; PREFACE.len()];
    peer.read_exact(&mut answer).unwrap();
    assert_eq!(answer, PREFACE);
}

#[test]
fn accept_more__a_full_server_evicts_the_least_used_else_drops_the_newcomer() {
    let silent = |reactor: &Reactor| reactor.relay.counters().snapshot().dropped_ungreeted_full;
    let (reactor, _peers) =
        with_silent(3, |reactor| reactor.relay.connections.test_capacity().connections = 2);
    assert_eq!((reactor.relay.connections.accepted(), silent(&reactor)), (2, 1));

    // In turn: a peer after HELLO without a link, a peer with a link, a peer with a proposed session, and a peer with
    // a request.
    for (use_of_it, yields_as) in [(0, 0), (1, 1), (2, 1), (3, 2)] {
        let (reactor, _peers) = with_silent(1, |reactor| {
            reactor.relay.connections.test_capacity().connections = 1;
            let (id, _) = open_connection(reactor, false);
            if use_of_it > 0 {
                let stage = Stage::Up { is_opener: false, max_frame: 1_472 };
                reactor.add_test_link(id, 5, stage);
            }
            if use_of_it > 1 {
                reactor.relay.on_session_open(id, session_open(5, 1)).unwrap();
            }
            if use_of_it > 2 {
                reactor.relay.connections.note_used_by_request(id);
            }
        });
        let stats = reactor.relay.counters().snapshot();
        let dropped =
            [stats.dropped_ungreeted_full, stats.dropped_idle_full, stats.dropped_connections_full];
        assert_eq!(dropped, [0, 1, 2].map(|which| u64::from(which == yields_as)));
        assert_eq!(
            (
                reactor.relay.connections.accepted(),
                reactor.relay.connections.awaiting_hello().len()
            ),
            (1, usize::from(use_of_it < 3))
        );
    }
}

#[test]
fn accept_more__not_during_a_pause_and_again_after_it() {
    let (mut reactor, _) = reactor();
    let address = reactor.listen(([127, 0, 0, 1], 0).into()).unwrap();
    assert_eq!(reactor.poll_timeout(), None, "nothing is to be done");
    let _peer = TcpStream::connect(address).unwrap();
    reactor.on_listener_ready();
    assert_eq!(reactor.poll_timeout(), Some(Duration::ZERO));
    let end = reactor.relay.now() + ACCEPT_PAUSE;
    reactor.pause_accepting();
    assert_eq!(reactor.listener.as_ref().unwrap().paused_until(), Some(end));
    assert_eq!(reactor.relay.counters().snapshot().accept_errors, 1);
    for now in [reactor.relay.now(), end.checked_sub(Duration::from_nanos(1)).unwrap()] {
        reactor.relay.begin_turn(now);
        reactor.accept_more();
        assert!(reactor.listener.as_ref().unwrap().paused_until().is_some());
        assert!(reactor.relay.connections.accepted() == 0 && !reactor.has_more_to_accept());
        assert!(reactor.poll_timeout().is_some_and(|timeout| timeout <= ACCEPT_PAUSE));
    }
    reactor.relay.begin_turn(end);
    accept_until(&mut reactor, 1);
    assert!(reactor.listener.as_ref().unwrap().paused_until().is_none());
}

/// By the error, whether a connection is queued, and whether another may yield to it. Expected: whether accepting
/// goes on, whether it pauses, and whether a connection has yielded.
#[test]
fn on_not_accepted__by_error_queue_and_idle_connections() {
    let no_room = ErrorKind::Other;
    for (why, waits, has_idle, [has_more, pauses, yields]) in [
        (ErrorKind::WouldBlock, true, true, [false, false, false]),
        (ErrorKind::ConnectionAborted, true, true, [true, false, false]),
        (ErrorKind::ConnectionAborted, false, true, [true, false, false]),
        (no_room, false, true, [false, false, false]),
        (no_room, false, false, [false, false, false]),
        (no_room, true, true, [true, false, true]),
        (no_room, true, false, [true, true, false]),
    ] {
        let (mut reactor, _peers) = with_silent(usize::from(has_idle), |_| {});
        let address = match &reactor.listener {
            Some(listener) => listener.test_socket().local_addr().unwrap(),
            None => panic!("it listens"),
        };
        let _peer = waits.then(|| TcpStream::connect(address).unwrap());
        let is_there = |reactor: &Reactor| {
            reactor.net.has_waiting(reactor.listener.as_ref().unwrap().test_socket())
        };
        // The kernel may take a moment.
        let end = Instant::now() + Duration::from_secs(60);
        while is_there(&reactor) != waits {
            assert!(Instant::now() < end, "it never comes");
        }
        reactor.on_listener_ready();
        reactor.on_not_accepted(why);
        let listener = reactor.listener.as_ref().unwrap();
        let stats = reactor.relay.counters().snapshot();
        let found = [
            listener.test_has_more(),
            listener.paused_until().is_some(),
            stats.dropped_ungreeted_full == 1,
        ];
        assert_eq!(found, [has_more, pauses, yields], "{why:?} {waits} {has_idle}");
        assert_eq!(stats.accept_errors, u64::from(pauses));
    }
}

#[test]
fn accept_and_connect__set_nodelay() {
    let (mut reactor, _peers) = with_silent(1, |_| {});
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    reactor.connect(listener.local_addr().unwrap()).unwrap();
    let all = reactor.relay.connections.values();
    let waits_for_none: Vec<_> = all.map(|c| c.stream().tcp().nodelay().unwrap()).collect();
    assert_eq!(waits_for_none, [true, true]);
}

#[test]
fn accept_more__a_limited_number_in_each_turn() {
    let (mut reactor, _) = reactor();
    let address = reactor.listen(([127, 0, 0, 1], 0).into()).unwrap();
    let peers = 2 * ACCEPTS_PER_TURN + 8;
    let _peers: Vec<_> = (0..peers).map(|_| TcpStream::connect(address).unwrap()).collect();
    accept_until(&mut reactor, peers);
    assert_eq!(reactor.relay.connections.accepted(), peers);
}

/// Nothing received is left for the next turn: neither the last connection of a turn's share, nor a connection's HELLO.
#[test]
fn accept_more__reads_hellos_that_have_arrived() {
    let (mut reactor, _) = reactor();
    let address = reactor.listen(([127, 0, 0, 1], 0).into()).unwrap();
    let hello = hello_bytes();
    // The kernel may take a moment to queue them all.
    let has_taken_all = (0..100).any(|_| {
        let peers: Vec<_> = (0..ACCEPTS_PER_TURN)
            .map(|_| {
                let mut peer = TcpStream::connect(address).unwrap();
                peer.write_all(&hello).unwrap();
                peer
            })
            .collect();
        reactor.on_listener_ready();
        let before = reactor.relay.connections.accepted();
        reactor.accept_more();
        let is_all = reactor.relay.connections.accepted() - before == peers.len()
            && reactor.relay.connections.awaiting_hello().is_empty();
        while reactor.has_more_to_accept() {
            reactor.accept_more();
        }
        is_all
    });
    assert!(has_taken_all);
}

/// Returns true if there is room now. A connection that asks for counters yields last, even as the oldest.
#[test]
fn evict_idle__requesters_of_counters_come_last() {
    let (mut reactor, mailbox) = reactor();
    let _inbox = attach(&mailbox);
    reactor.run_commands();
    let (requester, _one) = open_connection(&mut reactor, false);
    reactor.on_message(requester, StatsRequest { request: 1 }.into()).unwrap();
    reactor.relay.begin_turn(reactor.relay.now() + Duration::from_secs(1));
    let (other, _other) = open_connection(&mut reactor, false);
    for (dropped, left) in [(other, 1), (requester, 0)] {
        assert!(reactor.evict_idle());
        assert!(!reactor.relay.connections.contains(dropped));
        assert_eq!(reactor.relay.connections.len(), left);
    }
    assert!(!reactor.evict_idle(), "there is nothing to drop");
    assert_eq!(reactor.relay.counters().snapshot().dropped_ungreeted_full, 2);
}

/// With a limit of two linked connections, per source or in all, the third takes the place of the one longest
/// without a session, else of the connection longest without a request, if any.
#[test]
fn admit_link__evicts_a_connection_without_session_or_request() {
    for (linked_max, linked_per_source_max, exhausted) in
        [(9, 2, Exhausted::Source("connections")), (2, 9, Exhausted::All("connections"))]
    {
        for (with_session, with_request) in [(0, 0), (1, 1), (2, 2), (1, 0), (2, 1), (2, 0)] {
            let (mut reactor, mailbox) = reactor();
            let _inbox = attach(&mailbox);
            reactor.run_commands();
            (
                reactor.relay.connections.test_capacity().linked_max,
                reactor.relay.connections.test_capacity().linked_per_source_max,
            ) = (linked_max, linked_per_source_max);
            let peers = [(); 3].map(|()| open_connection(&mut reactor, false));
            for (id, _) in &peers[..2] {
                assert_eq!(reactor.admit_link(*id), Ok(()));
                let stage = Stage::Up { is_opener: false, max_frame: 1_472 };
                reactor.add_test_link(*id, 5, stage);
            }
            for (id, _) in &peers[..with_session] {
                reactor.relay.on_session_open(*id, session_open(5, 1)).unwrap();
            }
            for (id, _) in &peers[..with_request] {
                reactor.relay.connections.note_used_by_request(*id);
            }
            // A linked connection is within the limit already.
            assert_eq!(reactor.admit_link(peers[0].0), Ok(()));
            assert!(reactor.relay.connections.closing().is_empty());
            let expected = match with_request {
                2 => Err(Reason::new(Status::ResourceExhausted, exhausted.text())),
                _ => Ok(()),
            };
            assert_eq!(reactor.admit_link(peers[2].0), expected);
            let which = if with_session < 2 { with_session } else { with_request };
            let yields = peers[..2].get(which).map(|(id, _)| *id);
            assert_eq!(reactor.relay.connections.closing().first().copied(), yields);
            let dropped = reactor.relay.counters().snapshot().dropped_idle_full;
            assert_eq!(dropped, u64::from(yields.is_some()));
            assert_eq!(reactor.check_tables(), Ok(()));
        }
    }
}

/// Two connections hold all memory for sessions of an address. A newcomer of the address gets a session in place of a connection
/// without a request, the oldest first, and no session in place of a client.
#[test]
fn make_room_for_session__ends_connections_without_a_request() {
    for with_request in 0..=2 {
        let (mut reactor, mailbox) = reactor();
        let _inbox = attach(&mailbox);
        reactor.run_commands();
        let stage = || Stage::Up { is_opener: false, max_frame: 1_472 };
        let peers = [(); 3].map(|()| {
            reactor.relay.begin_turn(reactor.relay.now() + Duration::from_secs(1));
            let (id, peer) = open_connection(&mut reactor, false);
            (id, reactor.add_test_link(id, 5, stage()), peer)
        });
        let newcomer = peers[2].0;
        let is_full = |reactor: &Reactor| {
            reactor.relay.connections.check_session(newcomer, SLOTS_MAX).is_err()
        };
        for slots in [SLOTS_MAX, 1] {
            for (id, link, _) in peers[..2].iter().cycle() {
                let (connections, least) = (&reactor.relay.connections, slots.min(SLOTS_MIN));
                let bytes = connections[id].links().session_bytes() + session_bytes(slots);
                let is_too_much = bytes > SESSION_BYTES_PER_SOURCE_MAX / 2;
                if is_full(&reactor) || is_too_much && slots > least {
                    break;
                }
                reactor.relay.add_session(*link, slots);
            }
        }
        assert!(is_full(&reactor));
        for (id, ..) in &peers[..with_request] {
            reactor.relay.connections.note_used_by_request(*id);
        }
        reactor.make_room_for_session(newcomer, SLOTS_MAX);
        let ended = peers[..2].get(with_request).map(|(id, ..)| *id);
        assert_eq!(
            reactor.relay.connections.closing().iter().copied().collect::<Vec<_>>(),
            Vec::from_iter(ended)
        );
        assert_eq!(is_full(&reactor), with_request == 2);
        assert_eq!(
            reactor.relay.counters().snapshot().dropped_idle_full,
            u64::from(with_request < 2)
        );
        assert_eq!(reactor.check_tables(), Ok(()));
    }
}
