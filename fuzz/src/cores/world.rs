//! The two cores, the medium between them, and the observations.

use std::collections::{HashMap, HashSet, VecDeque};
use std::hash::{DefaultHasher, Hasher};

use petrel_proto::buffer::{Buffer, HeapBuffer, HeapPool};
use petrel_proto::limits::{PACKET_BYTES_MIN, TRANSMIT_FRAMES_MAX, WINDOW_PACKETS, packets_of};
use petrel_proto::wire::{Fields, Frame, Header};
use petrel_proto::{
    Agreed, CallLimits, Completion, Config, Core, Event, Execution, PeerKey, PendingCall, Received,
    RequestHandle, SessionId, Status,
};

use crate::input::Input;

/// Payload of a full packet: the minimum, so messages of many packets are cheap.
pub(super) const PACKET_BYTES: u32 = PACKET_BYTES_MIN;

/// Most retransmissions of a call, in most worlds.
pub(super) const RETRIES: u8 = 10;

/// The name of the peer at either core.
pub(super) const PEER: PeerKey = PeerKey(7);

/// Most frames per burst.
pub(super) const BURST: usize = TRANSMIT_FRAMES_MAX;

/// Most frames in flight to one end; the medium loses further frames.
const WIRE_FRAMES_MAX: usize = 4_096;

/// The state of a run.
pub(super) struct World {
    pub(super) now: u64,
    pub(super) ends: [End; 2],
    pub(super) sessions: Vec<Session>,
    /// Outstanding calls, by tag.
    pub(super) calls: HashMap<u64, Call>,
    pub(super) next_tag: u64,
    /// Whether no frame may be forged. With forged frames, the bytes of messages prove nothing, and
    /// calls need not end by themselves.
    pub(super) is_honest: bool,
    pub(super) retries_max: u8,
    /// Whether frames are offered to the fast paths first.
    fast_path: bool,
    /// The lost frames of the last calls, one bit per frame.
    pub(super) last_losses: u64,
    /// Total bytes of messages that may still be created, to bound the running time of an input.
    pub(super) budget_bytes: usize,
    trace: bool,
}

/// One of the two cores, and its environment.
pub(super) struct End {
    pub(super) core: Core<HeapBuffer>,
    pool: HeapPool,
    /// Frames in flight to this end.
    pub(super) wire: VecDeque<Vec<u8>>,
    /// Unanswered requests delivered to this end.
    pub(super) requests: Vec<Request>,
    /// Watched unanswered requests, not reported as cancelled.
    pub(super) watched: HashSet<RequestHandle>,
    /// All requests ever delivered to this end.
    given: HashSet<(SessionId, u64)>,
}

/// A session, as known to its two ends.
pub(super) struct Session {
    /// The index of the client's end.
    pub(super) client: usize,
    /// The session's name at either end.
    pub(super) ids: [SessionId; 2],
    pub(super) tokens: [u32; 2],
    /// The parameters that the server agreed to.
    pub(super) terms: Agreed,
    /// The highest cumulative count that either end received.
    pub(super) acknowledged: [u32; 2],
    /// The last request number observed on the wire.
    pub(super) number: u64,
}

/// An outstanding call.
pub(super) struct Call {
    /// The end and the session of the caller.
    pub(super) end: usize,
    pub(super) session: SessionId,
    request: HeapBuffer,
    deadline_ns: u64,
}

/// An unanswered request.
#[derive(Clone, Copy)]
pub(super) struct Request {
    pub(super) handle: RequestHandle,
    /// A hash of the request's bytes.
    pub(super) hash: u64,
}

impl World {
    pub(super) fn new(input: &mut Input<'_>) -> Self {
        let config = Config {
            retries_max: [RETRIES, RETRIES, 1, 3][input.below(4)],
            sessions_max: 6,
            backlog_max: [1_000, 3, 0][input.below(3)],
            fast_path: input.below(4) != 0,
            ..Config::default()
        };
        let pool = HeapPool { len_max: [8 << 20, 20_000][input.below(2)] };
        Self {
            now: 1_000_000,
            ends: [End::new(config.clone(), pool), End::new(config.clone(), pool)],
            sessions: Vec::new(),
            calls: HashMap::new(),
            next_tag: 0,
            retries_max: config.retries_max,
            fast_path: config.fast_path,
            is_honest: input.below(2) == 0,
            last_losses: input.word(),
            budget_bytes: 2 << 20,
            trace: std::env::var_os("PETREL_FUZZ_TRACE").is_some(),
        }
    }

    pub(super) fn trace(&self, line: impl FnOnce() -> String) {
        if self.trace {
            eprintln!("{:>12} {}", self.now, line());
        }
    }

    /// Returns a message of `len` bytes, or of fewer when the budget is used up.
    pub(super) fn message(&mut self, len: usize, seed: u64) -> HeapBuffer {
        let len = if len > self.budget_bytes { len % 100 } else { len };
        self.budget_bytes = self.budget_bytes.saturating_sub(len);
        buffer(&pattern(len, seed))
    }

    /// Makes a call, with a deadline for certain method numbers.
    pub(super) fn call(&mut self, index: usize, method: u16, len: usize, room: usize) {
        let ahead_ns = match method & 0xE0 {
            0x20 => Some(0),
            0x40 => Some(150_000),
            0x60 => Some(3_000_000),
            0x80 => Some(200_000_000),
            _ => None,
        };
        self.call_within(index, method, len, room, ahead_ns);
    }

    fn call_within(
        &mut self,
        index: usize,
        method: u16,
        len: usize,
        room: usize,
        ahead_ns: Option<u64>,
    ) {
        let tag = self.next_tag;
        self.next_tag += 1;
        let request = self.message(len, tag);
        let response = HeapBuffer::new(room, 1);
        let Session { client: end, ids, .. } = self.sessions[index];
        let id = ids[end];
        let (now, core) = (self.now, &mut self.ends[end].core);
        let deadline_ns = ahead_ns.map(|ahead_ns| now + ahead_ns);
        let called = match deadline_ns {
            None => core.call(now, id, method, request.clone(), response, tag),
            Some(_) => {
                let call = PendingCall { method, tag, request: request.clone(), response };
                core.call_with(now, id, call, CallLimits { deadline_ns, ..CallLimits::default() })
            }
        };
        match called {
            Ok(()) => {
                let deadline_ns = deadline_ns.unwrap_or(now + core_timeout_ns());
                self.calls.insert(tag, Call { end, session: id, request, deadline_ns });
            }
            Err(rejected) => {
                assert_eq!((rejected.request.len(), rejected.response.len()), (request.len(), 0));
                assert_ne!(rejected.error.status(), Status::Ok);
            }
        }
    }

    /// Cancels the oldest call of a session at its client.
    pub(super) fn cancel(&mut self, index: usize) {
        let Session { client: end, ids, .. } = self.sessions[index];
        let id = ids[end];
        let of_this =
            |(tag, call): (&u64, &Call)| (call.end == end && call.session == id).then_some(*tag);
        let Some(oldest) = self.calls.iter().filter_map(of_this).min() else { return };
        self.trace(|| format!("{end} cancels call {oldest}"));
        let ended = self.ends[end].core.cancel(id, |tag| *tag == oldest);
        let ended = ended.expect("a call that has not ended can be cancelled");
        assert_eq!(ended.outcome.as_ref().expect_err("cancelled").status, Status::Cancelled);
        self.on_completion(ended);
    }

    /// Tells the client that the server agreed. Returns true if the session was not established before.
    pub(super) fn establish(&mut self, index: usize) -> bool {
        let Session { client: end, ids, terms, .. } = self.sessions[index];
        self.trace(|| format!("{end} establishes session {index}"));
        self.ends[end].core.establish(ids[end], terms).is_ok()
    }

    /// Sends up to a burst of frames; the medium refuses frames after the first `taken`. Returns the
    /// number of accepted frames.
    pub(super) fn send(&mut self, end: usize, count: usize, taken: usize) -> usize {
        let room = count.min(taken);
        let mut frames = Vec::new();
        let sent = self.ends[end].core.transmit(self.now, &mut |peer, head: &[u8], body: &[u8]| {
            assert_eq!(peer, PEER);
            let takes = frames.len() < room;
            takes.then(|| frames.push([head, body].concat()));
            takes
        });
        assert_eq!(sent, frames.len());
        frames.into_iter().for_each(|frame| self.put_on_wire(end, frame));
        sent
    }

    fn put_on_wire(&mut self, from: usize, bytes: Vec<u8>) {
        let frame = Frame::parse(&bytes).expect("a core sends sound frames");
        assert!(frame.payload.len() <= PACKET_BYTES as usize);
        self.trace(|| format!("{from} sends {frame}"));
        let to = 1 - from;
        let session = self.session_of(to, &frame.header).expect("it names a session");
        session.number = frame.header.request;
        if let Fields::Part(part) = frame.fields {
            let end = session.acknowledged[from].saturating_add(WINDOW_PACKETS);
            assert!(part.packet < end, "packet {} is beyond the window", part.packet);
        }
        let wire = &mut self.ends[to].wire;
        if wire.len() < WIRE_FRAMES_MAX {
            wire.push_back(bytes);
        }
    }

    /// Returns the session that a frame to an end names.
    fn session_of(&mut self, to: usize, header: &Header) -> Option<&mut Session> {
        self.sessions.iter_mut().find(|session| {
            session.ids[to].index == header.session && session.tokens[to] == header.token
        })
    }

    /// Records the cumulative acknowledgement that an end has received.
    fn note_acknowledged(&mut self, to: usize, frame: &Frame<'_>) {
        let cumulative = match frame.fields {
            Fields::Credit(credit) => credit.cumulative,
            Fields::Pull(pull) => pull.cumulative,
            Fields::None | Fields::Part(_) => 0,
        };
        if let Some(session) = self.session_of(to, &frame.header) {
            session.acknowledged[to] = session.acknowledged[to].max(cumulative);
        }
    }

    /// Delivers a frame.
    pub(super) fn deliver(&mut self, to: usize, peer: PeerKey, bytes: &[u8]) {
        match Frame::parse(bytes) {
            Ok(frame) => {
                self.trace(|| format!("{to} gets {frame}"));
                self.note_acknowledged(to, &frame);
            }
            Err(error) => self.trace(|| format!("{to} gets {} bytes: {error}", bytes.len())),
        }
        let End { core, pool, .. } = &mut self.ends[to];
        if self.fast_path {
            if let Some(request) = core.handle_plain_request(peer, bytes) {
                return self.on_request(to, request.handle, hash(request.payload));
            }
            if let Some(completion) = core.handle_plain_response(self.now, peer, bytes, || self.now)
            {
                return self.on_completion(completion.into());
            }
            if let Some((request, _)) = core.handle_timed_request(self.now, peer, bytes) {
                return self.on_request(to, request.handle, hash(request.payload));
            }
            if core.handle_next_part(peer, bytes) {
                return;
            }
        }
        match core.handle_frame(self.now, peer, bytes, pool) {
            Received::Nothing => {}
            Received::Request { handle, payload, .. } => self.on_request(to, handle, hash(payload)),
            Received::Message { handle, message, .. } => {
                self.on_request(to, handle, hash(message.message()));
            }
            Received::Completed(completion) => self.on_completion(completion),
        }
    }

    fn on_request(&mut self, end: usize, handle: RequestHandle, hash: u64) {
        let End { given, requests, .. } = &mut self.ends[end];
        assert!(given.insert((handle.session, handle.number)), "{handle:?} is given twice");
        requests.push(Request { handle, hash });
        if hash & 1 == 1 {
            let End { core, watched, .. } = &mut self.ends[end];
            assert!(core.is_awaited(handle) && core.watch(handle));
            watched.insert(handle);
        }
    }

    pub(super) fn on_completion(&mut self, completion: Completion<HeapBuffer>) {
        let Completion { session, tag, outcome, request, response, .. } = completion;
        self.trace(|| format!("call {tag} ended: {outcome:?}, {} B", response.len()));
        let call = self.calls.remove(&tag).expect("a call ends once");
        assert_eq!(call.session, session);
        assert!(call.request.message() == request.message(), "nobody changes a request");
        match outcome {
            Err(failure) => {
                let is_ended_here =
                    matches!(failure.execution, Execution::NotSent | Execution::MayHaveExecuted);
                let is_expired = failure.status == Status::DeadlineExceeded && is_ended_here;
                assert!(!is_expired || call.deadline_ns <= self.now, "call {tag} ended too early");
                assert!(response.is_empty() && failure.status != Status::Ok);
                assert!(!failure.to_string().is_empty());
            }
            Ok(()) if !self.is_honest => assert!(response.len() <= response.capacity()),
            Ok(()) => {
                let expected = pattern(response.len(), hash(request.message()));
                assert!(response.message() == expected, "the response is another");
            }
        }
    }

    /// Answers a request; the answer's bytes depend on the request's bytes.
    pub(super) fn respond(&mut self, end: usize, request: Request, status: Status, len: usize) {
        let message = self.message(len, request.hash);
        self.trace(|| format!("{end} answers {:?} {status} {len} B", request.handle));
        self.forget_watch(end, request);
        let core = &mut self.ends[end].core;
        if let Err(rejected) = core.respond(request.handle, status, message) {
            // The message is too large, or the call was given up meanwhile; in both cases another answer
            // does no harm.
            core.respond_error(request.handle, Status::Internal, "too large");
            assert!(!rejected.error.to_string().is_empty());
        }
    }

    /// Prepares the answer of a request. If the caller has given up, the cancellation was or will be
    /// reported.
    pub(super) fn forget_watch(&mut self, end: usize, request: Request) {
        let End { core, watched, .. } = &mut self.ends[end];
        if core.is_awaited(request.handle) {
            watched.remove(&request.handle);
        }
    }

    /// Processes the events of an end, and closes sessions on request.
    pub(super) fn take_events(&mut self, end: usize) {
        let mut events = 0;
        while let Some(event) = self.ends[end].core.poll_event() {
            events += 1;
            assert!(events < 100_000, "events without end");
            match event {
                Event::Completed(completion) => self.on_completion(completion),
                Event::Cancelled(handle) => {
                    let End { core, watched, .. } = &mut self.ends[end];
                    assert!(!core.is_awaited(handle), "{handle:?} is waited for");
                    assert!(watched.remove(&handle), "{handle:?} is told of without need");
                }
                Event::Request { .. } => unreachable!("the sessions keep no order"),
                Event::SessionExhausted(id) => self.close(end, id),
                // There is no control plane to ask.
                Event::ServerSilent(_) | Event::SessionUsed(_) => {}
                Event::Probed { .. } => unreachable!("no session is being opened"),
            }
        }
    }

    pub(super) fn close(&mut self, end: usize, id: SessionId) {
        let closed = self.ends[end].core.close(id, Status::Unavailable, "closed");
        self.trace(|| format!("{end} closes {id:?}: {closed:?}"));
        assert!(!self.ends[end].core.is_open(id));
    }
}

impl End {
    fn new(config: Config, pool: HeapPool) -> Self {
        Self {
            core: Core::new(1_000_000, config),
            pool,
            wire: VecDeque::new(),
            requests: Vec::new(),
            watched: HashSet::new(),
            given: HashSet::new(),
        }
    }
}

/// Returns the default timeout.
fn core_timeout_ns() -> u64 {
    Config::default().call_timeout_ns
}

fn buffer(message: &[u8]) -> HeapBuffer {
    HeapBuffer::from_message(message, packets_of(message.len() as u32, PACKET_BYTES))
}

/// Returns bytes that differ between seeds and between positions.
fn pattern(len: usize, seed: u64) -> Vec<u8> {
    let mut bytes = vec![0; len];
    // Word by word, because the fuzzer instruments the comparison of every iteration.
    for (chunk, at) in bytes.chunks_mut(8).zip(1u64..) {
        let word = (at ^ seed).wrapping_mul(0x9E37_79B9_7F4A_7C15).to_le_bytes();
        chunk.copy_from_slice(&word[..chunk.len()]);
    }
    bytes
}

fn hash(bytes: &[u8]) -> u64 {
    let mut hasher = DefaultHasher::new();
    hasher.write(bytes);
    hasher.finish()
}
