//! Tests that keep and break the rule.

use petrel_proto::SessionId;
use petrel_proto::wire::{Flags, Header, Part};

use super::*;
use crate::check::call::{Call, Spec, Watch, answer_seed};
use crate::fabric::HostId;

const CLIENT: SimAddr = SimAddr::new(HostId(0), 1);
const SERVER: SimAddr = SimAddr::new(HostId(1), 1);
const P: u32 = 1_208;
const LEN: u32 = 3 * P + 100;

const CLOCK: TurnClock = TurnClock { first_ns: 0, last_ns: 0, read_ns: None };
const TO_SERVER: FramePath =
    FramePath { session: 5, from: CLIENT, to: SERVER, packet_bytes: P, clock: CLOCK };
const TO_CLIENT: FramePath =
    FramePath { session: 5, from: SERVER, to: CLIENT, packet_bytes: P, clock: CLOCK };

fn call_of(method: Method, request_len: u32) -> Call {
    Call {
        spec: Spec { method, request_len, response_len: LEN, slack: 0, delay_ns: 0 },
        client: 0,
        client_at: CLIENT,
        server: SERVER,
        session: SessionId { index: 1, generation: 0 },
        room: LEN,
        parent: None,
        issued_ns: 0,
        ended_ns: None,
        left_ns: None,
        deadline_ns: None,
        is_ordered: false,
        is_cancelled: false,
        seen_ns: None,
        watch: Watch::No,
        executions: 0,
        seed: None,
        end: End::Pending,
    }
}

/// Makes a contents checker with a call of every given method, numbered in this order.
fn rule(methods: &[Method]) -> Contents {
    let mut ledger = Ledger::default();
    for &method in methods {
        ledger.issue(call_of(method, if method.is_tiny() { 1 } else { LEN }));
    }
    Contents::new(Rc::new(RefCell::new(ledger)))
}

fn request_of(id: u32) -> Vec<u8> {
    let mut request = vec![0; LEN as usize];
    pattern::fill_request(id, &mut request);
    request
}

/// Makes the frame of a packet of a message, for request number 64.
fn part(kind: Kind, aux: u16, message: &[u8], packet: u32) -> Vec<u8> {
    let header = Header { kind, flags: Flags::NONE, session: 4, token: 44, aux, request: 64 };
    let part = Part { size: message.len() as u32, packet, grant: 1 };
    let from = (packet * P) as usize;
    let to = message.len().min(from + P as usize);
    [&part.encode(header.words())[..], &message[from..to]].concat()
}

fn check(rule: &mut Contents, path: FramePath, frame: &[u8]) -> Result<(), String> {
    rule.check(path, &Frame::parse(frame).unwrap())
}

fn request(message: &[u8], packet: u32) -> Vec<u8> {
    part(Kind::RequestPart, Method::Transform.number(), message, packet)
}

fn response(message: &[u8], packet: u32) -> Vec<u8> {
    part(Kind::ResponsePart, 0, message, packet)
}

#[test]
fn check__accepts_messages_as_they_should_be() {
    let mut rule = rule(&[Method::Transform]);
    let message = request_of(0);
    for packet in [0, 1, 2, 1, 3, 0] {
        check(&mut rule, TO_SERVER, &request(&message, packet)).unwrap();
    }
    let seed = answer_seed(&message);
    rule.ledger.borrow_mut().note_seed(0, seed);
    let mut answer = vec![0; LEN as usize];
    pattern::fill(seed, &mut answer);
    (0..4).for_each(|packet| check(&mut rule, TO_CLIENT, &response(&answer, packet)).unwrap());
    rule.ledger.borrow_mut().record_crash(0);
    check(&mut rule, TO_CLIENT, &response(&answer, 2)).unwrap();
    assert_eq!(rule.counts(), ContentCounts { all: 11, repeated: 0, stale: 1 });
}

#[test]
fn check__finds_requests_from_released_memory() {
    let cases = [
        (POISON_BYTE, "memory that its pool"),
        (OVERWRITE_BYTE, "memory that the application"),
        (0x11, "other bytes"),
    ];
    for (byte, what) in cases {
        let mut rule = rule(&[Method::Transform]);
        let mut message = request_of(0);
        check(&mut rule, TO_SERVER, &request(&message, 0)).unwrap();
        message[2 * P as usize..].fill(byte);
        check(&mut rule, TO_SERVER, &request(&message, 1)).unwrap();
        let wrong = check(&mut rule, TO_SERVER, &request(&message, 2)).unwrap_err();
        assert!(wrong.contains("call 0") && wrong.contains(what), "{wrong}");
    }
}

#[test]
fn check__finds_a_request_in_memory_of_another_call() {
    let mut rule = rule(&[Method::Transform, Method::Transform]);
    check(&mut rule, TO_SERVER, &request(&request_of(0), 0)).unwrap();
    assert!(check(&mut rule, TO_SERVER, &request(&request_of(1), 1)).is_err());
    // Also under the right number, from the wrong client.
    let wrong_server = FramePath { session: 6, from: SERVER, ..TO_SERVER };
    assert!(check(&mut rule, wrong_server, &request(&request_of(1), 0)).is_err());
}

#[test]
fn check__finds_a_request_of_an_ended_call() {
    let mut rule = rule(&[Method::Transform]);
    let message = request_of(0);
    check(&mut rule, TO_SERVER, &request(&message, 0)).unwrap();
    rule.ledger.borrow_mut().record_crash(0);
    let wrong = check(&mut rule, TO_SERVER, &request(&message, 0)).unwrap_err();
    assert!(wrong.contains("has ended"), "{wrong}");
}

#[test]
fn check__finds_answers_from_released_memory() {
    let mut rule = rule(&[Method::Echo]);
    let echo = |packet| part(Kind::RequestPart, Method::Echo.number(), &request_of(0), packet);
    check(&mut rule, TO_SERVER, &echo(0)).unwrap();
    let mut answer = request_of(0);
    check(&mut rule, TO_CLIENT, &response(&answer, 1)).unwrap();
    answer[P as usize + 40..][..8].fill(POISON_BYTE);
    let wrong = check(&mut rule, TO_CLIENT, &response(&answer, 1)).unwrap_err();
    assert!(wrong.contains("its pool"), "{wrong}");
}

#[test]
fn check__covers_errors_and_tiny_messages() {
    let mut rule = rule(&[Method::TinyEcho]);
    let method = Method::TinyEcho.number();
    let tiny = |kind, aux, bytes: &[u8]| {
        let header = Header { kind, flags: Flags::NONE, session: 4, token: 44, aux, request: 64 };
        [&header.encode()[..], bytes].concat()
    };
    let unknown = FramePath { session: 6, ..TO_SERVER };
    assert!(check(&mut rule, unknown, &tiny(Kind::Request, method, &[POISON_BYTE])).is_err());
    check(&mut rule, TO_SERVER, &tiny(Kind::Request, method, &[0])).unwrap();
    assert!(check(&mut rule, TO_SERVER, &tiny(Kind::Request, method, &[POISON_BYTE])).is_err());
    check(&mut rule, TO_CLIENT, &tiny(Kind::Response, 0, &[0])).unwrap();
    assert!(check(&mut rule, TO_CLIENT, &tiny(Kind::Response, 0, &[POISON_BYTE])).is_err());
    check(&mut rule, TO_CLIENT, &tiny(Kind::Response, 13, b"no luck")).unwrap();
    assert!(check(&mut rule, TO_CLIENT, &tiny(Kind::Response, 13, &[POISON_BYTE; 5])).is_err());
}
