//! Media: the part of a transport that takes part in the agreement of two processes (`docs/wire-protocol.md` §8.4).
//!
//! An endpoint is attached with a value for each medium of its transport, the preferred one first. The nexus passes
//! offers between the values of two endpoints, and the link of the chosen medium to the endpoints. It distinguishes
//! media by the kind of their offers only.
//!
//! The built-in media are `shm`, `verbs`, `udp` and `stream`. Another medium is a value of a type that implements [`Medium`]; its
//! offers have a kind from [`OTHER_KIND_MIN`] on. `CONTRIBUTING.md` has the steps.

pub(super) mod shm;
pub(super) mod stream;
pub(super) mod udp;
pub(crate) mod verbs;

use std::fmt;
use std::io;
use std::net::{IpAddr, SocketAddr};

use petrel_proto::control::{Offer, PathPorts};
use petrel_transport::seal::SealedLink;
use petrel_transport::shm::ShmLink;
use petrel_transport::stream::StreamLink;
use petrel_transport::udp::UdpLink;

use super::attach::Attach;
use crate::control::AllowedTransports;

pub use petrel_proto::control::{OTHER_KIND_MIN, OtherOffer};
/// The settings for memory that two processes share.
pub use petrel_transport::shm::ShmConfig as MemoryConfig;

/// A medium with the settings of one endpoint. `L` is the link type of the endpoint's transport.
pub trait Medium<L>: fmt::Debug + Send {
    /// The name in events: one word.
    fn name(&self) -> &'static str;

    /// The name in reasons, for people.
    fn title(&self) -> &'static str {
        self.name()
    }

    /// Returns the kind of the medium's offers on the wire.
    fn kind(&self) -> u8;

    /// Returns true if links that cannot use the medium are counted and reported.
    fn is_missed(&self) -> bool {
        false
    }

    /// Returns the offer to the process at the other end of a control connection: the reach of this endpoint, and the
    /// largest frame.
    ///
    /// # Errors
    /// Why the endpoint cannot use the medium with this process.
    fn offer(&self, ends: &Ends<'_>) -> Result<Offer, Obstacle>;

    /// Returns true if the endpoint asks its servers for marks of congestion (ECN).
    fn asks_for_marks(&self) -> bool {
        false
    }

    /// Returns true if the endpoint reads marks of congestion, for peers that heed them.
    fn reads_marks(&self) -> bool {
        false
    }

    /// Returns the source ports from which the endpoint sends besides the port of its offer
    /// (`docs/wire-protocol.md` §14.1). Only UDP may have any.
    fn further_ports(&self) -> PathPorts {
        PathPorts::NONE
    }

    /// Returns true if the endpoint's own sessions use several paths, so that links announce its source ports.
    fn asks_for_paths(&self) -> bool {
        false
    }

    /// Returns true if the endpoint sends from any address of the host, so that [`Agreed::source`] counts.
    fn chooses_source(&self) -> bool {
        false
    }

    /// Returns the means to reach the peer, on either side of the agreement.
    fn open(&self, agreed: Agreed) -> Opening<L>;
}

/// The media of an endpoint, the preferred one first.
pub(super) type Media<L> = Vec<Box<dyn Medium<L>>>;

/// The result of two offers.
#[derive(Debug)]
#[non_exhaustive]
pub struct Agreed {
    /// The peer's end of the control connection.
    pub remote: SocketAddr,
    /// The peer's offer.
    pub offer: Offer,
    /// The smaller of both largest frames, in bytes.
    pub max_frame: u32,
    /// Whether the two endpoints agreed on marks of congestion.
    pub ecn: bool,
    /// This process's end of the control connection, if the system would send datagrams to the peer from another address.
    pub source: Option<IpAddr>,
    /// The keys of the link's datagrams, for UDP on a connection inside TLS.
    pub sealed: Option<Box<SealedLink>>,
}

/// The means to reach a peer.
#[derive(Debug)]
pub enum Opening<L> {
    /// The link is ready.
    Link(L),
    /// The link is memory: the two processes exchange its descriptor first, and the acceptor's ticket comes with the
    /// answer. Only offers of shared memory and streams have a ticket on the wire.
    Memory(MemoryConfig),
    /// The link is a TCP connection, which the opener makes with the acceptor's ticket.
    Stream,
}

/// The two ends of a control connection, as a medium sees them.
pub struct Ends<'a> {
    local: SocketAddr,
    remote: SocketAddr,
    process: AllowedTransports,
    meeting: Meeting,
    is_secured: bool,
    keeps_to_host: bool,
    path_mtu: &'a dyn Fn() -> io::Result<usize>,
}

/// Whether the two processes can exchange memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Meeting {
    Possible,
    /// This process has no rendezvous.
    ProcessWithout,
    /// The peer has not said HELLO.
    NoHello,
    /// The other process has no rendezvous, or is on another host.
    Elsewhere,
}

impl<'a> Ends<'a> {
    /// The ends, with the settings of this process.
    pub(super) fn new(
        (local, remote): (SocketAddr, SocketAddr),
        process: AllowedTransports,
        meeting: Meeting,
        (is_secured, keeps_to_host): (bool, bool),
        path_mtu: &'a dyn Fn() -> io::Result<usize>,
    ) -> Self {
        Self { local, remote, process, meeting, is_secured, keeps_to_host, path_mtu }
    }

    /// The address of this process's end.
    pub fn local(&self) -> SocketAddr {
        self.local
    }

    /// The address of the peer's end.
    pub fn remote(&self) -> SocketAddr {
        self.remote
    }

    /// Returns true if both processes are on this host: the kernel accepts no packet from a network with such a source
    /// address.
    pub fn is_one_host(&self) -> bool {
        self.remote.ip().is_loopback() || self.remote.ip() == self.local.ip()
    }

    /// Returns true if the control connection is inside TLS: the frames of its links need protection of the same kind, unless no other
    /// user can read them.
    pub fn is_secured(&self) -> bool {
        self.is_secured
    }

    /// Returns true if frames of this process must not leave its host unencrypted. A medium whose peer may be on another host whatever the
    /// addresses of the control connection is then impossible.
    pub fn keeps_to_host(&self) -> bool {
        self.keeps_to_host
    }

    /// Returns the MTU of the path, in bytes of IP packet.
    ///
    /// # Errors
    /// When there is no route.
    pub fn path_mtu(&self) -> io::Result<usize> {
        (self.path_mtu)()
    }
}

impl fmt::Debug for Ends<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Ends")
            .field("local", &self.local)
            .field("remote", &self.remote)
            .field("meeting", &self.meeting)
            .finish_non_exhaustive()
    }
}

/// Why a medium is not used.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{text}")]
pub struct Obstacle {
    at: ObstacleAt,
    text: String,
}

/// The cause of an [`Obstacle`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ObstacleAt {
    /// The settings of the endpoint, or of the request.
    Endpoint,
    /// This process.
    Process,
    /// The peer, or the path to it.
    Peer,
}

impl Obstacle {
    /// Creates an obstacle with a text for people.
    pub fn new(at: ObstacleAt, text: impl Into<String>) -> Self {
        Self { at, text: text.into() }
    }

    /// The cause.
    pub fn at(&self) -> ObstacleAt {
        self.at
    }
}

/// A link type that the production network can make: the links of the built-in media become such links.
pub trait HostLinks:
    From<UdpLink> + From<ShmLink> + From<StreamLink> + fmt::Debug + Send + 'static
{
}

impl<L> HostLinks for L where
    L: From<UdpLink> + From<ShmLink> + From<StreamLink> + fmt::Debug + Send + 'static
{
}

/// Returns true if the medium of a kind may be used: the settings restrict the built-in media.
pub(super) fn allows(allowed: AllowedTransports, kind: u8) -> bool {
    match kind {
        udp::KIND => allowed.udp,
        shm::KIND => allowed.shm,
        stream::KIND => allowed.stream,
        verbs::KIND => allowed.verbs,
        _ => true,
    }
}

/// The settings without the medium of a kind, which could not be set up.
pub(super) fn without(allowed: AllowedTransports, kind: u8) -> AllowedTransports {
    match kind {
        shm::KIND => AllowedTransports { shm: false, ..allowed },
        stream::KIND => AllowedTransports { stream: false, ..allowed },
        _ => panic!("only memory and streams are set up after the agreement: {kind}"),
    }
}

/// Returns the media of an endpoint: shared memory, the others, UDP, streams. A built-in medium without settings is there to
/// give its reason.
pub(super) fn media_of<L: From<UdpLink>>(
    attach: &Attach,
    others: Vec<Box<dyn Medium<L>>>,
) -> Media<L> {
    let mut media: Media<L> = vec![Box::new(shm::SharedMemory::new(attach.shm))];
    media.extend(others);
    media.push(Box::new(udp::Datagrams::new(attach.udp)));
    media.push(Box::new(stream::Streams::new(attach.stream)));
    media
}
