//! Tests that keep and break every rule of the wire checker.

use petrel_proto::control::{PathPorts, SessionAccept, SessionOpen};
use petrel_proto::wire::{Credit, Flags, Pull};

use super::*;
use crate::fabric::HostId;

const CLIENT: SimAddr = SimAddr::new(HostId(0), 1);
const SERVER: SimAddr = SimAddr::new(HostId(1), 1);
const P: u32 = 1_208;
const CLOCK: TurnClock = TurnClock { first_ns: 0, last_ns: 0, read_ns: None };

/// A session with four credits.
fn wire_checker() -> WireChecker {
    wire_checker_of([PathPorts::NONE; 2])
}

/// A session whose sides have these further source ports.
fn wire_checker_of(ports: [PathPorts; 2]) -> WireChecker {
    let open = SessionOpen {
        link: 1,
        request: 1,
        session: 3,
        token: 33,
        first_request: 64,
        slots: 2,
        credits: 4,
        max_message: 1 << 20,
        packet_bytes: P,
    };
    let accept = SessionAccept {
        link: 1,
        request: 1,
        session: 4,
        token: 44,
        slots: 2,
        credits: 4,
        max_message: 1 << 20,
        packet_bytes: P,
    };
    let mut wire_checker = WireChecker::default();
    let (client, server, key_paths) = (CLIENT, SERVER, None);
    wire_checker.add(Agreement { client, server, open, accept, ports, key_paths });
    wire_checker
}

fn header(kind: Kind, request: u64) -> Header {
    let to_server = matches!(kind, Kind::Request | Kind::RequestPart | Kind::Pull | Kind::Cancel);
    let (session, token) = if to_server { (4, 44) } else { (3, 33) };
    Header { kind, flags: Flags::NONE, session, token, aux: 0, request }
}

fn part(kind: Kind, packets: u32, packet: u32) -> Vec<u8> {
    let part = Part { size: packets * P, packet, grant: 1 };
    let mut frame = part.encode(header(kind, 64).words()).to_vec();
    frame.resize(frame.len() + P as usize, 0);
    frame
}

fn request(packet: u32) -> Vec<u8> {
    part(Kind::RequestPart, 10, packet)
}

fn response(packet: u32) -> Vec<u8> {
    part(Kind::ResponsePart, 10, packet)
}

fn bytes((bytes, len): ([u8; 64], usize)) -> Vec<u8> {
    bytes[..len].to_vec()
}

fn credit(cumulative: u32, echo: u32, word: u64) -> Vec<u8> {
    let credit = Credit { cumulative, echo, bitmap: [word, 0, 0, 0] };
    bytes(credit.encode(header(Kind::Credit, 64).words()))
}

fn pull(cumulative: u32, limit: u32, word: u64) -> Vec<u8> {
    let pull = Pull { cumulative, limit, resend_below: 0, bitmap: [word, 0, 0, 0] };
    bytes(pull.encode(header(Kind::Pull, 64).words()))
}

fn cancel(number: u64) -> Vec<u8> {
    header(Kind::Cancel, number).encode().to_vec()
}

impl WireChecker {
    fn sent(&mut self, frame: &[u8]) {
        let to_server = frame[0] & 0xF != 1 && frame[0] & 0xF != 3 && frame[0] & 0xF != 4;
        let (from, to) = if to_server { (CLIENT, SERVER) } else { (SERVER, CLIENT) };
        self.sent_from(from, to, frame);
    }

    /// Sends a frame, and takes the frame at the receiver.
    fn carried(&mut self, frame: &[u8]) {
        self.sent(frame);
        let to_server = frame[0] & 0xF != 1 && frame[0] & 0xF != 3 && frame[0] & 0xF != 4;
        let (from, to) = if to_server { (CLIENT, SERVER) } else { (SERVER, CLIENT) };
        self.taken((from, 0), to, frame, false);
    }

    /// Takes a frame from a source port of a peer.
    fn taken(&mut self, (from, source): (SimAddr, u8), to: SimAddr, frame: &[u8], is_marked: bool) {
        self.see(Observation::Taken { from, source, to, key_path: None, frame, is_marked });
    }

    #[track_caller]
    fn assert_broken(&self, what: &str) {
        let broken = self.violation.as_deref().expect("a broken rule");
        assert!(broken.contains(what), "{broken}");
    }

    /// Makes a checker with an arrived and acknowledged request of ten packets.
    fn with_request() -> Self {
        let mut wire_checker = wire_checker();
        for packet in 0..10 {
            wire_checker.carried(&request(packet));
            wire_checker.carried(&credit(packet + 1, packet, 0));
        }
        assert_eq!(wire_checker.violation, None);
        wire_checker
    }
}

#[test]
fn cancel__once_and_nothing_behind_it() {
    let mut wire_checker = wire_checker();
    wire_checker.carried(&request(0));
    wire_checker.carried(&cancel(64));
    assert_eq!(wire_checker.violation, None);
    wire_checker.sent(&cancel(64));
    wire_checker.assert_broken("sent again");
    for late in [request(1), pull(0, 1, 0)] {
        let mut wire_checker = self::wire_checker();
        wire_checker.carried(&request(0));
        wire_checker.sent(&cancel(64));
        wire_checker.sent(&late);
        assert!(wire_checker.violation.is_some(), "{late:?}");
    }
    let mut wire_checker = self::wire_checker();
    wire_checker.carried(&request(0));
    wire_checker.carried(&cancel(64));
    wire_checker.sent(&credit(1, 0, 0));
    wire_checker.assert_broken("given up");
    let mut wire_checker = self::wire_checker();
    wire_checker.carried(&request(0));
    wire_checker.sent(&cancel(66));
    wire_checker.assert_broken("never sent");
}

#[test]
fn session__that_keeps_the_rules() {
    let mut wire_checker = WireChecker::with_request();
    wire_checker.carried(&response(0));
    wire_checker.carried(&pull(1, 5, 0));
    wire_checker.sent(&response(1));
    (2..5).for_each(|packet| wire_checker.carried(&response(packet)));
    wire_checker.carried(&pull(1, 8, 0b1110));
    wire_checker.carried(&response(1));
    (5..8).for_each(|packet| wire_checker.carried(&response(packet)));
    wire_checker.carried(&pull(8, 10, 0));
    (8..10).for_each(|packet| wire_checker.carried(&response(packet)));
    assert_eq!(wire_checker.violation, None);
    assert_eq!((wire_checker.sessions[0].held, wire_checker.frames > 40), (0, true));
}

#[test]
fn client__exceeds_its_credits() {
    let mut wire_checker = wire_checker();
    (0..4).for_each(|packet| wire_checker.sent(&request(packet)));
    assert_eq!(wire_checker.violation, None);
    wire_checker.sent(&request(4));
    wire_checker.assert_broken("than credits");
    let mut wire_checker = WireChecker::with_request();
    wire_checker.carried(&response(0));
    wire_checker.sent(&pull(1, 6, 0));
    wire_checker.assert_broken("than credits");
}

#[test]
fn client__sends_what_is_acknowledged() {
    let mut wire_checker = wire_checker();
    (0..3).for_each(|packet| wire_checker.sent(&request(packet)));
    let (from, to, frame) = (CLIENT, SERVER, &request(1)[..]);
    wire_checker.taken((from, 0), to, frame, false);
    wire_checker.carried(&credit(0, 1, 0b10));
    wire_checker.sent(&request(0));
    assert_eq!(wire_checker.violation, None);
    wire_checker.sent(&request(1));
    wire_checker.assert_broken("known to have");
}

#[test]
fn client__sends_out_of_order_or_an_old_number() {
    let mut out_of_order = wire_checker();
    out_of_order.sent(&request(1));
    out_of_order.assert_broken("in order");
    let mut old = wire_checker();
    old.sent(&header(Kind::Request, 66).encode());
    old.sent(&header(Kind::Request, 64).encode());
    old.assert_broken("old request number");
}

#[test]
fn client__pulls_wrongly() {
    let reported = |cumulative, limit, word| {
        let mut wire_checker = WireChecker::with_request();
        wire_checker.carried(&response(0));
        wire_checker.sent(&pull(cumulative, limit, word));
        wire_checker
    };
    assert_eq!(reported(1, 2, 0).violation, None);
    reported(0, 2, 0).assert_broken("does not tell");
    reported(1, 2, 0b10).assert_broken("does not tell");
    reported(1, 0, 0).assert_broken("goes back");
    reported(1, 11, 0).assert_broken("does not have");
}

#[test]
fn server__acknowledges_wrongly() {
    let reported = |cumulative, echo, word| {
        let mut wire_checker = wire_checker();
        wire_checker.carried(&request(0));
        wire_checker.sent(&request(1));
        wire_checker.carried(&request(2));
        wire_checker.sent(&credit(cumulative, echo, word));
        wire_checker
    };
    assert_eq!(reported(1, 2, 0b10).violation, None);
    reported(1, 2, 0).assert_broken("does not tell");
    reported(3, 2, 0).assert_broken("does not tell");
    reported(1, 1, 0b10).assert_broken("echo");
}

#[test]
fn server__sends_too_much() {
    let mut early = wire_checker();
    early.carried(&request(0));
    early.sent(&response(0));
    early.assert_broken("before the whole request");
    let mut beyond = WireChecker::with_request();
    beyond.carried(&response(0));
    beyond.sent(&response(1));
    beyond.assert_broken("not allowed");
    let mut again = WireChecker::with_request();
    again.carried(&response(0));
    again.carried(&pull(1, 3, 0));
    again.carried(&response(1));
    again.sent(&response(0));
    again.assert_broken("known to have");
}

#[test]
fn key_paths__a_frame_of_another_link_neither_leaves_nor_is_taken() {
    let after = |sent_by, taken_by| {
        let mut wire_checker = wire_checker();
        wire_checker.sessions[0].agreement.key_paths = Some([5, 6]);
        let (clock, source, is_marked) = (CLOCK, 0, false);
        let (request, credit) = (&request(0)[..], &credit(1, 0, 0)[..]);
        let (from, to, frame, key_path) = (CLIENT, SERVER, request, sent_by);
        wire_checker.see(Observation::Sent { from, to, key_path, frame, clock });
        let key_path = taken_by;
        wire_checker.see(Observation::Taken { from, source, to, key_path, frame, is_marked });
        let (from, to, frame, key_path) = (SERVER, CLIENT, credit, Some(6));
        wire_checker.see(Observation::Sent { from, to, key_path, frame, clock });
        wire_checker
    };
    assert_eq!(after(Some(5), Some(6)).violation, None);
    after(Some(5), None).assert_broken("does not tell");
    after(Some(5), Some(7)).assert_broken("does not tell");
    after(None, Some(6)).assert_broken("another link");
}

/// A session of three source ports at the client and two at the server.
fn with_ports() -> WireChecker {
    let ports = |ports: &[u16]| PathPorts::new(ports).unwrap();
    wire_checker_of([ports(&[100, 101]), ports(&[200])])
}

impl WireChecker {
    fn sent_from(&mut self, from: SimAddr, to: SimAddr, frame: &[u8]) {
        self.see(Observation::Sent { from, to, key_path: None, frame, clock: CLOCK });
    }

    /// The client sends a packet from a port, and the server takes it.
    fn packet_by(&mut self, port: u16, packet: u32, is_marked: bool) {
        let (from, to, frame) = (SimAddr { port, ..CLIENT }, SERVER, request(packet));
        self.sent_from(from, to, &frame);
        self.taken_from(port, to, &frame, is_marked);
    }

    /// The server takes a frame from a port of the client.
    fn taken_from(&mut self, port: u16, to: SimAddr, frame: &[u8], is_marked: bool) {
        let source = match port {
            100 | 101 => (port - 99) as u8,
            _ => 0,
        };
        self.taken((CLIENT, source), to, frame, is_marked);
    }
}

/// A request of one packet, which the server has taken from a port of the client.
fn asked_from(port: u16) -> WireChecker {
    let mut wire_checker = with_ports();
    let (from, to, frame) =
        (SimAddr { port, ..CLIENT }, SERVER, header(Kind::Request, 64).encode());
    wire_checker.sent_from(from, to, &frame);
    wire_checker.taken_from(port, to, &frame, false);
    wire_checker
}

#[test]
fn source_ports__a_frame_from_another_peer_is_not_taken() {
    let mut wire_checker = with_ports();
    (0..2).for_each(|packet| wire_checker.sent_from(CLIENT, SERVER, &request(packet)));
    let (from, source) = (SimAddr { port: CLIENT.port + 1, ..CLIENT }, 1);
    for packet in 0..2 {
        let frame = &request(packet)[..];
        wire_checker.taken((from, source), SERVER, frame, false);
    }
    wire_checker.sent_from(SERVER, CLIENT, &credit(1, 2, 0));
    wire_checker.assert_broken("does not tell");
}

#[test]
fn source_ports__a_port_of_a_longer_list_counts_for_none() {
    let mut wire_checker = with_ports();
    wire_checker.sent_from(CLIENT, SERVER, &request(0));
    let frame = &request(0)[..];
    let (from, to) = (CLIENT, SERVER);
    wire_checker.taken((from, 7), to, frame, true);
    assert_eq!(wire_checker.violation, None);
}

#[test]
fn source_ports__frames_leave_from_announced_ports() {
    let mut wire_checker = with_ports();
    wire_checker.packet_by(102, 0, false);
    wire_checker.assert_broken("not announced");
    let mut wire_checker = self::wire_checker();
    wire_checker.packet_by(100, 0, false);
    wire_checker.assert_broken("not announced");
}

#[test]
fn source_ports__credits_leave_from_all_and_responses_follow_the_client() {
    let server = |port| SimAddr { port, ..SERVER };
    let short = header(Kind::Response, 64).encode();
    for (port, follows) in [(CLIENT.port, SERVER.port), (100, 200), (101, SERVER.port)] {
        let mut wire_checker = with_ports();
        wire_checker.packet_by(port, 0, false);
        for port in [SERVER.port, 200] {
            wire_checker.sent_from(server(port), CLIENT, &credit(1, 0, 0));
        }
        assert_eq!(wire_checker.violation, None);
        let other = if follows == 200 { SERVER.port } else { 200 };
        for (frame, broken) in [(&response(0)[..], "a long response"), (&short, "a short response")]
        {
            let mut right = asked_from(port);
            right.sent_from(server(follows), CLIENT, frame);
            assert_eq!(right.violation, None);
            let mut wrong = asked_from(port);
            wrong.sent_from(server(other), CLIENT, frame);
            wrong.assert_broken(broken);
        }
    }
}

#[test]
fn source_ports__a_response_moves_on_after_a_repeated_frame_and_not_back() {
    let ports = |port| SimAddr { port, ..SERVER };
    let short = header(Kind::Response, 64).encode();
    let mut wire_checker = asked_from(CLIENT.port);
    wire_checker.sent_from(ports(SERVER.port), CLIENT, &short);
    let repeated = Header { flags: Flags::REPEATS, ..header(Kind::Request, 64) }.encode();
    wire_checker.sent_from(CLIENT, SERVER, &repeated);
    let (from, to) = (CLIENT, SERVER);
    wire_checker.taken((from, 0), to, &repeated, false);
    wire_checker.sent_from(ports(200), CLIENT, &short);
    assert_eq!(wire_checker.violation, None);
    wire_checker.sent_from(ports(SERVER.port), CLIENT, &short);
    wire_checker.assert_broken("a short response");
}

#[test]
fn source_ports__a_credit_names_the_marked_packets_of_its_request_and_no_others() {
    let plain = |packets: u32| credit(packets, packets - 1, 0);
    let marked = |packets: u32, from: u32, word: u64| {
        let credit = Credit { cumulative: packets, echo: packets - 1, bitmap: [0; 4] };
        let header = Header { flags: Flags::EXTENDED, ..header(Kind::Credit, 64) };
        let marks = petrel_proto::wire::Marks { from, words: [word, 0, 0, 0] };
        let (bytes, len) = marks.encode(&credit, header.words());
        bytes[..len].to_vec()
    };
    let after = |frame: &[u8]| {
        let mut wire_checker = with_ports();
        for (packet, is_marked) in [(0, false), (1, true), (2, true)] {
            wire_checker.packet_by(CLIENT.port, packet, is_marked);
        }
        wire_checker.sent_from(SERVER, CLIENT, frame);
        wire_checker
    };
    let mut right = after(&marked(3, 1, 0b11));
    right.sent_from(SERVER, CLIENT, &plain(3));
    assert_eq!((&right.violation, right.path_use().marks), (&None, 2));
    after(&plain(3)).assert_broken("leaves out");
    after(&marked(3, 1, 0b1)).assert_broken("leaves out");
    after(&marked(3, 0, 0b111)).assert_broken("came without");
}

#[test]
fn check_path_counts__of_frames_by_port() {
    let mut wire_checker = with_ports();
    [CLIENT.port, 101, 101].into_iter().zip(0..).for_each(|(port, packet)| {
        wire_checker.packet_by(port, packet, false);
    });
    let counts = |packets: [u64; 3]| {
        packets.map(|packets| {
            let mut counts = PathCounts::default();
            counts.packets = packets;
            counts
        })
    };
    let check = |counts: &[PathCounts]| wire_checker.check_path_counts((CLIENT, 3, 33), counts);
    assert_eq!(check(&counts([1, 0, 2])), Ok(()));
    assert!(check(&counts([1, 2, 0])).is_err() && check(&[]).is_err());
    let mut marked = counts([1, 0, 2]);
    marked[0].marks = 1;
    assert!(check(&marked).is_err(), "no packet came with a mark");
}
