//! What an endpoint and its control plane say to each other.
//!
//! An endpoint never touches a control connection: it posts [`ToNexus`] messages, which never
//! block, and reads [`FromNexus`] messages in its event loop. The real control plane is the
//! [`Nexus`](crate::Nexus) thread, which speaks `docs/wire-protocol.md` §8 over TCP. A simulator
//! can stand in its place with the same two types, because nothing here names a socket.
//!
//! Order: messages of one endpoint to the control plane keep their order, and so do those back.
//! A [`FromNexus::LinkUp`] always precedes everything else about that link, and nothing follows
//! its [`FromNexus::LinkDown`].

use std::fmt;
use std::net::SocketAddr;

use petrel_proto::Status;
use petrel_proto::control::{GroupJoin, SessionAccept, SessionOpen};

/// Number of an endpoint within its process.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct EndpointId(pub u16);

/// Names a link within one process; never used again in that process.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct LinkId(pub u64);

/// An endpoint of another process, by the address of the control connection to it.
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

/// A status and a sentence for people: why something was refused or ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Reason {
    /// The gRPC status code.
    pub status: Status,
    /// What happened and what to do about it.
    pub message: String,
}

impl Reason {
    /// Makes a reason.
    pub fn new(status: Status, message: impl Into<String>) -> Self {
        Self { status, message: message.into() }
    }
}

/// Which transports a link may use. Shared memory is preferred where both are allowed and both
/// ends are on one host.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AllowedTransports {
    /// Kernel UDP.
    pub udp: bool,
    /// Shared memory.
    pub shm: bool,
}

/// What an endpoint asks of the control plane.
#[derive(Debug)]
pub enum ToNexus {
    /// Make a link to an endpoint of another process. Answered by [`FromNexus::LinkUp`] with the
    /// same `request`, or by [`FromNexus::LinkFailed`], in bounded time.
    OpenLink {
        /// Chosen by the endpoint.
        request: u64,
        /// Control address of the other process.
        remote: SocketAddr,
        /// The endpoint wanted there.
        remote_endpoint: EndpointId,
        /// Transports that this endpoint accepts.
        transports: AllowedTransports,
    },
    /// Open a session over a link that is up. Answered by [`FromNexus::SessionOpened`] or
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
        /// The server's values, or why not. `link` and `request` inside are filled in by the
        /// control plane.
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
        /// Why.
        reason: Reason,
    },
    /// A session ended of which this endpoint was the server: its memory is free.
    SessionEnded {
        /// The session's link.
        link: LinkId,
        /// The slots that it had.
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
        /// Why, for people.
        message: String,
    },
    /// Ask the server of a session to receive a group's multicast. Answered by
    /// [`FromNexus::GroupAnswered`], if the peer knows of groups.
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
    /// Tell the peer that it need not receive a group's multicast any more.
    LeaveGroup {
        /// The link.
        link: LinkId,
        /// The group's number.
        group: u32,
    },
    /// The endpoint could not use the link (its transport refused it): close it.
    CloseLink {
        /// The link.
        link: LinkId,
        /// Why.
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

/// What the control plane tells an endpoint. `L` is the transport's link type.
#[derive(Debug)]
pub enum FromNexus<L> {
    /// A link is up, asked for by this endpoint (`request` is set) or by the other side.
    LinkUp {
        /// The endpoint's own request, if it asked.
        request: Option<u64>,
        /// The link's name from now on.
        link: LinkId,
        /// What the transport needs to reach the peer.
        transport: L,
        /// The peer.
        peer: PeerName,
        /// The other process's incarnation.
        incarnation: u64,
    },
    /// The shortest round trip to the other process that the control connection has seen: for a link
    /// that is up and was asked for by this endpoint. Said again when there was a shorter one.
    PathMeasured {
        /// The link.
        link: LinkId,
        /// The round trip in nanoseconds.
        rtt_ns: u32,
    },
    /// The link that was asked for cannot be had.
    LinkFailed {
        /// The endpoint's request.
        request: u64,
        /// Why.
        reason: Reason,
    },
    /// The link has ended: closed by the peer, or the peer is dead, hung or restarted.
    LinkDown {
        /// The link.
        link: LinkId,
        /// Why.
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
        /// The values that hold.
        accept: SessionAccept,
    },
    /// The peer refused.
    SessionRefused {
        /// The link.
        link: LinkId,
        /// The proposal's request number.
        request: u32,
        /// Why.
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
        /// Why.
        reason: Reason,
    },
    /// The server of a session is about to end: no further calls, please.
    SessionDraining {
        /// The link.
        link: LinkId,
        /// The session's index here.
        session: u32,
        /// The token of the session here.
        token: u32,
        /// Why, for people.
        message: String,
    },
    /// A peer would send requests to this endpoint by multicast.
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
        /// It does, or why not.
        answer: Result<(), Reason>,
    },
    /// A group's client does not send to it any more.
    GroupLeft {
        /// The link.
        link: LinkId,
        /// The group's number.
        group: u32,
    },
    /// Somebody outside the process wants this endpoint's counters.
    StatsRequested {
        /// Answer with this number.
        request: u64,
    },
}

/// The control plane as one endpoint sees it. `L` is the transport's link type.
///
/// [`ControlPort`](crate::nexus::ControlPort) is the real one; a simulator has its own.
pub trait ControlPlane<L> {
    /// Tells the control plane something. Never blocks.
    fn post(&self, message: ToNexus);

    /// The next message for the endpoint, if there is one. Asked at every turn of the event loop,
    /// so that it must cost next to nothing when there is none.
    fn poll(&mut self) -> Option<FromNexus<L>>;

    /// The endpoint's number within its process.
    fn endpoint_id(&self) -> EndpointId;

    /// A number that nobody else can guess, for tokens and first request numbers. A simulator
    /// draws it from its seed.
    fn random(&mut self) -> u64;
}
