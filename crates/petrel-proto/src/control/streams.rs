//! The decoder against pieces of any size, and against damage with a name. `fuzz/src/control.rs` has the arbitrary bytes.

use super::refusals::{decoded, records};
use super::*;
use crate::Status;

fn encoded(messages: &[Message]) -> Vec<u8> {
    let mut stream = PREFACE.to_vec();
    messages.iter().for_each(|message| message.encode(&mut stream).unwrap());
    stream
}

/// Passes one piece to the decoder, checks the decoder's memory, and returns the messages.
fn feed(decoder: &mut Decoder, mut piece: &[u8]) -> (Vec<Message>, Option<DecodeError>) {
    let mut messages = Vec::new();
    loop {
        let limit =
            if decoder.has_greeted() { BODY_BYTES_MAX } else { BODY_BYTES_MAX_BEFORE_HELLO };
        let step = decoder.decode(&mut piece);
        assert!(decoder.memory_bytes() <= HEADER_BYTES + limit);
        match step {
            Ok(Some(message)) => messages.push(message),
            Ok(None) => return (messages, None),
            Err(error) => return (messages, Some(error)),
        }
    }
}

fn feed_all<'a>(pieces: impl IntoIterator<Item = &'a [u8]>) -> (Vec<Message>, Option<DecodeError>) {
    let mut decoder = Decoder::new();
    let mut messages = Vec::new();
    for piece in pieces {
        let (more, error) = feed(&mut decoder, piece);
        messages.extend(more);
        if error.is_some() {
            return (messages, error);
        }
    }
    (messages, None)
}

#[test]
fn decode__split_at_every_byte() {
    let messages = Kind::ALL.map(|kind| decoded(kind, &records(kind)).unwrap());
    assert!(matches!(messages[0], Message::Hello(_)), "a HELLO comes first");
    let stream = encoded(&messages);
    for split in 0..=stream.len() {
        let (left, right) = stream.split_at(split);
        assert_eq!(feed_all([left, right]), (messages.to_vec(), None));
    }
    assert_eq!(feed_all(stream.chunks(1)), (messages.to_vec(), None));
}

fn error_of(stream: &[u8]) -> DecodeError {
    feed_all([stream]).1.unwrap()
}

/// A message with any header and body, behind a HELLO where `greeted`.
fn raw(greeted: bool, length: u32, code: u16, body: &[u8]) -> Vec<u8> {
    let hello = Hello {
        versions: VersionRange::OWN,
        incarnation: 1,
        heartbeat_ms: 1_000,
        agent: String::new(),
        host_identity: None,
        rendezvous: None,
    };
    let mut stream = if greeted { encoded(&[hello.into()]) } else { PREFACE.to_vec() };
    stream.extend_from_slice(&length.to_le_bytes());
    stream.extend_from_slice(&code.to_le_bytes());
    stream.extend_from_slice(&[0, 0]);
    stream.extend_from_slice(body);
    stream
}

#[test]
fn decode__refuses_a_stranger_at_once() {
    let error = error_of(b"G");
    assert_eq!((error, error.fault()), (DecodeError::NotPetrel, Fault::Stranger));
    assert_eq!(error_of(b"POST / HTTP/1.1\r\n"), DecodeError::NotPetrel);
    assert_eq!(error_of(b"PETREL\n"), DecodeError::NotPetrel);
}

#[test]
fn decode__refuses_a_long_body_by_its_header() {
    let limit = BODY_BYTES_MAX_BEFORE_HELLO;
    let error = error_of(&raw(false, 1_025, 1, &[]));
    assert_eq!(error, DecodeError::TooLong { code: 1, length: 1_025, limit });
    let limit = BODY_BYTES_MAX;
    let error = error_of(&raw(true, 65_537, 77, &[]));
    assert_eq!(error, DecodeError::TooLong { code: 77, length: 65_537, limit });
    assert_eq!(error.fault(), Fault::Peer);
}

#[test]
fn decode__only_hello_or_goodbye_come_first() {
    assert_eq!(error_of(&raw(false, 12, 10, &[])), DecodeError::HelloExpected { code: 10 });
    assert_eq!(error_of(&raw(false, 0, 99, &[])), DecodeError::HelloExpected { code: 99 });
    assert_eq!(error_of(&raw(true, 9, 1, &[])), DecodeError::HelloRepeated);
    let goodbye = Message::from(Goodbye { status: Status::ResourceExhausted, text: "full".into() });
    let messages = vec![goodbye];
    assert_eq!(feed_all([&encoded(&messages)[..]]), (messages, None));
}

#[test]
fn decode__skips_a_message_of_unknown_type_without_keeping_it() {
    let mut stream = raw(true, 65_536, 99, &[0xFF; 65_536]);
    Message::from(Ping { nonce: 5 }).encode(&mut stream).unwrap();
    let (messages, error) = feed_all(stream.chunks(1_000));
    assert_eq!(messages.last(), Some(&Ping { nonce: 5 }.into()));
    assert_eq!((messages.len(), error), (2, None));

    let mut decoder = Decoder::new();
    feed(&mut decoder, &stream[..stream.len() - 10_000]);
    assert!(decoder.is_midway() && decoder.has_greeted());
    assert!(decoder.memory_bytes() <= 1_024);
}

/// For pieces of any size, memory grows with the received bytes, to at most twice their number and never
/// beyond the message's length. Memory grows in few steps, because every step is a copy.
#[test]
fn memory_bytes__follow_what_has_come_of_a_message() {
    let json = "x".repeat(9_000);
    let reply = Message::from(StatsReply { request: 1, part: 0, parts: 1, json });
    let mut stream = raw(true, 0, 99, &[]);
    let before = stream.len();
    reply.encode(&mut stream).unwrap();
    let whole = stream.len() - before;
    for piece_bytes in [1, 7, 100, 3_000] {
        let mut decoder = Decoder::new();
        assert_eq!(feed(&mut decoder, &stream[..before]).1, None);
        let (mut come, mut steps, mut messages) = (0, 0, Vec::new());
        for piece in stream[before..].chunks(piece_bytes) {
            let had = decoder.memory_bytes();
            messages.extend(feed(&mut decoder, piece).0);
            come += piece.len();
            let has = decoder.memory_bytes();
            steps += u32::from(has > had);
            let most = if come < whole { (2 * come).min(whole).max(1_024) } else { 1_024 };
            assert!(has <= most, "{has} bytes for {come} of {whole}, in pieces of {piece_bytes}");
        }
        assert!(steps <= 15, "{steps} steps");
        assert_eq!(messages, std::slice::from_ref(&reply));
    }
}

#[test]
fn decode__offers_of_unknown_transports_are_left_out() {
    let link = [1, 0, 4, 0, 7, 0, 0, 0, 2, 0, 2, 0, 0, 0, 3, 0, 2, 0, 1, 0];
    let unknown = [4, 0, 3, 0, 9, 1, 2];
    let body = [&link[..], &unknown].concat();
    let messages = feed_all([&raw(true, body.len() as u32, 2, &body)[..]]).0;
    let open = LinkOpen {
        link: 7,
        from_endpoint: 0,
        to_endpoint: 1,
        offers: vec![],
        ecn: false,
        features: LinkFeatures::NONE,
    };
    assert_eq!(messages.last(), Some(&open.into()));
    let missing = error_of(&raw(true, link.len() as u32, 2, &link));
    assert_eq!(missing, DecodeError::RecordMissing { kind: Kind::LinkOpen, tag: 4 });
}

#[test]
fn is_midway__from_the_first_byte_to_the_last() {
    let stream = raw(true, 0, 99, &[]);
    let mut decoder = Decoder::new();
    let mut midway = 0;
    for byte in stream.chunks(1) {
        assert_eq!(feed(&mut decoder, byte).1, None);
        midway += usize::from(decoder.is_midway());
    }
    // All bytes but the last of the preface, of the HELLO and of the unknown message.
    assert_eq!(midway, stream.len() - 3);
}
