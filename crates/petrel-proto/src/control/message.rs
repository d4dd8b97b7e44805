//! The messages as values.

use std::fmt;
use std::net::{IpAddr, SocketAddr};

use thiserror::Error;

use super::{MAX_FRAME_BYTES_MAX, MAX_FRAME_BYTES_MIN, PathPorts, VersionRange};
use crate::Status;

/// A field whose value the specification does not allow.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
#[error("{} with {field} out of range", kind.name())]
pub struct OutOfRange {
    /// The message.
    pub kind: Kind,
    /// The field, as the specification names it.
    pub field: &'static str,
}

macro_rules! messages {
    ($($(#[$doc:meta])* $name:ident = $code:literal, $wire:literal;)*) => {
        /// The type of a message (§8.2).
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
        #[repr(u16)]
        pub enum Kind { $($(#[$doc])* $name = $code,)* }

        impl Kind {
            /// All kinds, in the order of their codes.
            pub const ALL: [Kind; 21] = [$(Kind::$name,)*];

            /// Returns the name in the specification.
            pub const fn name(self) -> &'static str {
                match self { $(Kind::$name => $wire,)* }
            }
        }

        /// One message of the control plane.
        #[derive(Clone, Debug, PartialEq, Eq)]
        pub enum Message { $($(#[$doc])* $name($name),)* }

        impl Message {
            /// Returns the message's type.
            pub const fn kind(&self) -> Kind {
                match self { $(Message::$name(_) => Kind::$name,)* }
            }

            /// Checks the range of every field. The decoder and the encoder call this method, to keep invalid
            /// values from crossing the connection.
            ///
            /// # Errors
            /// The first field out of range.
            pub fn check(&self) -> Result<(), OutOfRange> {
                match self { $(Message::$name(message) => message.check(),)* }
            }
        }

        $(impl From<$name> for Message {
            fn from(message: $name) -> Self {
                Message::$name(message)
            }
        })*
    };
}

messages! {
    /// Identifies a process; the first message of each side.
    Hello = 1, "HELLO";
    /// Asks for a link between two endpoints.
    LinkOpen = 2, "LINK_OPEN";
    /// Accepts a link.
    LinkAccept = 3, "LINK_ACCEPT";
    /// Refuses a link.
    LinkRefuse = 4, "LINK_REFUSE";
    /// Ends a link, and all sessions over it.
    LinkClose = 5, "LINK_CLOSE";
    /// Proposes a session.
    SessionOpen = 6, "SESSION_OPEN";
    /// Accepts a session.
    SessionAccept = 7, "SESSION_ACCEPT";
    /// Refuses a session.
    SessionRefuse = 8, "SESSION_REFUSE";
    /// Ends a session.
    SessionClose = 9, "SESSION_CLOSE";
    /// Asks for a PONG.
    Ping = 10, "PING";
    /// Answers a PING.
    Pong = 11, "PONG";
    /// Asks for the process's counters.
    StatsRequest = 12, "STATS_REQUEST";
    /// Returns a part of the counters.
    StatsReply = 13, "STATS_REPLY";
    /// The last message, with the reason for closing the connection.
    Goodbye = 14, "GOODBYE";
    /// Asks the server of a session to receive a group's multicast.
    GroupJoin = 15, "GROUP_JOIN";
    /// Confirms reception of the multicast.
    GroupAccept = 16, "GROUP_ACCEPT";
    /// Refuses to receive the multicast.
    GroupRefuse = 17, "GROUP_REFUSE";
    /// Ends reception of the multicast.
    GroupLeave = 18, "GROUP_LEAVE";
    /// Asks a session's client to make further calls elsewhere.
    SessionDrain = 19, "SESSION_DRAIN";
    /// Makes a connection the stream of a link; the first message of a side, in place of HELLO.
    StreamOpen = 20, "STREAM_OPEN";
    /// Confirms that frames follow.
    StreamAccept = 21, "STREAM_ACCEPT";
}

impl Kind {
    /// Returns the kind with this code.
    pub fn from_code(code: u16) -> Option<Self> {
        Self::ALL.get(usize::from(code).checked_sub(1)?).copied()
    }

    /// Returns the code on the wire.
    pub const fn code(self) -> u16 {
        self as u16
    }
}

/// The first message of each side (§8.3).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Hello {
    /// The versions that the process supports.
    pub versions: VersionRange,
    /// Drawn at random when the process starts; not 0.
    pub incarnation: u64,
    /// The interval of PINGs in milliseconds; longer on connections that the process accepted (§8.6).
    pub heartbeat_ms: u32,
    /// Name and version of the implementation, for people.
    pub agent: String,
    /// Names the host; present when shared memory is offered.
    pub host_identity: Option<[u8; 32]>,
    /// Name of the abstract Unix socket where shared memory is passed.
    pub rendezvous: Option<Vec<u8>>,
}

/// A transport on offer for a link (§8.4).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Offer {
    /// UDP to the address of this side's end of the TCP connection.
    Udp {
        /// The endpoint's port.
        port: u16,
        /// Largest datagram that the side can send and receive on this path.
        max_frame: u32,
    },
    /// Rings in shared memory.
    Shm {
        /// Largest frame.
        max_frame: u32,
    },
    /// Frames over a TCP connection from the opener to the address of the control connection (§16).
    Stream {
        /// Largest frame.
        max_frame: u32,
    },
    /// Datagrams of RDMA cards.
    Verbs {
        /// The queue pair of this side's endpoint.
        at: CardAddress,
        /// Largest frame.
        max_frame: u32,
    },
    /// A transport that the specification does not describe.
    Other(OtherOffer),
}

/// The address of a queue pair for unreliable datagrams (§8.4).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CardAddress {
    /// The global address of the card's port; zero within an InfiniBand subnet.
    pub gid: [u8; 16],
    /// The local identifier of the port; 0 over Ethernet.
    pub lid: u16,
    /// The number of the queue pair.
    pub pair: u32,
    /// The key that packets to the queue pair carry.
    pub key: u32,
}

impl Offer {
    /// Returns the number of the transport on the wire.
    pub const fn kind(self) -> u8 {
        match self {
            Offer::Udp { .. } => 1,
            Offer::Shm { .. } => 2,
            Offer::Stream { .. } => 3,
            Offer::Verbs { .. } => 4,
            Offer::Other(other) => other.kind,
        }
    }

    /// Returns the largest frame that the side can send and receive with this transport.
    pub const fn max_frame(self) -> u32 {
        match self {
            Offer::Udp { max_frame, .. }
            | Offer::Shm { max_frame }
            | Offer::Stream { max_frame }
            | Offer::Verbs { max_frame, .. } => max_frame,
            Offer::Other(other) => other.max_frame,
        }
    }

    /// Returns true if the acceptor of a link by this transport gives a ticket, to be presented with a second connection.
    pub const fn has_ticket(self) -> bool {
        matches!(self, Offer::Shm { .. } | Offer::Stream { .. })
    }

    /// Returns true if both offers name the same transport, with any fields.
    pub const fn is_same_transport(self, other: Offer) -> bool {
        self.kind() == other.kind()
    }
}

/// The least kind of an [`OtherOffer`].
pub const OTHER_KIND_MIN: u8 = 128;

/// The most bytes of an [`OtherOffer`] behind the largest frame.
pub const OTHER_OFFER_BYTES_MAX: usize = 64;

/// An offer of a transport known to the two programs alone (§8.4).
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct OtherOffer {
    kind: u8,
    max_frame: u32,
    len: u8,
    /// Zero behind `len`.
    fields: [u8; OTHER_OFFER_BYTES_MAX],
}

impl OtherOffer {
    /// Creates an offer; `None` if a value is outside of its range.
    pub fn new(kind: u8, max_frame: u32, fields: &[u8]) -> Option<Self> {
        let is_frame = (MAX_FRAME_BYTES_MIN..=MAX_FRAME_BYTES_MAX).contains(&max_frame);
        if kind < OTHER_KIND_MIN || !is_frame || fields.len() > OTHER_OFFER_BYTES_MAX {
            return None;
        }
        let mut all = [0; OTHER_OFFER_BYTES_MAX];
        all[..fields.len()].copy_from_slice(fields);
        Some(Self { kind, max_frame, len: fields.len() as u8, fields: all })
    }

    /// The bytes with a meaning for the transport alone.
    pub fn fields(&self) -> &[u8] {
        &self.fields[..usize::from(self.len)]
    }
}

impl fmt::Debug for OtherOffer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("OtherOffer")
            .field("kind", &self.kind)
            .field("max_frame", &self.max_frame)
            .field("fields", &self.fields())
            .finish()
    }
}

/// Features of a link that both sides must have, beside ECN.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct LinkFeatures {
    /// Over UDP: the side's further source ports (§14.1).
    pub paths: PathPorts,
    /// True if the side's sessions may have ordered calls (§14.6).
    pub order: bool,
    /// True if the side answers probes (§8.10).
    pub probe: bool,
    /// In LINK_OPEN, true if the acceptor may propose sessions on the link; in LINK_ACCEPT, true if it knows that it may (§8.5).
    pub reverse: bool,
    /// Inside TLS, over UDP: the number by which sealed datagrams to the side name the link, below 2²⁴ (§17.2).
    pub key_path: Option<u32>,
}

impl LinkFeatures {
    /// No feature.
    pub const NONE: Self =
        Self { paths: PathPorts::NONE, order: false, probe: false, reverse: false, key_path: None };
}

/// Asks for a link; answered by LINK_ACCEPT or LINK_REFUSE.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LinkOpen {
    /// The link's number in this connection, chosen by the opener.
    pub link: u32,
    /// The opener's endpoint.
    pub from_endpoint: u16,
    /// The acceptor's endpoint.
    pub to_endpoint: u16,
    /// Transports, in order of preference. A decoder leaves out unknown transports, so the list may be empty.
    pub offers: Vec<Offer>,
    /// Over UDP: true if this side's sessions react to ECN marks and would send ECN-capable packets.
    pub ecn: bool,
    /// Further features offered by this side.
    pub features: LinkFeatures,
}

/// Accepts a link.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LinkAccept {
    /// The link.
    pub link: u32,
    /// The chosen transport, with the acceptor's values.
    pub offer: Offer,
    /// The ticket to present at the rendezvous, or with STREAM_OPEN; with shared memory and streams only.
    pub ticket: Option<[u8; 16]>,
    /// True if this side reads and echoes ECN marks, as the opener asked.
    pub ecn: bool,
    /// The opener's further features, as far as shared.
    pub features: LinkFeatures,
    /// Over UDP, with probes: where datagrams to the acceptor go, with the offered port, if not to the address of the
    /// connection's end.
    pub data_ip: Option<IpAddr>,
}

/// Refuses a link.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LinkRefuse {
    /// The link.
    pub link: u32,
    /// The reason, for programs.
    pub status: Status,
    /// The reason, for people.
    pub text: String,
}

/// Ends a link.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LinkClose {
    /// The link.
    pub link: u32,
    /// The reason, for programs.
    pub status: Status,
    /// The reason, for people.
    pub text: String,
}

/// Proposes a session (§8.5). The sender's endpoint is the client.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SessionOpen {
    /// The link.
    pub link: u32,
    /// The proposal's number, chosen by the client.
    pub request: u32,
    /// The session's index at the client.
    pub session: u32,
    /// The client's token, carried by frames to the client.
    pub token: u32,
    /// The session's first request number: a random multiple of `slots`.
    pub first_request: u64,
    /// Outstanding requests.
    pub slots: u16,
    /// Unacknowledged packets.
    pub credits: u16,
    /// The longest response that the client accepts, in bytes.
    pub max_message: u32,
    /// Payload bytes of a full packet.
    pub packet_bytes: u32,
}

/// Accepts a session, with the agreed parameters.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SessionAccept {
    /// The link.
    pub link: u32,
    /// The proposal's number.
    pub request: u32,
    /// The session's index at the server.
    pub session: u32,
    /// The server's token, carried by frames to the server.
    pub token: u32,
    /// Outstanding requests: at most the proposed number.
    pub slots: u16,
    /// Unacknowledged packets: at most the proposed number.
    pub credits: u16,
    /// The longest request that the server accepts, in bytes.
    pub max_message: u32,
    /// Payload bytes of a full packet: at most the proposed number.
    pub packet_bytes: u32,
}

impl SessionAccept {
    /// Returns true if the server kept within the proposal (§8.5).
    ///
    /// # Panics
    /// If the message answers another proposal.
    pub const fn is_within(&self, open: &SessionOpen) -> bool {
        assert!(self.request == open.request, "an answer is compared with its own proposal");
        self.slots <= open.slots
            && self.credits <= open.credits
            && self.packet_bytes <= open.packet_bytes
    }
}

/// Refuses a session.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SessionRefuse {
    /// The link.
    pub link: u32,
    /// The proposal's number.
    pub request: u32,
    /// The reason, for programs.
    pub status: Status,
    /// The reason, for people.
    pub text: String,
}

/// Ends a session; not answered.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SessionClose {
    /// The link.
    pub link: u32,
    /// The session's index at the receiver.
    pub session: u32,
    /// The receiver's token of the session.
    pub token: u32,
    /// True if the sender is the session's client.
    pub from_client: bool,
    /// The reason, for programs.
    pub status: Status,
    /// The reason, for people.
    pub text: String,
}

/// A server that is going to end asks the client of a session to make no further calls there, and to close
/// the session after the last pending call. Not answered (§8.5).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SessionDrain {
    /// The link.
    pub link: u32,
    /// The session's index at the receiver.
    pub session: u32,
    /// The receiver's token of the session.
    pub token: u32,
    /// The reason, for people.
    pub text: String,
}

/// Asks for a PONG with the same nonce.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Ping {
    /// Any number.
    pub nonce: u64,
}

/// Answers a PING.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Pong {
    /// The PING's number.
    pub nonce: u64,
}

/// Asks for the process's counters. Refused except to peers on the same host (§8.8).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StatsRequest {
    /// A number that the answer repeats.
    pub request: u32,
}

/// One part of the counters. The texts of all parts, joined in order, are one JSON object.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StatsReply {
    /// The number of the STATS_REQUEST.
    pub request: u32,
    /// The number of this part, from 0.
    pub part: u16,
    /// The number of parts.
    pub parts: u16,
    /// The part's text.
    pub json: String,
}

/// The reason why the sender closes the connection.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Goodbye {
    /// The reason, for programs.
    pub status: Status,
    /// The reason, for people.
    pub text: String,
}

/// Asks the server of a session to receive a group's multicast (§12.2). The sender is the session's client.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct GroupJoin {
    /// The link.
    pub link: u32,
    /// A number that the answer repeats.
    pub request: u32,
    /// The session's index at the receiver.
    pub session: u32,
    /// The receiver's token of the session.
    pub token: u32,
    /// The group's number, in the session field of its frames.
    pub group: u32,
    /// The token that the group's frames carry.
    pub key: u32,
    /// The multicast address that the group's datagrams are sent to.
    pub address: SocketAddr,
    /// Payload bytes of a full packet: equal to the session's.
    pub packet_bytes: u32,
}

/// The member receives the group's multicast.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct GroupAccept {
    /// The link.
    pub link: u32,
    /// The request.
    pub request: u32,
}

/// The member does not receive the group's multicast.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct GroupRefuse {
    /// The link.
    pub link: u32,
    /// The request.
    pub request: u32,
    /// The reason, for programs.
    pub status: Status,
    /// The reason, for people.
    pub text: String,
}

/// Ends a member's reception of the group's multicast.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct GroupLeave {
    /// The link.
    pub link: u32,
    /// The group's number.
    pub group: u32,
}

/// Makes the connection the stream of a link (§16). Nothing follows before the answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StreamOpen {
    /// The ticket of the LINK_ACCEPT.
    pub ticket: [u8; 16],
}

/// The connection is the stream of the link: frames follow, in both directions.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StreamAccept {
    /// The link, by the number in the control connection.
    pub link: u32,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn kinds_are_their_positions() {
        for (position, kind) in Kind::ALL.iter().enumerate() {
            assert_eq!(usize::from(kind.code()), position + 1);
            assert_eq!(Kind::from_code(kind.code()), Some(*kind));
        }
        assert_eq!(Kind::from_code(0), None);
        assert_eq!(Kind::from_code(22), None);
        assert_eq!(Kind::from_code(u16::MAX), None);
    }
}
