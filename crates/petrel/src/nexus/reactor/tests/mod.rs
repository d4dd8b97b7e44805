//! Turns of a reactor without a thread.

mod inboxes;
mod stream;
mod timers;

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::time::Instant;

use petrel_proto::Status;
use petrel_proto::control::PathPorts;
use petrel_proto::control::{
    Decoder, Hello, LinkOpen, Message, PREFACE, SessionAccept, SessionOpen, VersionRange,
};
use petrel_transport::udp::Mtu;

use super::*;
use crate::control::{AllowedTransports, FromNexus, LinkId, Reason, ToNexus};
use crate::nexus::attach::{Attach, UdpAttach};
use crate::nexus::connection::{Connection, Idle, Peer, Phase};
use crate::nexus::goodbye::GoodbyeMode;
use crate::nexus::limits::session_bytes;
use crate::nexus::link::Stage;
use crate::nexus::mailbox::{Command, Inbox};
use crate::nexus::media::media_of;
use crate::nexus::relay::sessions::tests as sessions;
use crate::nexus::signs::Signs;
use crate::nexus::usage::Usage;

/// A reactor without a thread; a test drives it step by step.
pub(in crate::nexus) fn reactor() -> (Reactor, Arc<Mailbox>) {
    let (net, waker) = MioNetwork::new(MAILBOX).unwrap();
    let mailbox = Arc::new(Mailbox::new(waker));
    let transports = AllowedTransports::UDP;
    let second = Duration::from_secs(1);
    let settings = Settings::new(false, transports, (second, second), 1);
    let reactor = Reactor::new(settings, net, mailbox.clone(), Arc::new(Counters::default()));
    (reactor, mailbox)
}

/// Adds a connection whose peer said HELLO and is silent from then on, and returns the peer's socket.
pub(in crate::nexus) fn open_connection(
    reactor: &mut Reactor,
    is_opener: bool,
) -> (ConnectionId, TcpStream) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let remote = listener.local_addr().unwrap();
    let stream = TcpStream::connect(remote).unwrap();
    stream.set_nonblocking(true).unwrap();
    let local = stream.local_addr().unwrap();
    let stream = mio::net::TcpStream::from_std(stream);
    let mut connection =
        Connection::new(stream.into(), (local, remote), is_opener, reactor.relay.now());
    let heartbeat = Duration::from_secs(1);
    connection.enter_test(Phase::Open(Peer::of_test(7, heartbeat)), reactor.relay.now());
    let id = reactor.add_connection(connection).unwrap();
    if !is_opener {
        reactor.relay.connections.count_test_accepted();
    }
    reactor.relay.connections.note_use(id);
    (id, listener.accept().unwrap().0)
}

/// A reactor with endpoint 0, its inbox, a connection and the peer's socket, and a link over UDP that is up.
#[allow(clippy::type_complexity, reason = "tests take it apart at once")]
pub(in crate::nexus) fn linked(
    is_opener: bool,
) -> (Reactor, Arc<Inbox>, (ConnectionId, TcpStream), LinkId) {
    linked_at(is_opener, Stage::Up { is_opener, max_frame: 1_472 })
}

/// The same with a link, number 5, at another stage.
#[allow(clippy::type_complexity, reason = "tests take it apart at once")]
pub(in crate::nexus) fn linked_at(
    is_opener: bool,
    stage: Stage,
) -> (Reactor, Arc<Inbox>, (ConnectionId, TcpStream), LinkId) {
    let (mut reactor, mailbox) = reactor();
    let inbox = attach(&mailbox);
    reactor.run_commands();
    let (at, peer) = open_connection(&mut reactor, is_opener);
    let link = reactor.add_test_link(at, 5, stage);
    (reactor, inbox, (at, peer), link)
}

/// Returns a connection of the reactor.
pub(in crate::nexus) fn connection(reactor: &mut Reactor, id: ConnectionId) -> &mut Connection {
    reactor.relay.connections.get_mut(id).unwrap()
}

/// Takes the messages queued on a connection after its HELLO.
pub(in crate::nexus) fn said(reactor: &mut Reactor, id: ConnectionId) -> Vec<Message> {
    let bytes =
        [hello_bytes(), reactor.relay.connections.get_mut(id).unwrap().take_unsent()].concat();
    let (mut bytes, mut decoder) = (bytes.as_slice(), Decoder::new());
    std::iter::from_fn(|| decoder.decode(&mut bytes).unwrap()).skip(1).collect()
}

/// Takes a turn without waiting, and returns the number of events.
fn turn_at_once(reactor: &mut Reactor) -> usize {
    let mut events = reactor.new_events();
    reactor.net.poll(&mut events, Some(Duration::ZERO)).unwrap();
    reactor.handle(&events);
    events.iter().count()
}

fn turns_until(reactor: &mut Reactor, is_so: impl Fn(&Reactor) -> bool) {
    let end = Instant::now() + Duration::from_secs(60);
    while !is_so(reactor) {
        assert!(Instant::now() < end, "it never comes true");
        turn_at_once(reactor);
    }
}

/// The preface and a HELLO.
pub(in crate::nexus) fn hello_bytes() -> Vec<u8> {
    let hello = Hello {
        versions: VersionRange::OWN,
        incarnation: 7,
        heartbeat_ms: 1_000,
        agent: String::new(),
        host_identity: None,
        rendezvous: None,
    };
    let mut bytes = PREFACE.to_vec();
    Message::from(hello).encode(&mut bytes).unwrap();
    bytes
}

/// LINK_OPEN for this endpoint, with a link number equal to the endpoint's.
fn link_open(to_endpoint: u16) -> Message {
    LinkOpen { to_endpoint, ..links::tests::link_open(to_endpoint.into()) }.into()
}

/// A peer that says HELLO, and asks for links to these endpoints.
fn guest(address: SocketAddr, endpoints: &[u16]) -> TcpStream {
    let mut peer = TcpStream::connect(address).unwrap();
    let mut bytes = hello_bytes();
    endpoints.iter().for_each(|to| link_open(*to).encode(&mut bytes).unwrap());
    peer.write_all(&bytes).unwrap();
    peer
}

/// Adds an endpoint with number 0.
pub(in crate::nexus) fn attach(mailbox: &Mailbox) -> Arc<Inbox> {
    attach_as(mailbox, EndpointId(0))
}

fn attach_as(mailbox: &Mailbox, id: EndpointId) -> Arc<Inbox> {
    let waker = petrel_transport::wake::Waker::new().unwrap();
    let inbox = Arc::new(Inbox::new(waker.clone()));
    let (local, mtu) = (([127, 0, 0, 1], 9).into(), Mtu::default());
    let udp = Some(UdpAttach {
        local,
        mtu,
        reads_marks: false,
        heeds_marks: false,
        further_ports: PathPorts::NONE,
        uses_paths: false,
    });
    let attach = Attach { id: None, udp, shm: None, stream: false, waker };
    let media = media_of(&attach, Vec::new());
    mailbox.post(Command::Attach(id, media, inbox.clone())).unwrap();
    inbox
}

#[test]
fn turn__an_endpoint_that_comes_gets_no_link_of_a_connection_that_closes() {
    let (mut reactor, mailbox) = reactor();
    let address = reactor.listen(([127, 0, 0, 1], 0).into()).unwrap();
    let mut peer = guest(address, &[0]);
    turns_until(&mut reactor, |reactor| reactor.early_links.len() > 0);
    // No message is that long.
    peer.write_all(&[0xFF; 8]).unwrap();
    turns_until(&mut reactor, |reactor| !reactor.relay.connections.closing().is_empty());
    let inbox = attach(&mailbox);
    turn_at_once(&mut reactor);
    assert!(inbox.pop().is_none(), "the link would never go down");
    assert!((reactor.relay.links.len() == 0) && reactor.early_links.len() == 0);
}

#[test]
fn turn__endpoints_come_after_the_links_to_them_in_any_order() {
    let (mut reactor, mailbox) = reactor();
    let address = reactor.listen(([127, 0, 0, 1], 0).into()).unwrap();
    let _peer = guest(address, &[0, 1, 2]);
    turns_until(&mut reactor, |reactor| reactor.early_links.len() == 3);
    for (endpoint, left) in [(1, 2), (0, 1), (2, 0)] {
        let inbox = attach_as(&mailbox, EndpointId(endpoint));
        turn_at_once(&mut reactor);
        assert!(matches!(inbox.pop(), Some(FromNexus::LinkUp { .. })), "endpoint {endpoint}");
        assert_eq!((reactor.early_links.len(), reactor.relay.links.len()), (left, 3 - left));
    }
}

#[test]
fn turn__a_connection_that_yields_to_an_early_link_gets_none_itself() {
    let (mut reactor, mailbox) = reactor();
    (
        reactor.relay.connections.test_capacity().linked_max,
        reactor.relay.connections.test_capacity().linked_per_source_max,
    ) = (1, 1);
    let address = reactor.listen(([127, 0, 0, 1], 0).into()).unwrap();
    let _one = attach_as(&mailbox, EndpointId(1));
    let _newcomer = guest(address, &[0]);
    turns_until(&mut reactor, |reactor| reactor.early_links.len() == 1);
    // This peer is the only linked connection allowed, also waits for endpoint 0, and has no session.
    let yields = guest(address, &[1, 0]);
    turns_until(&mut reactor, |reactor| reactor.early_links.len() == 2);
    assert_eq!(reactor.relay.links.len(), 1);
    let inbox = attach(&mailbox);
    turn_at_once(&mut reactor);
    assert!(matches!(inbox.pop(), Some(FromNexus::LinkUp { .. })));
    assert!(inbox.pop().is_none(), "the second link would never go down");
    assert_eq!((reactor.relay.links.len(), reactor.relay.connections.closing().len()), (1, 1));
    drop(yields);
    turns_until(&mut reactor, |reactor| reactor.relay.connections.closing().is_empty());
    assert!(
        reactor.relay.links.iter().all(|(_, l)| reactor.relay.connections.contains(l.connection()))
    );
}

#[test]
fn say_goodbye_to_all__is_on_its_way_before_the_sockets_close() {
    let (mut reactor, _) = reactor();
    let address = reactor.listen(([127, 0, 0, 1], 0).into()).unwrap();
    let mut peer = guest(address, &[]);
    turns_until(&mut reactor, |reactor| reactor.relay.connections.values().any(|c| c.is_open()));
    reactor.say_goodbye_to_all();
    drop(reactor);
    let mut said = Vec::new();
    peer.read_to_end(&mut said).unwrap();
    let (mut said, mut decoder) = (said.as_slice(), Decoder::new());
    let mut messages = std::iter::from_fn(|| decoder.decode(&mut said).unwrap());
    let last = messages.by_ref().last();
    let Some(Message::Goodbye(goodbye)) = last else { panic!("no GOODBYE: {last:?}") };
    assert_eq!(goodbye.status, Status::Unavailable);
}

#[test]
fn turn__the_next_endpoint_of_a_number_hears_no_answer_to_the_former() {
    let (mut reactor, mailbox) = reactor();
    let _former = attach(&mailbox);
    // A server that accepts connections and sends nothing.
    let mute = TcpListener::bind("127.0.0.1:0").unwrap();
    let transports = AllowedTransports::UDP;
    let remote = mute.local_addr().unwrap();
    let remote_endpoint = EndpointId(0);
    let reverse = false;
    let ask = ToNexus::OpenLink { request: 0, remote, remote_endpoint, transports, reverse };
    mailbox.post(Command::Post(EndpointId(0), ask)).unwrap();
    turns_until(&mut reactor, |reactor| reactor.relay.connections.len() > 0);
    mailbox.post(Command::Post(EndpointId(0), ToNexus::Gone)).unwrap();
    let next = attach(&mailbox);
    turn_at_once(&mut reactor);
    assert!(reactor.relay.connections.values().all(|connection| connection.waiting().is_empty()));
    // The answer would be that the connection broke.
    let id = *reactor.relay.connections.in_order().first().unwrap();
    reactor.on_dial_failed(id, &io::ErrorKind::ConnectionRefused.into());
    assert!(next.pop().is_none(), "an answer to a question of the former endpoint's");
}

/// A reactor that closes a connection for a protocol violation, and the peer's socket.
fn with_a_connection_that_closes() -> (Reactor, TcpStream) {
    let (mut reactor, _) = reactor();
    let address = reactor.listen(([127, 0, 0, 1], 0).into()).unwrap();
    let mut peer = TcpStream::connect(address).unwrap();
    peer.write_all(&PREFACE).unwrap();
    // No message is that long.
    peer.write_all(&[0xFF; 8]).unwrap();
    turns_until(&mut reactor, |reactor| !reactor.relay.connections.closing().is_empty());
    (reactor, peer)
}

#[test]
fn turn__a_connection_that_waits_for_its_peers_end_causes_no_events() {
    let (mut reactor, mut peer) = with_a_connection_that_closes();
    // The peer gets GOODBYE and the end, and does not close its own direction.
    peer.read_to_end(&mut Vec::new()).unwrap();
    assert!((0..16).any(|_| turn_at_once(&mut reactor) == 0), "each event causes another");
    assert_eq!(reactor.relay.connections.closing().len(), 1);
}

#[test]
fn turn__a_peer_is_not_silent_while_this_thread_does_not_run() {
    let (mut reactor, _) = reactor();
    let address = reactor.listen(([127, 0, 0, 1], 0).into()).unwrap();
    let _peer = guest(address, &[]);
    turns_until(&mut reactor, |reactor| reactor.relay.connections.values().any(|c| c.is_open()));
    // Longer than a peer may be silent, whose heartbeat is a second.
    let before = Instant::now().checked_sub(Duration::from_secs(200)).unwrap();
    for is_looked_at in [false, true] {
        let connections = reactor.relay.connections.values_mut();
        connections.for_each(|connection| *connection.test_signs() = Signs::new(before));
        let id = reactor.relay.connections.in_order()[0];
        let at = if is_looked_at { Instant::now() } else { before };
        reactor.relay.connections.set_test_timer(id, at);
        turn_at_once(&mut reactor);
        let dropped = reactor.relay.counters().snapshot().dropped_silent;
        assert_eq!(dropped, u64::from(is_looked_at));
    }
}

/// The expected end of a closing connection is not reported, and leaves nothing to a later tick.
#[test]
fn turn__the_peers_end_is_the_end_of_a_connection_that_closes() {
    let (mut reactor, mut peer) = with_a_connection_that_closes();
    let later = reactor.relay.now() + Duration::from_secs(3_600);
    let id = reactor.relay.connections.in_order()[0];
    reactor.relay.connections.set_test_timer(id, later);
    peer.read_to_end(&mut Vec::new()).unwrap();
    drop(peer);
    let broken = |reactor: &Reactor| reactor.relay.counters().snapshot().connections_broken;
    turns_until(&mut reactor, |reactor| {
        reactor.relay.connections.len() == 0 || broken(reactor) > 0
    });
    assert_eq!(
        (reactor.relay.connections.len(), reactor.relay.connections.closing().len()),
        (0, 0)
    );
    assert_eq!(broken(&reactor), 0);
}

#[test]
fn finish_closing__of_a_connection_that_was_reset_leaves_nothing() {
    let (mut reactor, _) = reactor();
    let address = reactor.listen(([127, 0, 0, 1], 0).into()).unwrap();
    let peer = guest(address, &[]);
    turns_until(&mut reactor, |reactor| reactor.relay.connections.values().any(|c| c.is_open()));
    let id = *reactor.relay.connections.in_order().first().unwrap();
    let reason = Reason::new(Status::Unavailable, "the test ends it");
    reactor.close(id, &reason, GoodbyeMode::Send(reason.clone()));
    let connection = reactor.relay.connections.get_mut(id).unwrap();
    assert!(connection.is_closing());
    // As if GOODBYE were written. The peer closes with HELLO unread, which is a reset.
    connection.take_unsent();
    assert_eq!(peer.peek(&mut [0]).unwrap(), 1);
    drop(peer);
    while !connection
        .stream()
        .tcp()
        .peek(&mut [0])
        .is_err_and(|e| e.kind() == io::ErrorKind::ConnectionReset)
    {}
    reactor.finish_closing(id);
    assert_eq!(
        (reactor.relay.connections.len(), reactor.relay.connections.closing().len()),
        (0, 0)
    );
}

#[test]
fn turn__linked_connection_gets_further_links_at_the_limit() {
    let (mut reactor, mailbox) = reactor();
    (
        reactor.relay.connections.test_capacity().linked_max,
        reactor.relay.connections.test_capacity().linked_per_source_max,
    ) = (1, 1);
    let address = reactor.listen(([127, 0, 0, 1], 0).into()).unwrap();
    let inboxes = [0, 1, 2].map(|endpoint| attach_as(&mailbox, EndpointId(endpoint)));
    let _peer = guest(address, &[0, 1, 2]);
    turns_until(&mut reactor, |reactor| {
        reactor.relay.links.len() == 3 || !reactor.relay.connections.closing().is_empty()
    });
    assert_eq!((reactor.relay.links.len(), reactor.relay.connections.closing().len()), (3, 0));
    for inbox in inboxes {
        assert!(matches!(inbox.pop(), Some(FromNexus::LinkUp { .. })));
    }
}

/// A session counts towards the usage of its connection and source, from proposal to end.
#[test]
fn turn__sessions_take_their_share_as_long_as_they_are_there() {
    let (mut reactor, mailbox) = reactor();
    let address = reactor.listen(([127, 0, 0, 1], 0).into()).unwrap();
    let inbox = attach(&mailbox);
    let mut peer = guest(address, &[0]);
    let mut bytes = Vec::new();
    for request in 1..=3 {
        let open = SessionOpen { session: request, slots: 16, ..sessions::open(0, request) };
        Message::from(open).encode(&mut bytes).unwrap();
    }
    peer.write_all(&bytes).unwrap();
    turns_until(&mut reactor, |reactor| reactor.relay.links.proposals() == 3);
    // Proposals, bytes of sessions in all, and bytes of the connection's open sessions.
    let usage = |reactor: &Reactor| {
        reactor.check_tables().unwrap();
        let (all, connection) =
            (reactor.relay.connections.usage().all(), reactor.relay.connections.values().next());
        let proposals = reactor.relay.links.proposals();
        assert_eq!(all, Usage::of_connection(1, proposals, all.session_bytes()));
        (proposals, all.session_bytes(), connection.unwrap().links().session_bytes())
    };
    let (large, small) = (session_bytes(16), session_bytes(8));
    assert_eq!(usage(&reactor), (3, 3 * large, 0));
    let Some(FromNexus::LinkUp { link, .. }) = inbox.pop() else { panic!("no link") };
    let idle = |reactor: &Reactor| reactor.relay.connections.values().next().unwrap().idle();
    assert!(matches!(idle(&reactor), Some((Idle::Requestless, _))));
    // Another endpoint cannot say so.
    for (by, is_used) in [(1, false), (0, true)] {
        mailbox.note_used(EndpointId(by), link);
        turn_at_once(&mut reactor);
        assert_eq!(idle(&reactor).is_none(), is_used);
    }
    let mut says = |message, by| {
        mailbox.post(Command::Post(EndpointId(by), message)).unwrap();
        turn_at_once(&mut reactor);
        let idle = idle(&reactor);
        let is_idle = idle == Some((Idle::Sessionless, reactor.relay.now()));
        assert_eq!(idle.is_some(), is_idle);
        (usage(&reactor), is_idle)
    };
    let answer = |request, slots| {
        let accept = SessionAccept { session: request, slots, ..sessions::accept(0, request) };
        ToNexus::AnswerSession { link, request, answer: Ok(accept) }
    };
    let no = Err(Reason::new(Status::ResourceExhausted, "no room"));
    let refusal = ToNexus::AnswerSession { link, request: 1, answer: no };
    assert_eq!(says(refusal, 0), ((2, 2 * large, 0), false));
    assert_eq!(says(answer(2, 16), 0), ((1, 2 * large, large), false));
    assert_eq!(says(answer(3, 8), 0), ((0, large + small, large + small), false));
    let end = |slots| ToNexus::SessionEnded { link, slots };
    let another = says(end(16), 1);
    assert_eq!(another, ((0, large + small, large + small), false), "not that endpoint's");
    assert_eq!(says(end(16), 0), ((0, small, small), false));
    assert_eq!(says(end(8), 0), ((0, 0, 0), true));
}
