//! Bytes to messages, and messages to bytes.

use std::io::Write;
use std::time::{Duration, Instant};

use petrel_proto::Status;
use petrel_proto::control::{GroupJoin, Ping};

use super::super::*;
use crate::nexus::limits::{OUT_HARD_BYTES, OUT_SOFT_BYTES};
use crate::nexus::reactor::tests::{open_connection, reactor};

#[test]
fn send__has_a_connection_written_once_and_again_over_the_limit() {
    let (mut reactor, _) = reactor();
    let (id, _peer) = open_connection(&mut reactor, true);
    let mut send = |left_bytes: Option<usize>| {
        let connection = reactor.relay.connections.get_mut(id).unwrap();
        if let Some(left_bytes) = left_bytes {
            let unsent = connection.unsent_bytes();
            connection.queue_test_bytes(OUT_HARD_BYTES - left_bytes - unsent);
        }
        let before = connection.unsent_bytes();
        reactor.relay.send(id, Ping { nonce: 1 });
        let bytes = reactor.relay.connections[&id].unsent_bytes() - before;
        (bytes, std::mem::take(reactor.relay.connections.test_unsent()))
    };
    let (bytes, noted) = send(None);
    assert_eq!(noted, [id]);
    assert_eq!(send(None), (bytes, vec![]), "it is noted already, or waits for its socket");
    assert_eq!(send(Some(bytes)), (bytes, vec![]), "as much as may wait");
    assert_eq!(send(None), (bytes, vec![id]), "it is to be dropped");
}

#[test]
fn send__counts_messages_that_cannot_be_encoded() {
    let (mut reactor, _) = reactor();
    let (id, _peer) = open_connection(&mut reactor, true);
    let refuse = |request, text| GroupRefuse { link: 1, request, status: Status::Internal, text };
    reactor.relay.send(id, refuse(1, String::new()));
    assert_eq!(reactor.relay.counters().snapshot().unsendable_messages, 0);
    let join = GroupJoin {
        link: 1,
        request: 1,
        session: 1,
        token: 0,
        group: 1,
        key: 1,
        address: ([239, 1, 2, 3], 7).into(),
        packet_bytes: 0,
    };
    reactor.relay.send(id, join);
    assert_eq!(reactor.relay.counters().snapshot().unsendable_messages, 1);
}

#[test]
fn send_the_unsent__drops_a_peer_that_does_not_read() {
    // More than the kernel buffers, and little.
    for (bytes, is_dropped) in [(64 << 20, true), (OUT_HARD_BYTES / 16, false)] {
        let (mut reactor, _) = reactor();
        let (id, _peer) = open_connection(&mut reactor, true);
        reactor.relay.connections.get_mut(id).unwrap().queue_test_bytes(bytes);
        reactor.relay.send(id, Ping { nonce: 1 });
        reactor.relay.connections.test_unsent().push(id);
        reactor.send_the_unsent();
        assert_eq!(!reactor.relay.connections.contains(id), is_dropped);
        assert_eq!(reactor.relay.counters().snapshot().dropped_not_reading, u64::from(is_dropped));
        assert!(reactor.relay.connections.test_unsent().is_empty());
    }
}

#[test]
fn on_connection_event__reads_and_goes_on_to_write_where_there_is_room() {
    let (mut reactor, _) = reactor();
    let (id, peer) = open_connection(&mut reactor, false);
    for (is_writable, unsent) in [(false, vec![]), (true, vec![id])] {
        reactor.on_connection_event(id, Ready { token: id.0, is_writable, is_read_closed: false });
        assert_eq!(*reactor.relay.connections.test_unsent(), unsent);
    }
    drop(peer);
    let end = Instant::now() + Duration::from_secs(60);
    while reactor.relay.connections.contains(id) {
        assert!(Instant::now() < end, "the end is not read");
        reactor.on_connection_event(
            id,
            Ready { token: id.0, is_writable: false, is_read_closed: false },
        );
    }
    assert_eq!(reactor.relay.counters().snapshot().connections_broken, 1);
}

#[test]
fn read__after_a_short_read_looks_again_only_at_the_end_or_an_event() {
    let (mut reactor, _) = reactor();
    let (id, mut peer) = open_connection(&mut reactor, false);
    peer.write_all(&[0; 3]).unwrap();
    let connection = reactor.relay.connections.get_mut(id).unwrap();
    let mut buffer = [0; 8];
    assert_eq!(connection.receive(&mut buffer), Received::Bytes(3));
    peer.write_all(&[0; 4]).unwrap();
    assert_eq!(connection.receive(&mut buffer), Received::Nothing, "an event will come");
    connection.begin_reading();
    assert_eq!(connection.receive(&mut buffer), Received::Bytes(4));
    peer.write_all(&[0; 5]).unwrap();
    drop(peer);
    connection.note_ready(Ready { token: id.0, is_writable: false, is_read_closed: true });
    connection.begin_reading();
    assert_eq!(connection.receive(&mut buffer), Received::Bytes(5));
    let end = connection.receive(&mut buffer);
    assert!(matches!(end, Received::End(_)), "{end:?}");
}

#[test]
fn read__pauses_while_more_is_unsent_than_may_be() {
    let (mut reactor, _) = reactor();
    let (id, _peer) = open_connection(&mut reactor, false);
    for (more_bytes, is_paused) in [(OUT_SOFT_BYTES, false), (1, true)] {
        reactor.relay.connections.get_mut(id).unwrap().queue_test_bytes(more_bytes);
        reactor.read(id);
        assert_eq!(*reactor.relay.connections.get_mut(id).unwrap().test_is_paused(), is_paused);
    }
}
