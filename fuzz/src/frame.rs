//! The parsers of frames.

use petrel_proto::wire::{Fields, Frame, Header, Kind, Malformed, Marks, Order, deadline_word};

/// Parses any bytes as a frame. If the bytes are the canonical form of version 1, the encoders must
/// reproduce the frame byte for byte.
pub fn check(bytes: &[u8]) {
    let parsed = Frame::parse(bytes);
    assert!(parsed.is_err() || Header::parse(bytes).is_ok());
    match parsed {
        Err(Malformed(rule)) => assert!(!rule.is_empty()),
        Ok(frame) => {
            assert!(frame.to_string().starts_with(frame.header.kind.name()));
            if is_canonical(bytes, &frame) {
                assert_eq!(encode(&frame), bytes);
            }
            check_marks(bytes, &frame);
            check_order(bytes, &frame);
        }
    }
}

/// Reads the marks of a CREDIT, as on a link of several paths, and writes them again.
fn check_marks(bytes: &[u8], frame: &Frame<'_>) {
    let Fields::Credit(credit) = frame.fields else { return };
    let flags = frame.header.flags;
    let Ok(Some(marks)) = Marks::read(flags, &bytes[16..]) else { return };
    assert_eq!(marks.packets().next(), Some(marks.from));
    let (again, length) = marks.encode(&credit, frame.header.words());
    assert_eq!(Marks::read(flags, &again[16..length]), Ok(Some(marks)));
    assert_eq!(Frame::parse(&again[..length]), Ok(*frame));
}

/// Reads the order of a call, as on a link with ordered calls, and writes it again.
fn check_order(bytes: &[u8], frame: &Frame<'_>) {
    let at = match frame.header.kind {
        Kind::Request => 16,
        Kind::RequestPart => 24,
        Kind::Pull => 32,
        _ => return,
    };
    let flags = frame.header.flags;
    let Ok(Some(order)) = Order::read(flags, &bytes[at..]) else { return };
    assert!(order.is_possible());
    let (block, length) = order.block(frame.extensions.deadline_us);
    assert_eq!(Order::read(flags, &block[..length]), Ok(Some(order)));
}

/// Returns true if a version 1 sender would encode the frame as these bytes: with a deadline or without
/// extensions, reserved fields zero, no superfluous word of the bitmap.
fn is_canonical(bytes: &[u8], frame: &Frame<'_>) -> bool {
    if frame.header.flags.extended() {
        return is_deadline_alone(bytes, frame);
    }
    let (is_reserved_zero, bitmap) = match frame.fields {
        Fields::None | Fields::Part(_) => return true,
        Fields::Credit(_) => (true, &bytes[24..]),
        Fields::Pull(_) => (bytes[28..32] == [0; 4], &bytes[32..]),
    };
    is_reserved_zero && !bitmap.ends_with(&[0; 8])
}

/// Returns true if the frame is a packet of a request, and its extension block contains only a deadline.
fn is_deadline_alone(bytes: &[u8], frame: &Frame<'_>) -> bool {
    let at = match frame.header.kind {
        Kind::Request => 16,
        Kind::RequestPart => 24,
        _ => return false,
    };
    let word = frame.extensions.deadline_us.map(|left_us| deadline_word(left_us).to_le_bytes());
    word.is_some_and(|word| bytes[at..].starts_with(&word))
}

fn encode(frame: &Frame<'_>) -> Vec<u8> {
    let header = &frame.header;
    let control = |(bytes, len): ([u8; 64], usize)| bytes[..len].to_vec();
    let mut bytes = match frame.fields {
        Fields::None => header.encode().to_vec(),
        Fields::Part(part) => part.encode(header.words()).to_vec(),
        Fields::Credit(credit) => control(credit.encode(header.words())),
        Fields::Pull(pull) => control(pull.encode(header.words())),
    };
    if let Some(left_us) = frame.extensions.deadline_us {
        bytes.extend_from_slice(&deadline_word(left_us).to_le_bytes());
    }
    bytes.extend_from_slice(frame.payload);
    bytes
}
