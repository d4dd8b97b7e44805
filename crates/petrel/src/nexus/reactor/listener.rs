//! The listening socket (`docs/wire-protocol.md` §8.3).

use std::io::ErrorKind;
use std::net::SocketAddr;
use std::time::Instant;

use petrel_planted::planted;

use crate::nexus::connection::retry;
use crate::nexus::net::Network;

/// The listening socket.
#[derive(Debug)]
pub(super) struct Listener<N: Network> {
    socket: N::Listener,
    /// More connections may be queued, though no event will report them.
    has_more: bool,
    /// The system had no room for another connection; accepting resumes at this time.
    paused_until: Option<Instant>,
}

impl<N: Network> Listener<N> {
    pub(super) fn new(socket: N::Listener) -> Self {
        Self { socket, has_more: false, paused_until: None }
    }

    pub(super) fn close(self, net: &mut N) {
        net.close_listener(self.socket);
    }

    /// Notes that connections may be queued.
    pub(super) fn on_ready(&mut self) {
        self.has_more = true;
    }

    /// Returns true if a connection may be accepted now.
    pub(super) fn has_more(&self) -> bool {
        self.has_more && self.paused_until.is_none()
    }

    pub(super) fn paused_until(&self) -> Option<Instant> {
        self.paused_until
    }

    /// Accepts no connection until then: retrying at once would spin.
    pub(super) fn pause(&mut self, until: Instant) {
        assert!(self.has_more, "a pause is for connections that wait");
        self.paused_until = Some(until);
    }

    /// Ends a pause that is over.
    pub(super) fn resume(&mut self, now: Instant) {
        self.paused_until = self.paused_until.filter(|until| *until > now);
    }

    /// Accepts the next connection.
    ///
    /// # Errors
    /// The reason that there is none.
    pub(super) fn accept(&mut self, net: &N) -> Result<(N::Stream, SocketAddr), ErrorKind> {
        retry(|| net.accept(&self.socket)).map_err(|error| error.kind())
    }

    /// Handles a failure to accept. Returns true if a connection is queued for which the system has no room.
    pub(super) fn lacks_room(&mut self, why: ErrorKind, net: &N) -> bool {
        match why {
            ErrorKind::WouldBlock => self.has_more = false,
            // The peer closed the connection before it was accepted.
            ErrorKind::ConnectionAborted => {}
            // The kernel looks for a free descriptor before it looks at the queue.
            _ if !net.has_waiting(&self.socket) => self.has_more = false,
            _ if planted("nexus_accepts_no_more") => self.has_more = false,
            _ => return true,
        }
        false
    }

    #[cfg(test)]
    pub(super) fn test_has_more(&self) -> bool {
        self.has_more
    }

    #[cfg(test)]
    pub(super) fn test_socket(&self) -> &N::Listener {
        &self.socket
    }
}
