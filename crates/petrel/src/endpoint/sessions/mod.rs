//! The endpoint's links and sessions, apart from the protocol core (`docs/wire-protocol.md` §8.4 to §8.6).

mod control;
mod credit_shares;
mod ended;
mod probes;

use std::any::Any;
use std::collections::{BTreeSet, HashMap};
use std::net::SocketAddr;
use std::sync::Arc;

use petrel_proto::control::{LinkFeatures, SessionOpen};
use petrel_proto::{CallError, SessionId};
use petrel_transport::{PeerId, ReceiveQueue};

pub(super) use control::SessionControl;
pub(super) use ended::Ended;

use super::ids::IdMap;
use super::peer::Peer;
use super::{SessionConfig, SessionEnds};
use crate::control::{AllowedTransports, EndpointId, LinkId, Reason};
use crate::tables::shrink;
use crate::values::{Reverse, SessionEnd};
use credit_shares::CreditShares;
use ended::EndedSessions;
use probes::Probes;

/// The address and number of an endpoint of another process.
pub(super) type Remote = (SocketAddr, EndpointId);

/// The way of client sessions to an endpoint. The links of different callbacks are apart, so that a server calls the client that it serves.
type Way = (Remote, Reverse);

/// The least time between two questions to the control plane whether a server's process lives: thousands of calls may be
/// silent at once.
const CHECK_PAUSE_NS: u64 = 100_000_000;

/// A link that is up.
pub(super) struct Link {
    id: PeerId,
    peer: Arc<Peer>,
    /// The number of the peer's source, for shares.
    source: u64,
    /// Whether both ends know ordered calls.
    knows_order: bool,
    /// Whether both ends have announced source ports.
    has_paths: bool,
    /// Whether both ends may be clients.
    has_reverse: bool,
    /// Whose handlers the peer may call, if this endpoint has opened the link.
    opened_for: Option<Reverse>,
    /// The shortest round trip of the control connection, in nanoseconds.
    path_rtt_ns: Option<u32>,
    /// The link's sessions, in the order in which they end with the link: simulations need a fixed one.
    sessions: BTreeSet<SessionId>,
    /// Whether the link gets no further sessions, and is closed with the last: its server drains, or another link is better.
    is_retired: bool,
    /// Whether a frame has to come back before the first session is used: frames may be lost, and both ends know probes.
    is_to_be_probed: bool,
    /// Whether a session of the link has had a request, at its server.
    is_used: bool,
    /// When the control plane was last asked whether the server's process lives, in nanoseconds.
    checked_ns: u64,
    /// A value of a face, kept until the link ends.
    kept: Option<Box<dyn Any>>,
}

impl Link {
    pub(super) fn new(id: PeerId, peer: Arc<Peer>, source: u64, features: &LinkFeatures) -> Self {
        Self {
            id,
            peer,
            source,
            knows_order: features.order,
            has_paths: !features.paths.is_empty(),
            has_reverse: features.reverse,
            opened_for: None,
            path_rtt_ns: None,
            sessions: BTreeSet::new(),
            is_retired: false,
            is_to_be_probed: features.probe,
            is_used: false,
            checked_ns: 0,
            kept: None,
        }
    }

    /// Returns the value of a face that is kept with the link.
    pub(super) fn kept(&self) -> Option<&dyn Any> {
        self.kept.as_deref()
    }

    /// Returns whether a frame has to come back before a session is used.
    pub(super) fn is_to_be_probed(&self) -> bool {
        self.is_to_be_probed && self.peer.is_networked
    }

    /// Returns whether both ends have announced source ports.
    pub(super) fn has_paths(&self) -> bool {
        self.has_paths
    }

    /// Returns true if the control plane is to be asked now whether the server's process lives.
    fn begin_check(&mut self, now_ns: u64) -> bool {
        let begins = self.checked_ns == 0 || now_ns >= self.checked_ns + CHECK_PAUSE_NS;
        if begins {
            self.checked_ns = now_ns;
        }
        begins
    }

    /// Returns whether both ends know ordered calls.
    pub(super) fn knows_order(&self) -> bool {
        self.knows_order
    }

    /// Returns true if this endpoint may be the client of further sessions on the link.
    pub(super) fn may_be_client(&self) -> bool {
        self.opened_for.is_some() || self.has_reverse
    }

    /// Returns true if the link gets no further sessions.
    pub(super) fn is_retired(&self) -> bool {
        self.is_retired
    }

    /// Returns whose handlers the link was opened for, if this endpoint has opened it.
    pub(super) fn opened_for(&self) -> Option<Reverse> {
        self.opened_for
    }

    /// Returns whose handlers the peer may call: those of the endpoint on a link that the peer has opened.
    pub(super) fn serves(&self) -> Reverse {
        match self.opened_for {
            Some(reverse) if self.has_reverse => reverse,
            Some(_) => Reverse::No,
            None => Reverse::Endpoint,
        }
    }

    /// Returns the transport's name of the peer.
    pub(super) fn id(&self) -> PeerId {
        self.id
    }

    pub(super) fn peer(&self) -> &Arc<Peer> {
        &self.peer
    }

    /// Returns the shortest round trip of the control connection, in nanoseconds.
    pub(super) fn path_rtt_ns(&self) -> Option<u32> {
        self.path_rtt_ns
    }

    /// Returns the sessions, in order.
    pub(super) fn sessions(&self) -> impl Iterator<Item = SessionId> {
        self.sessions.iter().copied()
    }
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

impl Outgoing {
    /// Returns the link, if it is up.
    fn link(&self) -> Option<LinkId> {
        match self {
            Outgoing::Up(name) => Some(*name),
            Outgoing::Opening { .. } => None,
        }
    }
}

/// The way of a new session to its server.
pub(super) enum Route {
    /// The link is being opened.
    Waiting,
    /// The link is up.
    Up(LinkId),
    /// The link is to be requested, by this number, for a server that may call these handlers.
    Request { request: u64, reverse: Reverse },
}

/// A session being opened.
struct Opening {
    first_request: u64,
    /// Whose handlers the server may call.
    reverse: Reverse,
    /// Links on which the session was proposed, and whose end does not count. The first link may have led to a process already gone when
    /// the session was requested, unnoticed locally. The end of the link then says nothing about the current process. The next link is
    /// requested after the session, and its end counts.
    tries_left: u8,
}

/// The endpoint's links and sessions, apart from the protocol core.
pub(super) struct Sessions {
    config: SessionConfig,
    transports: AllowedTransports,
    links: IdMap<LinkId, Link>,
    outgoing: HashMap<Way, Outgoing>,
    /// Link of every proposed or open session.
    link_of: IdMap<SessionId, LinkId>,
    /// Sessions proposed to the peer, by the proposal's number. A session closed here meanwhile stays, to let an
    /// acceptance be revoked.
    proposed: HashMap<u32, (SessionId, LinkId)>,
    /// Client sessions that are not open yet.
    openings: HashMap<SessionId, Opening>,
    ended: EndedSessions,
    /// The credits of sessions over the network.
    shares: CreditShares,
    probes: Probes,
    next_request: u64,
}

impl Sessions {
    /// Creates an endpoint's sessions. `receive_queue` has the number of packets that wait for the endpoint at most.
    pub(super) fn new(
        config: SessionConfig,
        transports: AllowedTransports,
        receive_queue: Option<ReceiveQueue>,
    ) -> Self {
        Self {
            config,
            transports,
            links: IdMap::default(),
            outgoing: HashMap::new(),
            link_of: IdMap::default(),
            proposed: HashMap::new(),
            openings: HashMap::new(),
            ended: EndedSessions::default(),
            shares: CreditShares::new(receive_queue),
            probes: Probes::default(),
            next_request: 1,
        }
    }

    /// Returns the link of a proposed or open session.
    pub(super) fn link_of(&self, id: SessionId) -> Option<LinkId> {
        self.link_of.get(&id).copied()
    }

    /// Returns a link that is up.
    pub(super) fn link(&self, link: LinkId) -> Option<&Link> {
        self.links.get(&link)
    }

    /// Returns the names of the links to a peer of the transport.
    pub(super) fn links_to(&self, peer: PeerId) -> impl Iterator<Item = LinkId> {
        self.links.iter().filter(move |(_, link)| link.id() == peer).map(|(link, _)| *link)
    }

    /// Returns the link of a session whose server's process is to be checked.
    pub(super) fn link_to_check(&mut self, id: SessionId, now_ns: u64) -> Option<LinkId> {
        let link = self.link_of(id)?;
        self.links.get_mut(&link)?.begin_check(now_ns).then_some(link)
    }

    /// Returns the link of a session with a first request, if the request is the link's first, too.
    pub(super) fn link_first_used(&mut self, id: SessionId) -> Option<LinkId> {
        let name = self.link_of(id)?;
        let link = self.links.get_mut(&name)?;
        (!std::mem::replace(&mut link.is_used, true)).then_some(name)
    }

    /// Returns the link of a proposed or open session, if it is up.
    pub(super) fn link_with(&self, id: SessionId) -> Option<&Link> {
        self.links.get(self.link_of.get(&id)?)
    }

    /// Returns the peer of a proposed or open session.
    pub(super) fn peer_of(&self, id: SessionId) -> Option<&Arc<Peer>> {
        Some(&self.link_with(id)?.peer)
    }

    pub(super) fn config(&self) -> &SessionConfig {
        &self.config
    }

    pub(super) fn transports(&self) -> AllowedTransports {
        self.transports
    }

    /// Returns the sessions that wait until frames get through.
    #[inline]
    fn probes(&mut self) -> &mut Probes {
        &mut self.probes
    }

    /// Returns true if sessions wait until frames get through.
    #[inline]
    pub(super) fn are_probed(&self) -> bool {
        !self.probes.is_empty()
    }

    /// Returns when the next probe is due.
    pub(super) fn next_probe_ns(&self) -> Option<u64> {
        self.probes.next_ns()
    }

    /// Notes that a link carries frames.
    pub(super) fn set_carries(&mut self, name: LinkId) {
        if let Some(link) = self.links.get_mut(&name) {
            link.is_to_be_probed = false;
        }
    }

    /// Returns the numbers of sessions being opened, of sessions on a link, and of links being opened.
    pub(super) fn object_counts(&self) -> (usize, usize, usize) {
        let opening = self.proposed.len() + self.openings.len() + self.probes.len();
        let is_dialled = |outgoing: &&Outgoing| matches!(outgoing, Outgoing::Opening { .. });
        let dialled = self.outgoing.values().filter(is_dialled).count();
        (opening, self.link_of.len(), dialled)
    }

    fn next_request(&mut self) -> u64 {
        self.next_request += 1;
        self.next_request - 1
    }

    /// Records an ended session.
    pub(super) fn record_end(&mut self, ended: Ended) {
        assert!(
            !self.link_of.contains_key(ended.id()),
            "a session leaves its link before its end is recorded"
        );
        self.ended.record(ended);
    }

    /// Returns how and why a session ended, if recently.
    pub(super) fn end_of(&self, id: SessionId) -> Option<(SessionEnd, &Reason)> {
        self.ended.get(id).map(Ended::how_and_why)
    }

    /// Returns the text for a rejected call: for an ended session, the reason of its end.
    pub(super) fn explain(&self, id: SessionId, error: &CallError) -> String {
        match self.end_of(id).filter(|_| matches!(error, CallError::SessionClosed)) {
            Some((_, reason)) => format!("{error}; it ended because: {}", reason.message),
            None => error.to_string(),
        }
    }

    /// Returns how many sessions ended in each way.
    pub(super) fn ends(&self) -> SessionEnds {
        self.ended.counts()
    }

    /// Adds a client session, whose server may call the handlers named by `reverse`.
    pub(super) fn begin_open(&mut self, id: SessionId, first_request: u64, reverse: Reverse) {
        let before = self.openings.insert(id, Opening { first_request, reverse, tries_left: 1 });
        assert!(before.is_none(), "a session is opened once");
    }

    /// Stops opening further sessions over a medium that stands in for `medium`, so that the next link tries again. Returns the links, in
    /// order.
    pub(super) fn leave_fallback(&mut self, remote: Remote, medium: &str) -> Vec<LinkId> {
        let stands_in = |link: &Link| match link.peer.medium {
            "stream" => true,
            "udp" => medium == "verbs",
            _ => false,
        };
        let links = &self.links;
        let is_left = |way: &Way, outgoing: &mut Outgoing| match outgoing {
            Outgoing::Up(name) => way.0 == remote && links.get(name).is_some_and(stands_in),
            Outgoing::Opening { .. } => false,
        };
        let left = self.outgoing.extract_if(is_left);
        let mut left: Vec<_> = left.filter_map(|(_, outgoing)| outgoing.link()).collect();
        left.sort_unstable();
        for name in &left {
            self.links.get_mut(name).expect("a link that is up").is_retired = true;
        }
        left
    }

    /// Returns the way of a session to its server. The session waits there, unless the link is up.
    pub(super) fn route(&mut self, remote: Remote, id: SessionId) -> Route {
        let reverse = self.openings.get(&id).expect("a session that is opened has a way").reverse;
        match self.outgoing.get_mut(&(remote, reverse)) {
            Some(Outgoing::Opening { waiting, .. }) => {
                waiting.push(id);
                Route::Waiting
            }
            Some(Outgoing::Up(link)) => Route::Up(*link),
            None => {
                let request = self.next_request();
                let outgoing = Outgoing::Opening { request, waiting: vec![id] };
                self.outgoing.insert((remote, reverse), outgoing);
                Route::Request { request, reverse }
            }
        }
    }

    /// Adds a link that is up. Returns the sessions that wait for it.
    pub(super) fn add_link(
        &mut self,
        name: LinkId,
        mut link: Link,
        request: Option<u64>,
    ) -> Vec<SessionId> {
        let opening = request.and_then(|request| self.take_opening(request));
        link.opened_for = opening.as_ref().map(|((_, reverse), _)| *reverse);
        let before = self.links.insert(name, link);
        assert!(before.is_none(), "the control plane never uses the name of a link again");
        let Some((way, waiting)) = opening else { return Vec::new() };
        self.outgoing.insert(way, Outgoing::Up(name));
        waiting
    }

    /// Ends a request for a link. Returns the link's remote endpoint, and the sessions that wait for the link.
    pub(super) fn fail_link(&mut self, request: u64) -> Option<(Remote, Vec<SessionId>)> {
        self.take_opening(request).map(|((remote, _), waiting)| (remote, waiting))
    }

    /// Removes a link that is down. Returns the link with the remote endpoint if this endpoint requested the link.
    pub(super) fn remove_link(&mut self, name: LinkId) -> Option<(Link, Option<Remote>)> {
        let link = self.links.remove(&name)?;
        assert!(
            link.sessions.iter().all(|id| self.link_of.get(id) == Some(&name)),
            "a link and its sessions name each other"
        );
        self.proposed.retain(|_, (_, on)| *on != name);
        Some((link, self.take_up(name).map(|(remote, _)| remote)))
    }

    /// Sets the round trip of a link's control connection.
    pub(super) fn set_path_rtt(&mut self, name: LinkId, rtt_ns: u32) {
        if let Some(link) = self.links.get_mut(&name) {
            link.path_rtt_ns = Some(rtt_ns);
        }
    }

    /// Puts a client session on a link that is up, and returns the proposal to the peer, if the session is still
    /// wanted. The session has credits ([`Sessions::credits_on`]). Full packets there have up to `packet_bytes` of payload.
    pub(super) fn propose(
        &mut self,
        name: LinkId,
        id: SessionId,
        token: u32,
        packet_bytes: u32,
    ) -> Option<SessionOpen> {
        let first_request = self.openings.get(&id)?.first_request;
        let credits = self.credits_on(name);
        self.put_on_link(id, name);
        self.draw_credits(id, credits);
        let request = self.next_request() as u32;
        let before = self.proposed.insert(request, (id, name));
        assert!(before.is_none(), "a proposal has a number of its own");
        Some(SessionOpen {
            link: 0,
            request,
            session: id.index,
            token,
            first_request,
            slots: self.config.slots,
            credits,
            max_message: self.config.message_bytes_max,
            packet_bytes,
        })
    }

    /// Returns the most credits of one more session on a link; 0 if the receive ring has no room for the session.
    pub(super) fn credits_on(&mut self, name: LinkId) -> u16 {
        self.credits_by(name, |shares, _, wanted| shares.offer(wanted))
    }

    /// Like [`Sessions::credits_on`], for a session of the peer's, whose source has a share of the ring.
    pub(super) fn credits_for(&mut self, name: LinkId) -> u16 {
        self.credits_by(name, CreditShares::offer_to)
    }

    fn credits_by(
        &mut self,
        name: LinkId,
        offer: impl FnOnce(&mut CreditShares, u64, u16) -> u16,
    ) -> u16 {
        let link = self.links.get(&name);
        let credits = match link.is_some_and(Link::has_paths) {
            true => self.config.path_credits,
            false => self.config.credits,
        };
        match link.filter(|link| link.peer.is_networked) {
            Some(link) => offer(&mut self.shares, link.source, credits),
            None => credits,
        }
    }

    /// Records the credits that were agreed on for a session that is on a link, or are proposed. Returns the credits that
    /// the session has.
    pub(super) fn draw_credits(&mut self, id: SessionId, credits: u16) -> u16 {
        let link = self.link_with(id).filter(|link| link.peer.is_networked);
        match link.map(|link| link.source) {
            Some(source) => self.shares.draw(id, source, credits),
            None => credits,
        }
    }

    /// Adds a session to a link that is up.
    pub(super) fn put_on_link(&mut self, id: SessionId, name: LinkId) {
        let link = self.links.get_mut(&name).expect("a session is put on a link that is up");
        assert!(!link.is_retired, "a link that is being left gets no further session: {name:?}");
        assert!(link.sessions.insert(id), "a session is put on its link once");
        let before = self.link_of.insert(id, name);
        assert!(before.is_none(), "a session is on one link");
    }

    /// Removes a proposal that the peer has answered, and returns the session.
    pub(super) fn take_proposal(&mut self, request: u32) -> Option<SessionId> {
        self.proposed.remove(&request).map(|(id, _)| id)
    }

    /// Records that a client session is open.
    pub(super) fn finish_open(&mut self, id: SessionId) {
        let opening = self.openings.remove(&id);
        assert!(opening.is_some(), "a session that opens was being opened");
        assert!(self.link_of.contains_key(&id), "a session opens on a link");
    }

    /// Stops opening further sessions over the link of session `id`.
    pub(super) fn retire_link_of(&mut self, id: SessionId) {
        if let Some(name) = self.link_of(id) {
            self.retire_link(name);
        }
    }

    /// Stops opening further sessions over a link.
    pub(super) fn retire_link(&mut self, name: LinkId) {
        if self.take_up(name).is_some()
            && let Some(link) = self.links.get_mut(&name)
        {
            assert!(!link.is_retired, "a link is left once: {name:?}");
            link.is_retired = true;
        }
    }

    /// Keeps a value of a face until a link ends.
    pub(super) fn keep_with(&mut self, name: LinkId, value: Box<dyn Any>) {
        if let Some(link) = self.links.get_mut(&name) {
            assert!(link.kept.is_none(), "a link keeps one value: {name:?}");
            link.kept = Some(value);
        }
    }

    /// Returns the links that were opened for some handlers, in order.
    pub(super) fn opened_for(&self, reverse: Reverse) -> Vec<LinkId> {
        let opened = self.links.iter().filter(|(_, link)| link.opened_for == Some(reverse));
        let mut opened: Vec<_> = opened.map(|(name, _)| *name).collect();
        opened.sort_unstable();
        opened
    }

    /// Returns true if a link gets no further sessions, and has none.
    pub(super) fn is_over(&self, name: LinkId) -> bool {
        self.links.get(&name).is_some_and(|link| link.is_retired && link.sessions.is_empty())
    }

    /// Removes an ended session, and returns its link.
    pub(super) fn remove(&mut self, id: SessionId) -> Option<LinkId> {
        self.probes.take(id);
        self.openings.remove(&id);
        self.shares.give_back(id);
        let name = self.link_of.remove(&id)?;
        shrink(&mut self.link_of);
        if let Some(link) = self.links.get_mut(&name) {
            assert!(link.sessions.remove(&id), "a link has the sessions that are on it");
        }
        Some(name)
    }

    /// Removes an outgoing link being opened, by its request.
    fn take_opening(&mut self, wanted: u64) -> Option<(Way, Vec<SessionId>)> {
        let is_wanted = |outgoing: &Outgoing| matches!(outgoing, Outgoing::Opening { request, .. } if *request == wanted);
        let way = *self.outgoing.iter().find(|(_, outgoing)| is_wanted(outgoing))?.0;
        match self.outgoing.remove(&way)? {
            Outgoing::Opening { waiting, .. } => Some((way, waiting)),
            Outgoing::Up(_) => None,
        }
    }

    /// Removes an outgoing link that was up, and returns its way.
    fn take_up(&mut self, link: LinkId) -> Option<Way> {
        let is_it = |outgoing: &Outgoing| outgoing.link() == Some(link);
        let way = *self.outgoing.iter().find(|(_, outgoing)| is_it(outgoing))?.0;
        self.outgoing.remove(&way);
        Some(way)
    }

    /// Returns true, mostly once, if a session is to be proposed on another link after the end of its link: the peer has not
    /// accepted it, and none of its requests was sent.
    pub(super) fn take_second_try(&mut self, id: SessionId) -> bool {
        let Some(opening) = self.openings.get_mut(&id) else { return false };
        self.probes.take(id);
        let left = self.link_of.remove(&id);
        assert!(
            left.is_none_or(|link| !self.links.contains_key(&link)),
            "a session is proposed a second time when its link is down"
        );
        self.shares.give_back(id);
        let may_try = opening.tries_left > 0;
        opening.tries_left -= u8::from(may_try);
        may_try
    }

    /// Has the next end of a session's link not count: its medium may be the wrong one, and so may the next.
    pub(super) fn allow_another_try(&mut self, id: SessionId) {
        if let Some(opening) = self.openings.get_mut(&id) {
            opening.tries_left = opening.tries_left.saturating_add(1);
        }
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::endpoint::EndpointConfig;
    use crate::tables::TABLE_ROOM_MIN;

    fn sessions() -> Sessions {
        let transports = AllowedTransports::ALL;
        Sessions::new(
            EndpointConfig::default().sessions,
            transports,
            Some(ReceiveQueue::Buffer(300)),
        )
    }

    fn id(index: u32) -> SessionId {
        SessionId { index, generation: 0 }
    }

    fn link() -> Link {
        let name = crate::control::PeerName {
            address: SocketAddr::from(([127, 0, 0, 1], 5)),
            endpoint: EndpointId(0),
        };
        Link::new(
            PeerId(7),
            Arc::new(Peer {
                name,
                incarnation: 1,
                is_networked: true,
                medium: "udp",
                process: None,
                identity: None,
            }),
            0,
            &LinkFeatures::NONE,
        )
    }

    #[test]
    fn propose__the_credits_of_many_sessions_stay_within_the_receive_queue() {
        let mut sessions = sessions();
        sessions.add_link(LinkId(4), link(), None);
        let propose = |sessions: &mut Sessions, index| {
            sessions.begin_open(id(index), 0, Reverse::No);
            sessions.propose(LinkId(4), id(index), 7, 1408).expect("a proposal").credits
        };
        let credits: Vec<u16> = (0..8).map(|index| propose(&mut sessions, index)).collect();
        assert_eq!(credits, [64, 64, 64, 54, 27, 16, 16, 16]);
        for index in 0..8 {
            assert_eq!(sessions.remove(id(index)), Some(LinkId(4)));
        }
        assert_eq!(propose(&mut sessions, 9), 64, "ended sessions have given theirs back");
    }

    /// The table of links shrinks with the sessions to its minimum.
    #[test]
    fn remove__gives_the_memory_of_many_sessions_back() {
        let mut sessions = sessions();
        let ids = (0..20_000).map(id);
        sessions.link_of.extend(ids.clone().map(|id| (id, LinkId(4))));
        for id in ids {
            assert_eq!(sessions.remove(id), Some(LinkId(4)));
            assert_eq!(sessions.remove(id), None);
            let (len, capacity) = (sessions.link_of.len(), sessions.link_of.capacity());
            assert!(capacity <= 2 * TABLE_ROOM_MIN || capacity / 8 <= len, "{capacity} for {len}");
        }
    }

    panics! {
        add_link__with_the_name_of_another: "never uses the name of a link again" => {
            let mut sessions = sessions();
            assert!(sessions.add_link(LinkId(4), link(), None).is_empty());
            sessions.add_link(LinkId(4), link(), None);
        };
        put_on_link__of_a_session_on_another: "a session is on one link" => {
            let mut sessions = sessions();
            for name in [LinkId(4), LinkId(5)] {
                sessions.add_link(name, link(), None);
                sessions.put_on_link(id(1), name);
            }
        };
        record_end__of_a_session_on_a_link: "leaves its link before its end is recorded" => {
            let mut sessions = sessions();
            sessions.add_link(LinkId(4), link(), None);
            sessions.put_on_link(id(1), LinkId(4));
            let reason = Reason::new(petrel_proto::Status::Unavailable, "gone");
            sessions.record_end(Ended::new(id(1), SessionEnd::Invalid, reason));
        };
        finish_open__of_a_session_that_is_open: "a session that opens was being opened"
            => sessions().finish_open(id(1));
        take_second_try__on_a_link_that_is_up:
            "a session is proposed a second time when its link is down" => {
            let mut sessions = sessions();
            sessions.add_link(LinkId(4), link(), None);
            sessions.begin_open(id(0), 0, Reverse::No);
            sessions.propose(LinkId(4), id(0), 7, 1408).expect("a proposal");
            sessions.take_second_try(id(0));
        };
        remove_link__with_a_session_that_is_elsewhere:
            "a link and its sessions name each other" => {
            let mut sessions = sessions();
            sessions.add_link(LinkId(4), link(), None);
            sessions.put_on_link(id(0), LinkId(4));
            sessions.link_of.insert(id(0), LinkId(5));
            sessions.remove_link(LinkId(4));
        };
    }
}
