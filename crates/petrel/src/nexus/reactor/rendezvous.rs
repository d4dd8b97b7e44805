//! Exchange of shared memory (`docs/wire-protocol.md` §8.4).
//!
//! The opener of a link creates the rings, connects to the acceptor's Unix socket, presents the ticket and sends the
//! descriptor of the memory. The acceptor answers with one byte. The connection stays, for the two endpoints to wake
//! each other. Nothing here blocks: if a peer stalls, the exchange is given up at a deadline, and the link falls back
//! to UDP.
//!
//! Streams and descriptors of peers keep the types of [`SharedMemory`](super::net::SharedMemory), because closing one
//! may block.

use std::io::{self, ErrorKind};

use petrel_proto::Status;
use petrel_transport::shm::{ShmConfig, Side};

use super::{RENDEZVOUS, Reactor};
use crate::control::{LinkId, Reason};
use crate::nexus::connection::retry;
use crate::nexus::deadlines::Due;
use crate::nexus::exchange::{Exchange, LocalRendezvous, Part, QueuedExchange, TICKET_BYTES};
use crate::nexus::ids::ExchangeId;
use crate::nexus::limits::{ACCEPTS_PER_TURN, EXCHANGES_MAX, OPENER_EXCHANGES_MAX};
use crate::nexus::link::{Ready, Stage};
use crate::nexus::media::shm;
use crate::nexus::net::{Fds, Network};

/// Descriptors accompanying a ticket: the memory of the rings.
const FDS_MAX: usize = 1;

/// The acceptor's answer to a valid ticket.
const GRANTED: u8 = 1;

impl<N: Network> Reactor<N> {
    /// Opens the rendezvous. Without it shared memory is not offered.
    pub(in crate::nexus) fn open_rendezvous(&mut self) -> io::Result<()> {
        let host_identity = self.net.host_identity()?;
        let listener = self.net.open_rendezvous(RENDEZVOUS)?;
        let name = self.net.name_of(&listener);
        self.local_rendezvous =
            Some(LocalRendezvous { listener, name, host_identity, has_more: false });
        Ok(())
    }

    pub(super) fn on_rendezvous_ready(&mut self) {
        if let Some(rendezvous) = &mut self.local_rendezvous {
            rendezvous.has_more = true;
        }
    }

    pub(super) fn has_more_exchanges(&self) -> bool {
        self.may_begin_exchange()
            || self.local_rendezvous.as_ref().is_some_and(|rendezvous| rendezvous.has_more)
    }

    /// Continues ready exchanges, in both roles.
    pub(super) fn run_exchanges(&mut self) {
        self.begin_queued_exchanges();
        self.accept_shm_peers();
    }

    /// Accepts a bounded number of connections at the rendezvous.
    fn accept_shm_peers(&mut self) {
        // While closes hang, new peers wait and in the end fall back to UDP.
        for _ in 0..if self.net.can_close() { ACCEPTS_PER_TURN } else { 0 } {
            let Some(rendezvous) =
                self.local_rendezvous.as_mut().filter(|rendezvous| rendezvous.has_more)
            else {
                return;
            };
            match self.net.accept_shm_peer(&mut rendezvous.listener) {
                Ok(Some(stream)) => self.start_accepting(stream),
                // A flood of foreign processes: they were dropped, and other work comes first.
                Err(error) if error.kind() == ErrorKind::Interrupted => return,
                // Without free descriptors the waiting peers fall back to UDP.
                Ok(None) | Err(_) => rendezvous.has_more = false,
            }
        }
    }

    fn start_accepting(&mut self, stream: N::ShmPeer) {
        if self.exchanges.len() >= EXCHANGES_MAX {
            self.counters.rendezvous_dropped.increment();
            return;
        }
        let part =
            Part::Acceptor { ticket: [0; TICKET_BYTES], ticket_bytes: 0, fds: N::Fds::default() };
        if let Ok(id) = self.add_exchange(stream, part) {
            self.on_exchange_ready(id);
        }
    }

    fn add_exchange(&mut self, stream: N::ShmPeer, part: Part<N>) -> io::Result<ExchangeId> {
        let id = ExchangeId(self.new_token());
        self.net.register_shm_peer(&stream, id.0)?;
        let former = self.exchanges.insert(id, Exchange { stream, part });
        assert!(former.is_none(), "the name of an exchange is never used again: {id:?}");
        self.deadlines.add(self.now + self.settings.step_timeout, Due::Exchange(id));
        Ok(id)
    }

    pub(super) fn remove_exchange(&mut self, id: ExchangeId) {
        drop(self.take_exchange(id));
    }

    fn take_exchange(&mut self, id: ExchangeId) -> Option<Exchange<N>> {
        let exchange = self.exchanges.remove(&id)?;
        self.net.deregister_shm_peer(&exchange.stream);
        Some(exchange)
    }

    /// Opener: queues a link, to create its rings and send them with the ticket.
    pub(super) fn queue_exchange(
        &mut self,
        id: LinkId,
        ticket: [u8; TICKET_BYTES],
        kind: u8,
        config: ShmConfig,
    ) {
        self.extend_deadline(id);
        if let Some(link) = self.links.get_mut(&id) {
            link.agree_on_memory(kind);
            self.queued_exchanges.push_back(QueuedExchange { link: id, ticket, config });
        }
    }

    fn may_begin_exchange(&self) -> bool {
        let begun = self.exchanges.values().filter(|e| matches!(e.part, Part::Opener { .. }));
        !self.queued_exchanges.is_empty() && begun.count() < OPENER_EXCHANGES_MAX
    }

    /// Opener: begins queued exchanges while few are in progress.
    fn begin_queued_exchanges(&mut self) {
        while self.may_begin_exchange()
            && let Some(QueuedExchange { link, ticket, config }) = self.queued_exchanges.pop_front()
        {
            match self.send_rings(link, &ticket, &config) {
                Ok(begun) => {
                    if let Some(link) = self.links.get_mut(&link) {
                        link.note_exchange(begun);
                    }
                }
                Err(obstacle) => self.fall_back(link, &obstacle),
            }
        }
    }

    fn send_rings(
        &mut self,
        id: LinkId,
        ticket: &[u8; TICKET_BYTES],
        config: &ShmConfig,
    ) -> Result<ExchangeId, String> {
        let link = self.links.get(&id).ok_or("the link has ended")?;
        let peer = self.connections.get(&link.connection()).and_then(|c| c.peer());
        let name = peer.and_then(|peer| peer.rendezvous.as_deref()).ok_or("no rendezvous")?;
        let segment = self.net.create_segment(config)?;
        let stream = self
            .net
            .connect_rendezvous(name)
            .map_err(|error| format!("cannot meet the peer: {error}"))?;
        match retry(|| self.net.send_to_shm_peer(&stream, ticket, Some(&segment))) {
            Ok(TICKET_BYTES) => {}
            Ok(_) => return Err("the ticket was not sent whole".to_owned()),
            Err(error) => return Err(format!("cannot send the rings: {error}")),
        }
        let part = Part::Opener { link: id, segment };
        self.add_exchange(stream, part).map_err(|error| error.to_string())
    }

    /// Handles received bytes. The exchange may have ended before the event.
    pub(super) fn on_exchange_ready(&mut self, id: ExchangeId) {
        match self.exchanges.get(&id).map(|exchange| &exchange.part) {
            Some(Part::Acceptor { .. }) => self.receive_ticket(id),
            Some(Part::Opener { link, .. }) => {
                let link = *link;
                self.receive_grant(id, link);
            }
            None => {}
        }
    }

    fn receive_grant(&mut self, id: ExchangeId, link: LinkId) {
        let Some(exchange) = self.exchanges.get(&id) else { return };
        let (mut answer, mut fds) = ([0], N::Fds::default());
        // One byte: wake-ups may follow already.
        let receive = || self.net.receive_from_shm_peer(&exchange.stream, &mut answer, &mut fds, 0);
        match retry(receive) {
            Err(error) if error.kind() == ErrorKind::WouldBlock => {}
            Ok(1) if answer == [GRANTED] => self.use_rings(id, link),
            Ok(0) => self.fall_back(link, "the peer refused at the rendezvous"),
            Ok(_) => self.fall_back(link, "the peer's answer at the rendezvous makes no sense"),
            Err(error) => self.fall_back(link, &error.to_string()),
        }
    }

    fn use_rings(&mut self, id: ExchangeId, link: LinkId) {
        if let Some(Exchange { stream, part: Part::Opener { segment, .. } }) =
            self.take_exchange(id)
        {
            let max_frame = self.net.max_frame_bytes(&segment) as u32;
            let transport = self.net.shm_link(segment, Side::Creator, stream);
            self.bring_up(link, Ready { transport, max_frame, kind: shm::KIND, ecn: false });
        }
    }

    fn receive_ticket(&mut self, id: ExchangeId) {
        let Some(Exchange { stream, part: Part::Acceptor { ticket, ticket_bytes, fds } }) =
            self.exchanges.get_mut(&id)
        else {
            return;
        };
        while *ticket_bytes < TICKET_BYTES {
            let rest = &mut ticket[*ticket_bytes..];
            match retry(|| self.net.receive_from_shm_peer(stream, rest, fds, FDS_MAX + 1)) {
                Ok(count @ 1..) => {
                    *ticket_bytes += count;
                    if fds.count() > FDS_MAX {
                        return self.drop_invalid(id);
                    }
                }
                Err(error) if error.kind() == ErrorKind::WouldBlock => return,
                Ok(0) | Err(_) => return self.drop_invalid(id),
            }
        }
        let ticket = *ticket;
        self.on_ticket(id, &ticket);
    }

    /// Drops a process of the same user without a valid ticket.
    fn drop_invalid(&mut self, id: ExchangeId) {
        self.counters.rendezvous_dropped.increment();
        self.remove_exchange(id);
    }

    /// Acceptor: finds the link by its ticket.
    fn on_ticket(&mut self, id: ExchangeId, ticket: &[u8; TICKET_BYTES]) {
        let Some(link) = self.tickets.remove(ticket) else { return self.drop_invalid(id) };
        let Some(Exchange { stream, part: Part::Acceptor { mut fds, .. } }) =
            self.take_exchange(id)
        else {
            return;
        };
        match self.open_rings(link, &stream, fds.take_only()) {
            Ok((segment, max_frame)) => {
                let transport = self.net.shm_link(segment, Side::Opener, stream);
                self.bring_up(link, Ready { transport, max_frame, kind: shm::KIND, ecn: false });
            }
            Err(obstacle) => {
                let reason = Reason::new(Status::FailedPrecondition, obstacle);
                self.close_link(link, &reason);
            }
        }
    }

    fn open_rings(
        &self,
        id: LinkId,
        stream: &N::ShmPeer,
        memory: Option<<N::Fds as Fds>::Memory>,
    ) -> Result<(N::Segment, u32), String> {
        let memory = memory.ok_or("no memory came with the ticket")?;
        let (config, max_frame) = match self.promised_rings(id) {
            Ok(promised) => promised,
            Err(obstacle) => {
                N::Fds::discard(memory);
                return Err(obstacle.to_owned());
            }
        };
        let segment = self.net.open_segment(memory, config.huge_pages)?;
        let found = self.net.max_frame_bytes(&segment);
        if found != max_frame as usize {
            return Err(format!("the rings carry frames of {found} bytes"));
        }
        // A single byte always fits into a socket not written to yet.
        retry(|| self.net.send_to_shm_peer(stream, &[GRANTED], None))
            .map_err(|error| format!("cannot answer at the rendezvous: {error}"))?;
        Ok((segment, max_frame))
    }

    /// Returns the settings of the endpoint for a promised link, and the frame size.
    fn promised_rings(&self, id: LinkId) -> Result<(ShmConfig, u32), &'static str> {
        let link = self.links.get(&id).ok_or("the link has ended")?;
        match *link.stage() {
            Stage::Promised { expected: Some(expected), max_frame } => {
                Ok((expected.config, max_frame))
            }
            _ => Err("the link is up already"),
        }
    }

    /// Ends an exchange at its deadline. The opener's ends by its link's own deadline.
    pub(super) fn on_exchange_due(&mut self, id: ExchangeId) {
        if let Some(Part::Acceptor { .. }) = self.exchanges.get(&id).map(|e| &e.part) {
            self.drop_invalid(id);
        }
    }
}
