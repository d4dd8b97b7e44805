//! Exchanges of shared memory in progress (`docs/wire-protocol.md` §8.4).

use petrel_transport::shm::{HOST_IDENTITY_BYTES, ShmConfig};

use super::net::Network;
use crate::control::LinkId;

/// Bytes of a ticket.
pub(super) const TICKET_BYTES: usize = 16;

/// The rendezvous of the process, to which local peers connect.
#[derive(Debug)]
pub(super) struct LocalRendezvous<N: Network> {
    pub(super) listener: N::Rendezvous,
    /// The name sent to peers.
    pub(super) name: Vec<u8>,
    pub(super) host_identity: [u8; HOST_IDENTITY_BYTES],
    /// More connections may be queued, though no event will report them.
    pub(super) has_more: bool,
}

/// An exchange of descriptors in progress.
#[derive(Debug)]
pub(super) struct Exchange<N: Network> {
    pub(super) stream: N::ShmPeer,
    pub(super) part: Part<N>,
}

/// A link with a ticket to present.
#[derive(Debug)]
pub(super) struct QueuedExchange {
    pub(super) link: LinkId,
    pub(super) ticket: [u8; TICKET_BYTES],
    pub(super) config: ShmConfig,
}

/// The role of this process in an exchange.
#[derive(Debug)]
pub(super) enum Part<N: Network> {
    /// The ticket and the memory are expected.
    Acceptor { ticket: [u8; TICKET_BYTES], ticket_bytes: usize, fds: N::Fds },
    /// They are sent; the answer is expected.
    Opener { link: LinkId, segment: N::Segment },
}
