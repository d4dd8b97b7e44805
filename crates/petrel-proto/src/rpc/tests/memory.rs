//! Half-arrived requests and kept answers (`docs/wire-protocol.md` §6.4).

use super::*;
use crate::limits::{
    ANSWER_SHORT_NS, ARRIVING_SHORT_NS, HELD_IDLE_NS, HELD_SHARE_OF_PEER, HELD_SHARE_OF_SESSION,
    HELD_SWEEP_NS,
};
use crate::session::PeerKey;

const MIB: usize = 1 << 20;

/// Enough credits for the first windows of all slots.
const SHAPE: Shape = Shape { slots: 8, credits: 4096, request_bytes_max: 8 << 20 };

/// A server with limited memory, and clients from different peers.
struct Crowd {
    now: u64,
    server: Core<HeapBuffer>,
    clients: Vec<Client>,
}

struct Client {
    peer: PeerKey,
    core: Core<HeapBuffer>,
    session: SessionId,
    at_server: SessionId,
}

impl Crowd {
    fn new(memory_bytes: usize, clients: u32) -> Self {
        let memory_bytes = memory_bytes as u64;
        let mut server = Core::new(0, Config { memory_bytes, ..Config::default() });
        let clients = (0..clients).map(|at| Client::new(&mut server, PeerKey(at))).collect();
        Self { now: 1_000_000, server, clients }
    }

    fn call(&mut self, at: usize, request: &[u8], room: usize) {
        let (request, response) = (buffer(request), HeapBuffer::new(room, packets(room)));
        let Client { core, session, .. } = &mut self.clients[at];
        core.call(self.now, *session, 1, request, response, 1).unwrap();
    }

    /// Returns the frames that a client sends now.
    fn sent_by(&mut self, at: usize) -> Vec<Vec<u8>> {
        drain(&mut self.clients[at].core, self.now)
    }

    fn at_server(&mut self, from: usize, frame: &[u8]) -> Got {
        let peer = self.clients[from].peer;
        got(self.server.handle_frame(self.now, peer, frame, &mut POOL.clone()))
    }

    fn at_client(&mut self, to: usize, frame: &[u8]) -> Got {
        let pool = &mut POOL.clone();
        got(self.clients[to].core.handle_frame(self.now, PEER, frame, pool))
    }

    /// Returns the frames that the server sends now, and their clients.
    fn served(&mut self) -> Vec<(usize, Vec<u8>)> {
        let mut frames = Vec::new();
        let mut sink = |peer: PeerKey, head: &[u8], body: &[u8]| {
            frames.push((peer.0 as usize, [head, body].concat()));
            true
        };
        while self.server.transmit(self.now, &mut sink) > 0 {}
        frames
    }

    /// Begins a request of `len` bytes, and delivers only the first packet.
    fn begin(&mut self, at: usize, len: usize) {
        self.call(at, &vec![7; len], 10);
        let first = self.sent_by(at).remove(0);
        self.at_server(at, &first).nothing();
    }

    /// Carries all frames until a client's call has ended; the server answers with `len` bytes. Counts the
    /// executions.
    fn run(&mut self, at: usize, len: usize) -> (Completion<HeapBuffer>, u32) {
        let mut runs = 0;
        for _ in 0..100_000 {
            self.now += 5_000;
            for frame in self.sent_by(at) {
                if let Got::Request(handle, _) = self.at_server(at, &frame) {
                    runs += 1;
                    self.answer(handle, len);
                }
            }
            let mut ended = None;
            for (to, frame) in self.served() {
                if let Got::Completed(completion) = self.at_client(to, &frame)
                    && to == at
                {
                    ended = Some(completion);
                }
            }
            if let Some(completion) = ended {
                return (completion, runs);
            }
        }
        panic!("the call does not end");
    }

    fn answer(&mut self, handle: RequestHandle, len: usize) {
        let answered = self.server.respond(handle, Status::Ok, buffer(&pattern(len, 3)));
        if let Err(rejected) = answered {
            assert_eq!(rejected.error, RespondError::NoRoom);
            self.server.respond_error(handle, Status::ResourceExhausted, "no room");
        }
    }

    fn pass(&mut self, ns: u64) {
        self.now += ns;
        self.server.handle_timeouts(self.now);
    }

    fn counters(&self) -> &crate::counters::Counters {
        self.server.counters()
    }
}

impl Client {
    fn new(server: &mut Core<HeapBuffer>, peer: PeerKey) -> Self {
        let (ours, theirs) = (0xA000 + peer.0, 0xB000 + peer.0);
        let mut core = Core::new(0, Config::default());
        let session = core.open(ours, FIRST).unwrap();
        let of_client = Agreed { peer, ..agreed(session.index, ours, SHAPE) };
        let at_server = server
            .accept(Accepted {
                agreed: of_client,
                token: theirs,
                first_request: FIRST,
                request_bytes_max: 8 << 20,
            })
            .unwrap();
        make_used(server, at_server);
        core.establish(session, agreed(at_server.index, theirs, SHAPE)).unwrap();
        Self { peer, core, session, at_server }
    }
}

impl Client {
    fn cancel(&mut self) {
        assert!(self.core.cancel(self.session, |_| true).is_some());
    }
}

fn word(frame: &[u8]) -> String {
    words(&[frame.to_vec()]).remove(0)
}

fn outcome(completion: Completion<HeapBuffer>) -> Result<(), (Status, Execution)> {
    completion.outcome.map_err(|failure| (failure.status, failure.execution))
}

#[test]
fn half_arrived_requests_of_one_session_leave_room_for_others() {
    let memory = 64 * MIB;
    let mut crowd = Crowd::new(memory, 2);
    for _ in 0..8 {
        crowd.begin(0, 2 * MIB);
    }
    let share = (memory / HELD_SHARE_OF_SESSION as usize) as u64;
    assert!(crowd.server.held_bytes() <= share, "{}", crowd.server.held_bytes());
    assert!(crowd.counters().refused_over_share > 0);
    // Further requests were reported as not executed.
    let answers = crowd.served();
    let refused = answers.iter().filter(|(_, frame)| word(frame).contains("refused"));
    assert_eq!(refused.count() as u64, crowd.counters().refused_over_share);
    crowd.call(1, &pattern(2 * MIB, 1), 10);
    outcome(crowd.run(1, 0).0).unwrap();
}

/// A request is charged with exactly its bytes and the room for its packets' headers.
#[test]
fn a_request_that_just_fits_into_the_share_is_taken() {
    let memory = 8 * MIB;
    let share = (memory / HELD_SHARE_OF_SESSION as usize) as u64;
    let needs = |len: usize| {
        len as u64 + u64::from(packets(len)) * crate::limits::PACKET_OVERHEAD_BYTES as u64
    };
    for (more, refused) in [(0, 0), (1, 1)] {
        let mut crowd = Crowd::new(memory, 1);
        crowd.begin(0, MIB / 4);
        let left = share - crowd.server.held_bytes();
        let fits = (0..MIB).rev().find(|len| needs(*len) <= left).expect("some length fits");
        crowd.begin(0, fits + more);
        assert_eq!(crowd.counters().refused_over_share, refused);
    }
}

/// A new request is not charged for the former answer in its slot.
#[test]
fn a_request_has_the_room_of_the_answer_before_it_in_its_slot() {
    let mut crowd = Crowd::new(8 * MIB, 1);
    crowd.call(0, b"give", MIB);
    outcome(crowd.run(0, MIB).0).unwrap();
    let kept = crowd.server.held_bytes();
    assert!(kept >= MIB as u64, "the client has not said that it has it");
    crowd.call(0, &pattern(MIB, 1), 10);
    let frames = crowd.sent_by(0);
    let first = frames.iter().find(|frame| word(frame).starts_with("REQUEST_PART s0 r840 m1 p0 "));
    crowd.at_server(0, first.expect("the same slot")).nothing();
    assert_eq!(crowd.counters().refused_over_share, 0);
    assert!(crowd.server.held_bytes() < 2 * kept, "of the two only the request");
}

/// A repeated request shows that the client needs the answer.
#[test]
fn an_answer_that_was_asked_for_is_kept_for_as_long_again() {
    let mut crowd = Crowd::new(64 * MIB, 1);
    crowd.call(0, b"give", MIB);
    let request = crowd.sent_by(0).remove(0);
    let (handle, _) = crowd.at_server(0, &request).request();
    crowd.answer(handle, MIB);
    crowd.served();
    crowd.pass(HELD_IDLE_NS - HELD_SWEEP_NS);
    crowd.at_server(0, &repeated(&request)).nothing();
    crowd.pass(2 * HELD_SWEEP_NS);
    assert!(crowd.server.held_bytes() > 0);
    crowd.pass(HELD_IDLE_NS + HELD_SWEEP_NS);
    assert_eq!((crowd.server.held_bytes(), crowd.counters().answers_dropped_idle), (0, 1));
}

#[test]
fn half_arrived_requests_of_one_peer_leave_room_for_others() {
    let memory = 64 * MIB;
    let mut crowd = Crowd::new(memory, 4);
    // The first three sessions are of one peer.
    for at in 1..3 {
        crowd.clients[at] = Client::new(&mut crowd.server, crowd.clients[0].peer);
    }
    for at in 0..3 {
        for _ in 0..3 {
            crowd.begin(at, 2 * MIB);
        }
    }
    let share = (memory / HELD_SHARE_OF_PEER as usize) as u64;
    assert!(crowd.server.held_bytes() <= share, "{}", crowd.server.held_bytes());
    assert_eq!(crowd.counters().refused_over_share, 2);
    crowd.begin(3, 2 * MIB);
    assert_eq!(crowd.counters().refused_over_share, 2);
}

#[test]
fn a_request_whose_rest_does_not_come_is_dropped_and_never_runs() {
    let mut crowd = Crowd::new(64 * MIB, 1);
    crowd.call(0, &pattern(3 * P as usize, 1), 10);
    let frames = crowd.sent_by(0);
    crowd.at_server(0, &frames[0]).nothing();
    crowd.pass(HELD_IDLE_NS - HELD_SWEEP_NS);
    assert!(crowd.server.held_bytes() > 0);
    // Another packet restarts the time.
    crowd.at_server(0, &frames[1]).nothing();
    crowd.pass(2 * HELD_SWEEP_NS);
    assert!(crowd.server.held_bytes() > 0);
    crowd.pass(HELD_IDLE_NS + HELD_SWEEP_NS);
    crowd.pass(HELD_IDLE_NS + HELD_SWEEP_NS);
    assert_eq!((crowd.server.held_bytes(), crowd.counters().requests_dropped_idle), (0, 1));
    let told = crowd.served();
    assert!(word(&told[0].1).contains("status 14 refused"), "{told:?}");
    // The last packet does not start the request, and its repetition gets the same answer.
    crowd.at_server(0, &frames[2]).nothing();
    assert!(crowd.served().is_empty());
    crowd.at_server(0, &repeated(&frames[2])).nothing();
    assert_eq!(crowd.counters().requests_received, 0);
    let again = crowd.served();
    assert!(word(&again[0].1).contains("status 14 refused"));
    let ended = crowd.at_client(0, &again[0].1).completed();
    assert_eq!(outcome(ended), Err((Status::Unavailable, Execution::Refused)));
    crowd.pass(HELD_SWEEP_NS);
    assert_eq!(crowd.server.next_timeout_ns(), None, "nothing is looked for where nothing is held");
}

#[test]
fn however_many_hold_memory_the_timer_wheel_has_a_single_entry_to_look_after_them() {
    let mut crowd = Crowd::new(64 * MIB, 8);
    let entries = |crowd: &Crowd| crowd.server.shared.timers.entry_count();
    let before = entries(&crowd);
    for at in 0..8 {
        crowd.begin(at, MIB);
        assert_eq!(entries(&crowd), before + 1);
    }
    // After the entry has come due with all holdings left, one entry; without holdings, none.
    crowd.pass(HELD_SWEEP_NS);
    assert_eq!(entries(&crowd), before + 1);
    crowd.pass(HELD_IDLE_NS);
    crowd.pass(HELD_SWEEP_NS);
    assert_eq!((crowd.server.held_bytes(), entries(&crowd)), (0, before));
}

#[test]
fn short_memory__half_arrived_requests_that_stand_still_give_way() {
    let mut crowd = Crowd::new(8 * MIB, 9);
    for at in 0..8 {
        crowd.begin(at, MIB);
    }
    assert_eq!(crowd.counters().refused_no_memory, 2, "an eighth is left to others");
    let held = crowd.server.held_bytes();
    crowd.pass(ARRIVING_SHORT_NS + 1);
    crowd.call(8, &pattern(MIB, 1), 10);
    let (completion, runs) = crowd.run(8, 0);
    outcome(completion).unwrap();
    assert_eq!(runs, 1);
    assert!((1..=2).contains(&crowd.counters().requests_dropped_short), "no more than is needed");
    assert!(crowd.server.held_bytes() < held);
}

#[test]
fn short_memory__requests_that_trickle_give_way() {
    let mut crowd = Crowd::new(8 * MIB, 8);
    let mut frames = Vec::new();
    for at in 0..6 {
        crowd.call(at, &vec![7; MIB], 10);
        frames.push(crowd.sent_by(at));
    }
    // A packet at intervals, always before the time limit.
    for packet in 0..8 {
        for (at, frames) in frames.iter().enumerate() {
            crowd.at_server(at, &frames[packet]).nothing();
        }
        crowd.pass(ARRIVING_SHORT_NS / 2);
    }
    assert_eq!(crowd.counters().refused_no_memory, 0);
    crowd.call(7, &pattern(2 * MIB, 1), 10);
    outcome(crowd.run(7, 0).0).unwrap();
    assert!(crowd.counters().requests_dropped_short > 0);
}

#[test]
fn an_announced_request_is_charged_like_others() {
    let mut crowd = Crowd::new(8 * MIB, 1);
    for slot in 0..8u64 {
        let number = FIRST + slot;
        let mut frame = vec![0x1D, 0, 0, 0];
        let at_server = crowd.clients[0].at_server;
        let first = u32::from_le_bytes([0x1D, 0, 0, 0]) | at_server.index << 12;
        frame[..4].copy_from_slice(&first.to_le_bytes());
        frame.extend(0xB000u32.to_le_bytes());
        frame.extend((1 | number << 16).to_le_bytes());
        frame.extend((MIB as u32).to_le_bytes());
        frame.extend([0, 0, 0, 1]);
        frame.extend(5u32.to_le_bytes());
        frame.extend(slot.to_le_bytes());
        crowd.at_server(0, &frame).nothing();
    }
    assert_eq!(crowd.counters().dropped_malformed, 0);
    assert_eq!(crowd.counters().refused_over_share, 7);
    assert!(crowd.server.held_bytes() < 2 * MIB as u64);
}

#[test]
fn an_answer_is_given_back_when_the_client_says_that_it_has_it() {
    let mut crowd = Crowd::new(64 * MIB, 1);
    crowd.call(0, b"give", MIB);
    let (completion, _) = crowd.run(0, MIB);
    outcome(completion).unwrap();
    assert!(crowd.server.held_bytes() > 0);
    let told = crowd.sent_by(0);
    assert_eq!(words(&told).len(), 1);
    assert!(words(&told)[0].starts_with("PULL"), "{:?}", words(&told));
    crowd.at_server(0, &told[0]).nothing();
    assert_eq!((crowd.server.held_bytes(), crowd.counters().answers_released), (0, 1));
    // A repeated or overtaken confirmation does no harm, and nothing is sent for it.
    crowd.at_server(0, &told[0]).nothing();
    assert_eq!(crowd.counters().dropped_malformed, 0);
    assert!(crowd.served().is_empty());
    crowd.call(0, b"more", MIB);
    outcome(crowd.run(0, MIB).0).unwrap();
}

#[test]
fn an_answer_that_was_not_asked_for_in_time_is_gone_and_its_request_does_not_run_again() {
    let mut crowd = Crowd::new(64 * MIB, 1);
    crowd.call(0, b"give", MIB);
    let request = crowd.sent_by(0).remove(0);
    let (handle, _) = crowd.at_server(0, &request).request();
    crowd.answer(handle, MIB);
    crowd.served();
    crowd.pass(HELD_IDLE_NS + HELD_SWEEP_NS);
    assert_eq!((crowd.server.held_bytes(), crowd.counters().answers_dropped_idle), (0, 1));
    assert!(crowd.served().is_empty(), "a client that has it is not bothered");
    crowd.at_server(0, &request).nothing();
    assert_eq!(crowd.counters().requests_received, 1);
    let told = crowd.served();
    assert_eq!(crowd.counters().answers_missed, 1);
    let ended = crowd.at_client(0, &told[0].1).completed();
    assert_eq!(outcome(ended), Err((Status::DataLoss, Execution::Answered)));
    // A repeated request gets the same answer.
    crowd.at_server(0, &repeated(&request)).nothing();
    assert_eq!(crowd.served().len(), 1);
    assert_eq!(crowd.counters().answers_missed, 1);
}

#[test]
fn an_answer_that_is_gone_ends_the_call_in_the_middle_of_it() {
    let mut crowd = Crowd::new(64 * MIB, 1);
    crowd.call(0, b"give", MIB);
    let request = crowd.sent_by(0).remove(0);
    let (handle, _) = crowd.at_server(0, &request).request();
    crowd.answer(handle, MIB);
    for (_, frame) in crowd.served() {
        crowd.at_client(0, &frame).nothing();
    }
    let pulls = crowd.sent_by(0);
    crowd.pass(HELD_IDLE_NS + HELD_SWEEP_NS);
    let accepted = crowd.counters().frames_accepted;
    for pull in &pulls {
        crowd.at_server(0, pull).nothing();
    }
    // The packet that found the answer gone is counted, too.
    assert_eq!(crowd.counters().frames_accepted, accepted + pulls.len() as u64);
    let told = crowd.served();
    assert_eq!(told.len(), 1);
    let ended = crowd.at_client(0, &told[0].1).completed();
    assert_eq!(outcome(ended), Err((Status::DataLoss, Execution::Answered)));
    let Client { core, session, .. } = &crowd.clients[0];
    let (free, all) = core.credits(*session).unwrap();
    assert_eq!(free, all);
}

#[test]
fn short_memory__kept_answers_of_idle_clients_give_way_the_oldest_first() {
    let mut crowd = Crowd::new(16 * MIB, 9);
    let mut answered = Vec::new();
    for at in 0..7 {
        crowd.call(at, b"give", 2 * MIB);
        outcome(crowd.run(at, 2 * MIB).0).unwrap();
        answered.push(crowd.now);
        // The confirmation of the answer is lost.
        crowd.sent_by(at);
    }
    assert_eq!(crowd.counters().answers_over_share, 0);
    crowd.pass(ANSWER_SHORT_NS);
    for at in 7..9 {
        crowd.call(at, &pattern(2 * MIB, 1), 2 * MIB);
        let (completion, runs) = crowd.run(at, 2 * MIB);
        outcome(completion).unwrap();
        assert_eq!(runs, 1);
    }
    assert!(crowd.counters().answers_dropped_short >= 1);
    assert_eq!(crowd.counters().refused_no_memory + crowd.counters().answers_over_share, 0);
}

#[test]
fn answers_beyond_a_share_say_that_they_were_executed() {
    let mut crowd = Crowd::new(16 * MIB, 1);
    let mut ends = Vec::new();
    for _ in 0..3 {
        crowd.call(0, b"give", MIB);
        let request = crowd.sent_by(0).remove(0);
        let (handle, _) = crowd.at_server(0, &request).request();
        crowd.answer(handle, MIB);
    }
    for (_, frame) in crowd.served() {
        if let Got::Completed(completion) = crowd.at_client(0, &frame) {
            ends.push(outcome(completion));
        }
    }
    assert_eq!(crowd.counters().answers_over_share, 1);
    assert_eq!(ends, [Err((Status::ResourceExhausted, Execution::Answered))]);
}

#[test]
fn a_session_that_ends_gives_back_all_that_it_holds() {
    let mut crowd = Crowd::new(64 * MIB, 2);
    crowd.begin(0, MIB);
    crowd.call(1, b"give", MIB);
    outcome(crowd.run(1, MIB).0).unwrap();
    assert!(crowd.server.held_bytes() > 2 * MIB as u64 - 1);
    for at in 0..2 {
        let id = crowd.clients[at].at_server;
        crowd.server.close(id, Status::Unavailable, "").unwrap();
    }
    assert_eq!(crowd.server.held_bytes(), 0);
    crowd.pass(HELD_IDLE_NS);
}

#[test]
fn a_cancelled_request_gives_back_what_came_of_it_and_a_late_cancel_the_answer() {
    let mut crowd = Crowd::new(64 * MIB, 2);
    crowd.begin(0, MIB);
    crowd.clients[0].cancel();
    for frame in crowd.sent_by(0) {
        crowd.at_server(0, &frame);
    }
    assert_eq!(crowd.server.held_bytes(), 0);
    crowd.call(1, b"give", MIB);
    let request = crowd.sent_by(1).remove(0);
    let (handle, _) = crowd.at_server(1, &request).request();
    crowd.answer(handle, MIB);
    crowd.clients[1].cancel();
    for frame in crowd.sent_by(1) {
        crowd.at_server(1, &frame);
    }
    assert_eq!(crowd.server.held_bytes(), 0);
    assert_eq!(crowd.counters().cancels_too_late, 1);
    assert!(crowd.served().is_empty(), "nobody waits for it");
}
