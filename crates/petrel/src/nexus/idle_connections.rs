//! Idle accepted connections, in the order of yielding to new ones (see `admit` and `listener`).
//!
//! A full server looks for an idle connection at every new one. The search visits every source with idle connections,
//! and within a source the connections that ask for counters. Frequent connections from one address therefore cost
//! little more than the connections themselves. Visiting all 4 096 connections each time took 480 000 instructions.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::time::Instant;

use super::connection::{Connection, Idle};
use super::ids::ConnectionId;
use super::net::Network;
use crate::source::Source;

/// The connections of a source with the same reason to be idle, the longest idle first.
type IdleSet = BTreeSet<(Instant, ConnectionId)>;

/// All idle connections.
#[derive(Debug, Default)]
pub(super) struct IdleConnections {
    sets: BTreeMap<(Idle, Source), IdleSet>,
}

impl IdleConnections {
    pub(super) fn len(&self) -> usize {
        self.sets.values().map(BTreeSet::len).sum()
    }

    /// Moves a connection between the lists after a change of its phase, links, sessions or proposals.
    pub(super) fn follow<N: Network>(&mut self, id: ConnectionId, connection: &mut Connection<N>) {
        let (idle, source) = (connection.idle(), connection.source());
        if idle == connection.listed() {
            return;
        }
        if let Some(former) = connection.list() {
            self.remove(source, former, id);
        }
        if let Some(idle) = idle {
            self.insert(source, idle, id);
        }
    }

    /// Moves a connection from the lists of the peer's address to the lists of the peer's proven identity.
    pub(super) fn charge_identity<N: Network>(
        &mut self,
        id: ConnectionId,
        connection: &mut Connection<N>,
    ) {
        let listed = connection.listed();
        if let Some(listed) = listed {
            self.remove(connection.source(), listed, id);
        }
        connection.charge_identity();
        if let Some(listed) = listed {
            self.insert(connection.source(), listed, id);
        }
    }

    pub(super) fn forget<N: Network>(&mut self, id: ConnectionId, connection: &Connection<N>) {
        if let Some(listed) = connection.listed() {
            self.remove(connection.source(), listed, id);
        }
    }

    /// Compares the lists with all connections. Builds without assertions skip this slow check.
    pub(super) fn check<N: Network>(&self, connections: &HashMap<ConnectionId, Connection<N>>) {
        if cfg!(debug_assertions) {
            let idle = connections.values().filter(|c| c.idle().is_some()).count();
            assert_eq!(self.len(), idle, "connections without use, and those listed");
            assert!(connections.values().all(|c| c.listed() == c.idle()));
        }
    }

    fn insert(&mut self, source: Source, (idle, since): (Idle, Instant), id: ConnectionId) {
        let is_new = self.sets.entry((idle, source)).or_default().insert((since, id));
        assert!(is_new, "an idle connection is listed once: {id:?}");
    }

    fn remove(&mut self, source: Source, (idle, since): (Idle, Instant), id: ConnectionId) {
        let set = self.sets.get_mut(&(idle, source));
        let (was_listed, is_empty) = set.map_or((false, false), |set| {
            let was_listed = set.remove(&(since, id));
            (was_listed, set.is_empty())
        });
        assert!(was_listed, "a connection leaves a list that has it: {id:?}");
        if is_empty {
            self.sets.remove(&(idle, source));
        }
    }

    /// Returns the idle connections of `source`, or of the source with most of them, the longest idle first.
    pub(super) fn of(
        &self,
        idle: Idle,
        source: Option<Source>,
    ) -> impl Iterator<Item = ConnectionId> + '_ {
        let set = match source {
            Some(source) => self.sets.get(&(idle, source)),
            None => {
                let sets = self.sets.iter().filter(|((kind, _), _)| *kind == idle);
                sets.map(|(_, set)| set).max_by_key(|set| set.len())
            }
        };
        set.into_iter().flatten().map(|(_, id)| *id)
    }
}

#[cfg(test)]
mod tests {
    use std::net::TcpListener;
    use std::time::Duration;

    use mio::net::TcpStream;

    use super::*;
    use crate::control::LinkId;
    use crate::nexus::connection::{Peer, Phase};
    use crate::nexus::net::MioNetwork;

    #[test]
    fn of__the_longest_idle_of_the_site_that_has_most() {
        let now = Instant::now();
        let source = |host| Source::of([10, 0, 0, host].into(), None, None);
        let at = |s| now + Duration::from_secs(s);
        let mut idle_connections = IdleConnections::default();
        let all = |idle_connections: &IdleConnections, idle, source| {
            idle_connections.of(idle, source).map(|ConnectionId(id)| id).collect::<Vec<_>>()
        };
        assert!(all(&idle_connections, Idle::Sessionless, None).is_empty());
        for (id, host, since) in [(1, 1, 5), (2, 2, 9), (3, 1, 0), (4, 2, 7), (5, 2, 8)] {
            idle_connections.insert(source(host), (Idle::Sessionless, at(since)), ConnectionId(id));
        }
        idle_connections.insert(source(3), (Idle::Linkless, at(1)), ConnectionId(6));
        assert_eq!(all(&idle_connections, Idle::Sessionless, None), [4, 5, 2]);
        assert_eq!(all(&idle_connections, Idle::Sessionless, Some(source(1))), [3, 1]);
        assert_eq!(all(&idle_connections, Idle::Linkless, None), [6]);
        for (id, since) in [(4, 7), (5, 8)] {
            idle_connections.remove(source(2), (Idle::Sessionless, at(since)), ConnectionId(id));
        }
        assert_eq!(all(&idle_connections, Idle::Sessionless, None), [3, 1]);
        idle_connections.remove(source(3), (Idle::Linkless, at(1)), ConnectionId(6));
        assert!(all(&idle_connections, Idle::Linkless, None).is_empty());
    }

    #[test]
    fn idle__without_sessions_and_proposals_since_the_last_ended() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let remote = listener.local_addr().unwrap();
        let stream = TcpStream::connect(remote).unwrap();
        let now = Instant::now();
        let at = |s| now + Duration::from_secs(s);
        let mut connection: Connection<MioNetwork> =
            Connection::new(stream.into(), (remote, remote), false, now);
        *connection.test_since() = at(1);
        connection.links_mut().set_test_times(at(2), at(3));
        assert_eq!(connection.idle(), Some((Idle::AwaitingHello, at(1))));
        let heartbeat = Duration::from_secs(1);
        *connection.test_phase() = Phase::Open(Peer::of_test(1, heartbeat));
        assert_eq!(connection.idle(), Some((Idle::Linkless, at(2))));
        connection.links_mut().insert(0, LinkId(0), at(3));
        assert_eq!(connection.idle(), Some((Idle::Sessionless, at(3))));
        for (bytes, proposals) in [(1, 0), (0, 1), (1, 1)] {
            connection.links_mut().set_test_charge((proposals, 0), bytes);
            let requestless = connection.idle().map(|(idle, _)| idle);
            assert_eq!(requestless, Some(Idle::Requestless), "{bytes} {proposals}");
        }
        connection.links_mut().note_request();
        assert_eq!(connection.idle(), None, "it has been used");
        connection.links_mut().set_test_charge((0, 0), 0);
        assert!(connection.idle().is_some());
        *connection.test_is_opener() = true;
        assert_eq!(connection.idle(), None, "this process has made it");
        *connection.test_is_opener() = false;
        *connection.test_phase() = Phase::Closing { is_shut_down: false };
        assert_eq!(connection.idle(), None, "it ends already");
    }

    panics! {
        remove__of_a_connection_that_is_not_listed: "leaves a list that has it" => {
            let source = Source::of([10, 0, 0, 1].into(), None, None);
            let (mut idle, since) = (IdleConnections::default(), Instant::now());
            idle.insert(source, (Idle::Linkless, since), ConnectionId(1));
            idle.remove(source, (Idle::Sessionless, since), ConnectionId(1));
        };
    }
}
