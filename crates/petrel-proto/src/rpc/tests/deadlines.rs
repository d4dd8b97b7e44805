//! Deadlines: at the client in every state, on the wire, and at the server
//! (`docs/wire-protocol.md` §3.4, §6.2, §7.3).

use super::*;

/// A tick of the timer wheel.
const TICK_NS: u64 = 1 << 16;

const MS: u64 = 1_000_000;

impl Pair {
    pub(super) fn call_until(&mut self, request: &[u8], room: usize, tag: u64, deadline_ns: u64) {
        let limits = CallLimits { deadline_ns: Some(deadline_ns), ..CallLimits::default() };
        let (request, response) = (buffer(request), HeapBuffer::new(room, 1));
        let call = PendingCall { method: 1, tag, request, response };
        self.client.call_with(self.now, self.session, call, limits).unwrap();
    }

    /// Makes a call that is sent at once if the medium has room. Returns the sent frames.
    fn call_at_once_until(
        &mut self,
        request: &[u8],
        tag: u64,
        deadline_ns: u64,
        has_room: bool,
    ) -> Vec<Vec<u8>> {
        let limits = CallLimits { deadline_ns: Some(deadline_ns), ..CallLimits::default() };
        let (request, response) = (buffer(request), HeapBuffer::new(100, 1));
        let call = PendingCall { method: 1, tag, request, response };
        let mut frames = Vec::new();
        let mut sink = |_: PeerKey, head: &[u8], body: &[u8]| {
            has_room.then(|| frames.push([head, body].concat())).is_some()
        };
        self.client.call_with_at_once(self.now, self.session, call, limits, &mut sink).unwrap();
        frames
    }

    /// Advances the client's clock until an event or `end_ns`; sent frames are lost.
    fn run_until(&mut self, end_ns: u64) {
        while self.client.events.is_empty()
            && let Some(next_ns) = self.client.next_timeout_ns()
            && next_ns < end_ns
        {
            self.now = next_ns.max(self.now);
            self.client.handle_timeouts(self.now);
            if self.client.events.is_empty() {
                let _lost = self.client_sends();
            }
        }
        if self.client.events.is_empty() {
            self.now = end_ns;
            self.client.handle_timeouts(end_ns);
        }
    }

    /// Expects that the client's next event is a call's expiry, on time.
    fn expires_at(&mut self, deadline_ns: u64) -> Completion<HeapBuffer> {
        self.run_until(deadline_ns + TICK_NS);
        let ended = self.event();
        assert_eq!(ended.outcome.as_ref().unwrap_err().status, Status::DeadlineExceeded);
        assert!((deadline_ns..=deadline_ns + TICK_NS).contains(&self.now), "{}", self.now);
        ended
    }
}

fn execution(ended: &Completion<HeapBuffer>) -> Execution {
    ended.outcome.as_ref().unwrap_err().execution
}

#[test]
fn a_request_says_what_is_left_and_its_handler_knows_until_when() {
    let mut pair = Pair::new();
    pair.call_until(b"ping!", 100, 1, pair.now + 1_500_999);
    let frames = pair.client_sends();
    assert_eq!(words(&frames), ["REQUEST s0 r832 m1 5 B deadline 1500 us"]);
    assert_eq!(frames[0].len(), 16 + 8 + 5);
    let received = pair.server.handle_frame(7 * MS, PEER, &frames[0], &mut POOL.clone());
    let Received::Request { handle, deadline_ns, payload, .. } = received else { panic!() };
    assert_eq!((deadline_ns, payload), (Some(7 * MS + 1_500_000), &b"ping!"[..]));
    pair.respond(handle, b"pong");
    let answers = pair.server_sends();
    pair.at_client(&answers[0]).completed().outcome.unwrap();
    pair.assert_credits_back();
    // A call without a deadline uses its own fast path on the same slot.
    pair.call(b"x", 100, 2);
    assert_eq!(pair.client_sends()[0].len(), 16 + 1);
}

#[test]
fn a_small_request_with_a_deadline_takes_a_short_way_and_nothing_else_does() {
    let mut pair = Pair::new();
    pair.call_until(b"ping!", 100, 1, pair.now + 1_500_999);
    let frame = pair.client_sends().remove(0);
    let changed = |place: usize, byte: u8| {
        let mut frame = frame.clone();
        frame[place] = byte;
        frame
    };
    let mut over = frame.clone();
    over[20..24].fill(0);
    let unusual = [
        over,
        frame[..23].to_vec(),
        // Without flag X, repeated, or marked; another length of the block, type, or length of the record.
        changed(1, frame[1] & !2),
        changed(1, frame[1] | 4),
        changed(1, frame[1] | 1),
        changed(16, 7),
        changed(18, 3),
        changed(19, 5),
    ];
    for frame in unusual {
        assert!(pair.server.handle_timed_request(7 * MS, PEER, &frame).is_none(), "{frame:?}");
    }
    let taken = pair.server.handle_timed_request(7 * MS, PEER, &frame);
    let (request, deadline_ns) = taken.expect("it is new");
    assert_eq!((request.method, request.payload), (1, &b"ping!"[..]));
    assert_eq!(deadline_ns, 7 * MS + 1_500_000);
    assert!(pair.server.handle_timed_request(7 * MS, PEER, &frame).is_none(), "a repetition");
}

#[test]
fn a_small_call_with_a_deadline_goes_out_at_once_and_expires_on_time() {
    let mut pair = Pair::new();
    let deadline_ns = pair.now + 3 * MS;
    let sent = pair.call_at_once_until(b"ping!", 1, deadline_ns, true);
    assert_eq!(words(&sent), ["REQUEST s0 r832 m1 5 B deadline 3000 us"]);
    assert_eq!(pair.client_sends(), Vec::<Vec<u8>>::new());
    let (handle, _) = pair.at_server(&sent[0]).request();
    pair.respond(handle, b"pong");
    let answers = pair.server_sends();
    let now = pair.now;
    let ended = pair.client.handle_plain_response(now, PEER, &answers[0], || now);
    assert_eq!(ended.expect("the answer is a plain one").response.message(), b"pong");
    // The slot is free: the old deadline ends neither the old nor the new call.
    pair.call(b"x", 100, 2);
    assert_eq!(pair.client_sends()[0].len(), 16 + 1);
    pair.run_until(deadline_ns + 2 * TICK_NS);
    assert!(!pair.client.has_events());
    // The next call ends at its own deadline.
    let deadline_ns = pair.now + MS;
    let sent = pair.call_at_once_until(b"lost", 3, deadline_ns, true);
    assert_eq!(sent.len(), 1);
    let ended = pair.expires_at(deadline_ns);
    assert_eq!((ended.tag, execution(&ended)), (3, Execution::MayHaveExecuted));
}

#[test]
fn a_small_call_with_a_deadline_that_finds_no_room_says_later_what_is_left_then() {
    let mut pair = Pair::new();
    let deadline_ns = pair.now + 3 * MS;
    assert_eq!(pair.call_at_once_until(b"ping!", 1, deadline_ns, false), Vec::<Vec<u8>>::new());
    pair.now += MS;
    let frames = pair.client_sends();
    assert_eq!(words(&frames), ["REQUEST s0 r832 m1 5 B deadline 2000 us"]);
    let (handle, _) = pair.at_server(&frames[0]).request();
    pair.respond(handle, b"pong");
    let answers = pair.server_sends();
    let now = pair.now;
    assert!(pair.client.handle_plain_response(now, PEER, &answers[0], || now).is_some());
    pair.assert_credits_back();
}

#[test]
fn packet_0_of_a_large_request_says_it_alone_and_says_it_again() {
    let mut pair = Pair::new();
    let deadline_ns = pair.now + 90 * MS;
    pair.call_until(&pattern(3 * P as usize, 1), 10, 1, deadline_ns);
    let frames = pair.client_sends();
    assert_eq!(
        words(&frames),
        [
            "REQUEST_PART s0 r832 m1 p0 of 3600 B, 1200 B, grant 1 deadline 90000 us",
            "REQUEST_PART s0 r832 m1 p1 of 3600 B, 1200 B, grant 1",
            "REQUEST_PART s0 r832 m1 p2 of 3600 B, 1200 B, grant 1",
        ]
    );
    assert_eq!(frames[0].len(), 32 + P as usize, "a full frame");
    // Packet 0 is lost; the other packets arrive, and later the repetition.
    pair.now += 1_000;
    pair.at_server(&frames[1]).nothing();
    pair.at_server(&frames[2]).nothing();
    pair.wait_for_timeout();
    let again = pair.client_sends();
    let left_us = (deadline_ns - pair.now) / 1_000;
    let expected = format!(
        "REQUEST_PART s0 r832 m1 p0 of 3600 B, 1200 B, grant 1 deadline {left_us} us again"
    );
    assert_eq!(words(&again), [expected]);
    let received = pair.server.handle_frame(pair.now, PEER, &again[0], &mut POOL.clone());
    let Received::Message { deadline_ns, message, .. } = received else { panic!() };
    assert_eq!(deadline_ns, Some(pair.now + left_us * 1_000));
    assert_eq!(message.message(), pattern(3 * P as usize, 1));
}

#[test]
fn of_several_copies_the_earliest_deadline_counts() {
    let mut pair = Pair::new();
    pair.call_until(&pattern(3 * P as usize, 1), 10, 1, pair.now + 90 * MS);
    let frames = pair.client_sends();
    let sent_ns = pair.now;
    pair.now += 4 * MS;
    // The first copy was delayed, and the repetition was faster.
    pair.at_server(&frames[0]).nothing();
    pair.wait_for_timeout();
    let again = pair.client_sends();
    pair.at_server(&again[0]).nothing();
    pair.at_server(&frames[0]).nothing();
    pair.at_server(&frames[1]).nothing();
    let received = pair.server.handle_frame(pair.now, PEER, &frames[2], &mut POOL.clone());
    let Received::Message { deadline_ns: Some(deadline_ns), .. } = received else { panic!() };
    assert!(deadline_ns <= sent_ns + 90 * MS, "{deadline_ns}");
}

#[test]
fn a_request_whose_deadline_is_over_is_refused_and_not_run() {
    let mut pair = Pair::new();
    pair.call_until(b"x", 10, 1, pair.now + 900);
    let frames = pair.client_sends();
    assert_eq!(words(&frames), ["REQUEST s0 r832 m1 1 B deadline 0 us"]);
    pair.at_server(&frames[0]).nothing();
    let answers = pair.server_sends();
    assert_eq!(words(&answers), ["RESPONSE s0 r832 status 4 refused 42 B"]);
    let ended = pair.at_client(&answers[0]).completed();
    assert_eq!(execution(&ended), Execution::Refused);
    assert_eq!(pair.server.counters().requests_expired, 1);
    assert_eq!(pair.server.counters().requests_received, 0);
    pair.assert_credits_back();
}

#[test]
fn a_large_request_whose_deadline_passes_while_it_arrives_is_refused() {
    let mut pair = Pair::new();
    pair.call_until(&pattern(3 * P as usize, 1), 10, 1, pair.now + 2 * MS);
    let frames = pair.client_sends();
    pair.at_server(&frames[0]).nothing();
    pair.at_server(&frames[1]).nothing();
    pair.now += 3 * MS;
    pair.at_server(&frames[2]).nothing();
    assert_eq!(words(&pair.server_sends()), ["RESPONSE s0 r832 status 4 refused 42 B"]);
    // Every further repetition gets this answer.
    pair.at_server(&repeated(&frames[0])).nothing();
    assert_eq!(words(&pair.server_sends()), ["RESPONSE s0 r832 status 4 refused 42 B again"]);
    assert_eq!(pair.server.counters().requests_received, 0);
}

#[test]
fn a_deadline_that_is_over_ends_the_call_by_an_event() {
    let mut pair = Pair::new();
    pair.call_until(b"x", 10, 1, pair.now);
    assert!(pair.client_sends().is_empty());
    let ended = pair.event();
    assert_eq!((ended.tag, execution(&ended)), (1, Execution::NotSent));
    assert_eq!(pair.client.counters().calls_deadline_exceeded, 1);
}

#[test]
fn a_silent_peer_costs_a_call_no_more_than_its_deadline() {
    let mut pair = Pair::new();
    let deadline_ns = pair.now + 100 * MS;
    pair.call_until(b"x", 10, 1, deadline_ns);
    let _lost = pair.client_sends();
    let ended = pair.expires_at(deadline_ns);
    assert_eq!(execution(&ended), Execution::MayHaveExecuted);
    assert_eq!(words(&pair.client_sends()), ["CANCEL s0 r832"]);
    pair.assert_credits_back();
}

#[test]
fn what_is_taken_to_be_running_expires_too() {
    let mut pair = Pair::new();
    let deadline_ns = pair.now + 5 * MS;
    pair.call_until(&pattern(2 * P as usize, 1), 10, 1, deadline_ns);
    for frame in pair.client_sends() {
        drop(pair.at_server(&frame));
    }
    for credit in pair.server_sends() {
        pair.at_client(&credit).nothing();
    }
    let ended = pair.expires_at(deadline_ns);
    assert_eq!(execution(&ended), Execution::MayHaveExecuted);
    pair.assert_credits_back();
}

#[test]
fn a_response_that_stops_half_way_expires_too() {
    let mut pair = Pair::new();
    let deadline_ns = pair.now + 5 * MS;
    pair.call_until(b"x", 8 * P as usize, 1, deadline_ns);
    let handle = pair.arrives();
    pair.respond(handle, &pattern(8 * P as usize, 3));
    let packets = pair.server_sends();
    pair.at_client(&packets[0]).nothing();
    let ended = pair.expires_at(deadline_ns);
    assert!(ended.response.is_empty());
    pair.assert_credits_back();
}

#[test]
fn calls_expire_in_the_queue_while_others_before_them_wait() {
    let mut pair = Pair::with(Shape { slots: 1, ..Shape::default() });
    pair.call(b"runs", 10, 0);
    let now = pair.now;
    for (tag, ahead_ms) in [(1, 30), (2, 10), (3, 20)] {
        pair.call_until(b"waits", 10, tag, now + ahead_ms * MS);
    }
    for (tag, ahead_ms) in [(2, 10), (3, 20), (1, 30)] {
        let ended = pair.expires_at(now + ahead_ms * MS);
        assert_eq!((ended.tag, execution(&ended)), (tag, Execution::NotSent));
    }
    assert_eq!(pair.client.pending_calls(pair.session), 1);
}

#[test]
fn a_call_that_waits_for_credits_expires() {
    let mut pair = Pair::with(Shape { credits: 1, ..Shape::default() });
    pair.call(b"takes the credit", 10, 0);
    let deadline_ns = pair.now + MS;
    pair.call_until(b"finds none", 10, 1, deadline_ns);
    let _lost = pair.client_sends();
    let ended = pair.expires_at(deadline_ns);
    assert_eq!((ended.tag, execution(&ended)), (1, Execution::NotSent));
    // No CANCEL follows for a request that was never sent.
    assert!(pair.client_sends().is_empty());
}

#[test]
fn a_call_expires_while_its_session_opens() {
    let mut client: Core<HeapBuffer> = Core::new(0, Config::default());
    let session = client.open(1, FIRST).unwrap();
    let call = |tag| {
        let (request, response) = (buffer(b"x"), HeapBuffer::new(1, 1));
        PendingCall { method: 1, tag, request, response }
    };
    let limits = CallLimits { deadline_ns: Some(3 * MS), ..CallLimits::default() };
    client.call_with(0, session, call(1), limits).unwrap();
    client.call_with(0, session, call(2), CallLimits::default()).unwrap();
    client.handle_timeouts(3 * MS - 1);
    assert!(!client.has_events());
    client.handle_timeouts(3 * MS + TICK_NS);
    let Some(Event::Completed(ended)) = client.poll_event() else { panic!("it waits") };
    assert_eq!((ended.tag, execution(&ended)), (1, Execution::NotSent));
    // The other call ends after the default timeout.
    let default_ns = Config::default().call_timeout_ns;
    while let Some(next_ns) = client.next_timeout_ns()
        && next_ns < default_ns
    {
        client.handle_timeouts(next_ns);
        assert!(!client.has_events(), "at {next_ns}");
    }
    client.handle_timeouts(default_ns + TICK_NS);
    let Some(Event::Completed(ended)) = client.poll_event() else { panic!("it waits") };
    assert_eq!((ended.tag, execution(&ended)), (2, Execution::NotSent));
    assert_eq!(client.next_timeout_ns(), None);
}

#[test]
fn no_call_waits_for_ever_for_a_handler() {
    for fast_path in [true, false] {
        let config = Config { call_timeout_ns: 50 * MS, fast_path, ..Config::default() };
        let mut pair = Pair::with_config(Shape::default(), config);
        pair.call(b"takes for ever", 10, 1);
        let began_ns = pair.now;
        let frame = pair.client_sends().remove(0);
        let (handle, _) = pair.at_server(&frame).request();
        while !pair.client.has_events() {
            pair.now = pair.client.next_timeout_ns().unwrap().max(pair.now);
            pair.client.handle_timeouts(pair.now);
            if pair.client.has_events() {
                break;
            }
            for frame in pair.client_sends() {
                pair.at_server(&frame).nothing();
            }
            for frame in pair.server_sends() {
                pair.at_client(&frame).nothing();
            }
        }
        assert!((began_ns + 50 * MS..=began_ns + 50 * MS + TICK_NS).contains(&pair.now));
        let ended = pair.event();
        assert_eq!(ended.outcome.as_ref().unwrap_err().status, Status::DeadlineExceeded);
        assert_eq!(execution(&ended), Execution::MayHaveExecuted);
        let cancel = pair.client_sends().remove(0);
        pair.at_server(&cancel).nothing();
        assert!(!pair.server.is_awaited(handle));
    }
}

#[test]
fn an_answer_in_time_ends_the_call_and_the_deadline_is_forgotten() {
    let mut pair = Pair::new();
    for tag in 0..100 {
        pair.call_until(b"x", 10, tag, pair.now + 10 * MS);
        run(&mut pair, |request| request.to_vec()).outcome.unwrap();
    }
    pair.now += 20 * MS;
    pair.client.handle_timeouts(pair.now);
    pair.now += 20 * MS;
    pair.client.handle_timeouts(pair.now);
    assert!(!pair.client.has_events());
    assert_eq!(pair.client.next_timeout_ns(), None, "nothing is waited for");
}

#[test]
fn an_earlier_deadline_than_those_before_comes_first() {
    let mut pair = Pair::new();
    let now = pair.now;
    pair.call_until(b"x", 10, 1, now + 500 * MS);
    pair.call_until(b"x", 10, 2, now + 30 * MS);
    pair.call_until(b"x", 10, 3, now + 3 * MS);
    let _lost = pair.client_sends();
    for (tag, ahead_ms) in [(3, 3), (2, 30), (1, 500)] {
        assert_eq!(pair.expires_at(now + ahead_ms * MS).tag, tag);
    }
    let _lost = pair.client_sends();
    assert_eq!(pair.client.counters().cancels_sent, 3);
}

#[test]
fn what_a_call_inherits_is_its_deadline_too_and_comes_back() {
    for mut pair in [true, false].map(|fast_path| Pair::by(Shape::default(), fast_path)) {
        let inherited_ns = Some(pair.now + 2 * MS);
        assert_eq!(pair.client.inherit(inherited_ns), None);
        pair.call(b"x", 10, 1);
        pair.call_until(b"x", 10, 2, pair.now + 5 * MS);
        pair.call_until(b"x", 10, 3, pair.now + MS);
        assert_eq!(pair.client.inherit(None), inherited_ns);
        // Calls do not inherit the caller's own deadline.
        pair.call_until(b"x", 10, 4, pair.now + 4 * MS);
        pair.call(b"x", 10, 5);
        let left: Vec<_> = pair.client_sends().iter().map(|frame| left_us(frame)).collect();
        assert_eq!(left, [Some(2_000), Some(2_000), Some(1_000), Some(4_000), None]);
        let first_ns = pair.now;
        for (tags, ahead_ms, inherited_ns) in
            [(3..=3, 1, inherited_ns), (1..=2, 2, inherited_ns), (4..=4, 4, None)]
        {
            for _ in tags.clone() {
                let ended = pair.expires_at(first_ns + ahead_ms * MS);
                assert!(tags.contains(&ended.tag));
                assert_eq!(ended.inherited_ns, inherited_ns);
            }
        }
    }
}

#[test]
fn what_was_inherited_comes_back_with_an_answer() {
    let mut pair = Pair::new();
    let inherited_ns = Some(pair.now + 2 * MS);
    pair.client.inherit(inherited_ns);
    pair.call(b"x", 10, 2);
    pair.client.inherit(None);
    let ended = run(&mut pair, |request| request.to_vec());
    ended.outcome.unwrap();
    assert_eq!(ended.inherited_ns, inherited_ns);
    // The slot keeps nothing of the deadline.
    pair.call(b"x", 10, 3);
    assert_eq!(run(&mut pair, |request| request.to_vec()).inherited_ns, None);
}

fn left_us(frame: &[u8]) -> Option<u32> {
    Frame::parse(frame).unwrap().extensions.deadline_us
}

/// A slow medium: the clock shows `clock_ns` when frames are made.
struct Late<'a> {
    clock_ns: u64,
    frames: &'a mut Vec<Vec<u8>>,
}

impl FrameSink for Late<'_> {
    fn send(&mut self, _: PeerKey, head: &[u8], body: &[u8]) -> bool {
        self.frames.push([head, body].concat());
        true
    }

    fn now_ns(&mut self, _: u64) -> u64 {
        self.clock_ns
    }
}

#[test]
fn a_turn_takes_time__what_is_sent_is_what_is_left_then() {
    for len in [5, 3 * P as usize] {
        for fast_path in [false, true] {
            let mut pair = Pair::by(Shape::default(), fast_path);
            pair.call_until(&pattern(len, 1), 10, 1, pair.now + 3 * MS);
            let mut frames = Vec::new();
            let mut sink = Late { clock_ns: pair.now + 2 * MS, frames: &mut frames };
            pair.client.transmit(pair.now, &mut sink);
            assert_eq!(left_us(&frames[0]), Some(1_000));
            // The deadline has passed: the server refuses the request.
            pair.call_until(&pattern(len, 1), 10, 2, pair.now + 3 * MS);
            frames.clear();
            let mut sink = Late { clock_ns: pair.now + 5 * MS, frames: &mut frames };
            pair.client.transmit(pair.now, &mut sink);
            assert_eq!(left_us(&frames[0]), Some(0));
        }
    }
}

#[test]
fn a_turn_takes_time__what_is_late_is_not_run() {
    for len in [5, P as usize, 3 * P as usize] {
        let mut pair = Pair::new();
        pair.call_until(&pattern(len, 1), 10, 1, pair.now + 3 * MS);
        let frames = pair.client_sends();
        // The burst was read at `now`, and the work before this frame took three milliseconds.
        for (at, frame) in frames.iter().enumerate() {
            if at + 1 == frames.len() {
                pair.server.set_time(pair.now + 3 * MS);
            }
            pair.at_server(frame).nothing();
        }
        assert_eq!(pair.server.counters().requests_expired, 1);
        let answers = pair.server_sends();
        let failure = pair.at_client(answers.last().unwrap()).completed().outcome.unwrap_err();
        let end = (failure.status, failure.execution);
        assert_eq!(end, (Status::DeadlineExceeded, Execution::Refused));
    }
}

#[test]
fn a_turn_takes_time__a_deadline_does_not_grow_by_it() {
    let mut pair = Pair::new();
    pair.call_until(b"x", 10, 1, pair.now + 3 * MS);
    let frame = pair.client_sends().remove(0);
    pair.server.set_time(pair.now + 2 * MS);
    let taken = pair.server.handle_timed_request(pair.now, PEER, &frame);
    assert_eq!(taken.unwrap().1, pair.now + 3 * MS, "counted from before the burst");
}

#[test]
fn a_response_that_comes_after_the_deadline_is_late() {
    for len in [5, 3 * P as usize] {
        let mut pair = Pair::new();
        let response = HeapBuffer::new(len, 3);
        let call = PendingCall { method: 1, tag: 1, request: buffer(b"x"), response };
        let limits = CallLimits { deadline_ns: Some(pair.now + 3 * MS), ..CallLimits::default() };
        pair.client.call_with(pair.now, pair.session, call, limits).unwrap();
        let handle = pair.arrives();
        pair.respond(handle, &pattern(len, 2));
        let late_ns = pair.now + 3 * MS;
        let mut ended = None;
        for _ in 0..3 {
            for frame in pair.server_sends() {
                let taken = pair.client.handle_plain_response(pair.now, PEER, &frame, || late_ns);
                assert!(taken.is_none(), "it is late");
                pair.client.set_time(late_ns);
                let received = pair.client.handle_frame(pair.now, PEER, &frame, &mut POOL.clone());
                if let Got::Completed(completion) = got(received) {
                    ended = Some(completion);
                }
            }
            for frame in pair.client_sends() {
                pair.at_server(&frame).nothing();
            }
        }
        let ended = ended.expect("the response came");
        let failure = ended.outcome.unwrap_err();
        assert_eq!(failure.status, Status::DeadlineExceeded);
        assert_eq!((failure.execution, ended.response.len()), (Execution::MayHaveExecuted, 0));
        pair.assert_credits_back();
        assert_eq!(pair.client.counters().cancels_sent, 0, "the server has answered");
    }
}

#[test]
fn a_response_without_a_deadline_soon_is_never_late_and_nobody_reads_the_clock_for_it() {
    for deadline_ns in [None, Some(1_001 * MS)] {
        let mut pair = Pair::new();
        let deadline_ns = deadline_ns.map(|left_ns| pair.now + left_ns);
        let (request, response) = (buffer(b"x"), HeapBuffer::new(10, 3));
        let call = PendingCall { method: 1, tag: 1, request, response };
        let limits = CallLimits { deadline_ns, ..CallLimits::default() };
        pair.client.call_with(pair.now, pair.session, call, limits).unwrap();
        let handle = pair.arrives();
        pair.respond(handle, b"y");
        let answer = pair.server_sends().remove(0);
        let unread = || panic!("the clock is read");
        assert!(pair.client.handle_plain_response(pair.now, PEER, &answer, unread).is_some());
    }
}

/// A call that expires, waiting for a slot or in one, counts as failed once.
#[test]
fn calls_whose_time_is_over_are_counted_once() {
    let mut pair = Pair::with(Shape { slots: 1, ..Shape::default() });
    let deadline_ns = pair.now + 5 * MS;
    pair.call_until(b"sent", 10, 1, deadline_ns);
    pair.call_until(b"waits", 10, 2, deadline_ns);
    assert_eq!(pair.client_sends().len(), 1);
    pair.run_until(deadline_ns + TICK_NS);
    let mut ended: Vec<_> = [(); 2].map(|()| pair.event()).map(|end| end.tag).into();
    ended.sort_unstable();
    assert_eq!(ended, [1, 2]);
    let counters = pair.client.counters();
    assert_eq!((counters.calls_failed, counters.calls_deadline_exceeded), (2, 2));
}
