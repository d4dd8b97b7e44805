//! Connections to peers: one per remote control address, shared by all endpoints.

use std::io::{self, ErrorKind};
use std::net::SocketAddr;
use std::time::Duration;

use petrel_proto::Status;

use super::Reactor;
use crate::control::{EndpointId, Reason};
use crate::nexus::connection::{Connection, Phase, canonical};
use crate::nexus::deadlines::Due;
use crate::nexus::goodbye::GoodbyeMode;
use crate::nexus::ids::ConnectionId;
use crate::nexus::limits::{REDIAL_PAUSE_MAX, REDIAL_PAUSE_MIN};
use crate::nexus::net::{Network, Stream};
use crate::nexus::request::OpenRequest;
use crate::nexus::routes::Outgoing;

impl<N: Network> Reactor<N> {
    /// Requests a link as soon as there is a connection.
    pub(super) fn open_link(&mut self, request: OpenRequest) {
        let remote = canonical(request.remote);
        if !self.settings.insecure && !remote.ip().is_loopback() {
            let reason = not_loopback(remote);
            return self.fail_request(&request, reason);
        }
        match self.outgoing.get_mut(&remote) {
            Some(Outgoing::Pause { waiting, .. }) => waiting.push(request),
            Some(Outgoing::Connection(id)) => {
                let id = *id;
                self.ask_or_wait(id, request);
            }
            None => self.dial(remote, vec![request], 0),
        }
    }

    fn ask_or_wait(&mut self, id: ConnectionId, request: OpenRequest) {
        match self.connections.get_mut(&id) {
            Some(connection) if !connection.is_open() => connection.waiting.push(request),
            _ => self.ask_for_link(id, request),
        }
    }

    fn dial(&mut self, remote: SocketAddr, waiting: Vec<OpenRequest>, attempt: u32) {
        self.counters.connections_dialed.increment();
        match self.connect(remote) {
            Ok(id) => {
                if let Some(connection) = self.connections.get_mut(&id) {
                    connection.waiting = waiting;
                    connection.attempt = attempt;
                }
                let former = self.outgoing.insert(remote, Outgoing::Connection(id));
                assert!(former.is_none(), "a way to {remote} exists, and would be forgotten");
            }
            Err(error) => self.fail_dial(remote, &waiting, &error),
        }
    }

    fn connect(&mut self, remote: SocketAddr) -> io::Result<ConnectionId> {
        let stream = self.net.connect(remote)?;
        // The local address is known once the connection is made.
        let connection = Connection::new(stream, (remote, remote), true, self.now);
        self.add_connection(connection).ok_or_else(|| ErrorKind::OutOfMemory.into())
    }

    /// Handles an event of a connection in TCP's handshake.
    pub(super) fn on_dial_progress(&mut self, id: ConnectionId) {
        let Some(connection) = self.connections.get_mut(&id) else { return };
        let failed = connection.stream.take_error().ok().flatten();
        match failed.map_or_else(|| connection.stream.peer_addr(), Err) {
            Ok(_) => self.on_connected(id),
            Err(error) if is_under_way(&error) => {}
            Err(error) => self.on_dial_failed(id, &error),
        }
    }

    fn on_connected(&mut self, id: ConnectionId) {
        let Some(connection) = self.connections.get_mut(&id) else { return };
        match connection.stream.local_addr() {
            Ok(local) => connection.local = canonical(local),
            Err(error) => return self.on_dial_failed(id, &error),
        }
        connection.enter(Phase::AwaitingHello, self.now);
        connection.last_received = self.now;
        self.send_hello(id);
        self.read(id);
    }

    pub(super) fn on_dial_failed(&mut self, id: ConnectionId, error: &io::Error) {
        let Some(connection) = self.connections.get_mut(&id) else { return };
        let (remote, waiting) = (connection.remote, std::mem::take(&mut connection.waiting));
        let reason = dial_reason(remote, error, self.settings.step_timeout);
        self.close(id, &reason, GoodbyeMode::Silent);
        self.fail_dial(remote, &waiting, error);
    }

    fn fail_dial(&mut self, remote: SocketAddr, waiting: &[OpenRequest], error: &io::Error) {
        self.counters.dials_failed.increment();
        let reason = dial_reason(remote, error, self.settings.step_timeout);
        waiting.iter().for_each(|request| self.fail_request(request, reason.clone()));
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
        match self.outgoing.get_mut(&remote) {
            // The connection that broke was retired, and another one has taken its place.
            Some(Outgoing::Pause { waiting: others, .. }) => others.extend(waiting),
            Some(Outgoing::Connection(id)) => {
                let id = *id;
                waiting.into_iter().for_each(|request| self.ask_or_wait(id, request));
            }
            None => {
                self.counters.connections_redialed.increment();
                let pause = redial_pause(attempt);
                self.outgoing.insert(remote, Outgoing::Pause { waiting, attempt });
                self.deadlines.add(self.now + pause, Due::Redial(remote));
            }
        }
    }

    /// Drops the outstanding requests of an endpoint that has gone. The next endpoint with the number numbers requests
    /// in the same way and must not get the answers.
    pub(super) fn forget_requests(&mut self, endpoint: EndpointId) {
        let is_others = |request: &OpenRequest| request.endpoint != endpoint;
        self.connections.values_mut().for_each(|connection| connection.waiting.retain(is_others));
        self.outgoing.retain(|_, outgoing| match outgoing {
            Outgoing::Connection(_) => true,
            Outgoing::Pause { waiting, .. } => {
                waiting.retain(is_others);
                !waiting.is_empty()
            }
        });
    }

    pub(super) fn on_redial_due(&mut self, remote: SocketAddr) {
        if let Some(Outgoing::Pause { .. }) = self.outgoing.get(&remote)
            && let Some(Outgoing::Pause { waiting, attempt }) = self.outgoing.remove(&remote)
        {
            self.dial(remote, waiting, attempt);
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

/// The pause before an attempt: doubled with each attempt, up to a limit.
fn redial_pause(attempt: u32) -> Duration {
    assert!(attempt > 0, "the first attempt waits for nothing");
    REDIAL_PAUSE_MIN.saturating_mul(1 << (attempt - 1).min(16)).min(REDIAL_PAUSE_MAX)
}

#[cfg(test)]
mod tests {
    use std::net::TcpListener;

    use petrel_proto::control::{Decoder, Message};

    use super::*;
    use crate::control::{AllowedTransports, FromNexus};
    use crate::nexus::reactor::tests::{attach, reactor};
    use std::time::Instant;

    type Reactor = super::Reactor<crate::nexus::net::MioNetwork>;

    /// A request for a link to `remote` with a timeout of an hour.
    fn request(reactor: &Reactor, remote: SocketAddr, endpoint: u16, request: u64) -> OpenRequest {
        OpenRequest {
            endpoint: EndpointId(endpoint),
            request,
            remote,
            remote_endpoint: EndpointId(0),
            transports: AllowedTransports { udp: true, shm: false },
            give_up_at: reactor.now + Duration::from_secs(3_600),
        }
    }

    /// A connection that was retired breaks while another one, or the pause after it, has requests of its own.
    #[test]
    fn redial_later__keeps_the_requests_of_the_next_connection() {
        for has_broken in [false, true] {
            let (mut reactor, _) = reactor();
            let listener = TcpListener::bind("127.0.0.1:0").unwrap();
            let remote = listener.local_addr().unwrap();
            let mut ways = [1, 2].map(|number| {
                reactor.open_link(request(&reactor, remote, 0, number));
                let Outgoing::Connection(id) = reactor.outgoing[&remote] else { panic!("a pause") };
                if number == 1 {
                    reactor.connections.get_mut(&id).unwrap().is_retired = true;
                    reactor.forget_route(id);
                }
                id
            });
            ways.reverse();
            for id in &ways[usize::from(!has_broken)..] {
                reactor.on_stream_end(*id, "the test ends it");
            }
            let waiting = match &reactor.outgoing[&remote] {
                Outgoing::Pause { waiting, .. } if has_broken => waiting,
                Outgoing::Connection(id) if !has_broken && *id == ways[0] => {
                    &reactor.connections[id].waiting
                }
                other => panic!("{other:?}"),
            };
            let numbers: Vec<_> = waiting.iter().map(|request| request.request).collect();
            assert_eq!(numbers, [2, 1], "each request waits for the next answer");
            assert_eq!(reactor.check_tables(), Ok(()));
        }
    }

    #[test]
    fn dial__counts_the_tries_from_one_connection_to_the_next() {
        let (mut reactor, _) = reactor();
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let remote = listener.local_addr().unwrap();
        reactor.open_link(request(&reactor, remote, 0, 1));
        for attempt in 0..4 {
            let Outgoing::Connection(id) = reactor.outgoing[&remote] else { panic!("a pause") };
            // The request joins the connection that is being made.
            reactor.open_link(request(&reactor, remote, 0, 2 + u64::from(2 * attempt)));
            let connection = &reactor.connections[&id];
            let asked = 2 + 2 * attempt as usize;
            assert_eq!((connection.attempt, connection.waiting.len()), (attempt, asked));
            reactor.on_stream_end(id, "the test ends it");
            reactor.open_link(request(&reactor, remote, 0, 3 + u64::from(2 * attempt)));
            let Outgoing::Pause { waiting, attempt: tries } = &reactor.outgoing[&remote] else {
                panic!("no pause")
            };
            assert_eq!((*tries, waiting.len()), (attempt + 1, asked + 1));
            assert!(reactor.connections.is_empty());
            reactor.now = reactor.deadlines.next().unwrap();
            reactor.run_deadlines();
        }
        let stats = reactor.counters.snapshot();
        assert_eq!((stats.connections_dialed, stats.connections_redialed), (5, 4));
        assert_eq!((stats.connections_broken, stats.dials_failed, stats.links_failed), (4, 0, 0));
    }

    #[test]
    fn on_connected__says_hello_and_waits_for_the_peers() {
        let (mut reactor, _) = reactor();
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let remote = listener.local_addr().unwrap();
        reactor.open_link(request(&reactor, remote, 0, 1));
        let Outgoing::Connection(id) = reactor.outgoing[&remote] else { panic!("a pause") };
        let end = Instant::now() + Duration::from_secs(60);
        reactor.now += Duration::from_secs(5);
        while matches!(reactor.connections[&id].phase, Phase::Connecting) {
            assert!(Instant::now() < end, "it is never connected");
            reactor.on_dial_progress(id);
        }
        let interval = reactor.settings.heartbeat;
        let connection = reactor.connections.get_mut(&id).unwrap();
        assert!(matches!(connection.phase, Phase::AwaitingHello));
        assert_eq!((connection.since, connection.last_received), (reactor.now, reactor.now));
        assert_eq!(connection.ping_at, reactor.now + interval);
        assert_eq!(connection.local, listener.accept().unwrap().1);
        assert_eq!(reactor.unsent, [id]);
        let (bytes, mut decoder) = (connection.out.take(), Decoder::new());
        let mut bytes = bytes.as_slice();
        let Ok(Some(Message::Hello(hello))) = decoder.decode(&mut bytes) else {
            panic!("no HELLO")
        };
        assert_eq!(hello.incarnation, reactor.settings.incarnation);
        assert_eq!(u128::from(hello.heartbeat_ms), interval.as_millis());
        assert_eq!(decoder.decode(&mut bytes), Ok(None), "it asks when the peer has said HELLO");
        assert_eq!(connection.waiting.len(), 1);
    }

    /// Events may arrive before the connection is made or has failed.
    #[test]
    fn on_dial_progress__waits_for_what_is_under_way() {
        let (mut reactor, _) = reactor();
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        // A single unaccepted connection fills the queue; further ones get no answer from the kernel.
        rustix::net::listen(&listener, 0).unwrap();
        let remote = listener.local_addr().unwrap();
        let _first = std::net::TcpStream::connect(remote).unwrap();
        reactor.open_link(request(&reactor, remote, 0, 1));
        let Outgoing::Connection(id) = reactor.outgoing[&remote] else { panic!("a pause") };
        for _ in 0..3 {
            reactor.on_dial_progress(id);
            assert!(matches!(reactor.connections[&id].phase, Phase::Connecting));
        }
        assert_eq!(reactor.counters.snapshot().dials_failed, 0);
        drop(listener);
    }

    #[test]
    fn forget_requests__leaves_connections_and_what_others_wait_for() {
        let (mut reactor, _) = reactor();
        let listeners = [(); 3].map(|()| TcpListener::bind("127.0.0.1:0").unwrap());
        let [used, paused, own] = listeners.each_ref().map(|l| l.local_addr().unwrap());
        let asked_by = |reactor: &Reactor, remote, endpoints: &[u16]| -> Vec<_> {
            endpoints.iter().map(|endpoint| request(reactor, remote, *endpoint, 1)).collect()
        };
        for request in asked_by(&reactor, used, &[0, 1, 0]) {
            reactor.open_link(request);
        }
        reactor.redial_later(paused, asked_by(&reactor, paused, &[1, 0, 1]), 1);
        reactor.redial_later(own, asked_by(&reactor, own, &[0, 0]), 1);
        reactor.forget_requests(EndpointId(0));
        let Outgoing::Connection(id) = reactor.outgoing[&used] else { panic!("a pause") };
        let Outgoing::Pause { waiting, attempt: 1 } = &reactor.outgoing[&paused] else {
            panic!("no pause, or another attempt")
        };
        assert!(!reactor.outgoing.contains_key(&own), "nobody waits there");
        for (left, count) in [(&reactor.connections[&id].waiting, 1), (waiting, 2)] {
            assert_eq!(left.len(), count);
            assert!(left.iter().all(|request| request.endpoint == EndpointId(1)));
        }
        // The next request uses the existing connection.
        reactor.open_link(request(&reactor, used, 0, 2));
        assert_eq!(reactor.connections.len(), 1);
    }

    #[test]
    fn redial_pause__doubles_up_to_a_limit() {
        let pauses = [1, 2, 3, 4, 5, 6, 17, 18, u32::MAX].map(redial_pause);
        let ms = [20, 40, 80, 160, 320, 500, 500, 500, 500];
        assert_eq!(pauses, ms.map(Duration::from_millis));
    }

    #[test]
    fn is_under_way__by_what_the_system_says() {
        let in_progress = rustix::io::Errno::INPROGRESS.raw_os_error();
        for kind in [ErrorKind::NotConnected, ErrorKind::WouldBlock] {
            assert!(is_under_way(&kind.into()));
        }
        assert!(is_under_way(&io::Error::from_raw_os_error(in_progress)));
        for kind in [ErrorKind::ConnectionRefused, ErrorKind::TimedOut] {
            assert!(!is_under_way(&kind.into()));
        }
    }

    #[test]
    fn redial_later__after_its_pause_and_only_for_those_that_wait() {
        let (mut reactor, _) = reactor();
        let remote = ([127, 0, 0, 1], 9).into();
        reactor.redial_later(remote, Vec::new(), 1);
        assert!(reactor.outgoing.is_empty() && reactor.deadlines.next().is_none());
        assert_eq!(reactor.counters.snapshot().connections_redialed, 0);
        let waiting = vec![request(&reactor, remote, 0, 1)];
        reactor.redial_later(remote, waiting, 3);
        assert_eq!(reactor.deadlines.next(), Some(reactor.now + redial_pause(3)));
        assert_eq!(reactor.counters.snapshot().connections_redialed, 1);
    }

    /// Another host without permission, and an address where no process listens: the endpoint gets an error, and a
    /// failed attempt is counted.
    #[test]
    fn open_link__that_cannot_be_is_answered() {
        let (mut reactor, mailbox) = reactor();
        let inbox = attach(&mailbox);
        reactor.run_commands();
        let answer = || match inbox.pop() {
            Some(FromNexus::LinkFailed { request, reason }) => (request, reason.status),
            other => panic!("{other:?}"),
        };
        let (far, near) = (([192, 0, 2, 1], 9).into(), ([127, 0, 0, 1], 9).into());
        reactor.open_link(request(&reactor, far, 0, 1));
        assert_eq!(answer(), (1, Status::FailedPrecondition));
        assert!(reactor.outgoing.is_empty() && reactor.connections.is_empty());
        reactor.open_link(request(&reactor, near, 0, 2));
        let Outgoing::Connection(id) = reactor.outgoing[&near] else { panic!("a pause") };
        reactor.on_dial_failed(id, &ErrorKind::ConnectionRefused.into());
        assert_eq!(answer(), (2, Status::Unavailable));
        assert!(reactor.outgoing.is_empty() && reactor.connections.is_empty());
        let stats = reactor.counters.snapshot();
        assert_eq!((stats.connections_dialed, stats.dials_failed, stats.links_failed), (1, 1, 2));
    }
}
