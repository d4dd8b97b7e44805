//! The codec against arbitrary messages, arbitrary bytes and arbitrary pieces.

use std::net::{IpAddr, SocketAddr};

use proptest::collection::vec;
use proptest::prelude::*;

use super::*;
use crate::Status;
use crate::limits::PATH_PORTS_MAX;

fn status() -> impl Strategy<Value = Status> {
    (0u8..17).prop_map(Status::from_code)
}

/// Texts with characters of every UTF-8 length, of at most `bytes_max` bytes.
fn text(bytes_max: usize) -> impl Strategy<Value = String> {
    vec(any::<char>(), 0..=bytes_max / 4).prop_map(String::from_iter)
}

fn offer() -> impl Strategy<Value = Offer> {
    let max_frame = MAX_FRAME_BYTES_MIN..=MAX_FRAME_BYTES_MAX;
    let shm = max_frame.clone().prop_map(|max_frame| Offer::Shm { max_frame });
    let stream = max_frame.clone().prop_map(|max_frame| Offer::Stream { max_frame });
    let udp =
        (1u16.., max_frame.clone()).prop_map(|(port, max_frame)| Offer::Udp { port, max_frame });
    let verbs = (card_address(), MAX_FRAME_BYTES_MIN..=VERBS_FRAME_BYTES_MAX)
        .prop_map(|(at, max_frame)| Offer::Verbs { at, max_frame });
    let fields = vec(any::<u8>(), 0..=OTHER_OFFER_BYTES_MAX);
    let other = (OTHER_KIND_MIN.., max_frame, fields).prop_map(|(kind, max_frame, fields)| {
        Offer::Other(OtherOffer::new(kind, max_frame, &fields).unwrap())
    });
    prop_oneof![udp, shm, stream, verbs, other]
}

fn card_address() -> impl Strategy<Value = CardAddress> {
    let of_ethernet = any::<[u8; 15]>().prop_map(|rest| {
        let mut gid = [0x20; 16];
        gid[1..].copy_from_slice(&rest);
        (gid, 0)
    });
    let of_subnet = (1u16..0xC000).prop_map(|lid| ([0; 16], lid));
    (prop_oneof![of_ethernet, of_subnet], 2u32..1 << 24, 0u32..1 << 31)
        .prop_map(|((gid, lid), pair, key)| CardAddress { gid, lid, pair, key })
}

fn path_ports() -> impl Strategy<Value = Vec<u16>> {
    prop::collection::hash_set(1u16.., 0..=PATH_PORTS_MAX)
        .prop_map(|ports| ports.into_iter().collect())
}

/// The ports without those that the side offers as path 0.
fn ports_besides(mut ports: Vec<u16>, offers: &[Offer]) -> PathPorts {
    for offer in offers {
        ports.retain(|port| !matches!(offer, Offer::Udp { port: offered, .. } if offered == port));
    }
    PathPorts::new(&ports).unwrap()
}

fn hello() -> impl Strategy<Value = Hello> {
    let rendezvous = prop::option::of(vec(any::<u8>(), 1..=RENDEZVOUS_BYTES_MAX));
    let versions = (any::<u16>(), any::<u16>())
        .prop_map(|(a, b)| VersionRange { min: a.min(b), max: a.max(b) });
    let identity = prop::option::of(any::<[u8; 32]>());
    (versions, 1u64.., 1..=HEARTBEAT_MS_MAX, text(AGENT_BYTES_MAX), identity, rendezvous).prop_map(
        |(versions, incarnation, heartbeat_ms, agent, host_identity, rendezvous)| Hello {
            versions,
            incarnation,
            heartbeat_ms,
            agent,
            host_identity,
            rendezvous,
        },
    )
}

fn link_open() -> impl Strategy<Value = LinkOpen> {
    let endpoint = 0..u16::MAX;
    let offers = vec(offer(), 1..=OFFERS_MAX);
    let extras = (any::<bool>(), path_ports(), any::<[bool; 3]>(), key_path());
    (any::<u32>(), endpoint.clone(), endpoint, offers, extras).prop_map(
        |(
            link,
            from_endpoint,
            to_endpoint,
            offers,
            (ecn, ports, [order, probe, reverse], key_path),
        )| {
            let paths = ports_besides(ports, &offers);
            let probe = probe || offers.iter().any(|offer| offer.kind() == 4);
            let features = LinkFeatures { paths, order, probe, reverse, key_path };
            LinkOpen { link, from_endpoint, to_endpoint, offers, ecn, features }
        },
    )
}

fn link_accept() -> impl Strategy<Value = LinkAccept> {
    let ticket = any::<[u8; 16]>();
    let extras = (any::<bool>(), path_ports(), any::<[bool; 3]>(), data_ip(), key_path());
    (any::<u32>(), offer(), ticket, extras).prop_map(|(link, offer, ticket, extras)| {
        let (ecn, ports, [order, probe, reverse], data_ip, key_path) = extras;
        let ticket = offer.has_ticket().then_some(ticket);
        let paths = ports_besides(ports, &[offer]);
        let probe = probe || offer.kind() == 4;
        let features = LinkFeatures { paths, order, probe, reverse, key_path };
        LinkAccept { link, offer, ticket, ecn, features, data_ip }
    })
}

fn key_path() -> impl Strategy<Value = Option<u32>> {
    proptest::option::of(0..1u32 << 24)
}

fn data_ip() -> impl Strategy<Value = Option<IpAddr>> {
    let v4 = any::<[u8; 3]>().prop_map(|[b, c, d]| IpAddr::from([10, b, c, d]));
    let v6 = any::<u64>()
        .prop_map(|low| IpAddr::from((0xFD_u128 << 120 | u128::from(low)).to_be_bytes()));
    prop_oneof![Just(None), v4.prop_map(Some), v6.prop_map(Some)]
}

fn session_open() -> impl Strategy<Value = SessionOpen> {
    let ids = (any::<u32>(), any::<u32>(), 0..1u32 << 20, any::<u32>());
    let terms = (0u16..=12, 1..=4_096u16, 0..=1u32 << 30, 1_200..=16_777_216u32);
    (ids, terms, 0..1u64 << 47).prop_map(|((link, request, session, token), terms, first)| {
        let (slots_log2, credits, max_message, packet_bytes) = terms;
        let slots = 1 << slots_log2;
        SessionOpen {
            link,
            request,
            session,
            token,
            first_request: first & !(u64::from(slots) - 1),
            slots,
            credits,
            max_message,
            packet_bytes,
        }
    })
}

fn session_accept() -> impl Strategy<Value = SessionAccept> {
    session_open().prop_map(|open| SessionAccept {
        link: open.link,
        request: open.request,
        session: open.session,
        token: open.token,
        slots: open.slots,
        credits: open.credits,
        max_message: open.max_message,
        packet_bytes: open.packet_bytes,
    })
}

fn session_close() -> impl Strategy<Value = SessionClose> {
    let ids = (any::<u32>(), 0..1u32 << 20, any::<u32>(), any::<bool>());
    (ids, status(), text(256)).prop_map(|((link, session, token, from_client), status, text)| {
        SessionClose { link, session, token, from_client, status, text }
    })
}

fn session_drain() -> impl Strategy<Value = SessionDrain> {
    (any::<u32>(), 0..1u32 << 20, any::<u32>(), text(256))
        .prop_map(|(link, session, token, text)| SessionDrain { link, session, token, text })
}

fn stats_reply() -> impl Strategy<Value = StatsReply> {
    let place = (0..u16::MAX, any::<u16>());
    let json = (text(256), 1..200usize).prop_map(|(text, times)| text.repeat(times));
    (any::<u32>(), place, json).prop_map(|(request, (part, more), json)| StatsReply {
        request,
        part,
        parts: part.saturating_add(more).max(part + 1),
        json,
    })
}

fn group_join() -> impl Strategy<Value = GroupJoin> {
    let v4 = (224u8..240, any::<[u8; 3]>()).prop_map(|(a, [b, c, d])| IpAddr::from([a, b, c, d]));
    let v6 = any::<[u8; 15]>().prop_map(|rest| {
        let mut bytes = [0xFF; 16];
        bytes[1..].copy_from_slice(&rest);
        IpAddr::from(bytes)
    });
    let address = (prop_oneof![v4, v6], 1u16..).prop_map(SocketAddr::from);
    let ids = (any::<u32>(), any::<u32>(), 0..1u32 << 20, any::<u32>());
    let group = (0..1u32 << 20, any::<u32>(), address, 1_208..=16_777_216u32);
    (ids, group).prop_map(
        |((link, request, session, token), (group, key, address, packet_bytes))| GroupJoin {
            link,
            request,
            session,
            token,
            group,
            key,
            address,
            packet_bytes,
        },
    )
}

/// Any message allowed after the HELLO.
fn message() -> impl Strategy<Value = Message> {
    let reason = || (any::<u32>(), any::<u32>(), status(), text(TEXT_BYTES_MAX));
    prop_oneof![
        link_open().prop_map_into(),
        link_accept().prop_map_into(),
        reason().prop_map(|(link, _, status, text)| LinkRefuse { link, status, text }.into()),
        reason().prop_map(|(link, _, status, text)| LinkClose { link, status, text }.into()),
        session_open().prop_map_into(),
        session_accept().prop_map_into(),
        reason().prop_map(|(link, request, status, text)| {
            SessionRefuse { link, request, status, text }.into()
        }),
        session_close().prop_map_into(),
        session_drain().prop_map_into(),
        any::<u64>().prop_map(|nonce| Ping { nonce }.into()),
        any::<u64>().prop_map(|nonce| Pong { nonce }.into()),
        any::<u32>().prop_map(|request| StatsRequest { request }.into()),
        stats_reply().prop_map_into(),
        reason().prop_map(|(_, _, status, text)| Goodbye { status, text }.into()),
        group_join().prop_map_into(),
        reason().prop_map(|(link, request, ..)| GroupAccept { link, request }.into()),
        reason().prop_map(|(link, request, status, text)| {
            GroupRefuse { link, request, status, text }.into()
        }),
        (any::<u32>(), 0..1u32 << 20).prop_map(|(link, group)| GroupLeave { link, group }.into()),
        any::<[u8; 16]>().prop_map(|ticket| StreamOpen { ticket }.into()),
        any::<u32>().prop_map(|link| StreamAccept { link }.into()),
    ]
}

/// A whole conversation: HELLO and further messages.
fn conversation() -> impl Strategy<Value = Vec<Message>> {
    (hello(), vec(message(), 0..8)).prop_map(|(hello, mut messages)| {
        messages.insert(0, hello.into());
        messages
    })
}

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

/// Bytes similar to a conversation: with the preface, and some valid headers and records.
fn nearly_sound_bytes() -> impl Strategy<Value = Vec<u8>> {
    let change = (any::<prop::sample::Index>(), any::<u8>());
    (conversation(), vec(change, 0..6), any::<bool>()).prop_map(|(messages, changes, cut)| {
        let mut stream = encoded(&messages);
        for (place, byte) in &changes {
            let place = place.index(stream.len());
            stream[place] = *byte;
            if cut && byte % 16 == 0 {
                stream.truncate(place);
                stream.push(*byte);
            }
        }
        stream
    })
}

proptest! {
    #[test]
    fn decode__gives_back_what_was_encoded(messages in conversation()) {
        prop_assert_eq!(feed_all([&encoded(&messages)[..]]), (messages, None));
    }

    #[test]
    fn decode__in_pieces_of_any_size(messages in conversation(), sizes in vec(1..40usize, 1..20)) {
        let stream = encoded(&messages);
        let mut rest = &stream[..];
        let pieces: Vec<&[u8]> = sizes.iter().cycle().map_while(|size| {
            let (piece, after) = rest.split_at(rest.len().min(*size));
            rest = after;
            (!piece.is_empty()).then_some(piece)
        }).collect();
        prop_assert_eq!(feed_all(pieces), (messages, None));
    }

    #[test]
    fn decode__any_bytes_without_harm(stream in vec(any::<u8>(), 0..4_096)) {
        let with_preface = [&PREFACE[..], &stream].concat();
        feed_all([&stream[..]]);
        feed_all(with_preface.chunks(100));
    }

    #[test]
    fn decode__damage_gives_the_same_end_in_pieces(stream in nearly_sound_bytes()) {
        let whole = feed_all([&stream[..]]);
        prop_assert_eq!(&feed_all(stream.chunks(1)), &whole);
        for message in &whole.0 {
            prop_assert_eq!(message.check(), Ok(()));
        }
    }

    #[test]
    fn decode__error_is_final(stream in nearly_sound_bytes()) {
        let mut decoder = Decoder::new();
        if let (_, Some(error)) = feed(&mut decoder, &stream) {
            prop_assert_eq!(decoder.decode(&mut &b"more"[..]), Err(error));
            prop_assert_eq!(decoder.memory_bytes(), 0);
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(16))]

    #[test]
    fn decode__split_at_every_byte(hello in hello(), message in message()) {
        let messages = vec![Message::from(hello), message];
        let stream = encoded(&messages);
        for split in (0..=stream.len()).take(2_000) {
            let (left, right) = stream.split_at(split);
            prop_assert_eq!(&feed_all([left, right]).0, &messages);
        }
    }
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
