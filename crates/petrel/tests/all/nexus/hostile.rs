//! Peers that break the protocol, by accident or on purpose. Honest peers must not notice.

use std::io::{ErrorKind, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::time::{Duration, Instant};

use petrel::unstable::control::ToNexus;
use petrel::{Nexus, Status};
use petrel_proto::control::{Goodbye, Message, Offer, PREFACE, Ping, SessionOpen, StatsReply};
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

use super::harness::*;

/// Opens a link and a session as an honest client.
fn check_honest(address: SocketAddr, server: &mut Endpoint) {
    // A many may delay it for a while.
    let nexus = Nexus::builder().connect_timeout(HANG).start().unwrap();
    let mut client = attach(&nexus, V4);
    let link = client.link(address, 0, BOTH).link;
    let server_link = server.up().link;
    client.port.post(ToNexus::OpenSession { link, open: proposal(1) });
    let (_, open) = server.proposed();
    let answer = Ok(acceptance(&open));
    server.port.post(ToNexus::AnswerSession { link: server_link, request: 1, answer });
    assert_eq!(client.opened().0, link);
    drop(client);
    assert_eq!(server.down().0, server_link);
}

/// Waits until the other side has closed.
fn wait_for_end(stream: &mut TcpStream) {
    stream.set_read_timeout(Some(HANG)).unwrap();
    let mut buffer = [0; 4_096];
    loop {
        match stream.read(&mut buffer) {
            Ok(0) => return,
            Err(error) if error.kind() == ErrorKind::ConnectionReset => return,
            other => drop(other.unwrap()),
        }
    }
}

#[test]
fn strangers__are_shown_the_door() {
    let (nexus, address) = server(V4);
    let mut server = attach(&nexus, V4);
    let visits: [&[u8]; 5] = [
        b"GET / HTTP/1.1\r\nHost: x\r\n\r\n",
        b"\x16\x03\x01\x02\0",
        b"PETREL\n",
        &[0; 99],
        b"P\0",
    ];
    for visit in visits {
        let mut stream = TcpStream::connect(address).unwrap();
        stream.write_all(visit).unwrap();
        wait_for_end(&mut stream);
    }
    assert_eq!(nexus.stats().refused_strangers, visits.len() as u64);
    check_honest(address, &mut server);
}

#[test]
fn broken_messages__are_answered_by_goodbye() {
    let (nexus, address) = server(V4);
    let mut server = attach(&nexus, V4);
    let messages: [&[u8]; 5] = [
        // PING without its nonce; with half of it; with a mandatory unknown record; a body of 4 GiB; a second HELLO.
        b"\0\0\0\0\x0A\0\0\0",
        b"\x08\0\0\0\x0A\0\0\0\x01\0\x04\0\0\0\0\0",
        b"\x10\0\0\0\x0A\0\0\0\x01\0\x08\0\0\0\0\0\0\0\0\0\x00\x80\0\0",
        b"\xFF\xFF\xFF\xFF\x0A\0\0\0",
        b"\0\0\0\0\x01\0\0\0",
    ];
    for message in messages {
        let mut peer = RawPeer::after_hello(address);
        peer.stream.write_all(message).unwrap();
        let status = peer.goodbye().status;
        assert!(matches!(status, Status::InvalidArgument | Status::Unimplemented), "{status}");
    }
    assert_eq!(nexus.stats().refused_malformed, messages.len() as u64 - 1);
    assert_eq!(nexus.stats().refused_version, 1);
    check_honest(address, &mut server);
}

#[test]
fn misplaced_messages__are_answered_by_goodbye() {
    let (nexus, address) = server(V4);
    let mut server = attach(&nexus, V4);
    let open = open_of(1, Offer::Udp { port: 9, max_frame: 1_472 });
    let accept = acceptance(&SessionOpen { link: 1, ..proposal(1) });
    let reply = StatsReply { request: 1, part: 0, parts: 1, json: String::new() };
    let misplaced: [Message; 3] = [open.into(), accept.into(), reply.into()];
    for message in misplaced {
        let mut peer = RawPeer::after_hello(address);
        peer.open_udp(1);
        let link = server.up().link;
        peer.send(message);
        assert_eq!(peer.goodbye().status, Status::InvalidArgument);
        assert_eq!(server.down().0, link);
    }
    assert_eq!(nexus.stats().refused_malformed, 3);
    check_honest(address, &mut server);
}

#[test]
fn late_messages__are_ignored() {
    let (nexus, address) = server(V4);
    let mut server = attach(&nexus, V4);
    let mut peer = RawPeer::after_hello(address);
    let open = SessionOpen { link: 9, ..proposal(1) };
    peer.send(open);
    peer.send(acceptance(&open));
    peer.send(petrel_proto::control::LinkClose { link: 9, status: Status::Ok, text: "".into() });
    peer.open_udp(1);
    server.up();
    assert_eq!(nexus.stats().late_messages, 3);
}

#[test]
fn goodbye__before_hello_is_taken() {
    let (nexus, address) = server(V4);
    let mut peer = RawPeer::connect(address);
    peer.stream.write_all(&PREFACE).unwrap();
    peer.send(Goodbye { status: Status::Ok, text: "never mind".into() });
    wait_for_end(&mut peer.stream);
    assert_eq!(nexus.stats().goodbyes_received, 1);
}

#[test]
fn silent_and_slow__are_dropped_in_time() {
    let (nexus, address) = server(V4);
    let mut server = attach(&nexus, V4);
    let mut silent = TcpStream::connect(address).unwrap();
    let mut half = TcpStream::connect(address).unwrap();
    half.write_all(&PREFACE).unwrap();
    half.write_all(b"\x40\0\0\0\x01").unwrap();
    // Says HELLO, begins a message, and stalls.
    let mut slow = RawPeer::after_hello(address);
    slow.stream.write_all(b"\xFF").unwrap();
    check_honest(address, &mut server);
    wait_for_end(&mut silent);
    wait_for_end(&mut half);
    assert_eq!(slow.goodbye().status, Status::Unavailable);
    assert_eq!(nexus.stats().dropped_hello_timeout, 2);
    assert_eq!(nexus.stats().dropped_slow_message, 1);
}

#[test]
fn slow_bytes__do_not_extend_the_time_for_hello() {
    let (nexus, address) = server(V4);
    let mut stream = TcpStream::connect(address).unwrap();
    stream.write_all(&PREFACE).unwrap();
    stream.write_all(b"\0\x04\0\0\x01\0\0\0").unwrap();
    let deadline = Instant::now() + HANG;
    // A byte at intervals, until the nexus drops the connection.
    while stream.write_all(&[0]).is_ok() {
        assert!(Instant::now() < deadline);
        std::thread::sleep(Duration::from_millis(20));
    }
    assert_eq!(nexus.stats().dropped_hello_timeout, 1);
}

#[test]
fn who_does_not_read__is_dropped() {
    let (nexus, address) = server(V4);
    let mut server = attach(&nexus, V4);
    let peer = RawPeer::after_hello(address);
    let mut pings = Vec::new();
    (0..500).for_each(|nonce| Message::from(Ping { nonce }).encode(&mut pings).unwrap());
    // Each PING is answered, and no answer is read.
    peer.stream.set_nonblocking(true).unwrap();
    let deadline = Instant::now() + HANG;
    loop {
        match (&peer.stream).write(&pings) {
            // A partly written message must continue at the cut.
            Ok(count) => pings.rotate_left(count),
            Err(error) if error.kind() == ErrorKind::WouldBlock => {
                std::thread::sleep(Duration::from_millis(1));
            }
            Err(_) => break,
        }
        assert!(Instant::now() < deadline, "{:?}", nexus.stats());
    }
    assert_eq!(nexus.stats().dropped_not_reading, 1);
    check_honest(address, &mut server);
}

/// Allows the sockets of both sides.
fn raise_descriptor_limit() {
    let limit = getrlimit(Resource::Nofile);
    setrlimit(Resource::Nofile, Rlimit { current: limit.maximum, ..limit }).unwrap();
}

#[test]
fn two_thousand_connections__do_not_keep_an_honest_one_out() {
    raise_descriptor_limit();
    let (nexus, address) = server(V4);
    let mut server = attach(&nexus, V4);
    let many: Vec<_> =
        (0..1_000).map(|_| TcpStream::connect(address)).collect::<Result<_, _>>().unwrap();
    let pusher = std::thread::spawn(move || {
        (0..1_000).map(|_| TcpStream::connect(address)).collect::<Result<Vec<_>, _>>().unwrap()
    });
    check_honest(address, &mut server);
    let many_late = pusher.join().unwrap();
    check_honest(address, &mut server);
    let stats = nexus.stats();
    assert!(stats.dropped_ungreeted_full + stats.dropped_hello_timeout >= 1_700, "{stats:?}");
    assert!(stats.connections_open <= 300, "{stats:?}");
    drop((many, many_late));
    wait_until(&nexus, |stats| stats.connections_open == 0);
}

#[test]
fn proposals_without_end__are_refused() {
    const LIMIT: u32 = 65_536;
    // Sessions of one slot: larger ones would hit the memory limit first.
    let builder = Nexus::builder().listen(V4.parse().unwrap()).connect_timeout(HANG);
    let nexus = builder.start().unwrap();
    let mut server = attach(&nexus, V4);
    let mut peer = RawPeer::after_hello(nexus.local_addr().unwrap());
    peer.open_udp(1);
    let link = server.up().link;
    (0..=LIMIT).for_each(|request| {
        peer.send(SessionOpen { link: 1, session: 0, request, slots: 1, ..proposal(0) });
    });
    // The server's event loop stands still. The first excess proposal is refused.
    let Some(Message::SessionRefuse(refuse)) = peer.receive() else { panic!("not refused") };
    assert_eq!((refuse.request, refuse.status), (LIMIT, Status::ResourceExhausted));
    // An answered proposal leaves room for one more.
    let (_, open) = server.proposed();
    let answer = Ok(acceptance(&open));
    server.port.post(ToNexus::AnswerSession { link, request: 0, answer });
    assert!(matches!(peer.receive(), Some(Message::SessionAccept(_))));
    peer.send(SessionOpen { link: 1, session: 0, request: LIMIT, slots: 1, ..proposal(0) });
    wait_until(&nexus, |stats| stats.sessions_proposed == u64::from(LIMIT) + 2);
    assert_eq!(nexus.stats().sessions_refused, 1);
}

#[test]
fn connections_max__is_the_limit_of_the_builder() {
    const MAX: u64 = 16;
    let listen = V4.parse().unwrap();
    let nexus = Nexus::builder().listen(listen).connections_max(MAX as usize).start().unwrap();
    let address = nexus.local_addr().unwrap();
    let many: Vec<_> = (0..2 * MAX).map(|_| RawPeer::after_hello(address)).collect();
    wait_until(&nexus, |stats| stats.dropped_ungreeted_full + stats.dropped_idle_full >= MAX);
    assert!(nexus.stats().connections_open <= MAX);
    drop(many);
}
