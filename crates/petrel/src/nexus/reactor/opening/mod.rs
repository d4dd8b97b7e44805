//! The beginning of connections (`docs/wire-protocol.md` §8.3). Peers connect to this process, and this process
//! connects to each remote control address once, for all endpoints. By HELLO both sides learn each other's identity and
//! agree on a version.

#[cfg(test)]
mod tests;

use std::io::{self, ErrorKind};
use std::net::{SocketAddr, TcpListener};
use std::time::Duration;

use petrel_planted::planted;
use petrel_proto::Status;
use petrel_proto::control::{Hello, VersionRange, choose_version};

use super::listener::Listener;
use super::{LISTENER, Reactor};
use crate::control::Reason;
use crate::events;
use crate::nexus::AGENT;
use crate::nexus::connection::{Connection, Peer, StreamFor, canonical};
use crate::nexus::connections::Admission;
use crate::nexus::deadlines::Due;
use crate::nexus::goodbye::GoodbyeMode;
use crate::nexus::ids::ConnectionId;
use crate::nexus::limits::{
    ACCEPT_PAUSE, ACCEPTS_PER_TURN, LISTEN_QUEUE, REDIAL_PAUSE_MAX, REDIAL_PAUSE_MIN,
};
use crate::nexus::media::HostLinks;
use crate::nexus::net::{HostListener, MioNetwork, Network, Stream};
use crate::nexus::request::OpenRequest;

impl<L: HostLinks> Reactor<MioNetwork<L>> {
    /// Listens on a bound socket, and returns its address.
    pub(in crate::nexus) fn listen_on(&mut self, socket: &TcpListener) -> io::Result<SocketAddr> {
        let socket = socket.try_clone()?;
        socket.set_nonblocking(true)?;
        let socket = HostListener::Tcp(mio::net::TcpListener::from_std(socket));
        let (socket, local) = self.net.listen_on(socket, LISTEN_QUEUE, LISTENER)?;
        self.listener = Some(Listener::new(socket));
        Ok(local)
    }
}

impl<N: Network> Reactor<N> {
    /// Listens, and returns the address with the port chosen by the system.
    pub(in crate::nexus) fn listen(&mut self, address: SocketAddr) -> io::Result<SocketAddr> {
        let (socket, local) = self.net.listen(address, LISTEN_QUEUE, LISTENER)?;
        self.listener = Some(Listener::new(socket));
        Ok(local)
    }

    pub(super) fn stop_listening(&mut self) {
        if let Some(listener) = self.listener.take() {
            listener.close(&mut self.net);
        }
    }

    pub(super) fn on_listener_ready(&mut self) {
        if let Some(listener) = &mut self.listener {
            listener.on_ready();
        }
    }

    pub(super) fn has_more_to_accept(&self) -> bool {
        self.listener.as_ref().is_some_and(Listener::has_more)
    }

    /// Accepts a bounded number of connections.
    pub(super) fn accept_more(&mut self) {
        if let Some(listener) = &mut self.listener {
            listener.resume(self.relay.now());
        }
        for _ in 0..ACCEPTS_PER_TURN {
            let Some(listener) = self.listener.as_mut().filter(|listener| listener.has_more())
            else {
                break;
            };
            match listener.accept(&self.net) {
                Ok((stream, remote)) => self.on_accepted(stream, remote),
                Err(why) => self.on_not_accepted(why),
            }
        }
    }

    /// Ends an idle connection for a queued one for which the system has no room; without an idle one, pauses
    /// accepting.
    fn on_not_accepted(&mut self, why: ErrorKind) {
        let Some(listener) = &mut self.listener else { return };
        if listener.lacks_room(why, &self.net) && !self.evict_idle() {
            self.pause_accepting();
        }
    }

    fn pause_accepting(&mut self) {
        self.relay.counters().accept_errors.increment();
        if let Some(listener) = &mut self.listener {
            listener.pause(self.relay.now() + ACCEPT_PAUSE);
        }
    }

    fn on_accepted(&mut self, stream: N::Stream, remote: SocketAddr) {
        self.relay.counters().connections_accepted.increment();
        let connections = &self.relay.connections;
        if connections.is_full() || connections.has_too_many_silent() {
            self.evict_idle();
        }
        if self.relay.connections.is_full() {
            self.relay.counters().dropped_connections_full.increment();
            return;
        }
        // A socket that is broken already fails here.
        let Ok(local) = stream.local_addr() else { return };
        let user = self.net.user_of(&stream, (local, remote));
        let connection = Connection::new(stream, (local, remote), false, self.relay.now());
        let mut connection = connection.of_user(user);
        match self.relay.settings().accepting_channel(remote) {
            Ok(channel) => connection.secure(channel),
            Err(error) => return events::credentials_failed(&error),
        }
        let Some(id) = self.add_connection(connection) else { return };
        self.relay.connections.count_accepted(id);
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
        let connections = &self.relay.connections;
        if let Some(idle) = connections.least_used(|id| self.collector.is_requester(id)) {
            self.relay.counters().dropped_ungreeted_full.increment();
            let reason = Reason::new(Status::ResourceExhausted, "too many useless connections");
            self.close(idle, &reason, GoodbyeMode::Silent);
            return true;
        }
        let idle = connections.longest_sessionless(None);
        match idle.or_else(|| connections.requestless(None).next()) {
            Some(idle) => {
                self.evict_useless(idle, "connections are short");
                true
            }
            None => false,
        }
    }

    fn evict_useless(&mut self, id: ConnectionId, what_is_short: &str) {
        self.relay.counters().dropped_idle_full.increment();
        let why = format!("{what_is_short} here, and no request has come by this connection");
        let reason = Reason::new(Status::Unavailable, why);
        self.close(id, &reason, GoodbyeMode::Send(reason.clone()));
    }

    /// Ends connections without a request if there is no memory for another connection's session.
    pub(super) fn make_room_for_session(&mut self, id: ConnectionId, slots: u16) {
        // Sessions that have ended take no memory any more.
        self.run_commands();
        while let Some(yields) = self.relay.connections.in_place_of_sessions(id, slots) {
            self.evict_useless(yields, "memory for sessions is short");
        }
    }

    /// Ensures that a connection may have a further link; another one may end for it.
    pub(super) fn admit_link(&mut self, id: ConnectionId) -> Result<(), Reason> {
        match self.relay.connections.admission(id) {
            Admission::Granted => {}
            Admission::InPlaceOf(idle) => self.evict_useless(idle, "connections are short"),
            Admission::Refused(reason) => return Err(reason),
        }
        Ok(())
    }

    /// Registers a connection with the readiness loop; does nothing if the system refuses.
    pub(super) fn add_connection(&mut self, mut connection: Connection<N>) -> Option<ConnectionId> {
        let id = self.relay.tokens().next_connection();
        let is_connecting = connection.is_connecting();
        self.net.register(connection.stream_mut(), id.0, is_connecting).ok()?;
        self.relay.connections.add(id, connection);
        self.relay.counters().connections_open.set(self.relay.connections.len());
        Some(id)
    }

    /// Requests a link as soon as there is a connection.
    pub(super) fn open_link(&mut self, request: OpenRequest) {
        let remote = canonical(request.remote());
        if !self.relay.settings().may_connect_to(remote) {
            let reason = not_loopback(remote);
            return self.relay.fail_request(&request, reason);
        }
        if let Some(waiting) = self.routes.paused(remote) {
            waiting.push(request);
        } else if let Some(id) = self.routes.connection(remote) {
            self.ask_or_wait(id, request);
        } else {
            self.dial(remote, vec![request], 0);
        }
    }

    fn ask_or_wait(&mut self, id: ConnectionId, request: OpenRequest) {
        match self.relay.connections.get_mut(id) {
            Some(connection) if !connection.is_open() => connection.wait(request),
            _ => self.ask_for_link(id, request),
        }
    }

    fn dial(&mut self, remote: SocketAddr, waiting: Vec<OpenRequest>, attempt: u32) {
        self.relay.counters().connections_dialed.increment();
        match self.connect(remote) {
            Ok(id) => {
                if let Some(connection) = self.relay.connections.get_mut(id) {
                    connection.begin_attempt(waiting, attempt);
                }
                self.routes.lead(remote, id);
            }
            Err(error) => self.fail_dial(remote, &waiting, &error),
        }
    }

    pub(super) fn connect(&mut self, remote: SocketAddr) -> io::Result<ConnectionId> {
        let stream = self.net.connect(remote)?;
        // Small messages must not wait for one another.
        stream.set_nodelay();
        // The local address is known once the connection is made.
        let mut connection = Connection::new(stream, (remote, remote), true, self.relay.now());
        let channel = self.relay.settings().connecting_channel(remote);
        connection.secure(channel.map_err(io::Error::other)?);
        self.add_connection(connection).ok_or_else(|| ErrorKind::OutOfMemory.into())
    }

    /// Handles an event of a connection in TCP's handshake.
    pub(super) fn on_dial_progress(&mut self, id: ConnectionId) {
        let Some(connection) = self.relay.connections.get_mut(id) else { return };
        let failed = connection.stream().take_error().ok().flatten();
        match failed.map_or_else(|| connection.stream().peer_addr(), Err) {
            Ok(_) => self.on_connected(id),
            Err(error) if is_under_way(&error) => {}
            Err(error) => self.on_dial_failed(id, &error),
        }
    }

    fn on_connected(&mut self, id: ConnectionId) {
        let now = self.relay.now();
        let Some(connection) = self.relay.connections.get_mut(id) else { return };
        match connection.stream().local_addr() {
            Ok(local) => connection.on_connected(local, now),
            Err(error) => return self.on_dial_failed(id, &error),
        }
        self.begin_conversation(id);
        self.read(id);
    }

    /// Sends the first message of a connection that this process made.
    fn begin_conversation(&mut self, id: ConnectionId) {
        let Some(connection) = self.relay.connections.get_mut(id) else { return };
        match connection.carried().map(StreamFor::open) {
            Some(open) => {
                connection.queue_preface();
                self.relay.connections.write_later(id);
                self.relay.send(id, open);
            }
            None => self.send_hello(id),
        }
    }

    pub(super) fn on_dial_failed(&mut self, id: ConnectionId, error: &io::Error) {
        let Some(connection) = self.relay.connections.get_mut(id) else { return };
        let (remote, waiting) = (connection.remote(), connection.take_waiting());
        let reason = dial_reason(remote, error, self.relay.settings().step_timeout());
        self.close(id, &reason, GoodbyeMode::Silent);
        self.fail_dial(remote, &waiting, error);
    }

    fn fail_dial(&mut self, remote: SocketAddr, waiting: &[OpenRequest], error: &io::Error) {
        self.relay.counters().dials_failed.increment();
        let reason = dial_reason(remote, error, self.relay.settings().step_timeout());
        waiting.iter().for_each(|request| self.relay.fail_request(request, reason.clone()));
    }

    /// Tries again after a pause if requests still wait.
    pub(super) fn redial_later(
        &mut self,
        remote: SocketAddr,
        waiting: Vec<OpenRequest>,
        attempt: u32,
    ) {
        if waiting.is_empty() {
            return;
        }
        // The broken connection may be retired, with a successor in its place.
        if let Some(others) = self.routes.paused(remote) {
            others.extend(waiting);
        } else if let Some(id) = self.routes.connection(remote) {
            waiting.into_iter().for_each(|request| self.ask_or_wait(id, request));
        } else {
            self.relay.counters().connections_redialed.increment();
            self.routes.pause(remote, waiting, attempt);
            self.relay.remind(redial_pause(attempt), Due::Redial(remote));
        }
    }

    pub(super) fn on_redial_due(&mut self, remote: SocketAddr) {
        if let Some((waiting, attempt)) = self.routes.end_pause(remote) {
            self.dial(remote, waiting, attempt);
        }
    }

    /// Sends HELLO, as each side does at once.
    fn send_hello(&mut self, id: ConnectionId) {
        let (now, heartbeat) = (self.relay.now(), self.relay.settings().heartbeat());
        if let Some(connection) = self.relay.connections.get_mut(id) {
            connection.queue_preface();
            connection.signs_mut().begin(now, heartbeat);
            self.relay.connections.write_later(id);
        }
        let hello = self.own_hello();
        self.relay.send(id, hello);
    }

    fn own_hello(&self) -> Hello {
        let (settings, rendezvous) = (self.relay.settings(), self.exchanges.local());
        Hello {
            versions: VersionRange::OWN,
            incarnation: settings.incarnation(),
            // The builder checked that it fits.
            heartbeat_ms: settings.heartbeat().as_millis() as u32,
            agent: AGENT.to_owned(),
            host_identity: rendezvous.map(|local| local.host_identity()),
            rendezvous: rendezvous.map(|local| local.name().to_vec()),
        }
    }

    pub(super) fn on_hello(&mut self, id: ConnectionId, hello: Hello) {
        let now = self.relay.now();
        if let Err(mismatch) = choose_version(VersionRange::OWN, hello.versions) {
            self.relay.counters().refused_version.increment();
            let reason = Reason::new(Status::Unimplemented, mismatch.to_string());
            return self.close(id, &reason, GoodbyeMode::Send(reason.clone()));
        }
        if self.relay.connections.get(id).is_some_and(|connection| connection.carried().is_some()) {
            return;
        }
        self.relay.connections.greet(id);
        self.note_incarnation(id, hello.incarnation);
        let Some(connection) = self.relay.connections.get_mut(id) else { return };
        let is_plain = !connection.is_opener() && connection.channel().is_plain();
        let waiting = connection.on_hello(Peer::new(hello), now);
        if is_plain && self.relay.settings().is_permissive() {
            self.relay.counters().connections_plain.increment();
        }
        self.relay.connections.note_use(id);
        self.watch_trust(id);
        for request in waiting {
            self.ask_for_link(id, request);
        }
    }

    /// Counts another process at the address of a connection to a peer.
    fn note_incarnation(&mut self, id: ConnectionId, incarnation: u64) {
        let connection = self.relay.connections.get(id).filter(|c| c.is_opener());
        let Some(remote) = connection.map(|connection| connection.remote()) else { return };
        if self.routes.note_incarnation(remote, incarnation) {
            self.relay.counters().peers_restarted.increment();
        }
    }
}

fn is_under_way(error: &io::Error) -> bool {
    matches!(error.kind(), ErrorKind::NotConnected | ErrorKind::WouldBlock)
        || error.raw_os_error() == Some(rustix::io::Errno::INPROGRESS.raw_os_error())
}

fn not_loopback(remote: SocketAddr) -> Reason {
    Reason::new(
        Status::FailedPrecondition,
        format!(
            "refused to connect to {remote}: without credentials, calls stay on this host; call \
             insecure() on the nexus's builder if the network is trusted"
        ),
    )
}

fn dial_reason(remote: SocketAddr, error: &io::Error, timeout: Duration) -> Reason {
    let why = match error.kind() {
        ErrorKind::ConnectionRefused => format!(
            "no process listens at {remote}: is the server started, and is this its control address?"
        ),
        ErrorKind::TimedOut => format!(
            "no answer from {remote} within {timeout:?}: is the host up, and does a firewall drop \
             the port?"
        ),
        _ => format!("cannot connect to {remote}: {error}"),
    };
    Reason::new(Status::Unavailable, why)
}

/// Returns the pause before an attempt, which doubles with each attempt up to a limit.
fn redial_pause(attempt: u32) -> Duration {
    assert!(attempt > 0, "the first attempt waits for nothing");
    REDIAL_PAUSE_MIN.saturating_mul(1 << (attempt - 1).min(16)).min(REDIAL_PAUSE_MAX)
}
