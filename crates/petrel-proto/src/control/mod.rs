//! The control plane's messages (`docs/wire-protocol.md` §8), which two processes exchange over TCP before
//! their endpoints exchange packets.
//!
//! | item | purpose |
//! | --- | --- |
//! | [`Message`] | one message of the conversation; [`Message::encode`] writes it |
//! | [`Decoder`] | turns the bytes of a stream into messages |
//! | [`DecodeError`] | the error in the bytes, and [whose fault](Fault) it is |
//! | [`choose_version`] | the version that two processes use |
//!
//! The module reads neither sockets nor clocks. A decoder's memory is bounded by the largest message that the
//! specification allows, and grows only with received bytes. The decoder checks the range of every value, so
//! callers get messages with valid contents. Callers check messages against the current state, such as
//! existing links and earlier requests.

mod decode;
mod decoder;
mod encode;
mod error;
mod message;
mod negotiate;
mod paths;
mod ranges;
mod records;

#[cfg(test)]
mod refusals;
#[cfg(test)]
mod streams;
#[cfg(test)]
mod vectors;

pub use decoder::Decoder;
pub use error::{DecodeError, Fault};
pub use message::{
    CardAddress, Goodbye, GroupAccept, GroupJoin, GroupLeave, GroupRefuse, Hello, Kind, LinkAccept,
    LinkClose, LinkFeatures, LinkOpen, LinkRefuse, Message, OTHER_KIND_MIN, OTHER_OFFER_BYTES_MAX,
    Offer, OtherOffer, OutOfRange, Ping, Pong, SessionAccept, SessionClose, SessionDrain,
    SessionOpen, SessionRefuse, StatsReply, StatsRequest, StreamAccept, StreamOpen,
};
pub use negotiate::{VersionMismatch, VersionRange, choose_version};
pub use paths::PathPorts;
pub use ranges::may_be_a_host;

use crate::limits::{FIRST_REQUEST_END, PACKET_BYTES_MAX, PACKET_BYTES_MIN, SLOTS_MAX};

/// The first bytes that a side sends.
pub const PREFACE: [u8; 8] = *b"PETREL\r\n";

/// The default TCP port of a process.
pub const DEFAULT_PORT: u16 = 31_850;

/// Bytes of a message before its body: length, type, reserved.
pub const HEADER_BYTES: usize = 8;

/// Longest body before the peer's HELLO: an unknown peer gets no more memory.
pub const BODY_BYTES_MAX_BEFORE_HELLO: usize = 1_024;

/// Longest body after the HELLO.
pub const BODY_BYTES_MAX: usize = 65_536;

/// Longest text for people; the encoder cuts longer texts.
pub const TEXT_BYTES_MAX: usize = 256;

/// Longest `agent` of a HELLO; the encoder cuts longer texts.
pub const AGENT_BYTES_MAX: usize = 64;

/// Longest rendezvous name: the size of a Unix socket's address after the leading zero.
pub const RENDEZVOUS_BYTES_MAX: usize = 107;

/// Most offers in one LINK_OPEN.
pub const OFFERS_MAX: usize = 8;

/// Most bytes of JSON in one STATS_REPLY.
pub const STATS_PART_BYTES_MAX: usize = 60_000;

/// Longest heartbeat interval: bounds the time to detect a hung peer.
pub const HEARTBEAT_MS_MAX: u32 = 10_000;

/// First number that no `key_path` is (§17.2).
pub const KEY_PATH_END: u32 = 1 << 24;

/// Smallest `max_frame` of an offer.
pub const MAX_FRAME_BYTES_MIN: u32 = PACKET_BYTES_MIN + PACKET_OVERHEAD_BYTES;

/// Largest `max_frame` of an offer, of shared memory: datagrams are shorter.
pub const MAX_FRAME_BYTES_MAX: u32 = PACKET_BYTES_MAX + PACKET_OVERHEAD_BYTES;

/// Bytes of `max_frame` reserved for the headers of a packet: `packet_bytes` is the rest.
pub const PACKET_OVERHEAD_BYTES: u32 = crate::limits::PACKET_OVERHEAD_BYTES as u32;

/// Largest `max_frame` of an RDMA card: InfiniBand has no larger packet.
pub const VERBS_FRAME_BYTES_MAX: u32 = 4_096;

/// First local identifier that no single port has: groups have the next ones (InfiniBand specification §4.1.3).
const LID_END: u16 = 0xC000;

/// First number that no queue pair has: 24 bits.
const PAIR_END: u32 = 1 << 24;

/// First key of a queue pair that only privileged processes may use.
const KEY_END: u32 = 1 << 31;

const _: () = {
    assert!(HEARTBEAT_MS_MAX >= 1_000);
    assert!(STATS_PART_BYTES_MAX + 64 <= BODY_BYTES_MAX);
    assert!(STATS_PART_BYTES_MAX <= u16::MAX as usize);
    assert!(MAX_FRAME_BYTES_MIN == 1_232 && MAX_FRAME_BYTES_MAX == 16_777_248);
    assert!(FIRST_REQUEST_END.is_multiple_of(SLOTS_MAX as u64));
};
