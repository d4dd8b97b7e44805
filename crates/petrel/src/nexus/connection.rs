//! A control connection: socket, state, receive buffer and send buffer.

use std::io::{self, ErrorKind, Read, Write};
use std::net::SocketAddr;
use std::time::{Duration, Instant};

use petrel_proto::control::{Decoder, Message, OutOfRange};

use super::connection_links::ConnectionLinks;
use super::limits::{OUT_HARD_BYTES, OUT_SOFT_BYTES};
use super::net::{MioNetwork, Network, Stream};
use super::request::OpenRequest;
use super::usage::SourceNetwork;

/// A control connection.
#[derive(Debug)]
pub(super) struct Connection<N: Network = MioNetwork> {
    pub(super) stream: N::Stream,
    /// The peer's address; an IPv4-mapped address is stored as IPv4.
    pub(super) remote: SocketAddr,
    /// The network whose limits an accepted connection counts towards.
    pub(super) source: SourceNetwork,
    /// This end's address.
    pub(super) local: SocketAddr,
    /// Whether this process connected and therefore may open links.
    pub(super) is_opener: bool,
    /// Whether the connection gets no further links and closes with the last.
    pub(super) is_retired: bool,
    pub(super) phase: Phase,
    pub(super) decoder: Decoder,
    pub(super) out: Outbox,
    /// When the present phase began.
    pub(super) since: Instant,
    /// When the last byte arrived.
    pub(super) last_received: Instant,
    /// When the first byte of the incomplete message arrived.
    pub(super) midway_since: Option<Instant>,
    /// Reading is paused while too many bytes are unsent.
    pub(super) is_paused: bool,
    pub(super) ping_at: Instant,
    pub(super) links: ConnectionLinks,
    /// Links to request once the peer has said HELLO.
    pub(super) waiting: Vec<OpenRequest>,
    /// The number of failed attempts to connect before this.
    pub(super) attempt: u32,
    /// Its place in the lists of idle connections (see `idle_connections`).
    listed: Option<(Idle, Instant)>,
    /// The shortest round trip reported to the endpoints, in nanoseconds.
    path_rtt_ns: Option<u32>,
}

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

/// The phase of a connection.
#[derive(Debug)]
pub(super) enum Phase {
    /// TCP's handshake is incomplete.
    Connecting,
    /// The peer's HELLO has not arrived.
    AwaitingHello,
    /// The peer said HELLO.
    Open(Peer),
    /// GOODBYE was sent; only the stream's end is expected.
    Closing {
        /// Whether this side's direction is shut down, too.
        is_shut_down: bool,
    },
}

/// The contents of the peer's HELLO.
#[derive(Debug)]
pub(super) struct Peer {
    pub(super) incarnation: u64,
    /// After this time without a byte the peer counts as dead or hung.
    pub(super) silence_max: Duration,
    pub(super) host_identity: Option<[u8; 32]>,
    pub(super) rendezvous: Option<Vec<u8>>,
}

/// The result of a read.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Received {
    /// The number of bytes read.
    Bytes(usize),
    /// Nothing to read for now.
    Nothing,
    /// The stream has ended or broken.
    End(String),
}

impl<N: Network> Connection<N> {
    pub(super) fn new(
        stream: N::Stream,
        (local, remote): (SocketAddr, SocketAddr),
        is_opener: bool,
        now: Instant,
    ) -> Self {
        let phase = if is_opener { Phase::Connecting } else { Phase::AwaitingHello };
        let remote = canonical(remote);
        Self {
            stream,
            remote,
            source: SourceNetwork::of(remote),
            local: canonical(local),
            is_opener,
            is_retired: false,
            phase,
            decoder: Decoder::new(),
            out: Outbox::default(),
            since: now,
            last_received: now,
            midway_since: None,
            is_paused: false,
            ping_at: now,
            links: ConnectionLinks::new(now),
            waiting: Vec::new(),
            attempt: 0,
            listed: None,
            path_rtt_ns: None,
        }
    }

    /// Returns the contents of the peer's HELLO once it has arrived.
    pub(super) fn peer(&self) -> Option<&Peer> {
        match &self.phase {
            Phase::Open(peer) => Some(peer),
            _ => None,
        }
    }

    pub(super) fn is_open(&self) -> bool {
        self.peer().is_some()
    }

    /// Returns why and since when the connection is idle.
    pub(super) fn idle(&self) -> Option<(Idle, Instant)> {
        if self.is_opener || self.is_closing() {
            None
        } else if !self.is_open() {
            Some((Idle::AwaitingHello, self.since))
        } else if self.links.is_empty() {
            Some((Idle::Linkless, self.links.idle_since()))
        } else if !self.links.are_in_use() {
            Some((Idle::Sessionless, self.links.quiet_since()))
        } else {
            None
        }
    }

    /// Returns true if the peer is a process of this host: its address is loopback or equals the local address. The
    /// kernel accepts no packet from a network with such a source address.
    pub(super) fn is_of_this_host(&self) -> bool {
        self.remote.ip().is_loopback() || self.remote.ip() == self.local.ip()
    }

    pub(super) fn is_closing(&self) -> bool {
        matches!(self.phase, Phase::Closing { .. })
    }

    /// Begins a phase. A connection that closes enters no other.
    pub(super) fn enter(&mut self, phase: Phase, now: Instant) {
        assert!(!self.is_closing(), "a connection that closes enters no phase: {phase:?}");
        self.phase = phase;
        self.since = now;
    }

    /// Returns its place in the lists of idle connections.
    pub(super) fn listed(&self) -> Option<(Idle, Instant)> {
        self.listed
    }

    /// Notes its place in the lists of idle connections, which follows from its use. Returns the former place.
    pub(super) fn list(&mut self) -> Option<(Idle, Instant)> {
        let idle = self.idle();
        std::mem::replace(&mut self.listed, idle)
    }

    /// Returns the shortest round trip reported to the endpoints, in nanoseconds.
    pub(super) fn path_rtt_ns(&self) -> Option<u32> {
        self.path_rtt_ns
    }

    /// Returns the kernel's shortest round trip if it is shorter than all earlier ones.
    pub(super) fn measure_path(&mut self) -> Option<u32> {
        let shortest_ns = self.stream.min_rtt_ns()?;
        if self.path_rtt_ns.is_some_and(|known_ns| known_ns <= shortest_ns) {
            return None;
        }
        self.path_rtt_ns = Some(shortest_ns);
        self.path_rtt_ns
    }

    /// Reads once.
    pub(super) fn receive(&mut self, buffer: &mut [u8]) -> Received {
        match retry(|| self.stream.read(buffer)) {
            Ok(0) => Received::End("the peer closed it".to_owned()),
            Ok(count) => Received::Bytes(count),
            Err(error) if error.kind() == ErrorKind::WouldBlock => Received::Nothing,
            Err(error) => Received::End(error.to_string()),
        }
    }

    /// Writes until the socket accepts no more.
    pub(super) fn flush(&mut self, now: Instant) -> io::Result<()> {
        if matches!(self.phase, Phase::Connecting) {
            return Ok(());
        }
        self.out.flush(&mut self.stream, now)
    }

    /// Records since when a message is incomplete, after all received bytes were decoded.
    pub(super) fn note_midway(&mut self, has_progressed: bool, now: Instant) {
        if !self.decoder.is_midway() {
            self.midway_since = None;
        } else if has_progressed || self.midway_since.is_none() {
            self.midway_since = Some(now);
        }
    }

    /// Ends a pause of reading once enough was sent. Returns true if reading goes on.
    pub(super) fn ends_pause(&mut self) -> bool {
        let ends = self.is_paused && self.out.len() <= OUT_SOFT_BYTES / 2;
        self.is_paused &= !ends;
        ends
    }
}

/// Bytes to be sent.
#[derive(Debug, Default)]
pub(super) struct Outbox {
    bytes: Vec<u8>,
    /// Bytes at the beginning that are sent already.
    sent: usize,
    /// Since when the socket has accepted nothing although bytes are queued.
    pub(super) stalled_since: Option<Instant>,
}

impl Outbox {
    pub(super) fn len(&self) -> usize {
        assert!(self.sent <= self.bytes.len(), "more bytes are sent than were queued");
        self.bytes.len() - self.sent
    }

    /// Appends raw bytes (the preface).
    pub(super) fn push_bytes(&mut self, bytes: &[u8]) {
        self.bytes.extend_from_slice(bytes);
    }

    pub(super) fn push(&mut self, message: &Message) -> Result<(), OutOfRange> {
        message.encode(&mut self.bytes)
    }

    /// More bytes are queued than a peer that reads ever causes.
    pub(super) fn is_over_limit(&self) -> bool {
        self.len() > OUT_HARD_BYTES
    }

    fn flush(&mut self, stream: &mut impl Write, now: Instant) -> io::Result<()> {
        while self.len() > 0 {
            match retry(|| stream.write(&self.bytes[self.sent..])) {
                Ok(0) => return Err(ErrorKind::WriteZero.into()),
                Ok(count) => {
                    self.sent += count;
                    self.stalled_since = None;
                }
                Err(error) if error.kind() == ErrorKind::WouldBlock => {
                    self.stalled_since.get_or_insert(now);
                    break;
                }
                Err(error) => return Err(error),
            }
        }
        self.forget_sent();
        Ok(())
    }

    /// Frees the memory of sent bytes, and of a past burst.
    fn forget_sent(&mut self) {
        if self.len() == 0 {
            self.bytes.clear();
            self.bytes.shrink_to(OUT_SOFT_BYTES / 16);
            self.sent = 0;
            self.stalled_since = None;
        } else if self.sent > self.bytes.len() / 2 {
            self.bytes.drain(..self.sent);
            self.sent = 0;
        }
    }
}

/// Repeats a system call that a signal interrupted.
pub(super) fn retry<T>(mut call: impl FnMut() -> io::Result<T>) -> io::Result<T> {
    loop {
        match call() {
            Err(error) if error.kind() == ErrorKind::Interrupted => {}
            other => return other,
        }
    }
}

/// Converts an IPv4-mapped IPv6 address to IPv4.
pub(super) fn canonical(address: SocketAddr) -> SocketAddr {
    match address {
        SocketAddr::V6(v6) => match v6.ip().to_ipv4_mapped() {
            Some(v4) => SocketAddr::from((v4, v6.port())),
            None => address,
        },
        SocketAddr::V4(_) => address,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::nexus::reactor::tests::{connection as of, open_connection, reactor};

    impl Outbox {
        /// Takes the unsent bytes.
        pub(in crate::nexus) fn take(&mut self) -> Vec<u8> {
            let mut all = std::mem::take(self);
            all.bytes.split_off(all.sent)
        }
    }

    #[test]
    fn is_of_this_host__by_the_addresses_of_both_ends() {
        let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        let is_of_this_host = |local: &str, remote: &str| {
            let ends = (local.parse().unwrap(), remote.parse().unwrap());
            let stream = mio::net::TcpStream::connect(address).unwrap();
            Connection::<MioNetwork>::new(stream, ends, false, Instant::now()).is_of_this_host()
        };
        assert!(is_of_this_host("127.0.0.1:7", "127.0.0.1:9"));
        assert!(is_of_this_host("127.0.0.1:7", "127.9.9.9:9"));
        assert!(is_of_this_host("[::ffff:127.0.0.1]:7", "[::ffff:127.0.0.1]:9"));
        assert!(is_of_this_host("10.0.0.1:7", "10.0.0.1:9"));
        assert!(is_of_this_host("[2001:db8::1]:7", "[2001:db8::1]:9"));
        assert!(!is_of_this_host("10.0.0.1:7", "10.0.0.2:9"));
        assert!(!is_of_this_host("[2001:db8::1]:7", "[2001:db8::2]:9"));
    }

    #[test]
    fn measure_path__tells_of_what_is_shorter_than_all_before() {
        let (mut reactor, _) = reactor();
        let (id, _peer) = open_connection(&mut reactor, true);
        let connection = of(&mut reactor, id);
        // The kernel measured the handshake, and nothing is sent after it.
        let shortest_ns = connection.measure_path();
        assert!(shortest_ns.is_some_and(|ns| ns > 0) && connection.path_rtt_ns == shortest_ns);
        assert_eq!(connection.measure_path(), None);
        for (known_ns, reported) in [
            (Some(u32::MAX), shortest_ns),
            (Some(0), None),
            (shortest_ns, None),
            (None, shortest_ns),
        ] {
            connection.path_rtt_ns = known_ns;
            assert_eq!(connection.measure_path(), reported);
        }
    }

    #[test]
    #[should_panic(expected = "a connection that closes enters no phase")]
    fn enter__after_the_goodbye() {
        let (mut reactor, _) = reactor();
        let (id, _peer) = open_connection(&mut reactor, true);
        let connection = of(&mut reactor, id);
        let now = connection.since;
        connection.enter(Phase::Closing { is_shut_down: false }, now);
        connection.enter(Phase::AwaitingHello, now);
    }

    #[test]
    fn is_over_limit__beyond_the_limit() {
        let mut outbox = Outbox::default();
        outbox.push_bytes(&vec![0; OUT_HARD_BYTES]);
        assert!(!outbox.is_over_limit());
        outbox.push_bytes(&[0]);
        assert!(outbox.is_over_limit());
    }

    #[test]
    fn ends_pause__once_half_of_what_began_it_was_sent() {
        let (mut reactor, _) = reactor();
        let (id, _peer) = open_connection(&mut reactor, false);
        let connection = of(&mut reactor, id);
        assert!(!connection.ends_pause(), "there was none");
        connection.is_paused = true;
        connection.out.push_bytes(&[0; OUT_SOFT_BYTES / 2 + 1]);
        assert!(!connection.ends_pause() && connection.is_paused);
        connection.out.sent = 1;
        assert!(connection.ends_pause() && !connection.is_paused);
        assert!(!connection.ends_pause(), "it has ended");
    }

    /// A socket with room for this many bytes.
    struct Socket {
        room_bytes: usize,
        taken: Vec<u8>,
    }

    impl Write for Socket {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            let count = bytes.len().min(self.room_bytes);
            if count == 0 {
                return Err(ErrorKind::WouldBlock.into());
            }
            self.room_bytes -= count;
            self.taken.extend_from_slice(&bytes[..count]);
            Ok(count)
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    #[test]
    fn flush__the_rest_follows_once_a_full_socket_has_room() {
        let all: Vec<u8> = (0..=255).collect();
        let (now, mut outbox) = (Instant::now(), Outbox::default());
        let mut socket = Socket { room_bytes: 0, taken: Vec::new() };
        outbox.push_bytes(&all[..100]);
        // After less than half is sent, more than half, all but a byte, and all.
        for (taken, left) in [(30, 70), (90, 10), (99, 1), (100, 0)] {
            socket.room_bytes = taken - socket.taken.len();
            outbox.flush(&mut socket, now).unwrap();
            assert_eq!((outbox.len(), socket.taken.len()), (left, taken));
            assert_eq!(outbox.stalled_since, (left > 0).then_some(now));
            assert!(outbox.bytes.len() <= 2 * left, "most of it was sent: {}", outbox.bytes.len());
        }
        // The same with bytes appended to queued ones.
        outbox.push_bytes(&all[100..200]);
        socket.room_bytes = 60;
        outbox.flush(&mut socket, now).unwrap();
        outbox.push_bytes(&all[200..]);
        socket.room_bytes = usize::MAX;
        outbox.flush(&mut socket, now).unwrap();
        assert_eq!(socket.taken, all);
    }

    #[test]
    fn canonical__unmaps_ipv4_only() {
        let mapped: SocketAddr = "[::ffff:127.0.0.1]:7".parse().unwrap();
        assert_eq!(canonical(mapped), "127.0.0.1:7".parse().unwrap());
        for kept in ["[::1]:7", "127.0.0.1:7", "[fe80::1%3]:7"] {
            let kept: SocketAddr = kept.parse().unwrap();
            assert_eq!(canonical(kept), kept);
        }
    }
}
