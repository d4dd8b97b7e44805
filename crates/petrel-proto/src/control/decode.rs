//! Bodies to messages.

use std::net::{IpAddr, SocketAddr};

use super::records::{Records, Tags};
use super::{
    AGENT_BYTES_MAX, CardAddress, DecodeError, Goodbye, GroupAccept, GroupJoin, GroupLeave,
    GroupRefuse, Hello, Kind, LinkAccept, LinkClose, LinkFeatures, LinkOpen, LinkRefuse, Message,
    Offer, OtherOffer, OutOfRange, PathPorts, Ping, Pong, STATS_PART_BYTES_MAX, SessionAccept,
    SessionClose, SessionDrain, SessionOpen, SessionRefuse, StatsReply, StatsRequest, StreamAccept,
    StreamOpen, TEXT_BYTES_MAX, VersionRange,
};
use crate::limits::PATH_PORTS_MAX;

/// Decodes one body. Every value of the result is in range.
pub(super) fn decode_body(kind: Kind, body: &[u8]) -> Result<Message, DecodeError> {
    let records = Records::read(kind, tags(kind), body)?;
    let message: Message = match kind {
        Kind::Hello => read_hello(&records)?.into(),
        Kind::LinkOpen => read_link_open(&records)?.into(),
        Kind::LinkAccept => read_link_accept(&records)?.into(),
        Kind::LinkRefuse => read_link_refuse(&records)?.into(),
        Kind::LinkClose => read_link_close(&records)?.into(),
        Kind::SessionOpen => read_session_open(&records)?.into(),
        Kind::SessionAccept => read_session_accept(&records)?.into(),
        Kind::SessionRefuse => read_session_refuse(&records)?.into(),
        Kind::SessionClose => read_session_close(&records)?.into(),
        Kind::Ping => Ping { nonce: records.u64(1)? }.into(),
        Kind::Pong => Pong { nonce: records.u64(1)? }.into(),
        Kind::StatsRequest => StatsRequest { request: records.u32(1)? }.into(),
        Kind::StatsReply => read_stats_reply(&records)?.into(),
        Kind::Goodbye => read_goodbye(&records)?.into(),
        Kind::SessionDrain => read_session_drain(&records)?.into(),
        Kind::GroupJoin => read_group_join(&records)?.into(),
        Kind::GroupAccept => GroupAccept { link: records.u32(1)?, request: records.u32(2)? }.into(),
        Kind::GroupRefuse => read_group_refuse(&records)?.into(),
        Kind::StreamOpen => StreamOpen { ticket: read_ticket(&records)? }.into(),
        Kind::StreamAccept => StreamAccept { link: records.u32(1)? }.into(),
        Kind::GroupLeave => GroupLeave { link: records.u32(1)?, group: records.u32(5)? }.into(),
    };
    assert_eq!(message.kind(), kind, "a body is read as the message of its type");
    message.check()?;
    Ok(message)
}

/// The records of every message (§8.2).
const fn tags(kind: Kind) -> &'static Tags {
    const fn single(single: &'static [u16]) -> Tags {
        Tags { single, repeated: None }
    }
    match kind {
        Kind::Hello => const { &single(&[1, 2, 3, 4, 5, 6, 7]) },
        Kind::LinkOpen => {
            const { &Tags { single: &[1, 2, 3, 8, 9, 10, 11, 13, 14], repeated: Some(4) } }
        }
        Kind::LinkAccept => const { &single(&[1, 4, 5, 8, 9, 10, 11, 12, 13, 14]) },
        Kind::LinkRefuse | Kind::LinkClose => const { &single(&[1, 6, 7]) },
        Kind::SessionOpen => const { &single(&[1, 2, 3, 4, 5, 6, 7, 8, 9]) },
        Kind::SessionAccept => const { &single(&[1, 2, 3, 4, 6, 7, 8, 9]) },
        Kind::SessionRefuse => const { &single(&[1, 2, 10, 11]) },
        Kind::SessionClose => const { &single(&[1, 3, 4, 10, 11, 12]) },
        Kind::Ping | Kind::Pong | Kind::StatsRequest | Kind::StreamOpen | Kind::StreamAccept => {
            const { &single(&[1]) }
        }
        Kind::StatsReply => const { &single(&[1, 2, 3, 4]) },
        Kind::Goodbye | Kind::GroupAccept => const { &single(&[1, 2]) },
        Kind::SessionDrain => const { &single(&[1, 3, 4, 11]) },
        Kind::GroupJoin => const { &single(&[1, 2, 3, 4, 5, 6, 7, 9]) },
        Kind::GroupRefuse => const { &single(&[1, 2, 10, 11]) },
        Kind::GroupLeave => const { &single(&[1, 5]) },
    }
}

fn read_hello(records: &Records<'_>) -> Result<Hello, DecodeError> {
    Ok(Hello {
        versions: VersionRange { min: records.u16(1)?, max: records.u16(2)? },
        incarnation: records.u64(3)?,
        heartbeat_ms: records.u32(4)?,
        agent: records.text(5, AGENT_BYTES_MAX)?,
        host_identity: records.optional_array(6)?,
        rendezvous: records.optional(7).map(<[u8]>::to_vec),
    })
}

fn read_link_open(records: &Records<'_>) -> Result<LinkOpen, DecodeError> {
    if records.repeated().is_empty() {
        return Err(DecodeError::RecordMissing { kind: Kind::LinkOpen, tag: 4 });
    }
    let offers = records.repeated().iter();
    Ok(LinkOpen {
        link: records.u32(1)?,
        from_endpoint: records.u16(2)?,
        to_endpoint: records.u16(3)?,
        offers: offers
            .filter_map(|value| read_offer(Kind::LinkOpen, value).transpose())
            .collect::<Result<_, _>>()?,
        ecn: records.flag(8)?,
        features: read_features(records)?,
    })
}

fn read_link_accept(records: &Records<'_>) -> Result<LinkAccept, DecodeError> {
    let kind = Kind::LinkAccept;
    let offer = read_offer(kind, records.bytes(4)?)?;
    Ok(LinkAccept {
        link: records.u32(1)?,
        offer: offer.ok_or(OutOfRange { kind, field: "offer" })?,
        ticket: records.optional_array(5)?,
        ecn: records.flag(8)?,
        features: read_features(records)?,
        data_ip: read_data_ip(records)?,
    })
}

fn read_data_ip(records: &Records<'_>) -> Result<Option<IpAddr>, DecodeError> {
    let (kind, tag) = (records.kind(), 12);
    let Some(value) = records.optional(tag) else { return Ok(None) };
    read_ip(value).map(Some).ok_or(DecodeError::RecordLength { kind, tag })
}

fn read_features(records: &Records<'_>) -> Result<LinkFeatures, DecodeError> {
    Ok(LinkFeatures {
        paths: read_paths(records)?,
        order: records.flag(10)?,
        probe: records.flag(11)?,
        reverse: records.flag(14)?,
        key_path: records.optional_array(13)?.map(u32::from_le_bytes),
    })
}

/// Reads the further source ports of a side.
fn read_paths(records: &Records<'_>) -> Result<PathPorts, DecodeError> {
    let (kind, tag) = (records.kind(), 9);
    let Some(value) = records.optional(tag) else { return Ok(PathPorts::NONE) };
    let (pairs, odd) = value.as_chunks::<2>();
    if !odd.is_empty() || !(1..=PATH_PORTS_MAX).contains(&pairs.len()) {
        return Err(DecodeError::RecordLength { kind, tag });
    }
    let ports: Vec<u16> = pairs.iter().map(|pair| u16::from_le_bytes(*pair)).collect();
    PathPorts::new(&ports).ok_or(OutOfRange { kind, field: "paths" }.into())
}

/// Reads an offer. Returns `None` for a transport unknown to version 1 that is not one of the programs' own.
fn read_offer(kind: Kind, value: &[u8]) -> Result<Option<Offer>, DecodeError> {
    match *value {
        [1, p0, p1, f0, f1, f2, f3] => Ok(Some(Offer::Udp {
            port: u16::from_le_bytes([p0, p1]),
            max_frame: u32::from_le_bytes([f0, f1, f2, f3]),
        })),
        [2, f0, f1, f2, f3] => {
            Ok(Some(Offer::Shm { max_frame: u32::from_le_bytes([f0, f1, f2, f3]) }))
        }
        [3, f0, f1, f2, f3] => {
            Ok(Some(Offer::Stream { max_frame: u32::from_le_bytes([f0, f1, f2, f3]) }))
        }
        [4, ref fields @ ..] => match fields.len() {
            VERBS_OFFER_BYTES => Ok(Some(read_verbs_offer(fields))),
            _ => Err(DecodeError::RecordLength { kind, tag: 4 }),
        },
        [] | [1..=3, ..] => Err(DecodeError::RecordLength { kind, tag: 4 }),
        [other, f0, f1, f2, f3, ref fields @ ..] => {
            let max_frame = u32::from_le_bytes([f0, f1, f2, f3]);
            Ok(OtherOffer::new(other, max_frame, fields).map(Offer::Other))
        }
        _ => Ok(None),
    }
}

/// Bytes of an offer of an RDMA card, behind the kind.
const VERBS_OFFER_BYTES: usize = 30;

fn read_verbs_offer(fields: &[u8]) -> Offer {
    let word = |at: usize| u32::from_le_bytes([0, 1, 2, 3].map(|byte| fields[at + byte]));
    let mut gid = [0; 16];
    gid.copy_from_slice(&fields[..16]);
    let lid = u16::from_le_bytes([fields[16], fields[17]]);
    let at = CardAddress { gid, lid, pair: word(18), key: word(22) };
    Offer::Verbs { at, max_frame: word(26) }
}

fn read_link_refuse(records: &Records<'_>) -> Result<LinkRefuse, DecodeError> {
    Ok(LinkRefuse {
        link: records.u32(1)?,
        status: records.status(6)?,
        text: records.text(7, TEXT_BYTES_MAX)?,
    })
}

fn read_link_close(records: &Records<'_>) -> Result<LinkClose, DecodeError> {
    Ok(LinkClose {
        link: records.u32(1)?,
        status: records.status(6)?,
        text: records.text(7, TEXT_BYTES_MAX)?,
    })
}

fn read_session_open(records: &Records<'_>) -> Result<SessionOpen, DecodeError> {
    Ok(SessionOpen {
        link: records.u32(1)?,
        request: records.u32(2)?,
        session: records.u32(3)?,
        token: records.u32(4)?,
        first_request: records.u64(5)?,
        slots: records.u16(6)?,
        credits: records.u16(7)?,
        max_message: records.u32(8)?,
        packet_bytes: records.u32(9)?,
    })
}

fn read_session_accept(records: &Records<'_>) -> Result<SessionAccept, DecodeError> {
    Ok(SessionAccept {
        link: records.u32(1)?,
        request: records.u32(2)?,
        session: records.u32(3)?,
        token: records.u32(4)?,
        slots: records.u16(6)?,
        credits: records.u16(7)?,
        max_message: records.u32(8)?,
        packet_bytes: records.u32(9)?,
    })
}

fn read_session_refuse(records: &Records<'_>) -> Result<SessionRefuse, DecodeError> {
    Ok(SessionRefuse {
        link: records.u32(1)?,
        request: records.u32(2)?,
        status: records.status(10)?,
        text: records.text(11, TEXT_BYTES_MAX)?,
    })
}

fn read_session_close(records: &Records<'_>) -> Result<SessionClose, DecodeError> {
    let from_client = match records.u8(12)? {
        0 => false,
        1 => true,
        _ => Err(OutOfRange { kind: Kind::SessionClose, field: "from_client" })?,
    };
    Ok(SessionClose {
        link: records.u32(1)?,
        session: records.u32(3)?,
        token: records.u32(4)?,
        from_client,
        status: records.status(10)?,
        text: records.text(11, TEXT_BYTES_MAX)?,
    })
}

fn read_session_drain(records: &Records<'_>) -> Result<SessionDrain, DecodeError> {
    Ok(SessionDrain {
        link: records.u32(1)?,
        session: records.u32(3)?,
        token: records.u32(4)?,
        text: records.text(11, TEXT_BYTES_MAX)?,
    })
}

fn read_stats_reply(records: &Records<'_>) -> Result<StatsReply, DecodeError> {
    Ok(StatsReply {
        request: records.u32(1)?,
        part: records.u16(2)?,
        parts: records.u16(3)?,
        json: records.text(4, STATS_PART_BYTES_MAX)?,
    })
}

fn read_group_join(records: &Records<'_>) -> Result<GroupJoin, DecodeError> {
    Ok(GroupJoin {
        link: records.u32(1)?,
        request: records.u32(2)?,
        session: records.u32(3)?,
        token: records.u32(4)?,
        group: records.u32(5)?,
        key: records.u32(6)?,
        address: read_address(records.bytes(7)?)
            .ok_or(DecodeError::RecordLength { kind: Kind::GroupJoin, tag: 7 })?,
        packet_bytes: records.u32(9)?,
    })
}

fn read_address(value: &[u8]) -> Option<SocketAddr> {
    let (port, ip) = value.split_first_chunk::<2>()?;
    Some(SocketAddr::new(read_ip(ip)?, u16::from_le_bytes(*port)))
}

fn read_ip(value: &[u8]) -> Option<IpAddr> {
    Some(match *value {
        [a, b, c, d] => IpAddr::from([a, b, c, d]),
        _ => IpAddr::from(<[u8; 16]>::try_from(value).ok()?),
    })
}

fn read_group_refuse(records: &Records<'_>) -> Result<GroupRefuse, DecodeError> {
    Ok(GroupRefuse {
        link: records.u32(1)?,
        request: records.u32(2)?,
        status: records.status(10)?,
        text: records.text(11, TEXT_BYTES_MAX)?,
    })
}

fn read_ticket(records: &Records<'_>) -> Result<[u8; 16], DecodeError> {
    let missing = DecodeError::RecordMissing { kind: Kind::StreamOpen, tag: 1 };
    records.optional_array(1)?.ok_or(missing)
}

fn read_goodbye(records: &Records<'_>) -> Result<Goodbye, DecodeError> {
    Ok(Goodbye { status: records.status(1)?, text: records.text(2, TEXT_BYTES_MAX)? })
}
