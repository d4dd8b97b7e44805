//! Tests the frame layer against its specification. `fuzz/src/frame.rs` has the arbitrary bytes.

mod exhaustive;
mod extensions;
mod vectors;

use super::*;

/// The frame as bytes: the header by the encoder of its kind, then the payload.
fn encode(frame: &Frame<'_>) -> Vec<u8> {
    let header = &frame.header;
    let mut bytes = match frame.fields {
        Fields::None => header.encode().to_vec(),
        Fields::Part(part) => part.encode(header.words()).to_vec(),
        Fields::Credit(credit) => cut(credit.encode(header.words())),
        Fields::Pull(pull) => cut(pull.encode(header.words())),
    };
    if let Some(left_us) = frame.extensions.deadline_us {
        bytes.extend_from_slice(&deadline_word(left_us).to_le_bytes());
    }
    bytes.extend_from_slice(frame.payload);
    bytes
}

fn cut<const N: usize>((bytes, len): ([u8; N], usize)) -> Vec<u8> {
    bytes[..len].to_vec()
}
