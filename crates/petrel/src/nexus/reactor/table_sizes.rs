//! The sizes of the reactor's tables, and a check that the tables agree: for tests and simulators.
//!
//! An entry left behind by an ended object is a leak, unnoticed by endpoints and peers until a limit is reached. Hence
//! every entry is counted here and compared with the objects named in it.

use std::collections::BTreeMap;

use super::Reactor;
use crate::control::LinkId;
use crate::nexus::connection::Connection;
use crate::nexus::connections::proposed_bytes;
use crate::nexus::ids::ConnectionId;
use crate::nexus::link::{Link, Stage};
use crate::nexus::net::Network;
use crate::nexus::relay::Relay;
use crate::nexus::usage::Usage;
use crate::source::Source;

/// The number of entries of each table.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct TableSizes {
    /// Connections at all stages.
    pub connections: usize,
    /// Accepted connections whose peer has not said HELLO.
    pub awaiting_hello: usize,
    /// Accepted connections, except closing ones.
    pub accepted: usize,
    /// Connections waiting for the peer to close its end.
    pub closing: usize,
    /// Remote processes with a connection, or with an attempt to connect.
    pub outgoing: usize,
    /// Requests that wait for a connection.
    pub waiting: usize,
    /// Links at all stages.
    pub links: usize,
    /// Links that are up.
    pub links_up: usize,
    /// Links that wait for their endpoint.
    pub early_links: usize,
    /// Sessions proposed and not answered.
    pub proposals: usize,
    /// Bytes charged for sessions of peers.
    pub session_bytes: usize,
    /// Tickets that peers have yet to present.
    pub tickets: usize,
    /// Exchanges of descriptors.
    pub exchanges: usize,
    /// Links that wait for a free exchange at the rendezvous.
    pub queued_exchanges: usize,
    /// Deadlines in the heap, including settled ones.
    pub deadlines: usize,
    /// Sources with usage.
    pub sources: usize,
    /// Connections listed as idle.
    pub idle_connections: usize,
    /// Connections that wait for counters.
    pub requesters: usize,
    /// Connections to be read again or written.
    pub unfinished: usize,
    /// The largest number of unsent bytes on one connection.
    pub unsent_bytes_max: usize,
    /// The largest number of bytes of a partial message on one connection.
    pub partial_bytes_max: usize,
}

/// The reactor's tables, to be read.
pub(super) struct Tables<'a, N: Network> {
    reactor: &'a Reactor<N>,
}

impl<'a, N: Network> Tables<'a, N> {
    pub(super) fn of(reactor: &'a Reactor<N>) -> Self {
        Self { reactor }
    }

    pub(super) fn sizes(&self) -> TableSizes {
        let (reactor, relay) = (self.reactor, &self.reactor.relay);
        let (connections, links) = (&relay.connections, &relay.links);
        let largest = |size: fn(&Connection<N>) -> usize| connections.values().map(size).max();
        let waiting: usize = connections.values().map(|c| c.waiting().len()).sum();
        TableSizes {
            connections: connections.len(),
            awaiting_hello: connections.awaiting_hello().len(),
            accepted: connections.accepted(),
            closing: connections.closing().len(),
            outgoing: reactor.routes.len(),
            waiting: waiting + reactor.routes.waiting(),
            links: links.len(),
            links_up: links.iter().filter(|(_, link)| link.is_up()).count(),
            early_links: reactor.early_links.len(),
            proposals: links.proposals(),
            session_bytes: connections.usage().all().session_bytes(),
            tickets: links.tickets(),
            exchanges: reactor.exchanges.len(),
            queued_exchanges: reactor.exchanges.queued(),
            deadlines: relay.deadlines().len(),
            sources: connections.usage().sources().count(),
            idle_connections: connections.idle_len(),
            requesters: reactor.collector.requesters().count(),
            unfinished: connections.unfinished(),
            unsent_bytes_max: largest(|c| c.unsent_bytes()).unwrap_or(0),
            partial_bytes_max: largest(|c| c.partial_bytes()).unwrap_or(0),
        }
    }

    /// Compares the tables with each other.
    ///
    /// # Errors
    /// The first disagreement between two tables.
    pub(super) fn check(&self) -> Result<(), String> {
        let Relay { connections, links, .. } = &self.reactor.relay;
        connections
            .iter()
            .try_for_each(|(id, connection)| self.check_connection(id, connection))?;
        links.iter().try_for_each(|(id, link)| self.check_link(id, link))?;
        self.check_lists()?;
        self.check_sums()
    }

    fn check_connection(&self, id: ConnectionId, connection: &Connection<N>) -> Result<(), String> {
        let is_new = !connection.is_opener() && !connection.is_open() && !connection.is_closing();
        same(is_new, self.reactor.relay.connections.awaiting_hello().contains(&id), || {
            format!("{id:?} among those without HELLO")
        })?;
        let is_closing = connection.is_closing();
        same(is_closing, self.reactor.relay.connections.closing().contains(&id), || {
            format!("{id:?} among those closing")
        })?;
        same(connection.idle(), connection.listed(), || format!("{id:?} among those without use"))?;
        if is_closing && !(connection.links().is_empty() && connection.waiting().is_empty()) {
            return Err(format!("{id:?} is closing and has links or requests"));
        }
        let is_way = self.reactor.routes.connection(connection.remote()) == Some(id);
        if is_way && (is_closing || !connection.is_opener()) {
            return Err(format!("{id:?} is the route to {} and cannot be", connection.remote()));
        }
        let links =
            || connection.links().ids().filter_map(|link| self.reactor.relay.links.get(link));
        same(links().count(), connection.links().len(), || format!("links of {id:?}"))?;
        let proposals = links().map(|link| link.proposals().len()).sum();
        same(connection.links().proposals(), proposals, || format!("proposals of {id:?}"))?;
        let bytes = links().map(|link| link.session_bytes()).sum();
        same(connection.links().session_bytes(), bytes, || {
            format!("memory of sessions of {id:?}")
        })?;
        let proposals = links().flat_map(|link| link.proposals());
        let bytes = proposals.map(proposed_bytes).sum();
        same(connection.links().proposed_bytes(), bytes, || {
            format!("memory of proposals of {id:?}")
        })
    }

    fn check_link(&self, id: LinkId, link: &Link) -> Result<(), String> {
        let connection = self.reactor.relay.connections.get(link.connection());
        let entry = connection.and_then(|connection| connection.links().get(link.number()));
        same(entry, Some(id), || format!("the connection of {id:?}"))?;
        if !self.reactor.relay.endpoints.contains(link.endpoint()) {
            return Err(format!("{id:?} is a link of {:?}, which has gone", link.endpoint()));
        }
        match link.stage() {
            Stage::Exchanging { exchange: Some(exchange), .. }
                if !self.reactor.exchanges.contains(*exchange) =>
            {
                Err(format!("{id:?} waits for an exchange that is no more"))
            }
            Stage::Up { .. } => Ok(()),
            _ if !link.is_in_use() => Ok(()),
            _ => Err(format!("{id:?} has sessions and is not up")),
        }
    }

    /// Checks that all lists of connections and links refer to existing ones.
    fn check_lists(&self) -> Result<(), String> {
        let Relay { connections, links, .. } = &self.reactor.relay;
        let is_there = |id: &ConnectionId| connections.contains(*id);
        let is_in_use = |id: &ConnectionId| connections.get(*id).is_some_and(|c| !c.is_closing());
        let (silent, closing) = (connections.awaiting_hello(), connections.closing());
        let lists = [
            ("without HELLO", silent.iter().copied().find(|id| !is_there(id))),
            ("closing", closing.iter().copied().find(|id| !is_there(id))),
            ("routes to peers", self.reactor.routes.connections().find(|id| !is_there(id))),
            ("with early links", self.reactor.early_links.connections().find(|id| !is_in_use(id))),
            (
                "that ask for counters",
                self.reactor.collector.requesters().find(|id| !is_in_use(id)),
            ),
        ];
        for (which, stray) in lists {
            if let Some(id) = stray {
                return Err(format!("{id:?} has ended and is among the connections {which}"));
            }
        }
        same(links.stray_ticket(), None, || "the link of a ticket".to_owned())?;
        let listed = connections.values().filter(|connection| connection.listed().is_some());
        same(connections.idle_len(), listed.count(), || "connections without use".to_owned())
    }

    /// Checks that the totals, and the usage of sources, are the sums over their connections.
    fn check_sums(&self) -> Result<(), String> {
        let Relay { connections, links, .. } = &self.reactor.relay;
        let proposals = links.iter().map(|(_, link)| link.proposals().len()).sum();
        same(links.proposals(), proposals, || "proposals in all".to_owned())?;
        let accepted = connections.values().filter(|c| !c.is_opener() && !c.is_closing()).count();
        same(connections.accepted(), accepted, || "connections that peers made".to_owned())?;
        let mut by_source: BTreeMap<Source, Usage> = BTreeMap::new();
        for connection in connections.values().filter(|c| !c.is_opener()) {
            let usage = self.usage_of(connection);
            if usage != Usage::default() {
                by_source.entry(connection.source()).or_default().add(usage);
            }
        }
        let kept: BTreeMap<Source, Usage> = connections.usage().sources().collect();
        same(&kept, &by_source, || "usage of sources".to_owned())?;
        let mut all = Usage::default();
        by_source.into_values().for_each(|usage| all.add(usage));
        same(connections.usage().all(), all, || "usage in all".to_owned())
    }

    fn usage_of(&self, connection: &Connection<N>) -> Usage {
        let links = connection.links().ids().filter_map(|link| self.reactor.relay.links.get(link));
        let of_peer = links.flat_map(|link| link.proposals()).filter(|proposal| !proposal.is_own());
        let proposed: Vec<_> = of_peer.map(proposed_bytes).collect();
        let links = connection.links();
        let bytes = links.session_bytes() + proposed.iter().sum::<usize>();
        Usage::of_connection(links.len(), proposed.len(), bytes)
    }
}

fn same<T: PartialEq + std::fmt::Debug>(
    kept: T,
    found: T,
    what: impl FnOnce() -> String,
) -> Result<(), String> {
    if kept == found {
        return Ok(());
    }
    Err(format!("{}: {kept:?} is kept, and {found:?} is so", what()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::nexus::reactor::tests::reactor;

    #[test]
    fn check_tables__of_an_empty_reactor() {
        let (reactor, _) = reactor();
        assert_eq!(reactor.check_tables(), Ok(()));
        assert_eq!(reactor.table_sizes(), TableSizes::default());
    }

    #[test]
    fn check_tables__reports_entries_left_behind() {
        let (mut reactor, _) = reactor();
        reactor.relay.connections.test_awaiting_hello().insert(ConnectionId(7));
        assert!(reactor.check_tables().unwrap_err().contains("without HELLO"));
        reactor.relay.connections.test_awaiting_hello().clear();
        reactor.relay.links.test_tickets().insert([1; 16], LinkId(3));
        assert!(reactor.check_tables().unwrap_err().contains("the link of a ticket"));
        reactor.relay.links.test_tickets().clear();
        *reactor.relay.links.test_proposals() = 1;
        assert!(reactor.check_tables().unwrap_err().contains("proposals in all"));
    }

    #[test]
    fn check_tables__reports_a_share_not_given_back() {
        let (mut reactor, _) = reactor();
        let source = Source::of([10, 0, 0, 1].into(), None, None);
        reactor.relay.connections.test_usage().add_link(source, true);
        assert!(reactor.check_tables().unwrap_err().contains("usage of sources"));
        reactor.relay.connections.test_usage().remove_link(source, true);
        assert_eq!(reactor.check_tables(), Ok(()));
    }
}
