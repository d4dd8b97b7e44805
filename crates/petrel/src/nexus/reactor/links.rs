//! Links: request, grant and end (`docs/wire-protocol.md` §8.4).

use std::io;
use std::net::SocketAddr;
use std::time::Instant;

use petrel_planted::planted;
use petrel_proto::Status;
use petrel_proto::control::{
    LinkAccept, LinkClose, LinkFeatures, LinkOpen, LinkRefuse, Offer, PathPorts,
};

use super::Reactor;
use super::offers::Offering;
use super::sessions::proposed_bytes;
use crate::control::{EndpointId, FromNexus, LinkId, PeerName, Reason};
use crate::events;
use crate::nexus::connection::Connection;
use crate::nexus::deadlines::Due;
use crate::nexus::goodbye::{Violation, not_ok};
use crate::nexus::ids::ConnectionId;
use crate::nexus::limits::{LINKS_MAX, LINKS_PER_CONNECTION_MAX, shrink};
use crate::nexus::link::{Expected, Link, Ready, Stage};
use crate::nexus::media::{Agreed, Medium, Opening, allows, without};
use crate::nexus::net::Network;
use crate::nexus::request::OpenRequest;
use crate::nexus::usage::UsageTable;

/// Returns the features that this side has, if it sends from these further source ports.
fn own_features(paths: PathPorts) -> LinkFeatures {
    LinkFeatures { order: true, paths }
}

/// Returns the further source ports that an endpoint announces for its own sessions over a medium.
fn asked_paths<L>(medium: &dyn Medium<L>) -> PathPorts {
    if medium.asks_for_paths() { medium.further_ports() } else { PathPorts::NONE }
}

/// Returns the features that both sides have: the peer's source ports if both announced some (§14.1), and ordered
/// calls if both know them (§14.6).
fn shared_features(own: &LinkFeatures, peers: &LinkFeatures) -> LinkFeatures {
    let paths = if own.paths.is_empty() { PathPorts::NONE } else { peers.paths };
    LinkFeatures { order: own.order && peers.order, paths }
}

impl<N: Network> Reactor<N> {
    /// Sends LINK_OPEN over a connection whose peer said HELLO.
    pub(super) fn ask_for_link(&mut self, id: ConnectionId, request: OpenRequest) {
        match self.prepare_link(id, &request) {
            Ok((offers, ecn, paths)) => self.send_link_open(id, request, (offers, ecn, paths)),
            Err(reason) => self.fail_request(&request, reason),
        }
    }

    /// Returns the offers to make, whether to ask for ECN marks, and the source ports to announce.
    fn prepare_link(
        &self,
        id: ConnectionId,
        request: &OpenRequest,
    ) -> Result<(Vec<Offer>, bool, PathPorts), Reason> {
        let broken = || Reason::new(Status::Unavailable, "the control connection has just ended");
        let connection = self.connections.get(&id).filter(|c| c.is_open()).ok_or_else(broken)?;
        // An endpoint that has gone does not get the failure either.
        let endpoint = self.endpoints.get(&request.endpoint).ok_or_else(broken)?;
        if connection.links.len() >= LINKS_PER_CONNECTION_MAX || self.links.len() >= LINKS_MAX {
            let why = "this process has too many links; close some first";
            return Err(Reason::new(Status::ResourceExhausted, why));
        }
        let offers = Offering::new(self, connection, endpoint).offers(request.transports);
        let offers = offers.map_err(|obstacles| {
            let why = format!("no transport to {}; on this side: {obstacles}", connection.remote);
            Reason::new(Status::FailedPrecondition, why)
        })?;
        let media = || offers.iter().filter_map(|offer| endpoint.medium(offer.kind()));
        let ecn = media().any(Medium::asks_for_marks);
        let paths = media().map(asked_paths).find(|paths| !paths.is_empty());
        Ok((offers, ecn, paths.unwrap_or_default()))
    }

    fn send_link_open(
        &mut self,
        id: ConnectionId,
        request: OpenRequest,
        (offers, ecn, paths): (Vec<Offer>, bool, PathPorts),
    ) {
        let Some(connection) = self.connections.get_mut(&id) else { return };
        let number = connection.links.new_number();
        let message = LinkOpen {
            link: number,
            from_endpoint: request.endpoint.0,
            to_endpoint: request.remote_endpoint.0,
            offers: offers.clone(),
            ecn,
            features: own_features(paths),
        };
        let (endpoint, peer_endpoint) = (request.endpoint, request.remote_endpoint.0);
        self.add_link(
            (id, number),
            endpoint,
            peer_endpoint,
            Stage::Requested { request, offers, ecn },
        );
        self.send(id, message);
    }

    fn add_link(
        &mut self,
        (connection, number): (ConnectionId, u32),
        endpoint: EndpointId,
        peer_endpoint: u16,
        stage: Stage,
    ) -> LinkId {
        let id = self.new_link_id();
        let deadline = self.now + self.settings.step_timeout;
        let link = Link::new((connection, number), endpoint, peer_endpoint, stage, deadline);
        self.links.insert(id, link);
        self.deadlines.add(deadline, Due::Link(id));
        assert!(self.links.len() <= LINKS_MAX, "the limit of links was checked before");
        if let Some(connection) = self.connections.get_mut(&connection) {
            if !connection.is_opener {
                self.usage.add_link(connection.source, connection.links.is_empty());
            }
            connection.links.insert(number, id, self.now);
        }
        self.note_use(connection);
        id
    }

    /// Returns the link with this number in a connection, if still present.
    pub(super) fn link_at(&self, id: ConnectionId, number: u32) -> Option<LinkId> {
        let link = self.connections.get(&id).and_then(|c| c.links.get(number));
        if link.is_none() {
            self.counters.late_messages.increment();
        }
        link
    }

    pub(super) fn on_link_open(
        &mut self,
        id: ConnectionId,
        open: &LinkOpen,
    ) -> Result<(), Violation> {
        // An endpoint attached before the peer's request must be found.
        self.run_commands();
        let Some(connection) = self.connections.get(&id).filter(|c| c.is_open()) else {
            return Ok(());
        };
        if connection.is_opener {
            return Err(Violation("LINK_OPEN from the side that did not connect"));
        }
        if connection.links.get(open.link).is_some() {
            return Err(Violation("LINK_OPEN with a number that is in use"));
        }
        if self.early_links.contains(id, open.link) {
            return Err(Violation("LINK_OPEN with a number that was just asked for"));
        }
        if !self.keep_early_link(id, open) {
            self.answer_link_open(id, open);
        }
        Ok(())
    }

    /// Grants or refuses a link.
    pub(super) fn answer_link_open(&mut self, id: ConnectionId, open: &LinkOpen) {
        // The connection may have been evicted for a link granted just before.
        if !self.connections.get(&id).is_some_and(|connection| connection.is_open()) {
            return;
        }
        match self.admit_link(id).and_then(|()| self.grant_link(id, open)) {
            Ok((chosen, offered)) => self.accept_link(id, open, chosen, offered),
            Err(reason) => self.refuse_link(id, open.link, reason),
        }
    }

    /// Returns the local and the peer's offer of the chosen transport.
    fn grant_link(&self, id: ConnectionId, open: &LinkOpen) -> Result<(Offer, Offer), Reason> {
        let connection = &self.connections[&id];
        let Some(endpoint) = self.endpoints.get(&EndpointId(open.to_endpoint)) else {
            let why = format!("there is no endpoint {} in this process", open.to_endpoint);
            return Err(Reason::new(Status::Unavailable, why));
        };
        if connection.links.len() >= LINKS_PER_CONNECTION_MAX
            || self.links.len() >= LINKS_MAX
            || endpoint.is_overloaded()
        {
            let why = "the server has too many links, or its event loop does not keep up";
            return Err(Reason::new(Status::ResourceExhausted, why));
        }
        let chosen = Offering::new(self, connection, endpoint).choose(&open.offers);
        // The peer reads this text.
        let at_server = |why| format!("the server takes no transport that was offered: {why}");
        let chosen =
            chosen.map_err(|why| Reason::new(Status::FailedPrecondition, at_server(why)))?;
        let offered = open.offers.iter().find(|offer| offer.is_same_transport(chosen));
        Ok((chosen, *offered.expect("the choice is among the offers")))
    }

    fn refuse_link(&mut self, id: ConnectionId, link: u32, reason: Reason) {
        self.counters.links_refused.increment();
        if let Some(connection) = self.connections.get(&id) {
            events::link_refused(connection.remote, &reason);
        }
        self.send(id, LinkRefuse { link, status: reason.status, text: reason.message });
    }

    fn accept_link(&mut self, id: ConnectionId, open: &LinkOpen, chosen: Offer, offered: Offer) {
        let endpoint = EndpointId(open.to_endpoint);
        let Some((remote, medium)) = self.medium_at(id, endpoint, chosen.kind()) else { return };
        let max_frame = chosen.max_frame().min(offered.max_frame());
        let (ecn, own) = (open.ecn && medium.reads_marks(), own_features(medium.further_ports()));
        let opening = medium.open(&Agreed { remote, offer: offered, max_frame, ecn });
        let expected = match &opening {
            Opening::Link(_) => None,
            Opening::Memory(config) => match self.new_ticket() {
                Ok(ticket) => Some(Expected { ticket, config: *config }),
                Err(error) => {
                    let reason = Reason::new(Status::Internal, error.to_string());
                    return self.refuse_link(id, open.link, reason);
                }
            },
        };
        let ticket = expected.map(|expected| expected.ticket);
        let stage = Stage::Promised { expected, max_frame };
        let link = self.add_link((id, open.link), endpoint, open.from_endpoint, stage);
        let shared = shared_features(&own, &open.features);
        self.agree_on(link, shared);
        let paths = if shared.paths.is_empty() { PathPorts::NONE } else { own.paths };
        let (link_number, features) = (open.link, LinkFeatures { paths, ..shared });
        self.send(id, LinkAccept { link: link_number, offer: chosen, ticket, ecn, features });
        match (opening, ticket) {
            (Opening::Link(transport), _) => {
                self.bring_up(link, Ready { transport, max_frame, kind: chosen.kind(), ecn });
            }
            (Opening::Memory(_), Some(ticket)) => drop(self.tickets.insert(ticket, link)),
            (Opening::Memory(_), None) => unreachable!("memory was promised by a ticket"),
        }
    }

    /// Returns the peer's end of a connection, and an endpoint's medium of a kind.
    fn medium_at(
        &self,
        id: ConnectionId,
        endpoint: EndpointId,
        kind: u8,
    ) -> Option<(SocketAddr, &dyn Medium<N::Link>)> {
        let medium = self.endpoints.get(&endpoint)?.medium(kind)?;
        Some((self.connections.get(&id)?.remote, medium))
    }

    fn new_ticket(&self) -> io::Result<[u8; 16]> {
        let mut ticket = [0; 16];
        self.net.fill_random(&mut ticket)?;
        Ok(ticket)
    }

    pub(super) fn on_link_accept(
        &mut self,
        id: ConnectionId,
        accept: &LinkAccept,
    ) -> Result<(), Violation> {
        let Some(link) = self.link_at(id, accept.link) else { return Ok(()) };
        let Some(Stage::Requested { offers, ecn, .. }) =
            self.links.get(&link).map(|link| link.stage())
        else {
            return Err(Violation("LINK_ACCEPT of a link that was not asked for"));
        };
        let own = offers.iter().find(|own| own.is_same_transport(accept.offer));
        let own = *own.ok_or(Violation("LINK_ACCEPT with a transport that was not offered"))?;
        let max_frame = own.max_frame().min(accept.offer.max_frame());
        let (kind, asked_for_marks) = (own.kind(), *ecn);
        let endpoint = self.links[&link].endpoint();
        let Some((remote, medium)) = self.medium_at(id, endpoint, kind) else { return Ok(()) };
        let ecn = asked_for_marks && accept.ecn && medium.asks_for_marks();
        let own = own_features(asked_paths(medium));
        let opening = medium.open(&Agreed { remote, offer: accept.offer, max_frame, ecn });
        self.agree_on(link, shared_features(&own, &accept.features));
        match (opening, accept.ticket) {
            (Opening::Link(transport), _) => {
                self.bring_up(link, Ready { transport, max_frame, kind, ecn });
            }
            (Opening::Memory(config), Some(ticket)) => {
                self.queue_exchange(link, ticket, kind, config);
            }
            // The decoder rejects any such message.
            (Opening::Memory(_), None) => return Err(Violation("LINK_ACCEPT without a ticket")),
        }
        Ok(())
    }

    /// Notes the features that both sides have.
    fn agree_on(&mut self, id: LinkId, shared: LinkFeatures) {
        if let Some(link) = self.links.get_mut(&id) {
            link.agree_on(shared);
        }
    }

    /// Both sides are ready: the endpoint may use the link.
    pub(super) fn bring_up(&mut self, id: LinkId, ready: Ready<N::Link>) {
        let Ready { transport, max_frame, kind, ecn } = ready;
        let Some(link) = self.links.get_mut(&id) else { return };
        let request = link.come_up(max_frame);
        let (endpoint, peer_endpoint, features) =
            (link.endpoint(), link.peer_endpoint(), *link.features());
        let Some(connection) = self.connections.get(&link.connection()) else { return };
        let incarnation = connection.peer().map_or(0, |peer| peer.incarnation);
        let peer = PeerName { address: connection.remote, endpoint: EndpointId(peer_endpoint) };
        self.counters.links_up.increment();
        self.counters.count_opened(kind, ecn);
        let medium = self.endpoints.get(&endpoint).and_then(|endpoint| endpoint.medium(kind));
        events::link_up(endpoint, id, peer, medium.map_or("", Medium::name));
        self.notify(
            endpoint,
            FromNexus::LinkUp { request, link: id, transport, peer, incarnation, features },
        );
        self.report_path(id);
    }

    pub(super) fn on_link_refuse(
        &mut self,
        id: ConnectionId,
        refuse: LinkRefuse,
    ) -> Result<(), Violation> {
        let Some(link) = self.link_at(id, refuse.link) else { return Ok(()) };
        if !matches!(self.links.get(&link).map(|link| link.stage()), Some(Stage::Requested { .. }))
        {
            return Err(Violation("LINK_REFUSE of a link that was not asked for"));
        }
        let text = refuse.text + &self.why_not_offered(id, link);
        self.end_link(link, &Reason::new(not_ok(refuse.status), text));
        Ok(())
    }

    /// Returns why the peer was not offered a better medium, or an empty text.
    fn why_not_offered(&self, id: ConnectionId, link: LinkId) -> String {
        let Some(link) = self.links.get(&link) else { return String::new() };
        let (Stage::Requested { request, offers, .. }, Some(connection), Some(endpoint)) =
            (link.stage(), self.connections.get(&id), self.endpoints.get(&link.endpoint()))
        else {
            return String::new();
        };
        Offering::new(self, connection, endpoint).why_missed(request.transports, offers)
    }

    pub(super) fn on_link_close(&mut self, id: ConnectionId, close: LinkClose) {
        if self.early_links.take(id, close.link).is_some() {
            return;
        }
        let Some(link) = self.link_at(id, close.link) else { return };
        if matches!(self.links.get(&link).map(|link| link.stage()), Some(Stage::Exchanging { .. }))
        {
            return self.fall_back(link, &close.text);
        }
        self.end_link(link, &Reason::new(not_ok(close.status), close.text));
    }

    /// Handles the deadline of a link that is not up.
    pub(super) fn on_link_due(&mut self, id: LinkId) {
        let Some(link) = self.links.get(&id).filter(|link| link.is_overdue(self.now)) else {
            return;
        };
        match link.stage() {
            Stage::Up { .. } => {}
            Stage::Exchanging { .. } => self.fall_back(id, "the peer did not answer in time"),
            Stage::Requested { .. } | Stage::Promised { .. } => {
                let why =
                    format!("no answer from the peer within {:?}", self.settings.step_timeout);
                self.close_link(id, &Reason::new(Status::Unavailable, why));
            }
        }
    }

    /// Allows a link as much time for the next step as for the first.
    pub(super) fn extend_deadline(&mut self, id: LinkId) {
        let deadline = self.now + self.settings.step_timeout;
        if let Some(link) = self.links.get_mut(&id) {
            link.extend(deadline);
            self.deadlines.add(deadline, Due::Link(id));
        }
    }

    /// Requests the link again without the medium that was agreed on and could not be set up.
    pub(super) fn fall_back(&mut self, id: LinkId, obstacle: &str) {
        self.counters.count_fallback();
        let why = format!("{} could not be set up: {obstacle}", self.title_of(id));
        let reason = Reason::new(Status::Aborted, why);
        self.send_link_close(id, &reason);
        let Some(link) = self.forget_link(id) else { return };
        let (connection, endpoint) = (link.connection(), link.endpoint());
        events::medium_failed(endpoint, obstacle);
        let Stage::Exchanging { mut request, kind, .. } = link.into_stage() else { return };
        request.transports = without(request.transports, kind);
        let is_allowed = |medium: &dyn Medium<_>| allows(request.transports, medium.kind());
        let endpoint = self.endpoints.get(&endpoint);
        if endpoint.is_some_and(|endpoint| endpoint.media().any(is_allowed)) {
            self.ask_for_link(connection, request);
        } else {
            let reason = Reason::new(Status::FailedPrecondition, reason.message);
            self.fail_request(&request, reason);
        }
    }

    /// Returns the name, for people, of the medium on which the sides of a link agreed.
    fn title_of(&self, id: LinkId) -> &'static str {
        let medium = self.links.get(&id).and_then(|link| match *link.stage() {
            Stage::Exchanging { kind, .. } => self.endpoints.get(&link.endpoint())?.medium(kind),
            _ => None,
        });
        medium.map_or("the transport", Medium::title)
    }

    /// Ends a link on both sides.
    pub(super) fn close_link(&mut self, id: LinkId, reason: &Reason) {
        self.send_link_close(id, reason);
        self.end_link(id, reason);
    }

    fn send_link_close(&mut self, id: LinkId, reason: &Reason) {
        if let Some(link) = self.links.get(&id) {
            let (connection, link) = (link.connection(), link.number());
            let text = reason.message.clone();
            self.send(connection, LinkClose { link, status: reason.status, text });
        }
    }

    /// Ends a link locally and notifies the endpoint.
    pub(super) fn end_link(&mut self, id: LinkId, reason: &Reason) {
        let Some(link) = self.forget_link(id) else { return };
        let (connection, endpoint) = (link.connection(), link.endpoint());
        match link.into_stage() {
            Stage::Requested { request, .. } | Stage::Exchanging { request, .. } => {
                self.fail_request(&request, reason.clone());
            }
            // The endpoint does not know the link.
            Stage::Promised { .. } => {}
            Stage::Up { .. } => {
                events::link_down(endpoint, id, reason);
                let message = FromNexus::LinkDown { link: id, reason: reason.clone() };
                self.notify(endpoint, message);
            }
        }
        self.close_if_left(connection);
    }

    /// Removes a link from all tables.
    pub(super) fn forget_link(&mut self, id: LinkId) -> Option<Link> {
        let link = self.links.remove(&id)?;
        let own = link.proposals().len();
        assert!(self.proposals >= own, "the proposals of a link are counted");
        self.proposals -= own;
        shrink(&mut self.links);
        if let Some(connection) = self.connections.get_mut(&link.connection()) {
            uncharge(connection, &link, self.now);
            connection.links.remove(link.number(), id, self.now);
            if !connection.is_opener {
                give_back(&mut self.usage, connection, &link);
            }
        }
        self.note_use(link.connection());
        match link.stage() {
            Stage::Promised { .. } if planted("nexus_tickets_stay") => {}
            Stage::Promised { expected: Some(expected), .. } => {
                self.tickets.remove(&expected.ticket);
            }
            Stage::Exchanging { exchange: Some(exchange), .. } => self.remove_exchange(*exchange),
            Stage::Up { .. } => self.counters.links_up.decrement(),
            Stage::Requested { .. }
            | Stage::Promised { expected: None, .. }
            | Stage::Exchanging { exchange: None, .. } => {}
        }
        Some(link)
    }
}

/// Takes the sessions and proposals of a link that ends out of the sums of its connection.
fn uncharge<N: Network>(connection: &mut Connection<N>, link: &Link, now: Instant) {
    for proposal in link.proposals() {
        connection.links.remove_proposal(proposed_bytes(connection, proposal), now);
    }
    if link.session_bytes() > 0 {
        connection.links.remove_sessions(link.session_bytes(), now);
    }
}

/// Gives back the shares of a link that has left its connection, which a peer made.
fn give_back<N: Network>(usage: &mut UsageTable, connection: &Connection<N>, link: &Link) {
    let source = connection.source;
    usage.remove_sessions(source, link.session_bytes());
    for proposal in link.proposals() {
        if !planted("nexus_proposals_keep_their_share") {
            usage.remove_proposal(source, proposal.slots());
        }
    }
    usage.remove_link(source, connection.links.is_empty());
}

#[cfg(test)]
mod tests {
    use std::net::TcpListener;
    use std::time::Duration;

    use mio::net::TcpStream;
    use petrel_proto::control::Message;
    use petrel_transport::host::HostLink;
    use petrel_transport::udp::Mtu;

    use super::*;
    use crate::control::AllowedTransports;
    use crate::nexus::attach::UdpAttach;
    use crate::nexus::connection::{Connection, Peer, Phase};
    use crate::nexus::media::shm;
    use crate::nexus::reactor::sessions::tests::{accept, open};
    use crate::nexus::reactor::tests::{attach, open_connection, reactor, said};

    impl Reactor {
        /// A link between the endpoints number 0 of both sides.
        pub(in crate::nexus) fn add_test_link(
            &mut self,
            at: ConnectionId,
            number: u32,
            stage: Stage,
        ) -> LinkId {
            self.add_link((at, number), EndpointId(0), 0, stage)
        }
    }

    fn link_open(link: u32) -> LinkOpen {
        let offers = vec![Offer::Udp { port: 9, max_frame: 1_472 }];
        LinkOpen {
            link,
            from_endpoint: 0,
            to_endpoint: 0,
            offers,
            ecn: false,
            features: Default::default(),
        }
    }

    /// LINK_OPEN comes from the side that connected, with a number not in use by a link, up or early.
    #[test]
    fn on_link_open__of_the_wrong_side_or_of_a_number_in_use_breaks_the_protocol() {
        for (is_opener, number, is_allowed) in
            [(true, 7, false), (false, 5, false), (false, 6, false), (false, 7, true)]
        {
            let (mut reactor, _) = reactor();
            let (at, _peer) = open_connection(&mut reactor, is_opener);
            reactor.add_test_link(at, 5, Stage::Up { is_opener, max_frame: 1_472 });
            if !is_opener {
                // Its endpoint is not attached.
                assert!(reactor.keep_early_link(at, &link_open(6)));
            }
            let early = reactor.early_links.len();
            assert_eq!(reactor.on_link_open(at, &link_open(number)).is_ok(), is_allowed);
            assert_eq!(reactor.early_links.len(), early + usize::from(is_allowed));
        }
    }

    /// The answers accepted by a link at each stage. UDP was the only offer.
    #[test]
    fn answers_to_a_link__that_was_not_asked_for_break_the_protocol() {
        let udp = Offer::Udp { port: 9, max_frame: 1_400 };
        let shm = Offer::Shm { max_frame: 1_400 };
        let accept = |offer, ticket| LinkAccept {
            link: 5,
            offer,
            ticket,
            ecn: false,
            features: Default::default(),
        };
        for (stage, is_asked) in [(0, true), (1, false), (2, false), (3, false)] {
            let with_a_link = || {
                let (mut reactor, mailbox) = reactor();
                let _inbox = attach(&mailbox);
                reactor.run_commands();
                let (at, peer) = open_connection(&mut reactor, true);
                let (remote, give_up_at) = (reactor.connections[&at].remote, reactor.now);
                let request = OpenRequest {
                    endpoint: EndpointId(0),
                    request: 1,
                    remote,
                    remote_endpoint: EndpointId(0),
                    transports: AllowedTransports { udp: true, shm: false },
                    give_up_at,
                };
                let offers = vec![Offer::Udp { port: 7, max_frame: 1_472 }];
                let stage = match stage {
                    0 => Stage::Requested { request, offers, ecn: false },
                    1 => Stage::Exchanging { request, kind: shm::KIND, exchange: None },
                    2 => Stage::Promised { expected: None, max_frame: 1_472 },
                    _ => Stage::Up { is_opener: true, max_frame: 1_472 },
                };
                let link = reactor.add_test_link(at, 5, stage);
                (reactor, at, link, peer)
            };
            let (mut reactor, at, link, _peer) = with_a_link();
            assert_eq!(reactor.on_link_accept(at, &accept(udp, None)).is_ok(), is_asked);
            let is_up = matches!(
                reactor.links[&link].stage(),
                Stage::Up { is_opener: true, max_frame: 1_400 }
            );
            assert_eq!(is_up, is_asked, "with the smaller of both sides' frames");
            let (mut reactor, at, ..) = with_a_link();
            assert!(reactor.on_link_accept(at, &accept(shm, Some([1; 16]))).is_err());
            let (mut reactor, at, link, _peer) = with_a_link();
            let (status, text) = (Status::ResourceExhausted, String::new());
            let refuse = LinkRefuse { link: 5, status, text };
            assert_eq!(reactor.on_link_refuse(at, refuse).is_ok(), is_asked);
            assert_eq!(reactor.links.contains_key(&link), !is_asked);
            assert_eq!(reactor.counters.snapshot().links_failed, u64::from(is_asked));
        }
    }

    /// Up to the limit and no further: per connection and in all, for openers and acceptors.
    #[test]
    fn links__are_bounded() {
        let (mut reactor, mailbox) = reactor();
        let _inbox = attach(&mailbox);
        reactor.run_commands();
        let (id, now) = (ConnectionId(7), reactor.now);
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let remote = listener.local_addr().unwrap();
        let stream = TcpStream::connect(remote).unwrap();
        let mut connection = Connection::new(stream, (remote, remote), true, now);
        let silence_max = Duration::from_secs(3);
        let peer = Peer { incarnation: 1, silence_max, host_identity: None, rendezvous: None };
        connection.enter(Phase::Open(peer), now);
        reactor.connections.insert(id, connection);
        let request = OpenRequest {
            endpoint: EndpointId(0),
            request: 1,
            remote,
            remote_endpoint: EndpointId(0),
            transports: AllowedTransports { udp: true, shm: false },
            give_up_at: now,
        };
        let offers = vec![Offer::Udp { port: 9, max_frame: 1_472 }];
        let open = LinkOpen {
            link: 0,
            from_endpoint: 0,
            to_endpoint: 0,
            offers,
            ecn: false,
            features: Default::default(),
        };
        let may = |reactor: &Reactor| {
            let asks = reactor.prepare_link(id, &request).map(drop);
            assert_eq!(reactor.grant_link(id, &open).is_ok(), asks.is_ok());
            asks.map_err(|reason| reason.status)
        };
        let exhausted = Err(Status::ResourceExhausted);
        for (links, expected) in [
            (0, Ok(())),
            (LINKS_PER_CONNECTION_MAX - 1, Ok(())),
            (LINKS_PER_CONNECTION_MAX, exhausted),
        ] {
            let connection = reactor.connections.get_mut(&id).unwrap();
            connection.links.set_test_links(links);
            assert_eq!(may(&reactor), expected, "{links} of the connection");
        }
        reactor.connections.get_mut(&id).unwrap().links.set_test_links(0);
        for (links, expected) in [(LINKS_MAX - 1, Ok(())), (LINKS_MAX, exhausted)] {
            let link = |number: usize| {
                let stage = Stage::Up { is_opener: true, max_frame: 1_472 };
                Link::new((ConnectionId(8), number as u32), EndpointId(0), 0, stage, now)
            };
            let there = reactor.links.len();
            reactor
                .links
                .extend((there..links).map(|number| (LinkId(number as u64), link(number))));
            assert_eq!(may(&reactor), expected, "{links} in all");
        }
    }

    fn request(reactor: &Reactor, at: ConnectionId, transports: AllowedTransports) -> OpenRequest {
        OpenRequest {
            endpoint: EndpointId(0),
            request: 1,
            remote: reactor.connections[&at].remote,
            remote_endpoint: EndpointId(0),
            transports,
            give_up_at: reactor.now,
        }
    }

    /// An endpoint attached before the peer's request is found without waiting.
    #[test]
    fn on_link_open__finds_an_endpoint_that_has_just_come() {
        let (mut reactor, mailbox) = reactor();
        let (at, _peer) = open_connection(&mut reactor, false);
        let _inbox = attach(&mailbox);
        reactor.on_link_open(at, &link_open(5)).unwrap();
        assert_eq!((reactor.links.len(), reactor.early_links.len()), (1, 0));
        assert!(matches!(said(&mut reactor, at)[..], [Message::LinkAccept(_)]));
    }

    /// ECN marks are used only if both sides want them. A new link is reported and counted.
    #[test]
    fn links_that_come_up__are_reported_and_counted() {
        let offer = Offer::Udp { port: 9, max_frame: 1_400 };
        for is_opener in [true, false] {
            for (own, peers) in [(true, true), (true, false), (false, true), (false, false)] {
                let (mut reactor, mailbox) = reactor();
                let inbox = attach(&mailbox);
                reactor.run_commands();
                let (local, mtu) = (([127, 0, 0, 1], 9).into(), Mtu::default());
                let udp = UdpAttach {
                    local,
                    mtu,
                    reads_marks: own,
                    heeds_marks: own,
                    further_ports: PathPorts::NONE,
                    uses_paths: false,
                };
                reactor.endpoints.get_mut(&EndpointId(0)).unwrap().set_test_media(udp);
                let (at, _peer) = open_connection(&mut reactor, is_opener);
                let ecn = own && peers;
                if is_opener {
                    let request =
                        request(&reactor, at, AllowedTransports { udp: true, shm: false });
                    let offers = vec![Offer::Udp { port: 7, max_frame: 1_472 }];
                    reactor.add_test_link(at, 5, Stage::Requested { request, offers, ecn: own });
                    let accept = LinkAccept {
                        link: 5,
                        offer,
                        ticket: None,
                        ecn: peers,
                        features: Default::default(),
                    };
                    reactor.on_link_accept(at, &accept).unwrap();
                } else {
                    let open = LinkOpen { offers: vec![offer], ecn: peers, ..link_open(5) };
                    reactor.on_link_open(at, &open).unwrap();
                    let sent = said(&mut reactor, at);
                    let [Message::LinkAccept(accept)] = &sent[..] else { panic!("{sent:?}") };
                    assert_eq!((accept.link, accept.ticket, accept.ecn), (5, None, ecn));
                }
                let mut remote = reactor.connections[&at].remote;
                let name = PeerName { address: remote, endpoint: EndpointId(0) };
                remote.set_port(9);
                let Some(FromNexus::LinkUp { request, transport, peer, incarnation, .. }) =
                    inbox.pop()
                else {
                    panic!("the endpoint is not notified")
                };
                assert_eq!((request, incarnation), (is_opener.then_some(1), 7));
                assert_eq!(peer, name);
                let HostLink::Far(udp) = transport else { panic!("not by UDP") };
                assert_eq!((udp.addr, udp.max_frame, udp.ecn), (remote, Some(1_400), ecn));
                let stats = reactor.counters.snapshot();
                let opened = (stats.links_opened, stats.links_opened_shm, stats.links_opened_ecn);
                assert_eq!((stats.links_up, opened), (1, (1, 0, u64::from(ecn))));
            }
        }
    }

    #[test]
    fn close_link__tells_both_sides() {
        let reason = Reason::new(Status::Aborted, "the test ends it");
        for is_up in [true, false] {
            let (mut reactor, mailbox) = reactor();
            let inbox = attach(&mailbox);
            reactor.run_commands();
            let (at, _peer) = open_connection(&mut reactor, false);
            let link = reactor.add_test_link(
                at,
                5,
                match is_up {
                    true => Stage::Up { is_opener: false, max_frame: 1_472 },
                    false => Stage::Promised { expected: None, max_frame: 1_472 },
                },
            );
            reactor.counters.links_up.add(u64::from(is_up));
            reactor.close_link(link, &reason);
            let (status, text) = (reason.status, reason.message.clone());
            assert_eq!(said(&mut reactor, at), [LinkClose { link: 5, status, text }.into()]);
            match inbox.pop() {
                Some(FromNexus::LinkDown { link: down, reason: why }) => {
                    assert_eq!((is_up, down, why), (true, link, reason.clone()));
                }
                other => assert!(!is_up && other.is_none(), "{other:?}"),
            }
            assert!(reactor.links.is_empty() && inbox.pop().is_none());
            assert_eq!(reactor.check_tables(), Ok(()));
        }
    }

    /// Without shared memory the link is requested over UDP, if allowed.
    #[test]
    fn fall_back__closes_the_link_and_asks_without_shared_memory() {
        for udp in [true, false] {
            let (mut reactor, mailbox) = reactor();
            let inbox = attach(&mailbox);
            reactor.run_commands();
            let (at, _peer) = open_connection(&mut reactor, true);
            let request = request(&reactor, at, AllowedTransports { udp, shm: true });
            let link = reactor.add_test_link(
                at,
                5,
                Stage::Exchanging { request, kind: shm::KIND, exchange: None },
            );
            reactor.fall_back(link, "no memory");
            assert!(!reactor.links.contains_key(&link));
            let mut sent = said(&mut reactor, at).into_iter();
            let Some(Message::LinkClose(close)) = sent.next() else { panic!("it is not closed") };
            assert_eq!((close.link, close.status), (5, Status::Aborted));
            assert!(close.text.ends_with("no memory"), "{}", close.text);
            if udp {
                let Some(Message::LinkOpen(open)) = sent.next() else { panic!("no request") };
                assert!(matches!(open.offers[..], [Offer::Udp { .. }]), "{open:?}");
                assert!(inbox.pop().is_none());
            } else {
                let Some(FromNexus::LinkFailed { request: 1, reason }) = inbox.pop() else {
                    panic!("the request has no answer")
                };
                assert_eq!(reason, Reason::new(Status::FailedPrecondition, close.text));
            }
            assert_eq!((sent.next(), reactor.links.len()), (None, usize::from(udp)));
            let stats = reactor.counters.snapshot();
            assert_eq!((stats.shm_fallbacks, stats.links_failed), (1, u64::from(!udp)));
            assert_eq!(reactor.check_tables(), Ok(()));
        }
    }

    /// A connection's time without sessions restarts when a link with a session or proposal ends.
    #[test]
    fn forget_link__of_sessions_begins_the_time_without_them() {
        for (opened, proposed, is_anew) in [(0, 0, false), (1, 0, true), (0, 1, true), (1, 1, true)]
        {
            let (mut reactor, mailbox) = reactor();
            let _inbox = attach(&mailbox);
            reactor.run_commands();
            let (at, _peer) = open_connection(&mut reactor, false);
            let id = reactor.add_test_link(at, 5, Stage::Up { is_opener: false, max_frame: 1_472 });
            reactor.counters.links_up.increment();
            for request in 0..opened + proposed {
                reactor.on_session_open(at, open(5, request)).unwrap();
                if request < opened {
                    reactor.answer_session(EndpointId(0), id, request, Ok(accept(5, request)));
                }
            }
            let before = reactor.connections[&at].links.quiet_since();
            reactor.now += Duration::from_secs(5);
            assert!(reactor.forget_link(id).is_some());
            let connection = &reactor.connections[&at];
            assert_eq!(connection.links.quiet_since(), if is_anew { reactor.now } else { before });
            assert_eq!(connection.links.idle_since(), reactor.now);
            assert_eq!(
                (connection.links.session_bytes(), connection.links.proposed_bytes()),
                (0, 0)
            );
            assert_eq!((connection.links.proposals(), reactor.proposals), (0, 0));
            assert_eq!(reactor.check_tables(), Ok(()));
            assert!(reactor.forget_link(id).is_none());
        }
    }
}
