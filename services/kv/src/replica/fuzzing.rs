//! Decodes arbitrary bytes as messages between replicas.

use super::codec::{frame_bytes, read_frame, write_frame};
use super::hello::{Hello, Join};
use super::membership::{Membership, MembershipChange};
use super::snapshot::{ChunkReply, ChunkRequest, Ticket};
use crate::wire::DecodeError;

/// The addressee of the messages.
const TO: u64 = 7;

pub(crate) fn check(data: &[u8]) {
    let Some((choice, rest)) = data.split_first() else { return };
    match choice % 8 {
        0 => frame(rest),
        1 => again(rest, Hello::decode, |hello| hello.as_ref().map(Hello::encode)),
        2 => again(rest, Join::decode, |join| Some(join.encode())),
        3 => again(rest, Ticket::decode, |ticket| Some(ticket.encode().to_vec())),
        4 => again(rest, ChunkRequest::decode, |request| Some(request.encode())),
        5 => again(rest, Membership::decode, |membership| Some(membership.encode())),
        6 => again(rest, MembershipChange::decode, |change| Some(change.encode())),
        _ => drop(ChunkReply::decode(rest)),
    }
}

/// Checks that encoding and decoding a decoded value returns an equal value.
fn again<T: PartialEq + std::fmt::Debug>(
    bytes: &[u8],
    decode: impl Fn(&[u8]) -> Result<T, DecodeError>,
    encode: impl Fn(&T) -> Option<Vec<u8>>,
) {
    match decode(bytes) {
        Err(error) => assert!(!error.to_string().is_empty()),
        Ok(message) => {
            let Some(bytes) = encode(&message) else { return };
            assert_eq!(decode(&bytes).as_ref(), Ok(&message));
        }
    }
}

fn frame(bytes: &[u8]) {
    let Ok((cluster, messages)) = read_frame(bytes, TO) else { return };
    assert!(messages.iter().all(|message| message.to == TO));
    // Snapshot descriptions may have fields of a later version, which are written again and take their room.
    let mut written = vec![0; frame_bytes(&messages)];
    write_frame(cluster, &messages, &mut written);
    let again = read_frame(&written, TO).expect("what is written can be read");
    assert_eq!(again, (cluster, messages));
}
