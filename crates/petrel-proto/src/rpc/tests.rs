//! Scripted tests: pass in a frame, check the result. The simulator tests the core under every fault; these
//! scripts test every rule of the specification separately.

mod busy;
mod cancel;
mod chaos;
mod client;
mod congestion;
mod deadlines;
mod given_back;
mod hostile;
mod lifecycle;
mod memory;
mod multicast;
mod order;
mod paths;
mod placed;
mod probe;
mod server;
mod timers;
mod waiting;

use crate::buffer::{Buffer, HeapBuffer, HeapPool};
use crate::rpc::*;
use crate::session::{Agreed, Entry, PeerKey, SessionId};
use crate::status::Status;
use crate::wire::{Flags, Frame, Kind};

pub(super) const PEER: PeerKey = PeerKey(7);
pub(super) const P: u32 = 1200;
const CLIENT_TOKEN: u32 = 0xC11E_0001;
const SERVER_TOKEN: u32 = 0x5E44_0002;
pub(super) const FIRST: u64 = 832;

pub(super) const POOL: HeapPool = HeapPool { len_max: 64 << 20 };

/// A client core with a session, and a server core with the session's other end. There is no medium: the test
/// carries the frames.
pub(super) struct Pair {
    pub(super) now: u64,
    pub(super) client: Core<HeapBuffer>,
    pub(super) server: Core<HeapBuffer>,
    pub(super) session: SessionId,
    pub(super) server_session: SessionId,
    /// True if frames are offered to the fast paths first, as an endpoint does.
    fast_path: bool,
}

/// The parameters of a pair's session.
#[derive(Clone, Copy, Debug)]
pub(super) struct Shape {
    pub(super) slots: u16,
    pub(super) credits: u16,
    pub(super) request_bytes_max: u32,
}

impl Default for Shape {
    fn default() -> Self {
        Self { slots: 8, credits: 32, request_bytes_max: 8 << 20 }
    }
}

pub(super) fn agreed(peer_session: u32, peer_token: u32, shape: Shape) -> Agreed {
    Agreed {
        peer: PEER,
        peer_session,
        peer_token,
        slots: shape.slots,
        credits: shape.credits,
        packet_bytes: P,
        peer_message_bytes_max: shape.request_bytes_max,
    }
}

/// Brings a server's session into the state after a first request: with slots, and with nothing to report.
pub(super) fn make_used(server: &mut Core<HeapBuffer>, id: SessionId) {
    let Some(Role::Server(session)) = server.sessions.get_mut(id).map(Entry::role_mut) else {
        panic!("a session of a server")
    };
    assert!(session.make_ready(0), "before its first request");
}

impl Pair {
    pub(super) fn new() -> Self {
        Self::with(Shape::default())
    }

    pub(super) fn with(shape: Shape) -> Self {
        Self::by(shape, true)
    }

    /// Makes a pair with or without fast paths.
    pub(super) fn by(shape: Shape, fast_path: bool) -> Self {
        Self::with_config(shape, Config { fast_path, ..Config::default() })
    }

    pub(super) fn with_config(shape: Shape, config: Config) -> Self {
        Self::opened(shape, config, |_, _, _, _| {})
    }

    /// Makes a pair whose session was changed before its opening is complete, at client and server.
    fn opened(
        shape: Shape,
        config: Config,
        change: impl FnOnce(&mut Core<HeapBuffer>, SessionId, &mut Core<HeapBuffer>, SessionId),
    ) -> Self {
        let fast_path = config.fast_path;
        let mut client = Core::new(0, config.clone());
        let mut server = Core::new(0, config);
        let first = FIRST.next_multiple_of(shape.slots.into());
        let session = client.open(CLIENT_TOKEN, first).unwrap();
        let server_session = server
            .accept(Accepted {
                agreed: agreed(
                    session.index,
                    CLIENT_TOKEN,
                    Shape { request_bytes_max: 8 << 20, ..shape },
                ),
                token: SERVER_TOKEN,
                first_request: first,
                request_bytes_max: shape.request_bytes_max,
            })
            .unwrap();
        change(&mut client, session, &mut server, server_session);
        make_used(&mut server, server_session);
        client.establish(session, agreed(server_session.index, SERVER_TOKEN, shape)).unwrap();
        Self { now: 1_000_000, client, server, session, server_session, fast_path }
    }

    /// Makes a pair whose medium loses no frame.
    pub(super) fn on_one_host(fast_path: bool) -> Self {
        let mut pair = Self::by(Shape::default(), fast_path);
        pair.client.leave_network(pair.session);
        pair
    }

    pub(super) fn call(&mut self, request: &[u8], room: usize, tag: u64) {
        let request = buffer(request);
        let response = HeapBuffer::new(room, 1);
        self.client.call(self.now, self.session, 1, request, response, tag).unwrap();
    }

    pub(super) fn respond(&mut self, handle: RequestHandle, message: &[u8]) {
        self.server.respond_at_once(handle, buffer(message), &mut nowhere()).unwrap();
    }

    /// Returns all frames that the client sends now.
    pub(super) fn client_sends(&mut self) -> Vec<Vec<u8>> {
        self.client.release_paced(self.now);
        drain(&mut self.client, self.now)
    }

    /// Returns all frames that the server sends now.
    /// Carries the client's next packet, a whole request, to the server.
    pub(super) fn arrives(&mut self) -> RequestHandle {
        let request = self.client_sends().remove(0);
        self.at_server(&request).request().0
    }

    pub(super) fn server_sends(&mut self) -> Vec<Vec<u8>> {
        drain(&mut self.server, self.now)
    }

    pub(super) fn at_server(&mut self, frame: &[u8]) -> Got {
        take(&mut self.server, self.now, frame, self.fast_path)
    }

    pub(super) fn at_client(&mut self, frame: &[u8]) -> Got {
        take(&mut self.client, self.now, frame, self.fast_path)
    }

    /// As `at_server`, for a frame with an ECN mark.
    pub(super) fn marked_at_server(&mut self, frame: &[u8]) -> Got {
        got(self.server.handle_marked_frame(self.now, PEER, frame, &mut POOL.clone()))
    }

    pub(super) fn marked_at_client(&mut self, frame: &[u8]) -> Got {
        got(self.client.handle_marked_frame(self.now, PEER, frame, &mut POOL.clone()))
    }

    /// Advances the clock until the client's timer has fired at least once.
    pub(super) fn wait_for_timeout(&mut self) {
        let before = self.client.counters().timeouts + self.client.counters().calls_timed_out;
        for _ in 0..10_000 {
            self.now = self.client.next_timeout_ns().expect("a timer is set");
            self.client.handle_timeouts(self.now);
            if self.client.counters().timeouts + self.client.counters().calls_timed_out > before {
                return;
            }
        }
        panic!("no timeout");
    }

    /// Advances the clock until the client checks for loss, by a probe or a timeout.
    pub(super) fn wait_for_probe(&mut self) {
        let looks = |pair: &Self| {
            let counters = pair.client.counters();
            counters.probes + counters.timeouts
        };
        let before = looks(self);
        for _ in 0..10_000 {
            self.now = self.client.next_timeout_ns().expect("a timer is set");
            self.client.handle_timeouts(self.now);
            if looks(self) > before {
                return;
            }
        }
        panic!("no look");
    }

    /// Returns the completion that must be the next event.
    pub(super) fn event(&mut self) -> Completion<HeapBuffer> {
        match self.client_event() {
            Some(Event::Completed(completion)) => completion,
            other => panic!("expected a completion, got {other:?}"),
        }
    }

    /// Returns the client's next event, except that the server is silent.
    pub(super) fn client_event(&mut self) -> Option<Event<HeapBuffer>> {
        std::iter::from_fn(|| self.client.poll_event())
            .find(|event| !matches!(event, Event::ServerSilent(_)))
    }

    pub(super) fn assert_credits_back(&self) {
        let (free, all) = self.client.credits(self.session).unwrap();
        assert_eq!(free, all, "all credits are back");
    }
}

/// The result of a frame, without borrowing the frame.
#[derive(Debug)]
pub(super) enum Got {
    Nothing,
    Request(RequestHandle, Vec<u8>),
    Completed(Completion<HeapBuffer>),
}

impl Got {
    pub(super) fn request(self) -> (RequestHandle, Vec<u8>) {
        match self {
            Got::Request(handle, bytes) => (handle, bytes),
            other => panic!("expected a request, got {other:?}"),
        }
    }

    pub(super) fn completed(self) -> Completion<HeapBuffer> {
        match self {
            Got::Completed(completion) => completion,
            other => panic!("expected a completion, got {other:?}"),
        }
    }

    pub(super) fn nothing(self) {
        assert!(matches!(self, Got::Nothing), "expected nothing, got {self:?}");
    }
}

/// Passes a frame to a core, by a fast path if possible. Checks that every frame is counted once: as
/// accepted, or by the reason for dropping it.
fn take(core: &mut Core<HeapBuffer>, now: u64, frame: &[u8], fast_path: bool) -> Got {
    let (before, multicast_before) = (frames_taken(core), *core.counters());
    let got = take_any(core, now, frame, fast_path);
    let counted = frames_taken(core).wrapping_sub(before);
    let since =
        |count: fn(&Counters) -> u64| count(core.counters()).wrapping_sub(count(&multicast_before));
    let is = |kind: Kind| frame.first().is_some_and(|first| first & 0xF == kind as u8);
    if is(Kind::Multicast) {
        // A packet before its announcement is accepted or dropped with the announcement. A held packet may
        // replace others.
        let kept = since(|counters| counters.multicast_held);
        let dropped = since(|counters| counters.multicast_dropped);
        assert_eq!(counted + kept.max(dropped.min(1)), 1, "{frame:?}");
    } else if is(Kind::Announce) {
        let adopted = since(|counters| counters.multicast_adopted);
        assert!(counted > adopted, "{frame:?} counts {counted} times, with {adopted} packets");
    } else {
        assert_eq!(counted, 1, "{frame:?}");
    }
    got
}

fn frames_taken(core: &Core<HeapBuffer>) -> u64 {
    let counters = core.counters();
    let dropped = counters.iter().filter(|(name, _)| name.starts_with("dropped_"));
    dropped.map(|(_, count)| count).sum::<u64>().wrapping_add(counters.frames_accepted)
}

fn take_any(core: &mut Core<HeapBuffer>, now: u64, frame: &[u8], fast_path: bool) -> Got {
    if fast_path {
        if let Some(request) = core.handle_plain_request(PEER, frame) {
            return Got::Request(request.handle, request.payload.to_vec());
        }
        if let Some(completion) = core.handle_plain_response(now, PEER, frame, || now) {
            return Got::Completed(completion.into());
        }
        if let Some(completion) = core.handle_later_response(now, PEER, frame, || now) {
            return Got::Completed(completion.into());
        }
        if let Some((request, _)) = core.handle_timed_request(now, PEER, frame) {
            return Got::Request(request.handle, request.payload.to_vec());
        }
        if core.handle_next_part(PEER, frame) {
            return Got::Nothing;
        }
    }
    got(core.handle_frame(now, PEER, frame, &mut POOL.clone()))
}

pub(super) fn got(received: Received<'_, HeapBuffer>) -> Got {
    match received {
        Received::Nothing => Got::Nothing,
        Received::Request { handle, payload, .. } => Got::Request(handle, payload.to_vec()),
        Received::Message { handle, message, .. } => {
            Got::Request(handle, message.message().to_vec())
        }
        Received::Completed(completion) => Got::Completed(completion),
    }
}

/// Returns all frames that a core sends. Checks that every frame is counted once: as a packet, a repetition,
/// or another frame.
pub(super) fn drain(core: &mut Core<HeapBuffer>, now: u64) -> Vec<Vec<u8>> {
    let counted = |core: &Core<HeapBuffer>| {
        let counters = core.counters();
        let packets = counters.packets_sent.wrapping_add(counters.packets_retransmitted);
        packets.wrapping_add(counters.control_frames_sent).wrapping_add(counters.multicast_sent)
    };
    let (mut frames, before) = (Vec::new(), counted(core));
    let mut sink = |_: PeerKey, head: &[u8], body: &[u8]| {
        frames.push([head, body].concat());
        true
    };
    while core.transmit(now, &mut sink) > 0 {}
    assert_eq!(counted(core).wrapping_sub(before), frames.len() as u64, "frames sent and counted");
    frames.iter().for_each(|frame| assert_says_nothing_beside(frame));
    frames
}

/// Checks that unused fields of a frame are 0 (`docs/wire-protocol.md` §3).
fn assert_says_nothing_beside(frame: &[u8]) {
    let header = Frame::parse(frame).expect("the core sends sound frames").header;
    if let Kind::Credit | Kind::Pull | Kind::Cancel | Kind::Multicast = header.kind {
        assert_eq!(header.aux, 0, "{frame:?}");
    }
}

/// Returns the frames that a core sends when the medium refuses all but the first `taken` frames.
pub(super) fn refuse_behind(core: &mut Core<HeapBuffer>, now: u64, taken: usize) -> Vec<Vec<u8>> {
    let mut frames = Vec::new();
    let sent = core.transmit(now, &mut |_: PeerKey, head: &[u8], body: &[u8]| {
        let takes = frames.len() < taken;
        takes.then(|| frames.push([head, body].concat()));
        takes
    });
    assert_eq!(sent, frames.len());
    frames
}

/// Returns the frame as repeated by its sender.
pub(super) fn repeated(frame: &[u8]) -> Vec<u8> {
    let (header, _) = crate::wire::Header::parse(frame).expect("a frame");
    let header = crate::wire::Header { flags: header.flags.with(Flags::REPEATS), ..header };
    let mut again = frame.to_vec();
    let bytes = header.encode();
    again[..bytes.len()].copy_from_slice(&bytes);
    again
}

/// Returns a sink that refuses every frame.
pub(super) fn nowhere() -> impl FrameSink {
    |_: PeerKey, _: &[u8], _: &[u8]| false
}

pub(super) fn buffer(message: &[u8]) -> HeapBuffer {
    HeapBuffer::from_message(message, packets(message.len()))
}

fn packets(len: usize) -> u32 {
    crate::limits::packets_of(len as u32, P)
}

/// Returns a message in which adjacent bytes differ, to detect a misplaced packet.
pub(super) fn pattern(len: usize, seed: u64) -> Vec<u8> {
    // The upper bits are used, and small seeds must affect them.
    let from = seed.wrapping_mul(0xD6E8_FEB8_6659_FD93);
    (0..len as u64)
        .map(|at| ((at + 1).wrapping_mul(0x9E37_79B9_7F4A_7C15).wrapping_add(from) >> 56) as u8)
        .collect()
}

/// Describes frames in words, for comparison.
pub(super) fn words(frames: &[Vec<u8>]) -> Vec<String> {
    frames
        .iter()
        .map(|frame| Frame::parse(frame).expect("the core sends sound frames").to_string())
        .collect()
}

#[test]
fn a_small_call_takes_two_frames_of_sixteen_bytes_and_the_data() {
    let mut pair = Pair::new();
    pair.call(b"ping!", 100, 42);
    let frames = pair.client_sends();
    assert_eq!(words(&frames), ["REQUEST s0 r832 m1 5 B"]);
    assert_eq!(frames[0].len(), 16 + 5);
    let (handle, request) = pair.at_server(&frames[0]).request();
    assert_eq!(request, b"ping!");
    pair.respond(handle, b"pong");
    let frames = pair.server_sends();
    assert_eq!(words(&frames), ["RESPONSE s0 r832 4 B"]);
    assert_eq!(frames[0].len(), 16 + 4);
    let completion = pair.at_client(&frames[0]).completed();
    assert_eq!(completion.tag, 42);
    completion.outcome.unwrap();
    assert_eq!(completion.response.message(), b"pong");
    assert_eq!(completion.request.message(), b"ping!");
    pair.assert_credits_back();
    assert!(pair.client_sends().is_empty() && pair.server_sends().is_empty());
}

#[test]
fn sizes_around_packets_and_up_to_the_limit_arrive_unchanged() {
    let mut pair = Pair::new();
    for len in [0, 1, 1199, 1200, 1201, 2400, 2401, 100_000, 8 << 20] {
        let message = pattern(len, 5);
        pair.call(&message, len, 1);
        let completion = run(&mut pair, |request| request.to_vec());
        completion.outcome.unwrap();
        assert!(completion.response.message() == message, "{len} bytes differ");
        assert_eq!(completion.response.len(), len);
        pair.assert_credits_back();
    }
    assert_eq!(pair.client.counters().timeouts, 0);
    assert_eq!(pair.client.counters().packets_retransmitted, 0);
    assert_eq!(pair.server.counters().packets_retransmitted, 0);
}

/// Carries all frames until the only call has ended.
pub(super) fn run(
    pair: &mut Pair,
    mut handler: impl FnMut(&[u8]) -> Vec<u8>,
) -> Completion<HeapBuffer> {
    for _ in 0..100_000 {
        pair.now += 5_000;
        for frame in pair.client_sends() {
            if let Got::Request(handle, request) = pair.at_server(&frame) {
                let response = handler(&request);
                pair.respond(handle, &response);
            }
        }
        let mut ended = None;
        for frame in pair.server_sends() {
            if let Got::Completed(completion) = pair.at_client(&frame) {
                ended = Some(completion);
            }
        }
        if let Some(completion) = ended {
            return completion;
        }
    }
    panic!("the call does not end");
}
