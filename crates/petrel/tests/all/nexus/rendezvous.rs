//! Exchange of shared memory with faulty peers.

use std::io::Read;
use std::net::TcpListener;
use std::os::fd::AsFd;
use std::os::unix::net::UnixStream;
use std::time::{Duration, Instant};

use petrel::{Nexus, Status};
use petrel_proto::control::{Hello, LinkAccept, LinkOpen, Message, Offer};
use petrel_transport::host::HostLink;
use petrel_transport::shm::{
    NAME_BYTES, PeerStream, Rendezvous, Segment, ShmConfig, connect, host_identity, send_with_fds,
};

use super::harness::*;

const FRAME: u32 = 8_192;
const TICKET: [u8; 16] = [9; 16];

/// A HELLO that offers shared memory.
fn local_hello(rendezvous: &[u8]) -> Hello {
    let host_identity = Some(host_identity().unwrap());
    Hello { host_identity, rendezvous: Some(rendezvous.to_vec()), ..hello() }
}

/// Accepts one connection at the peer's rendezvous.
fn accept_one(rendezvous: &mut Rendezvous) -> PeerStream {
    let deadline = Instant::now() + HANG;
    loop {
        match rendezvous.accept().unwrap() {
            Some(stream) => return stream,
            None => std::thread::sleep(Duration::from_millis(1)),
        }
        assert!(Instant::now() < deadline, "nobody came");
    }
}

/// Returns a peer with this rendezvous, and the request for a link that the peer has promised to meet for.
fn promised(listener: &TcpListener, name: &[u8; NAME_BYTES]) -> (RawPeer, LinkOpen) {
    let mut peer = RawPeer::accept(listener);
    peer.send_hello(local_hello(name));
    let open = peer.link_open();
    let offer = Offer::Shm { max_frame: FRAME };
    peer.send(LinkAccept { offer, ticket: Some(TICKET), ..accept_udp(open.link) });
    (peer, open)
}

/// Requests a link over shared memory to a peer whose rendezvous is `name`, and expects UDP in the end.
fn falls_back(name: &[u8; NAME_BYTES], connect: impl FnOnce() -> Option<PeerStream>) {
    let (listener, address) = listener();
    let nexus = Nexus::builder().connect_timeout(Duration::from_millis(500)).start().unwrap();
    let mut client = attach(&nexus, V4);
    client.ask(address, 3, BOTH);
    let (mut peer, open) = promised(&listener, name);
    assert!(matches!(open.offers[..], [Offer::Shm { .. }, Offer::Udp { .. }]), "{open:?}");
    let _connected = connect();
    let Some(Message::LinkClose(close)) = peer.receive() else { panic!("not LINK_CLOSE") };
    assert_eq!((close.link, close.status), (open.link, Status::Aborted));
    let again = peer.grant_udp();
    assert!(matches!(again.offers[..], [Offer::Udp { .. }]), "{again:?}");
    assert!(matches!(client.up().transport, HostLink::Far(_)));
    assert_eq!(nexus.stats().shm_fallbacks, 1);
}

/// The peer is not at the rendezvous, refuses there, does not answer there, and answers nonsense.
#[test]
fn opener__falls_back_to_udp() {
    falls_back(&Rendezvous::bind().unwrap().name(), || None);
    let refuses: fn(&mut Rendezvous) -> Option<PeerStream> = |rendezvous| {
        drop(accept_one(rendezvous));
        None
    };
    let answers_nonsense: fn(&mut Rendezvous) -> Option<PeerStream> = |rendezvous| {
        let stream = accept_one(rendezvous);
        send_with_fds(&stream, &[2], &[]).unwrap();
        Some(stream)
    };
    for meet in [refuses, |rendezvous| Some(accept_one(rendezvous)), answers_nonsense] {
        let mut rendezvous = Rendezvous::bind().unwrap();
        falls_back(&rendezvous.name(), || meet(&mut rendezvous));
    }
}

/// The process may have ended before it received the request, and been replaced.
#[test]
fn opener__asks_again_when_the_peer_ends_before_the_rendezvous() {
    let (listener, address) = listener();
    let nexus = Nexus::builder().connect_timeout(HANG).start().unwrap();
    let mut client = attach(&nexus, V4);
    client.ask(address, 3, BOTH);
    let mut rendezvous = Rendezvous::bind().unwrap();
    let (peer, _) = promised(&listener, &rendezvous.name());
    // The opener waits for an answer that does not come.
    let mut met = accept_one(&mut rendezvous);
    drop(peer);
    wait_until(&nexus, |stats| stats.connections_redialed == 1);
    let mut ticket = [0; TICKET.len()];
    met.set_nonblocking(false).unwrap();
    met.read_exact(&mut ticket).unwrap();
    assert!(ticket == TICKET && at_end(&mut met));
    RawPeer::after_hello_by(&listener).grant_udp();
    assert!(matches!(client.up().transport, HostLink::Far(_)));
}

#[test]
fn opener__does_not_offer_shared_memory_to_another_host() {
    let (listener, address) = listener();
    let mut client = attach(&client(), V4);
    client.ask(address, 3, BOTH);
    let mut peer = RawPeer::accept(&listener);
    peer.send_hello(Hello { host_identity: Some([7; 32]), ..local_hello(&TICKET) });
    assert!(matches!(peer.link_open().offers[..], [Offer::Udp { .. }]));
}

/// A peer that requested a link over shared memory, and got a ticket.
fn with_ticket(nexus: &Nexus) -> (RawPeer, Vec<u8>, [u8; 16]) {
    let mut peer = RawPeer::connect(nexus.local_addr().unwrap());
    let hello = peer.send_hello(local_hello(&TICKET));
    peer.send(open_of(4, Offer::Shm { max_frame: FRAME }));
    match peer.receive() {
        Some(Message::LinkAccept(LinkAccept { ticket: Some(ticket), .. })) => {
            (peer, hello.rendezvous.unwrap(), ticket)
        }
        other => panic!("no ticket: {other:?}"),
    }
}

fn rings(max_frame_bytes: usize) -> Segment {
    Segment::create(&ShmConfig { max_frame_bytes, ..shm_config() }).unwrap()
}

fn expect_link_close(peer: &mut RawPeer) -> String {
    match peer.receive() {
        Some(Message::LinkClose(close)) => close.text,
        other => panic!("not LINK_CLOSE: {other:?}"),
    }
}

fn at_end(stream: &mut UnixStream) -> bool {
    stream.set_nonblocking(false).unwrap();
    stream.set_read_timeout(Some(HANG)).unwrap();
    matches!(stream.read(&mut [0]), Ok(0) | Err(_))
}

#[test]
fn acceptor__takes_rings_from_who_knows_the_ticket() {
    let (nexus, _) = server(V4);
    let mut server = attach(&nexus, V4);
    let (_peer, name, ticket) = with_ticket(&nexus);
    let segment = rings(FRAME as usize);
    let mut stream = connect(&name).unwrap();
    // In two pieces, the descriptors with the first.
    send_with_fds(&stream, &ticket[..5], &[segment.as_fd()]).unwrap();
    send_with_fds(&stream, &ticket[5..], &[]).unwrap();
    assert!(matches!(server.up().transport, HostLink::Near(_)));
    stream.set_nonblocking(false).unwrap();
    let mut answer = [0];
    stream.read_exact(&mut answer).unwrap();
    assert_eq!(answer, [1]);
}

#[test]
fn acceptor__drops_who_does_not_know_the_ticket() {
    let (nexus, _) = server(V4);
    let mut server = attach(&nexus, V4);
    let (_peer, name, ticket) = with_ticket(&nexus);
    let segment = rings(FRAME as usize);
    let mut invalid = connect(&name).unwrap();
    send_with_fds(&invalid, &[3; 16], &[segment.as_fd()]).unwrap();
    assert!(at_end(&mut invalid));
    assert_eq!(nexus.stats().rendezvous_dropped, 1);
    // A peer that hangs up early is dropped too, without effect on further peers.
    drop(connect(&name).unwrap());
    let stream = connect(&name).unwrap();
    send_with_fds(&stream, &ticket, &[segment.as_fd()]).unwrap();
    assert!(matches!(server.up().transport, HostLink::Near(_)));
    wait_until(&nexus, |stats| stats.rendezvous_dropped == 2);
}

#[test]
fn acceptor__refuses_rings_that_it_cannot_use() {
    let (nexus, _) = server(V4);
    let _server = attach(&nexus, V4);
    let small = rings(4_096);
    let (tcp, _) = listener();
    let cases = [
        (vec![small.as_fd()], "frames of 4096 bytes"),
        (vec![], "no memory came"),
        (vec![tcp.as_fd()], "not a memory file"),
    ];
    for (fds, expected) in cases {
        let (mut peer, name, ticket) = with_ticket(&nexus);
        let mut stream = connect(&name).unwrap();
        send_with_fds(&stream, &ticket, &fds).unwrap();
        let text = expect_link_close(&mut peer);
        assert!(text.contains(expected), "{text}");
        assert!(at_end(&mut stream));
    }
    assert_eq!(nexus.stats().links_opened, 0);
}

/// The last close of a TCP socket with `SO_LINGER` waits for its data.
#[test]
fn acceptor__is_not_held_up_by_a_descriptor_whose_close_blocks() {
    let (nexus, address) = server(V4);
    let _server = attach(&nexus, V4);
    let mut closers = Vec::new();
    for sent_as_memory in [true, false] {
        let (sink, sink_address) = listener();
        let mut stream = std::net::TcpStream::connect(sink_address).unwrap();
        rustix::net::sockopt::set_socket_linger(&stream, Some(2 * HANG)).unwrap();
        stream.set_nonblocking(true).unwrap();
        while std::io::Write::write(&mut stream, &[0; 1 << 16]).is_ok() {}
        stream.set_nonblocking(false).unwrap();
        let (mut peer, name, ticket) = with_ticket(&nexus);
        let stream_to_peer = connect(&name).unwrap();
        match sent_as_memory {
            true => {
                send_with_fds(&stream_to_peer, &ticket, &[stream.as_fd()]).unwrap();
                closers.push(close_aside(stream));
                assert!(expect_link_close(&mut peer).contains("not a memory file"));
            }
            // More descriptors than belong to a ticket.
            false => {
                send_with_fds(&stream_to_peer, &ticket[..15], &[]).unwrap();
                send_with_fds(&stream_to_peer, &[0], &[stream.as_fd(), stream.as_fd()]).unwrap();
                closers.push(close_aside(stream));
                wait_until(&nexus, |stats| stats.rendezvous_dropped == 1);
            }
        }
        RawPeer::after_hello(address);
        // Resets the connection, and so ends the last close.
        drop(sink);
        closers.drain(..).for_each(|closer| closer.join().unwrap());
    }
}

/// Closes a stream on a separate thread: the test's close may be the last one, and wait.
fn close_aside(stream: std::net::TcpStream) -> std::thread::JoinHandle<()> {
    std::thread::spawn(move || drop(stream))
}

#[test]
fn acceptor__gives_up_a_peer_that_does_not_come() {
    let timeout = Duration::from_millis(200);
    let builder = Nexus::builder().listen(V4.parse().unwrap()).connect_timeout(timeout);
    let nexus = builder.start().unwrap();
    let _server = attach(&nexus, V4);
    let (mut peer, name, ticket) = with_ticket(&nexus);
    // Half a ticket only.
    let mut stream = connect(&name).unwrap();
    send_with_fds(&stream, &ticket[..8], &[]).unwrap();
    assert!(expect_link_close(&mut peer).contains("no answer"));
    assert!(at_end(&mut stream));
    assert_eq!(nexus.stats().rendezvous_dropped, 1);
}
