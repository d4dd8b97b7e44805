//! The connections, the lists of them, and the share of each source.

use std::collections::{BTreeSet, HashMap};
use std::ops::Index;
use std::time::{Duration, Instant};

use petrel_planted::planted;
use petrel_proto::Status;
use petrel_proto::control::{Message, OutOfRange};

use super::connection::{Connection, Idle};
use super::due::DueAction;
use super::idle_connections::IdleConnections;
use super::ids::ConnectionId;
use super::limits::{
    Capacity, PROPOSALS_PER_CONNECTION_MAX, REVERSE_SESSION_BYTES_PER_CONNECTION_MAX,
    session_bytes, slots_left,
};
use super::link::{Link, Proposal};
use super::net::Network;
use super::usage::{Exhausted, UsageTable};
use crate::control::{EndpointId, LinkId, Reason};
use crate::slot_shares::{SLOTS_MIN, slots_of};
use crate::source::Source;
use crate::tables::shrink;

/// All connections. The lists, the counts and the shares of sources follow each change made here.
#[derive(Debug)]
pub(super) struct Connections<N: Network> {
    by_id: HashMap<ConnectionId, Connection<N>>,
    capacity: Capacity,
    /// Accepted connections, except closing ones.
    accepted: usize,
    /// Accepted connections whose peer has not said HELLO, the oldest first.
    awaiting_hello: BTreeSet<ConnectionId>,
    /// Connections waiting for the peer to close its end, the oldest first.
    closing: BTreeSet<ConnectionId>,
    idle: IdleConnections,
    usage: UsageTable,
    /// Connections that may have more to read without a further event.
    unread: Vec<ConnectionId>,
    /// Connections with bytes to send.
    unsent: Vec<ConnectionId>,
    /// When to look at a connection next: not after its next action is due.
    timers: BTreeSet<(Instant, ConnectionId)>,
    /// Connections whose timers are to be set again.
    changed: Vec<ConnectionId>,
}

/// Whether a connection may have a further link.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Admission {
    /// It may.
    Granted,
    /// A link may open once this idle connection has ended.
    InPlaceOf(ConnectionId),
    /// It may not.
    Refused(Reason),
}

impl<N: Network> Connections<N> {
    pub(super) fn new(capacity: Capacity) -> Self {
        Self {
            by_id: HashMap::new(),
            capacity,
            accepted: 0,
            awaiting_hello: BTreeSet::new(),
            closing: BTreeSet::new(),
            idle: IdleConnections::default(),
            usage: UsageTable::new(capacity.session_bytes_per_source_max),
            unread: Vec::new(),
            unsent: Vec::new(),
            timers: BTreeSet::new(),
            changed: Vec::new(),
        }
    }

    pub(super) fn len(&self) -> usize {
        self.by_id.len()
    }

    pub(super) fn contains(&self, id: ConnectionId) -> bool {
        self.by_id.contains_key(&id)
    }

    pub(super) fn get(&self, id: ConnectionId) -> Option<&Connection<N>> {
        self.by_id.get(&id)
    }

    /// Returns a connection to be changed. A change of its phase is followed by [`note_use`](Self::note_use).
    pub(super) fn get_mut(&mut self, id: ConnectionId) -> Option<&mut Connection<N>> {
        self.note_change(id);
        self.by_id.get_mut(&id)
    }

    /// Has a connection's timer set again, before the nexus waits.
    fn note_change(&mut self, id: ConnectionId) {
        if self.changed.last() != Some(&id) {
            self.changed.push(id);
        }
    }

    /// Returns the connection if the peer said HELLO on it.
    pub(super) fn open(&self, id: ConnectionId) -> Option<&Connection<N>> {
        self.get(id).filter(|connection| connection.is_open())
    }

    /// Iterates over all, in any order.
    pub(super) fn iter(&self) -> impl Iterator<Item = (ConnectionId, &Connection<N>)> {
        self.by_id.iter().map(|(id, connection)| (*id, connection))
    }

    /// Iterates over all, in any order.
    pub(super) fn values(&self) -> impl Iterator<Item = &Connection<N>> {
        self.by_id.values()
    }

    /// Returns the names of all, the oldest first.
    pub(super) fn in_order(&self) -> Vec<ConnectionId> {
        let mut all: Vec<_> = self.by_id.keys().copied().collect();
        all.sort_unstable();
        all
    }

    /// Adds a connection under a new name.
    pub(super) fn add(&mut self, id: ConnectionId, connection: Connection<N>) {
        let former = self.by_id.insert(id, connection);
        assert!(former.is_none(), "the name of a connection is never used again: {id:?}");
        self.note_change(id);
    }

    /// Counts an added connection that a peer made, and that awaits its HELLO.
    pub(super) fn count_accepted(&mut self, id: ConnectionId) {
        assert!(
            !self.by_id[&id].is_opener(),
            "a connection of this process is not accepted: {id:?}"
        );
        assert!(self.accepted < self.capacity.connections, "there is room for a connection");
        self.accepted += 1;
        let is_new = self.awaiting_hello.insert(id);
        assert!(is_new, "an accepted connection is counted once: {id:?}");
        self.note_use(id);
    }

    /// Ends the wait for HELLO. The connection's resources are charged to the identity that the peer has proven, if it has.
    pub(super) fn greet(&mut self, id: ConnectionId) {
        self.awaiting_hello.remove(&id);
        if let Some(connection) = self.by_id.get_mut(&id) {
            self.idle.charge_identity(id, connection);
        }
    }

    /// Takes a connection that ends out of the counts of connections in use.
    pub(super) fn uncount(&mut self, id: ConnectionId) {
        assert!(!self.closing.contains(&id), "a connection ends once: {id:?}");
        self.awaiting_hello.remove(&id);
        let uncounted = usize::from(!self.by_id[&id].is_opener());
        assert!(self.accepted >= uncounted, "an accepted connection was counted");
        self.accepted -= uncounted;
    }

    /// Begins the wait for the peer's end. Returns the oldest of too many, to be removed.
    pub(super) fn begin_closing(&mut self, id: ConnectionId, now: Instant) -> Option<ConnectionId> {
        let is_new = self.closing.insert(id);
        assert!(is_new, "a connection says GOODBYE once: {id:?}");
        let is_too_many = self.closing.len() > self.capacity.closing;
        let oldest = self.closing.first().copied().filter(|_| is_too_many);
        if oldest != Some(id)
            && let Some(connection) = self.by_id.get_mut(&id)
        {
            connection.begin_closing(now);
            self.unsent.push(id);
            self.unread.push(id);
            self.note_use(id);
        }
        oldest
    }

    pub(super) fn remove(&mut self, id: ConnectionId) -> Option<Connection<N>> {
        self.closing.remove(&id);
        let mut connection = self.by_id.remove(&id)?;
        if let Some(at) = connection.set_timer(None) {
            self.timers.remove(&(at, id));
        }
        assert!(connection.links().is_empty(), "the links of a connection end before it: {id:?}");
        assert!(!self.awaiting_hello.contains(&id), "a connection that ends is uncounted: {id:?}");
        self.idle.forget(id, &connection);
        shrink(&mut self.by_id);
        Some(connection)
    }

    pub(super) fn drain(&mut self) -> Vec<Connection<N>> {
        let mut all: Vec<_> = self.by_id.drain().collect();
        self.timers.clear();
        // The sockets close in an order that does not depend on the hash table.
        all.sort_unstable_by_key(|(id, _)| *id);
        all.into_iter().map(|(_, connection)| connection).collect()
    }

    /// Updates the lists of idle connections after a change of a connection.
    pub(super) fn note_use(&mut self, id: ConnectionId) {
        self.note_change(id);
        if let Some(connection) = self.by_id.get_mut(&id) {
            self.idle.follow(id, connection);
        }
    }

    /// Returns true if no further connection fits.
    pub(super) fn is_full(&self) -> bool {
        self.accepted >= self.capacity.connections
    }

    /// Returns true if a new connection is one too many that await HELLO.
    pub(super) fn has_too_many_silent(&self) -> bool {
        self.awaiting_hello.len() >= self.capacity.awaiting_hello_max
    }

    /// Returns the connection of least use: longest without HELLO, else longest without links. Connections with `is_last` come last.
    pub(super) fn least_used(
        &self,
        is_last: impl Fn(ConnectionId) -> bool,
    ) -> Option<ConnectionId> {
        if let Some(silent) = self.idle.of(Idle::AwaitingHello, None).next() {
            return Some(silent);
        }
        self.idle.check(&self.by_id);
        let mut idle = self.idle.of(Idle::Linkless, None).peekable();
        let longest = idle.peek().copied();
        idle.find(|id| !is_last(*id)).or(longest)
    }

    /// Returns the connection longest with links and without a session, of `source` or of the source with most of them.
    pub(super) fn longest_sessionless(&self, source: Option<Source>) -> Option<ConnectionId> {
        self.idle.check(&self.by_id);
        self.idle.of(Idle::Sessionless, source).next()
    }

    /// Returns the connections with sessions and without a request, of `source` or of the source with most of them, the longest first.
    pub(super) fn requestless(
        &self,
        source: Option<Source>,
    ) -> impl Iterator<Item = ConnectionId> + '_ {
        self.idle.of(Idle::Requestless, source).filter(|_| !planted("nexus_requestless_stay"))
    }

    /// Returns a connection that is to yield to a further session of another connection, if memory for sessions runs short: the
    /// longest without a request.
    pub(super) fn in_place_of_sessions(
        &self,
        id: ConnectionId,
        slots: u16,
    ) -> Option<ConnectionId> {
        let source = self.by_id.get(&id).filter(|connection| !connection.is_opener())?.source();
        let among = match self.usage.check_session(source, slots.min(SLOTS_MIN)).err()? {
            Exhausted::Source(_) => Some(source),
            Exhausted::All(_) => None,
        };
        self.requestless(among).find(|yields| *yields != id)
    }

    /// Notes that a session of a connection has had a request.
    pub(super) fn note_used_by_request(&mut self, id: ConnectionId) {
        if let Some(connection) = self.by_id.get_mut(&id) {
            connection.links_mut().note_request();
        }
        self.note_use(id);
    }

    /// Decides whether a connection may have a further link. There are fewer linked connections than connections: a
    /// new one can always exchange HELLO, ask for counters, and learn why a link is refused. At the limit of all, or of
    /// a source, the connection longest with links and without a session yields, else the connection longest with sessions and
    /// without a request. (A client about to open its first session, or to make its first call, is among the newest.) A
    /// connection that has had a request never yields.
    pub(super) fn admission(&self, id: ConnectionId) -> Admission {
        let Some(connection) = self.by_id.get(&id) else { return Admission::Granted };
        let source = connection.source();
        let refused = |what: Exhausted| {
            Admission::Refused(Reason::new(Status::ResourceExhausted, what.text()))
        };
        if let Err(exhausted) = self.usage.check_link(source) {
            return refused(exhausted);
        }
        if !connection.links().is_empty() {
            return Admission::Granted;
        }
        let (of_source, all) = self.usage.linked(source);
        let (limit, among) = if of_source >= self.capacity.linked_per_source_max {
            (Exhausted::Source("connections"), Some(source))
        } else if all >= self.capacity.linked_max {
            (Exhausted::All("connections"), None)
        } else {
            return Admission::Granted;
        };
        let yields = self.longest_sessionless(among).or_else(|| self.requestless(among).next());
        yields.map_or_else(|| refused(limit), Admission::InPlaceOf)
    }

    pub(super) fn add_link(&mut self, id: ConnectionId, number: u32, link: LinkId, now: Instant) {
        if let Some(connection) = self.by_id.get_mut(&id) {
            if !connection.is_opener() {
                self.usage.add_link(connection.source(), connection.links().is_empty());
            }
            connection.links_mut().insert(number, link, now);
        }
        self.note_use(id);
    }

    /// Uncounts a link that has ended, with its sessions and proposals.
    pub(super) fn remove_link(&mut self, id: LinkId, link: &Link, now: Instant) {
        let at = link.connection();
        if let Some(connection) = self.by_id.get_mut(&at) {
            for proposal in link.proposals() {
                let bytes = proposed_bytes(proposal);
                connection.links_mut().remove_proposal(bytes, now);
            }
            if link.session_bytes() > 0 {
                connection.links_mut().remove_sessions(link.session_bytes(), now);
            }
            connection.links_mut().remove(link.number(), id, now);
            if !connection.is_opener() {
                give_back(&mut self.usage, connection, link);
            }
        }
        self.note_use(at);
    }

    /// Counts a proposal, and charges its memory.
    pub(super) fn add_proposal(&mut self, id: ConnectionId, proposal: &Proposal) {
        if let Some(connection) = self.by_id.get_mut(&id) {
            let bytes = proposed_bytes(proposal);
            connection.links_mut().add_proposal(bytes);
            if bytes > 0 && !connection.is_opener() {
                self.usage.add_proposal(connection.source(), proposal.slots());
            }
        }
        self.note_use(id);
    }

    /// Uncounts a proposal that is answered or given up.
    pub(super) fn remove_proposal(&mut self, id: ConnectionId, proposal: &Proposal, now: Instant) {
        if let Some(connection) = self.by_id.get_mut(&id) {
            let bytes = proposed_bytes(proposal);
            connection.links_mut().remove_proposal(bytes, now);
            if bytes > 0 && !connection.is_opener() {
                self.usage.remove_proposal(connection.source(), proposal.slots());
            }
        }
        self.note_use(id);
    }

    /// Charges the memory of a session with a server of this process.
    pub(super) fn add_session(&mut self, id: ConnectionId, bytes: usize) {
        if let Some(connection) = self.by_id.get_mut(&id) {
            connection.links_mut().add_session(bytes);
            if !connection.is_opener() {
                self.usage.add_sessions(connection.source(), bytes);
            }
        }
        self.note_use(id);
    }

    /// Gives back the charge of a session with a server of this process.
    pub(super) fn remove_session(&mut self, id: ConnectionId, bytes: usize, now: Instant) {
        if let Some(connection) = self.by_id.get_mut(&id) {
            connection.links_mut().remove_sessions(bytes, now);
            if !connection.is_opener() {
                self.usage.remove_sessions(connection.source(), bytes);
            }
        }
        self.note_use(id);
    }

    /// Returns true if a connection has as many unanswered proposals as it may.
    pub(super) fn has_too_many_proposals(&self, id: ConnectionId) -> bool {
        let proposals = self.by_id.get(&id).map_or(0, |connection| connection.links().proposals());
        proposals >= PROPOSALS_PER_CONNECTION_MAX
    }

    /// Returns the slots for a session that asks for `slots`, within the shares of its connection and source: the more
    /// sessions, the fewer for each.
    pub(super) fn slots_to_offer(&self, id: ConnectionId, slots: u16) -> u16 {
        let Some(connection) = self.by_id.get(&id) else { return slots };
        let bytes = connection.links().session_bytes() + connection.links().proposed_bytes();
        let left = slots_left(self.session_bytes_max(connection), bytes);
        let left = match connection.is_opener() {
            true => left,
            false => left.min(self.usage.slots_left(connection.source())),
        };
        slots.min(slots_of(left))
    }

    /// Returns the memory of a connection's sessions with servers of this process, at most.
    fn session_bytes_max(&self, connection: &Connection<N>) -> usize {
        match connection.is_opener() {
            true => REVERSE_SESSION_BYTES_PER_CONNECTION_MAX,
            false => self.capacity.session_bytes_per_connection_max(),
        }
    }

    /// Checks that there is memory for a further session, with the minimum of slots.
    pub(super) fn check_session(&self, id: ConnectionId, slots: u16) -> Result<(), Reason> {
        let Some(connection) = self.by_id.get(&id) else { return Ok(()) };
        let exhausted = |why: String| Reason::new(Status::ResourceExhausted, why);
        // The minimum for every session.
        let least = slots.min(SLOTS_MIN);
        let links = connection.links();
        let bytes = links.session_bytes() + links.proposed_bytes() + session_bytes(least);
        if bytes > self.session_bytes_max(connection) {
            let why = "your process has its share of this process's memory for sessions";
            return Err(exhausted(why.to_owned()));
        }
        // The connections of this process are its own choice: their number needs no limit here.
        if connection.is_opener() {
            return Ok(());
        }
        let checked = self.usage.check_session(connection.source(), least);
        checked.map_err(|what| exhausted(what.text()))
    }

    /// Queues a message, to be sent at the end of the turn.
    ///
    /// # Errors
    /// The message has a field that is out of its range.
    pub(super) fn send(&mut self, id: ConnectionId, message: &Message) -> Result<(), OutOfRange> {
        let Some(connection) = self.by_id.get_mut(&id).filter(|c| !c.is_closing()) else {
            return Ok(());
        };
        let (is_due, pushed) = connection.queue(message);
        if is_due {
            self.unsent.push(id);
        }
        pushed
    }

    /// Has a connection read again in the next turn.
    pub(super) fn read_later(&mut self, id: ConnectionId) {
        self.unread.push(id);
    }

    /// Has a connection's bytes written at the end of the turn.
    pub(super) fn write_later(&mut self, id: ConnectionId) {
        if self.unsent.last() != Some(&id) {
            self.unsent.push(id);
        }
    }

    pub(super) fn has_unread(&self) -> bool {
        !self.unread.is_empty()
    }

    /// Takes the connections to be read again.
    pub(super) fn take_unread(&mut self) -> Vec<ConnectionId> {
        std::mem::take(&mut self.unread)
    }

    /// Takes the next connection with bytes to send.
    pub(super) fn next_unsent(&mut self) -> Option<ConnectionId> {
        self.unsent.pop()
    }

    /// Does not count time in which the thread did not run as silence or slowness of peers. If the whole host stood
    /// still, its processes could not send a PING either.
    pub(super) fn discount(&mut self, late: Duration, now: Instant) {
        self.by_id.values_mut().for_each(|connection| connection.discount(late, now));
    }

    /// Sets the timers of changed connections. A connection whose peer owes an answer is looked at after every tick, to
    /// notice pauses of the own process. No timer is set before `earliest`.
    pub(super) fn set_timers(&mut self, earliest: Instant, step_timeout: Duration, tick: Instant) {
        for id in std::mem::take(&mut self.changed) {
            let Some(connection) = self.by_id.get_mut(&id) else { continue };
            let tick = connection.signs().is_awaited().then_some(tick);
            let action = connection.next_action(step_timeout).map(|(at, _)| at);
            let at = action.into_iter().chain(tick).min().map(|at| at.max(earliest));
            let former = connection.set_timer(at);
            if former != at {
                former.map(|at| self.timers.remove(&(at, id)));
                at.map(|at| self.timers.insert((at, id)));
            }
        }
        assert!(self.timers.len() <= self.by_id.len(), "a connection has one timer at most");
    }

    /// Returns when to look at a connection next.
    pub(super) fn next_timer(&self) -> Option<Instant> {
        self.timers.first().map(|(at, _)| *at)
    }

    /// Takes the actions that are due, the oldest connection first: equal events lead to an equal order in every run, and
    /// simulated runs repeat.
    pub(super) fn take_due(
        &mut self,
        now: Instant,
        step_timeout: Duration,
    ) -> Vec<(ConnectionId, DueAction)> {
        let later = self.timers.split_off(&(now, ConnectionId(usize::MAX)));
        let passed = std::mem::replace(&mut self.timers, later);
        let mut actions = Vec::new();
        for (_, id) in passed {
            let Some(connection) = self.by_id.get_mut(&id) else { continue };
            connection.set_timer(None);
            self.changed.push(id);
            let action = connection.next_action(step_timeout).filter(|(at, _)| *at <= now);
            actions.extend(action.map(|(_, action)| (id, action)));
        }
        actions.sort_unstable_by_key(|(id, _)| *id);
        actions
    }

    /// Drops the requests of an endpoint that has gone.
    pub(super) fn forget_requests(&mut self, endpoint: EndpointId) {
        for connection in self.by_id.values_mut() {
            connection.forget_requests(endpoint);
        }
    }

    /// Returns the number of accepted connections, except closing ones.
    pub(super) fn accepted(&self) -> usize {
        self.accepted
    }

    /// Returns the accepted connections whose peer has not said HELLO.
    pub(super) fn awaiting_hello(&self) -> &BTreeSet<ConnectionId> {
        &self.awaiting_hello
    }

    /// Returns the connections that wait for the peer's end.
    pub(super) fn closing(&self) -> &BTreeSet<ConnectionId> {
        &self.closing
    }

    /// Returns the number of connections listed as idle.
    pub(super) fn idle_len(&self) -> usize {
        self.idle.len()
    }

    /// Returns the resources that peers hold.
    pub(super) fn usage(&self) -> &UsageTable {
        &self.usage
    }

    /// Returns the number of entries of connections to be read again or written.
    pub(super) fn unfinished(&self) -> usize {
        self.unread.len() + self.unsent.len()
    }
}

impl<N: Network> Index<&ConnectionId> for Connections<N> {
    type Output = Connection<N>;

    fn index(&self, id: &ConnectionId) -> &Connection<N> {
        &self.by_id[id]
    }
}

/// Returns the memory charged for a proposal: nothing for the process's own.
pub(super) fn proposed_bytes(proposal: &Proposal) -> usize {
    if proposal.is_own() { 0 } else { session_bytes(proposal.slots()) }
}

/// Gives back the shares of a link that has left a connection made by a peer.
fn give_back<N: Network>(usage: &mut UsageTable, connection: &Connection<N>, link: &Link) {
    let source = connection.source();
    usage.remove_sessions(source, link.session_bytes());
    for proposal in link.proposals().filter(|proposal| !proposal.is_own()) {
        if !planted("nexus_proposals_keep_their_share") {
            usage.remove_proposal(source, proposal.slots());
        }
    }
    usage.remove_link(source, connection.links().is_empty());
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::nexus::reactor::tests::{open_connection, reactor};

    impl<N: Network> Connections<N> {
        pub(in crate::nexus) fn test_capacity(&mut self) -> &mut Capacity {
            &mut self.capacity
        }

        pub(in crate::nexus) fn test_awaiting_hello(&mut self) -> &mut BTreeSet<ConnectionId> {
            &mut self.awaiting_hello
        }

        pub(in crate::nexus) fn test_usage(&mut self) -> &mut UsageTable {
            &mut self.usage
        }

        /// Has a connection looked at next at this time.
        pub(in crate::nexus) fn set_test_timer(&mut self, id: ConnectionId, at: Instant) {
            let former = self.by_id.get_mut(&id).and_then(|c| c.set_timer(Some(at)));
            former.map(|at| self.timers.remove(&(at, id)));
            self.timers.insert((at, id));
        }

        /// Counts a connection that a peer made, and that has said HELLO.
        pub(in crate::nexus) fn count_test_accepted(&mut self) {
            self.accepted += 1;
        }

        pub(in crate::nexus) fn values_mut(&mut self) -> impl Iterator<Item = &mut Connection<N>> {
            self.by_id.values_mut()
        }

        /// The connections with bytes to send.
        pub(in crate::nexus) fn test_unsent(&mut self) -> &mut Vec<ConnectionId> {
            &mut self.unsent
        }
    }

    panics! {
        uncount__of_a_connection_that_has_ended: "a connection ends once" => {
            let (mut reactor, _) = reactor();
            let (id, _peer) = open_connection(&mut reactor, false);
            let now = reactor.relay.now();
            let connections = &mut reactor.relay.connections;
            connections.uncount(id);
            assert_eq!(connections.begin_closing(id, now), None);
            connections.uncount(id);
        };
        count_accepted__of_a_connection_of_this_process:
            "a connection of this process is not accepted" => {
            let (mut reactor, _) = reactor();
            let (id, _peer) = open_connection(&mut reactor, true);
            reactor.relay.connections.count_accepted(id);
        };
        remove__of_a_connection_with_links: "the links of a connection end before it" => {
            let (mut reactor, _) = reactor();
            let (id, _peer) = open_connection(&mut reactor, false);
            let now = reactor.relay.now();
            reactor.relay.connections.add_link(id, 0, LinkId(1), now);
            reactor.relay.connections.remove(id);
        };
    }
}
