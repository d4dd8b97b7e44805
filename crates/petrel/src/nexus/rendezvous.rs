//! Exchange of shared memory (`docs/wire-protocol.md` §8.4).
//!
//! The opener of a link creates the rings, connects to the acceptor's Unix socket, presents the ticket and sends the
//! descriptor of the memory. The acceptor answers with one byte. The connection stays, for the two endpoints to wake
//! each other. Nothing here blocks: if a peer stalls, the nexus gives the exchange up at a deadline, and the link falls
//! back to UDP.
//!
//! Streams and descriptors of peers keep the types of [`SharedMemory`](super::net::SharedMemory), because closing one
//! may block.

use std::collections::{HashMap, VecDeque};
use std::io::{self, ErrorKind};

use petrel_proto::Status;
use petrel_transport::shm::{HOST_IDENTITY_BYTES, ShmConfig, Side};

use super::connection::retry;
use super::deadlines::Due;
use super::ids::ExchangeId;
use super::limits::{EXCHANGES_MAX, OPENER_EXCHANGES_MAX};
use super::link::{Ready, Stage};
use super::links::TICKET_BYTES;
use super::media::shm;
use super::net::{Fds, Network};
use super::relay::Relay;
use crate::control::{LinkId, Reason};

/// Descriptors accompanying a ticket: the memory of the rings.
const FDS_MAX: usize = 1;

/// The acceptor's answer to a valid ticket.
const GRANTED: u8 = 1;

/// The exchanges in progress, in both roles.
#[derive(Debug)]
pub(super) struct Exchanges<N: Network> {
    local: Option<LocalRendezvous<N>>,
    by_id: HashMap<ExchangeId, Exchange<N>>,
    /// Links that present their ticket as soon as fewer exchanges are under way.
    queued: VecDeque<QueuedExchange>,
}

/// The rendezvous of the process, to which local peers connect.
#[derive(Debug)]
pub(super) struct LocalRendezvous<N: Network> {
    listener: N::Rendezvous,
    name: Vec<u8>,
    host_identity: [u8; HOST_IDENTITY_BYTES],
    /// More connections may be queued, though no event will report them.
    has_more: bool,
}

/// An exchange of descriptors in progress.
#[derive(Debug)]
struct Exchange<N: Network> {
    stream: N::ShmPeer,
    part: Part<N>,
}

/// A link with a ticket to present.
#[derive(Debug)]
struct QueuedExchange {
    link: LinkId,
    ticket: [u8; TICKET_BYTES],
    config: ShmConfig,
}

/// The role of this process in an exchange.
#[derive(Debug)]
enum Part<N: Network> {
    /// The ticket and the memory are expected.
    Acceptor { ticket: [u8; TICKET_BYTES], ticket_bytes: usize, fds: N::Fds },
    /// They are sent; the answer is expected.
    Opener { link: LinkId, segment: N::Segment },
}

/// The result of an exchange for a link.
#[derive(Debug)]
pub(super) enum Outcome<N: Network> {
    /// Both sides have the memory.
    Ready(Ready<N::Link>),
    /// Opener: the memory could not be set up.
    NotSetUp(String),
    /// Acceptor: the peer's memory cannot be used.
    Unusable(Reason),
}

/// The next connection at the rendezvous.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Accepted {
    /// A peer, with which an exchange begins.
    Peer(ExchangeId),
    /// A peer was dropped, and others may wait.
    Dropped,
    /// The system has no room for a peer.
    NoRoom,
    /// No peer waits, or other work comes first.
    Nothing,
}

impl<N: Network> LocalRendezvous<N> {
    /// Returns the name sent to peers.
    pub(super) fn name(&self) -> &[u8] {
        &self.name
    }

    pub(super) fn host_identity(&self) -> [u8; HOST_IDENTITY_BYTES] {
        self.host_identity
    }
}

impl<N: Network> Default for Exchanges<N> {
    fn default() -> Self {
        Self { local: None, by_id: HashMap::new(), queued: VecDeque::new() }
    }
}

impl<N: Network> Exchanges<N> {
    /// Opens the rendezvous. Without it shared memory is not offered.
    pub(super) fn open(&mut self, net: &mut N, token: usize) -> io::Result<()> {
        assert!(self.local.is_none(), "a process has one rendezvous");
        let host_identity = net.host_identity()?;
        let listener = net.open_rendezvous(token)?;
        let name = net.name_of(&listener);
        self.local = Some(LocalRendezvous { listener, name, host_identity, has_more: false });
        Ok(())
    }

    pub(super) fn local(&self) -> Option<&LocalRendezvous<N>> {
        self.local.as_ref()
    }

    /// Notes that peers may wait at the rendezvous.
    pub(super) fn on_ready(&mut self) {
        if let Some(rendezvous) = &mut self.local {
            rendezvous.has_more = true;
        }
    }

    /// Returns true if exchanges can go on without an event.
    pub(super) fn has_more(&self) -> bool {
        self.may_begin() || self.has_more_peers()
    }

    fn has_more_peers(&self) -> bool {
        self.local.as_ref().is_some_and(|rendezvous| rendezvous.has_more)
    }

    pub(super) fn len(&self) -> usize {
        self.by_id.len()
    }

    /// Returns the number of links that wait for a free exchange.
    pub(super) fn queued(&self) -> usize {
        self.queued.len()
    }

    pub(super) fn contains(&self, id: ExchangeId) -> bool {
        self.by_id.contains_key(&id)
    }

    /// Accepts a connection at the rendezvous.
    pub(super) fn accept(&mut self, net: &N, relay: &mut Relay<N>) -> Accepted {
        let Some(rendezvous) = self.local.as_mut().filter(|rendezvous| rendezvous.has_more) else {
            return Accepted::Nothing;
        };
        match net.accept_shm_peer(&mut rendezvous.listener) {
            Ok(Some(stream)) => self.start_accepting(stream, net, relay),
            // A flood of foreign processes: they were dropped, and other work comes first.
            Err(error) if error.kind() == ErrorKind::Interrupted => Accepted::Nothing,
            waits_or_fails => {
                rendezvous.has_more = false;
                if waits_or_fails.is_err() { Accepted::NoRoom } else { Accepted::Nothing }
            }
        }
    }

    fn start_accepting(&mut self, stream: N::ShmPeer, net: &N, relay: &mut Relay<N>) -> Accepted {
        if self.by_id.len() >= EXCHANGES_MAX {
            relay.counters().rendezvous_dropped.increment();
            return Accepted::Dropped;
        }
        let part =
            Part::Acceptor { ticket: [0; TICKET_BYTES], ticket_bytes: 0, fds: N::Fds::default() };
        self.add(stream, part, net, relay).map_or(Accepted::Dropped, Accepted::Peer)
    }

    fn add(
        &mut self,
        stream: N::ShmPeer,
        part: Part<N>,
        net: &N,
        relay: &mut Relay<N>,
    ) -> io::Result<ExchangeId> {
        let id = relay.tokens().next_exchange();
        net.register_shm_peer(&stream, id.0)?;
        assert!(self.len() < EXCHANGES_MAX + OPENER_EXCHANGES_MAX, "exchanges are bounded");
        let former = self.by_id.insert(id, Exchange { stream, part });
        assert!(former.is_none(), "the name of an exchange is never used again: {id:?}");
        relay.remind(relay.settings().step_timeout(), Due::Exchange(id));
        Ok(id)
    }

    pub(super) fn remove(&mut self, id: ExchangeId, net: &N) {
        drop(self.take(id, net));
    }

    fn take(&mut self, id: ExchangeId, net: &N) -> Option<Exchange<N>> {
        let exchange = self.by_id.remove(&id)?;
        net.deregister_shm_peer(&exchange.stream);
        Some(exchange)
    }

    /// Opener: queues a link, to create its rings and send them with the ticket.
    pub(super) fn queue(&mut self, link: LinkId, ticket: [u8; TICKET_BYTES], config: ShmConfig) {
        self.queued.push_back(QueuedExchange { link, ticket, config });
    }

    fn may_begin(&self) -> bool {
        let begun = self.by_id.values().filter(|e| matches!(e.part, Part::Opener { .. }));
        !self.queued.is_empty() && begun.count() < OPENER_EXCHANGES_MAX
    }

    /// Opener: begins the next queued exchange while few are in progress. Returns its link, and the obstacle if any.
    pub(super) fn begin_next(
        &mut self,
        net: &N,
        relay: &mut Relay<N>,
    ) -> Option<(LinkId, Result<(), String>)> {
        let next = self.may_begin().then(|| self.queued.pop_front()).flatten()?;
        let begun = self.send_rings(&next, net, relay).map(|begun| {
            if let Some(link) = relay.links.get_mut(next.link) {
                link.note_exchange(begun);
            }
        });
        Some((next.link, begun))
    }

    /// Opener: creates the rings of a link, and sends them with the ticket to the peer's rendezvous.
    fn send_rings(
        &mut self,
        next: &QueuedExchange,
        net: &N,
        relay: &mut Relay<N>,
    ) -> Result<ExchangeId, String> {
        let link = relay.links.get(next.link).ok_or("the link has ended")?;
        let peer = relay.connections.get(link.connection()).and_then(|c| c.peer());
        let name = peer.and_then(|peer| peer.rendezvous()).ok_or("no rendezvous")?;
        let segment = net.create_segment(&next.config)?;
        let stream = net
            .connect_rendezvous(name)
            .map_err(|error| format!("cannot meet the peer: {error}"))?;
        match retry(|| net.send_to_shm_peer(&stream, &next.ticket, Some(&segment))) {
            Ok(TICKET_BYTES) => {}
            Ok(_) => return Err("the ticket was not sent whole".to_owned()),
            Err(error) => return Err(format!("cannot send the rings: {error}")),
        }
        let part = Part::Opener { link: next.link, segment };
        self.add(stream, part, net, relay).map_err(|error| error.to_string())
    }

    /// Handles received bytes. Returns the link and the result if they end the exchange. It may have ended before the
    /// event.
    pub(super) fn on_bytes(
        &mut self,
        id: ExchangeId,
        net: &N,
        relay: &mut Relay<N>,
    ) -> Option<(LinkId, Outcome<N>)> {
        match self.by_id.get(&id).map(|exchange| &exchange.part)? {
            Part::Acceptor { .. } => self.receive_ticket(id, net, relay),
            Part::Opener { link, .. } => {
                let link = *link;
                Some((link, self.receive_grant(id, net)?))
            }
        }
    }

    /// Opener: reads the acceptor's answer, and ends the exchange if it has come.
    fn receive_grant(&mut self, id: ExchangeId, net: &N) -> Option<Outcome<N>> {
        let exchange = self.by_id.get(&id)?;
        let (mut answer, mut fds) = ([0], N::Fds::default());
        // One byte: wake-ups may follow already.
        let receive = || net.receive_from_shm_peer(&exchange.stream, &mut answer, &mut fds, 0);
        match retry(receive) {
            Err(error) if error.kind() == ErrorKind::WouldBlock => None,
            Ok(1) if answer == [GRANTED] => self.use_rings(id, net),
            Ok(0) => Some(Outcome::NotSetUp("the peer refused at the rendezvous".to_owned())),
            Ok(_) => {
                let why = "the peer's answer at the rendezvous makes no sense";
                Some(Outcome::NotSetUp(why.to_owned()))
            }
            Err(error) => Some(Outcome::NotSetUp(error.to_string())),
        }
    }

    fn use_rings(&mut self, id: ExchangeId, net: &N) -> Option<Outcome<N>> {
        let Exchange { stream, part: Part::Opener { segment, .. } } = self.take(id, net)? else {
            unreachable!("the opener of {id:?} receives the grant")
        };
        let max_frame = net.max_frame_bytes(&segment) as u32;
        let transport = net.shm_link(segment, Side::Creator, stream);
        Some(Outcome::Ready(Ready { transport, max_frame, kind: shm::KIND, ecn: false }))
    }

    /// Acceptor: reads the ticket and the memory that comes with it. A wrong peer is dropped.
    fn receive_ticket(
        &mut self,
        id: ExchangeId,
        net: &N,
        relay: &mut Relay<N>,
    ) -> Option<(LinkId, Outcome<N>)> {
        let Exchange { stream, part: Part::Acceptor { ticket, ticket_bytes, fds } } =
            self.by_id.get_mut(&id)?
        else {
            unreachable!("the acceptor of {id:?} receives the ticket")
        };
        while *ticket_bytes < TICKET_BYTES {
            let rest = &mut ticket[*ticket_bytes..];
            match retry(|| net.receive_from_shm_peer(stream, rest, fds, FDS_MAX + 1)) {
                Ok(count @ 1..) => {
                    *ticket_bytes += count;
                    assert!(*ticket_bytes <= TICKET_BYTES, "a read stays within its buffer");
                    if fds.count() > FDS_MAX {
                        self.drop_invalid(id, net, relay);
                        return None;
                    }
                }
                Err(error) if error.kind() == ErrorKind::WouldBlock => return None,
                Ok(0) | Err(_) => {
                    self.drop_invalid(id, net, relay);
                    return None;
                }
            }
        }
        let ticket = *ticket;
        self.on_ticket(id, &ticket, net, relay)
    }

    /// Drops a process of the same user without a valid ticket.
    fn drop_invalid(&mut self, id: ExchangeId, net: &N, relay: &Relay<N>) {
        relay.counters().rendezvous_dropped.increment();
        self.remove(id, net);
    }

    /// Acceptor: finds the link by its ticket.
    fn on_ticket(
        &mut self,
        id: ExchangeId,
        ticket: &[u8; TICKET_BYTES],
        net: &N,
        relay: &mut Relay<N>,
    ) -> Option<(LinkId, Outcome<N>)> {
        let Some(link) = relay.links.redeem(ticket) else {
            self.drop_invalid(id, net, relay);
            return None;
        };
        let Exchange { stream, part: Part::Acceptor { mut fds, .. } } = self.take(id, net)? else {
            unreachable!("the acceptor of {id:?} has the ticket")
        };
        let outcome = match open_rings(link, &stream, fds.take_only(), net, relay) {
            Ok((segment, max_frame)) => {
                let transport = net.shm_link(segment, Side::Opener, stream);
                Outcome::Ready(Ready { transport, max_frame, kind: shm::KIND, ecn: false })
            }
            Err(obstacle) => Outcome::Unusable(Reason::new(Status::FailedPrecondition, obstacle)),
        };
        Some((link, outcome))
    }

    /// Ends an exchange at its deadline. The opener's ends by its link's own deadline.
    pub(super) fn on_due(&mut self, id: ExchangeId, net: &N, relay: &Relay<N>) {
        if let Some(Part::Acceptor { .. }) = self.by_id.get(&id).map(|e| &e.part) {
            self.drop_invalid(id, net, relay);
        }
    }
}

/// Acceptor: maps the memory of a link, checks it against the promise, and grants it.
fn open_rings<N: Network>(
    id: LinkId,
    stream: &N::ShmPeer,
    memory: Option<<N::Fds as Fds>::Memory>,
    net: &N,
    relay: &Relay<N>,
) -> Result<(N::Segment, u32), String> {
    let memory = memory.ok_or("no memory came with the ticket")?;
    let (config, max_frame) = match promised_rings(id, relay) {
        Ok(promised) => promised,
        Err(obstacle) => {
            N::Fds::discard(memory);
            return Err(obstacle.to_owned());
        }
    };
    let segment = net.open_segment(stream, memory, config.huge_pages)?;
    let found = net.max_frame_bytes(&segment);
    if found != max_frame as usize {
        return Err(format!("the rings carry frames of {found} bytes"));
    }
    // A single byte always fits into a socket not written to yet.
    retry(|| net.send_to_shm_peer(stream, &[GRANTED], None))
        .map_err(|error| format!("cannot answer at the rendezvous: {error}"))?;
    Ok((segment, max_frame))
}

/// Returns the settings of the endpoint for a promised link, and the frame size.
fn promised_rings<N: Network>(
    id: LinkId,
    relay: &Relay<N>,
) -> Result<(ShmConfig, u32), &'static str> {
    let link = relay.links.get(id).ok_or("the link has ended")?;
    match *link.stage() {
        Stage::Promised { expected: Some(expected), max_frame } => {
            let memory = expected.memory().ok_or("the ticket is for a stream")?;
            Ok((*memory, max_frame))
        }
        _ => Err("the link is up already"),
    }
}
