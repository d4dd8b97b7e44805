//! Links and their stages (`docs/wire-protocol.md` §8.4).

use std::collections::HashMap;
use std::time::Instant;

use petrel_proto::control::{Offer, SessionOpen};

use super::ids::{ConnectionId, ExchangeId};
use super::media::MemoryConfig;
use super::request::OpenRequest;
use crate::control::EndpointId;

/// An agreement of two endpoints, made or being made.
#[derive(Debug)]
pub(super) struct Link {
    pub(super) connection: ConnectionId,
    /// The link's number in the connection.
    pub(super) number: u32,
    pub(super) endpoint: EndpointId,
    pub(super) peer_endpoint: u16,
    pub(super) stage: Stage,
    /// A link not up by this time is given up.
    pub(super) deadline: Instant,
    /// Unanswered session proposals on the link, by request number.
    pub(super) proposals: HashMap<u32, Proposal>,
    /// Memory of the link's sessions with a server in this process.
    pub(super) session_bytes: usize,
    /// Whether both sides know ordered calls.
    pub(super) order: bool,
}

/// The stage of a link.
#[derive(Debug)]
pub(super) enum Stage {
    /// Opener: LINK_OPEN is sent.
    Requested { request: OpenRequest, offers: Vec<Offer>, ecn: bool },
    /// Opener: the ticket was presented; the peer's descriptor is expected.
    Exchanging { request: OpenRequest, kind: u8, exchange: Option<ExchangeId> },
    /// Acceptor: the peer has yet to present the ticket, if memory is expected.
    Promised { expected: Option<Expected>, max_frame: u32 },
    /// Both endpoints use the link.
    Up { is_opener: bool, max_frame: u32 },
}

/// Memory that the peer is to bring.
#[derive(Clone, Copy, Debug)]
pub(super) struct Expected {
    pub(super) ticket: [u8; 16],
    pub(super) config: MemoryConfig,
}

/// The means to reach the peer of a link, as agreed.
#[derive(Debug)]
pub(super) struct Ready<L> {
    pub(super) transport: L,
    pub(super) max_frame: u32,
    /// The medium.
    pub(super) kind: u8,
    pub(super) ecn: bool,
}

impl Link {
    pub(super) fn is_up(&self) -> bool {
        matches!(self.stage, Stage::Up { .. })
    }
}

/// A proposed session without an answer.
#[derive(Clone, Copy, Debug)]
pub(super) struct Proposal {
    pub(super) open: SessionOpen,
    /// Slots offered for it to the local endpoint.
    pub(super) slots: u16,
    pub(super) deadline: Instant,
}

impl Proposal {
    /// Returns the slots charged until the answer.
    pub(super) fn slots(&self) -> u16 {
        self.slots
    }
}
