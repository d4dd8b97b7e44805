//! Every record and every field of every message, with every kind of error (§8.1, §8.2): compares the tables
//! of the specification with the decoder and the encoder.

use super::decode::decode_body;
use super::*;
use crate::Status;

/// The length of a record, and its presence.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Form {
    /// Required, with the length in the table.
    Fixed,
    /// Optional, with the length in the table.
    Optional,
    /// Optional, of any length.
    Free,
    /// Required, a text of at most this number of bytes.
    Text(usize),
    /// At least one is required, at most [`OFFERS_MAX`] are allowed.
    Offers,
}

use Form::{Fixed, Free, Offers, Optional, Text};

pub(super) type Record = (u16, Vec<u8>, Form);

fn u16_(tag: u16, value: u16) -> Record {
    (tag, value.to_le_bytes().to_vec(), Fixed)
}

fn u32_(tag: u16, value: u32) -> Record {
    (tag, value.to_le_bytes().to_vec(), Fixed)
}

fn u64_(tag: u16, value: u64) -> Record {
    (tag, value.to_le_bytes().to_vec(), Fixed)
}

fn text(tag: u16, bytes_max: usize) -> Record {
    (tag, b"text".to_vec(), Text(bytes_max))
}

fn status(tag: u16) -> Record {
    (tag, vec![14], Fixed)
}

/// Returns all records of a message in encoding order, each with a distinct value.
pub(super) fn records(kind: Kind) -> Vec<Record> {
    let udp = vec![1, 0x39, 0x30, 0xC0, 5, 0, 0];
    match kind {
        Kind::Hello => vec![
            u16_(1, 1),
            u16_(2, 3),
            u64_(3, 0x1122_3344_5566_7788),
            u32_(4, 1_000),
            text(5, 64),
            (6, (1..=32).collect(), Optional),
            (7, b"name".to_vec(), Free),
        ],
        Kind::LinkOpen => vec![
            u32_(1, 71),
            u16_(2, 72),
            u16_(3, 73),
            (4, udp, Offers),
            (8, vec![], Optional),
            (9, vec![0x3A, 0x30], Optional),
            (10, vec![], Optional),
            (11, vec![], Optional),
            (13, vec![1, 0, 0, 0], Optional),
            (14, vec![], Optional),
        ],
        Kind::LinkAccept => vec![
            u32_(1, 71),
            (4, vec![2, 0xC0, 5, 0, 0], Fixed),
            (5, (1..=16).collect(), Optional),
            (8, vec![], Optional),
            (9, vec![0x3A, 0x30], Optional),
            (10, vec![], Optional),
            (11, vec![], Optional),
            (13, vec![1, 0, 0, 0], Optional),
            (14, vec![], Optional),
            (12, vec![10, 0, 0, 1], Optional),
        ],
        Kind::LinkRefuse | Kind::LinkClose => vec![u32_(1, 71), status(6), text(7, 256)],
        Kind::SessionOpen => vec![
            u32_(1, 71),
            u32_(2, 72),
            u32_(3, 73),
            u32_(4, 74),
            u64_(5, 0x7788_9900),
            u16_(6, 8),
            u16_(7, 32),
            u32_(8, 1 << 23),
            u32_(9, 1_408),
        ],
        Kind::SessionAccept => vec![
            u32_(1, 71),
            u32_(2, 72),
            u32_(3, 73),
            u32_(4, 74),
            u16_(6, 8),
            u16_(7, 32),
            u32_(8, 1 << 23),
            u32_(9, 1_408),
        ],
        Kind::SessionRefuse | Kind::GroupRefuse => {
            vec![u32_(1, 71), u32_(2, 72), status(10), text(11, 256)]
        }
        Kind::SessionClose => vec![
            u32_(1, 71),
            u32_(3, 73),
            u32_(4, 74),
            (12, vec![1], Fixed),
            status(10),
            text(11, 256),
        ],
        Kind::Ping | Kind::Pong => vec![u64_(1, 0x1122_3344_5566_7788)],
        Kind::StatsRequest => vec![u32_(1, 71)],
        Kind::StatsReply => vec![u32_(1, 71), u16_(2, 2), u16_(3, 3), text(4, 60_000)],
        Kind::Goodbye => vec![status(1), text(2, 256)],
        Kind::SessionDrain => vec![u32_(1, 71), u32_(3, 73), u32_(4, 74), text(11, 256)],
        Kind::GroupJoin => vec![
            u32_(1, 71),
            u32_(2, 72),
            u32_(3, 73),
            u32_(4, 74),
            u32_(5, 75),
            u32_(6, 76),
            (7, vec![0x39, 0x30, 239, 1, 2, 3], Fixed),
            u32_(9, 1_408),
        ],
        Kind::GroupAccept => vec![u32_(1, 71), u32_(2, 72)],
        Kind::StreamOpen => vec![(1, (1..=16).collect(), Fixed)],
        Kind::StreamAccept => vec![u32_(1, 71)],
        Kind::GroupLeave => vec![u32_(1, 71), u32_(5, 75)],
    }
}

fn body(records: &[Record]) -> Vec<u8> {
    let mut out = Vec::new();
    records.iter().for_each(|(tag, value, _)| records::write(&mut out, *tag, value));
    out
}

pub(super) fn decoded(kind: Kind, records: &[Record]) -> Result<Message, DecodeError> {
    decode_body(kind, &body(records))
}

fn changed(records: &[Record], place: usize, change: impl FnOnce(&mut Vec<u8>)) -> Vec<Record> {
    let mut records = records.to_vec();
    change(&mut records[place].1);
    records
}

/// All records of all messages: the message's kind, its records, and the record's place.
fn each() -> impl Iterator<Item = (Kind, Vec<Record>, usize)> {
    Kind::ALL.into_iter().flat_map(|kind| {
        let records = records(kind);
        (0..records.len()).map(move |place| (kind, records.clone(), place))
    })
}

#[test]
fn records__are_those_of_the_table_both_ways() {
    for kind in Kind::ALL {
        let records = records(kind);
        let message = decoded(kind, &records).unwrap();
        assert_eq!(message.kind(), kind);
        let mut out = b"before".to_vec();
        message.encode(&mut out).unwrap();
        let expected = body(&records);
        let mut header = (expected.len() as u32).to_le_bytes().to_vec();
        header.extend_from_slice(&kind.code().to_le_bytes());
        header.extend_from_slice(&[0, 0]);
        assert_eq!(out, [&b"before"[..], &header, &expected].concat(), "{kind:?}");
    }
}

#[test]
fn records__in_another_order_say_the_same() {
    for kind in Kind::ALL {
        let mut records = records(kind);
        let message = decoded(kind, &records);
        records.reverse();
        assert_eq!(decoded(kind, &records), message, "{kind:?}");
    }
}

#[test]
fn record__that_is_missing() {
    for (kind, mut records, place) in each() {
        let whole = decoded(kind, &records).unwrap();
        let (tag, _, form) = records.remove(place);
        let got = decoded(kind, &records);
        match form {
            // The ticket required with shared memory.
            Optional if (kind, tag) == (Kind::LinkAccept, 5) => {
                let field = "ticket";
                assert_eq!(got, Err(DecodeError::OutOfRange(OutOfRange { kind, field })));
            }
            Optional | Free => assert_ne!(got.unwrap(), whole, "{kind:?} without {tag}"),
            Fixed | Text(_) | Offers => {
                assert_eq!(got, Err(DecodeError::RecordMissing { kind, tag }));
            }
        }
    }
}

#[test]
fn record__of_another_length() {
    for (kind, records, place) in each() {
        let (tag, ref value, form) = records[place];
        let of_length = |length: usize| {
            let records = changed(&records, place, |value| value.resize(length, b'x'));
            decoded(kind, &records)
        };
        let wrong = DecodeError::RecordLength { kind, tag };
        match form {
            Text(bytes_max) => {
                assert!(of_length(0).is_ok() && of_length(bytes_max).is_ok(), "{kind:?} {tag}");
                assert_eq!(of_length(bytes_max + 1), Err(wrong));
            }
            Free => assert!(of_length(1).is_ok()),
            Fixed | Optional | Offers => {
                assert_eq!(of_length(value.len() + 1), Err(wrong));
                for length in 0..value.len() {
                    assert_eq!(of_length(length), Err(wrong), "{length} bytes");
                }
            }
        }
    }
}

#[test]
fn record__that_is_no_text() {
    for (kind, records, place) in each() {
        let (tag, _, form) = records[place];
        if matches!(form, Text(_)) {
            let records = changed(&records, place, |value| value[2] = 0xFF);
            assert_eq!(decoded(kind, &records), Err(DecodeError::RecordText { kind, tag }));
        }
    }
}

#[test]
fn record__that_is_repeated() {
    for (kind, mut records, place) in each() {
        let again = records[place].clone();
        let tag = again.0;
        if again.2 == Offers {
            (1..OFFERS_MAX).for_each(|_| records.push(again.clone()));
            assert!(decoded(kind, &records).is_ok(), "{OFFERS_MAX} offers");
        }
        records.push(again);
        assert_eq!(decoded(kind, &records), Err(DecodeError::RecordRepeated { kind, tag }));
    }
}

#[test]
fn record__that_is_not_known() {
    for kind in Kind::ALL {
        let records = records(kind);
        let message = decoded(kind, &records);
        for tag in 0..20 {
            let with = |tag: u16| [&records[..], &[(tag, vec![1], Free)]].concat();
            if records.iter().all(|(known, ..)| *known != tag) {
                assert_eq!(decoded(kind, &with(tag)), message, "{kind:?} with {tag}");
            }
            let tag = tag | 1 << 15;
            assert_eq!(decoded(kind, &with(tag)), Err(DecodeError::RecordUnknown { kind, tag }));
        }
    }
}

/// Returns a message with some records changed to these bytes.
fn with(kind: Kind, values: &[(u16, &[u8])]) -> Result<Message, DecodeError> {
    let mut records = records(kind);
    for (tag, bytes) in values {
        match records.iter_mut().find(|(other, ..)| other == tag) {
            Some(record) => record.1 = bytes.to_vec(),
            None => records.push((*tag, bytes.to_vec(), Free)),
        }
    }
    decoded(kind, &records)
}

/// A field's name, the tag of its record, and values at the ends of its range: the valid and the invalid
/// ones.
type Bounds = (Kind, &'static str, u16, Vec<Vec<u8>>, Vec<Vec<u8>>);

fn of_u16<const N: usize>(values: [u16; N]) -> Vec<Vec<u8>> {
    values.iter().map(|value| value.to_le_bytes().to_vec()).collect()
}

fn of_u32<const N: usize>(values: [u32; N]) -> Vec<Vec<u8>> {
    values.iter().map(|value| value.to_le_bytes().to_vec()).collect()
}

fn of_u64<const N: usize>(values: [u64; N]) -> Vec<Vec<u8>> {
    values.iter().map(|value| value.to_le_bytes().to_vec()).collect()
}

fn udp_offer(port: u16, max_frame: u32) -> Vec<u8> {
    [&[1], &port.to_le_bytes()[..], &max_frame.to_le_bytes()].concat()
}

fn shm_offer(max_frame: u32) -> Vec<u8> {
    [&[2], &max_frame.to_le_bytes()[..]].concat()
}

fn address(port: u16, ip: &[u8]) -> Vec<u8> {
    [&port.to_le_bytes(), ip].concat()
}

const SESSIONS: u32 = 1 << 20;

fn bounds() -> Vec<Bounds> {
    let (least, most) = (1_232, 16_777_248);
    let name = |length: usize| vec![b'n'; length];
    let any_ip = &[255, 2, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 9];
    let one_ip = &[0xFE, 0x80, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 9];
    let mut all: Vec<Bounds> = vec![
        (Kind::Hello, "version_min", 1, of_u16([0, 3]), of_u16([4])),
        (Kind::Hello, "incarnation", 3, of_u64([1, u64::MAX]), of_u64([0])),
        (Kind::Hello, "heartbeat", 4, of_u32([1, 10_000]), of_u32([0, 10_001])),
        (Kind::Hello, "rendezvous", 7, vec![name(1), name(107)], vec![name(0), name(108)]),
        (Kind::LinkOpen, "from_endpoint", 2, of_u16([0, 65_534]), of_u16([65_535])),
        (Kind::LinkOpen, "to_endpoint", 3, of_u16([0, 65_534]), of_u16([65_535])),
        (
            Kind::LinkOpen,
            "offer.max_frame",
            4,
            vec![udp_offer(1, least), udp_offer(1, most), shm_offer(least), shm_offer(most)],
            vec![udp_offer(1, least - 1), udp_offer(1, most + 1), shm_offer(least - 1)],
        ),
        (
            Kind::LinkOpen,
            "offer.port",
            4,
            vec![udp_offer(1, least), udp_offer(65_535, least)],
            vec![udp_offer(0, least)],
        ),
        (
            Kind::LinkAccept,
            "offer.max_frame",
            4,
            vec![shm_offer(least), shm_offer(most)],
            vec![shm_offer(least - 1), shm_offer(most + 1)],
        ),
        // A transport unknown to version 1, and UDP with a ticket.
        (Kind::LinkAccept, "offer", 4, vec![], vec![vec![5, 1], vec![0]]),
        (
            Kind::LinkAccept,
            "data_ip",
            12,
            vec![vec![192, 0, 2, 255], one_ip.to_vec()],
            vec![vec![0; 4], vec![0; 16], vec![224, 0, 0, 1], vec![255; 4], vec![255; 16]],
        ),
        (Kind::LinkAccept, "ticket", 4, vec![], vec![udp_offer(1, least)]),
        (
            Kind::SessionOpen,
            "first_request",
            5,
            of_u64([0, 8, (1 << 47) - 8]),
            of_u64([4, 1 << 47, u64::MAX - 7]),
        ),
        (Kind::SessionClose, "from_client", 12, vec![vec![0], vec![1]], vec![vec![2], vec![255]]),
        (Kind::StatsReply, "part", 2, of_u16([0, 2]), of_u16([3, 4])),
        (Kind::GroupJoin, "group", 5, of_u32([0, SESSIONS - 1]), of_u32([SESSIONS])),
        (Kind::GroupLeave, "group", 5, of_u32([0, SESSIONS - 1]), of_u32([SESSIONS])),
        (
            Kind::GroupJoin,
            "address",
            7,
            vec![address(1, &[224, 0, 0, 1]), address(65_535, any_ip)],
            vec![address(0, &[224, 0, 0, 1]), address(1, &[10, 0, 0, 1]), address(1, one_ip)],
        ),
    ];
    let most_ports: Vec<u16> = (1..=31).collect();
    let path_ports = |ports: &[u16]| ports.iter().flat_map(|port| port.to_le_bytes()).collect();
    let own_port = 0x3039;
    for kind in [Kind::LinkOpen, Kind::LinkAccept] {
        let valid = vec![path_ports(&[65_535]), path_ports(&most_ports)];
        let mut invalid = vec![path_ports(&[0]), path_ports(&[7, 8, 7])];
        if kind == Kind::LinkOpen {
            invalid.push(path_ports(&[7, own_port]));
        }
        all.push((kind, "paths", 9, valid, invalid));
        all.push((kind, "key_path", 13, of_u32([0, (1 << 24) - 1]), of_u32([1 << 24, u32::MAX])));
    }
    for kind in [Kind::SessionOpen, Kind::SessionAccept] {
        let messages = of_u32([0, 1 << 30]);
        all.push((kind, "slots", 6, of_u16([1, 8, 4_096]), of_u16([0, 6, 8_192])));
        all.push((kind, "credits", 7, of_u16([1, 4_096]), of_u16([0, 4_097])));
        all.push((kind, "max_message", 8, messages, of_u32([(1 << 30) + 1])));
    }
    for kind in [Kind::SessionOpen, Kind::SessionAccept, Kind::GroupJoin] {
        let packets = of_u32([1_200, 16 << 20]);
        all.push((kind, "packet_bytes", 9, packets, of_u32([1_199, (16 << 20) + 1])));
    }
    for kind in [
        Kind::SessionOpen,
        Kind::SessionAccept,
        Kind::SessionClose,
        Kind::SessionDrain,
        Kind::GroupJoin,
    ] {
        all.push((kind, "session", 3, of_u32([0, SESSIONS - 1]), of_u32([SESSIONS])));
    }
    all
}

#[test]
fn field__at_the_ends_of_its_range() {
    for (kind, field, tag, may_be, may_not) in bounds() {
        for value in may_be {
            // The largest number of slots needs a suitable first request.
            let message = match (kind, tag) {
                (Kind::SessionOpen, 6) => with(kind, &[(6, &value), (5, &0u64.to_le_bytes())]),
                _ => with(kind, &[(tag, &value)]),
            };
            assert!(message.is_ok(), "{kind:?} {field} {value:?}: {message:?}");
        }
        for value in may_not {
            let refused = Err(DecodeError::OutOfRange(OutOfRange { kind, field }));
            assert_eq!(with(kind, &[(tag, &value)]), refused, "{value:?}");
        }
    }
}

/// The encoder refuses all values that the decoder refuses, and leaves its buffer unchanged.
#[test]
fn encode__of_a_value_out_of_range() {
    let offers = vec![Offer::Shm { max_frame: 4_096 }; OFFERS_MAX + 1];
    let open = LinkOpen {
        link: 1,
        from_endpoint: 0,
        to_endpoint: 0,
        offers,
        ecn: false,
        features: LinkFeatures::NONE,
    };
    let json = "j".repeat(STATS_PART_BYTES_MAX + 1);
    let reply = StatsReply { request: 1, part: 0, parts: 1, json };
    for (message, field) in [(Message::from(open), "offer"), (reply.into(), "json")] {
        let mut out = b"before".to_vec();
        let kind = message.kind();
        assert_eq!(message.encode(&mut out), Err(OutOfRange { kind, field }));
        assert_eq!(out, b"before");
    }
}

#[test]
fn encode__cuts_texts_for_people() {
    let long = "ü".repeat(200);
    for kind in Kind::ALL {
        let mut message = decoded(kind, &records(kind)).unwrap();
        let (text, bytes_max) = match &mut message {
            Message::Hello(hello) => (&mut hello.agent, AGENT_BYTES_MAX),
            Message::LinkRefuse(LinkRefuse { text, .. })
            | Message::LinkClose(LinkClose { text, .. })
            | Message::SessionRefuse(SessionRefuse { text, .. })
            | Message::SessionClose(SessionClose { text, .. })
            | Message::SessionDrain(SessionDrain { text, .. })
            | Message::GroupRefuse(GroupRefuse { text, .. })
            | Message::Goodbye(Goodbye { text, .. }) => (text, TEXT_BYTES_MAX),
            _ => continue,
        };
        text.clone_from(&long);
        let cut = long[..bytes_max].to_owned();
        let (mut out, mut expected) = (Vec::new(), Vec::new());
        message.encode(&mut out).unwrap();
        // The message with the text that the receiver is to get.
        let mut records = records(kind);
        let place = records.iter().position(|(.., form)| matches!(form, Text(_))).unwrap();
        records[place].1 = cut.into_bytes();
        decoded(kind, &records).unwrap().encode(&mut expected).unwrap();
        assert_eq!(out, expected, "{kind:?}");
    }
}

#[test]
fn fault__and_status_of_each_error() {
    let kind = Kind::Hello;
    let (tag, limit) = (1, BODY_BYTES_MAX);
    for (error, fault, status) in [
        (DecodeError::NotPetrel, Fault::Stranger, Status::InvalidArgument),
        (DecodeError::HelloExpected { code: 2 }, Fault::Peer, Status::InvalidArgument),
        (DecodeError::HelloRepeated, Fault::Peer, Status::InvalidArgument),
        (DecodeError::TooLong { code: 2, length: 3, limit }, Fault::Peer, Status::InvalidArgument),
        (DecodeError::RecordsDoNotFit { kind }, Fault::Peer, Status::InvalidArgument),
        (DecodeError::RecordMissing { kind, tag }, Fault::Peer, Status::InvalidArgument),
        (DecodeError::RecordRepeated { kind, tag }, Fault::Peer, Status::InvalidArgument),
        (DecodeError::RecordLength { kind, tag }, Fault::Peer, Status::InvalidArgument),
        (DecodeError::RecordText { kind, tag }, Fault::Peer, Status::InvalidArgument),
        (DecodeError::RecordUnknown { kind, tag }, Fault::Version, Status::Unimplemented),
        (OutOfRange { kind, field: "f" }.into(), Fault::Peer, Status::InvalidArgument),
    ] {
        assert_eq!((error.fault(), error.status()), (fault, status), "{error}");
    }
}

/// An offer of another transport is left out where it does not keep the form: an older side ignores any.
#[test]
fn other_offer__out_of_its_range_is_no_offer() {
    let value = |kind: u8, max_frame: u32, fields: usize| {
        [&[kind][..], &max_frame.to_le_bytes(), &vec![7; fields]].concat()
    };
    let offers = |value: Vec<u8>| {
        let udp = udp_offer(1, MAX_FRAME_BYTES_MIN);
        let records = [u32_(1, 71), u16_(2, 72), u16_(3, 73), (4, udp, Offers), (4, value, Offers)];
        match decoded(Kind::LinkOpen, &records) {
            Ok(Message::LinkOpen(open)) => open.offers,
            other => panic!("no LINK_OPEN: {other:?}"),
        }
    };
    let (least, most) = (MAX_FRAME_BYTES_MIN, OTHER_OFFER_BYTES_MAX);
    for (kind, max_frame, fields) in [(OTHER_KIND_MIN, least, 0), (255, MAX_FRAME_BYTES_MAX, most)]
    {
        let found = offers(value(kind, max_frame, fields));
        let other = OtherOffer::new(kind, max_frame, &vec![7; fields]).unwrap();
        assert_eq!(found[1..], [Offer::Other(other)]);
        assert_eq!((found[1].kind(), found[1].max_frame()), (kind, max_frame));
        assert!(!found[0].is_same_transport(found[1]));
    }
    let too_many = most + 1;
    for (kind, max_frame, fields) in [
        (OTHER_KIND_MIN - 1, least, 0),
        (5, least, 0),
        (OTHER_KIND_MIN, least - 1, 0),
        (OTHER_KIND_MIN, MAX_FRAME_BYTES_MAX + 1, 0),
        (OTHER_KIND_MIN, least, too_many),
    ] {
        assert_eq!(offers(value(kind, max_frame, fields)).len(), 1, "{kind} {max_frame} {fields}");
        assert_eq!(OtherOffer::new(kind, max_frame, &vec![7; fields]), None);
    }
    assert_eq!(offers(vec![OTHER_KIND_MIN, 1, 2, 3]).len(), 1);
}
