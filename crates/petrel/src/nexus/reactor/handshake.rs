//! HELLO: the identity of the peer and the common protocol version (`docs/wire-protocol.md` §8.3).

use std::time::Duration;

use petrel_proto::Status;
use petrel_proto::control::{Hello, PREFACE, VersionRange, choose_version};

use super::Reactor;
use crate::control::Reason;
use crate::nexus::AGENT;
use crate::nexus::connection::{Peer, Phase};
use crate::nexus::goodbye::GoodbyeMode;
use crate::nexus::ids::ConnectionId;
use crate::nexus::limits::{INCARNATIONS_MAX, SILENT_HEARTBEATS_MAX};
use crate::nexus::net::Network;

impl<N: Network> Reactor<N> {
    /// Sends HELLO, as each side does at once.
    pub(super) fn send_hello(&mut self, id: ConnectionId) {
        let hello = self.own_hello();
        if let Some(connection) = self.connections.get_mut(&id) {
            connection.out.push_bytes(&PREFACE);
            connection.ping_at = self.now + connection.ping_interval(self.settings.heartbeat);
            self.unsent.push(id);
        }
        self.send(id, hello);
    }

    fn own_hello(&self) -> Hello {
        let rendezvous = self.local_rendezvous.as_ref();
        Hello {
            versions: VersionRange::OWN,
            incarnation: self.settings.incarnation,
            // The builder checked that it fits.
            heartbeat_ms: self.settings.heartbeat.as_millis() as u32,
            agent: AGENT.to_owned(),
            host_identity: rendezvous.map(|local| local.host_identity),
            rendezvous: rendezvous.map(|local| local.name.clone()),
        }
    }

    pub(super) fn on_hello(&mut self, id: ConnectionId, hello: Hello) {
        if let Err(mismatch) = choose_version(VersionRange::OWN, hello.versions) {
            self.counters.refused_version.increment();
            let reason = Reason::new(Status::Unimplemented, mismatch.to_string());
            return self.close(id, &reason, GoodbyeMode::Send(reason.clone()));
        }
        self.awaiting_hello.remove(&id);
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
        connection.links.begin_idle(self.now);
        let waiting = std::mem::take(&mut connection.waiting);
        self.note_use(id);
        for request in waiting {
            self.ask_for_link(id, request);
        }
    }

    /// Counts a new incarnation at an address: another process. The links of the former process went down with the
    /// connection; only the count remains to be done.
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
    use petrel_proto::control::Message;

    use super::*;
    use crate::control::{AllowedTransports, EndpointId};
    use crate::nexus::connection::Connection;
    use crate::nexus::reactor::tests::{attach, open_connection, reactor};
    use crate::nexus::request::OpenRequest;

    type Reactor = super::Reactor<crate::nexus::net::MioNetwork>;

    /// A connection made by this process, before HELLO, over a socket without traffic.
    fn dialed(reactor: &mut Reactor, remote: SocketAddr) -> ConnectionId {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let stream = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        let id = ConnectionId(1_000 + reactor.connections.len());
        let connection = Connection::new(stream, (remote, remote), true, Instant::now());
        reactor.connections.insert(id, connection);
        id
    }

    fn hello(versions: VersionRange) -> Hello {
        Hello {
            versions,
            incarnation: 9,
            heartbeat_ms: 70,
            agent: String::new(),
            host_identity: Some([3; 32]),
            rendezvous: Some(vec![1]),
        }
    }

    /// A connection whose peer has not said HELLO, and the peer's socket.
    fn silent(reactor: &mut Reactor, is_opener: bool) -> (ConnectionId, std::net::TcpStream) {
        let (id, peer) = open_connection(reactor, is_opener);
        let now = reactor.now;
        reactor.connections.get_mut(&id).unwrap().enter(Phase::AwaitingHello, now);
        if !is_opener {
            reactor.awaiting_hello.insert(id);
        }
        reactor.note_use(id);
        assert_eq!(reactor.check_tables(), Ok(()));
        (id, peer)
    }

    #[test]
    fn send_hello__at_once_and_when_the_first_ping_is_due() {
        for is_opener in [false, true] {
            let (mut reactor, _) = reactor();
            let (id, _peer) = silent(&mut reactor, is_opener);
            reactor.now += Duration::from_secs(5);
            reactor.send_hello(id);
            let connection = &reactor.connections[&id];
            let heartbeat = reactor.settings.heartbeat;
            assert_eq!(connection.ping_at, reactor.now + connection.ping_interval(heartbeat));
            let mut expected = PREFACE.to_vec();
            Message::from(reactor.own_hello()).encode(&mut expected).unwrap();
            assert_eq!(connection.out.len(), expected.len());
            assert_eq!(reactor.unsent, [id]);
        }
    }

    #[test]
    fn on_hello__opens_the_connection_and_asks_for_what_waited() {
        for is_opener in [false, true] {
            let (mut reactor, mailbox) = reactor();
            let _inbox = attach(&mailbox);
            reactor.run_commands();
            let (id, _peer) = silent(&mut reactor, is_opener);
            let connection = reactor.connections.get_mut(&id).unwrap();
            let requests = if is_opener { 2 } else { 0 };
            connection.waiting = (0..requests)
                .map(|request| OpenRequest {
                    endpoint: EndpointId(0),
                    request,
                    remote: connection.remote,
                    remote_endpoint: EndpointId(0),
                    transports: AllowedTransports { udp: true, shm: false },
                    give_up_at: reactor.now,
                })
                .collect();
            reactor.now += Duration::from_secs(5);
            reactor.on_hello(id, hello(VersionRange::OWN));
            let connection = &reactor.connections[&id];
            let peer = connection.peer().unwrap();
            assert_eq!((peer.incarnation, peer.silence_max), (9, Duration::from_millis(210)));
            assert_eq!((peer.host_identity, &peer.rendezvous), (Some([3; 32]), &Some(vec![1])));
            assert_eq!(
                (connection.since, connection.links.idle_since()),
                (reactor.now, reactor.now)
            );
            assert!(connection.waiting.is_empty());
            assert_eq!(reactor.links.len() as u64, requests);
            assert_eq!(reactor.check_tables(), Ok(()));
        }
    }

    #[test]
    fn on_hello__of_another_version_is_the_end() {
        let (mut reactor, _) = reactor();
        let (id, _peer) = silent(&mut reactor, false);
        let (min, max) = (u16::MAX - 1, u16::MAX);
        reactor.on_hello(id, hello(VersionRange { min, max }));
        assert!(reactor.connections[&id].is_closing());
        assert_eq!(reactor.counters.snapshot().refused_version, 1);
        assert_eq!(reactor.check_tables(), Ok(()));
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
        // The last entry with room; and the same peer again, without need for room.
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
