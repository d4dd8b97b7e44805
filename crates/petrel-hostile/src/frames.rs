//! Frames of the data plane (`docs/wire-protocol.md` §3).

use crate::control::Session;

/// Frame kinds (§3.1).
pub mod kind {
    /// REQUEST.
    pub const REQUEST: u8 = 0;
    /// RESPONSE.
    pub const RESPONSE: u8 = 1;
    /// REQUEST_PART.
    pub const REQUEST_PART: u8 = 2;
    /// RESPONSE_PART.
    pub const RESPONSE_PART: u8 = 3;
    /// PULL.
    pub const PULL: u8 = 5;
}

/// Returns the two words at the beginning of every frame.
pub fn header(kind: u8, session: &Session, aux: u16, request: u64) -> Vec<u8> {
    let first = u64::from(kind)
        | 1 << 4
        | u64::from(session.index & 0xF_FFFF) << 12
        | u64::from(session.token) << 32;
    let second = u64::from(aux) | request << 16;
    [first.to_le_bytes(), second.to_le_bytes()].concat()
}

/// Returns a REQUEST.
pub fn request(session: &Session, slot: u64, method: u16, payload: &[u8]) -> Vec<u8> {
    let mut frame = header(kind::REQUEST, session, method, session.first_request + slot);
    frame.extend(payload);
    frame
}

/// Returns a packet of a request of several packets.
pub fn request_part(
    session: &Session,
    slot: u64,
    method: u16,
    size: u32,
    packet: u32,
    grant: u8,
) -> Vec<u8> {
    let mut frame = header(kind::REQUEST_PART, session, method, session.first_request + slot);
    frame.extend(size.to_le_bytes());
    frame.extend(&packet.to_le_bytes()[..3]);
    frame.push(grant);
    let begin = packet * session.packet_bytes;
    let end = size.min(begin + session.packet_bytes);
    frame.resize(frame.len() + (end - begin) as usize, 0x5A);
    frame
}

/// Returns a PULL that grants packets below `limit` and requests no retransmission.
pub fn pull(session: &Session, request: u64, cumulative: u32, limit: u32) -> Vec<u8> {
    let mut frame = header(kind::PULL, session, 0, request);
    [cumulative, limit, 0, 0].iter().for_each(|word| frame.extend(word.to_le_bytes()));
    frame
}

/// Returns kind, request number and payload of a frame that is alone in its datagram.
pub fn parse(datagram: &[u8]) -> Option<(u8, u64, &[u8])> {
    let (head, rest) = datagram.split_first_chunk::<16>()?;
    let second = u64::from_le_bytes(*head.last_chunk()?);
    (head[0] >> 4 == 1).then_some((head[0] & 0xF, second >> 16, rest))
}

/// Returns the status of a RESPONSE that is alone in its datagram (§3.3).
pub fn status(datagram: &[u8]) -> Option<u8> {
    datagram.get(8).copied()
}

/// Returns the packet index of a RESPONSE_PART, from the bytes after its header.
pub fn packet_of(rest: &[u8]) -> Option<u32> {
    let fields = rest.first_chunk::<8>()?;
    Some(u32::from_le_bytes([fields[4], fields[5], fields[6], 0]))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn request__is_that_of_the_specifications_vector() {
        let session = Session {
            index: 7,
            token: 0xDEAD_BEEF,
            first_request: 0x0340,
            slots: 8,
            packet_bytes: 1_200,
        };
        let vector = [
            0x10, 0x70, 0, 0, 0xEF, 0xBE, 0xAD, 0xDE, 1, 0, 0x40, 3, 0, 0, 0, 0, 0x70, 0x69, 0x6E,
            0x67, 0x21,
        ];
        let frame = request(&session, 0, 1, b"ping!");
        assert_eq!(frame, vector);
        assert_eq!(parse(&frame), Some((kind::REQUEST, 0x0340, &b"ping!"[..])));
    }
}
