//! Sessions: passes proposals and answers between the wire and the endpoints (`docs/wire-protocol.md` §8.5).

use petrel::endpoint::{EndpointId, Reason};
use petrel::unstable::control::{FromNexus, LinkId};
use petrel_proto::control::{
    SessionAccept, SessionClose, SessionDrain, SessionOpen, SessionRefuse,
};

use super::connection::ConnectionId;
use super::links::ProposalName;
use super::network::{Agreement, Event, Network, Side, unavailable};
use crate::fabric::HostId;

impl Network {
    /// Proposes a session for an endpoint, as its client.
    pub(super) fn propose_session(&mut self, host: HostId, id: LinkId, mut open: SessionOpen) {
        // If the link is gone, the endpoint has been or is being notified of its end.
        let Some((connection, side, number)) = self.place_of(host, id) else { return };
        let Some(link) = self.process(host).links.get_mut(id) else { return };
        open.link = number;
        let endpoint = link.endpoint;
        if let Err(error) = open.check() {
            return self.report(format!("endpoint {endpoint:?} proposed {open:?}: {error}"));
        }
        if side == 1 && !link.has_reverse {
            return self.report(format!("endpoint {endpoint:?} proposed {open:?} to its client"));
        }
        let name = (side, open.request);
        link.proposals.insert(name, open);
        let due = Event::ProposalDue(host, id, name);
        // The server's process has half of the time, and refuses first.
        self.schedule(self.now_ns() + 2 * self.config.step_timeout_ns, due);
        self.send(connection, side, open);
    }

    /// Handles a session proposal of a peer.
    pub(super) fn on_session_open(&mut self, id: ConnectionId, side: Side, open: SessionOpen) {
        let host = self.host_at(id, side);
        let Some((link_id, endpoint)) = self.link_and_endpoint(id, side, open.link) else { return };
        let name = (1 - side, open.request);
        let link = self.process(host).links.get_mut(link_id);
        if link.as_ref().is_some_and(|link| side == 0 && !link.has_reverse) {
            return self
                .report(format!("SESSION_OPEN on a link without reverse sessions: {open:?}"));
        }
        if let Some(link) = link {
            link.proposals.insert(name, open);
        }
        let due = Event::ProposalDue(host, link_id, name);
        self.schedule(self.now_ns() + self.config.step_timeout_ns, due);
        self.tell(host, endpoint, FromNexus::SessionProposed { link: link_id, open });
    }

    /// Sends the answer of a server endpoint of this process.
    pub(super) fn answer_session(
        &mut self,
        host: HostId,
        id: LinkId,
        request: u32,
        answer: Result<SessionAccept, Reason>,
    ) {
        let Some((connection, side, number)) = self.place_of(host, id) else { return };
        let Some(link) = self.process(host).links.get_mut(id) else { return };
        let endpoint = link.endpoint;
        let is_awaited = link.proposals.remove(&(1 - side, request)).is_some();
        match answer {
            Ok(accept) if is_awaited => {
                self.stats.sessions_accepted += 1;
                self.send(connection, side, SessionAccept { link: number, request, ..accept });
            }
            Ok(accept) => {
                let closed = FromNexus::SessionClosed {
                    link: id,
                    session: accept.session,
                    token: accept.token,
                    from_client: true,
                    reason: unavailable("the client was told that nobody answered in time"),
                };
                self.tell(host, endpoint, closed);
            }
            Err(reason) => {
                self.stats.sessions_refused += 1;
                self.refuse((connection, side), number, request, reason);
            }
        }
    }

    fn refuse(
        &mut self,
        (id, side): (ConnectionId, Side),
        link: u32,
        request: u32,
        reason: Reason,
    ) {
        let Reason { status, message: text } = reason;
        self.send(id, side, SessionRefuse { link, request, status, text });
    }

    /// Handles a peer's acceptance.
    pub(super) fn on_session_accept(
        &mut self,
        id: ConnectionId,
        side: Side,
        accept: SessionAccept,
    ) {
        let host = self.host_at(id, side);
        let Some((link_id, endpoint)) = self.link_and_endpoint(id, side, accept.link) else {
            return;
        };
        if let Some(open) = self.take_proposal(host, link_id, (side, accept.request)) {
            self.note_agreement(host, link_id, open, accept);
            return self.tell(host, endpoint, FromNexus::SessionOpened { link: link_id, accept });
        }
        let reason = unavailable("the answer came too late");
        self.close_session(host, link_id, (accept.session, accept.token), true, reason);
    }

    /// Handles a peer's refusal.
    pub(super) fn on_session_refuse(
        &mut self,
        id: ConnectionId,
        side: Side,
        refuse: SessionRefuse,
    ) {
        let host = self.host_at(id, side);
        let Some((link, endpoint)) = self.link_and_endpoint(id, side, refuse.link) else { return };
        if self.take_proposal(host, link, (side, refuse.request)).is_some() {
            let reason = Reason::new(refuse.status, refuse.text);
            let refused = FromNexus::SessionRefused { link, request: refuse.request, reason };
            self.tell(host, endpoint, refused);
        }
    }

    /// Handles an unanswered proposal: the client's side gives up, or the server's side refuses on behalf
    /// of its endpoint.
    pub(super) fn on_proposal_due(&mut self, host: HostId, id: LinkId, name: ProposalName) {
        if self.take_proposal(host, id, name).is_none() {
            return;
        }
        self.stats.sessions_unanswered += 1;
        let Some((connection, side, number)) = self.place_of(host, id) else { return };
        let Some(endpoint) = self.process(host).links.get(id).map(|link| link.endpoint) else {
            return;
        };
        let reason = unavailable("the server did not answer in time");
        let (client_side, request) = name;
        if side == client_side {
            self.tell(host, endpoint, FromNexus::SessionRefused { link: id, request, reason });
        } else {
            self.refuse((connection, side), number, request, reason);
        }
    }

    /// Closes a session for an endpoint of this process.
    pub(super) fn close_session(
        &mut self,
        host: HostId,
        id: LinkId,
        (session, token): (u32, u32),
        from_client: bool,
        reason: Reason,
    ) {
        let Some(link) = self.process(host).links.get(id) else { return };
        let (connection, number) = (link.connection, link.number);
        let Some(side) = self.side_of(host, connection) else { return };
        self.stats.sessions_closed += 1;
        let (status, text) = (reason.status, reason.message);
        let close = SessionClose { link: number, session, token, from_client, status, text };
        self.send(connection, side, close);
    }

    pub(super) fn on_session_close(&mut self, id: ConnectionId, side: Side, close: SessionClose) {
        let host = self.host_at(id, side);
        let Some((link, endpoint)) = self.link_and_endpoint(id, side, close.link) else { return };
        let SessionClose { session, token, from_client, status, text, .. } = close;
        let reason = Reason::new(status, text);
        let closed = FromNexus::SessionClosed { link, session, token, from_client, reason };
        self.tell(host, endpoint, closed);
    }

    /// Asks the client of a session to leave, for an endpoint of this process.
    pub(super) fn drain_session(
        &mut self,
        host: HostId,
        id: LinkId,
        (session, token): (u32, u32),
        text: String,
    ) {
        let Some(link) = self.process(host).links.get(id) else { return };
        let (connection, link) = (link.connection, link.number);
        let Some(side) = self.side_of(host, connection) else { return };
        self.send(connection, side, SessionDrain { link, session, token, text });
    }

    /// Handles a server's request that its client leave a session.
    pub(super) fn on_session_drain(&mut self, id: ConnectionId, side: Side, drain: SessionDrain) {
        let host = self.host_at(id, side);
        let Some((link, endpoint)) = self.link_and_endpoint(id, side, drain.link) else { return };
        let SessionDrain { session, token, text: message, .. } = drain;
        self.tell(host, endpoint, FromNexus::SessionDraining { link, session, token, message });
    }

    fn take_proposal(
        &mut self,
        host: HostId,
        link: LinkId,
        name: ProposalName,
    ) -> Option<SessionOpen> {
        self.process(host).links.get_mut(link)?.proposals.remove(&name)
    }

    fn note_agreement(
        &mut self,
        host: HostId,
        id: LinkId,
        open: SessionOpen,
        accept: SessionAccept,
    ) {
        let process = self.process(host);
        let Some(link) = process.links.get(id) else { return };
        let client = process.endpoints.get(&link.endpoint).map(|local| local.data);
        if let (Some(client), Some(transport)) = (client, link.transport) {
            let (server, ports, key_paths) = (transport.peer(), link.ports, transport.key_paths());
            self.agreements.push(Agreement { client, server, open, accept, ports, key_paths });
        }
    }

    pub(super) fn link_and_endpoint(
        &self,
        id: ConnectionId,
        side: Side,
        number: u32,
    ) -> Option<(LinkId, EndpointId)> {
        let link = self.find_link(id, side, number)?;
        let process = &self.processes[usize::from(self.host_at(id, side).0)];
        Some((link, process.links.get(link)?.endpoint))
    }
}
