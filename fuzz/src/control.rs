//! The decoder of the control plane's messages.

use petrel_proto::control::{
    BODY_BYTES_MAX, BODY_BYTES_MAX_BEFORE_HELLO, DecodeError, Decoder, HEADER_BYTES, Hello,
    Message, PREFACE, VersionRange,
};

use crate::input::Input;

/// Decodes a stream in pieces whose sizes the input's first bytes determine, and again in one piece: the
/// results must be equal. Every decoded message must survive encoding and decoding.
pub fn check(data: &[u8]) {
    let mut input = Input::new(data);
    let beginning = input.byte();
    let sizes = [1 + input.below(256), 1 + input.below(256), 1 + input.below(16)];
    let mut stream = opening(beginning);
    stream.extend_from_slice(input.take(usize::MAX));
    let pieces = decode_all(pieces(&stream, sizes));
    assert_eq!(pieces, decode_all([&stream[..]]));
    pieces.0.iter().for_each(check_again);
}

/// Returns the beginning of the stream, so the fuzzer need not discover a valid preface and HELLO every
/// time.
fn opening(choice: u8) -> Vec<u8> {
    match choice % 4 {
        0 => Vec::new(),
        1 => PREFACE.to_vec(),
        _ => greeting(),
    }
}

fn greeting() -> Vec<u8> {
    let hello = Hello {
        versions: VersionRange::OWN,
        incarnation: 1,
        heartbeat_ms: 1_000,
        agent: String::new(),
        host_identity: None,
        rendezvous: None,
    };
    let mut stream = PREFACE.to_vec();
    Message::from(hello).encode(&mut stream).expect("a sound HELLO");
    stream
}

fn pieces(mut rest: &[u8], sizes: [usize; 3]) -> impl Iterator<Item = &[u8]> {
    sizes.into_iter().cycle().map_while(move |size| {
        let (piece, after) = rest.split_at(size.min(rest.len()));
        rest = after;
        (!piece.is_empty()).then_some(piece)
    })
}

fn decode_all<'a>(
    pieces: impl IntoIterator<Item = &'a [u8]>,
) -> (Vec<Message>, Option<DecodeError>) {
    let mut decoder = Decoder::new();
    let mut messages = Vec::new();
    for mut piece in pieces {
        loop {
            let step = decoder.decode(&mut piece);
            check_memory(&decoder);
            match step {
                Ok(Some(message)) => messages.push(message),
                Ok(None) => break,
                Err(error) => {
                    check_error(&mut decoder, error);
                    return (messages, Some(error));
                }
            }
        }
        assert!(piece.is_empty(), "without a message, all bytes are taken");
    }
    (messages, None)
}

fn check_memory(decoder: &Decoder) {
    let greeted = decoder.has_greeted();
    let limit = if greeted { BODY_BYTES_MAX } else { BODY_BYTES_MAX_BEFORE_HELLO };
    assert!(decoder.memory_bytes() <= HEADER_BYTES + limit);
}

/// Checks that an error is final, has a text, and holds no memory.
fn check_error(decoder: &mut Decoder, error: DecodeError) {
    assert_eq!(decoder.decode(&mut &b"more"[..]), Err(error));
    assert_eq!(decoder.memory_bytes(), 0);
    let _whose = error.fault();
    assert!(!error.to_string().is_empty());
}

/// Checks that a decoded message survives encoding and decoding.
fn check_again(message: &Message) {
    assert_eq!(message.check(), Ok(()), "what was decoded is in range");
    let is_hello = matches!(message, Message::Hello(_));
    let mut stream = if is_hello { PREFACE.to_vec() } else { greeting() };
    message.encode(&mut stream).expect("it was checked");
    let (messages, error) = decode_all([&stream[..]]);
    if error.is_none() {
        assert_eq!(messages.last(), Some(message));
    } else {
        // The decoder drops offers of unknown transports, and rejects a LINK_OPEN without offers.
        assert!(matches!(message, Message::LinkOpen(open) if open.offers.is_empty()));
    }
}
