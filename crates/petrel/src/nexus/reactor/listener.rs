//! Accepting connections (`docs/wire-protocol.md` §8.3).

use std::io::{self, ErrorKind};
use std::net::{SocketAddr, TcpListener};
use std::time::Instant;

use petrel_planted::planted;
use petrel_proto::Status;

use super::{LISTENER, Reactor};
use crate::control::Reason;
use crate::nexus::connection::{Connection, Idle, retry};
use crate::nexus::goodbye::GoodbyeMode;
use crate::nexus::ids::ConnectionId;
use crate::nexus::limits::{ACCEPT_PAUSE, ACCEPTS_PER_TURN, LISTEN_QUEUE};
use crate::nexus::media::HostLinks;
use crate::nexus::net::{MioNetwork, Network, Stream};

/// The listening socket.
#[derive(Debug)]
pub(super) struct Listener<N: Network> {
    socket: N::Listener,
    /// More connections may be queued, though no event will report them.
    has_more: bool,
    /// The system had no room for another connection; accepting resumes at this time.
    pub(super) paused_until: Option<Instant>,
}

impl<L: HostLinks> Reactor<MioNetwork<L>> {
    /// Listens on a bound socket, and returns its address.
    pub(in crate::nexus) fn listen_on(&mut self, socket: &TcpListener) -> io::Result<SocketAddr> {
        let socket = socket.try_clone()?;
        socket.set_nonblocking(true)?;
        let socket = mio::net::TcpListener::from_std(socket);
        let (socket, local) = self.net.listen_on(socket, LISTEN_QUEUE, LISTENER)?;
        self.listener = Some(Listener { socket, has_more: false, paused_until: None });
        Ok(local)
    }
}

impl<N: Network> Reactor<N> {
    /// Listens, and returns the address with the port chosen by the system.
    pub(in crate::nexus) fn listen(&mut self, address: SocketAddr) -> io::Result<SocketAddr> {
        let (socket, local) = self.net.listen(address, LISTEN_QUEUE, LISTENER)?;
        self.listener = Some(Listener { socket, has_more: false, paused_until: None });
        Ok(local)
    }

    /// Stops listening.
    pub(super) fn stop_listening(&mut self) {
        if let Some(Listener { socket, .. }) = self.listener.take() {
            self.net.close_listener(socket);
        }
    }

    pub(super) fn on_listener_ready(&mut self) {
        if let Some(listener) = &mut self.listener {
            listener.has_more = true;
        }
    }

    pub(super) fn has_more_to_accept(&self) -> bool {
        self.listener.as_ref().is_some_and(|l| l.has_more && l.paused_until.is_none())
    }

    /// Accepts a bounded number of connections.
    pub(super) fn accept_more(&mut self) {
        if let Some(listener) = &mut self.listener
            && listener.paused_until.is_some_and(|until| until <= self.now)
        {
            listener.paused_until = None;
        }
        for _ in 0..ACCEPTS_PER_TURN {
            if !self.has_more_to_accept() {
                break;
            }
            self.accept_one();
        }
    }

    fn accept_one(&mut self) {
        let Some(listener) = &mut self.listener else { return };
        match retry(|| self.net.accept(&listener.socket)) {
            Ok((stream, remote)) => self.on_accepted(stream, remote),
            Err(error) => self.on_not_accepted(error.kind()),
        }
    }

    fn on_not_accepted(&mut self, why: ErrorKind) {
        let Some(listener) = &mut self.listener else { return };
        match why {
            ErrorKind::WouldBlock => listener.has_more = false,
            // The peer closed the connection before it was accepted.
            ErrorKind::ConnectionAborted => {}
            // The kernel looks for a free descriptor before it looks at the queue.
            _ if !self.net.has_waiting(&listener.socket) => listener.has_more = false,
            // No descriptors or memory while a connection is queued: an idle connection yields.
            _ if planted("nexus_accepts_no_more") => listener.has_more = false,
            _ if self.evict_idle() => {}
            _ => self.pause_accepting(),
        }
    }

    /// Retrying at once would spin.
    fn pause_accepting(&mut self) {
        self.counters.accept_errors.increment();
        if let Some(listener) = &mut self.listener {
            listener.paused_until = Some(self.now + ACCEPT_PAUSE);
        }
    }

    fn on_accepted(&mut self, stream: N::Stream, remote: SocketAddr) {
        self.counters.connections_accepted.increment();
        let is_full = self.accepted >= self.capacity.connections;
        if is_full || self.awaiting_hello.len() >= self.capacity.awaiting_hello_max {
            self.evict_idle();
        }
        if self.accepted >= self.capacity.connections {
            self.counters.dropped_connections_full.increment();
            return;
        }
        // A socket that is broken already fails here.
        let Ok(local) = stream.local_addr() else { return };
        let connection = Connection::new(stream, (local, remote), false, self.now);
        let Some(id) = self.add_connection(connection) else { return };
        self.accepted += 1;
        self.awaiting_hello.insert(id);
        self.note_use(id);
        self.send_hello(id);
        // Reads a HELLO already received, so the connection does not count as one without HELLO.
        self.read(id);
    }

    /// Drops an idle connection in favour of a new one: a connection without HELLO, else without links, else without
    /// sessions. Of equals, the oldest at the source with the most goes. Returns false if no connection is idle.
    fn evict_idle(&mut self) -> bool {
        if planted("nexus_nobody_yields") {
            return false;
        }
        let idle = self.longest_awaiting_hello().or_else(|| self.longest_idle());
        let Some(idle) = idle else { return self.evict_idle_linked(None).is_some() };
        self.counters.dropped_ungreeted_full.increment();
        let reason = Reason::new(Status::ResourceExhausted, "too many useless connections");
        self.close(idle, &reason, GoodbyeMode::Silent);
        true
    }

    fn longest_awaiting_hello(&self) -> Option<ConnectionId> {
        self.idle_connections.of(Idle::AwaitingHello, None).next()
    }

    /// Returns the connection longest without links, with requesters of counters last.
    fn longest_idle(&self) -> Option<ConnectionId> {
        self.idle_connections.check(&self.connections);
        let mut idle = self.idle_connections.of(Idle::Linkless, None).peekable();
        let longest = idle.peek().copied();
        idle.find(|id| !self.collector.is_requester(*id)).or(longest)
    }

    /// Registers a connection with the readiness loop; does nothing if the system refuses.
    pub(super) fn add_connection(&mut self, mut connection: Connection<N>) -> Option<ConnectionId> {
        let id = ConnectionId(self.new_token());
        self.net.register(&mut connection.stream, id.0).ok()?;
        // Small messages must not wait for one another.
        connection.stream.set_nodelay();
        let former = self.connections.insert(id, connection);
        assert!(former.is_none(), "the name of a connection is never used again: {id:?}");
        self.counters.connections_open.set(self.connections.len());
        Some(id)
    }
}

#[cfg(test)]
mod tests {
    use std::io::Write;
    use std::net::TcpStream;
    use std::time::Duration;

    use super::*;
    use crate::nexus::link::Stage;
    use crate::nexus::net::MioNetwork;
    use crate::nexus::reactor::sessions::tests::open as session_open;
    use crate::nexus::reactor::tests::{attach, hello_bytes, open_connection, reactor};

    type Reactor = super::Reactor<MioNetwork>;

    /// Accepts until peers have made `count` connections; the kernel may take a moment.
    fn accept_until(reactor: &mut Reactor, count: usize) {
        let end = Instant::now() + Duration::from_secs(60);
        let accepted = |reactor: &Reactor| reactor.counters.snapshot().connections_accepted;
        while accepted(reactor) < count as u64 {
            assert!(Instant::now() < end, "it accepts nobody");
            reactor.on_listener_ready();
            let before = accepted(reactor);
            reactor.accept_more();
            assert!(accepted(reactor) - before <= ACCEPTS_PER_TURN as u64, "too many in a turn");
            assert_eq!(reactor.check_tables(), Ok(()));
        }
        assert_eq!(accepted(reactor), count as u64);
    }

    /// A reactor that listens and has accepted `count` connections from silent peers.
    fn with_silent(count: usize, adjust: impl FnOnce(&mut Reactor)) -> (Reactor, Vec<TcpStream>) {
        let (mut reactor, mailbox) = reactor();
        let _inbox = attach(&mailbox);
        reactor.run_commands();
        adjust(&mut reactor);
        let address = reactor.listen(([127, 0, 0, 1], 0).into()).unwrap();
        let peers = (1..=count).map(|accepted| {
            let peer = TcpStream::connect(address).unwrap();
            accept_until(&mut reactor, accepted);
            peer
        });
        let peers = peers.collect();
        (reactor, peers)
    }

    #[test]
    fn accept_more__the_oldest_that_said_nothing_yields_when_there_are_too_many() {
        for (silent, dropped) in [(2, 0), (3, 1), (5, 3)] {
            let (reactor, _peers) =
                with_silent(silent, |reactor| reactor.capacity.awaiting_hello_max = 2);
            let first = ConnectionId(3);
            let left = (first.0 + dropped..first.0 + silent).map(ConnectionId);
            assert!(
                reactor.awaiting_hello.iter().copied().eq(left),
                "{:?}",
                reactor.awaiting_hello
            );
            let stats = reactor.counters.snapshot();
            assert_eq!(stats.dropped_ungreeted_full, dropped as u64);
            assert_eq!((stats.dropped_connections_full, stats.dropped_idle_full), (0, 0));
        }
    }

    #[test]
    fn accept_more__a_full_server_drops_what_is_of_least_use_and_the_newcomer_if_all_are_of_use() {
        let silent = |reactor: &Reactor| reactor.counters.snapshot().dropped_ungreeted_full;
        let (reactor, _peers) = with_silent(3, |reactor| reactor.capacity.connections = 2);
        assert_eq!((reactor.accepted, silent(&reactor)), (2, 1));

        // In turn: a peer that said HELLO and has no link, a peer with a link, and a peer with a proposed session.
        for use_of_it in 0..3 {
            let (reactor, _peers) = with_silent(1, |reactor| {
                reactor.capacity.connections = 1;
                let (id, _) = open_connection(reactor, false);
                if use_of_it > 0 {
                    let stage = Stage::Up { is_opener: false, max_frame: 1_472 };
                    reactor.add_test_link(id, 5, stage);
                }
                if use_of_it > 1 {
                    reactor.on_session_open(id, session_open(5, 1)).unwrap();
                }
            });
            let stats = reactor.counters.snapshot();
            let dropped = [
                stats.dropped_ungreeted_full,
                stats.dropped_idle_full,
                stats.dropped_connections_full,
            ];
            assert_eq!(dropped, [0, 1, 2].map(|which| u64::from(which == use_of_it)));
            assert_eq!(
                (reactor.accepted, reactor.awaiting_hello.len()),
                (1, usize::from(use_of_it < 2))
            );
        }
    }

    #[test]
    fn accept_more__not_during_a_pause_and_again_after_it() {
        let (mut reactor, _) = reactor();
        let address = reactor.listen(([127, 0, 0, 1], 0).into()).unwrap();
        assert_eq!(reactor.poll_timeout(), None, "nothing is to be done");
        let _peer = TcpStream::connect(address).unwrap();
        reactor.on_listener_ready();
        assert_eq!(reactor.poll_timeout(), Some(Duration::ZERO));
        let end = reactor.now + ACCEPT_PAUSE;
        reactor.pause_accepting();
        assert_eq!(reactor.listener.as_ref().unwrap().paused_until, Some(end));
        assert_eq!(reactor.counters.snapshot().accept_errors, 1);
        for now in [reactor.now, end.checked_sub(Duration::from_nanos(1)).unwrap()] {
            reactor.now = now;
            reactor.accept_more();
            assert!(reactor.listener.as_ref().unwrap().paused_until.is_some());
            assert!(reactor.accepted == 0 && !reactor.has_more_to_accept());
            assert!(reactor.poll_timeout().is_some_and(|timeout| timeout <= ACCEPT_PAUSE));
        }
        reactor.now = end;
        accept_until(&mut reactor, 1);
        assert!(reactor.listener.as_ref().unwrap().paused_until.is_none());
    }

    /// By the error, whether a connection is queued, and whether another may yield to it. Expected: whether accepting
    /// goes on, whether it pauses, and whether a connection has yielded.
    #[test]
    fn on_not_accepted__goes_on_where_there_is_something_to_accept() {
        let no_room = ErrorKind::Other;
        for (why, waits, has_idle, [has_more, pauses, yields]) in [
            (ErrorKind::WouldBlock, true, true, [false, false, false]),
            (ErrorKind::ConnectionAborted, true, true, [true, false, false]),
            (ErrorKind::ConnectionAborted, false, true, [true, false, false]),
            (no_room, false, true, [false, false, false]),
            (no_room, false, false, [false, false, false]),
            (no_room, true, true, [true, false, true]),
            (no_room, true, false, [true, true, false]),
        ] {
            let (mut reactor, _peers) = with_silent(usize::from(has_idle), |_| {});
            let address = match &reactor.listener {
                Some(listener) => listener.socket.local_addr().unwrap(),
                None => panic!("it listens"),
            };
            let _peer = waits.then(|| TcpStream::connect(address).unwrap());
            let is_there = |reactor: &Reactor| {
                reactor.net.has_waiting(&reactor.listener.as_ref().unwrap().socket)
            };
            // The kernel may take a moment.
            let end = Instant::now() + Duration::from_secs(60);
            while is_there(&reactor) != waits {
                assert!(Instant::now() < end, "it never comes");
            }
            reactor.on_listener_ready();
            reactor.on_not_accepted(why);
            let listener = reactor.listener.as_ref().unwrap();
            let stats = reactor.counters.snapshot();
            let found = [
                listener.has_more,
                listener.paused_until.is_some(),
                stats.dropped_ungreeted_full == 1,
            ];
            assert_eq!(found, [has_more, pauses, yields], "{why:?} {waits} {has_idle}");
            assert_eq!(stats.accept_errors, u64::from(pauses));
        }
    }

    #[test]
    fn connections__do_not_wait_for_small_messages_to_gather() {
        let (mut reactor, _peers) = with_silent(1, |_| {});
        open_connection(&mut reactor, true);
        let all = reactor.connections.values();
        let waits_for_none: Vec<_> = all.map(|c| c.stream.nodelay().unwrap()).collect();
        assert_eq!(waits_for_none, [true, true]);
    }

    #[test]
    fn accept_more__takes_no_more_than_its_share_of_a_turn_and_all_in_the_end() {
        let (mut reactor, _) = reactor();
        let address = reactor.listen(([127, 0, 0, 1], 0).into()).unwrap();
        let peers = 2 * ACCEPTS_PER_TURN + 8;
        let _peers: Vec<_> = (0..peers).map(|_| TcpStream::connect(address).unwrap()).collect();
        accept_until(&mut reactor, peers);
        assert_eq!(reactor.accepted, peers);
    }

    /// Nothing received is left for the next turn: neither the last connection of a turn's share, nor a connection's
    /// HELLO.
    #[test]
    fn accept_more__takes_its_share_and_the_hellos_that_are_there() {
        let (mut reactor, _) = reactor();
        let address = reactor.listen(([127, 0, 0, 1], 0).into()).unwrap();
        let hello = hello_bytes();
        // The kernel may take a moment to queue them all.
        let has_taken_all = (0..100).any(|_| {
            let peers: Vec<_> = (0..ACCEPTS_PER_TURN)
                .map(|_| {
                    let mut peer = TcpStream::connect(address).unwrap();
                    peer.write_all(&hello).unwrap();
                    peer
                })
                .collect();
            reactor.on_listener_ready();
            let before = reactor.accepted;
            reactor.accept_more();
            let is_all =
                reactor.accepted - before == peers.len() && reactor.awaiting_hello.is_empty();
            while reactor.has_more_to_accept() {
                reactor.accept_more();
            }
            is_all
        });
        assert!(has_taken_all);
    }

    /// Returns true if there is room now. A connection that asks for counters yields last, even as the oldest.
    #[test]
    fn evict_idle__leaves_who_asks_for_counters_for_the_end() {
        let (mut reactor, mailbox) = reactor();
        let _inbox = attach(&mailbox);
        reactor.run_commands();
        let (requester, _one) = open_connection(&mut reactor, false);
        reactor.on_stats_request(requester, 1);
        reactor.now += Duration::from_secs(1);
        let (other, _other) = open_connection(&mut reactor, false);
        for (dropped, left) in [(other, 1), (requester, 0)] {
            assert!(reactor.evict_idle());
            assert!(!reactor.connections.contains_key(&dropped));
            assert_eq!(reactor.connections.len(), left);
        }
        assert!(!reactor.evict_idle(), "there is nothing to drop");
        assert_eq!(reactor.counters.snapshot().dropped_ungreeted_full, 2);
    }
}
