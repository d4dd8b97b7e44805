//! The lists of idle connections follow every change of a connection.

use super::Reactor;
use crate::nexus::connection::Connection;
use crate::nexus::ids::ConnectionId;
use crate::nexus::net::Network;

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
    use crate::nexus::idle_connections::{Idle, IdleConnections};
    use crate::nexus::net::MioNetwork;
    use crate::nexus::usage::SourceNetwork;
    use std::time::Instant;

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
