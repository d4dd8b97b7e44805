//! Handing over shared memory (`docs/wire-protocol.md` §8.4).
//!
//! The opener of a link makes the rings, connects to the acceptor's Unix socket, shows the ticket
//! and sends the descriptor of the memory. The acceptor answers with one byte. The connection stays: by
//! it the two endpoints wake each other. Nothing here blocks: a peer that does not go on is given
//! up at a deadline, and the link falls back to UDP.
//!
//! Streams and descriptors of peers stay in [`PeerStream`] and [`PeerFds`], because to close one may block.

use std::io::{self, ErrorKind};
use std::os::fd::{AsFd, AsRawFd, OwnedFd};

use mio::unix::SourceFd;
use mio::{Interest, Token};
use petrel_proto::Status;
use petrel_transport::host::HostLink;
use petrel_transport::shm::{
    HOST_IDENTITY_BYTES, NAME_BYTES, PeerFds, PeerStream, Rendezvous, Segment, ShmConfig, ShmLink,
    Side, can_close, connect, discard, host_identity, recv_with_fds, send_with_fds,
};

use super::connection::retry;
use super::deadlines::Due;
use super::limits::{ACCEPTS_PER_TURN, EXCHANGES_MAX, MEETINGS_MAX};
use super::links::Stage;
use super::reactor::{RENDEZVOUS, Reactor};
use crate::control::{LinkId, Reason};

const TICKET_BYTES: usize = 16;

/// Descriptors that come with a ticket: the memory of the rings.
const FDS_MAX: usize = 1;

/// What the acceptor answers a good ticket with.
const GRANTED: u8 = 1;

/// Names an exchange, and is its token in the readiness loop; never used again.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(super) struct ExchangeId(pub(super) usize);

/// Where peers of this host come for shared memory.
#[derive(Debug)]
pub(super) struct Meeting {
    rendezvous: Rendezvous,
    pub(super) host_identity: [u8; HOST_IDENTITY_BYTES],
    /// More may wait, though no event will say so.
    has_more: bool,
}

/// An exchange of descriptors under way.
#[derive(Debug)]
pub(super) struct Exchange {
    stream: PeerStream,
    part: Part,
}

/// A link whose ticket is to be shown.
#[derive(Debug)]
pub(super) struct Invitation {
    link: LinkId,
    ticket: [u8; TICKET_BYTES],
    max_frame: u32,
}

/// Which part this process has in an exchange.
#[derive(Debug)]
enum Part {
    /// The ticket and the memory are to come.
    Acceptor { ticket: [u8; TICKET_BYTES], ticket_bytes: usize, fds: PeerFds },
    /// They are sent; the answer is to come.
    Opener { link: LinkId, segment: Segment },
}

impl Meeting {
    pub(super) fn name(&self) -> [u8; NAME_BYTES] {
        self.rendezvous.name()
    }
}

impl Reactor {
    /// Opens the rendezvous. Without it shared memory is not on offer.
    pub(super) fn open_rendezvous(&mut self) -> io::Result<()> {
        let (rendezvous, host_identity) = (Rendezvous::bind()?, host_identity()?);
        let fd = rendezvous.as_fd().as_raw_fd();
        self.poll.registry().register(&mut SourceFd(&fd), RENDEZVOUS, Interest::READABLE)?;
        self.meeting = Some(Meeting { rendezvous, host_identity, has_more: false });
        Ok(())
    }

    pub(super) fn on_rendezvous_ready(&mut self) {
        if let Some(meeting) = &mut self.meeting {
            meeting.has_more = true;
        }
    }

    pub(super) fn has_more_to_meet(&self) -> bool {
        self.may_meet() || self.meeting.as_ref().is_some_and(|meeting| meeting.has_more)
    }

    /// Goes on with what is ready, in both parts.
    pub(super) fn meet_more(&mut self) {
        self.accept_invitations();
        self.accept_guests();
    }

    /// Accepts a bounded number of connections at the rendezvous.
    fn accept_guests(&mut self) {
        // While closes hang, whoever comes waits, and in the end falls back to UDP.
        for _ in 0..if can_close() { ACCEPTS_PER_TURN } else { 0 } {
            let Some(meeting) = self.meeting.as_mut().filter(|meeting| meeting.has_more) else {
                return;
            };
            match meeting.rendezvous.accept() {
                Ok(Some(stream)) => self.start_accepting(stream),
                // A flood of strangers: they were dropped, and others have their turn first.
                Err(error) if error.kind() == ErrorKind::Interrupted => return,
                // Without descriptors to spare, those who wait fall back to UDP.
                Ok(None) | Err(_) => meeting.has_more = false,
            }
        }
    }

    fn start_accepting(&mut self, stream: PeerStream) {
        if self.exchanges.len() >= EXCHANGES_MAX {
            self.counters.rendezvous_dropped.increment();
            return;
        }
        let part =
            Part::Acceptor { ticket: [0; TICKET_BYTES], ticket_bytes: 0, fds: PeerFds::default() };
        if let Ok(id) = self.add_exchange(stream, part) {
            self.on_exchange_ready(id);
        }
    }

    fn add_exchange(&mut self, stream: PeerStream, part: Part) -> io::Result<ExchangeId> {
        let id = ExchangeId(self.new_token());
        let fd = stream.as_raw_fd();
        self.poll.registry().register(&mut SourceFd(&fd), Token(id.0), Interest::READABLE)?;
        self.exchanges.insert(id, Exchange { stream, part });
        self.deadlines.add(self.now + self.settings.step_timeout, Due::Exchange(id));
        Ok(id)
    }

    pub(super) fn remove_exchange(&mut self, id: ExchangeId) {
        drop(self.take_exchange(id));
    }

    fn take_exchange(&mut self, id: ExchangeId) -> Option<Exchange> {
        let exchange = self.exchanges.remove(&id)?;
        // It fails only for a socket that is not registered.
        let _ = self.poll.registry().deregister(&mut SourceFd(&exchange.stream.as_raw_fd()));
        Some(exchange)
    }

    /// Opener: is to make the rings, and to send them with the ticket.
    pub(super) fn show_ticket(&mut self, id: LinkId, ticket: [u8; TICKET_BYTES], max_frame: u32) {
        self.extend_deadline(id);
        if let Some(link) = self.links.get_mut(&id)
            && let Stage::Asked { request, .. } = &link.stage
        {
            link.stage = Stage::Meeting { request: request.clone(), exchange: None };
            self.ready_to_meet.push_back(Invitation { link: id, ticket, max_frame });
        }
    }

    fn may_meet(&self) -> bool {
        let begun = self.exchanges.values().filter(|e| matches!(e.part, Part::Opener { .. }));
        !self.ready_to_meet.is_empty() && begun.count() < MEETINGS_MAX
    }

    /// Opener: begins with those that wait, as long as few are under way.
    fn accept_invitations(&mut self) {
        while self.may_meet()
            && let Some(Invitation { link, ticket, max_frame }) = self.ready_to_meet.pop_front()
        {
            match self.send_rings(link, &ticket, max_frame) {
                Ok(begun) => {
                    if let Some(Stage::Meeting { exchange, .. }) =
                        self.links.get_mut(&link).map(|link| &mut link.stage)
                    {
                        *exchange = Some(begun);
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
        max_frame: u32,
    ) -> Result<ExchangeId, String> {
        let link = self.links.get(&id).ok_or("the link has ended")?;
        let peer = self.connections.get(&link.connection).and_then(|c| c.peer());
        let name = peer.and_then(|peer| peer.rendezvous.as_deref()).ok_or("no rendezvous")?;
        let endpoint = self.endpoints.get(&link.endpoint).ok_or("the endpoint has gone")?;
        let config = endpoint.attach.shm.ok_or("the endpoint does not use shared memory")?.config;
        let config = ShmConfig { max_frame_bytes: max_frame as usize, ..config };
        let segment = Segment::create(&config).map_err(|error| error.to_string())?;
        let stream = connect(name).map_err(|error| format!("cannot meet the peer: {error}"))?;
        match retry(|| send_with_fds(&stream, ticket, &[segment.as_fd()])) {
            Ok(TICKET_BYTES) => {}
            Ok(_) => return Err("the ticket was not sent whole".to_owned()),
            Err(error) => return Err(format!("cannot send the rings: {error}")),
        }
        let part = Part::Opener { link: id, segment };
        self.add_exchange(stream, part).map_err(|error| error.to_string())
    }

    /// Something came, or an earlier event was late and the exchange is no more.
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
        let mut answer = [0];
        // One byte: behind it may be wake-ups already.
        match retry(|| recv_with_fds(&exchange.stream, &mut answer, 0)) {
            Err(error) if error.kind() == ErrorKind::WouldBlock => {}
            Ok((1, _)) if answer == [GRANTED] => self.use_rings(id, link),
            Ok((0, _)) => self.fall_back(link, "the peer refused at the rendezvous"),
            Ok(_) => self.fall_back(link, "the peer's answer at the rendezvous makes no sense"),
            Err(error) => self.fall_back(link, &error.to_string()),
        }
    }

    fn use_rings(&mut self, id: ExchangeId, link: LinkId) {
        if let Some(Exchange { stream, part: Part::Opener { segment, .. } }) =
            self.take_exchange(id)
        {
            let max_frame = segment.max_frame_bytes() as u32;
            let transport = ShmLink::new(segment, Side::Creator, stream);
            self.bring_up(link, HostLink::Shm(transport), max_frame);
        }
    }

    fn receive_ticket(&mut self, id: ExchangeId) {
        let Some(Exchange { stream, part: Part::Acceptor { ticket, ticket_bytes, fds } }) =
            self.exchanges.get_mut(&id)
        else {
            return;
        };
        while *ticket_bytes < TICKET_BYTES {
            match retry(|| recv_with_fds(stream, &mut ticket[*ticket_bytes..], FDS_MAX + 1)) {
                Ok((count @ 1.., more)) => {
                    *ticket_bytes += count;
                    fds.add(more);
                    if fds.count() > FDS_MAX {
                        return self.drop_stranger(id);
                    }
                }
                Err(error) if error.kind() == ErrorKind::WouldBlock => return,
                Ok((0, _)) | Err(_) => return self.drop_stranger(id),
            }
        }
        let ticket = *ticket;
        self.on_ticket(id, &ticket);
    }

    /// Somebody of the same user who does not know what we speak of.
    fn drop_stranger(&mut self, id: ExchangeId) {
        self.counters.rendezvous_dropped.increment();
        self.remove_exchange(id);
    }

    /// Acceptor: the ticket says which link it is.
    fn on_ticket(&mut self, id: ExchangeId, ticket: &[u8; TICKET_BYTES]) {
        let Some(link) = self.tickets.remove(ticket) else { return self.drop_stranger(id) };
        let Some(Exchange { stream, part: Part::Acceptor { mut fds, .. } }) =
            self.take_exchange(id)
        else {
            return;
        };
        match self.open_rings(link, &stream, fds.take_only()) {
            Ok((segment, max_frame)) => {
                let transport = ShmLink::new(segment, Side::Opener, stream);
                self.bring_up(link, HostLink::Shm(transport), max_frame);
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
        stream: &PeerStream,
        memory: Option<OwnedFd>,
    ) -> Result<(Segment, u32), String> {
        let memory = memory.ok_or("no memory came with the ticket")?;
        let (config, max_frame) = match self.promised_rings(id) {
            Ok(promised) => promised,
            Err(obstacle) => {
                discard(vec![memory]);
                return Err(obstacle.to_owned());
            }
        };
        let segment = Segment::from_fd_in(memory, config.huge_pages);
        let segment = segment.map_err(|error| error.to_string())?;
        if segment.max_frame_bytes() != max_frame as usize {
            return Err(format!("the rings carry frames of {} bytes", segment.max_frame_bytes()));
        }
        // One byte always fits into a socket that nothing was written to.
        retry(|| send_with_fds(stream, &[GRANTED], &[]))
            .map_err(|error| format!("cannot answer at the rendezvous: {error}"))?;
        Ok((segment, max_frame))
    }

    /// How the endpoint of a link that waits for its rings is configured, and their frames.
    fn promised_rings(&self, id: LinkId) -> Result<(ShmConfig, u32), &'static str> {
        let link = self.links.get(&id).ok_or("the link has ended")?;
        let Stage::Promised { max_frame, .. } = link.stage else {
            return Err("the link is up already");
        };
        let endpoint = self.endpoints.get(&link.endpoint).ok_or("the endpoint has gone")?;
        let shm = endpoint.attach.shm.ok_or("the endpoint does not use shared memory")?;
        Ok((shm.config, max_frame))
    }

    /// An exchange that takes too long. The opener's is ended by its link's own deadline.
    pub(super) fn on_exchange_due(&mut self, id: ExchangeId) {
        if let Some(Part::Acceptor { .. }) = self.exchanges.get(&id).map(|e| &e.part) {
            self.drop_stranger(id);
        }
    }
}
