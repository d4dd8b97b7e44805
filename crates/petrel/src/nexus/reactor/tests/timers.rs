//! Timeouts of connections.

use std::io::Write;

use petrel_proto::control::{PREFACE, Pong};

use super::super::*;
use crate::control::EndpointId;
use crate::nexus::due::tests::{HEARTBEAT, connection, open};
use crate::nexus::reactor::tests::connection as connection_of;
use crate::nexus::reactor::tests::{linked, open_connection, reactor, said};

/// A repeated seed must produce the same order.
#[test]
fn run_connection_timers__in_the_order_of_their_numbers_and_once_each() {
    let (mut reactor, _) = reactor();
    let all: Vec<_> = (1..=12).map(ConnectionId).collect();
    for id in &all {
        let connection = connection(open(), true, reactor.relay.now());
        reactor.relay.connections.add(*id, connection);
    }
    reactor.relay.begin_turn(reactor.relay.now() + HEARTBEAT);
    reactor.run_connection_timers();
    assert_eq!(*reactor.relay.connections.test_unsent(), all, "each has a PING to send");
    reactor.run_connection_timers();
    assert_eq!(*reactor.relay.connections.test_unsent(), all, "an answer is awaited first");
}

/// The peer may have to answer nothing else.
#[test]
fn ping__goes_out_behind_other_messages() {
    let (mut reactor, _) = reactor();
    let (id, _peer) = open_connection(&mut reactor, true);
    reactor.relay.send(id, Pong { nonce: 1 });
    reactor.relay.ping(id);
    let said = said(&mut reactor, id);
    assert!(matches!(said[..], [Message::Pong(_), Message::Ping(_)]), "{said:?}");
}

/// An endpoint whose calls are silent gets an answer about the server's life soon, and not with the next sign of life.
#[test]
fn check_peer__asks_at_once() {
    let (mut reactor, _inbox, (at, _peer), link) = linked(true);
    let now = reactor.relay.now();
    connection_of(&mut reactor, at).signs_mut().begin(now, HEARTBEAT);
    reactor.relay.ping(at);
    connection_of(&mut reactor, at).signs_mut().hear(now);
    let asks_at = |reactor: &mut Reactor| connection_of(reactor, at).signs().ask_at().unwrap();
    let kept_alive = asks_at(&mut reactor);
    reactor.relay.check_peer(EndpointId(0), link);
    let asked = asks_at(&mut reactor);
    assert!(asked <= now + HEARTBEAT && asked < kept_alive, "a heartbeat after the last question");
}

/// Bytes in the socket that are not read yet prove life; an empty socket does not.
#[test]
fn on_silence__reads_once_more() {
    for is_alive in [true, false] {
        let (mut reactor, _) = reactor();
        let (id, mut peer) = open_connection(&mut reactor, true);
        if is_alive {
            peer.write_all(&PREFACE[..3]).unwrap();
            let stream = reactor.relay.connections[&id].stream().tcp();
            while stream.peek(&mut [0]).is_err() {
                std::thread::yield_now();
            }
        }
        reactor.relay.ping(id);
        let silent_at = reactor.relay.connections[&id].silent_at().unwrap();
        reactor.relay.begin_turn(silent_at);
        reactor.run_connection_timers();
        let connection = &reactor.relay.connections[&id];
        assert_eq!(connection.is_closing(), !is_alive);
        assert_eq!(connection.signs().heard() == silent_at, is_alive);
        let dropped = reactor.relay.counters().snapshot().dropped_silent;
        assert_eq!(dropped, u64::from(!is_alive));
    }
}
