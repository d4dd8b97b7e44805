//! A control connection: socket, state, receive buffer and send buffer.

use std::io::{self, ErrorKind, Read, Write};
use std::net::SocketAddr;
use std::time::{Duration, Instant, SystemTime};

use petrel_planted::planted;
use petrel_proto::control::{
    DecodeError, Decoder, Hello, Message, OutOfRange, PREFACE, StreamOpen,
};

use super::channel::Channel;
use super::connection_links::ConnectionLinks;
use super::due::DueAction;
use super::limits::{
    HELLO_TIMEOUT, IDLE_TIMEOUT, LINGER, MESSAGE_TIMEOUT, OUT_HARD_BYTES, OUT_KEPT_BYTES,
    OUT_SOFT_BYTES, STREAM_DIALS_MAX, WRITE_TIMEOUT,
};
use super::links::TICKET_BYTES;
use super::net::{MioNetwork, Network, Ready, Stream};
use super::request::OpenRequest;
use super::signs::Signs;
use super::validity::Validity;
use crate::control::{EndpointId, LinkId};
use crate::security::{PeerIdentity, SecurityError, StreamCipher};
use crate::source::Source;

/// A control connection.
#[derive(Debug)]
pub(super) struct Connection<N: Network = MioNetwork> {
    stream: N::Stream,
    /// The peer's address; an IPv4-mapped address is stored as IPv4.
    remote: SocketAddr,
    /// The source whose limits an accepted connection counts towards.
    source: Source,
    /// The user of the process at the other end of an accepted connection, if known.
    user: Option<u32>,
    /// This end's address.
    local: SocketAddr,
    /// Whether this process connected and therefore may open links.
    is_opener: bool,
    /// Whether the connection gets no further links and closes with the last.
    is_retired: bool,
    phase: Phase,
    decoder: Decoder,
    channel: Channel,
    out: Outbox,
    /// When the present phase began.
    since: Instant,
    signs: Signs,
    /// When the first byte of the incomplete message arrived.
    midway_since: Option<Instant>,
    /// Reading is paused while too many bytes are unsent.
    is_paused: bool,
    /// The socket has no further bytes, and reports later bytes.
    is_drained: bool,
    /// The peer has ended its side: reading goes on until the end shows.
    is_read_closed: bool,
    reports_room: bool,
    links: ConnectionLinks,
    /// How long both ends' certificates are valid.
    validity: Option<Validity>,
    /// Links to request once the peer has said HELLO.
    waiting: Vec<OpenRequest>,
    /// The number of failed attempts to connect before this.
    attempt: u32,
    /// The place in the lists of idle connections (see `idle_connections`).
    listed: Option<(Idle, Instant)>,
    /// The place in the list of timers (see `connections`).
    timer: Option<Instant>,
    /// The shortest round trip reported to the endpoints, in nanoseconds.
    path_rtt_ns: Option<u32>,
    /// The link whose frames the connection is to carry, instead of messages.
    carried: Option<StreamFor>,
}

/// A link that was promised a stream, and the attempts to make the stream.
#[derive(Debug)]
pub(super) struct StreamFor {
    link: LinkId,
    ticket: [u8; TICKET_BYTES],
    max_frame: u32,
    dials: u32,
}

impl StreamFor {
    /// A link with the acceptor's ticket, for frames of up to `max_frame` bytes.
    pub(super) fn new(link: LinkId, ticket: [u8; TICKET_BYTES], max_frame: u32) -> Self {
        Self { link, ticket, max_frame, dials: 1 }
    }

    pub(super) fn link(&self) -> LinkId {
        self.link
    }

    pub(super) fn max_frame(&self) -> u32 {
        self.max_frame
    }

    /// Returns the message that presents the ticket.
    pub(super) fn open(&self) -> StreamOpen {
        StreamOpen { ticket: self.ticket }
    }

    /// Returns the next attempt, unless there were too many.
    pub(super) fn again(&self) -> Option<Self> {
        let Self { link, ticket, max_frame, dials } = *self;
        (dials < STREAM_DIALS_MAX).then_some(Self { link, ticket, max_frame, dials: dials + 1 })
    }
}

/// Why an accepted connection is idle.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Idle {
    /// The peer has not said HELLO.
    AwaitingHello,
    /// The peer said HELLO and has no link.
    Linkless,
    /// The connection's links have neither a session nor a proposal.
    Sessionless,
    /// No session has had a request.
    Requestless,
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
    incarnation: u64,
    heartbeat: Duration,
    host_identity: Option<[u8; 32]>,
    rendezvous: Option<Vec<u8>>,
}

impl Peer {
    pub(super) fn new(hello: Hello) -> Self {
        Self {
            incarnation: hello.incarnation,
            heartbeat: Duration::from_millis(u64::from(hello.heartbeat_ms)),
            host_identity: hello.host_identity,
            rendezvous: hello.rendezvous,
        }
    }

    /// Returns the number that distinguishes the peer's process from earlier processes at the address.
    pub(super) fn incarnation(&self) -> u64 {
        self.incarnation
    }

    pub(super) fn heartbeat(&self) -> Duration {
        self.heartbeat
    }

    /// Returns the identity of the peer's host, if it offers a rendezvous.
    pub(super) fn host_identity(&self) -> Option<[u8; 32]> {
        self.host_identity
    }

    /// Returns the name of the peer's rendezvous for shared memory.
    pub(super) fn rendezvous(&self) -> Option<&[u8]> {
        self.rendezvous.as_deref()
    }
}

/// The result of a read.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Received {
    /// The number of bytes read.
    Bytes(usize),
    /// Bytes of TLS alone, with which the handshake goes on.
    Handshake,
    /// Nothing to read for now.
    Nothing,
    /// The peer is not to be trusted.
    Untrusted(SecurityError),
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
            source: Source::of(remote.ip(), None, None),
            user: None,
            local: canonical(local),
            is_opener,
            is_retired: false,
            phase,
            decoder: Decoder::new(),
            channel: Channel::default(),
            out: Outbox::default(),
            since: now,
            signs: Signs::new(now),
            midway_since: None,
            is_paused: false,
            is_drained: false,
            is_read_closed: false,
            reports_room: is_opener,
            links: ConnectionLinks::new(now),
            validity: None,
            waiting: Vec::new(),
            attempt: 0,
            listed: None,
            timer: None,
            path_rtt_ns: None,
            carried: None,
        }
    }

    /// Charges an accepted connection to a user of this host.
    pub(super) fn of_user(self, user: Option<u32>) -> Self {
        assert!(!self.is_opener, "users are those of clients");
        Self { source: Source::of(self.remote.ip(), user, None), user, ..self }
    }

    /// Has the connection's bytes travel in a channel.
    pub(super) fn secure(&mut self, channel: Channel) {
        assert!(self.out.len() == 0, "nothing was said before TLS");
        self.channel = channel;
    }

    pub(super) fn channel(&self) -> &Channel {
        &self.channel
    }

    /// Forgets what the peer cannot read, and goes on without TLS to tell it why the connection ends.
    pub(super) fn give_up_tls(&mut self) {
        self.out = Outbox::default();
        self.channel.give_up_tls();
    }

    /// Has the connection carry the frames of a link once both sides have agreed.
    pub(super) fn carry(&mut self, link: StreamFor) {
        assert!(self.is_connecting() && self.is_opener, "a stream is dialled: {:?}", self.phase);
        assert!(self.waiting.is_empty(), "a stream has no requests for links");
        self.carried = Some(link);
    }

    /// Returns the link whose frames the connection is to carry.
    pub(super) fn carried(&self) -> Option<&StreamFor> {
        self.carried.as_ref()
    }

    /// Takes the link whose frames the connection was to carry.
    pub(super) fn take_carried(&mut self) -> Option<StreamFor> {
        self.carried.take()
    }

    /// Returns the stream, to be used for frames, and its TLS.
    pub(super) fn into_stream(self) -> (N::Stream, Option<Box<dyn StreamCipher>>) {
        assert!(self.links.is_empty() && self.out.len() == 0, "the connection has another use");
        (self.stream, self.channel.into_cipher())
    }

    /// Has these requests wait for HELLO, after `attempt` failed attempts to connect.
    pub(super) fn begin_attempt(&mut self, waiting: Vec<OpenRequest>, attempt: u32) {
        assert!(
            self.is_connecting() && self.is_opener,
            "an attempt is to connect: {:?}",
            self.phase
        );
        assert!(self.waiting.is_empty(), "an attempt begins with its requests");
        self.waiting = waiting;
        self.attempt = attempt;
    }

    pub(super) fn stream(&self) -> &N::Stream {
        &self.stream
    }

    pub(super) fn stream_mut(&mut self) -> &mut N::Stream {
        &mut self.stream
    }

    pub(super) fn remote(&self) -> SocketAddr {
        self.remote
    }

    pub(super) fn local(&self) -> SocketAddr {
        self.local
    }

    /// Returns the source whose limits the connection counts towards if it was accepted.
    pub(super) fn source(&self) -> Source {
        self.source
    }

    /// Charges the identity that the peer has proven, if it has, in place of the address.
    pub(super) fn charge_identity(&mut self) {
        assert!(self.links.is_empty(), "links are charged to one source");
        if let Some(identity) = self.channel.peer() {
            self.source = Source::of(self.remote.ip(), self.user, Some(&identity));
        }
    }

    /// Returns the proven identity of the peer, with the user if known to the kernel.
    pub(super) fn caller(&self) -> PeerIdentity {
        let mut caller = self.channel.peer().as_deref().cloned().unwrap_or_default();
        caller.uid = caller.uid.or(self.user);
        caller
    }

    /// Returns true if this process connected.
    pub(super) fn is_opener(&self) -> bool {
        self.is_opener
    }

    /// Returns the number of failed attempts to connect before this.
    pub(super) fn attempt(&self) -> u32 {
        self.attempt
    }

    pub(super) fn links(&self) -> &ConnectionLinks {
        &self.links
    }

    pub(super) fn links_mut(&mut self) -> &mut ConnectionLinks {
        &mut self.links
    }

    /// Returns the requests that wait for HELLO.
    pub(super) fn waiting(&self) -> &[OpenRequest] {
        &self.waiting
    }

    /// Has a request wait for HELLO.
    pub(super) fn wait(&mut self, request: OpenRequest) {
        assert!(self.is_opener, "links are asked for by the side that connected");
        assert!(
            !self.is_open() && !self.is_closing(),
            "a request waits for HELLO: {:?}",
            self.phase
        );
        self.waiting.push(request);
    }

    pub(super) fn take_waiting(&mut self) -> Vec<OpenRequest> {
        std::mem::take(&mut self.waiting)
    }

    /// Drops the requests of an endpoint that has gone.
    pub(super) fn forget_requests(&mut self, endpoint: EndpointId) {
        self.waiting.retain(|request| request.endpoint() != endpoint);
    }

    /// Returns how long the certificates of the two ends are valid, unless without end.
    pub(super) fn validity(&self) -> Option<Validity> {
        self.validity
    }

    /// Begins no further links, and closes with the last.
    pub(super) fn retire(&mut self) {
        assert!(self.is_opener, "a server asks its clients to leave");
        self.is_retired = true;
    }

    pub(super) fn is_retired(&self) -> bool {
        self.is_retired
    }

    /// Returns true if the connection was retired, and has no link left.
    pub(super) fn is_left(&self) -> bool {
        self.is_retired && self.links.is_empty() && !self.is_closing()
    }

    pub(super) fn is_connecting(&self) -> bool {
        matches!(self.phase, Phase::Connecting)
    }

    /// Records the end of TCP's handshake; `local` is this end's address.
    pub(super) fn on_connected(&mut self, local: SocketAddr, now: Instant) {
        assert!(self.is_connecting(), "a connection is made once: {:?}", self.phase);
        self.local = canonical(local);
        self.enter(Phase::AwaitingHello, now);
        self.signs = Signs::new(now);
    }

    /// Records the peer's HELLO. Returns the requests that waited for it.
    pub(super) fn on_hello(&mut self, peer: Peer, now: Instant) -> Vec<OpenRequest> {
        let is_awaited = matches!(self.phase, Phase::AwaitingHello);
        assert!(is_awaited, "a peer says HELLO once, first of all: {:?}", self.phase);
        self.enter(Phase::Open(peer), now);
        let expires_at = self.channel.expires_at();
        self.validity = expires_at.and_then(|at| Validity::new(at, SystemTime::now()));
        self.links.begin_idle(now);
        self.take_waiting()
    }

    /// Begins to end the connection before its last link ends. Returns the requests without an answer.
    pub(super) fn begin_end(&mut self) -> Vec<OpenRequest> {
        self.is_retired = false;
        self.take_waiting()
    }

    /// Waits for the peer's end, after a GOODBYE.
    pub(super) fn begin_closing(&mut self, now: Instant) {
        assert!(self.links.is_empty(), "the links end before their connection");
        assert!(self.waiting.is_empty(), "requests are answered before the connection ends");
        self.enter(Phase::Closing { is_shut_down: false }, now);
    }

    /// Shuts down this side's direction once everything is written. Closing a socket with unread bytes would send a
    /// reset, which overtakes the GOODBYE. Returns false if the connection is broken.
    pub(super) fn shut_down(&mut self) -> bool {
        let Phase::Closing { is_shut_down } = &mut self.phase else { return true };
        // Each `shutdown` of a socket raises an event. A second call here would answer the event of the first, and the
        // thread would never sleep.
        if *is_shut_down || self.out.len() > 0 {
            return true;
        }
        *is_shut_down = true;
        self.stream.shutdown_write().is_ok()
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
        } else if !self.links.had_request() {
            Some((Idle::Requestless, self.since))
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
    fn enter(&mut self, phase: Phase, now: Instant) {
        assert!(!self.is_closing(), "a connection that closes enters no phase: {phase:?}");
        self.phase = phase;
        self.since = now;
    }

    /// Returns the place in the lists of idle connections.
    pub(super) fn listed(&self) -> Option<(Idle, Instant)> {
        self.listed
    }

    /// Notes the place in the lists of idle connections, which follows from its use. Returns the former place.
    pub(super) fn list(&mut self) -> Option<(Idle, Instant)> {
        let idle = self.idle();
        std::mem::replace(&mut self.listed, idle)
    }

    /// Returns the shortest round trip reported to the endpoints, in nanoseconds.
    pub(super) fn path_rtt_ns(&self) -> Option<u32> {
        self.path_rtt_ns
    }

    /// Returns the kernel's shortest round trip if shorter than all earlier round trips.
    pub(super) fn measure_path(&mut self) -> Option<u32> {
        let shortest_ns = self.stream.min_rtt_ns()?;
        if self.path_rtt_ns.is_some_and(|known_ns| known_ns <= shortest_ns) {
            return None;
        }
        self.path_rtt_ns = Some(shortest_ns);
        self.path_rtt_ns
    }

    /// Pauses reading if too many bytes are unsent. Returns true if so.
    pub(super) fn pauses(&mut self) -> bool {
        let pauses = self.out.len() > OUT_SOFT_BYTES && !self.is_closing();
        self.is_paused |= pauses;
        pauses
    }

    pub(super) fn note_ready(&mut self, event: Ready) {
        self.is_read_closed |= event.is_read_closed;
    }

    /// Has the next [`receive`](Self::receive) look into the socket.
    pub(super) fn begin_reading(&mut self) {
        self.is_drained = false;
    }

    /// Reads once. After a read that has taken all bytes of the socket, no second system call asks for more, unless the peer has closed its
    /// side: no later event reports the end.
    pub(super) fn receive(&mut self, buffer: &mut [u8]) -> Received {
        let decrypted = self.channel.read(buffer);
        if decrypted > 0 {
            return Received::Bytes(decrypted);
        }
        if self.is_drained {
            return Received::Nothing;
        }
        let count = match retry(|| self.stream.read(buffer)) {
            Ok(0) => return Received::End("the peer closed it".to_owned()),
            Ok(count) => count,
            Err(error) if error.kind() == ErrorKind::WouldBlock => return Received::Nothing,
            Err(error) => return Received::End(error.to_string()),
        };
        self.is_drained = !self.is_read_closed && self.stream.is_drained_by(count, buffer.len());
        match self.channel.receive(buffer, count, &mut self.out.bytes) {
            Ok(0) => Received::Handshake,
            Ok(count) => Received::Bytes(count),
            Err(error) => Received::Untrusted(error),
        }
    }

    /// Returns true the first time that the socket has no room, if the network does not yet report when there is room again.
    pub(super) fn waits_for_room(&mut self) -> bool {
        self.out.stalled_since.is_some() && !std::mem::replace(&mut self.reports_room, true)
    }

    /// Returns the signs of life of the peer.
    pub(super) fn signs(&self) -> &Signs {
        &self.signs
    }

    pub(super) fn signs_mut(&mut self) -> &mut Signs {
        &mut self.signs
    }

    /// Returns since when the peer counts as dead or hung, or will if no byte arrives.
    pub(super) fn silent_at(&self) -> Option<Instant> {
        let heartbeat = self.peer()?.heartbeat();
        match self.is_opener {
            true => self.signs.unanswered_at(heartbeat),
            false => {
                let unasked = self.signs.unasked_at(heartbeat);
                let unanswered = self.signs.unanswered_at(heartbeat);
                Some(unanswered.map_or(unasked, |sooner| sooner.min(unasked)))
            }
        }
    }

    /// Returns the next message in received bytes, if it is whole.
    ///
    /// # Errors
    /// The bytes do not follow the protocol.
    pub(super) fn decode(&mut self, bytes: &mut &[u8]) -> Result<Option<Message>, DecodeError> {
        self.decoder.decode(bytes)
    }

    /// Returns the bytes that a partial message occupies.
    pub(super) fn partial_bytes(&self) -> usize {
        self.decoder.memory_bytes()
    }

    /// Does not count this time of the thread's delay as silence or slowness of the peer.
    pub(super) fn discount(&mut self, late: Duration, now: Instant) {
        let times = [&mut self.out.stalled_since, &mut self.midway_since].into_iter();
        times.flatten().for_each(|since| *since = (*since + late).min(now));
        if let Phase::Open(peer) = &self.phase {
            self.signs.discount(late, now, peer.heartbeat);
        }
    }

    /// Queues the first bytes of this side, before its HELLO.
    pub(super) fn queue_preface(&mut self) {
        assert!(self.out.len() == 0, "the preface comes first");
        self.out.push_bytes(&PREFACE);
    }

    /// Queues a message. Returns true if the connection is to be written now: it was not before, or waits too long.
    ///
    /// # Errors
    /// The message has a field that is out of its range.
    pub(super) fn queue(&mut self, message: &Message) -> (bool, Result<(), OutOfRange>) {
        let was_empty = self.out.len() == 0;
        let pushed = self.out.push(message);
        (was_empty || self.out.is_over_limit(), pushed)
    }

    /// Returns true if there are unsent bytes that the socket has not refused: TLS answers a handshake, and messages that wait for the peer's
    /// first bytes go then.
    pub(super) fn can_send(&self) -> bool {
        self.out.len() > 0 && self.out.stalled_since.is_none()
    }

    pub(super) fn unsent_bytes(&self) -> usize {
        self.out.len()
    }

    /// Returns true if more bytes are unsent than a peer that reads ever causes.
    pub(super) fn is_over_limit(&self) -> bool {
        self.out.is_over_limit()
    }

    /// Writes until the socket accepts no more.
    pub(super) fn flush(&mut self, now: Instant) -> io::Result<()> {
        if matches!(self.phase, Phase::Connecting) || !self.channel.may_send() {
            return Ok(());
        }
        self.out.flush(&mut self.channel, &mut self.stream, now)
    }

    /// Records since when a message is incomplete, after all received bytes were decoded.
    pub(super) fn note_midway(&mut self, has_progressed: bool, now: Instant) {
        if !self.decoder.is_midway() {
            self.midway_since = None;
        } else if has_progressed || self.midway_since.is_none() {
            self.midway_since = Some(now);
        }
    }

    /// Returns the next action that the time demands, and when.
    pub(super) fn next_action(&self, step_timeout: Duration) -> Option<(Instant, DueAction)> {
        match &self.phase {
            Phase::Connecting => Some((self.since + step_timeout, DueAction::DialTimeout)),
            Phase::AwaitingHello => Some((self.since + HELLO_TIMEOUT, DueAction::HelloTimeout)),
            Phase::Closing { .. } => (!planted("nexus_closes_for_ever"))
                .then_some((self.since + LINGER, DueAction::LingerOver)),
            Phase::Open(_) => {
                let stalled = self.out.stalled_since.map(|since| since + WRITE_TIMEOUT);
                // While this process itself pauses reading, the peer is not at fault.
                let silent = self.silent_at().filter(|_| !self.is_paused);
                let slow = self.midway_since.filter(|_| !self.is_paused);
                let idle = self.links.is_empty().then(|| self.links.idle_since() + self.idle_max());
                let ask = match self.is_opener {
                    true => self.signs.ask_at(),
                    false => self.signs.doubt_at(),
                };
                let actions = [
                    (stalled, DueAction::NotReading),
                    (silent, DueAction::Silent),
                    (slow.map(|since| since + MESSAGE_TIMEOUT), DueAction::SlowMessage),
                    (idle, DueAction::Idle),
                    (ask, DueAction::Ping),
                ];
                let all = actions.into_iter().filter_map(|(at, action)| Some((at?, action)));
                all.min_by_key(|(at, _)| *at)
            }
        }
    }

    /// Notes the place in the list of timers. Returns the former place.
    pub(super) fn set_timer(&mut self, at: Option<Instant>) -> Option<Instant> {
        std::mem::replace(&mut self.timer, at)
    }

    fn idle_max(&self) -> Duration {
        if self.is_opener { IDLE_TIMEOUT } else { 2 * IDLE_TIMEOUT }
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
struct Outbox {
    /// Bytes as they travel.
    bytes: Vec<u8>,
    /// Bytes at the beginning that are sent already.
    sent: usize,
    /// Bytes behind them that the channel has not taken yet.
    plain: Vec<u8>,
    /// The time since which the socket has accepted nothing although bytes are queued.
    stalled_since: Option<Instant>,
}

impl Outbox {
    fn len(&self) -> usize {
        assert!(self.sent <= self.bytes.len(), "more bytes are sent than were queued");
        self.bytes.len() - self.sent + self.plain.len()
    }

    /// Appends raw bytes (the preface).
    fn push_bytes(&mut self, bytes: &[u8]) {
        self.plain.extend_from_slice(bytes);
    }

    fn push(&mut self, message: &Message) -> Result<(), OutOfRange> {
        message.encode(&mut self.plain)
    }

    /// Returns true if more bytes are queued than a peer that reads ever causes.
    fn is_over_limit(&self) -> bool {
        self.len() > OUT_HARD_BYTES
    }

    /// Passes the queued bytes through the channel, and writes until the socket accepts no more.
    fn flush(
        &mut self,
        channel: &mut Channel,
        stream: &mut impl Write,
        now: Instant,
    ) -> io::Result<()> {
        channel.send(&mut self.plain, &mut self.bytes);
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
            self.bytes.shrink_to(OUT_KEPT_BYTES);
            self.plain.shrink_to(OUT_KEPT_BYTES);
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
    use crate::nexus::reactor::tests::{connection, open_connection, reactor};

    /// The fields set by tests of other parts.
    macro_rules! test_fields {
        ($($name:ident: $field:ident: $type:ty,)*) => {
            impl Connection {
                $(pub(in crate::nexus) fn $name(&mut self) -> &mut $type {
                    &mut self.$field
                })*
            }
        };
    }

    test_fields! {
        test_since: since: Instant,
        test_signs: signs: Signs,
        test_midway_since: midway_since: Option<Instant>,
        test_is_opener: is_opener: bool,
        test_is_paused: is_paused: bool,
        test_phase: phase: Phase,
        test_waiting: waiting: Vec<OpenRequest>,
        test_validity: validity: Option<Validity>,
    }

    impl Connection {
        /// Begins any phase.
        pub(in crate::nexus) fn enter_test(&mut self, phase: Phase, now: Instant) {
            self.enter(phase, now);
        }

        pub(in crate::nexus) fn test_stalled_since(&mut self) -> &mut Option<Instant> {
            &mut self.out.stalled_since
        }

        /// Takes the unsent bytes.
        pub(in crate::nexus) fn take_unsent(&mut self) -> Vec<u8> {
            let mut all = std::mem::take(&mut self.out);
            let mut unsent = all.bytes.split_off(all.sent);
            unsent.append(&mut all.plain);
            unsent
        }

        /// Queues bytes that are no message.
        pub(in crate::nexus) fn queue_test_bytes(&mut self, count: usize) {
            self.out.push_bytes(&vec![0; count]);
        }
    }

    impl Peer {
        /// A peer of another host.
        pub(in crate::nexus) fn of_test(incarnation: u64, heartbeat: Duration) -> Self {
            Self { incarnation, heartbeat, host_identity: None, rendezvous: None }
        }
    }

    #[test]
    fn is_of_this_host__by_the_addresses_of_both_ends() {
        let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        let is_of_this_host = |local: &str, remote: &str| {
            let ends = (local.parse().unwrap(), remote.parse().unwrap());
            let stream = mio::net::TcpStream::connect(address).unwrap();
            Connection::<MioNetwork>::new(stream.into(), ends, false, Instant::now())
                .is_of_this_host()
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
    fn measure_path__reports_a_new_minimum_only() {
        let (mut reactor, _) = reactor();
        let (id, _peer) = open_connection(&mut reactor, true);
        let connection = connection(&mut reactor, id);
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

    panics! {
        enter__after_the_goodbye: "a connection that closes enters no phase" => {
            let (mut reactor, _) = reactor();
            let (id, _peer) = open_connection(&mut reactor, true);
            let connection = connection(&mut reactor, id);
            let now = connection.since;
            connection.enter(Phase::Closing { is_shut_down: false }, now);
            connection.enter(Phase::AwaitingHello, now);
        };
    }

    fn silent(of: impl Fn(&mut Connection)) {
        let (mut reactor, _) = reactor();
        let (id, _peer) = open_connection(&mut reactor, false);
        of(connection(&mut reactor, id));
    }

    panics! {
        wait__on_a_connection_that_the_peer_made:
            "links are asked for by the side that connected" => {
            silent(|connection| {
                let request = OpenRequest::of_test(1, connection.remote(), connection.since);
                connection.wait(request);
            });
        };
        retire__a_connection_of_a_client: "a server asks its clients to leave"
            => silent(Connection::retire);
        begin_closing__with_a_link: "the links end before their connection" => {
            silent(|connection| {
                let now = connection.since;
                connection.links_mut().insert(0, crate::control::LinkId(0), now);
                connection.begin_closing(now);
            });
        };
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
    fn ends_pause__at_half_of_the_limit() {
        let (mut reactor, _) = reactor();
        let (id, _peer) = open_connection(&mut reactor, false);
        let connection = connection(&mut reactor, id);
        assert!(!connection.ends_pause(), "there was none");
        connection.is_paused = true;
        connection.out.push_bytes(&[0; OUT_SOFT_BYTES / 2 + 1]);
        assert!(!connection.ends_pause() && connection.is_paused);
        connection.channel.send(&mut connection.out.plain, &mut connection.out.bytes);
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
            outbox.flush(&mut Channel::default(), &mut socket, now).unwrap();
            assert_eq!((outbox.len(), socket.taken.len()), (left, taken));
            assert_eq!(outbox.stalled_since, (left > 0).then_some(now));
            assert!(outbox.bytes.len() <= 2 * left, "most of it was sent: {}", outbox.bytes.len());
        }
        // The same with bytes appended to queued ones.
        outbox.push_bytes(&all[100..200]);
        socket.room_bytes = 60;
        outbox.flush(&mut Channel::default(), &mut socket, now).unwrap();
        outbox.push_bytes(&all[200..]);
        socket.room_bytes = usize::MAX;
        outbox.flush(&mut Channel::default(), &mut socket, now).unwrap();
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
