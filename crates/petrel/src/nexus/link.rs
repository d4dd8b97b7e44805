//! Links and their stages (`docs/wire-protocol.md` §8.4).

use std::collections::HashMap;
use std::time::Instant;

use petrel_proto::control::{LinkFeatures, Offer, SessionOpen};

use super::ids::{ConnectionId, ExchangeId};
use super::media::MemoryConfig;
use super::request::OpenRequest;
use crate::control::EndpointId;
use crate::tables::shrink;

/// An agreement of two endpoints, made or being made.
#[derive(Debug)]
pub(super) struct Link {
    connection: ConnectionId,
    number: u32,
    endpoint: EndpointId,
    peer_endpoint: u16,
    stage: Stage,
    deadline: Instant,
    /// Unanswered session proposals on the link.
    proposals: HashMap<ProposalName, Proposal>,
    session_bytes: usize,
    /// The features that both sides have, and the peer's further source ports.
    features: LinkFeatures,
    /// The number by which the peer's sealed datagrams name the link.
    key_path: Option<u32>,
}

/// The stage of a link.
#[derive(Debug)]
pub(super) enum Stage {
    /// Opener: LINK_OPEN is sent.
    Requested { request: OpenRequest, offers: Vec<Offer>, ecn: bool },
    /// Opener: the ticket is presented; the peer's answer is expected.
    Exchanging { request: OpenRequest, kind: u8, exchange: Option<ExchangeId> },
    /// Acceptor: the peer has yet to present the ticket, if memory or a stream is expected.
    Promised { expected: Option<Expected>, max_frame: u32 },
    /// Both endpoints use the link.
    Up { is_opener: bool, max_frame: u32 },
}

/// Memory or a stream that the peer is to bring.
#[derive(Clone, Copy, Debug)]
pub(super) struct Expected {
    ticket: [u8; 16],
    memory: Option<MemoryConfig>,
}

impl Expected {
    /// Memory with these settings, or a stream.
    pub(super) fn new(ticket: [u8; 16], memory: Option<MemoryConfig>) -> Self {
        Self { ticket, memory }
    }

    /// Returns the ticket that comes with the memory or the stream.
    pub(super) fn ticket(&self) -> &[u8; 16] {
        &self.ticket
    }

    /// Returns the settings of the memory, unless a stream is expected.
    pub(super) fn memory(&self) -> Option<&MemoryConfig> {
        self.memory.as_ref()
    }
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
    /// A link with a number in a connection, between a local endpoint and an endpoint of the peer. The nexus gives the
    /// link up if the next step is not made by the deadline.
    pub(super) fn new(
        (connection, number): (ConnectionId, u32),
        endpoint: EndpointId,
        peer_endpoint: u16,
        stage: Stage,
        deadline: Instant,
    ) -> Self {
        Self {
            connection,
            number,
            endpoint,
            peer_endpoint,
            stage,
            deadline,
            proposals: HashMap::new(),
            session_bytes: 0,
            features: LinkFeatures::NONE,
            key_path: None,
        }
    }

    /// Gives the link a key path, for sealed datagrams.
    pub(super) fn with_key_path(self, key_path: Option<u32>) -> Self {
        Self { key_path, ..self }
    }

    /// Returns the number by which the peer's sealed datagrams name the link.
    pub(super) fn key_path(&self) -> Option<u32> {
        self.key_path
    }

    pub(super) fn connection(&self) -> ConnectionId {
        self.connection
    }

    /// Returns the link's number in the connection.
    pub(super) fn number(&self) -> u32 {
        self.number
    }

    pub(super) fn endpoint(&self) -> EndpointId {
        self.endpoint
    }

    pub(super) fn peer_endpoint(&self) -> u16 {
        self.peer_endpoint
    }

    pub(super) fn stage(&self) -> &Stage {
        &self.stage
    }

    /// Ends the link. Returns its last stage.
    pub(super) fn into_stage(self) -> Stage {
        self.stage
    }

    pub(super) fn is_up(&self) -> bool {
        matches!(self.stage, Stage::Up { .. })
    }

    /// Returns true if the link is up, and this process opened it.
    pub(super) fn is_up_at_opener(&self) -> bool {
        matches!(self.stage, Stage::Up { is_opener: true, .. })
    }

    /// Returns true if the link is up, and endpoints of this process may be clients on it.
    pub(super) fn may_propose(&self) -> bool {
        self.is_up() && (self.is_up_at_opener() || self.features.reverse)
    }

    /// Returns true if the link is up, and endpoints of the peer may be clients on it.
    pub(super) fn may_be_proposed_to(&self) -> bool {
        self.is_up() && (!self.is_up_at_opener() || self.features.reverse)
    }

    /// Returns true if the time for the present step is over.
    pub(super) fn is_overdue(&self, now: Instant) -> bool {
        self.deadline <= now
    }

    /// Allows the link time for its next step.
    pub(super) fn extend(&mut self, deadline: Instant) {
        assert!(!self.is_up(), "a link that is up has no deadline");
        assert!(self.deadline <= deadline, "the time for a link's next step is not cut short");
        self.deadline = deadline;
    }

    /// Opener: records that the peer has given a ticket, to be presented.
    pub(super) fn agree_on_exchange(&mut self, kind: u8) {
        let Stage::Requested { request, .. } = &self.stage else {
            panic!("a ticket is given for a link that was requested: {:?}", self.stage)
        };
        self.stage = Stage::Exchanging { request: request.clone(), kind, exchange: None };
    }

    /// Opener: notes that the exchange of memory has begun.
    pub(super) fn note_exchange(&mut self, begun: ExchangeId) {
        let Stage::Exchanging { exchange, .. } = &mut self.stage else {
            panic!("an exchange begins after the agreement on memory: {:?}", self.stage)
        };
        assert!(exchange.is_none(), "a link has one exchange: {exchange:?}");
        *exchange = Some(begun);
    }

    /// Lets both sides use the link. Returns the number of the opener's request.
    pub(super) fn come_up(&mut self, max_frame: u32) -> Option<u64> {
        if let Stage::Promised { max_frame: promised, .. } = &self.stage {
            assert_eq!(*promised, max_frame, "a link has the frames that were promised");
        }
        let request = match &self.stage {
            Stage::Requested { request, .. } | Stage::Exchanging { request, .. } => {
                Some(request.number())
            }
            Stage::Promised { .. } => None,
            Stage::Up { .. } => panic!("a link comes up once"),
        };
        self.stage = Stage::Up { is_opener: request.is_some(), max_frame };
        request
    }

    /// Returns the features that both sides have, and the peer's further source ports.
    pub(super) fn features(&self) -> &LinkFeatures {
        &self.features
    }

    pub(super) fn agree_on(&mut self, shared: LinkFeatures) {
        assert!(!self.is_up(), "the features of a link are agreed on before it is up");
        self.features = shared;
    }

    /// Returns the unanswered proposals, in any order.
    pub(super) fn proposals(&self) -> impl ExactSizeIterator<Item = &Proposal> {
        self.proposals.values()
    }

    pub(super) fn proposal(&self, name: ProposalName) -> Option<&Proposal> {
        self.proposals.get(&name)
    }

    /// Remembers a proposal until its answer.
    pub(super) fn propose(&mut self, proposal: Proposal) {
        assert!(self.is_up(), "sessions are proposed on a link that is up: {:?}", self.stage);
        let name = proposal.name();
        let former = self.proposals.insert(name, proposal);
        assert!(former.is_none(), "request {} is under way", name.request);
    }

    pub(super) fn take_proposal(&mut self, name: ProposalName) -> Option<Proposal> {
        let proposal = self.proposals.remove(&name)?;
        shrink(&mut self.proposals);
        Some(proposal)
    }

    /// Returns the memory of the link's sessions with a server in this process.
    pub(super) fn session_bytes(&self) -> usize {
        self.session_bytes
    }

    /// Returns true if the link has a session with a server in this process, or a proposal.
    pub(super) fn is_in_use(&self) -> bool {
        self.session_bytes > 0 || !self.proposals.is_empty()
    }

    /// Charges a session with a server in this process.
    pub(super) fn add_session(&mut self, bytes: usize) {
        assert!(self.is_up(), "a session is on a link that is up: {:?}", self.stage);
        self.session_bytes += bytes;
    }

    /// Gives back the charge of a session.
    pub(super) fn remove_session(&mut self, bytes: usize) {
        assert!(self.is_up(), "a session ends before its link: {:?}", self.stage);
        assert!(self.session_bytes >= bytes, "a session that was added");
        self.session_bytes -= bytes;
    }
}

/// The name of a proposal on its link: each side numbers its own.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(super) struct ProposalName {
    /// Whether the client is in this process.
    is_own: bool,
    request: u32,
}

impl ProposalName {
    /// The name of a proposal by an endpoint of this process.
    pub(super) fn own(request: u32) -> Self {
        Self { is_own: true, request }
    }

    /// The name of a proposal by the peer.
    pub(super) fn of_peer(request: u32) -> Self {
        Self { is_own: false, request }
    }

    /// Returns true if the client is in this process.
    pub(super) fn is_own(self) -> bool {
        self.is_own
    }

    /// Returns the number given by the client's side.
    pub(super) fn request(self) -> u32 {
        self.request
    }
}

/// A proposed session without an answer.
#[derive(Clone, Copy, Debug)]
pub(super) struct Proposal {
    is_own: bool,
    open: SessionOpen,
    slots: u16,
    deadline: Instant,
}

impl Proposal {
    /// A proposal by an endpoint of this process, to be answered by the deadline.
    pub(super) fn own(open: SessionOpen, deadline: Instant) -> Self {
        Self { is_own: true, slots: open.slots, open, deadline }
    }

    /// A proposal by the peer, of which `slots` are offered to the server's endpoint, to be answered by the deadline.
    pub(super) fn of_peer(open: SessionOpen, slots: u16, deadline: Instant) -> Self {
        assert!(
            slots <= open.slots,
            "a server offers at most the slots that the client asks for: {slots} of {}",
            open.slots
        );
        Self { is_own: false, open, slots, deadline }
    }

    pub(super) fn name(&self) -> ProposalName {
        ProposalName { is_own: self.is_own, request: self.open.request }
    }

    /// Returns true if the client is in this process.
    pub(super) fn is_own(&self) -> bool {
        self.is_own
    }

    /// Returns the client's proposal.
    pub(super) fn open(&self) -> &SessionOpen {
        &self.open
    }

    /// Returns the slots charged until the answer.
    pub(super) fn slots(&self) -> u16 {
        self.slots
    }

    pub(super) fn deadline(&self) -> Instant {
        self.deadline
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::nexus::relay::sessions::tests::open;

    impl Link {
        pub(in crate::nexus) fn set_test_reverse(&mut self, reverse: bool) {
            self.features.reverse = reverse;
        }
    }

    fn link(stage: Stage) -> Link {
        Link::new((ConnectionId(3), 5), EndpointId(0), 0, stage, Instant::now())
    }

    fn up() -> Link {
        link(Stage::Up { is_opener: false, max_frame: 1_472 })
    }

    fn proposal(slots: u16) -> Proposal {
        let open = SessionOpen { slots: 16, ..open(5, 1) };
        Proposal::of_peer(open, slots, Instant::now())
    }

    panics! {
        come_up__again: "a link comes up once" => up().come_up(1_472);
        agree_on__of_a_link_in_use: "agreed on before it is up"
            => up().agree_on(LinkFeatures::NONE);
        extend__of_a_link_that_is_up: "a link that is up has no deadline"
            => up().extend(Instant::now());
        propose__before_the_link_is_up: "sessions are proposed on a link that is up" => {
            link(Stage::Promised { expected: None, max_frame: 1_472 }).propose(proposal(16));
        };
        propose__the_number_of_another: "request 1 is under way" => {
            let mut link = up();
            link.propose(proposal(16));
            link.propose(proposal(16));
        };
        of_peer__with_more_slots_than_were_asked_for: "at most the slots that the client asks for"
            => proposal(17);
        remove_session__of_more_than_was_added: "a session that was added" => {
            let mut link = up();
            link.add_session(100);
            link.remove_session(101);
        };
        note_exchange__of_a_link_without_memory: "an exchange begins after the agreement on memory"
            => up().note_exchange(ExchangeId(3));
    }
}
