//! The endpoint's sessions: opening, accepting and ending them, with the control plane (`docs/wire-protocol.md` §8.4 to
//! §8.6).

use std::collections::{BTreeSet, HashMap, VecDeque};
use std::net::SocketAddr;
use std::sync::Arc;

use petrel_proto::control::{SessionAccept, SessionOpen};
use petrel_proto::limits::{FIRST_REQUEST_END, PACKET_BYTES_MIN, PACKET_OVERHEAD_BYTES, SLOTS_MAX};
use petrel_proto::{Accepted, Agreed, CallError, Closed, PeerKey, SessionId, Status};
use petrel_transport::{PeerId, Transport};

use super::drain::DRAINING;
use super::ids::IdMap;
use super::peer::Peer;
use super::{Endpoint, SessionConfig, SessionEnd, SessionEnds};
use crate::client::InLoop;
use crate::control::{
    AllowedTransports, ControlPlane, EndpointId, FromNexus, LinkId, PeerName, Reason, ToNexus,
};
use crate::error::Error;
use crate::events;
use crate::nexus::shrink;
use crate::slot_shares::slots_for;

/// Control messages handled in one turn: a storm of connects leaves time for calls.
const CONTROL_PER_TURN: usize = 16;

/// Ended sessions whose reason is kept.
const ENDED_MAX: usize = 1024;

/// The state of a session.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum SessionState {
    /// The peer has not answered yet. Calls wait.
    Opening,
    /// Calls are sent.
    Open,
    /// The server is about to end: outstanding calls continue, further ones are rejected, and the session closes after
    /// the last.
    Draining,
    /// It has ended; with the reason, if recent.
    Ended(Option<Reason>),
}

/// A link that is up.
struct Link {
    id: PeerId,
    peer: Arc<Peer>,
    /// The shortest round trip of the control connection, in nanoseconds.
    path_rtt_ns: Option<u32>,
    /// Ordered, for a simulation to repeat the order of ends when the link ends.
    sessions: BTreeSet<SessionId>,
    /// Whether it gets no further sessions, and is closed with the last: its server drains.
    is_left: bool,
}

/// A link requested by the endpoint: one per remote endpoint, whatever the number of sessions.
enum Outgoing {
    /// Requested; these sessions wait for it.
    Opening {
        request: u64,
        waiting: Vec<SessionId>,
    },
    Up(LinkId),
}

type Remote = (SocketAddr, EndpointId);

/// A session being opened.
struct Opening {
    first_request: u64,
    /// Whether a link on which it was proposed has ended. The first link may have led to a process already gone when
    /// the session was requested, unnoticed locally. The end of the link then says nothing about the current process.
    /// The next link is requested after the session, and its end counts.
    is_second_try: bool,
}

/// An ended session.
struct Ended {
    id: SessionId,
    end: SessionEnd,
    reason: Reason,
}

/// The endpoint's links and sessions, apart from the protocol core.
pub(super) struct Sessions {
    config: SessionConfig,
    transports: AllowedTransports,
    links: IdMap<LinkId, Link>,
    outgoing: HashMap<Remote, Outgoing>,
    /// Link of every proposed or open session.
    link_of: IdMap<SessionId, LinkId>,
    /// Sessions proposed to the peer, by the proposal's number. A session closed here meanwhile stays, to let an
    /// acceptance be revoked.
    proposed: HashMap<u32, (SessionId, LinkId)>,
    /// Client sessions that are not open yet.
    openings: HashMap<SessionId, Opening>,
    ended: VecDeque<Ended>,
    ends: SessionEnds,
    next_request: u64,
}

impl Sessions {
    pub(super) fn new(config: SessionConfig, transports: AllowedTransports) -> Self {
        Self {
            config,
            transports,
            links: IdMap::default(),
            outgoing: HashMap::new(),
            link_of: IdMap::default(),
            proposed: HashMap::new(),
            openings: HashMap::new(),
            ended: VecDeque::new(),
            ends: SessionEnds::default(),
            next_request: 1,
        }
    }

    /// Returns the link of a proposed or open session.
    pub(super) fn link_of(&self, id: SessionId) -> Option<LinkId> {
        self.link_of.get(&id).copied()
    }

    /// Returns the peer of a proposed or open session.
    pub(super) fn peer_of(&self, id: SessionId) -> Option<&Arc<Peer>> {
        Some(&self.links.get(self.link_of.get(&id)?)?.peer)
    }

    pub(super) fn accepts_multicast(&self) -> bool {
        self.config.accept_multicast
    }

    /// Returns the numbers of sessions being opened, of sessions on a link, and of links being opened.
    pub(super) fn census(&self) -> (usize, usize, usize) {
        let opening = self.proposed.len() + self.openings.len();
        let is_dialled = |outgoing: &&Outgoing| matches!(outgoing, Outgoing::Opening { .. });
        let dialled = self.outgoing.values().filter(is_dialled).count();
        (opening, self.link_of.len(), dialled)
    }

    fn next_request(&mut self) -> u64 {
        self.next_request += 1;
        self.next_request - 1
    }

    fn remember_end(&mut self, ended: Ended) {
        self.ends.count(ended.end);
        if self.ended.len() == ENDED_MAX {
            self.ended.pop_front();
        }
        self.ended.push_back(ended);
    }

    fn end_of(&self, id: SessionId) -> Option<&Ended> {
        self.ended.iter().rev().find(|ended| ended.id == id)
    }

    /// Returns the text for a rejected call: for an ended session, the reason of its end.
    pub(super) fn explain(&self, id: SessionId, error: &CallError) -> String {
        match self.end_of(id).filter(|_| matches!(error, CallError::SessionClosed)) {
            Some(ended) => format!("{error}; it ended because: {}", ended.reason.message),
            None => error.to_string(),
        }
    }

    /// Returns how many sessions ended in each way.
    pub(super) fn ends(&self) -> SessionEnds {
        self.ends
    }

    /// Stops opening further sessions over the link of session `id`.
    pub(super) fn retire_link_of(&mut self, id: SessionId) {
        let Some(link) = self.link_of(id) else { return };
        if self.take_up(link).is_some()
            && let Some(entry) = self.links.get_mut(&link)
        {
            entry.is_left = true;
        }
    }

    /// Removes an ended session, and returns its link.
    fn forget(&mut self, id: SessionId) -> Option<LinkId> {
        self.openings.remove(&id);
        let link = self.link_of.remove(&id)?;
        shrink(&mut self.link_of);
        if let Some(entry) = self.links.get_mut(&link) {
            entry.sessions.remove(&id);
        }
        Some(link)
    }
}

impl<S: 'static, T: Transport, C: ControlPlane<T::Link>> Endpoint<S, T, C> {
    /// Opens a session to endpoint 0 of the process whose control address is `remote`.
    ///
    /// Returns at once: the session opens while the event loop runs, and calls wait until then. If the session cannot
    /// be opened, they fail, and [`Endpoint::session_state`] returns the reason.
    ///
    /// # Errors
    /// RESOURCE_EXHAUSTED when the endpoint has no room for another session.
    pub fn connect(&mut self, remote: SocketAddr) -> Result<SessionId, Error> {
        self.connect_to(remote, EndpointId(0))
    }

    /// Opens a session to an endpoint of the process whose control address is `remote`; see [`Endpoint::connect`].
    ///
    /// # Errors
    /// As [`Endpoint::connect`].
    pub fn connect_to(
        &mut self,
        remote: SocketAddr,
        endpoint: EndpointId,
    ) -> Result<SessionId, Error> {
        let token = self.control.random() as u32;
        // A multiple of any number of slots: the server may lower theirs.
        let random = self.control.random() % FIRST_REQUEST_END;
        let first = random - random % u64::from(SLOTS_MAX);
        let id = self.local.core.open(token, first)?;
        let opening = Opening { first_request: first, is_second_try: false };
        self.local.sessions.openings.insert(id, opening);
        self.propose_to((remote, endpoint), id);
        Ok(id)
    }

    /// Opens a session and runs the event loop until it is open.
    ///
    /// # Errors
    /// The status and text with which the session ended, in bounded time.
    pub fn connect_wait(&mut self, remote: SocketAddr) -> Result<SessionId, Error> {
        self.connect_wait_to(remote, EndpointId(0))
    }

    /// Opens a session to an endpoint and runs the event loop until it is open.
    ///
    /// # Errors
    /// The status and text with which the session ended, in bounded time.
    pub fn connect_wait_to(
        &mut self,
        remote: SocketAddr,
        endpoint: EndpointId,
    ) -> Result<SessionId, Error> {
        let _running = InLoop::enter();
        let id = self.connect_to(remote, endpoint)?;
        loop {
            match self.session_state(id) {
                SessionState::Opening => self.turn(),
                SessionState::Open | SessionState::Draining => return Ok(id),
                SessionState::Ended(reason) => {
                    let reason = reason.unwrap_or_else(|| Reason::new(Status::Unknown, "closed"));
                    return Err(Error::cannot_connect(remote, &reason));
                }
            }
        }
    }

    /// Returns the state of a session.
    pub fn session_state(&self, id: SessionId) -> SessionState {
        if self.local.core.is_draining(id) {
            return SessionState::Draining;
        }
        if self.local.core.agreed(id).is_some() {
            return SessionState::Open;
        }
        if self.local.core.is_open(id) {
            return SessionState::Opening;
        }
        SessionState::Ended(self.local.sessions.end_of(id).map(|ended| ended.reason.clone()))
    }

    /// Returns the process at the other end of an open session.
    pub fn session_peer(&self, id: SessionId) -> Option<&Peer> {
        self.local.sessions.peer_of(id).map(Arc::as_ref)
    }

    /// Returns the transport's name of the peer of an open session.
    pub fn session_peer_id(&self, id: SessionId) -> Option<PeerId> {
        Some(self.local.sessions.links.get(self.local.sessions.link_of.get(&id)?)?.id)
    }

    /// Closes a session, in either role. Its pending calls end with CANCELLED.
    pub fn close(&mut self, id: SessionId) {
        let text = "the session was closed here";
        self.end_session(id, SessionEnd::ClosedHere, Status::Cancelled, text);
    }

    /// Returns how and why a session ended, in either role; `None` for an existing session, or after a long time: the
    /// last 1 024 ends are kept.
    pub fn session_end(&self, id: SessionId) -> Option<(SessionEnd, &Reason)> {
        self.local.sessions.end_of(id).map(|ended| (ended.end, &ended.reason))
    }

    /// Ends a session and notifies the peer.
    pub(super) fn end_session(
        &mut self,
        id: SessionId,
        end: SessionEnd,
        status: Status,
        message: &str,
    ) {
        let Some(closed) = self.local.core.close(id, status, message) else { return };
        let reason = Reason::new(status, message);
        let for_peer = match end {
            SessionEnd::Drained => reason.clone(),
            _ => Reason::new(Status::Unavailable, "the peer closed the session"),
        };
        self.leave_groups_of(id);
        let peer = self.peer_name_of(id);
        let link = self.local.sessions.forget(id);
        self.tell_ended(link, &closed);
        if let (Some(link), Some(agreed)) = (link, closed.agreed) {
            self.control.post(ToNexus::CloseSession {
                link,
                peer_session: agreed.peer_session,
                peer_token: agreed.peer_token,
                from_client: closed.was_client,
                reason: for_peer,
            });
        }
        self.close_if_left(link);
        self.note_end(Ended { id, end, reason }, peer);
    }

    fn note_end(&mut self, ended: Ended, peer: Option<PeerName>) {
        let Ended { id, end, reason } = &ended;
        events::session_ended(self.control.endpoint_id(), *id, peer, *end, reason);
        self.local.hub.note_session(*id, &SessionState::Ended(Some(reason.clone())));
        self.local.sessions.remember_end(ended);
    }

    /// Returns the peer of a session that is about to end.
    fn peer_name_of(&self, id: SessionId) -> Option<PeerName> {
        self.session_peer(id).map(|peer| peer.name)
    }

    /// Ends a session that the peer does not know, or knows to have ended.
    fn drop_session(&mut self, id: SessionId, end: SessionEnd, reason: Reason) {
        let peer = self.peer_name_of(id);
        self.drop_session_of(id, end, reason, peer);
    }

    fn drop_session_of(
        &mut self,
        id: SessionId,
        end: SessionEnd,
        reason: Reason,
        peer: Option<PeerName>,
    ) {
        if let Some(closed) = self.local.core.close(id, reason.status, &reason.message) {
            self.leave_groups_of(id);
            let link = self.local.sessions.forget(id);
            self.tell_ended(link, &closed);
            self.close_if_left(link);
            self.note_end(Ended { id, end, reason }, peer);
        }
    }

    /// Closes a link without sessions that gets no further ones.
    fn close_if_left(&self, link: Option<LinkId>) {
        let entry = link.and_then(|link| self.local.sessions.links.get(&link));
        if let (Some(link), Some(entry)) = (link, entry)
            && entry.is_left
            && entry.sessions.is_empty()
        {
            let reason =
                Reason::new(Status::Unavailable, "the client has left a server that drains");
            self.control.post(ToNexus::CloseLink { link, reason });
        }
    }

    /// Reports the end to the control plane, which counts the sessions of peers here.
    fn tell_ended(&self, link: Option<LinkId>, closed: &Closed) {
        // The end of a link ends its sessions for the control plane, too.
        let link = link.filter(|link| self.local.sessions.links.contains_key(link));
        if let (Some(link), Some(agreed), false) = (link, closed.agreed, closed.was_client) {
            self.control.post(ToNexus::SessionEnded { link, slots: agreed.slots });
        }
    }

    /// Proposes a session as soon as there is a link.
    fn propose_to(&mut self, remote: Remote, id: SessionId) {
        match self.local.sessions.outgoing.get_mut(&remote) {
            Some(Outgoing::Opening { waiting, .. }) => waiting.push(id),
            Some(Outgoing::Up(link)) => {
                let link = *link;
                self.propose(link, id);
            }
            None => self.open_link(remote, id),
        }
    }

    fn open_link(&mut self, remote: Remote, waiting: SessionId) {
        let request = self.local.sessions.next_request();
        let outgoing = Outgoing::Opening { request, waiting: vec![waiting] };
        self.local.sessions.outgoing.insert(remote, outgoing);
        self.control.post(ToNexus::OpenLink {
            request,
            remote: remote.0,
            remote_endpoint: remote.1,
            transports: self.local.sessions.transports,
        });
    }

    /// Handles messages of the control plane.
    #[inline]
    pub(super) fn handle_control(&mut self) -> bool {
        let mut any = false;
        for _ in 0..CONTROL_PER_TURN {
            let Some(message) = self.control.poll() else { break };
            any = true;
            self.handle_control_message(message);
        }
        if any && self.local.core.take_freed() {
            petrel_transport::heap::trim();
        }
        any
    }

    #[inline(never)]
    fn handle_control_message(&mut self, message: FromNexus<T::Link>) {
        match message {
            FromNexus::LinkUp { request, link, transport, peer, incarnation } => {
                self.on_link_up(request, link, transport, peer, incarnation);
            }
            FromNexus::PathMeasured { link, rtt_ns } => self.on_path_measured(link, rtt_ns),
            FromNexus::LinkFailed { request, reason } => self.on_link_failed(request, &reason),
            FromNexus::LinkDown { link, reason } => self.on_link_down(link, &reason),
            FromNexus::SessionProposed { link, open } => {
                let request = open.request;
                let answer = self.accept(link, &open);
                if let Err(reason) = &answer {
                    let peer = self.local.sessions.links.get(&link).map(|link| link.peer.name);
                    events::session_refused(self.control.endpoint_id(), peer, reason);
                }
                self.control.post(ToNexus::AnswerSession { link, request, answer });
            }
            FromNexus::SessionOpened { link, accept } => self.on_opened(link, accept),
            FromNexus::SessionRefused { request, reason, .. } => {
                if let Some((id, _)) = self.local.sessions.proposed.remove(&request) {
                    self.drop_session(id, SessionEnd::Refused, reason);
                }
            }
            FromNexus::SessionClosed { session, token, reason, .. } => {
                if let Some(id) = self.local.core.find(session, token) {
                    self.drop_session(id, SessionEnd::ClosedByPeer, reason);
                }
            }
            FromNexus::SessionDraining { session, token, .. } => self.on_draining(session, token),
            FromNexus::GroupOffered { link, join } => self.on_group_offered(link, &join),
            FromNexus::GroupAnswered { link, request, answer } => {
                self.on_group_answered(link, request, answer);
            }
            FromNexus::GroupLeft { link, group } => self.leave_group(link, group),
            FromNexus::StatsRequested { request } => {
                let json = self.stats().to_json();
                self.control.post(ToNexus::Stats { request, json });
            }
        }
    }

    fn on_link_up(
        &mut self,
        request: Option<u64>,
        link: LinkId,
        transport: T::Link,
        name: PeerName,
        incarnation: u64,
    ) {
        let id = match self.transport.add_peer(transport) {
            Ok(id) => id,
            Err(error) => {
                let reason = Reason::new(Status::FailedPrecondition, error.to_string());
                if let Some(request) = request {
                    self.on_link_failed(request, &reason);
                }
                self.control.post(ToNexus::CloseLink { link, reason });
                return;
            }
        };
        let (path_rtt_ns, sessions) = (None, BTreeSet::new());
        let is_networked = self.transport.is_networked(id);
        let process = self.transport.process_of(id);
        let peer = Arc::new(Peer { name, incarnation, is_networked, process });
        let entry = Link { id, peer, path_rtt_ns, sessions, is_left: false };
        self.local.sessions.links.insert(link, entry);
        let opening = request.and_then(|request| self.local.sessions.take_opening(request));
        if let Some((remote, waiting)) = opening {
            self.local.sessions.outgoing.insert(remote, Outgoing::Up(link));
            for id in waiting {
                self.propose(link, id);
            }
        }
    }

    /// Sessions that are not established yet get the path when they are.
    fn on_path_measured(&mut self, link: LinkId, rtt_ns: u32) {
        let Some(entry) = self.local.sessions.links.get_mut(&link) else { return };
        if !self.transport.is_networked(entry.id) {
            return;
        }
        entry.path_rtt_ns = Some(rtt_ns);
        for &id in &entry.sessions {
            self.local.core.note_path(self.local.now_ns, id, rtt_ns);
        }
    }

    fn on_link_failed(&mut self, request: u64, reason: &Reason) {
        let Some((_, waiting)) = self.local.sessions.take_opening(request) else { return };
        for id in waiting {
            self.drop_session(id, SessionEnd::NotReached, reason.clone());
        }
    }

    fn on_link_down(&mut self, link: LinkId, reason: &Reason) {
        let Some(entry) = self.local.sessions.links.remove(&link) else { return };
        let remote = self.local.sessions.take_up(link);
        self.local.sessions.proposed.retain(|_, (_, on)| *on != link);
        for id in entry.sessions {
            match remote {
                Some(remote) if self.local.sessions.take_second_try(id) => {
                    self.propose_to(remote, id)
                }
                _ => {
                    let end = SessionEnd::LinkLost;
                    self.drop_session_of(id, end, reason.clone(), Some(entry.peer.name));
                }
            }
        }
        self.transport.remove_peer(entry.id);
    }

    /// Proposes a session to the peer of a link that is up.
    fn propose(&mut self, link: LinkId, id: SessionId) {
        let (Some(opening), Some(token)) =
            (self.local.sessions.openings.get(&id), self.local.core.token(id))
        else {
            // Closed while the link was being opened.
            return;
        };
        let first_request = opening.first_request;
        let Some(entry) = self.local.sessions.links.get_mut(&link) else { return };
        entry.sessions.insert(id);
        let packet_bytes = packet_bytes(&self.transport, entry.id);
        self.local.sessions.link_of.insert(id, link);
        let request = self.local.sessions.next_request() as u32;
        self.local.sessions.proposed.insert(request, (id, link));
        let config = &self.local.sessions.config;
        let open = SessionOpen {
            link: 0,
            request,
            session: id.index,
            token,
            first_request,
            slots: config.slots,
            credits: config.credits,
            max_message: config.message_bytes_max,
            packet_bytes,
        };
        self.control.post(ToNexus::OpenSession { link, open });
    }

    fn on_opened(&mut self, link: LinkId, accept: SessionAccept) {
        let Some((id, _)) = self.local.sessions.proposed.remove(&accept.request) else { return };
        let Some(&Link { id: peer, path_rtt_ns, .. }) = self.local.sessions.links.get(&link) else {
            return;
        };
        let agreed = Agreed {
            peer: PeerKey(peer.0),
            peer_session: accept.session,
            peer_token: accept.token,
            slots: accept.slots,
            credits: accept.credits,
            packet_bytes: accept.packet_bytes,
            peer_message_bytes_max: accept.max_message,
        };
        let error = match self.local.core.establish(id, agreed) {
            Ok(()) => {
                self.hear(id, peer);
                self.local.sessions.openings.remove(&id);
                if !self.transport.is_networked(PeerId(agreed.peer.0)) {
                    self.local.core.exempt_from_congestion_control(id);
                }
                if let Some(rtt_ns) = path_rtt_ns {
                    self.local.core.note_path(self.local.now_ns, id, rtt_ns);
                }
                self.local.hub.note_session(id, &SessionState::Open);
                self.note_open(id);
                return;
            }
            Err(error) => error,
        };
        // Closed here meanwhile, or impossible values: the peer has a session without a client.
        let reason = Reason::new(Status::Internal, error.to_string());
        self.drop_session(id, SessionEnd::Invalid, reason);
        self.control.post(ToNexus::CloseSession {
            link,
            peer_session: accept.session,
            peer_token: accept.token,
            from_client: true,
            reason: Reason::new(Status::Cancelled, error.to_string()),
        });
    }

    /// Accepts the frames of a newly open session, under any name they come with.
    fn hear(&mut self, id: SessionId, peer: PeerId) {
        let source = self.transport.source_of(peer);
        if source != peer {
            let is_open = self.local.core.accept_from(id, PeerKey(source.0));
            assert!(is_open, "a session that was just agreed on");
        }
    }

    fn note_open(&self, id: SessionId) {
        let link =
            self.local.sessions.link_of(id).and_then(|link| self.local.sessions.links.get(&link));
        if let Some(link) = link {
            let transport = if link.peer.is_networked { "udp" } else { "shm" };
            let endpoint = self.control.endpoint_id();
            let is_server = self.local.core.is_server(id);
            events::session_opened(endpoint, id, Some(link.peer.name), transport, is_server);
        }
    }

    /// Accepts a session as its server, or returns why not.
    fn accept(&mut self, link: LinkId, open: &SessionOpen) -> Result<SessionAccept, Reason> {
        let config = self.local.sessions.config;
        if self.drain.is_draining() {
            return Err(Reason::new(Status::Unavailable, DRAINING));
        }
        if !config.accept {
            let text = "this endpoint takes no sessions";
            return Err(Reason::new(Status::FailedPrecondition, text));
        }
        let Some(entry) = self.local.sessions.links.get_mut(&link) else {
            return Err(Reason::new(Status::Unavailable, "the link is not up"));
        };
        let packet_bytes = packet_bytes(&self.transport, entry.id).min(open.packet_bytes);
        if packet_bytes < PACKET_BYTES_MIN {
            let text = format!("packets of {packet_bytes} bytes are too small");
            return Err(Reason::new(Status::FailedPrecondition, text));
        }
        let token = self.control.random() as u32;
        let accepted = Accepted {
            agreed: Agreed {
                peer: PeerKey(entry.id.0),
                peer_session: open.session,
                peer_token: open.token,
                slots: slots_for(open.slots, config.slots, self.local.core.server_slots()),
                credits: open.credits.min(config.credits),
                packet_bytes,
                peer_message_bytes_max: open.max_message,
            },
            token,
            first_request: open.first_request,
            request_bytes_max: config.message_bytes_max,
        };
        let id = self
            .local
            .core
            .accept(accepted)
            .map_err(|error| Reason::new(Status::ResourceExhausted, error.to_string()))?;
        entry.sessions.insert(id);
        let peer = entry.id;
        self.hear(id, peer);
        self.local.sessions.link_of.insert(id, link);
        self.note_open(id);
        Ok(SessionAccept {
            link: 0,
            request: open.request,
            session: id.index,
            token,
            slots: accepted.agreed.slots,
            credits: accepted.agreed.credits,
            max_message: config.message_bytes_max,
            packet_bytes,
        })
    }
}

impl Sessions {
    /// Removes an outgoing link being opened, by its request.
    fn take_opening(&mut self, wanted: u64) -> Option<(Remote, Vec<SessionId>)> {
        let is_wanted = |outgoing: &Outgoing| matches!(outgoing, Outgoing::Opening { request, .. } if *request == wanted);
        let remote = *self.outgoing.iter().find(|(_, outgoing)| is_wanted(outgoing))?.0;
        match self.outgoing.remove(&remote)? {
            Outgoing::Opening { waiting, .. } => Some((remote, waiting)),
            Outgoing::Up(_) => None,
        }
    }

    /// Removes an outgoing link that was up, and returns the remote endpoint.
    fn take_up(&mut self, link: LinkId) -> Option<Remote> {
        let is_it = |outgoing: &Outgoing| matches!(outgoing, Outgoing::Up(up) if *up == link);
        let remote = *self.outgoing.iter().find(|(_, outgoing)| is_it(outgoing))?.0;
        self.outgoing.remove(&remote);
        Some(remote)
    }

    /// Returns true, once, if a session is to be proposed on another link after the end of its link: the peer has not
    /// accepted it, and none of its requests was sent.
    fn take_second_try(&mut self, id: SessionId) -> bool {
        let Some(opening) = self.openings.get_mut(&id) else { return false };
        self.link_of.remove(&id);
        !std::mem::replace(&mut opening.is_second_try, true)
    }

    /// Returns the proposed or open sessions, of both roles, with their links.
    pub(super) fn with_links(&self) -> impl Iterator<Item = (SessionId, LinkId)> {
        self.link_of.iter().map(|(id, link)| (*id, *link))
    }

    /// Returns the number of links that are up.
    pub(super) fn link_count(&self) -> usize {
        self.links.len()
    }
}

/// Returns the payload bytes of a full packet to a peer.
fn packet_bytes<T: Transport>(transport: &T, peer: PeerId) -> u32 {
    let max = transport.max_frame_bytes(peer).min(u32::MAX as usize);
    let bytes = max.saturating_sub(PACKET_OVERHEAD_BYTES) as u32;
    bytes.min(petrel_proto::limits::PACKET_BYTES_MAX)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::endpoint::EndpointConfig;
    use crate::nexus::TABLE_ROOM_MIN;

    #[test]
    fn remember_end__keeps_the_last_ends() {
        let transports = AllowedTransports { udp: true, shm: true };
        let mut sessions = Sessions::new(EndpointConfig::default().sessions, transports);
        let id = |index: usize| SessionId { index: index as u32, generation: 0 };
        for index in 0..ENDED_MAX + 3 {
            let reason = Reason::new(Status::Unavailable, index.to_string());
            sessions.remember_end(Ended { id: id(index), end: SessionEnd::Invalid, reason });
            assert_eq!(sessions.ended.len(), (index + 1).min(ENDED_MAX));
        }
        let why = |index| sessions.end_of(id(index)).map(|ended| ended.reason.message.to_string());
        assert_eq!((why(2), why(3)), (None, Some("3".to_owned())));
        assert_eq!(why(ENDED_MAX + 2), Some((ENDED_MAX + 2).to_string()));
    }

    /// The table of links shrinks with the sessions to its minimum.
    #[test]
    fn forget__gives_the_memory_of_many_sessions_back() {
        let transports = AllowedTransports { udp: true, shm: true };
        let mut sessions = Sessions::new(EndpointConfig::default().sessions, transports);
        let ids = (0..20_000).map(|index| SessionId { index, generation: 0 });
        sessions.link_of.extend(ids.clone().map(|id| (id, LinkId(4))));
        for id in ids {
            assert_eq!(sessions.forget(id), Some(LinkId(4)));
            assert_eq!(sessions.forget(id), None);
            let (len, capacity) = (sessions.link_of.len(), sessions.link_of.capacity());
            assert!(capacity <= 2 * TABLE_ROOM_MIN || capacity / 8 <= len, "{capacity} for {len}");
        }
    }
}
