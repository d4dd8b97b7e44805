//! A member of multicast groups, with honest clients that call by multicast and with frames from any
//! sender.
//!
//! Two clients have sessions with a server, a member of a group of either client. The input decides the
//! calls, the arrival, order and repetition of frames, and the frames that strangers and hostile members
//! send to the groups' addresses. In an *honest* world no forged frame has a valid key: every request
//! arrives with its bytes, and every call ends. In another world the attacker knows the keys and may
//! change the bytes, but requests still run once, and memory stays within its bounds.

use std::cell::Cell;
use std::collections::{HashMap, HashSet, VecDeque};
use std::rc::Rc;

use petrel_proto::buffer::{Buffer, BufferPool, HeapBuffer};
use petrel_proto::limits::{PACKET_BYTES_MIN, packet_span, packets_of};
use petrel_proto::wire::{Announcement, Flags, Header, Kind, Part};
use petrel_proto::{
    Accepted, Agreed, CallLimits, Config, Core, Event, GroupFrames, Membership, PeerKey,
    PendingCall, Received, RequestHandle, SessionId, Status,
};

use crate::input::Input;

const P: u32 = PACKET_BYTES_MIN;

const CLIENTS: usize = 2;

/// The clients' name of the server. The server's names of the clients are 1 and 2; 3 is a stranger.
const SERVER: PeerKey = PeerKey(9);

const SLOTS: u16 = 8;
const REQUEST_BYTES_MAX: u32 = 60 * P;

/// Most steps of an input, to bound its running time.
const STEPS_MAX: usize = 300;

/// Most frames in flight to one end; the medium loses further frames.
const WIRE_FRAMES_MAX: usize = 1_000;

/// Most bytes of packets that a member stores before their announcement, per group.
const HELD_BYTES_MAX: usize = 1 << 20;

/// Turns within which every call ends without faults.
const TURNS_MAX: usize = 5_000;

/// Runs the input's steps, checks the world after every step, and finally waits until all calls have
/// ended.
pub fn check(data: &[u8]) {
    let mut input = Input::new(data);
    let mut world = World::new(&mut input);
    for _ in 0..STEPS_MAX {
        if input.is_empty() {
            break;
        }
        world.step(&mut input);
        world.check();
    }
    world.end();
}

/// A buffer whose bytes are counted during its lifetime.
struct Counted {
    inner: HeapBuffer,
    bytes: usize,
    all: Rc<Cell<usize>>,
}

impl Counted {
    fn new(inner: HeapBuffer, all: &Rc<Cell<usize>>) -> Self {
        let bytes = inner.capacity();
        all.set(all.get() + bytes);
        Self { inner, bytes, all: Rc::clone(all) }
    }
}

impl Drop for Counted {
    fn drop(&mut self) {
        self.all.set(self.all.get() - self.bytes);
    }
}

impl Buffer for Counted {
    fn len(&self) -> usize {
        self.inner.len()
    }

    fn capacity(&self) -> usize {
        self.inner.capacity()
    }

    fn set_len(&mut self, len: usize) {
        self.inner.set_len(len);
    }

    fn storage_mut(&mut self) -> &mut [u8] {
        self.inner.storage_mut()
    }

    fn write_header(&mut self, index: u32, header: &[u8]) {
        self.inner.write_header(index, header);
    }

    fn frame(&mut self, header: [u64; 2]) -> &[u8] {
        self.inner.frame(header)
    }

    fn packet(&self, index: u32, header_len: usize, offset: usize, len: usize) -> (&[u8], &[u8]) {
        self.inner.packet(index, header_len, offset, len)
    }
}

struct Pool(Rc<Cell<usize>>);

impl BufferPool for Pool {
    type Buffer = Counted;

    fn take(&mut self, len: usize, packets: u32) -> Option<Counted> {
        let mut inner = HeapBuffer::new(len, packets);
        inner.set_len(len);
        Some(Counted::new(inner, &self.0))
    }
}

/// A client, and the frames in flight between the client and the server.
struct Client {
    core: Core<HeapBuffer>,
    session: SessionId,
    /// The session's name at the server.
    served: SessionId,
    sequence: u64,
    /// Outstanding requests, by tag.
    calls: HashMap<u64, Vec<u8>>,
    to_server: VecDeque<Vec<u8>>,
    to_client: VecDeque<Vec<u8>>,
}

struct World {
    now: u64,
    clients: Vec<Client>,
    server: Core<Counted>,
    pool: Pool,
    /// Requests delivered to the server: all, and those without an answer.
    given: HashSet<(SessionId, u64)>,
    requests: Vec<(RequestHandle, Vec<u8>)>,
    next_tag: u64,
    /// Whether only frames of the group's client have a valid key.
    is_honest: bool,
}

fn token(end: u32, client: usize) -> u32 {
    0xA000_0000 + (end << 8) + client as u32
}

fn membership(client: usize, session: SessionId) -> Membership {
    let group = 5 + client as u32;
    Membership { peer: PeerKey(1 + client as u32), group, key: 0x6E0F_0000 + group, session }
}

fn pattern(len: usize, seed: u64) -> Vec<u8> {
    (0..len as u64).map(|at| (at ^ seed).wrapping_mul(0x9E37_79B9) as u8).collect()
}

fn buffer(message: &[u8]) -> HeapBuffer {
    HeapBuffer::from_message(message, packets_of(message.len() as u32, P))
}

impl World {
    fn new(input: &mut Input<'_>) -> Self {
        let config = Config { retries_max: 100, ..Config::default() };
        let mut server = Core::new(1_000_000, config.clone());
        let all = Rc::new(Cell::new(0));
        let credits = [32, 300, 7][input.below(3)];
        let clients = (0..CLIENTS).map(|client| {
            let mut core = Core::new(1_000_000, config.clone());
            let session = core.open(token(0, client), 832).expect("the first session");
            let agreed = |peer, peer_session, peer_token| Agreed {
                peer,
                peer_session,
                peer_token,
                slots: SLOTS,
                credits,
                packet_bytes: P,
                peer_message_bytes_max: REQUEST_BYTES_MAX,
            };
            let accepted = Accepted {
                agreed: agreed(PeerKey(1 + client as u32), session.index, token(0, client)),
                token: token(1, client),
                first_request: 832,
                request_bytes_max: REQUEST_BYTES_MAX,
            };
            let served = server.accept(accepted).expect("there is room for two");
            let terms = agreed(SERVER, served.index, token(1, client));
            core.establish(session, terms).expect("sound terms");
            assert!(server.join_group(membership(client, served)));
            let (to_server, to_client) = Default::default();
            let calls = HashMap::new();
            Client { core, session, served, sequence: 70, calls, to_server, to_client }
        });
        let clients = clients.collect();
        let is_honest = input.below(2) == 0;
        let (given, requests) = Default::default();
        let (now, pool) = (1_000_000, Pool(all));
        Self { now, clients, server, pool, given, requests, next_tag: 0, is_honest }
    }

    fn step(&mut self, input: &mut Input<'_>) {
        let client = input.below(CLIENTS);
        match input.below(16) {
            0..=3 => self.call(client, input),
            4 => self.send(client),
            5..=7 => self.arrive(client, input),
            8 => self.storm(client, input.word()),
            9 => self.answer(input.below(256)),
            10 => self.pass_time(input),
            11 => self.change_membership(client, input),
            12 => {
                self.turn();
            }
            _ => self.forge(input),
        }
    }

    fn call(&mut self, client: usize, input: &mut Input<'_>) {
        let len = match input.below(4) {
            0 => input.below(100),
            1 => P as usize * input.below(59) + input.below(3),
            _ => P as usize * (1 + input.below(6)) + 1,
        };
        let (now, tag) = (self.now, self.next_tag);
        self.next_tag += 1;
        let message = pattern(len, tag);
        let Client { core, session, sequence, calls, .. } = &mut self.clients[client];
        let response = HeapBuffer::new(16, 1);
        let request = buffer(&message);
        if !core.is_open(*session) {
            return;
        }
        if core.may_announce(*session, len, P) {
            *sequence += 1;
            let Membership { group, key, .. } = membership(client, *session);
            let announcement = Announcement { group, sequence: *sequence };
            let ahead_ns = [None, Some(0), Some(2_000_000)][input.below(3)];
            let limits = CallLimits {
                deadline_ns: ahead_ns.map(|ahead_ns| now + ahead_ns),
                ..CallLimits::default()
            };
            let call = PendingCall { method: 3, tag, request, response };
            core.call_announced(now, *session, call, limits, announcement);
            let to = GroupFrames { peer: PeerKey(77), key, announcement, packet_bytes: P };
            core.send_to_group(to, buffer(&message));
        } else if core.call(now, *session, 3, request, response, tag).is_err() {
            return;
        }
        calls.insert(tag, message);
    }

    /// Sends all frames that a client and the server have to send.
    fn send(&mut self, client: usize) {
        let now = self.now;
        let Client { core, to_server, .. } = &mut self.clients[client];
        core.release_paced(now);
        let mut frames = 0;
        while core.has_transmit() {
            core.transmit(now, &mut |peer, head: &[u8], body: &[u8]| {
                assert!(peer == SERVER || peer == PeerKey(77));
                put(to_server, [head, body].concat());
                true
            });
            frames += 1;
            assert!(frames < 10_000, "frames without end");
        }
        while self.server.has_transmit() {
            let clients = &mut self.clients;
            self.server.transmit(now, &mut |peer: PeerKey, head: &[u8], body: &[u8]| {
                put(&mut clients[peer.0 as usize - 1].to_client, [head, body].concat());
                true
            });
            frames += 1;
            assert!(frames < 10_000, "frames without end");
        }
    }

    /// Delivers a frame, loses a frame, or delivers a copy of a frame.
    fn arrive(&mut self, client: usize, input: &mut Input<'_>) {
        let is_answer = input.below(3) == 0;
        let Client { to_server, to_client, .. } = &mut self.clients[client];
        let wire = if is_answer { to_client } else { to_server };
        if wire.is_empty() {
            return;
        }
        let index = input.below(256) % wire.len();
        let fate = input.below(4);
        let frame = if fate == 2 { wire.get(index).cloned() } else { wire.remove(index) };
        match frame {
            Some(frame) if fate != 1 && is_answer => self.at_client(client, &frame),
            Some(frame) if fate != 1 => self.at_server(PeerKey(1 + client as u32), &frame),
            _ => {}
        }
    }

    /// Delivers the frames in flight to the server, except lost and delayed ones, possibly in reverse
    /// order.
    fn storm(&mut self, client: usize, fates: u64) {
        let mut frames = std::mem::take(&mut self.clients[client].to_server);
        if fates >> 63 == 1 {
            frames.make_contiguous().reverse();
        }
        for (index, frame) in frames.into_iter().enumerate() {
            match fates >> (2 * (index % 31)) & 3 {
                2 => {}
                3 => self.clients[client].to_server.push_back(frame),
                _ => self.at_server(PeerKey(1 + client as u32), &frame),
            }
        }
    }

    fn at_server(&mut self, peer: PeerKey, frame: &[u8]) {
        let (handle, bytes) = match self.server.handle_frame(self.now, peer, frame, &mut self.pool)
        {
            Received::Nothing => return,
            Received::Request { handle, payload, .. } => (handle, payload.to_vec()),
            Received::Message { handle, mut message, .. } => {
                let len = message.len();
                (handle, message.storage_mut()[..len].to_vec())
            }
            Received::Completed(_) => panic!("the server calls nobody"),
        };
        assert!(self.given.insert((handle.session, handle.number)), "{handle:?} is given twice");
        if self.is_honest {
            let client = self.clients.iter().find(|client| client.served == handle.session);
            let client = client.expect("a session of one of them");
            // A request whose call has ended meanwhile may still run.
            let is_known = client.calls.values().any(|call| *call == bytes);
            let is_sound = (0..self.next_tag).any(|tag| pattern(bytes.len(), tag) == bytes);
            assert!(is_known || is_sound, "the request's bytes are nobody's");
        }
        self.requests.push((handle, bytes));
    }

    fn at_client(&mut self, client: usize, frame: &[u8]) {
        let Client { core, .. } = &mut self.clients[client];
        let mut pool = petrel_proto::buffer::HeapPool { len_max: 1 << 20 };
        if let Received::Completed(completion) =
            core.handle_frame(self.now, SERVER, frame, &mut pool)
        {
            self.on_completion(
                client,
                completion.tag,
                completion.outcome.is_ok(),
                completion.response,
            );
        }
    }

    fn on_completion(&mut self, client: usize, tag: u64, is_ok: bool, response: HeapBuffer) {
        let request = self.clients[client].calls.remove(&tag).expect("a call ends once");
        if is_ok && self.is_honest {
            let expected = &request[..request.len().min(8)];
            assert!(response.message() == expected, "the answer is another request's");
        }
    }

    fn answer(&mut self, choice: usize) {
        if self.requests.is_empty() {
            return;
        }
        let (handle, bytes) = self.requests.swap_remove(choice % self.requests.len());
        let answer = &bytes[..bytes.len().min(8)];
        let message = Counted::new(HeapBuffer::from_message(answer, 1), &self.pool.0);
        // The session may have ended, or the caller may have given up.
        drop(self.server.respond(handle, Status::Ok, message));
    }

    fn pass_time(&mut self, input: &mut Input<'_>) {
        let next_ns = self.next_timeout_ns();
        self.now = match (input.below(2), next_ns) {
            (0, Some(next_ns)) => self.now.max(next_ns),
            _ => self.now + (u64::from(input.byte()) << 14),
        };
        self.handle_timeouts();
    }

    fn next_timeout_ns(&self) -> Option<u64> {
        let clients = self.clients.iter().filter_map(|client| client.core.next_timeout_ns());
        clients.chain(self.server.next_timeout_ns()).min()
    }

    fn handle_timeouts(&mut self) {
        let now = self.now;
        self.server.handle_timeouts(now);
        self.clients.iter_mut().for_each(|client| client.core.handle_timeouts(now));
    }

    /// Leaves a group, joins it again, or tries to join more groups than allowed.
    fn change_membership(&mut self, client: usize, input: &mut Input<'_>) {
        let served = self.clients[client].served;
        let own = membership(client, served);
        match input.below(4) {
            0 => drop(self.server.leave_group(served, own.group)),
            1 => {
                for group in 100..100 + input.below(20) as u32 {
                    self.server.join_group(Membership { group, ..own });
                }
                assert!(self.server.memberships().count() <= 16);
            }
            2 => {
                // A peer cannot join by another peer's session.
                let other = PeerKey(2 - client as u32);
                assert!(!self.server.join_group(Membership { peer: other, ..own }));
            }
            _ => drop(self.server.join_group(own)),
        }
    }

    /// Delivers a frame that no client sent: of the group or almost, announced or not.
    fn forge(&mut self, input: &mut Input<'_>) {
        let client = input.below(CLIENTS);
        let own = membership(client, self.clients[client].served);
        let is_announce = !self.is_honest && input.below(3) == 0;
        let (session, token) = match is_announce {
            true => (own.session.index, token(1, client)),
            false => (own.group, own.key),
        };
        // In an honest world at least one field is wrong.
        let wrong = if self.is_honest { 1 + input.below(3) } else { input.below(8) };
        let seen = self.clients[client].sequence;
        let near = seen.wrapping_add_signed(i64::from(input.byte() as i8) % 70);
        let sequence = [near, seen, input.word()][input.below(3)] % (1 << 48);
        let flags = [Flags::NONE, Flags::REPEATS, Flags::EXTENDED, Flags(0xD)][input.below(4)];
        let header = Header {
            kind: if is_announce { Kind::Announce } else { Kind::Multicast },
            flags,
            session: (session ^ u32::from(wrong == 1)) % (1 << 20),
            token: token ^ if wrong == 2 { 1 << input.below(32) } else { 0 },
            aux: input.byte().into(),
            request: if is_announce { 832 + input.below(64) as u64 } else { sequence },
        };
        let packets = 1 + input.below(60) as u32;
        let size =
            [P * packets, P * packets + 1, input.number(), input.word() as u32][input.below(4)];
        let packet = [input.below(64) as u32, input.word() as u32 % (1 << 24)][input.below(2)];
        let part = Part {
            size,
            packet: if is_announce { 0 } else { packet },
            grant: input.below(3) as u8,
        };
        let mut payload = vec![input.byte(); P as usize];
        if packet < packets_of(size, P) && input.below(8) != 0 {
            payload.truncate(packet_span(packet, size, P).1);
        } else {
            payload.truncate(input.number() as usize);
        }
        if is_announce {
            let group = [own.group, 100, input.number() % (1 << 20)][input.below(3)];
            payload = [&group.to_le_bytes()[..], &sequence.to_le_bytes()].concat();
        }
        let frame = [&part.encode(header.words())[..], &payload].concat();
        let peer = if wrong == 3 { PeerKey(3) } else { own.peer };
        let copies = [1, 1, 1, 200][input.below(4)];
        (0..copies).for_each(|_| self.at_server(peer, &frame));
    }

    /// Delivers all frames to send, and answers all requests. Returns true if any frame arrived.
    fn turn(&mut self) -> bool {
        self.now += 5_000;
        let mut is_moving = false;
        for client in 0..CLIENTS {
            self.send(client);
            let frames = std::mem::take(&mut self.clients[client].to_server);
            is_moving |= !frames.is_empty();
            for frame in frames {
                self.at_server(PeerKey(1 + client as u32), &frame);
            }
        }
        (0..self.requests.len()).for_each(|_| self.answer(0));
        for client in 0..CLIENTS {
            self.send(client);
            let frames = std::mem::take(&mut self.clients[client].to_client);
            is_moving |= !frames.is_empty();
            frames.iter().for_each(|frame| self.at_client(client, frame));
        }
        is_moving
    }

    fn check(&mut self) {
        self.take_events();
        let groups = self.server.memberships().count();
        let (requests, answers) = (2 * CLIENTS * usize::from(SLOTS), CLIENTS * usize::from(SLOTS));
        let most = groups * HELD_BYTES_MAX + requests * REQUEST_BYTES_MAX as usize + answers * 16;
        assert!(self.pool.0.get() <= most, "the member holds {} bytes", self.pool.0.get());
        for client in &self.clients {
            assert_eq!(client.core.pending_calls(client.session), client.calls.len());
            if let Some((free, all)) = client.core.credits(client.session) {
                assert!(free <= all && (free == all || !client.calls.is_empty()));
            }
        }
    }

    fn take_events(&mut self) {
        while let Some(event) = self.server.poll_event() {
            assert!(!matches!(event, Event::Completed(_)), "the server calls nobody");
        }
        for client in 0..CLIENTS {
            while let Some(event) = self.clients[client].core.poll_event() {
                match event {
                    Event::Completed(completion) => {
                        let is_ok = completion.outcome.is_ok();
                        self.on_completion(client, completion.tag, is_ok, completion.response);
                    }
                    Event::SessionExhausted(session) => {
                        self.clients[client].core.close(session, Status::Unavailable, "exhausted");
                    }
                    // There is no control plane to ask.
                    Event::ServerSilent(_) | Event::SessionUsed(_) => {}
                    Event::Cancelled(_) | Event::Request { .. } => {
                        panic!("a client serves nobody")
                    }
                    Event::Probed { .. } => panic!("no session is being opened"),
                }
            }
        }
    }

    /// Checks the end of a run: without faults every call ends, and closing the sessions frees
    /// everything.
    fn end(mut self) {
        for _ in 0..TURNS_MAX {
            self.check();
            if !self.is_honest || self.clients.iter().all(|client| client.calls.is_empty()) {
                break;
            }
            if !self.turn() {
                self.now =
                    self.next_timeout_ns().expect("a timer runs while a call waits").max(self.now);
                self.handle_timeouts();
            }
        }
        let left: usize = self.clients.iter().map(|client| client.calls.len()).sum();
        assert!(left == 0 || !self.is_honest, "{left} calls do not end");
        for client in 0..CLIENTS {
            let Client { session, served, .. } = self.clients[client];
            self.server.close(served, Status::Unavailable, "over");
            self.clients[client].core.close(session, Status::Unavailable, "over");
        }
        self.check();
        assert!(self.clients.iter().all(|client| client.calls.is_empty()));
        assert_eq!(self.server.memberships().count(), 0);
        assert_eq!(self.pool.0.get(), 0, "bytes that nobody needs any more");
    }
}

fn put(wire: &mut VecDeque<Vec<u8>>, frame: Vec<u8>) {
    if wire.len() < WIRE_FRAMES_MAX {
        wire.push_back(frame);
    }
}
