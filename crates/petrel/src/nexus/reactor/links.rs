//! Links: request, grant and end, and the exchange of their memory (`docs/wire-protocol.md` §8.4).

use std::io;
use std::net::{IpAddr, SocketAddr};

use petrel_proto::Status;
use petrel_proto::control::{
    LinkAccept, LinkClose, LinkFeatures, LinkOpen, LinkRefuse, Offer, PathPorts,
};
use petrel_transport::seal::SealedLink;

use super::Reactor;
use super::offers::Offering;
use crate::control::{EndpointId, FromNexus, LinkId, PeerName, Reason};
use crate::events;
use crate::nexus::connection::Connection;
use crate::nexus::endpoint::Attached;
use crate::nexus::goodbye::{Ending, not_ok};
use crate::nexus::ids::{ConnectionId, ExchangeId};
use crate::nexus::limits::{ACCEPTS_PER_TURN, LINKS_PER_CONNECTION_MAX};
use crate::nexus::link::{Expected, Link, Ready, Stage};
use crate::nexus::links::TICKET_BYTES;
use crate::nexus::media::{Agreed, Medium, MemoryConfig, Opening, allows, udp};
use crate::nexus::net::Network;
use crate::nexus::rendezvous::{Accepted, Outcome};
use crate::nexus::request::OpenRequest;
use crate::security::LinkKeys;

/// Returns the features of this side, with the further source ports.
fn own_features(paths: PathPorts, reverse: bool) -> LinkFeatures {
    LinkFeatures { order: true, paths, probe: true, reverse, key_path: None }
}

/// Returns the further source ports that an endpoint announces for its own sessions over a medium.
fn asked_paths<L>(medium: &dyn Medium<L>) -> PathPorts {
    if medium.asks_for_paths() { medium.further_ports() } else { PathPorts::NONE }
}

/// Returns the features of both sides: the peer's source ports if each side announced ports (§14.1), ordered calls
/// if each side knows ordered calls (§14.6), and reverse sessions if the opener wants them and the acceptor knows them (§8.5).
fn shared_features(own: &LinkFeatures, peers: &LinkFeatures) -> LinkFeatures {
    let probe = own.probe && peers.probe;
    // A probe proves that the offered port is the peer's: without probes, nothing would.
    let paths = if own.paths.is_empty() || !probe { PathPorts::NONE } else { peers.paths };
    let order = own.order && peers.order;
    // The acceptor sends the first frames of its own sessions: to a port that has not proven anything, probes alone.
    let reverse = probe && own.reverse && peers.reverse;
    LinkFeatures { order, paths, probe, reverse, key_path: None }
}

impl<N: Network> Reactor<N> {
    /// Sends LINK_OPEN over a connection whose peer said HELLO.
    pub(super) fn ask_for_link(&mut self, id: ConnectionId, request: OpenRequest) {
        match self.prepare_link(id, &request) {
            Ok((offers, ecn, paths)) => self.send_link_open(id, request, (offers, ecn, paths)),
            Err(reason) => self.relay.fail_request(&request, reason),
        }
    }

    /// Returns the offers to make, whether to ask for ECN marks, and the source ports to announce.
    fn prepare_link(
        &self,
        id: ConnectionId,
        request: &OpenRequest,
    ) -> Result<(Vec<Offer>, bool, PathPorts), Reason> {
        let broken = || Reason::new(Status::Unavailable, "the control connection has just ended");
        let connection = self.relay.connections.open(id).ok_or_else(broken)?;
        // An endpoint that has gone does not get the failure either.
        let endpoint = self.relay.endpoints.get(request.endpoint()).ok_or_else(broken)?;
        if connection.links().len() >= LINKS_PER_CONNECTION_MAX || self.relay.links.is_full() {
            let why = "this process has too many links; close some first";
            return Err(Reason::new(Status::ResourceExhausted, why));
        }
        let offers = self.offering(connection, endpoint).offers(request.transports());
        let offers = offers.map_err(|obstacles| {
            let why = format!("no transport to {}; on this side: {obstacles}", connection.remote());
            Reason::new(Status::FailedPrecondition, why)
        })?;
        let media = || offers.iter().filter_map(|offer| endpoint.medium(offer.kind()));
        let ecn = media().any(Medium::asks_for_marks);
        let paths = media().map(asked_paths).find(|paths| !paths.is_empty());
        Ok((offers, ecn, paths.unwrap_or_default()))
    }

    fn offering<'a>(
        &'a self,
        connection: &'a Connection<N>,
        endpoint: &'a Attached<N>,
    ) -> Offering<'a, N> {
        Offering::new(&self.net, &self.relay, self.exchanges.local(), (connection, endpoint))
    }

    fn send_link_open(
        &mut self,
        id: ConnectionId,
        request: OpenRequest,
        (offers, ecn, paths): (Vec<Offer>, bool, PathPorts),
    ) {
        let Some(connection) = self.relay.connections.get_mut(id) else { return };
        let is_udp = |offer: &Offer| offer.kind() == udp::KIND;
        let is_sealed = !connection.channel().is_plain() && offers.iter().any(is_udp);
        let number = connection.links_mut().new_number();
        let key_path = is_sealed.then(|| self.relay.links.new_key_path());
        let message = LinkOpen {
            link: number,
            from_endpoint: request.endpoint().0,
            to_endpoint: request.remote_endpoint().0,
            offers: offers.clone(),
            ecn,
            features: LinkFeatures { key_path, ..own_features(paths, request.reverse()) },
        };
        let (endpoint, peer_endpoint) = (request.endpoint(), request.remote_endpoint().0);
        self.relay.add_link(
            (id, number),
            endpoint,
            peer_endpoint,
            (Stage::Requested { request, offers, ecn }, key_path),
        );
        self.relay.send(id, message);
        self.relay.expect_answer(id);
    }

    pub(super) fn on_link_open(&mut self, id: ConnectionId, open: &LinkOpen) -> Result<(), Ending> {
        // An endpoint attached before the peer's request must be found.
        self.run_commands();
        let Some(connection) = self.relay.connections.open(id) else { return Ok(()) };
        if connection.is_opener() {
            return Err(Ending::Violation("LINK_OPEN from the side that did not connect"));
        }
        if connection.links().get(open.link).is_some() {
            return Err(Ending::Violation("LINK_OPEN with a number that is in use"));
        }
        if self.early_links.contains(id, open.link) {
            return Err(Ending::Violation("LINK_OPEN with a number that was just asked for"));
        }
        let Some(connection) = self.relay.connections.get_mut(id) else { return Ok(()) };
        if !connection.channel().is_plain() && !connection.links_mut().accept_number(open.link) {
            return Err(Ending::Violation("LINK_OPEN with a number that was in use before"));
        }
        if !self.early_links.keep_if_early(id, open, &mut self.relay) {
            self.answer_link_open(id, open);
        }
        Ok(())
    }

    /// Grants or refuses a link.
    pub(super) fn answer_link_open(&mut self, id: ConnectionId, open: &LinkOpen) {
        // The connection may have been evicted for a link granted just before.
        if self.relay.connections.open(id).is_none() {
            return;
        }
        match self.admit_link(id).and_then(|()| self.grant_link(id, open)) {
            Ok((chosen, offered)) => self.accept_link(id, open, chosen, offered),
            Err(reason) => self.refuse_link(id, open.link, reason),
        }
    }

    /// Returns the local and the peer's offer of the chosen transport.
    fn grant_link(&self, id: ConnectionId, open: &LinkOpen) -> Result<(Offer, Offer), Reason> {
        let connection = &self.relay.connections[&id];
        let Some(endpoint) = self.relay.endpoints.get(EndpointId(open.to_endpoint)) else {
            let why = format!("there is no endpoint {} in this process", open.to_endpoint);
            return Err(Reason::new(Status::Unavailable, why));
        };
        if connection.links().len() >= LINKS_PER_CONNECTION_MAX
            || self.relay.links.is_full()
            || endpoint.is_overloaded()
        {
            let why = "the server has too many links, or its event loop does not keep up";
            return Err(Reason::new(Status::ResourceExhausted, why));
        }
        let chosen = self.offering(connection, endpoint).choose(&open.offers);
        // The peer reads this text.
        let at_server = |why| format!("the server takes no transport that was offered: {why}");
        let chosen =
            chosen.map_err(|why| Reason::new(Status::FailedPrecondition, at_server(why)))?;
        let offered = open.offers.iter().find(|offer| offer.is_same_transport(chosen));
        Ok((chosen, *offered.expect("the choice is among the offers")))
    }

    fn refuse_link(&mut self, id: ConnectionId, link: u32, reason: Reason) {
        self.relay.counters().links_refused.increment();
        if let Some(connection) = self.relay.connections.get(id) {
            events::link_refused(connection.remote(), &reason);
        }
        self.relay.send(id, LinkRefuse { link, status: reason.status, text: reason.message });
    }

    /// Grants a link: opens the chosen transport, or expects the peer to bring memory or a stream.
    fn accept_link(&mut self, id: ConnectionId, open: &LinkOpen, chosen: Offer, offered: Offer) {
        let endpoint = EndpointId(open.to_endpoint);
        let Some((_, medium)) = self.medium_at(id, endpoint, chosen.kind()) else { return };
        let max_frame = chosen.max_frame().min(offered.max_frame());
        let ecn = open.ecn && medium.reads_marks();
        let own = own_features(medium.further_ports(), true);
        let shared = shared_features(&own, &open.features);
        let is_probed_udp = shared.probe && chosen.kind() == udp::KIND;
        let data_ip = self.relay.settings().data_ip().filter(|_| is_probed_udp);
        let is_sealed = chosen.kind() == udp::KIND && self.is_secured(id);
        let key_path = is_sealed.then(|| self.relay.links.new_key_path());
        let sealed = key_path.map(|own| {
            let endpoints = (open.from_endpoint, open.to_endpoint);
            self.keys_of(id, (open.link, endpoints), (own, open.features.key_path))
        });
        let sealed = match sealed.transpose() {
            Ok(sealed) => sealed,
            Err(why) => {
                self.relay.links.give_key_path_back(key_path);
                let reason = Reason::new(Status::FailedPrecondition, why);
                return self.refuse_link(id, open.link, reason);
            }
        };
        let Some((remote, medium)) = self.medium_at(id, endpoint, chosen.kind()) else { return };
        let opening = {
            // Only addresses of this host have a path to the peer.
            let own_ip = data_ip.filter(|ip| self.net.path_mtu(*ip, remote).is_ok());
            let source = self.source_to(id, medium, remote, own_ip);
            medium.open(Agreed { remote, offer: offered, max_frame, ecn, source, sealed })
        };
        let new_expected = |memory| self.new_ticket().map(|ticket| Expected::new(ticket, memory));
        let promised = match &opening {
            Opening::Link(_) => Ok(None),
            Opening::Memory(config) => new_expected(Some(*config)).map(Some),
            Opening::Stream => new_expected(None).map(Some),
        };
        let expected = match promised {
            Ok(expected) => expected,
            Err(error) => {
                self.relay.links.give_key_path_back(key_path);
                let reason = Reason::new(Status::Internal, error.to_string());
                return self.refuse_link(id, open.link, reason);
            }
        };
        let ticket = expected.map(|expected| *expected.ticket());
        let stage = Stage::Promised { expected, max_frame };
        let (place, stage) = ((id, open.link), (stage, key_path));
        let link = self.relay.add_link(place, endpoint, open.from_endpoint, stage);
        self.agree_on(link, shared);
        let paths = if shared.paths.is_empty() { PathPorts::NONE } else { own.paths };
        let (number, features) = (open.link, LinkFeatures { paths, key_path, ..shared });
        let accept = LinkAccept { link: number, offer: chosen, ticket, ecn, features, data_ip };
        self.relay.send(id, accept);
        match (opening, ticket) {
            (Opening::Link(transport), _) => {
                self.bring_up(link, Ready { transport, max_frame, kind: chosen.kind(), ecn });
            }
            (_, Some(ticket)) => self.relay.links.expect_ticket(ticket, link),
            (_, None) => unreachable!("memory and streams are promised by a ticket"),
        }
    }

    /// Returns the peer's end of a connection, and an endpoint's medium of a kind.
    fn medium_at(
        &self,
        id: ConnectionId,
        endpoint: EndpointId,
        kind: u8,
    ) -> Option<(SocketAddr, &dyn Medium<N::Link>)> {
        let medium = self.relay.endpoints.medium(endpoint, kind)?;
        Some((self.relay.connections.get(id)?.remote(), medium))
    }

    /// Returns the source of a medium's datagrams, if the system would choose another address: `own`, or this process's end of a
    /// connection.
    fn source_to(
        &self,
        id: ConnectionId,
        medium: &dyn Medium<N::Link>,
        remote: SocketAddr,
        own: Option<IpAddr>,
    ) -> Option<IpAddr> {
        let connection = self.relay.connections.get(id).filter(|_| medium.chooses_source())?;
        let source = own.unwrap_or_else(|| connection.local().ip());
        let usual = self.net.source_to(remote).ok()?;
        (usual != source).then_some(source)
    }

    fn new_ticket(&self) -> io::Result<[u8; TICKET_BYTES]> {
        let mut ticket = [0; TICKET_BYTES];
        self.net.fill_random(&mut ticket)?;
        Ok(ticket)
    }

    /// Handles the acceptor's grant of a link: opens the agreed transport, or begins to exchange its memory or stream.
    pub(super) fn on_link_accept(
        &mut self,
        id: ConnectionId,
        accept: &LinkAccept,
    ) -> Result<(), Ending> {
        let Some(link) = self.relay.link_at(id, accept.link) else { return Ok(()) };
        let Some(Stage::Requested { offers, ecn, request }) =
            self.relay.links.get(link).map(|link| link.stage())
        else {
            return Err(Ending::Violation("LINK_ACCEPT of a link that was not asked for"));
        };
        let own_offer = offers.iter().find(|offer| offer.is_same_transport(accept.offer));
        let not_offered = Ending::Violation("LINK_ACCEPT with a transport that was not offered");
        let own_offer = own_offer.ok_or(not_offered)?;
        let max_frame = own_offer.max_frame().min(accept.offer.max_frame());
        let (kind, asked_for_marks, reverse) = (own_offer.kind(), *ecn, request.reverse());
        let endpoint = self.relay.links[&link].endpoint();
        let Some((remote, medium)) = self.medium_at(id, endpoint, kind) else { return Ok(()) };
        let ecn = asked_for_marks && accept.ecn && medium.asks_for_marks();
        let own_features = own_features(asked_paths(medium), reverse);
        let shared = shared_features(&own_features, &accept.features);
        let data_ip = accept.data_ip.filter(|_| shared.probe && kind == udp::KIND);
        let data_address = data_ip.map(|ip| SocketAddr::new(ip, remote.port()));
        // A process that keeps to its host sends nothing to other hosts, whatever the peer names.
        let is_allowed = |address: &SocketAddr| self.relay.settings().may_connect_to(*address);
        let remote = data_address.filter(is_allowed).unwrap_or(remote);
        let sealed = match self.relay.links[&link].key_path() {
            Some(own) if kind == udp::KIND => {
                let endpoints = (endpoint.0, self.relay.links[&link].peer_endpoint());
                let paths = (own, accept.features.key_path);
                match self.keys_of(id, (accept.link, endpoints), paths) {
                    Ok(sealed) => Some(sealed),
                    Err(_) => return Err(Ending::Violation("LINK_ACCEPT without a key path")),
                }
            }
            _ => None,
        };
        let opening = {
            let source = self.source_to(id, medium, remote, None);
            medium.open(Agreed { remote, offer: accept.offer, max_frame, ecn, source, sealed })
        };
        self.agree_on(link, shared);
        match (opening, accept.ticket) {
            (Opening::Link(transport), _) => {
                self.bring_up(link, Ready { transport, max_frame, kind, ecn });
            }
            (Opening::Memory(config), Some(ticket)) => {
                self.queue_exchange(link, ticket, kind, config);
            }
            (Opening::Stream, Some(ticket)) => self.begin_stream(link, ticket, max_frame),
            // The decoder rejects any such message.
            (_, None) => {
                return Err(Ending::Violation("LINK_ACCEPT without a ticket"));
            }
        }
        Ok(())
    }

    fn is_secured(&self, id: ConnectionId) -> bool {
        self.relay.connections.get(id).is_some_and(|connection| !connection.channel().is_plain())
    }

    /// Returns the keys of a link's datagrams: for its number, the endpoints of opener and acceptor, and the key paths of this side and the
    /// peer (§17.2).
    ///
    /// # Errors
    /// The peer has named no key path, or the connection no secrets.
    fn keys_of(
        &self,
        id: ConnectionId,
        (number, (opener, acceptor)): (u32, (u16, u16)),
        (local_path, remote_path): (u32, Option<u32>),
    ) -> Result<Box<SealedLink>, String> {
        let remote_path = remote_path.ok_or("a link over UDP inside TLS needs a key path")?;
        let connection = self.relay.connections.get(id).ok_or("the connection has ended")?;
        let mut context = [0; 8];
        context[..4].copy_from_slice(&number.to_le_bytes());
        context[4..6].copy_from_slice(&opener.to_le_bytes());
        context[6..].copy_from_slice(&acceptor.to_le_bytes());
        let keys = connection.channel().link_keys(context, connection.is_opener());
        let keys = keys.map_err(|error| error.to_string())?.ok_or("the connection has no TLS")?;
        let LinkKeys { send, receive } = keys;
        Ok(Box::new(SealedLink { local_path, remote_path, send, receive }))
    }

    /// Notes the features that both sides have.
    fn agree_on(&mut self, id: LinkId, shared: LinkFeatures) {
        if let Some(link) = self.relay.links.get_mut(id) {
            link.agree_on(shared);
        }
    }

    /// Gives the link to the endpoint, as both sides are ready.
    pub(super) fn bring_up(&mut self, id: LinkId, ready: Ready<N::Link>) {
        let Ready { transport, max_frame, kind, ecn } = ready;
        let Some(link) = self.relay.links.get_mut(id) else { return };
        let request = link.come_up(max_frame);
        let (endpoint, peer_endpoint, features) =
            (link.endpoint(), link.peer_endpoint(), *link.features());
        let Some(connection) = self.relay.connections.get(link.connection()) else { return };
        let incarnation = connection.peer().map_or(0, |peer| peer.incarnation());
        let identity = connection.channel().peer();
        let peer = PeerName { address: connection.remote(), endpoint: EndpointId(peer_endpoint) };
        self.relay.counters().links_up.increment();
        self.relay.counters().count_opened(kind, ecn);
        let attached = self.relay.endpoints.get(endpoint);
        let medium = attached.and_then(|endpoint| endpoint.medium(kind));
        events::link_up(endpoint, id, peer, medium.map_or("", Medium::name));
        let message = FromNexus::LinkUp {
            request,
            link: id,
            transport,
            peer,
            incarnation,
            identity,
            features,
        };
        match attached {
            Some(opener) if request.is_some() => opener.tell(message),
            // A server's endpoint has nothing to do before the first session, which wakes it.
            Some(acceptor) => acceptor.tell_later(message),
            None => {}
        }
        self.relay.report_path(id);
    }

    pub(super) fn on_link_refuse(
        &mut self,
        id: ConnectionId,
        refuse: LinkRefuse,
    ) -> Result<(), Ending> {
        let Some(link) = self.relay.link_at(id, refuse.link) else { return Ok(()) };
        if !matches!(
            self.relay.links.get(link).map(|link| link.stage()),
            Some(Stage::Requested { .. })
        ) {
            return Err(Ending::Violation("LINK_REFUSE of a link that was not asked for"));
        }
        let text = refuse.text + &self.why_not_offered(id, link);
        self.end_link(link, &Reason::new(not_ok(refuse.status), text));
        Ok(())
    }

    /// Returns why the peer was not offered a better medium, or an empty text.
    fn why_not_offered(&self, id: ConnectionId, link: LinkId) -> String {
        let Some(link) = self.relay.links.get(link) else { return String::new() };
        let (Stage::Requested { request, offers, .. }, Some(connection), Some(endpoint)) = (
            link.stage(),
            self.relay.connections.get(id),
            self.relay.endpoints.get(link.endpoint()),
        ) else {
            return String::new();
        };
        self.offering(connection, endpoint).why_missed(request.transports(), offers)
    }

    pub(super) fn on_link_close(&mut self, id: ConnectionId, close: LinkClose) {
        if self.early_links.take(id, close.link).is_some() {
            return;
        }
        let Some(link) = self.relay.link_at(id, close.link) else { return };
        if matches!(
            self.relay.links.get(link).map(|link| link.stage()),
            Some(Stage::Exchanging { .. })
        ) {
            return self.fall_back(link, &close.text);
        }
        self.end_link(link, &Reason::new(not_ok(close.status), close.text));
    }

    pub(super) fn on_link_due(&mut self, id: LinkId) {
        let Some(link) = self.relay.links.get(id).filter(|link| link.is_overdue(self.relay.now()))
        else {
            return;
        };
        match link.stage() {
            Stage::Up { .. } => {}
            Stage::Exchanging { .. } => self.fall_back(id, "the peer did not answer in time"),
            Stage::Requested { .. } | Stage::Promised { .. } => {
                let why = format!(
                    "no answer from the peer within {:?}",
                    self.relay.settings().step_timeout()
                );
                self.close_link(id, &Reason::new(Status::Unavailable, why));
            }
        }
    }

    /// Opener: queues a link, to create its memory and send it with the ticket.
    fn queue_exchange(
        &mut self,
        id: LinkId,
        ticket: [u8; TICKET_BYTES],
        kind: u8,
        config: MemoryConfig,
    ) {
        self.relay.extend_deadline(id);
        if let Some(link) = self.relay.links.get_mut(id) {
            link.agree_on_exchange(kind);
            self.exchanges.queue(id, ticket, config);
        }
    }

    /// Continues ready exchanges, in both roles.
    pub(super) fn run_exchanges(&mut self) {
        while let Some((link, begun)) = self.exchanges.begin_next(&self.net, &mut self.relay) {
            if let Err(obstacle) = begun {
                self.fall_back(link, &obstacle);
            }
        }
        // While closes of peers' sockets hang, no thread could close a further one: new peers wait, and in the end fall
        // back to UDP.
        for _ in 0..if self.net.can_close() { ACCEPTS_PER_TURN } else { 0 } {
            match self.exchanges.accept(&self.net, &mut self.relay) {
                Accepted::Peer(exchange) => self.on_exchange_ready(exchange),
                Accepted::Dropped => {}
                Accepted::NoRoom => self.give_up_expected_memory(),
                Accepted::Nothing => break,
            }
        }
    }

    /// Closes the links whose peers are to bring memory, so that the peers fall back at once.
    fn give_up_expected_memory(&mut self) {
        let why = "this process has no descriptor left for shared memory";
        let reason = Reason::new(Status::ResourceExhausted, why);
        for link in self.relay.links.expecting_memory() {
            self.close_link(link, &reason);
        }
    }

    pub(super) fn on_exchange_ready(&mut self, id: ExchangeId) {
        match self.exchanges.on_bytes(id, &self.net, &mut self.relay) {
            None => {}
            Some((link, Outcome::Ready(ready))) => self.bring_up(link, ready),
            Some((link, Outcome::NotSetUp(obstacle))) => self.fall_back(link, &obstacle),
            Some((link, Outcome::Unusable(reason))) => self.close_link(link, &reason),
        }
    }

    /// Answers the links kept for this endpoint.
    pub(super) fn welcome_early_links(&mut self, endpoint: EndpointId) {
        for (connection, open) in self.early_links.take_for(endpoint) {
            self.answer_link_open(connection, &open);
        }
    }

    /// Answers a link still kept at its deadline: the endpoint is missing.
    pub(super) fn on_early_link_due(&mut self, connection: ConnectionId, link: u32) {
        if let Some(open) = self.early_links.take(connection, link) {
            self.answer_link_open(connection, &open);
        }
    }

    /// Requests the link again without the medium that was agreed on and could not be set up.
    pub(super) fn fall_back(&mut self, id: LinkId, obstacle: &str) {
        let title = self.title_of(id);
        let why = format!("{title} could not be set up: {obstacle}");
        let reason = Reason::new(Status::Aborted, why);
        self.send_link_close(id, &reason);
        let Some(link) = self.forget_link(id) else { return };
        let (connection, endpoint) = (link.connection(), link.endpoint());
        events::medium_failed(endpoint, title, obstacle);
        let Stage::Exchanging { mut request, kind, .. } = link.into_stage() else { return };
        self.relay.counters().count_fallback(kind);
        request.exclude(kind);
        let is_allowed = |medium: &dyn Medium<_>| allows(request.transports(), medium.kind());
        let endpoint = self.relay.endpoints.get(endpoint);
        if endpoint.is_some_and(|endpoint| endpoint.media().any(is_allowed)) {
            self.ask_for_link(connection, request);
        } else {
            let reason = Reason::new(Status::FailedPrecondition, reason.message);
            self.relay.fail_request(&request, reason);
        }
    }

    /// Returns the name, for people, of the medium on which the sides of a link agreed.
    fn title_of(&self, id: LinkId) -> &'static str {
        let medium = self.relay.links.get(id).and_then(|link| match *link.stage() {
            Stage::Exchanging { kind, .. } => {
                self.relay.endpoints.get(link.endpoint())?.medium(kind)
            }
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
        if let Some(link) = self.relay.links.get(id) {
            let (connection, link) = (link.connection(), link.number());
            let text = reason.message.clone();
            self.relay.send(connection, LinkClose { link, status: reason.status, text });
        }
    }

    /// Ends a link locally and notifies the endpoint.
    pub(super) fn end_link(&mut self, id: LinkId, reason: &Reason) {
        let Some(link) = self.forget_link(id) else { return };
        let (connection, endpoint) = (link.connection(), link.endpoint());
        match link.into_stage() {
            Stage::Requested { request, .. } | Stage::Exchanging { request, .. } => {
                self.relay.fail_request(&request, reason.clone());
            }
            // The endpoint does not know the link.
            Stage::Promised { .. } => {}
            Stage::Up { .. } => {
                events::link_down(endpoint, id, reason);
                let message = FromNexus::LinkDown { link: id, reason: reason.clone() };
                self.relay.notify(endpoint, message);
            }
        }
        self.close_if_left(connection);
    }

    /// Removes a link from all tables, and gives up the exchange of its memory.
    pub(super) fn forget_link(&mut self, id: LinkId) -> Option<Link> {
        let link = self.relay.remove_link(id)?;
        if let Stage::Exchanging { exchange: Some(exchange), .. } = *link.stage() {
            self.exchanges.remove(exchange, &self.net);
        }
        Some(link)
    }
}

#[cfg(test)]
pub(in crate::nexus) mod tests {
    use std::net::TcpListener;
    use std::time::Duration;

    use mio::net::TcpStream;
    use petrel_proto::control::Message;
    use petrel_transport::host::HostLink;
    use petrel_transport::mux::MuxLink;
    use petrel_transport::udp::Mtu;

    use super::*;
    use crate::control::AllowedTransports;
    use crate::nexus::attach::UdpAttach;
    use crate::nexus::connection::{Connection, Peer, Phase};
    use crate::nexus::limits::LINKS_MAX;
    use crate::nexus::media::shm;
    use crate::nexus::reactor::tests::{attach, linked, linked_at, open_connection, reactor, said};
    use crate::nexus::relay::sessions::tests::{accept, open};

    impl Reactor {
        /// A link between the endpoints number 0 of both sides.
        pub(in crate::nexus) fn add_test_link(
            &mut self,
            at: ConnectionId,
            number: u32,
            stage: Stage,
        ) -> LinkId {
            if matches!(stage, Stage::Up { .. }) {
                self.relay.counters().links_up.increment();
            }
            self.relay.add_link((at, number), EndpointId(0), 0, (stage, None))
        }
    }

    /// LINK_OPEN between the endpoints number 0 of both sides, over UDP.
    pub(in crate::nexus) fn link_open(link: u32) -> LinkOpen {
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
                assert!(reactor.early_links.keep_if_early(at, &link_open(6), &mut reactor.relay));
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
            data_ip: None,
        };
        for (stage, is_asked) in [(0, true), (1, false), (2, false), (3, false)] {
            let with_a_link = || {
                let (mut reactor, mailbox) = reactor();
                let _inbox = attach(&mailbox);
                reactor.run_commands();
                let (at, peer) = open_connection(&mut reactor, true);
                let (remote, give_up_at) =
                    (reactor.relay.connections[&at].remote(), reactor.relay.now());
                let request = OpenRequest::of_test(1, remote, give_up_at);
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
                reactor.relay.links[&link].stage(),
                Stage::Up { is_opener: true, max_frame: 1_400 }
            );
            assert_eq!(is_up, is_asked, "with the smaller of both sides' frames");
            let (mut reactor, at, ..) = with_a_link();
            assert!(reactor.on_link_accept(at, &accept(shm, Some([1; 16]))).is_err());
            let (mut reactor, at, link, _peer) = with_a_link();
            let (status, text) = (Status::ResourceExhausted, String::new());
            let refuse = LinkRefuse { link: 5, status, text };
            assert_eq!(reactor.on_link_refuse(at, refuse).is_ok(), is_asked);
            assert_eq!(reactor.relay.links.get(link).is_some(), !is_asked);
            assert_eq!(reactor.relay.counters().snapshot().links_failed, u64::from(is_asked));
        }
    }

    /// Up to the limit and no further: per connection and in all, for openers and acceptors.
    #[test]
    fn links__are_bounded() {
        let (mut reactor, mailbox) = reactor();
        let _inbox = attach(&mailbox);
        reactor.run_commands();
        let (id, now) = (ConnectionId(7), reactor.relay.now());
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let remote = listener.local_addr().unwrap();
        let stream = TcpStream::connect(remote).unwrap();
        let mut connection = Connection::new(stream.into(), (remote, remote), true, now);
        let heartbeat = Duration::from_secs(1);
        connection.enter_test(Phase::Open(Peer::of_test(1, heartbeat)), now);
        reactor.relay.connections.add(id, connection);
        let request = OpenRequest::of_test(1, remote, now);
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
            let connection = reactor.relay.connections.get_mut(id).unwrap();
            connection.links_mut().set_test_links(links);
            assert_eq!(may(&reactor), expected, "{links} of the connection");
        }
        reactor.relay.connections.get_mut(id).unwrap().links_mut().set_test_links(0);
        for (links, expected) in [(LINKS_MAX - 1, Ok(())), (LINKS_MAX, exhausted)] {
            let link = |number: usize| {
                let stage = Stage::Up { is_opener: true, max_frame: 1_472 };
                Link::new((ConnectionId(8), number as u32), EndpointId(0), 0, stage, now)
            };
            let there = reactor.relay.links.len();
            for number in there..links {
                reactor.relay.links.add(link(number));
            }
            assert_eq!(may(&reactor), expected, "{links} in all");
        }
    }

    fn request(reactor: &Reactor, at: ConnectionId, transports: AllowedTransports) -> OpenRequest {
        let (remote, now) = (reactor.relay.connections[&at].remote(), reactor.relay.now());
        OpenRequest::new((EndpointId(0), 1), (remote, EndpointId(0)), (transports, false), now)
    }

    /// An endpoint attached before the peer's request is found without waiting.
    #[test]
    fn on_link_open__finds_an_endpoint_that_has_just_come() {
        let (mut reactor, mailbox) = reactor();
        let (at, _peer) = open_connection(&mut reactor, false);
        let _inbox = attach(&mailbox);
        reactor.on_link_open(at, &link_open(5)).unwrap();
        assert_eq!((reactor.relay.links.len(), reactor.early_links.len()), (1, 0));
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
                reactor.relay.endpoints.get_mut(EndpointId(0)).unwrap().set_test_media(udp);
                let (at, _peer) = open_connection(&mut reactor, is_opener);
                let ecn = own && peers;
                if is_opener {
                    let request = request(&reactor, at, AllowedTransports::UDP);
                    let offers = vec![Offer::Udp { port: 7, max_frame: 1_472 }];
                    reactor.add_test_link(at, 5, Stage::Requested { request, offers, ecn: own });
                    let accept = LinkAccept {
                        link: 5,
                        offer,
                        ticket: None,
                        ecn: peers,
                        features: Default::default(),
                        data_ip: None,
                    };
                    reactor.on_link_accept(at, &accept).unwrap();
                } else {
                    let open = LinkOpen { offers: vec![offer], ecn: peers, ..link_open(5) };
                    reactor.on_link_open(at, &open).unwrap();
                    let sent = said(&mut reactor, at);
                    let [Message::LinkAccept(accept)] = &sent[..] else { panic!("{sent:?}") };
                    assert_eq!((accept.link, accept.ticket, accept.ecn), (5, None, ecn));
                }
                let mut remote = reactor.relay.connections[&at].remote();
                let name = PeerName { address: remote, endpoint: EndpointId(0) };
                remote.set_port(9);
                let Some(FromNexus::LinkUp { request, transport, peer, incarnation, .. }) =
                    inbox.pop()
                else {
                    panic!("the endpoint is not notified")
                };
                assert_eq!((request, incarnation), (is_opener.then_some(1), 7));
                assert_eq!(peer, name);
                let HostLink::Far(MuxLink::Near(udp)) = transport else { panic!("not by UDP") };
                assert_eq!((udp.addr, udp.max_frame, udp.ecn), (remote, Some(1_400), ecn));
                let stats = reactor.relay.counters().snapshot();
                let opened = (stats.links_opened, stats.links_opened_shm, stats.links_opened_ecn);
                assert_eq!((stats.links_up, opened), (1, (1, 0, u64::from(ecn))));
            }
        }
    }

    #[test]
    fn close_link__tells_both_sides() {
        let reason = Reason::new(Status::Aborted, "the test ends it");
        for is_up in [true, false] {
            let stage = match is_up {
                true => Stage::Up { is_opener: false, max_frame: 1_472 },
                false => Stage::Promised { expected: None, max_frame: 1_472 },
            };
            let (mut reactor, inbox, (at, _peer), link) = linked_at(false, stage);
            reactor.close_link(link, &reason);
            let (status, text) = (reason.status, reason.message.clone());
            assert_eq!(said(&mut reactor, at), [LinkClose { link: 5, status, text }.into()]);
            match inbox.pop() {
                Some(FromNexus::LinkDown { link: down, reason: why }) => {
                    assert_eq!((is_up, down, why), (true, link, reason.clone()));
                }
                other => assert!(!is_up && other.is_none(), "{other:?}"),
            }
            assert!((reactor.relay.links.len() == 0) && inbox.pop().is_none());
            assert_eq!(reactor.check_tables(), Ok(()));
        }
    }

    #[test]
    fn give_up_expected_memory__closes_links_that_wait_for_it() {
        let (mut reactor, mailbox) = reactor();
        let _inbox = attach(&mailbox);
        reactor.run_commands();
        let (at, _peer) = open_connection(&mut reactor, false);
        let memory = Expected::new([1; 16], Some(MemoryConfig::default()));
        let stream = Expected::new([2; 16], None);
        for (number, expected) in [(5, Some(memory)), (6, Some(stream)), (7, None)] {
            let stage = Stage::Promised { expected, max_frame: 1_472 };
            let link = reactor.add_test_link(at, number, stage);
            if let Some(expected) = expected {
                reactor.relay.links.expect_ticket(*expected.ticket(), link);
            }
        }
        reactor.give_up_expected_memory();
        let said = said(&mut reactor, at);
        let [Message::LinkClose(close)] = &said[..] else { panic!("{said:?}") };
        assert_eq!((close.link, close.status), (5, Status::ResourceExhausted));
        assert!(close.text.contains("no descriptor left"), "{}", close.text);
        assert_eq!((reactor.relay.links.len(), reactor.relay.links.tickets()), (2, 1));
        assert_eq!(reactor.check_tables(), Ok(()));
    }

    /// Without shared memory the link is requested over UDP, if allowed.
    #[test]
    fn fall_back__closes_the_link_and_asks_without_shared_memory() {
        for udp in [true, false] {
            let (mut reactor, mailbox) = reactor();
            let inbox = attach(&mailbox);
            reactor.run_commands();
            let (at, _peer) = open_connection(&mut reactor, true);
            let request = request(
                &reactor,
                at,
                AllowedTransports { udp, shm: true, stream: false, verbs: false },
            );
            let link = reactor.add_test_link(
                at,
                5,
                Stage::Exchanging { request, kind: shm::KIND, exchange: None },
            );
            reactor.fall_back(link, "no memory");
            assert!(reactor.relay.links.get(link).is_none());
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
            assert_eq!((sent.next(), reactor.relay.links.len()), (None, usize::from(udp)));
            let stats = reactor.relay.counters().snapshot();
            assert_eq!((stats.shm_fallbacks, stats.links_failed), (1, u64::from(!udp)));
            assert_eq!(reactor.check_tables(), Ok(()));
        }
    }

    /// A connection's time without sessions restarts when a link with a session or proposal ends.
    #[test]
    fn forget_link__of_sessions_begins_the_time_without_them() {
        for (opened, proposed, is_anew) in [(0, 0, false), (1, 0, true), (0, 1, true), (1, 1, true)]
        {
            let (mut reactor, _inbox, (at, _peer), id) = linked(false);
            for request in 0..opened + proposed {
                reactor.relay.on_session_open(at, open(5, request)).unwrap();
                if request < opened {
                    reactor.relay.answer_session(
                        EndpointId(0),
                        id,
                        request,
                        Ok(accept(5, request)),
                    );
                }
            }
            let before = reactor.relay.connections[&at].links().quiet_since();
            reactor.relay.begin_turn(reactor.relay.now() + Duration::from_secs(5));
            assert!(reactor.forget_link(id).is_some());
            let connection = &reactor.relay.connections[&at];
            assert_eq!(
                connection.links().quiet_since(),
                if is_anew { reactor.relay.now() } else { before }
            );
            assert_eq!(connection.links().idle_since(), reactor.relay.now());
            assert_eq!(
                (connection.links().session_bytes(), connection.links().proposed_bytes()),
                (0, 0)
            );
            assert_eq!((connection.links().proposals(), reactor.relay.links.proposals()), (0, 0));
            assert_eq!(reactor.check_tables(), Ok(()));
            assert!(reactor.forget_link(id).is_none());
        }
    }
}
