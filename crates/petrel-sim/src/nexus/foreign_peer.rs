//! Foreign peers, which have no nexus: some break the protocol, some are slow, silent or greedy, and some
//! only ask for counters.
//!
//! They write raw bytes: legal, almost legal or no messages at all. A nexus has to survive this, serve its
//! honest peers meanwhile, and keep no state of foreign peers.

use std::net::SocketAddr;

use petrel::Status;
use petrel_proto::control::{
    Decoder, Goodbye, GroupAccept, GroupLeave, GroupRefuse, Hello, LinkAccept, LinkClose, LinkOpen,
    LinkRefuse, Message, Offer, PREFACE, Ping, Pong, SessionAccept, SessionClose, SessionDrain,
    SessionOpen, SessionRefuse, StatsReply, StatsRequest, VersionRange,
};

use super::actor::FOREIGN_TOKEN;
use crate::net::{Memory, Net, ProcessId, SocketId};
use crate::rng::Rng;

/// Tokens of the sockets begin here; the listener has the token before.
const FIRST_TOKEN: usize = 10;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Behaviour {
    /// Sends nothing.
    Mute,
    /// Sends bytes that are not the protocol.
    Garbage,
    /// Sends HELLO a byte at a time.
    Slow,
    /// Sends HELLO, and falls silent.
    Greets,
    /// Sends requests all the time, and does not read.
    NeverReads,
    /// Opens links, some to missing endpoints, and proposes sessions on them.
    Greedy,
    /// Sends messages of all kinds in any order.
    Odd,
    /// Like `Odd`, with wrong bits.
    Mutant,
    /// Sends HELLO and one more message, and ends its direction.
    HalfClosed,
    /// Keeps unused links, and sends heartbeats.
    Keeper,
    /// Speaks future versions.
    Modern,
    /// Asks for counters, like `petrel stats`.
    StatsClient,
}

const BEHAVIOURS: [Behaviour; 12] = [
    Behaviour::Mute,
    Behaviour::Garbage,
    Behaviour::Slow,
    Behaviour::Greets,
    Behaviour::NeverReads,
    Behaviour::Greedy,
    Behaviour::Odd,
    Behaviour::Mutant,
    Behaviour::HalfClosed,
    Behaviour::Keeper,
    Behaviour::Modern,
    Behaviour::StatsClient,
];

impl Behaviour {
    pub(super) fn draw(rng: &mut Rng) -> Self {
        BEHAVIOURS[rng.below(BEHAVIOURS.len() as u64) as usize]
    }

    /// Returns true if the peer may have sessions, which protect its connections from eviction.
    pub(super) fn is_greedy(self) -> bool {
        matches!(self, Self::Greedy | Self::Odd | Self::Mutant)
    }
}

struct Connection {
    socket: SocketId,
    behaviour: Behaviour,
    is_opener: bool,
    has_begun: bool,
    is_over: bool,
    decoder: Decoder,
    /// Bytes of HELLO sent by a slow peer.
    sent_bytes: usize,
    /// Parts received by a statistics client, and whether the answer is complete.
    parts: u16,
    is_answered: bool,
    asked_ns: u64,
}

/// The longest heartbeat of a foreign peer.
pub(super) const FOREIGN_HEARTBEAT_NS_MAX: u64 = 1_000_000_000;

pub(super) struct ForeignPeer {
    pub(super) process: ProcessId,
    heartbeat_ms: u32,
    address: SocketAddr,
    connections: Vec<Connection>,
    /// Number of complete answers to statistics clients.
    pub(super) answers: u64,
}

impl ForeignPeer {
    /// Makes a process of the network that listens at `address`.
    pub(super) fn new(
        net: &mut Net,
        process: ProcessId,
        address: SocketAddr,
        heartbeat_ms: u32,
    ) -> Self {
        // A further process at that address does not listen.
        let _ = net.listen(process, address, 64, FIRST_TOKEN - 1);
        Self { process, heartbeat_ms, address, connections: Vec::new(), answers: 0 }
    }

    /// Returns the declared heartbeat interval.
    pub(super) fn heartbeat_ns(&self) -> u64 {
        u64::from(self.heartbeat_ms) * 1_000_000
    }

    pub(super) fn connect(&mut self, net: &mut Net, target: SocketAddr, behaviour: Behaviour) {
        if let Ok(socket) = net.connect(self.process, target) {
            self.add(net, socket, behaviour, true);
        }
    }

    /// Connects to a rendezvous of its host with a wrong ticket, a truncated ticket, or too much memory.
    pub(super) fn connect_rendezvous(&self, net: &mut Net, target: ProcessId, rng: &mut Rng) {
        let Some(name) = net.rendezvous_of(target) else { return };
        let Ok(unix_connection) = net.connect_rendezvous(self.process, &name) else { return };
        let mut ticket = vec![0; rng.between(1, 20) as usize];
        rng.fill(&mut ticket);
        for byte in ticket.chunks(8) {
            let memory = (rng.below(2) == 0).then_some(Memory::FOREIGN);
            // The target may have closed the connection already.
            let _ = net.send_unix(unix_connection, byte, memory);
        }
        if rng.below(2) == 0 {
            net.close_unix(unix_connection);
        }
    }

    fn add(&mut self, net: &mut Net, socket: SocketId, behaviour: Behaviour, is_opener: bool) {
        let token = FIRST_TOKEN + self.connections.len();
        if net.register(socket, token).is_err() {
            return net.close(socket);
        }
        self.connections.push(Connection {
            socket,
            behaviour,
            is_opener,
            has_begun: false,
            is_over: false,
            decoder: Decoder::new(),
            sent_bytes: 0,
            parts: 0,
            is_answered: false,
            asked_ns: net.now_ns(),
        });
    }

    /// Handles ready sockets and time-driven actions.
    pub(super) fn act(&mut self, net: &mut Net, rng: &mut Rng, is_tick: bool) {
        while let Ok((socket, _)) = net.accept(self.process, self.address) {
            let behaviour = Behaviour::draw(rng);
            self.add(net, socket, behaviour, false);
        }
        let heartbeat_ms = self.heartbeat_ms;
        for connection in self.connections.iter_mut().filter(|connection| !connection.is_over) {
            if !connection.has_begun && net.is_connected(connection.socket) {
                connection.has_begun = true;
                connection.asked_ns = net.now_ns();
                connection.begin(net, rng, heartbeat_ms);
            }
            if connection.has_begun {
                connection.go_on(net, rng, is_tick, heartbeat_ms);
            }
        }
        let answered = self.connections.iter().filter(|connection| connection.is_answered).count();
        self.answers = answered as u64;
    }

    /// Returns true if a statistics client has waited longer than `ns`.
    pub(super) fn is_kept_waiting(&self, net: &Net, ns: u64) -> bool {
        let waits = |connection: &Connection| {
            connection.behaviour == Behaviour::StatsClient
                && connection.is_opener
                && connection.has_begun
                && !connection.is_answered
                && net.now_ns() - connection.asked_ns > ns
        };
        self.connections.iter().any(waits)
    }
}

impl Connection {
    /// Writes as much as there is room for and drops the rest, as a foreign peer may.
    fn say(&self, net: &mut Net, mut bytes: &[u8]) {
        while !bytes.is_empty() {
            match net.write(self.socket, bytes) {
                Ok(count) => bytes = &bytes[count..],
                Err(error) if error.kind() == std::io::ErrorKind::Interrupted => {}
                Err(_) => return,
            }
        }
    }

    /// Sends the first bytes of a connection, by the peer's behaviour.
    fn begin(&mut self, net: &mut Net, rng: &mut Rng, heartbeat_ms: u32) {
        let mut bytes = hello(rng, heartbeat_ms);
        match self.behaviour {
            Behaviour::Mute | Behaviour::Slow => return,
            Behaviour::Garbage => {
                let mut garbage = vec![0; rng.between(1, 200) as usize];
                rng.fill(&mut garbage);
                if rng.below(2) == 0 {
                    garbage.splice(0..0, PREFACE);
                }
                bytes = garbage;
            }
            Behaviour::Greets => {}
            Behaviour::Modern => bytes = modern_hello(rng, heartbeat_ms),
            Behaviour::NeverReads => (0..200).for_each(|nonce| put(&mut bytes, Ping { nonce })),
            Behaviour::Greedy => {
                for link in 0..rng.between(1, 20) as u32 {
                    put(&mut bytes, link_open(rng, link));
                }
            }
            Behaviour::Odd | Behaviour::Mutant => {
                for _ in 0..rng.between(1, 12) {
                    put(&mut bytes, any_message(rng));
                }
                if self.behaviour == Behaviour::Mutant {
                    let (at, bit) = (rng.between(50, bytes.len() as u64 - 1), rng.below(8));
                    bytes[at as usize] ^= 1 << bit;
                }
            }
            Behaviour::HalfClosed => {
                put(&mut bytes, link_open(rng, 0));
                self.say(net, &bytes);
                let _ = net.shutdown(self.socket);
                return;
            }
            Behaviour::Keeper => put(&mut bytes, link_open(rng, 0)),
            Behaviour::StatsClient => put(&mut bytes, StatsRequest { request: 7 }),
        }
        self.say(net, &bytes);
    }

    /// Continues a connection: sends more at a tick, and reads what has come, by the peer's behaviour.
    fn go_on(&mut self, net: &mut Net, rng: &mut Rng, is_tick: bool, heartbeat_ms: u32) {
        if is_tick {
            self.on_tick(net, rng, heartbeat_ms);
        }
        if self.behaviour == Behaviour::NeverReads
            || self.behaviour == Behaviour::Mute && rng.below(2) == 0
        {
            return;
        }
        let mut buffer = [0; 512];
        while !self.is_over {
            match net.read(self.socket, &mut buffer) {
                Ok(0) => self.end(net),
                Ok(count) => self.handle_message(net, rng, &buffer[..count]),
                Err(error) if error.kind() == std::io::ErrorKind::WouldBlock => return,
                Err(error) if error.kind() == std::io::ErrorKind::Interrupted => {}
                Err(_) => self.end(net),
            }
        }
    }

    fn end(&mut self, net: &mut Net) {
        self.is_over = true;
        net.close(self.socket);
    }

    /// Sends further bytes by the peer's behaviour, and ends the connection now and then.
    fn on_tick(&mut self, net: &mut Net, rng: &mut Rng, heartbeat_ms: u32) {
        let mut bytes = Vec::new();
        match self.behaviour {
            Behaviour::Slow => {
                let hello = hello(&mut Rng::new(1), heartbeat_ms);
                let next = hello.get(self.sent_bytes..=self.sent_bytes).unwrap_or_default();
                self.sent_bytes += next.len();
                bytes.extend_from_slice(next);
            }
            Behaviour::NeverReads => (0..100).for_each(|nonce| put(&mut bytes, Ping { nonce })),
            Behaviour::Keeper | Behaviour::StatsClient | Behaviour::Greedy => {
                put(&mut bytes, Ping { nonce: 1 })
            }
            Behaviour::Odd => put(&mut bytes, any_message(rng)),
            _ => {}
        }
        if !bytes.is_empty() {
            self.say(net, &bytes);
        }
        if !matches!(self.behaviour, Behaviour::StatsClient | Behaviour::Keeper)
            && rng.below(30) == 0
        {
            self.end(net);
        }
    }

    /// Answers according to its behaviour.
    fn handle_message(&mut self, net: &mut Net, rng: &mut Rng, mut bytes: &[u8]) {
        while let Ok(Some(message)) = self.decoder.decode(&mut bytes) {
            let mut answer = Vec::new();
            match message {
                Message::Ping(Ping { nonce }) if self.behaviour != Behaviour::Greets => {
                    put(&mut answer, Pong { nonce });
                }
                Message::StatsReply(StatsReply { part, parts, .. }) => {
                    self.is_answered |= part == self.parts && part + 1 == parts;
                    self.parts = part + 1;
                }
                Message::Goodbye(_) => self.is_answered = true,
                Message::LinkAccept(LinkAccept { link, .. })
                    if self.behaviour == Behaviour::Greedy =>
                {
                    for request in 0..rng.between(1, 10) as u32 {
                        put(&mut answer, session_open(rng, link, request));
                    }
                }
                Message::LinkOpen(open) => answer_link(&mut answer, rng, self.behaviour, &open),
                Message::SessionOpen(open) => {
                    answer_session(&mut answer, rng, self.behaviour, &open)
                }
                _ => {}
            }
            if !answer.is_empty() {
                self.say(net, &answer);
            }
        }
    }
}

fn put(bytes: &mut Vec<u8>, message: impl Into<Message>) {
    let before = bytes.len();
    if message.into().encode(bytes).is_err() {
        bytes.truncate(before);
    }
}

fn hello(rng: &mut Rng, heartbeat_ms: u32) -> Vec<u8> {
    hello_of(rng, heartbeat_ms, VersionRange::OWN)
}

fn modern_hello(rng: &mut Rng, heartbeat_ms: u32) -> Vec<u8> {
    hello_of(rng, heartbeat_ms, VersionRange { min: 7, max: 9 })
}

fn hello_of(rng: &mut Rng, heartbeat_ms: u32, versions: VersionRange) -> Vec<u8> {
    let hello = Hello {
        versions,
        incarnation: rng.next_u64() | 1,
        heartbeat_ms,
        agent: "stranger".to_owned(),
        host_identity: None,
        rendezvous: None,
    };
    let mut bytes = PREFACE.to_vec();
    put(&mut bytes, hello);
    bytes
}

fn link_open(rng: &mut Rng, link: u32) -> LinkOpen {
    let to_endpoint = rng.below(4) as u16;
    let offers = vec![Offer::Udp { port: 9, max_frame: 1_472 }];
    LinkOpen {
        link,
        from_endpoint: 0,
        to_endpoint,
        offers,
        ecn: rng.below(2) == 0,
        features: Default::default(),
    }
}

fn session_open(rng: &mut Rng, link: u32, request: u32) -> SessionOpen {
    SessionOpen {
        link,
        request,
        session: request,
        token: FOREIGN_TOKEN | rng.next_u64() as u32,
        first_request: 0,
        slots: 1 << rng.below(13),
        credits: 8,
        max_message: 1 << 20,
        packet_bytes: if rng.below(8) == 0 { 9_000 } else { 1_440 },
    }
}

/// Answers a link request, not at all, with a refusal, or with a grant, which may be wrong.
fn answer_link(answer: &mut Vec<u8>, rng: &mut Rng, behaviour: Behaviour, open: &LinkOpen) {
    let link = open.link;
    let udp = Offer::Udp { port: 9, max_frame: 1_472 };
    match (behaviour, rng.below(4)) {
        (Behaviour::Greets | Behaviour::Mute | Behaviour::NeverReads, _) => {}
        (_, 0) => put(
            answer,
            LinkRefuse { link, status: Status::ResourceExhausted, text: "no".to_owned() },
        ),
        (Behaviour::Odd, 1) => {
            let (offer, ticket) = (Offer::Shm { max_frame: 4_096 }, Some([3; 16]));
            put(
                answer,
                LinkAccept {
                    link,
                    offer,
                    ticket,
                    ecn: false,
                    features: Default::default(),
                    data_ip: None,
                },
            );
        }
        _ => put(
            answer,
            LinkAccept {
                link,
                offer: udp,
                ticket: None,
                ecn: true,
                features: Default::default(),
                data_ip: None,
            },
        ),
    }
    if behaviour == Behaviour::Odd && rng.below(2) == 0 {
        let text = "after all".to_owned();
        put(answer, LinkClose { link, status: Status::Unavailable, text });
    }
}

/// Answers a proposal, not at all, with a refusal, or with an acceptance, which may be wrong.
fn answer_session(answer: &mut Vec<u8>, rng: &mut Rng, behaviour: Behaviour, open: &SessionOpen) {
    let SessionOpen { link, request, slots, credits, packet_bytes, .. } = *open;
    let slots = if behaviour == Behaviour::Odd && rng.below(4) == 0 { 4_096 } else { slots };
    let accept = SessionAccept {
        link,
        request,
        session: 1,
        token: FOREIGN_TOKEN | rng.next_u64() as u32,
        slots,
        credits,
        max_message: 1 << 20,
        packet_bytes,
    };
    match rng.below(4) {
        0 => {}
        1 => put(answer, SessionRefuse { link, request, status: Status::Ok, text: String::new() }),
        _ => put(answer, accept),
    }
}

/// Returns a legal message, possibly at the wrong time or from the wrong side.
fn any_message(rng: &mut Rng) -> Message {
    let (link, request) = (rng.below(3) as u32, rng.below(3) as u32);
    let (session, token, text) = (rng.below(4) as u32, rng.below(64) as u32, "odd".to_owned());
    let status = [Status::Ok, Status::Unavailable, Status::Aborted][rng.below(3) as usize];
    let from_client = rng.below(2) == 0;
    match rng.below(18) {
        0 => Goodbye { status, text }.into(),
        1 => Ping { nonce: 5 }.into(),
        2 => Pong { nonce: 5 }.into(),
        3..=5 => link_open(rng, link).into(),
        6 => {
            let offer = Offer::Udp { port: 9, max_frame: 1_472 };
            LinkAccept {
                link,
                offer,
                ticket: None,
                ecn: false,
                features: Default::default(),
                data_ip: None,
            }
            .into()
        }
        7 => LinkRefuse { link, status, text }.into(),
        8 => LinkClose { link, status, text }.into(),
        9 | 10 => session_open(rng, link, request).into(),
        11 => SessionRefuse { link, request, status, text }.into(),
        12 => SessionClose { link, session, token, from_client, status, text }.into(),
        13 => SessionDrain { link, session, token, text }.into(),
        14 => GroupAccept { link, request }.into(),
        15 => GroupRefuse { link, request, status, text }.into(),
        16 => GroupLeave { link, group: 3 }.into(),
        _ => StatsRequest { request }.into(),
    }
}
