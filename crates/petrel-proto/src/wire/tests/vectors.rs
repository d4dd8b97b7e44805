//! The test vectors of `docs/wire-vectors.md`, §10.

use std::fmt::Write;

use super::*;
use crate::bitmap::Words;

const PAGE: &str = include_str!("../../../../../docs/wire-vectors.md");

/// Expected numbers of vectors, by sort: the test must not pass if it finds none.
const SENT: usize = 30;
const RECEIVED: usize = 8;
const MALFORMED: usize = 24;

/// A ```` ```vector ```` block of the specification.
struct Vector {
    name: &'static str,
    bytes: Vec<u8>,
    expected: Expected,
}

#[derive(Clone, Copy, PartialEq)]
enum Expected {
    /// Read as specified, and written so by version 1.
    Sent(&'static str),
    /// Read as specified, but written by no version 1 sender.
    Received(&'static str),
    /// Refused for this reason.
    Malformed(&'static str),
}

fn vectors() -> Vec<Vector> {
    let blocks = PAGE.split("\n```vector\n").skip(1);
    blocks.map(|block| vector(block.split("\n```").next().unwrap())).collect()
}

fn vector(block: &'static str) -> Vector {
    let (name, rest) = block.strip_prefix("name: ").unwrap().split_once("\nhex:\n").unwrap();
    let (hex, last) = rest.rsplit_once('\n').unwrap();
    let (sort, words) = last.split_once(": ").unwrap();
    let expected = match sort {
        "frame" => Expected::Sent(words),
        "received" => Expected::Received(words),
        "malformed" => Expected::Malformed(words),
        other => panic!("{name}: what is {other}?"),
    };
    Vector { name, bytes: bytes(hex), expected }
}

fn bytes(hex: &str) -> Vec<u8> {
    hex.split_whitespace().map(|byte| u8::from_str_radix(byte, 16).unwrap()).collect()
}

/// Returns a frame in the notation of the specification.
fn words(frame: &Frame<'_>) -> String {
    let Header { kind, flags, session, token, aux, request } = frame.header;
    let mut words = format!(
        "{} flags={:#x} session={session} token={token:#x} aux={aux} request={request}",
        kind.name(),
        flags.0
    );
    match frame.fields {
        Fields::None => {}
        Fields::Part(Part { size, packet, grant }) => {
            write!(words, " size={size} packet={packet} grant={grant}").unwrap();
        }
        Fields::Credit(Credit { cumulative, echo, bitmap }) => {
            write!(words, " cumulative={cumulative} echo={echo}").unwrap();
            return words + &bitmap_words(&bitmap);
        }
        Fields::Pull(Pull { cumulative, limit, resend_below, bitmap }) => {
            write!(words, " cumulative={cumulative} limit={limit} resend_below={resend_below}")
                .unwrap();
            return words + &bitmap_words(&bitmap);
        }
    }
    if let Some(left_us) = frame.extensions.deadline_us {
        write!(words, " deadline={left_us}").unwrap();
    }
    words
        + " payload="
        + &frame.payload.iter().map(|byte| format!("{byte:02x}")).collect::<String>()
}

fn bitmap_words(bitmap: &Words) -> String {
    let used = bitmap.iter().rposition(|word| *word != 0).map_or(0, |last| last + 1);
    let words: Vec<String> = bitmap[..used].iter().map(|word| format!("{word:#x}")).collect();
    format!(" bitmap={}", words.join(","))
}

#[test]
fn vectors__are_all_there() {
    let vectors = vectors();
    let count = |is: fn(&Expected) -> bool| vectors.iter().filter(|v| is(&v.expected)).count();
    assert_eq!(count(|expected| matches!(expected, Expected::Sent(_))), SENT);
    assert_eq!(count(|expected| matches!(expected, Expected::Received(_))), RECEIVED);
    assert_eq!(count(|expected| matches!(expected, Expected::Malformed(_))), MALFORMED);
    assert_eq!(PAGE.matches("\n```vector").count(), SENT + RECEIVED + MALFORMED);
}

#[test]
fn parse__matches_every_vector() {
    for Vector { name, bytes, expected } in vectors() {
        let parsed = Frame::parse(&bytes);
        match expected {
            Expected::Sent(frame) | Expected::Received(frame) => {
                assert_eq!(parsed.as_ref().map(words), Ok(frame.to_owned()), "{name}");
            }
            Expected::Malformed(rule) => assert_eq!(parsed, Err(Malformed(rule)), "{name}"),
        }
    }
}

#[test]
fn encode__matches_every_vector_that_version_1_sends() {
    for Vector { name, bytes, expected } in vectors() {
        let Ok(frame) = Frame::parse(&bytes) else { continue };
        let is_sent = matches!(expected, Expected::Sent(_));
        // Except for flag bits, a frame that is only received changes when version 1 writes it again.
        let is_same = encode(&frame) == bytes;
        assert!(is_same || !is_sent, "{name}: {:02x?}", encode(&frame));
        assert!(is_sent || !is_same || frame.header.flags.0 & 0b1001 != 0, "{name}");
    }
}

/// A prefix of a valid frame is a valid frame or refused, and no parser reads beyond the end.
#[test]
fn parse__every_prefix_of_every_vector() {
    for Vector { name, bytes, expected } in vectors() {
        let Expected::Sent(_) = expected else { continue };
        for end in 0..bytes.len() {
            if let Ok(frame) = Frame::parse(&bytes[..end]) {
                let whole = Frame::parse(&bytes).unwrap();
                assert_eq!(frame.header, whole.header, "{name}");
                assert!(whole.payload.starts_with(frame.payload), "{name}");
            } else {
                let is_bare = bytes[0] & 0xF < 2 && bytes[1] & Flags::EXTENDED.0 == 0;
                assert!(end < 16 || !is_bare, "{name}: {end} bytes");
            }
        }
    }
}
