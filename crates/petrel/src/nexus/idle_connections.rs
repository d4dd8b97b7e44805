//! Idle accepted connections, in the order of yielding to new ones (see `admit` and `listener`).
//!
//! A full server looks for an idle connection at every new one. The search visits every source with idle connections,
//! and within a source the connections that ask for counters. Frequent connections from one address therefore cost
//! little more than the connections themselves. Visiting all 4 096 connections each time took 480 000 instructions.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Instant;

use super::connection::{Connection, ConnectionId};
use super::net::Network;
use super::reactor::Reactor;
use super::usage::SourceNetwork;

/// Why an accepted connection is idle.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Idle {
    /// The peer has not said HELLO.
    AwaitingHello,
    /// The peer said HELLO and has no link.
    Linkless,
    /// Its links have neither a session nor a proposal.
    Sessionless,
}

/// The connections of a source with the same reason to be idle, the longest idle first.
type IdleSet = BTreeSet<(Instant, ConnectionId)>;

/// All idle connections.
#[derive(Debug, Default)]
pub(super) struct IdleConnections {
    sets: BTreeMap<(Idle, SourceNetwork), IdleSet>,
}

impl IdleConnections {
    /// Returns the number of idle connections.
    pub(super) fn len(&self) -> usize {
        self.sets.values().map(BTreeSet::len).sum()
    }

    fn insert(&mut self, source: SourceNetwork, (idle, since): (Idle, Instant), id: ConnectionId) {
        self.sets.entry((idle, source)).or_default().insert((since, id));
    }

    fn remove(&mut self, source: SourceNetwork, (idle, since): (Idle, Instant), id: ConnectionId) {
        let Some(set) = self.sets.get_mut(&(idle, source)) else { return };
        set.remove(&(since, id));
        if set.is_empty() {
            self.sets.remove(&(idle, source));
        }
    }

    /// Returns the idle connections of `source`, or of the source with most of them, the longest idle first.
    pub(super) fn of(
        &self,
        idle: Idle,
        source: Option<SourceNetwork>,
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

impl<N: Network> Connection<N> {
    /// Returns why and since when the connection is idle.
    pub(super) fn idle(&self) -> Option<(Idle, Instant)> {
        if self.is_opener || self.is_closing() {
            None
        } else if !self.is_open() {
            Some((Idle::AwaitingHello, self.since))
        } else if self.links.is_empty() {
            Some((Idle::Linkless, self.idle_since))
        } else if self.session_bytes == 0 && self.proposals == 0 {
            Some((Idle::Sessionless, self.quiet_since))
        } else {
            None
        }
    }
}

impl<N: Network> Reactor<N> {
    /// Moves a connection between the lists after a change of its phase, links, sessions or proposals.
    pub(super) fn note_use(&mut self, id: ConnectionId) {
        let Some(connection) = self.connections.get_mut(&id) else { return };
        let (idle, source) = (connection.idle(), connection.source);
        if idle == connection.listed {
            return;
        }
        let former = std::mem::replace(&mut connection.listed, idle);
        if let Some(former) = former {
            self.idle_connections.remove(source, former, id);
        }
        if let Some(idle) = idle {
            self.idle_connections.insert(source, idle, id);
        }
    }

    /// Removes an ended connection from the lists.
    pub(super) fn forget_use(&mut self, id: ConnectionId, connection: &Connection<N>) {
        if let Some(listed) = connection.listed {
            self.idle_connections.remove(connection.source, listed, id);
        }
    }

    /// Compares the lists with all connections. Builds without assertions skip this slow check.
    pub(super) fn check_idle_connections(&self) {
        if cfg!(debug_assertions) {
            let listed = self.idle_connections.len();
            let idle = self.connections.values().filter(|c| c.idle().is_some()).count();
            assert_eq!(listed, idle, "connections without use, and those listed");
            assert!(self.connections.values().all(|c| c.listed == c.idle()));
        }
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
        let source = |host| SourceNetwork::of(([10, 0, 0, host], 1).into());
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
    fn idle__until_something_is_asked_for_and_since_the_last_of_it() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let remote = listener.local_addr().unwrap();
        let stream = TcpStream::connect(remote).unwrap();
        let now = Instant::now();
        let at = |s| now + Duration::from_secs(s);
        let mut connection: Connection<MioNetwork> =
            Connection::new(stream, (remote, remote), false, now);
        (connection.since, connection.idle_since, connection.quiet_since) = (at(1), at(2), at(3));
        assert_eq!(connection.idle(), Some((Idle::AwaitingHello, at(1))));
        let silence_max = Duration::from_secs(3);
        let peer = Peer { incarnation: 1, silence_max, host_identity: None, rendezvous: None };
        connection.phase = Phase::Open(peer);
        assert_eq!(connection.idle(), Some((Idle::Linkless, at(2))));
        connection.links.insert(0, LinkId(0));
        assert_eq!(connection.idle(), Some((Idle::Sessionless, at(3))));
        for (bytes, proposals) in [(1, 0), (0, 1), (1, 1)] {
            (connection.session_bytes, connection.proposals) = (bytes, proposals);
            assert_eq!(connection.idle(), None, "{bytes} bytes, {proposals} proposals");
        }
        (connection.session_bytes, connection.proposals) = (0, 0);
        assert!(connection.idle().is_some());
        connection.is_opener = true;
        assert_eq!(connection.idle(), None, "this process has made it");
        connection.is_opener = false;
        connection.phase = Phase::Closing { is_shut_down: false };
        assert_eq!(connection.idle(), None, "it ends already");
    }
}
