//! Frames that no honest peer sends.

use petrel_proto::PeerKey;
use petrel_proto::limits::{BITMAP_WORDS, packet_span, packets_of};
use petrel_proto::wire::{Credit, Flags, Header, Kind, Part, Pull};

use super::steps::session;
use super::world::{PACKET_BYTES, PEER, World};
use crate::input::Input;

const KINDS: [Kind; 9] = [
    Kind::Request,
    Kind::Response,
    Kind::RequestPart,
    Kind::ResponsePart,
    Kind::Credit,
    Kind::Pull,
    Kind::Cancel,
    Kind::Multicast,
    Kind::Announce,
];

/// Delivers a frame with a valid session and token; the input chooses the remaining fields.
pub(super) fn frame(world: &mut World, input: &mut Input<'_>) {
    let (to, header) = header(world, input);
    let mut bytes = match header.kind {
        Kind::Request | Kind::Response => {
            [&header.encode(), &payload(input, PACKET_BYTES as usize)[..]].concat()
        }
        Kind::RequestPart | Kind::ResponsePart | Kind::Multicast | Kind::Announce => {
            part(&header, input)
        }
        Kind::Credit => credit(&header, input),
        Kind::Pull => pull(&header, input),
        Kind::Cancel | Kind::Probe => header.encode().to_vec(),
    };
    if header.flags.extended() {
        insert_extensions(&mut bytes, header.kind, input);
    }
    let peer = if input.below(32) == 1 { PeerKey(8) } else { PEER };
    world.deliver(to, peer, &bytes);
}

fn header(world: &World, input: &mut Input<'_>) -> (usize, Header) {
    let session = &world.sessions[session(world, input)];
    let kind = KINDS[input.below(KINDS.len())];
    let to_server = matches!(
        kind,
        Kind::Request
            | Kind::RequestPart
            | Kind::Pull
            | Kind::Cancel
            | Kind::Multicast
            | Kind::Announce
    );
    let right_way = if to_server { 1 - session.client } else { session.client };
    let to = if input.below(32) == 1 { 1 - right_way } else { right_way };
    let flags = [Flags::NONE, Flags::REPEATS, Flags(0xD), Flags::EXTENDED][input.below(4)];
    let header = Header {
        kind,
        flags,
        session: session.ids[to].index,
        token: session.tokens[to],
        aux: if input.below(2) == 0 { 0 } else { input.word() as u16 },
        request: request_number(session.number, input),
    };
    (to, header)
}

/// Returns a number close to the last observed one: of another slot, of another round, or any number.
fn request_number(seen: u64, input: &mut Input<'_>) -> u64 {
    let near = i64::from(input.byte() as i8);
    let number = match input.below(6) {
        0..=2 => seen.wrapping_add_signed(near % 8),
        3 => seen.wrapping_add_signed(near * 8),
        4 => seen.wrapping_add_signed(near * 65_536),
        _ => input.word(),
    };
    number % (1 << 48)
}

fn payload(input: &mut Input<'_>, len_max: usize) -> Vec<u8> {
    let len = match input.below(4) {
        0..=2 => input.below(64),
        _ => len_max - 1 + input.below(3),
    };
    vec![input.byte(); len]
}

fn part(header: &Header, input: &mut Input<'_>) -> Vec<u8> {
    let size = match input.below(4) {
        0 => input.number(),
        1 => PACKET_BYTES * (input.byte() as u32) + input.below(3) as u32,
        2 => PACKET_BYTES * 3,
        _ => input.word() as u32,
    };
    let packet = match input.below(4) {
        0 => packets_of(size, PACKET_BYTES) - 1,
        1 => input.word() as u32,
        _ => input.number(),
    };
    let part = Part { size, packet: packet % (1 << 24), grant: input.byte() };
    let is_there = part.packet < packets_of(size, PACKET_BYTES);
    let payload = if is_there && input.below(8) != 0 {
        vec![input.byte(); packet_span(part.packet, size, PACKET_BYTES).1]
    } else {
        payload(input, PACKET_BYTES as usize)
    };
    [&part.encode(header.words()), &payload[..]].concat()
}

fn bitmap(input: &mut Input<'_>) -> [u64; BITMAP_WORDS] {
    let mut words = [0; BITMAP_WORDS];
    match input.below(4) {
        0 => {}
        1 => words[0] = input.word() & !u64::from(input.below(8) != 0),
        2 => words = [u64::MAX - 1, u64::MAX, u64::MAX, u64::MAX],
        _ => words = words.map(|_| input.word() & !1),
    }
    words
}

fn credit(header: &Header, input: &mut Input<'_>) -> Vec<u8> {
    let (cumulative, echo) = (input.number(), input.number());
    let (bytes, len) = Credit { cumulative, echo, bitmap: bitmap(input) }.encode(header.words());
    bytes[..len].to_vec()
}

fn pull(header: &Header, input: &mut Input<'_>) -> Vec<u8> {
    let [cumulative, limit, resend_below] = [0; 3].map(|_| input.number());
    let (bytes, len) =
        Pull { cumulative, limit, resend_below, bitmap: bitmap(input) }.encode(header.words());
    bytes[..len].to_vec()
}

/// Inserts a block of extension records after the fixed fields, valid or almost valid.
fn insert_extensions(bytes: &mut Vec<u8>, kind: Kind, input: &mut Input<'_>) {
    let at = match kind {
        Kind::Request | Kind::Response | Kind::Cancel | Kind::Probe => 16,
        Kind::RequestPart
        | Kind::ResponsePart
        | Kind::Credit
        | Kind::Multicast
        | Kind::Announce => 24,
        Kind::Pull => 32,
    };
    let record_type = if input.below(8) == 1 { input.byte() } else { input.below(6) as u8 };
    let value = vec![7; input.below(30)];
    let wrong_by = if input.below(8) == 1 { input.byte() } else { 0 };
    let record = [&[record_type, value.len() as u8 ^ wrong_by], &value[..]].concat();
    let block = [&(record.len() as u16).to_le_bytes(), &record[..]].concat();
    bytes.splice(at..at, block);
}

/// Delivers a frame in flight with some bits changed, truncated, or extended.
pub(super) fn spoil(world: &mut World, input: &mut Input<'_>) {
    let end = input.below(2);
    let Some(mut bytes) = world.ends[end].wire.front().cloned() else { return };
    for _ in 0..=input.below(3) {
        let at = input.below(64) % bytes.len();
        bytes[at] ^= input.byte();
    }
    match input.below(4) {
        0 => bytes.truncate(input.below(64)),
        1 => bytes.push(input.byte()),
        _ => {}
    }
    world.deliver(end, PEER, &bytes);
}

/// Delivers arbitrary bytes.
pub(super) fn any_bytes(world: &mut World, input: &mut Input<'_>) {
    let (end, len) = (input.below(2), input.below(100));
    let bytes = input.take(len).to_vec();
    world.deliver(end, PEER, &bytes);
}
