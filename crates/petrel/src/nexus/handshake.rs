//! HELLO: who the peer is and which version both speak (`docs/wire-protocol.md` §8.3).

use std::time::Duration;

use petrel_proto::Status;
use petrel_proto::control::{Hello, PREFACE, VersionRange, choose_version};

use super::closing::Farewell;
use super::connection::{ConnectionId, Peer, Phase};
use super::limits::{INCARNATIONS_MAX, SILENT_HEARTBEATS_MAX};
use super::net::Network;
use super::reactor::Reactor;
use crate::control::Reason;

/// What peers see of the implementation.
pub(super) const AGENT: &str = concat!("petrel ", env!("CARGO_PKG_VERSION"));

impl<N: Network> Reactor<N> {
    /// Says HELLO, which each side does at once.
    pub(super) fn greet(&mut self, id: ConnectionId) {
        let hello = self.own_hello();
        if let Some(connection) = self.connections.get_mut(&id) {
            connection.out.push_bytes(&PREFACE);
            connection.ping_at = self.now + connection.ping_interval(self.settings.heartbeat);
            self.unsent.push(id);
        }
        self.send(id, hello);
    }

    fn own_hello(&self) -> Hello {
        let meeting = self.meeting.as_ref();
        Hello {
            versions: VersionRange::OWN,
            incarnation: self.settings.incarnation,
            // The builder checked that it fits.
            heartbeat_ms: self.settings.heartbeat.as_millis() as u32,
            agent: AGENT.to_owned(),
            host_identity: meeting.map(|meeting| meeting.host_identity),
            rendezvous: meeting.map(|meeting| meeting.name.clone()),
        }
    }

    pub(super) fn on_hello(&mut self, id: ConnectionId, hello: Hello) {
        if let Err(mismatch) = choose_version(VersionRange::OWN, hello.versions) {
            self.counters.refused_version.increment();
            let reason = Reason::new(Status::Unimplemented, mismatch.to_string());
            return self.close(id, &reason, Farewell::Say(reason.clone()));
        }
        self.ungreeted.remove(&id);
        self.note_incarnation(id, hello.incarnation);
        let Some(connection) = self.connections.get_mut(&id) else { return };
        let interval = Duration::from_millis(u64::from(hello.heartbeat_ms));
        let peer = Peer {
            incarnation: hello.incarnation,
            silence_max: interval * SILENT_HEARTBEATS_MAX,
            host_identity: hello.host_identity,
            rendezvous: hello.rendezvous,
        };
        connection.enter(Phase::Open(peer), self.now);
        connection.idle_since = self.now;
        let waiting = std::mem::take(&mut connection.waiting);
        self.note_use(id);
        for request in waiting {
            self.ask_for_link(id, request);
        }
    }

    /// Another incarnation at an address is another process. Links to the former one went down
    /// with its connection, so that there is nothing to undo but to count it.
    fn note_incarnation(&mut self, id: ConnectionId, incarnation: u64) {
        let Some(connection) = self.connections.get(&id).filter(|c| c.is_opener) else { return };
        let remote = connection.remote;
        if self.incarnations.len() >= INCARNATIONS_MAX && !self.incarnations.contains_key(&remote) {
            self.incarnations.clear();
        }
        let former = self.incarnations.insert(remote, incarnation);
        if former.is_some_and(|former| former != incarnation) {
            self.counters.peers_restarted.increment();
        }
    }
}

#[cfg(test)]
mod tests {
    use std::net::{SocketAddr, TcpListener};
    use std::time::Instant;

    use mio::net::TcpStream;

    use super::*;
    use crate::nexus::connection::Connection;
    use crate::nexus::reactor::tests::reactor;

    /// A connection that this process made, as far as its HELLO: by a socket that nobody uses.
    fn dialed(reactor: &mut Reactor, remote: SocketAddr) -> ConnectionId {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let stream = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        let id = ConnectionId(1_000 + reactor.connections.len());
        let connection = Connection::new(stream, (remote, remote), true, Instant::now());
        reactor.connections.insert(id, connection);
        id
    }

    #[test]
    fn note_incarnation__counts_restarts_and_remembers_no_more_than_its_limit() {
        let (mut reactor, _) = reactor();
        let address = |port: usize| SocketAddr::from(([127, 0, 0, 1], port as u16));
        for port in 1..INCARNATIONS_MAX {
            reactor.incarnations.insert(address(port), 7);
        }
        let last = dialed(&mut reactor, address(INCARNATIONS_MAX));
        let restarts = |reactor: &Reactor| reactor.counters.snapshot().peers_restarted;
        // The last that there is room for; and the same peer again, which needs no room.
        for (incarnation, restarted) in [(7, 0), (7, 0), (8, 1)] {
            reactor.note_incarnation(last, incarnation);
            assert_eq!(restarts(&reactor), restarted);
            assert_eq!(reactor.incarnations.len(), INCARNATIONS_MAX);
        }
        let beyond = dialed(&mut reactor, address(INCARNATIONS_MAX + 1));
        reactor.note_incarnation(beyond, 7);
        assert_eq!((reactor.incarnations.len(), restarts(&reactor)), (1, 1));
        reactor.note_incarnation(beyond, 8);
        assert_eq!(restarts(&reactor), 2);
    }
}
