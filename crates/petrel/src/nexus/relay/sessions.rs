//! Sessions: passes proposals, answers and ends between the wire and the endpoints (`docs/wire-protocol.md` §8.5).
//!
//! The nexus remembers a proposal until the answer, and no session. It passes an end on, and the endpoint checks by the
//! token whether the session is current.

use petrel_planted::planted;
use petrel_proto::Status;
use petrel_proto::control::{
    PACKET_OVERHEAD_BYTES, SessionAccept, SessionClose, SessionDrain, SessionOpen, SessionRefuse,
};

use super::Relay;
use crate::control::{EndpointId, FromNexus, LinkId, Reason};
use crate::nexus::deadlines::Due;
use crate::nexus::goodbye::{Ending, not_ok};
use crate::nexus::ids::ConnectionId;
use crate::nexus::limits::session_bytes;
use crate::nexus::link::{Proposal, ProposalName, Stage};
use crate::nexus::net::Network;

/// Whether a connection gets further links.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[must_use]
pub(in crate::nexus) enum Further {
    Links,
    /// Another process may listen at the peer's address by now: further links go over another connection.
    NoLinks,
}

impl<N: Network> Relay<N> {
    /// Proposes a session with a local endpoint as the client.
    pub(in crate::nexus) fn propose_session(
        &mut self,
        from: EndpointId,
        id: LinkId,
        mut open: SessionOpen,
    ) {
        let Some((connection, number)) = self.place_of(from, id) else { return };
        open.link = number;
        match self.check_own_proposal(id, &open) {
            Ok(()) => {
                // The server's nexus allows its endpoint half of this time and answers first.
                let deadline = self.now + 2 * self.settings.step_timeout();
                self.add_proposal(id, Proposal::own(open, deadline));
                self.send(connection, open);
                self.expect_answer(connection);
            }
            Err(reason) => self.notify_refused(id, open.request, reason),
        }
    }

    /// Checks a proposal by an endpoint of this process.
    fn check_own_proposal(&self, id: LinkId, open: &SessionOpen) -> Result<(), Reason> {
        let link = &self.links[&id];
        if !link.may_propose() {
            let why = "the peer takes no sessions on a link that it has opened; open a link";
            return Err(Reason::new(Status::FailedPrecondition, why));
        }
        open.check().map_err(|error| Reason::new(Status::InvalidArgument, error.to_string()))?;
        if link.proposal(ProposalName::own(open.request)).is_some() {
            let why = format!("request {} is under way", open.request);
            return Err(Reason::new(Status::InvalidArgument, why));
        }
        if self.has_too_many_proposals(link.connection()) {
            let why = "too many sessions are being opened at once; wait for some answers";
            return Err(Reason::new(Status::ResourceExhausted, why));
        }
        Ok(())
    }

    fn has_too_many_proposals(&self, connection: ConnectionId) -> bool {
        self.connections.has_too_many_proposals(connection) || self.links.has_too_many_proposals()
    }

    fn add_proposal(&mut self, id: LinkId, proposal: Proposal) {
        assert!(proposal.deadline() > self.now, "a proposal has time for an answer");
        let Some(at) = self.links.propose(id, proposal) else { return };
        self.connections.add_proposal(at, &proposal);
        self.deadlines.add(proposal.deadline(), Due::Session(id, proposal.name()));
    }

    fn take_proposal(&mut self, id: LinkId, name: ProposalName) -> Option<Proposal> {
        let (at, proposal) = self.links.take_proposal(id, name)?;
        self.connections.remove_proposal(at, &proposal, self.now);
        Some(proposal)
    }

    /// Counts a new session of a local server.
    pub(in crate::nexus) fn add_session(&mut self, id: LinkId, slots: u16) {
        let Some(link) = self.links.get_mut(id) else { return };
        let bytes = session_bytes(slots);
        link.add_session(bytes);
        self.connections.add_session(link.connection(), bytes);
    }

    /// Uncounts a session of a local server. The end of a link has uncounted the sessions of the link already.
    pub(in crate::nexus) fn remove_session(&mut self, from: EndpointId, id: LinkId, slots: u16) {
        if !self.links.owns(from, id) {
            return;
        }
        let Some(link) = self.links.get_mut(id) else { return };
        let bytes = session_bytes(slots);
        link.remove_session(bytes);
        self.connections.remove_session(link.connection(), bytes, self.now);
    }

    /// Notes the first request of an endpoint's link.
    pub(in crate::nexus) fn note_used(&mut self, from: EndpointId, link: LinkId) {
        if let Some((id, _)) = self.place_of(from, link) {
            self.connections.note_used_by_request(id);
        }
    }

    /// Handles a peer's proposal of a session.
    pub(in crate::nexus) fn on_session_open(
        &mut self,
        connection: ConnectionId,
        open: SessionOpen,
    ) -> Result<(), Ending> {
        let Some(id) = self.link_at(connection, open.link) else { return Ok(()) };
        let link = &self.links[&id];
        let Stage::Up { max_frame, .. } = *link.stage() else {
            return Err(Ending::Violation("SESSION_OPEN on a link that is not up"));
        };
        if !link.may_be_proposed_to() {
            return Err(Ending::Violation("SESSION_OPEN on a link without reverse sessions"));
        }
        if link.proposal(ProposalName::of_peer(open.request)).is_some() {
            let what = "SESSION_OPEN with a request number that is under way";
            return Err(Ending::Violation(what));
        }
        self.counters.sessions_proposed.increment();
        match self.check_proposal(id, &open, max_frame) {
            Ok(endpoint) => {
                let slots = self.connections.slots_to_offer(connection, open.slots);
                let deadline = self.now + self.settings.step_timeout();
                self.add_proposal(id, Proposal::of_peer(open, slots, deadline));
                let open = SessionOpen { slots, ..open };
                self.notify(endpoint, FromNexus::SessionProposed { link: id, open });
            }
            Err(reason) => self.refuse_session(id, open.request, reason),
        }
        Ok(())
    }

    /// Checks a peer's proposal. Returns the endpoint to serve the session.
    fn check_proposal(
        &self,
        id: LinkId,
        open: &SessionOpen,
        max_frame: u32,
    ) -> Result<EndpointId, Reason> {
        let link = &self.links[&id];
        if open.packet_bytes > max_frame - PACKET_OVERHEAD_BYTES {
            let why = format!("packet_bytes {} exceeds the link's frames", open.packet_bytes);
            return Err(Reason::new(Status::InvalidArgument, why));
        }
        let endpoint = self.endpoints.get(link.endpoint());
        let is_overloaded = endpoint.is_none_or(|endpoint| endpoint.is_overloaded());
        if is_overloaded || self.has_too_many_proposals(link.connection()) {
            let why = "the server is being asked for too many sessions at once; try again later";
            return Err(Reason::new(Status::ResourceExhausted, why));
        }
        self.connections.check_session(link.connection(), open.slots)?;
        Ok(link.endpoint())
    }

    fn refuse_session(&mut self, id: LinkId, request: u32, reason: Reason) {
        let Some(link) = self.links.get(id) else { return };
        self.counters.sessions_refused.increment();
        let (connection, link) = (link.connection(), link.number());
        let (status, text) = (not_ok(reason.status), reason.message);
        self.send(connection, SessionRefuse { link, request, status, text });
    }

    /// Handles the server's answer, from an endpoint of this process.
    pub(in crate::nexus) fn answer_session(
        &mut self,
        from: EndpointId,
        id: LinkId,
        request: u32,
        answer: Result<SessionAccept, Reason>,
    ) {
        if self.place_of(from, id).is_none() {
            return;
        }
        let proposal = self.take_proposal(id, ProposalName::of_peer(request));
        if let Ok(accept) = &answer {
            // The session exists even if the answer is lost: the session's end will be reported.
            self.add_session(id, accept.slots);
        }
        match (proposal, answer) {
            (Some(_), Err(reason)) => self.refuse_session(id, request, reason),
            (Some(proposal), Ok(accept)) => self.accept_session(id, &proposal, accept),
            (None, Err(_)) => self.counters.late_messages.increment(),
            (None, Ok(accept)) => {
                self.counters.late_messages.increment();
                let why = "the client was told that this server did not answer in time";
                if !planted("nexus_orphans_are_not_told") {
                    self.notify_orphaned(id, &accept, why.to_owned());
                }
            }
        }
    }

    /// Sends the client its server's acceptance, unless this exceeds the proposal.
    fn accept_session(&mut self, id: LinkId, proposal: &Proposal, mut accept: SessionAccept) {
        let Some(link) = self.links.get(id) else { return };
        let connection = link.connection();
        accept.link = link.number();
        accept.request = proposal.open().request;
        let fault = match accept.check() {
            Err(error) => Some(error.to_string()),
            Ok(())
                if !accept
                    .is_within(&SessionOpen { slots: proposal.slots(), ..*proposal.open() }) =>
            {
                Some("the server's answer exceeds the proposal".to_owned())
            }
            Ok(()) => None,
        };
        if let Some(fault) = fault {
            let reason = Reason::new(Status::Internal, fault.clone());
            self.refuse_session(id, accept.request, reason);
            return self.notify_orphaned(id, &accept, fault);
        }
        self.counters.sessions_opened.increment();
        self.send(connection, accept);
    }

    /// Reports to a server's endpoint that the accepted session has no client.
    fn notify_orphaned(&self, id: LinkId, accept: &SessionAccept, why: String) {
        let Some(link) = self.links.get(id) else { return };
        let message = FromNexus::SessionClosed {
            link: id,
            session: accept.session,
            token: accept.token,
            from_client: true,
            reason: Reason::new(Status::Unavailable, why),
        };
        self.notify(link.endpoint(), message);
    }

    pub(in crate::nexus) fn on_session_accept(
        &mut self,
        connection: ConnectionId,
        accept: SessionAccept,
    ) -> Result<(), Ending> {
        let Some(id) = self.link_at(connection, accept.link) else { return Ok(()) };
        self.must_have_client(id, "SESSION_ACCEPT from a session's client")?;
        let Some(proposal) = self.take_proposal(id, ProposalName::own(accept.request)) else {
            self.close_orphan(connection, &accept);
            return Ok(());
        };
        if !accept.is_within(proposal.open()) {
            return Err(Ending::Violation("SESSION_ACCEPT that exceeds the proposal"));
        }
        self.counters.sessions_opened.increment();
        let endpoint = self.links[&id].endpoint();
        self.notify(endpoint, FromNexus::SessionOpened { link: id, accept });
        Ok(())
    }

    /// Checks that endpoints of this process may be clients on a link.
    fn must_have_client(&self, id: LinkId, what: &'static str) -> Result<(), Ending> {
        if self.links[&id].may_propose() { Ok(()) } else { Err(Ending::Violation(what)) }
    }

    /// Closes a session accepted after the proposal was given up; the server must not keep it.
    fn close_orphan(&mut self, connection: ConnectionId, accept: &SessionAccept) {
        self.counters.late_messages.increment();
        if planted("nexus_server_keeps_a_late_session") {
            return;
        }
        let close = SessionClose {
            link: accept.link,
            session: accept.session,
            token: accept.token,
            from_client: true,
            status: Status::Cancelled,
            text: "the answer came too late".to_owned(),
        };
        self.send(connection, close);
    }

    pub(in crate::nexus) fn on_session_refuse(
        &mut self,
        connection: ConnectionId,
        refuse: SessionRefuse,
    ) -> Result<(), Ending> {
        let Some(id) = self.link_at(connection, refuse.link) else { return Ok(()) };
        self.must_have_client(id, "SESSION_REFUSE from a session's client")?;
        if self.take_proposal(id, ProposalName::own(refuse.request)).is_none() {
            self.counters.late_messages.increment();
            return Ok(());
        }
        self.counters.sessions_refused.increment();
        self.notify_refused(id, refuse.request, Reason::new(not_ok(refuse.status), refuse.text));
        Ok(())
    }

    fn notify_refused(&self, id: LinkId, request: u32, reason: Reason) {
        if let Some(link) = self.links.get(id) {
            let message = FromNexus::SessionRefused { link: id, request, reason };
            self.notify(link.endpoint(), message);
        }
    }

    /// Ends a session for an endpoint: `session` is the peer's index and token.
    pub(in crate::nexus) fn close_session(
        &mut self,
        from: EndpointId,
        id: LinkId,
        (session, token): (u32, u32),
        from_client: bool,
        reason: Reason,
    ) {
        let Some((connection, link)) = self.place_of(from, id) else { return };
        let (status, text) = (reason.status, reason.message);
        let close = SessionClose { link, session, token, from_client, status, text };
        self.send(connection, close);
    }

    pub(in crate::nexus) fn on_session_close(
        &mut self,
        connection: ConnectionId,
        close: SessionClose,
    ) -> Result<(), Ending> {
        let Some(id) = self.link_at(connection, close.link) else { return Ok(()) };
        let Some(link) = self.links.get(id).filter(|link| link.is_up()) else { return Ok(()) };
        let message = FromNexus::SessionClosed {
            link: id,
            session: close.session,
            token: close.token,
            from_client: close.from_client,
            reason: Reason::new(close.status, close.text),
        };
        self.pass_on(link.endpoint(), message)
    }

    /// Asks the client of a session to leave it: `session` is the client's index and token.
    pub(in crate::nexus) fn drain_session(
        &mut self,
        from: EndpointId,
        id: LinkId,
        (session, token): (u32, u32),
        text: String,
    ) {
        let Some((connection, link)) = self.place_of(from, id) else { return };
        self.send(connection, SessionDrain { link, session, token, text });
    }

    /// Passes the server's wish on to the client. Returns whether the connection gets further links.
    pub(in crate::nexus) fn on_session_drain(
        &mut self,
        connection: ConnectionId,
        drain: SessionDrain,
    ) -> Result<Further, Ending> {
        let Some(id) = self.link_at(connection, drain.link) else { return Ok(Further::Links) };
        self.must_have_client(id, "SESSION_DRAIN from a session's client")?;
        if planted("nexus_drains_are_not_told") {
            return Ok(Further::Links);
        }
        let message = FromNexus::SessionDraining {
            link: id,
            session: drain.session,
            token: drain.token,
            message: drain.text,
        };
        let link = &self.links[&id];
        self.pass_on(link.endpoint(), message)?;
        // A client that drains leaves no room to another process.
        let stays = !link.is_up_at_opener() || planted("nexus_drained_way_stays");
        Ok(if stays { Further::Links } else { Further::NoLinks })
    }

    /// Handles the deadline of a proposal.
    pub(in crate::nexus) fn on_session_due(&mut self, id: LinkId, name: ProposalName) {
        let Some(link) = self.links.get(id) else { return };
        let proposal = link.proposal(name);
        if proposal.is_none_or(|proposal| proposal.deadline() > self.now) {
            return;
        }
        self.take_proposal(id, name);
        self.counters.sessions_unanswered.increment();
        let request = name.request();
        if name.is_own() {
            let why = "no answer from the server's control plane: the server is overloaded";
            self.notify_refused(id, request, Reason::new(Status::Unavailable, why));
        } else {
            let why = "no answer from the server's endpoint: its event loop is not running";
            self.refuse_session(id, request, Reason::new(Status::Unavailable, why));
        }
    }
}

#[cfg(test)]
pub(in crate::nexus) mod tests {
    use std::net::TcpListener;

    use mio::net::TcpStream;

    use petrel_proto::control::Message;
    use petrel_proto::limits::PACKET_BYTES_MIN;

    use super::*;
    use crate::nexus::connection::Connection;
    use crate::nexus::limits::{
        PROPOSALS_MAX, PROPOSALS_PER_CONNECTION_MAX, REVERSE_SESSION_BYTES_PER_CONNECTION_MAX,
        SESSION_BYTES_PER_SOURCE_MAX, slots_left,
    };
    use crate::nexus::reactor::Reactor;
    use crate::nexus::reactor::tests::{linked, open_connection, reactor, said};
    use crate::slot_shares::{SLOTS_MIN, slots_of};

    #[test]
    fn has_too_many_proposals__of_a_connection_or_in_all() {
        let (mut reactor, _) = reactor();
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let remote = listener.local_addr().unwrap();
        let stream = TcpStream::connect(remote).unwrap();
        let connection =
            Connection::new(stream.into(), (remote, remote), true, reactor.relay.now());
        let id = ConnectionId(7);
        reactor.relay.connections.add(id, connection);
        for (of_connection, all, expected) in [
            (0, 0, false),
            (PROPOSALS_PER_CONNECTION_MAX - 1, PROPOSALS_MAX - 1, false),
            (PROPOSALS_PER_CONNECTION_MAX, PROPOSALS_PER_CONNECTION_MAX, true),
            (0, PROPOSALS_MAX, true),
        ] {
            let connection = reactor.relay.connections.get_mut(id).unwrap();
            connection.links_mut().set_test_charge((of_connection, 0), 0);
            *reactor.relay.links.test_proposals() = all;
            let is_so = reactor.relay.has_too_many_proposals(id);
            assert_eq!(is_so, expected, "{of_connection} of {all}");
        }
    }

    /// A small session.
    pub(in crate::nexus) fn open(link: u32, request: u32) -> SessionOpen {
        SessionOpen {
            link,
            request,
            session: 1,
            token: 2,
            first_request: 0,
            slots: 8,
            credits: 8,
            max_message: 1 << 20,
            packet_bytes: PACKET_BYTES_MIN,
        }
    }

    /// An answer that accepts the whole offer of [`open`].
    pub(in crate::nexus) fn accept(link: u32, request: u32) -> SessionAccept {
        let SessionOpen { slots, credits, max_message, packet_bytes, .. } = open(link, request);
        let (session, token) = (3, 4);
        SessionAccept { link, request, session, token, slots, credits, max_message, packet_bytes }
    }

    /// The session messages allowed on each kind of link.
    #[test]
    fn messages_of_sessions__of_the_wrong_side_or_before_the_link_is_up_break_the_protocol() {
        let by = |is_opener| Stage::Up { is_opener, max_frame: 1_472 };
        let promised = || Stage::Promised { expected: None, max_frame: 1_472 };
        for (stage, reverse, is_opener, may_propose, may_answer) in [
            (by(true), false, true, false, true),
            (by(false), false, false, true, false),
            (promised(), false, false, false, false),
            (by(true), true, true, true, true),
            (by(false), true, false, true, true),
            (promised(), true, false, false, false),
        ] {
            let (mut reactor, _) = reactor();
            let (at, _peer) = open_connection(&mut reactor, is_opener);
            let id = reactor.add_test_link(at, 5, stage);
            reactor.relay.links.get_mut(id).unwrap().set_test_reverse(reverse);
            let SessionOpen { session, token, .. } = open(5, 1);
            let (link, request, text) = (5, 1, String::new());
            let status = Status::Unavailable;
            let refuse = SessionRefuse { link, request, status, text: text.clone() };
            let drain = SessionDrain { link, session, token, text };
            assert_eq!(reactor.relay.on_session_open(at, open(5, 1)).is_ok(), may_propose);
            assert_eq!(
                reactor.relay.counters().snapshot().sessions_proposed,
                u64::from(may_propose)
            );
            assert_eq!(reactor.relay.on_session_accept(at, accept(5, 1)).is_ok(), may_answer);
            assert_eq!(reactor.relay.on_session_refuse(at, refuse).is_ok(), may_answer);
            assert_eq!(reactor.relay.on_session_drain(at, drain).is_ok(), may_answer);
            // Unexpected answers count as late, and have no other effect.
            assert_eq!(
                reactor.relay.counters().snapshot().late_messages,
                2 * u64::from(may_answer)
            );
        }
    }

    #[test]
    fn on_session_open__of_a_request_that_is_under_way_breaks_the_protocol() {
        let (mut reactor, _inbox, (at, _peer), _) = linked(false);
        for (request, is_allowed, under_way) in [(1, true, 1), (1, false, 1), (2, true, 2)] {
            assert_eq!(reactor.relay.on_session_open(at, open(5, request)).is_ok(), is_allowed);
            assert_eq!(reactor.relay.links.proposals(), under_way);
        }
    }

    /// Checks a proposal's packet size, and the share of its connection.
    #[test]
    fn check_proposal__by_its_packets_and_its_connections_share() {
        let (mut reactor, _inbox, (at, _peer), id) = linked(false);
        let check = |reactor: &Reactor<_>, slots, packet_bytes| {
            let open = SessionOpen { slots, packet_bytes, ..open(5, 1) };
            reactor.relay.check_proposal(id, &open, 1_472).map_err(|reason| reason.status)
        };
        let (most, allowed) = (1_472 - PACKET_OVERHEAD_BYTES, Ok(EndpointId(0)));
        for (packet_bytes, expected) in
            [(PACKET_BYTES_MIN, allowed), (most, allowed), (most + 1, Err(Status::InvalidArgument))]
        {
            assert_eq!(check(&reactor, 8, packet_bytes), expected);
        }
        // The minimum for a session must fit, however many slots are requested.
        for (slots, counted) in [(1, 1), (SLOTS_MIN, SLOTS_MIN), (2_048, SLOTS_MIN)] {
            for (more, expected) in [(0, allowed), (1, Err(Status::ResourceExhausted))] {
                let bytes = SESSION_BYTES_PER_SOURCE_MAX / 2 - session_bytes(counted) + more;
                for (open, proposed) in [(bytes, 0), (0, bytes), (bytes - 100, 100)] {
                    let connection = reactor.relay.connections.get_mut(at).unwrap();
                    connection.links_mut().set_test_charge((0, proposed), open);
                    assert_eq!(check(&reactor, slots, most), expected, "{slots} slots, {more}");
                }
            }
        }
    }

    /// A server has a share of its client's memory for each connection, and none of the shares of addresses.
    #[test]
    fn check_proposal__of_a_server_by_the_share_of_its_connection() {
        let (mut reactor, _inbox, (at, _peer), id) = linked(true);
        reactor.relay.links.get_mut(id).unwrap().set_test_reverse(true);
        let mut accepted = 0;
        let refused = (0..).find(|request| {
            reactor.relay.on_session_open(at, open(5, *request)).unwrap();
            let is_refused = reactor.relay.links.proposals() == 0;
            if !is_refused {
                accepted += session_bytes(8);
                let answer = Ok(accept(5, *request));
                reactor.relay.answer_session(EndpointId(0), id, *request, answer);
            }
            is_refused
        });
        assert!(refused.is_some());
        let most = REVERSE_SESSION_BYTES_PER_CONNECTION_MAX;
        assert!((most - session_bytes(8)..=most).contains(&accepted), "{accepted}");
        assert_eq!(reactor.relay.connections.usage().all(), Default::default());
        assert_eq!(reactor.check_tables(), Ok(()));
        let said = said(&mut reactor, at);
        let Some(Message::SessionRefuse(refuse)) = said.last() else { panic!("{said:?}") };
        assert_eq!(refuse.status, Status::ResourceExhausted);
    }

    /// Both sides number their proposals, and may use one number at the same time.
    #[test]
    fn proposals__of_both_sides_may_have_one_number() {
        for is_opener in [true, false] {
            let (mut reactor, inbox, (at, _peer), id) = linked(is_opener);
            reactor.relay.links.get_mut(id).unwrap().set_test_reverse(true);
            reactor.relay.propose_session(EndpointId(0), id, open(9, 1));
            reactor.relay.on_session_open(at, open(5, 1)).unwrap();
            assert_eq!(reactor.relay.links.proposals(), 2);
            assert_eq!(reactor.check_tables(), Ok(()));
            reactor.relay.answer_session(EndpointId(0), id, 1, Ok(accept(9, 1)));
            reactor.relay.on_session_accept(at, accept(5, 1)).unwrap();
            let said = said(&mut reactor, at);
            let both = [Message::from(open(5, 1)), accept(5, 1).into()];
            assert_eq!(said, both);
            let proposed = inbox.pop();
            assert!(matches!(proposed, Some(FromNexus::SessionProposed { .. })), "{proposed:?}");
            let opened = inbox.pop();
            assert!(matches!(opened, Some(FromNexus::SessionOpened { .. })), "{opened:?}");
            assert_eq!(reactor.relay.links.proposals(), 0);
            assert_eq!(reactor.check_tables(), Ok(()));
        }
    }

    /// All of one process, opened with the default number of slots.
    #[test]
    fn slots__of_twenty_thousand_sessions_fit_into_a_connections_share() {
        let mut bytes = 0;
        for session in 0..20_000 {
            let slots = 2048.min(slots_of(slots_left(SESSION_BYTES_PER_SOURCE_MAX / 2, bytes)));
            assert!(session > 100 || slots >= 1024, "session {session} gets {slots}");
            bytes += session_bytes(slots);
            assert!(bytes <= SESSION_BYTES_PER_SOURCE_MAX / 2, "after {session} sessions");
        }
    }

    /// Every proposal has exactly one answer: this nexus's refusal, at once or at the deadline, or the endpoint's
    /// answer.
    #[test]
    fn on_session_open__every_proposal_is_answered() {
        let ok = Reason::new(Status::Ok, "of no use");
        let busy = Reason::new(Status::ResourceExhausted, "busy");
        let too_much = SessionAccept { slots: 4_096, ..accept(9, 9) };
        for (packet_bytes, answer, expected) in [
            (1_472, None, Some(Status::InvalidArgument)),
            (PACKET_BYTES_MIN, None, Some(Status::Unavailable)),
            (PACKET_BYTES_MIN, Some(Err(ok)), Some(Status::Unavailable)),
            (PACKET_BYTES_MIN, Some(Err(busy)), Some(Status::ResourceExhausted)),
            (PACKET_BYTES_MIN, Some(Ok(too_much)), Some(Status::Internal)),
            // The endpoint need not know the link's number there.
            (PACKET_BYTES_MIN, Some(Ok(accept(9, 9))), None),
        ] {
            let (mut reactor, inbox, (at, _peer), id) = linked(false);
            let proposal = SessionOpen { packet_bytes, ..open(5, 1) };
            reactor.relay.on_session_open(at, proposal).unwrap();
            let is_due = answer.is_none() && packet_bytes == PACKET_BYTES_MIN;
            if packet_bytes == PACKET_BYTES_MIN {
                let Some(FromNexus::SessionProposed { link, open }) = inbox.pop() else {
                    panic!("the endpoint is not asked")
                };
                assert_eq!((link, open), (id, proposal));
                assert_eq!(said(&mut reactor, at), []);
            }
            if is_due {
                let due = ProposalName::of_peer(1);
                reactor.relay.on_session_due(id, due);
                assert_eq!(reactor.relay.links.proposals(), 1, "there is time left");
                reactor
                    .relay
                    .begin_turn(reactor.relay.now() + reactor.relay.settings().step_timeout());
                reactor.relay.on_session_due(id, due);
                // The endpoint's answer comes too late: its session has no client.
                reactor.relay.answer_session(EndpointId(0), id, 1, Ok(accept(9, 9)));
            }
            if let Some(answer) = answer.clone() {
                reactor.relay.answer_session(EndpointId(0), id, 1, answer);
            }
            let sent = said(&mut reactor, at);
            match (&sent[..], expected) {
                ([Message::SessionAccept(accepted)], None) => {
                    assert_eq!(*accepted, accept(5, 1));
                }
                ([Message::SessionRefuse(refuse)], Some(status)) => {
                    assert_eq!((refuse.link, refuse.request, refuse.status), (5, 1, status));
                    assert!(!refuse.text.is_empty());
                }
                _ => panic!("{sent:?} instead of {expected:?}"),
            }
            // A session that the server accepted and the client does not get is ended.
            let is_orphan = is_due || expected == Some(Status::Internal);
            match inbox.pop() {
                Some(FromNexus::SessionClosed { link, session, token, from_client, reason }) => {
                    assert_eq!((link, session, token, from_client), (id, 3, 4, true));
                    assert_eq!((is_orphan, reason.status), (true, Status::Unavailable));
                }
                other => assert!(!is_orphan && other.is_none(), "{other:?}"),
            }
            let stats = reactor.relay.counters().snapshot();
            assert_eq!((stats.sessions_proposed, reactor.relay.links.proposals()), (1, 0));
            assert_eq!(stats.sessions_refused, u64::from(expected.is_some()));
            assert_eq!(stats.sessions_opened, u64::from(expected.is_none()));
            assert_eq!(stats.sessions_unanswered, u64::from(is_due));
            assert_eq!(stats.late_messages, u64::from(is_due));
        }
    }

    /// The client's side: proposals, and the effect of each answer.
    #[test]
    fn propose_session__asks_the_peer_and_tells_the_answer() {
        for answer in ["accept", "refuse", "none"] {
            let (mut reactor, inbox, (at, _peer), id) = linked(true);
            // The endpoint need not know the link's number there.
            reactor.relay.propose_session(EndpointId(0), id, open(9, 1));
            assert_eq!(said(&mut reactor, at), [open(5, 1).into()]);
            assert_eq!(
                (
                    reactor.relay.links.proposals(),
                    reactor.relay.connections[&at].links().proposals()
                ),
                (1, 1)
            );
            let text = String::from("busy");
            let status = Status::ResourceExhausted;
            let refuse = SessionRefuse { link: 5, request: 1, status, text: text.clone() };
            match answer {
                "accept" => reactor.relay.on_session_accept(at, accept(5, 1)).unwrap(),
                "refuse" => reactor.relay.on_session_refuse(at, refuse.clone()).unwrap(),
                _ => {
                    reactor.relay.begin_turn(
                        reactor.relay.now() + 2 * reactor.relay.settings().step_timeout(),
                    );
                    reactor.relay.on_session_due(id, ProposalName::own(1));
                }
            }
            assert_eq!(said(&mut reactor, at), []);
            match inbox.pop() {
                Some(FromNexus::SessionOpened { link, accept: accepted }) => {
                    assert_eq!((answer, link, accepted), ("accept", id, accept(5, 1)));
                }
                Some(FromNexus::SessionRefused { link, request: 1, reason }) => {
                    assert_eq!(link, id);
                    let refused = Reason::new(status, text);
                    assert_eq!(reason == refused, answer == "refuse", "{reason:?}");
                    assert!(answer == "refuse" || reason.status == Status::Unavailable);
                    assert_ne!(answer, "accept");
                }
                other => panic!("{other:?}"),
            }
            let stats = reactor.relay.counters().snapshot();
            let counted =
                (stats.sessions_opened, stats.sessions_refused, stats.sessions_unanswered);
            let is = |what| u64::from(answer == what);
            assert_eq!(counted, (is("accept"), is("refuse"), is("none")));
            assert_eq!(
                (
                    reactor.relay.links.proposals(),
                    reactor.relay.connections[&at].links().proposals()
                ),
                (0, 0)
            );
            // Later answers are late, and an unknown session is closed.
            reactor.relay.on_session_refuse(at, refuse).unwrap();
            assert_eq!(said(&mut reactor, at), []);
            reactor.relay.on_session_accept(at, accept(5, 1)).unwrap();
            let sent = said(&mut reactor, at);
            let [Message::SessionClose(close)] = &sent[..] else { panic!("{sent:?}") };
            assert_eq!((close.link, close.session, close.token), (5, 3, 4));
            assert_eq!((close.from_client, close.status), (true, Status::Cancelled));
            assert_eq!(reactor.relay.counters().snapshot().late_messages, 2);
            assert!(inbox.pop().is_none());
        }
    }
}
