//! Client sessions, from the request to the server's acceptance.

use std::net::SocketAddr;

use petrel_proto::control::SessionAccept;
use petrel_proto::limits::{FIRST_REQUEST_END, SLOTS_MAX};
use petrel_proto::{Agreed, PathChoice, PeerKey, SessionId, Status};
use petrel_transport::{PeerId, Transport};

use super::super::{Link, Remote, Route};
use super::{RING_FULL, SessionControl};
use crate::control::{ControlPlane, EndpointId, LinkId, Reason, ToNexus};
use crate::endpoint::callbacks::{LINK_GONE, TAKES_NO_CALLS};
use crate::error::Error;
use crate::local::SessionMedium;
use crate::values::{CallbacksKey, Reverse, SessionEnd, SessionState};

impl<T: Transport, C: ControlPlane<T::Link>> SessionControl<'_, T, C> {
    /// Opens a session to an endpoint of the process whose control address is `remote`, which may call the callbacks, if any.
    pub(in crate::endpoint) fn connect(
        &mut self,
        remote: SocketAddr,
        endpoint: EndpointId,
        callbacks: Option<CallbacksKey>,
    ) -> Result<SessionId, Error> {
        let reverse = match callbacks {
            Some(callbacks) => Reverse::Callbacks(callbacks),
            None if self.local.sessions.config().reverse => Reverse::Endpoint,
            None => Reverse::No,
        };
        let id = self.begin(reverse)?;
        self.propose_to((remote, endpoint), id);
        Ok(id)
    }

    /// Opens a session on a link that is up, with its peer as the server.
    ///
    /// # Errors
    /// NOT_FOUND if the link has ended; FAILED_PRECONDITION if the peer has opened the link and takes no calls.
    pub(in crate::endpoint) fn connect_on(
        &mut self,
        link: Option<LinkId>,
    ) -> Result<SessionId, Error> {
        let is_up =
            |name: &LinkId| self.local.sessions.link(*name).is_some_and(|link| !link.is_retired());
        let Some(name) = link.filter(is_up) else {
            return Err(Error::not_sent(Status::NotFound, LINK_GONE));
        };
        if !self.local.sessions.link(name).is_some_and(Link::may_be_client) {
            return Err(Error::not_sent(Status::FailedPrecondition, TAKES_NO_CALLS));
        }
        let id = self.begin(Reverse::No)?;
        self.propose(name, id);
        Ok(id)
    }

    /// Begins to open a session.
    fn begin(&mut self, reverse: Reverse) -> Result<SessionId, Error> {
        let token = self.control.random() as u32;
        // The bound is a multiple of any number of slots, as the server may lower the number.
        let random = self.control.random() % FIRST_REQUEST_END;
        let first = random - random % u64::from(SLOTS_MAX);
        let id = self.local.core.open(token, first)?;
        self.local.sessions.begin_open(id, first, reverse);
        if self.local.sessions.config().ordered {
            self.local.core.keep_order(id);
        }
        Ok(id)
    }

    /// Proposes a session as soon as there is a link.
    pub(super) fn propose_to(&mut self, remote: Remote, id: SessionId) {
        let transports = self.transports_to(remote);
        match self.local.sessions.route(remote, id) {
            Route::Waiting => {}
            Route::Up(link) => self.propose(link, id),
            Route::Request { request, reverse } => self.control.post(ToNexus::OpenLink {
                request,
                remote: remote.0,
                remote_endpoint: remote.1,
                transports,
                reverse: reverse != Reverse::No,
            }),
        }
    }

    /// Proposes a session to the peer of a link that is up, unless it was closed while the link was being opened.
    pub(super) fn propose(&mut self, name: LinkId, id: SessionId) {
        let Some(token) = self.local.core.token(id) else { return };
        let Some(link) = self.local.sessions.link(name) else { return };
        let ordered = match self.local.core.keeps_order(id) {
            true => self.ordered_packet_bytes(link),
            false => None,
        };
        let packet_bytes = ordered.unwrap_or_else(|| self.packet_bytes(link.id()));
        if self.local.sessions.credits_on(name) == 0 {
            let reason = Reason::new(Status::ResourceExhausted, RING_FULL);
            return self.drop_session(id, SessionEnd::Refused, reason);
        }
        if let Some(open) = self.local.sessions.propose(name, id, token, packet_bytes) {
            self.control.post(ToNexus::OpenSession { link: name, open });
        }
    }

    /// Handles the acceptance of a session by its server.
    pub(super) fn on_opened(&mut self, name: LinkId, accept: &SessionAccept) {
        let Some(id) = self.local.sessions.take_proposal(accept.request) else { return };
        if !self.begin_probes(name, id, accept) {
            self.establish(name, id, accept);
        }
    }

    /// Begins to use a session as its server has accepted it.
    pub(super) fn establish(&mut self, name: LinkId, id: SessionId, accept: &SessionAccept) {
        let Some(link) = self.local.sessions.link(name) else { return };
        let (peer, has_paths) = (link.id(), link.has_paths());
        let path_rtt_ns = link.path_rtt_ns();
        let forgoes = self.local.core.keeps_order(id) && self.ordered_packet_bytes(link).is_none();
        let agreed = Agreed {
            peer: PeerKey(peer.0),
            peer_session: accept.session,
            peer_token: accept.token,
            slots: accept.slots,
            credits: self.local.sessions.draw_credits(id, accept.credits),
            packet_bytes: accept.packet_bytes,
            peer_message_bytes_max: accept.max_message,
        };
        if forgoes {
            self.local.core.forgo_order(id);
        }
        match self.local.core.establish(id, agreed) {
            Ok(()) => self.begin_session(id, (peer, has_paths), path_rtt_ns),
            Err(error) => {
                // Closed here meanwhile, or impossible values: the peer has a session without a client.
                let reason = Reason::new(Status::Internal, error.to_string());
                self.drop_session(id, SessionEnd::Invalid, reason);
                self.control.post(ToNexus::CloseSession {
                    link: name,
                    peer_session: accept.session,
                    peer_token: accept.token,
                    from_client: true,
                    reason: Reason::new(Status::Cancelled, error.to_string()),
                });
            }
        }
    }

    /// Begins to use a session that the core has established.
    fn begin_session(
        &mut self,
        id: SessionId,
        (peer, has_paths): (PeerId, bool),
        path_rtt_ns: Option<u32>,
    ) {
        self.accept_source(id, peer);
        if has_paths {
            self.use_paths(id);
        }
        self.local.sessions.finish_open(id);
        if !self.transport.is_networked(peer) {
            self.local.core.leave_network(id);
        }
        if let Some(rtt_ns) = path_rtt_ns {
            self.local.core.note_path(self.local.now_ns, id, rtt_ns);
        }
        let name = self.transport.medium_of(peer);
        let is_fallback = name == "stream" && self.local.sessions.transports().udp;
        self.local.hub.set_session_medium(id, SessionMedium { name, is_fallback });
        self.local.hub.set_session_state(id, &SessionState::Open);
        self.report_open(id);
    }

    /// Accepts the frames of a newly open session, under any name they come with.
    pub(super) fn accept_source(&mut self, id: SessionId, peer: PeerId) {
        let source = self.transport.source_of(peer);
        if source != peer {
            let is_open = self.local.core.accept_from(id, PeerKey(source.0));
            assert!(is_open, "a session that was just agreed on");
        }
    }

    /// Gives a newly open session the paths of its link. With go-back-N the session keeps to the first: the core then
    /// refuses.
    pub(super) fn use_paths(&mut self, id: SessionId) {
        let policy = self.local.sessions.config().path_policy;
        let ports = self.transport.further_ports().len() + 1;
        let seed = self.control.random();
        self.local.core.use_paths(id, PathChoice { policy, ports, seed });
    }
}
