//! Peers that are missing, end, restart, or fall silent.

use std::io::Write;
use std::net::TcpListener;
use std::time::Duration;

use petrel::endpoint::{AllowedTransports, Reason};
use petrel::{Nexus, Status};
use petrel_proto::control::{Goodbye, Hello, LinkAccept, LinkRefuse, PREFACE, VersionRange};

use super::harness::*;

/// An endpoint that asks for a link, and the listener at the other end.
fn asking(nexus: &Nexus, wants: AllowedTransports) -> (Endpoint, TcpListener) {
    let (listener, address) = listener();
    let mut client = attach(nexus, V4);
    client.ask(address, 0, wants);
    (client, listener)
}

/// An endpoint that asks for a link over UDP, and the peer after both have said HELLO.
fn asked(nexus: &Nexus) -> (Endpoint, RawPeer) {
    let (client, listener) = asking(nexus, UDP);
    (client, RawPeer::after_hello_by(&listener))
}

#[test]
fn dial__nobody_listens() {
    let (listener, address) = listener();
    drop(listener);
    let nexus = client();
    let mut client = attach(&nexus, V4);
    let reason = client.no_link(address, 0, BOTH);
    assert_eq!(reason.status, Status::Unavailable);
    assert!(reason.message.contains("is the server started"), "{reason:?}");
    assert_eq!(nexus.stats().dials_failed, 1);
}

#[test]
fn dial__peer_that_takes_connections_and_says_nothing() {
    let nexus = client();
    let (mut client, listener) = asking(&nexus, BOTH);
    let _silent = listener.accept().unwrap();
    let reason = client.failure();
    assert_eq!(reason.status, Status::Unavailable);
    assert!(reason.message.contains("no HELLO"), "{reason:?}");
    assert_eq!(nexus.stats().dropped_hello_timeout, 1);
}

#[test]
fn dial__what_answers_is_not_petrel() {
    let (mut client, listener) = asking(&client(), BOTH);
    let (mut stream, _) = listener.accept().unwrap();
    stream.write_all(b"HTTP/1.1 400 Bad Request\r\n\r\n").unwrap();
    let reason = client.failure();
    assert_eq!(reason.status, Status::Unavailable);
    assert!(reason.message.contains("does not speak Petrel"), "{reason:?}");
}

#[test]
fn dial__peer_of_a_later_version_only() {
    let nexus = client();
    let (mut client, listener) = asking(&nexus, BOTH);
    let mut peer = RawPeer::accept(&listener);
    peer.send_hello(Hello { versions: VersionRange { min: 2, max: 3 }, ..hello() });
    let reason = client.failure();
    assert_eq!(reason.status, Status::Unimplemented);
    assert!(reason.message.contains("2 to 3"), "{reason:?}");
    assert_eq!(peer.goodbye().status, Status::Unimplemented);
    assert_eq!(nexus.stats().refused_version, 1);
}

#[test]
fn dial__tries_again_when_the_connection_breaks_before_it_is_of_use() {
    // Even on a slow machine the third attempt must be in time.
    let nexus = Nexus::builder().connect_timeout(HANG).start().unwrap();
    let (mut client, listener) = asking(&nexus, UDP);
    drop(listener.accept().unwrap());
    let mut peer = RawPeer::after_hello_by(&listener);
    peer.link_open();
    drop(peer);
    let mut peer = RawPeer::after_hello_by(&listener);
    peer.grant_udp();
    client.up();
    assert_eq!(nexus.stats().connections_redialed, 2);
}

#[test]
fn dial__tries_again_when_the_peer_says_goodbye_in_place_of_an_answer() {
    // An ending process, and a process that closes an idle connection.
    for status in [Status::Unavailable, Status::Ok] {
        let nexus = Nexus::builder().connect_timeout(HANG).start().unwrap();
        let (mut client, listener) = asking(&nexus, UDP);
        let mut peer = RawPeer::after_hello_by(&listener);
        peer.link_open();
        peer.send(Goodbye { status, text: "the end".into() });
        drop(peer);
        wait_until(&nexus, |stats| stats.connections_redialed == 1);
        let mut peer = RawPeer::after_hello_by(&listener);
        peer.grant_udp();
        client.up();
        assert_eq!(nexus.stats().goodbyes_received, 1);
    }
}

#[test]
fn link__asked_for_of_a_peer_that_wants_no_more_of_us() {
    let (mut client, mut peer) = asked(&client());
    peer.link_open();
    peer.send(Goodbye { status: Status::InvalidArgument, text: "nonsense".into() });
    let reason = client.failure();
    assert_eq!(reason.status, Status::InvalidArgument);
    assert!(reason.message.contains("nonsense"), "{reason:?}");
}

#[test]
fn dial__gives_up_a_peer_that_always_hangs_up() {
    let (listener, address) = listener();
    std::thread::spawn(move || hang_up_on_all(&listener));
    let nexus = Nexus::builder().connect_timeout(Duration::from_millis(300)).start().unwrap();
    let mut client = attach(&nexus, V4);
    let reason = client.no_link(address, 0, BOTH);
    assert_eq!(reason.status, Status::Unavailable);
    assert!(reason.message.contains("broke"), "{reason:?}");
}

/// For the rest of the test.
fn hang_up_on_all(listener: &TcpListener) {
    while listener.accept().is_ok() {}
}

#[test]
fn link__refused_by_the_peer_in_its_words() {
    let (mut client, mut peer) = asked(&client());
    let link = peer.link_open().link;
    let text = "not today".to_owned();
    peer.send(LinkRefuse { link, status: Status::PermissionDenied, text: text.clone() });
    assert_eq!(client.failure(), Reason::new(Status::PermissionDenied, text));
}

#[test]
fn link__not_answered_by_the_peer() {
    let nexus = Nexus::builder().connect_timeout(Duration::from_millis(100)).start().unwrap();
    let (mut client, mut peer) = asked(&nexus);
    let open = peer.link_open();
    let reason = client.failure();
    assert_eq!(reason.status, Status::Unavailable);
    // The late answer has no effect.
    let offer = open.offers[0];
    peer.send(LinkAccept { offer, ..accept_udp(open.link) });
    wait_until(&nexus, |stats| stats.late_messages > 0);
    assert_eq!(nexus.stats().connections_open, 1);
}

#[test]
fn link__goes_down_with_the_peers_nexus_and_comes_back_with_the_next() {
    let (server_nexus, address) = server(V4);
    let server = attach(&server_nexus, V4);
    let client_nexus = client();
    let mut client = attach(&client_nexus, V4);
    let up = client.link(address, 0, BOTH);
    drop((server, server_nexus));
    // The endpoint's end or the process's may be noticed first.
    let (link, reason) = client.down();
    assert_eq!((link, reason.status), (up.link, Status::Unavailable));

    let restarted = Nexus::builder().listen(address).start().unwrap();
    let mut server = attach(&restarted, V4);
    let again = client.link(address, 0, BOTH);
    server.up();
    assert_ne!(again.link, up.link);
    assert_ne!(again.incarnation, up.incarnation);
    assert_eq!(client_nexus.stats().peers_restarted, 1);
}

#[test]
fn link__down_when_the_connection_breaks() {
    let nexus = client();
    let (mut client, mut peer) = asked(&nexus);
    peer.grant_udp();
    let up = client.up();
    drop(peer);
    let (link, reason) = client.down();
    assert_eq!((link, reason.status), (up.link, Status::Unavailable));
    assert!(reason.message.contains("process has ended"), "{reason:?}");
    assert_eq!(nexus.stats().connections_broken, 1);
}

#[test]
fn link__down_with_the_peers_goodbye() {
    let (mut client, mut peer) = asked(&client());
    peer.grant_udp();
    let up = client.up();
    peer.send(Goodbye { status: Status::Ok, text: "maintenance".into() });
    let (link, reason) = client.down();
    assert_eq!((link, reason.status), (up.link, Status::Unavailable));
    assert!(reason.message.contains("maintenance"), "{reason:?}");
}

#[test]
fn link__down_when_the_peer_falls_silent() {
    let nexus = client();
    let (mut client, listener) = asking(&nexus, UDP);
    let mut peer = RawPeer::accept(&listener);
    peer.stream.write_all(&PREFACE).unwrap();
    // The peer promises a heartbeat every 500 ms, and sends none.
    peer.send(Hello { heartbeat_ms: 500, ..hello() });
    assert!(matches!(peer.receive(), Some(petrel_proto::control::Message::Hello(_))));
    peer.grant_udp();
    let up = client.up();
    let (link, reason) = client.down();
    assert_eq!((link, reason.status), (up.link, Status::Unavailable));
    assert!(reason.message.contains("no sign of life"), "{reason:?}");
    assert_eq!(nexus.stats().dropped_silent, 1);
    assert_eq!(peer.goodbye().status, Status::Unavailable);
}

#[test]
fn link__stays_up_while_both_give_signs_of_life() {
    let heartbeat = Duration::from_millis(400);
    let listen = V4.parse().unwrap();
    let server_nexus = Nexus::builder().heartbeat(heartbeat).listen(listen).start().unwrap();
    let client_nexus = Nexus::builder().heartbeat(heartbeat).start().unwrap();
    let mut server = attach(&server_nexus, V4);
    let mut client = attach(&client_nexus, V4);
    client.link(server_nexus.local_addr().unwrap(), 0, UDP);
    server.up();
    // Longer than the silence that would end the link.
    std::thread::sleep(5 * heartbeat);
    assert!(client.is_quiet() && server.is_quiet());
    assert_eq!(client_nexus.stats().links_up, 1);
}
