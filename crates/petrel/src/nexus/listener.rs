//! Connections that peers make (`docs/wire-protocol.md` §8.3).

use std::io::{self, ErrorKind};
use std::net::SocketAddr;
use std::time::Instant;

use petrel_planted::planted;
use petrel_proto::Status;

use super::closing::Farewell;
use super::connection::{Connection, ConnectionId, retry};
use super::idlers::Idle;
use super::limits::{ACCEPT_PAUSE, ACCEPTS_PER_TURN, LISTEN_QUEUE};
use super::net::{Network, Stream};
use super::reactor::{LISTENER, Reactor};
use crate::control::Reason;

/// The listening socket.
#[derive(Debug)]
pub(super) struct Listener<N: Network> {
    socket: N::Listener,
    /// More connections may wait, though no event will say so.
    has_more: bool,
    /// The system had no room for another connection: it is tried again then.
    pub(super) paused_until: Option<Instant>,
}

impl<N: Network> Reactor<N> {
    /// Listens, and returns the address with the port that the system chose.
    pub(super) fn listen(&mut self, address: SocketAddr) -> io::Result<SocketAddr> {
        let (socket, local) = self.net.listen(address, LISTEN_QUEUE, LISTENER)?;
        self.listener = Some(Listener { socket, has_more: false, paused_until: None });
        Ok(local)
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
            Err(error) if error.kind() == ErrorKind::WouldBlock => listener.has_more = false,
            // The peer was gone before it was accepted.
            Err(error) if error.kind() == ErrorKind::ConnectionAborted => {}
            // The kernel looks for a free descriptor before it looks at its queue.
            Err(_) if !self.net.has_waiting(&listener.socket) => listener.has_more = false,
            // No descriptors or memory, and the connection still waits: a connection without use
            // yields to it.
            Err(_) if planted("nexus_accepts_no_more") => listener.has_more = false,
            Err(_) if self.drop_useless() => {}
            Err(_) => {
                // Asking again at once would spin.
                self.counters.accept_errors.increment();
                if let Some(listener) = &mut self.listener {
                    listener.paused_until = Some(self.now + ACCEPT_PAUSE);
                }
            }
        }
    }

    fn on_accepted(&mut self, stream: N::Stream, remote: SocketAddr) {
        self.counters.connections_accepted.increment();
        let is_full = self.accepted >= self.capacity.connections;
        if is_full || self.ungreeted.len() >= self.capacity.ungreeted {
            self.drop_useless();
        }
        if self.accepted >= self.capacity.connections {
            self.counters.dropped_connections_full.increment();
            return;
        }
        // A socket that is broken already says so here.
        let Ok(local) = stream.local_addr() else { return };
        let connection = Connection::new(stream, (local, remote), false, self.now);
        let Some(id) = self.add_connection(connection) else { return };
        self.accepted += 1;
        self.ungreeted.insert(id);
        self.note_use(id);
        self.greet(id);
        // A HELLO that is here already keeps the connection from being one of the silent ones.
        self.read(id);
    }

    /// Drops a connection that is of no use, for the sake of one that may be: one that has not said
    /// HELLO, or else one without links, or else one without sessions. Of these the oldest, at
    /// the site that has most of them. False: all are of use.
    fn drop_useless(&mut self) -> bool {
        if planted("nexus_nobody_yields") {
            return false;
        }
        let useless = self.longest_ungreeted().or_else(|| self.longest_idle());
        let Some(useless) = useless else { return self.make_seat(None).is_some() };
        self.counters.dropped_ungreeted_full.increment();
        let reason = Reason::new(Status::ResourceExhausted, "too many useless connections");
        self.close(useless, &reason, Farewell::Silent);
        true
    }

    fn longest_ungreeted(&self) -> Option<ConnectionId> {
        self.idlers.of(Idle::Ungreeted, None).next()
    }

    /// Of those without links the one longest without; one that asks for counters comes last.
    fn longest_idle(&self) -> Option<ConnectionId> {
        self.check_idlers();
        let mut idle = self.idlers.of(Idle::Linkless, None).peekable();
        let longest = idle.peek().copied();
        idle.find(|id| !self.is_asker(*id)).or(longest)
    }

    /// Takes a connection into the readiness loop; nothing happens if the system refuses.
    pub(super) fn add_connection(&mut self, mut connection: Connection<N>) -> Option<ConnectionId> {
        let id = ConnectionId(self.new_token());
        self.net.register(&mut connection.stream, id.0).ok()?;
        // Small messages must not wait for one another.
        connection.stream.set_nodelay();
        self.connections.insert(id, connection);
        self.counters.connections_open.set(self.connections.len());
        Some(id)
    }
}
