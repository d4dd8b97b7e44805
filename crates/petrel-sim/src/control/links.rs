//! Links: agreements of two endpoints to exchange packets (`docs/wire-protocol.md` §8.4).

use std::collections::BTreeMap;
use std::net::{IpAddr, SocketAddr};

use petrel::endpoint::{EndpointId, Reason};
use petrel::unstable::control::{FromNexus, LinkId, PeerName};
use petrel_proto::Status;
use petrel_proto::control::{
    LinkAccept, LinkClose, LinkFeatures, LinkOpen, LinkRefuse, Offer, PathPorts, SessionOpen,
};

use super::ControlNetwork;
use super::connection::ConnectionId;
use super::network::{EndpointKey, Event, Network, Side, unavailable};
use crate::fabric::{HostId, SimAddr};
use crate::ring::{DataLink, RingLink, SealedPath};
use crate::rng::Rng;

#[derive(Debug)]
pub(super) struct Link {
    pub(super) connection: ConnectionId,
    /// Its number on this connection.
    pub(super) number: u32,
    pub(super) endpoint: EndpointId,
    pub(super) stage: Stage,
    /// Proposed and unanswered sessions, by the side and number of their client.
    pub(super) proposals: BTreeMap<ProposalName, SessionOpen>,
    /// Whether both endpoints may be clients.
    pub(super) has_reverse: bool,
    /// The data path to the peer, once the link is up.
    pub(super) transport: Option<DataLink>,
    /// The further source ports of this end and of the peer, if the link has several paths.
    pub(super) ports: [PathPorts; 2],
}

/// The links of a process, by the process's own name and by the number that both ends use.
#[derive(Debug, Default)]
pub(super) struct Links {
    by_id: BTreeMap<LinkId, Link>,
    by_number: BTreeMap<(ConnectionId, u32), LinkId>,
}

impl Links {
    fn insert(&mut self, id: LinkId, link: Link) {
        self.by_number.insert((link.connection, link.number), id);
        self.by_id.insert(id, link);
    }

    pub(super) fn remove(&mut self, id: LinkId) -> Option<Link> {
        let link = self.by_id.remove(&id)?;
        let name = (link.connection, link.number);
        // If a peer uses a number twice, the entry names the newer link.
        if self.by_number.get(&name) == Some(&id) {
            self.by_number.remove(&name);
        }
        Some(link)
    }

    pub(super) fn get(&self, id: LinkId) -> Option<&Link> {
        self.by_id.get(&id)
    }

    pub(super) fn get_mut(&mut self, id: LinkId) -> Option<&mut Link> {
        self.by_id.get_mut(&id)
    }

    fn named(&self, connection: ConnectionId, number: u32) -> Option<LinkId> {
        self.by_number.get(&(connection, number)).copied()
    }

    /// Returns the links that satisfy a condition, oldest first.
    pub(super) fn select(&self, holds: impl Fn(&Link) -> bool) -> Vec<LinkId> {
        self.by_id.iter().filter(|(_, link)| holds(link)).map(|(&id, _)| id).collect()
    }

    /// Returns the links of a connection, in the order of their numbers.
    fn on(&self, connection: ConnectionId) -> Vec<LinkId> {
        let all = (connection, 0)..=(connection, u32::MAX);
        self.by_number.range(all).map(|(_, &id)| id).collect()
    }
}

/// The side that proposes a session, and its number.
pub(super) type ProposalName = (Side, u32);

#[derive(Debug)]
pub(super) enum Stage {
    /// Requested by this end.
    Opening {
        request: u64,
        open: LinkOpen,
        is_sent: bool,
    },
    Up,
}

/// Returns the features that both sides have, with the peer's ports.
fn agreed(own: LinkFeatures, peers: LinkFeatures) -> LinkFeatures {
    let paths = if own.paths.is_empty() { PathPorts::NONE } else { peers.paths };
    LinkFeatures {
        paths,
        order: own.order && peers.order,
        probe: own.probe && peers.probe,
        reverse: own.reverse && peers.reverse,
        key_path: None,
    }
}

/// Returns the further source ports of this side and of the peer, if a link has several paths.
fn used_ports(transport: &DataLink, own: LinkFeatures, peers: LinkFeatures) -> [PathPorts; 2] {
    let is_one_path = own.paths.is_empty() || peers.paths.is_empty();
    if is_one_path || !matches!(transport, DataLink::Packets(_)) {
        return [PathPorts::NONE; 2];
    }
    [own.paths, peers.paths]
}

impl Network {
    pub(super) fn open_link(
        &mut self,
        from: EndpointKey,
        request: u64,
        (remote, to): (SocketAddr, EndpointId),
        reverse: bool,
    ) {
        let (host, endpoint) = (from.host, from.endpoint);
        let Some(remote) = self.host_of(remote) else {
            let reason = unavailable("no process listens there");
            return self.tell(host, endpoint, FromNexus::LinkFailed { request, reason });
        };
        let connection = self.connect(host, remote);
        let id = self.next_link();
        let key_path = self.new_key_path((host, endpoint));
        let Some(local) = self.process(host).endpoints.get(&endpoint) else { return };
        let open = LinkOpen {
            link: id.0 as u32,
            from_endpoint: endpoint.0,
            to_endpoint: to.0,
            offers: vec![Offer::Udp { port: local.data.port, max_frame: local.max_frame }],
            // Simulated transports get their ECN setting at construction.
            ecn: false,
            features: LinkFeatures {
                paths: local.asked_paths(),
                order: true,
                reverse,
                key_path,
                ..LinkFeatures::NONE
            },
        };
        let stage = Stage::Opening { request, open, is_sent: false };
        let proposals = BTreeMap::new();
        let number = id.0 as u32;
        let ports = [PathPorts::NONE; 2];
        let (transport, has_reverse) = (None, false);
        let link =
            Link { connection, number, endpoint, stage, proposals, has_reverse, transport, ports };
        self.process(host).links.insert(id, link);
        self.schedule(self.now_ns() + 2 * self.config.step_timeout_ns, Event::LinkDue(host, id));
        if self.has_greeted(connection, 0) {
            self.send_link_opens(connection);
        }
    }

    fn host_of(&self, address: SocketAddr) -> Option<HostId> {
        let IpAddr::V4(ip) = address.ip() else { return None };
        let [_, _, high, low] = ip.octets();
        let host = HostId(u16::from_be_bytes([high, low]));
        (usize::from(host.0) < self.processes.len()).then_some(host)
    }

    fn next_link(&mut self) -> LinkId {
        self.link_count += 1;
        LinkId(self.link_count)
    }

    /// Sends requests for the waiting links, now that the peer is known.
    pub(super) fn send_link_opens(&mut self, id: ConnectionId) {
        let host = self.host_at(id, 0);
        for link in self.process(host).links.on(id) {
            let Some(link) = self.process(host).links.get_mut(link) else { continue };
            if let Stage::Opening { open, is_sent, .. } = &mut link.stage
                && !std::mem::replace(is_sent, true)
            {
                let open = open.clone();
                self.send(id, 0, open);
            }
        }
    }

    /// Returns the host of a side of an existing connection.
    pub(super) fn host_at(&self, id: ConnectionId, side: Side) -> HostId {
        self.connections[&id].ends[side].host
    }

    /// Handles a peer's request for a link.
    pub(super) fn on_link_open(&mut self, id: ConnectionId, open: &LinkOpen) {
        let (host, opener) = (self.host_at(id, 1), self.host_at(id, 0));
        let endpoint = EndpointId(open.to_endpoint);
        let offer = open.offers.iter().find_map(|offer| match *offer {
            Offer::Udp { port, .. } => Some(port),
            _ => None,
        });
        let local = self.process(host).endpoints.get(&endpoint);
        let (Some(port), Some(local)) = (offer, local) else {
            let (status, text) = (Status::Unavailable, "the endpoint does not exist".to_owned());
            return self.send(id, 1, LinkRefuse { link: open.link, status, text });
        };
        let offer = Offer::Udp { port: local.data.port, max_frame: local.max_frame };
        // An acceptor announces ports only if the opener did.
        let paths = if open.features.paths.is_empty() { PathPorts::NONE } else { local.paths };
        let key_path = open.features.key_path.and_then(|_| self.new_key_path((host, endpoint)));
        let features = LinkFeatures { paths, key_path, ..open.features };
        let link = self.next_link();
        let (connection, number, proposals) = (id, open.link, BTreeMap::new());
        let key_paths = (key_path, open.features.key_path);
        let data_link =
            self.data_link((id, number, 1), host, SimAddr::new(opener, port), key_paths);
        let ports = used_ports(&data_link, features, open.features);
        let (stage, transport) = (Stage::Up, Some(data_link));
        let has_reverse = features.reverse;
        let entry =
            Link { connection, number, endpoint, stage, proposals, has_reverse, transport, ports };
        self.process(host).links.insert(link, entry);
        self.send(
            id,
            1,
            LinkAccept { link: number, offer, ticket: None, ecn: false, features, data_ip: None },
        );
        let agreed = agreed(features, open.features);
        self.tell_up((id, 1), (host, endpoint), (None, link), data_link, agreed);
    }

    /// Handles a peer's acceptance of a link.
    pub(super) fn on_link_accept(&mut self, id: ConnectionId, accept: &LinkAccept) {
        let (host, acceptor) = (self.host_at(id, 0), self.host_at(id, 1));
        let Some(link_id) = self.find_link(id, 0, accept.link) else {
            let (status, text) = (Status::Cancelled, "nobody waits for the link".to_owned());
            return self.send(id, 0, LinkClose { link: accept.link, status, text });
        };
        let Offer::Udp { port, .. } = accept.offer else { return };
        let peer = SimAddr::new(acceptor, port);
        let Some(link) = self.process(host).links.get(link_id) else { return };
        let Stage::Opening { request, open: LinkOpen { features: own, .. }, .. } = &link.stage
        else {
            return self.report(format!("a link was accepted twice: {accept:?}"));
        };
        let (request, own, peers) = (*request, *own, accept.features);
        let key_paths = (own.key_path, peers.key_path);
        let transport = self.data_link((id, accept.link, 0), host, peer, key_paths);
        let Some(link) = self.process(host).links.get_mut(link_id) else { return };
        let agreed = agreed(own, peers);
        link.ports = used_ports(&transport, own, peers);
        (link.stage, link.transport) = (Stage::Up, Some(transport));
        link.has_reverse = agreed.reverse;
        let endpoint = link.endpoint;
        self.tell_up((id, 0), (host, endpoint), (Some(request), link_id), transport, agreed);
    }

    /// Returns the next number for a sealed link, if the endpoint seals. As in production, a process begins with 0.
    fn new_key_path(&mut self, (host, endpoint): (HostId, EndpointId)) -> Option<u32> {
        let process = self.process(host);
        process.endpoints.get(&endpoint).filter(|local| local.seals)?;
        process.key_paths += 1;
        Some(process.key_paths - 1)
    }

    /// Returns the data path of a link from `here` to the peer. Both ends compute the same path. The link is sealed if both ends
    /// have a number for the link, their own and the peer's.
    fn data_link(
        &mut self,
        (ConnectionId(connection), number, side): (ConnectionId, u32, Side),
        here: HostId,
        peer: SimAddr,
        key_paths: (Option<u32>, Option<u32>),
    ) -> DataLink {
        let machine = |HostId(host): HostId| host / 2;
        let name = u64::from(connection) << 32 | u64::from(number);
        if let Some(seed) = self.memory_seed
            && machine(here) == machine(peer.host)
            && let ring @ DataLink::Ring(_) = RingLink::draw(peer, seed.wrapping_add(name))
        {
            return ring;
        }
        let ((Some(own), Some(peers)), Some((seed, epoch_bits))) = (key_paths, self.sealing) else {
            return DataLink::Packets(peer);
        };
        self.stats.links_sealed += 1;
        let secret = Rng::new(seed.wrapping_add(name)).next_u64();
        let (paths, is_opener) = ([own, peers], side == 0);
        DataLink::Sealed(SealedPath { peer, paths, secret, is_opener, epoch_bits })
    }

    /// Reports a link that is up to an endpoint, and the round trip if the endpoint has asked for the link.
    fn tell_up(
        &mut self,
        (connection, side): (ConnectionId, Side),
        (host, endpoint): (HostId, EndpointId),
        (request, link): (Option<u64>, LinkId),
        transport: DataLink,
        mut features: LinkFeatures,
    ) {
        self.stats.links_up += 1;
        let incarnation = self.connections[&connection].ends[side].peer.unwrap_or(0);
        let SimAddr { host: at, port } = transport.peer();
        let peer = PeerName { address: ControlNetwork::address_of(at), endpoint: EndpointId(port) };
        if !matches!(transport, DataLink::Packets(_)) {
            features.paths = PathPorts::NONE;
        }
        let up = FromNexus::LinkUp {
            request,
            link,
            transport,
            peer,
            incarnation,
            identity: None,
            features,
        };
        self.tell(host, endpoint, up);
        if request.is_some() || features.reverse {
            let rtt_ns = self.connections[&connection].path_rtt_ns;
            self.tell(host, endpoint, FromNexus::PathMeasured { link, rtt_ns });
        }
    }

    /// Reports the round trip of a connection to the endpoints that opened its links.
    pub(super) fn tell_path(&mut self, id: ConnectionId) {
        let (host, rtt_ns) = (self.host_at(id, 0), self.connections[&id].path_rtt_ns);
        for link in self.process(host).links.on(id) {
            let Some(entry) = self.process(host).links.get(link) else { continue };
            if matches!(entry.stage, Stage::Up) {
                let endpoint = entry.endpoint;
                self.tell(host, endpoint, FromNexus::PathMeasured { link, rtt_ns });
            }
        }
    }

    pub(super) fn on_link_refuse(&mut self, id: ConnectionId, refuse: LinkRefuse) {
        let reason = Reason::new(refuse.status, refuse.text);
        self.end_link(id, 0, refuse.link, reason);
    }

    pub(super) fn on_link_close(&mut self, id: ConnectionId, side: Side, close: LinkClose) {
        self.end_link(id, side, close.link, Reason::new(close.status, close.text));
    }

    fn end_link(&mut self, id: ConnectionId, side: Side, number: u32, reason: Reason) {
        let host = self.host_at(id, side);
        let Some(link_id) = self.find_link(id, side, number) else { return };
        let Some(link) = self.process(host).links.remove(link_id) else { return };
        let message = match link.stage {
            Stage::Opening { request, .. } => FromNexus::LinkFailed { request, reason },
            Stage::Up => FromNexus::LinkDown { link: link_id, reason },
        };
        self.tell(host, link.endpoint, message);
    }

    /// Closes a link for an endpoint of this process.
    pub(super) fn close_link(&mut self, host: HostId, id: LinkId, reason: Reason) {
        let Some(link) = self.process(host).links.remove(id) else { return };
        if let Some(side) = self.side_of(host, link.connection) {
            let text = reason.message.clone();
            let close = LinkClose { link: link.number, status: reason.status, text };
            self.send(link.connection, side, close);
        }
        // The endpoint may still wait for an answer over the link.
        if let Stage::Up = link.stage {
            self.tell(host, link.endpoint, FromNexus::LinkDown { link: id, reason });
        }
    }

    pub(super) fn on_link_due(&mut self, host: HostId, id: LinkId) {
        let links = &mut self.process(host).links;
        let Some(Link { stage: Stage::Opening { request, .. }, endpoint, .. }) = links.get(id)
        else {
            return;
        };
        let (request, endpoint) = (*request, *endpoint);
        links.remove(id);
        self.stats.links_failed += 1;
        let reason = unavailable("the peer did not answer in time");
        self.tell(host, endpoint, FromNexus::LinkFailed { request, reason });
    }

    /// Returns this side's name of the link with a number on a connection.
    pub(super) fn find_link(&self, id: ConnectionId, side: Side, number: u32) -> Option<LinkId> {
        let process = &self.processes[usize::from(self.host_at(id, side).0)];
        process.links.named(id, number)
    }

    /// Returns the side of a connection on which a host is. No host is connected to itself.
    pub(super) fn side_of(&self, host: HostId, id: ConnectionId) -> Option<Side> {
        let connection = self.connections.get(&id)?;
        connection.ends.iter().position(|end| end.host == host)
    }
}
