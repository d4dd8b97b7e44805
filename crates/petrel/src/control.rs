//! The messages between an endpoint and its control plane.
//!
//! An endpoint never touches a control connection: it posts [`ToNexus`] messages, which never block, and reads
//! [`FromNexus`] messages in its event loop. The real control plane is the [`Nexus`](crate::Nexus) thread, which speaks
//! `docs/wire-protocol.md` §8 over TCP. A simulator can replace the thread with the same two types, because neither
//! names a socket.
//!
//! Order: messages keep their order in each direction between an endpoint and the control plane. A
//! [`FromNexus::LinkUp`] always precedes every other message about the link, and nothing follows the link's
//! [`FromNexus::LinkDown`].

use std::fmt;
use std::net::SocketAddr;
use std::sync::Arc;

use petrel_proto::Status;
use petrel_proto::control::{GroupJoin, LinkFeatures, SessionAccept, SessionOpen};

use crate::security::{Authorize, PeerIdentity};

/// Number of an endpoint within its process.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct EndpointId(pub u16);

impl EndpointId {
    /// Any serving endpoint of a process: a client learns the numbers at connect. No endpoint has this number.
    pub const ANY: Self = Self(u16::MAX);
}

/// The name of a link within one process; never reused.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct LinkId(pub u64);

/// An endpoint of another process, named by the address of the control connection to it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct PeerName {
    /// The process's end of the control connection.
    pub address: SocketAddr,
    /// The endpoint there.
    pub endpoint: EndpointId,
}

impl fmt::Display for PeerName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} endpoint {}", self.address, self.endpoint.0)
    }
}

/// Why a request was refused or a session ended: a status and a text for people.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Reason {
    /// The gRPC status code.
    pub status: Status,
    /// The cause and the remedy.
    pub message: String,
}

impl Reason {
    /// Creates a reason.
    pub fn new(status: Status, message: impl Into<String>) -> Self {
        Self { status, message: message.into() }
    }
}

/// The transports allowed for a link, of which the first possible is used: shared memory if both ends are on the same host,
/// an RDMA card if both endpoints have one and its datagrams get through, UDP if datagrams get through, then a TCP stream.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AllowedTransports {
    /// Kernel UDP.
    pub udp: bool,
    /// Shared memory.
    pub shm: bool,
    /// Frames over a TCP connection to the address that was dialled: through address translation, load balancers and
    /// firewalls, slower.
    pub stream: bool,
    /// The RDMA card of the endpoint's [device](petrel_transport::udp::Device), to peers with a card.
    pub verbs: bool,
}

impl AllowedTransports {
    /// All transports: the default.
    pub const ALL: Self = Self { udp: true, shm: true, stream: true, verbs: true };

    /// UDP alone.
    pub const UDP: Self = Self { udp: true, ..Self::NONE };

    /// Shared memory alone.
    pub const SHM: Self = Self { shm: true, ..Self::NONE };

    /// A TCP stream alone.
    pub const STREAM: Self = Self { stream: true, ..Self::NONE };

    /// An RDMA card alone.
    pub const VERBS: Self = Self { verbs: true, ..Self::NONE };

    const NONE: Self = Self { udp: false, shm: false, stream: false, verbs: false };
}

/// A message from an endpoint to the control plane.
#[derive(Debug)]
pub enum ToNexus {
    /// Open a link to an endpoint of another process. Answered by [`FromNexus::LinkUp`] with the same `request`, or by
    /// [`FromNexus::LinkFailed`], in bounded time.
    OpenLink {
        /// Chosen by the endpoint.
        request: u64,
        /// Control address of the other process.
        remote: SocketAddr,
        /// The wanted endpoint there.
        remote_endpoint: EndpointId,
        /// Transports that this endpoint accepts.
        transports: AllowedTransports,
        /// Whether the other endpoint may propose sessions on the link (`docs/wire-protocol.md` §8.5).
        reverse: bool,
    },
    /// Datagrams do not get through on a link that is up: counted.
    Unreached {
        /// The link.
        link: LinkId,
    },
    /// Calls have been without a sign of a server for some time: find out whether its process lives. If not, the link
    /// ends.
    CheckPeer {
        /// The link.
        link: LinkId,
    },
    /// A client has sent the first request of a link. If sessions or connections run short, links without a request yield first.
    LinkUsed {
        /// The link.
        link: LinkId,
    },
    /// Open a session over a link that is up, and was requested by the endpoint or has reverse sessions. Answered by [`FromNexus::SessionOpened`] or
    /// [`FromNexus::SessionRefused`] with the same `open.request`, or ended by the link's [`FromNexus::LinkDown`].
    OpenSession {
        /// The link.
        link: LinkId,
        /// The proposal; its `link` field is filled in by the control plane.
        open: SessionOpen,
    },
    /// Answers [`FromNexus::SessionProposed`].
    AnswerSession {
        /// The link on which it was proposed.
        link: LinkId,
        /// The proposal's request number.
        request: u32,
        /// The server's values, or a refusal. The control plane fills in `link` and `request` inside.
        answer: Result<SessionAccept, Reason>,
    },
    /// Tell the peer that a session has ended.
    CloseSession {
        /// The session's link.
        link: LinkId,
        /// The session's index at the peer.
        peer_session: u32,
        /// The peer's token of the session.
        peer_token: u32,
        /// Whether this endpoint is the session's client.
        from_client: bool,
        /// The reason.
        reason: Reason,
    },
    /// A session with the endpoint as the server has ended, and its memory is free.
    SessionEnded {
        /// The session's link.
        link: LinkId,
        /// The number of its slots.
        slots: u16,
    },
    /// Ask the client of a session to make no further calls on it.
    DrainSession {
        /// The session's link.
        link: LinkId,
        /// The session's index at the client.
        peer_session: u32,
        /// The client's token of the session.
        peer_token: u32,
        /// The reason, for people.
        message: String,
    },
    /// Ask the server of a session to receive a group's multicast. Answered by [`FromNexus::GroupAnswered`], if the
    /// peer supports groups.
    JoinGroup {
        /// The session's link.
        link: LinkId,
        /// The group; its `link` field is filled in by the control plane.
        join: GroupJoin,
    },
    /// Answers [`FromNexus::GroupOffered`].
    AnswerGroup {
        /// The link on which it was offered.
        link: LinkId,
        /// The offer's request number.
        request: u32,
        /// Whether this endpoint receives the group's multicast, or why not.
        answer: Result<(), Reason>,
    },
    /// Tell the peer that a group's multicast is no longer needed.
    LeaveGroup {
        /// The link.
        link: LinkId,
        /// The group's number.
        group: u32,
    },
    /// Close a link that the endpoint's transport refused.
    CloseLink {
        /// The link.
        link: LinkId,
        /// The reason.
        reason: Reason,
    },
    /// Answers [`FromNexus::StatsRequested`].
    Stats {
        /// The request's number.
        request: u64,
        /// The endpoint's counters as one JSON object.
        json: String,
    },
    /// The endpoint is gone: close its links. Sent when it is dropped.
    Gone,
}

/// A message from the control plane to an endpoint. `L` is the transport's link type.
#[derive(Debug)]
pub enum FromNexus<L> {
    /// A link is up, requested by this endpoint (`request` is set) or by the peer.
    LinkUp {
        /// The endpoint's own request, if any.
        request: Option<u64>,
        /// The link's name from now on.
        link: LinkId,
        /// The transport's data to reach the peer.
        transport: L,
        /// The peer.
        peer: PeerName,
        /// The other process's incarnation.
        incarnation: u64,
        /// The proven identity of the other process, on a connection inside TLS.
        identity: Option<Arc<PeerIdentity>>,
        /// The features that both sides have: ordered calls, several paths with the peer's further source ports
        /// (`docs/wire-protocol.md` §14), and reverse sessions (§8.5).
        features: LinkFeatures,
    },
    /// The shortest round trip to the peer process on the control connection, for a link that is up, on which the
    /// endpoint may be a client. Sent again when it gets shorter.
    PathMeasured {
        /// The link.
        link: LinkId,
        /// The round trip in nanoseconds.
        rtt_ns: u32,
    },
    /// A requested link could not be opened.
    LinkFailed {
        /// The endpoint's request.
        request: u64,
        /// The reason.
        reason: Reason,
    },
    /// The link has ended: closed by the peer, or the peer is dead, hung or restarted.
    LinkDown {
        /// The link.
        link: LinkId,
        /// The reason.
        reason: Reason,
    },
    /// A peer wants to be the client of a session with this endpoint.
    SessionProposed {
        /// The link.
        link: LinkId,
        /// The proposal; answer with its `request`.
        open: SessionOpen,
    },
    /// The peer accepted; `accept.request` is the proposal's.
    SessionOpened {
        /// The link.
        link: LinkId,
        /// The agreed values.
        accept: SessionAccept,
    },
    /// The peer refused.
    SessionRefused {
        /// The link.
        link: LinkId,
        /// The proposal's request number.
        request: u32,
        /// The reason.
        reason: Reason,
    },
    /// The peer closed a session.
    SessionClosed {
        /// The link.
        link: LinkId,
        /// The session's index here.
        session: u32,
        /// The token of the session here: a late message about a former session is ignored.
        token: u32,
        /// Whether the peer was the session's client.
        from_client: bool,
        /// The reason.
        reason: Reason,
    },
    /// The server of a session is about to end: make no further calls.
    SessionDraining {
        /// The link.
        link: LinkId,
        /// The session's index here.
        session: u32,
        /// The token of the session here.
        token: u32,
        /// The reason, for people.
        message: String,
    },
    /// The link's connection is about to end. Clients at either end make no further calls on the link's sessions, and the endpoint opens no
    /// further sessions on the link.
    LinkDraining {
        /// The link.
        link: LinkId,
    },
    /// A peer offers to send requests to this endpoint by multicast.
    GroupOffered {
        /// The link.
        link: LinkId,
        /// The group; answer with its `request`.
        join: GroupJoin,
    },
    /// Whether a peer receives a group's multicast.
    GroupAnswered {
        /// The link.
        link: LinkId,
        /// The endpoint's request.
        request: u32,
        /// Yes, or why not.
        answer: Result<(), Reason>,
    },
    /// A group's client no longer sends to it.
    GroupLeft {
        /// The link.
        link: LinkId,
        /// The group's number.
        group: u32,
    },
    /// The decisions about callers have changed: judge all sessions again.
    GrantsChanged,
    /// A caller outside the process wants this endpoint's counters.
    StatsRequested {
        /// Answer with this number.
        request: u64,
    },
}

/// The control plane of an endpoint. `L` is the transport's link type.
///
/// [`ControlPort`](crate::nexus::ControlPort) is the real implementation; a simulator has another.
pub trait ControlPlane<L> {
    /// Sends a message to the control plane. Never blocks.
    fn post(&self, message: ToNexus);

    /// Returns the next message for the endpoint, if any. The event loop asks in every turn: an empty answer must cost
    /// next to nothing.
    fn poll(&mut self) -> Option<FromNexus<L>>;

    /// The endpoint's number within its process.
    fn endpoint_id(&self) -> EndpointId;

    /// Returns an unguessable number, for tokens and first request numbers. A simulator draws it from its seed.
    fn random(&mut self) -> u64;

    /// Returns the process's decisions about callers, for all endpoints; `None` without decisions.
    fn authorization(&self) -> Option<Arc<dyn Authorize>> {
        None
    }
}
