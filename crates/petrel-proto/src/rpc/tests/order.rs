//! Ordered calls (`docs/wire-protocol.md` §14.6).

use proptest::prelude::*;

use super::*;
use crate::limits::{HELD_IDLE_NS, HELD_SWEEP_NS};
use crate::wire::Order;

const ORDERED: CallLimits = CallLimits { deadline_ns: None, ordered: true };

fn in_order(shape: Shape) -> Pair {
    Pair::opened(shape, Config::default(), |client, session, server, server_session| {
        client.keep_order(session);
        server.accept_order(server_session);
    })
}

impl Pair {
    fn try_call(&mut self, len: usize, tag: u64, limits: CallLimits) -> Result<(), CallError> {
        let mut request = pattern(len, tag);
        request.splice(0..0, tag.to_le_bytes());
        let (request, response) = (buffer(&request), HeapBuffer::new(2_000, 2));
        let call = PendingCall { method: 1, tag, request, response };
        let called =
            self.client.call_with_at_once(self.now, self.session, call, limits, &mut nowhere());
        called.map_err(|rejected| rejected.error)
    }

    fn ordered(&mut self, tag: u64) {
        self.try_call(20, tag, ORDERED).unwrap();
    }

    /// Returns the request that waited at the server and may run now.
    fn ready(&mut self) -> Option<(RequestHandle, u64)> {
        match self.server.poll_event()? {
            Event::Request { handle, message, .. } => Some((handle, tag_of(message.message()))),
            other => panic!("expected a request, got {other:?}"),
        }
    }

    /// Answers a request, and returns the calls that end at the client.
    fn answer(&mut self, handle: RequestHandle) -> Vec<Completion<HeapBuffer>> {
        self.respond(handle, b"done");
        let frames = self.server_sends();
        let ends = frames.iter().filter_map(|frame| match self.at_client(frame) {
            Got::Completed(completion) => Some(completion),
            _ => None,
        });
        ends.collect()
    }
}

fn tag_of(request: &[u8]) -> u64 {
    u64::from_le_bytes(*request.first_chunk().expect("requests begin with their tag"))
}

fn order_of(frame: &[u8]) -> Option<Order> {
    let (header, rest) = crate::wire::Header::parse(frame).unwrap();
    let fields = match header.kind {
        Kind::RequestPart => 8,
        Kind::Pull => 16,
        _ => 0,
    };
    Order::read(header.flags, &rest[fields..]).unwrap()
}

#[test]
fn ordered_calls__that_arrive_in_reverse_run_in_order() {
    let mut pair = in_order(Shape::default());
    (0..3).for_each(|tag| pair.ordered(tag));
    let frames = pair.client_sends();
    let places: Vec<_> = frames.iter().map(|frame| order_of(frame).unwrap().sequence).collect();
    assert_eq!(places, [0, 1, 2]);
    pair.at_server(&frames[2]).nothing();
    pair.at_server(&frames[1]).nothing();
    assert!(pair.ready().is_none());
    let credits = pair.server_sends();
    let said = words(&credits);
    assert_eq!(said.len(), 2);
    assert!(
        said.iter().all(|words| words.contains("CREDIT") && words.ends_with("waits")),
        "{said:?}"
    );
    credits.iter().for_each(|frame| pair.at_client(frame).nothing());
    assert_eq!(pair.client.counters().calls_parked, 2, "calls that wait hold no credit");
    let (first, request) = pair.at_server(&frames[0]).request();
    assert_eq!(tag_of(&request), 0);
    assert!(pair.ready().is_none(), "the first call runs");
    // Repetitions change nothing.
    frames.iter().for_each(|frame| pair.at_server(&repeated(frame)).nothing());
    assert_eq!(pair.answer(first)[0].tag, 0);
    let (second, tag) = pair.ready().unwrap();
    assert!(tag == 1 && pair.ready().is_none());
    assert_eq!(pair.answer(second)[0].tag, 1);
    let (third, tag) = pair.ready().unwrap();
    assert_eq!(tag, 2);
    assert_eq!(pair.answer(third)[0].tag, 2);
    assert_eq!(pair.server.counters().requests_held_for_order, 2);
    assert_eq!(pair.server.held_bytes(), 0);
    pair.assert_credits_back();
}

/// The server has the second of two calls, and neither its CANCEL nor the first call.
#[test]
fn ordered_call__whose_client_asks_no_more_is_dropped() {
    let mut pair = in_order(Shape::default());
    (0..2).for_each(|tag| pair.ordered(tag));
    let frames = pair.client_sends();
    pair.at_server(&frames[1]).nothing();
    let pass = |pair: &mut Pair, ns: u64| {
        let until_ns = pair.now + ns;
        while pair.now < until_ns {
            pair.now += HELD_SWEEP_NS / 4;
            pair.server.handle_timeouts(pair.now);
        }
    };
    pass(&mut pair, HELD_IDLE_NS - HELD_SWEEP_NS);
    // A client that waits asks again.
    pair.at_server(&repeated(&frames[1])).nothing();
    pass(&mut pair, HELD_IDLE_NS - HELD_SWEEP_NS);
    assert!(pair.server.held_bytes() > 0);
    pass(&mut pair, 2 * HELD_IDLE_NS);
    assert_eq!(pair.server.held_bytes(), 0);
    assert_eq!(pair.server.counters().requests_dropped_idle, 1);
    drop(pair.server_sends());
    // The first call comes after all, and the second does not run behind it.
    let (first, _) = pair.at_server(&frames[0]).request();
    pair.answer(first);
    assert!(pair.ready().is_none());
    pair.at_server(&repeated(&frames[1])).nothing();
    let answers = pair.server_sends();
    let ended = answers.iter().find_map(|frame| match pair.at_client(frame) {
        Got::Completed(ended) => Some(ended),
        _ => None,
    });
    let failure = ended.expect("the error is sent again").outcome.unwrap_err();
    assert_eq!((failure.status, failure.execution), (Status::Unavailable, Execution::Refused));
}

#[test]
fn ordered_call__waits_for_unordered_ones_which_do_not_wait() {
    let mut pair = in_order(Shape::default());
    pair.ordered(0);
    pair.try_call(20, 1, CallLimits::default()).unwrap();
    pair.ordered(2);
    let frames = pair.client_sends();
    pair.at_server(&frames[2]).nothing();
    let (second, _) = pair.at_server(&frames[1]).request();
    pair.answer(second);
    assert!(pair.ready().is_none());
    let (first, _) = pair.at_server(&frames[0]).request();
    // A refusal ends a request as well.
    pair.server.refuse(first, Status::Unavailable, "not now");
    assert_eq!(pair.ready().unwrap().1, 2);
}

#[test]
fn ordered_call__runs_after_a_call_that_the_server_never_saw_was_abandoned() {
    for is_acknowledged in [false, true] {
        let mut pair = in_order(Shape::default());
        (0..3).for_each(|tag| pair.ordered(tag));
        let frames = pair.client_sends();
        let (first, _) = pair.at_server(&frames[0]).request();
        pair.at_server(&frames[2]).nothing();
        for frame in pair.server_sends() {
            if is_acknowledged {
                pair.at_client(&frame).nothing();
            }
        }
        pair.client.cancel(pair.session, |tag| *tag == 1).unwrap();
        assert_eq!(pair.client_sends().len(), 1, "the CANCEL, which is lost");
        assert_eq!(pair.answer(first).len(), 1);
        assert!(pair.ready().is_none(), "the server knows nothing of the second call");
        let told = pair.client_sends();
        assert_eq!(told.len(), 1, "{:?}", words(&told));
        assert_eq!(words(&told)[0].starts_with("PULL"), is_acknowledged);
        assert_eq!(order_of(&told[0]).unwrap().ended, 2);
        pair.at_server(&told[0]).nothing();
        let (third, tag) = pair.ready().unwrap();
        assert_eq!(tag, 2);
        // The abandoned request comes at last, and never runs: a later one has.
        pair.at_server(&frames[1]).nothing();
        assert_eq!(pair.server.counters().requests_overtaken, 1);
        pair.answer(third);
        assert!(pair.ready().is_none());
        pair.assert_credits_back();
    }
}

/// Of two rounds: what one abandoned call leaves behind must not hide the next.
#[test]
fn ordered_call__runs_after_a_call_that_was_abandoned_before_it_was_sent() {
    let mut pair = in_order(Shape::default());
    for round in 0..2 {
        let tags = [0, 1, 2].map(|tag| 3 * round + tag);
        pair.ordered(tags[0]);
        pair.ordered(tags[1]);
        pair.client.cancel(pair.session, |tag| *tag == tags[1]).unwrap();
        pair.ordered(tags[2]);
        let frames = pair.client_sends();
        assert_eq!(frames.len(), 2, "the abandoned call never leaves");
        let (first, _) = pair.at_server(&frames[0]).request();
        pair.at_server(&frames[1]).nothing();
        pair.answer(first);
        assert!(pair.ready().is_none(), "the server knows nothing of the second call");
        let told = pair.client_sends();
        assert_eq!(told.len(), 1, "{:?}", words(&told));
        pair.at_server(&told[0]).nothing();
        let (third, tag) = pair.ready().unwrap();
        assert_eq!(tag, tags[2]);
        pair.answer(third);
    }
}

/// The CANCELs are lost. The second call waits at the server when a frame of the third says that it has ended.
#[test]
fn ordered_call__that_waits_and_was_abandoned_never_runs_behind_a_later_one() {
    let mut pair = in_order(Shape::default());
    (0..2).for_each(|tag| pair.ordered(tag));
    let frames = pair.client_sends();
    pair.at_server(&frames[1]).nothing();
    drop(pair.server_sends());
    [1, 0].iter().for_each(|tag| drop(pair.client.cancel(pair.session, |other| other == tag)));
    pair.ordered(2);
    let third = pair.client_sends().into_iter().find(|frame| order_of(frame).is_some());
    let third = third.expect("a request among the CANCELs");
    assert_eq!(order_of(&third).unwrap().ended, 2);
    let (third, request) = pair.at_server(&third).request();
    assert_eq!(tag_of(&request), 2);
    assert!(pair.ready().is_none(), "a later call has run");
    pair.answer(third);
    assert!(pair.ready().is_none(), "a later call has run");
    assert_eq!(pair.server.held_bytes(), 0);
}

/// The same with a request of which only a part has come.
#[test]
fn ordered_call__in_parts_that_was_abandoned_never_runs_behind_a_later_one() {
    let mut pair = in_order(Shape::default());
    pair.ordered(0);
    pair.try_call(1_500, 1, ORDERED).unwrap();
    let frames = pair.client_sends();
    assert_eq!(frames.len(), 3);
    pair.at_server(&frames[1]).nothing();
    [1, 0].iter().for_each(|tag| drop(pair.client.cancel(pair.session, |other| other == tag)));
    pair.ordered(2);
    let third = pair.client_sends().into_iter().find(|frame| order_of(frame).is_some());
    let (third, request) = pair.at_server(&third.expect("a request")).request();
    assert_eq!(tag_of(&request), 2);
    pair.at_server(&frames[2]).nothing();
    pair.answer(third);
    assert!(pair.ready().is_none(), "a later call has run");
    assert_eq!(pair.server.held_bytes(), 0);
}

#[test]
fn cancel__of_a_call_that_waits() {
    let mut pair = in_order(Shape::default());
    (0..3).for_each(|tag| pair.ordered(tag));
    let frames = pair.client_sends();
    pair.at_server(&frames[1]).nothing();
    pair.at_server(&frames[2]).nothing();
    pair.client.cancel(pair.session, |tag| *tag == 1).unwrap();
    for frame in pair.client_sends() {
        pair.at_server(&frame).nothing();
    }
    let (first, _) = pair.at_server(&frames[0]).request();
    pair.answer(first);
    let (third, tag) = pair.ready().unwrap();
    assert!(tag == 2 && pair.ready().is_none(), "the cancelled call never runs");
    pair.answer(third);
    assert_eq!(pair.server.held_bytes(), 0);
}

/// Counts frames from any source port.
struct AnyPort(usize);

impl FrameSink for AnyPort {
    fn send(&mut self, _peer: PeerKey, _head: &[u8], _body: &[u8]) -> bool {
        self.0 += 1;
        true
    }

    fn send_from(&mut self, _source: u8, peer: PeerKey, head: &[u8], body: &[u8]) -> bool {
        self.send(peer, head, body)
    }
}

/// The repetition tells the server that the earlier call has ended; its first copy is not lost.
#[test]
fn cancel__of_the_call_before_one_in_flight_on_a_path() {
    let mut pair = in_order(Shape::default());
    let choice = PathChoice { policy: crate::path::PathPolicy::Coupled, ports: 4, seed: 1 };
    assert!(pair.client.use_paths(pair.session, choice));
    (0..2).for_each(|tag| pair.ordered(tag));
    let mut sink = AnyPort(0);
    while pair.client.transmit(pair.now, &mut sink) > 0 {}
    assert_eq!(sink.0, 2);
    pair.client.cancel(pair.session, |tag| *tag == 0).unwrap();
    while pair.client.transmit(pair.now, &mut sink) > 0 {}
    assert_eq!(sink.0, 4, "a CANCEL, and the second request again");
    let losses = pair.client.path_counts(pair.session).iter().map(|counts| counts.losses);
    assert_eq!(losses.sum::<u64>(), 0);
    assert!(pair.client.close(pair.session, Status::Cancelled, "over").is_some());
}

#[test]
fn cancel__of_a_call_that_has_just_become_ready() {
    let mut pair = in_order(Shape::default());
    (0..2).for_each(|tag| pair.ordered(tag));
    let frames = pair.client_sends();
    pair.at_server(&frames[1]).nothing();
    let (first, _) = pair.at_server(&frames[0]).request();
    pair.respond(first, b"done");
    pair.client.cancel(pair.session, |tag| *tag == 1).unwrap();
    for frame in pair.client_sends() {
        pair.at_server(&frame).nothing();
    }
    assert!(pair.ready().is_none());
    assert_eq!(pair.server.counters().requests_received, 1);
}

#[test]
fn deadline__of_a_call_that_waits() {
    let mut pair = in_order(Shape::default());
    pair.ordered(0);
    let deadline_ns = pair.now + 50_000_000;
    let limits = CallLimits { deadline_ns: Some(deadline_ns), ordered: true };
    pair.try_call(20, 1, limits).unwrap();
    pair.ordered(2);
    let frames = pair.client_sends();
    pair.at_server(&frames[1]).nothing();
    pair.at_server(&frames[2]).nothing();
    let (first, _) = pair.at_server(&frames[0]).request();
    pair.now = deadline_ns + 1_000_000;
    pair.server.set_time(pair.now);
    pair.respond(first, b"done");
    let (_, tag) = pair.ready().expect("the call behind the expired one");
    assert_eq!(tag, 2);
    assert_eq!(pair.server.counters().requests_expired, 1);
}

#[test]
fn ordered_calls__of_several_packets_with_deadlines() {
    let mut pair = in_order(Shape::default());
    let deadline_ns = Some(pair.now + 1_000_000_000);
    for (tag, len) in [(0, 20), (1, 5_000), (2, 1_192), (3, 1_193)] {
        pair.try_call(len, tag, CallLimits { deadline_ns, ordered: true }).unwrap();
    }
    let frames = pair.client_sends();
    for frame in frames[1..].iter().rev() {
        pair.at_server(frame).nothing();
    }
    for frame in pair.server_sends() {
        pair.at_client(&frame).nothing();
    }
    let mut next = pair.at_server(&frames[0]).request().0;
    for tag in 1..4 {
        assert_eq!(pair.answer(next).len(), 1);
        let ready = pair.ready().unwrap();
        assert_eq!(ready.1, tag);
        next = ready.0;
    }
    assert_eq!(pair.answer(next).len(), 1);
    assert_eq!(pair.server.held_bytes(), 0);
    pair.assert_credits_back();
}

/// A server without memory says so, and the calls behind the refused one run.
#[test]
fn ordered_call__is_refused_if_there_is_no_room_to_wait() {
    let config = Config { memory_bytes: 64 << 10, ..Config::default() };
    // Each call grants two packets.
    let shape = Shape { slots: 64, credits: 128, ..Shape::default() };
    let mut pair = Pair::opened(shape, config, |client, session, server, server_session| {
        client.keep_order(session);
        server.accept_order(server_session);
    });
    (0..32).for_each(|tag| pair.try_call(1_000, tag, ORDERED).unwrap());
    let frames = pair.client_sends();
    frames[1..].iter().for_each(|frame| pair.at_server(frame).nothing());
    let refused = pair.server.counters().refused_over_share;
    assert!(refused > 0 && refused < 31, "{refused}");
    let ends: Vec<_> = pair
        .server_sends()
        .iter()
        .filter_map(|frame| match pair.at_client(frame) {
            Got::Completed(ended) => Some(ended.outcome.unwrap_err()),
            _ => None,
        })
        .collect();
    assert_eq!(ends.len() as u64, refused);
    assert!(ends.iter().all(|end| end.status == Status::ResourceExhausted));
    assert!(ends.iter().all(|end| end.execution == Execution::Refused));
    let mut next = pair.at_server(&frames[0]).request().0;
    let mut ran = 1;
    loop {
        pair.answer(next);
        let Some((handle, _)) = pair.ready() else { break };
        (next, ran) = (handle, ran + 1);
    }
    assert_eq!(ran, 32 - refused);
    assert_eq!(pair.server.held_bytes(), 0);
}

#[test]
fn ordered_calls__are_sent_within_the_window() {
    let shape = Shape { slots: 1024, credits: 1024, ..Shape::default() };
    let mut pair = in_order(shape);
    (0..300).for_each(|tag| pair.ordered(tag));
    let mut frames = pair.client_sends();
    assert_eq!(frames.len(), 256, "the server remembers as many");
    let (mut next, _) = pair.at_server(&frames.remove(0)).request();
    frames.iter().for_each(|frame| pair.at_server(frame).nothing());
    for tag in 1..300 {
        pair.answer(next);
        for frame in pair.client_sends() {
            pair.at_server(&frame).nothing();
        }
        let (handle, other) = pair.ready().unwrap();
        assert_eq!(other, tag);
        next = handle;
    }
    pair.answer(next);
    pair.assert_credits_back();
}

#[test]
fn ordered_calls__with_a_single_credit_in_reverse() {
    let mut pair = in_order(Shape { credits: 1, ..Shape::default() });
    (0..4).for_each(|tag| pair.ordered(tag));
    let mut lost = pair.client_sends();
    assert_eq!(lost.len(), 1, "one credit");
    pair.wait_for_probe();
    let frames = pair.client_sends();
    let mut next = pair.at_server(&frames[0]).request().0;
    for tag in 1..4 {
        pair.answer(next);
        lost = pair.client_sends();
        let (handle, request) = pair.at_server(&lost[0]).request();
        assert_eq!(tag_of(&request), tag);
        next = handle;
    }
}

#[test]
fn ordered_call__is_refused_without_an_order() {
    let mut pair = Pair::new();
    assert_eq!(pair.try_call(20, 1, ORDERED), Err(CallError::NotOrdered));
    assert_eq!(CallError::NotOrdered.status(), Status::FailedPrecondition);
    assert!(!pair.client.keeps_order(pair.session));
}

/// Calls may wait before the server is known. The ordered ones end if it knows no order.
#[test]
fn forgo_order__ends_the_ordered_calls_that_waited() {
    let mut early = None;
    let mut pair = Pair::opened(Shape::default(), Config::default(), |client, session, _, _| {
        client.keep_order(session);
        for (tag, limits) in [(1, CallLimits::default()), (2, ORDERED)] {
            let (request, response) = (buffer(b"early"), HeapBuffer::new(100, 1));
            let call = PendingCall { method: 1, tag, request, response };
            client.call_with(0, session, call, limits).unwrap();
        }
        client.forgo_order(session);
        early = client.poll_event();
    });
    let Some(Event::Completed(ended)) = early else { panic!("{early:?}") };
    assert_eq!(ended.tag, 2);
    assert_eq!(ended.outcome.unwrap_err().execution, Execution::NotSent);
    let frames = pair.client_sends();
    assert_eq!(words(&frames), ["REQUEST s0 r832 m1 5 B"]);
    pair.at_server(&frames[0]).request();
}

/// An older client's link has not agreed on the record: the server skips it.
#[test]
fn order__without_an_agreement_is_ignored() {
    let mut pair = Pair::opened(Shape::default(), Config::default(), |client, session, _, _| {
        client.keep_order(session);
    });
    (0..2).for_each(|tag| pair.ordered(tag));
    let frames = pair.client_sends();
    assert_eq!(tag_of(&pair.at_server(&frames[1]).request().1), 1);
}

#[test]
fn close__of_a_session_with_calls_that_wait() {
    let mut pair = in_order(Shape::default());
    (0..3).for_each(|tag| pair.ordered(tag));
    let frames = pair.client_sends();
    pair.at_server(&frames[2]).nothing();
    let (first, _) = pair.at_server(&frames[0]).request();
    pair.server.close(pair.server_session, Status::Unavailable, "over");
    assert!(pair.ready().is_none());
    assert_eq!(pair.server.held_bytes(), 0);
    assert!(!pair.server.is_awaited(first));
    pair.client.close(pair.session, Status::Unavailable, "over");
    let ends = std::iter::from_fn(|| pair.client.poll_event());
    assert_eq!(ends.count(), 3);
}

/// A medium that loses, repeats and reorders, and a client that gives calls up.
struct World {
    pair: Pair,
    random: u64,
    flights: Vec<(u64, bool, Vec<u8>)>,
    /// By tag: true if the call is ordered.
    is_ordered: Vec<bool>,
    /// By tag: the deadline, or the end of time. A server refuses a late request, which then counts as run.
    deadlines: Vec<u64>,
    /// Calls that have ended at either end.
    over: Vec<bool>,
    runs: Vec<u32>,
    ended: usize,
    running: Vec<(u64, RequestHandle, u64)>,
}

impl World {
    fn next(&mut self) -> u64 {
        self.random ^= self.random << 13;
        self.random ^= self.random >> 7;
        self.random ^= self.random << 17;
        self.random
    }

    fn launch(&mut self, to_server: bool, frame: &[u8]) {
        let copies = [0, 1, 1, 1, 1, 1, 1, 2][self.next() as usize % 8];
        for _ in 0..copies {
            let at = self.pair.now + 5_000 + self.next() % 100_000;
            self.flights.push((at, to_server, frame.to_vec()));
        }
    }

    fn on_request(&mut self, handle: RequestHandle, request: &[u8]) {
        let tag = tag_of(request) as usize;
        assert!(request[8..] == pattern(request.len() - 8, tag as u64), "call {tag} is damaged");
        self.runs[tag] += 1;
        assert_eq!(self.runs[tag], 1, "call {tag} runs once");
        // The time left is rounded down.
        let late_ns = self.pair.now + 1_000;
        let is_open = |before: &usize| !self.over[*before] && self.deadlines[*before] > late_ns;
        let early = (0..tag).find(|before| self.is_ordered[tag] && is_open(before));
        assert_eq!(early, None, "call {tag} runs before an earlier one");
        let at = self.pair.now + self.next() % 200_000;
        self.running.push((at, handle, tag as u64));
    }

    fn on_end(&mut self, ended: &Completion<HeapBuffer>) {
        self.over[ended.tag as usize] = true;
        self.ended += 1;
    }

    fn step(&mut self) {
        self.pair.now += 10_000;
        let now = self.pair.now;
        self.pair.server.set_time(now);
        self.pair.client.set_time(now);
        let mut due: Vec<_> = self.flights.extract_if(.., |(at, ..)| *at <= now).collect();
        due.sort_by_key(|(at, ..)| *at);
        for (_, to_server, frame) in due {
            let got =
                if to_server { self.pair.at_server(&frame) } else { self.pair.at_client(&frame) };
            match got {
                Got::Nothing => {}
                Got::Request(handle, request) => self.on_request(handle, &request),
                Got::Completed(ended) => self.on_end(&ended),
            }
        }
        let due: Vec<_> = self.running.extract_if(.., |(at, ..)| *at <= now).collect();
        for (_, handle, tag) in due {
            self.over[tag as usize] = true;
            // The client may have given up.
            let _ = self.pair.server.respond_at_once(handle, buffer(b"done"), &mut nowhere());
        }
        while let Some(event) = self.pair.server.poll_event() {
            let Event::Request { handle, message, .. } = event else { panic!("{event:?}") };
            self.on_request(handle, message.message());
        }
        self.pair.client.handle_timeouts(now);
        self.pair.server.handle_timeouts(now);
        while let Some(event) = self.pair.client_event() {
            let Event::Completed(ended) = event else { panic!("{event:?}") };
            self.on_end(&ended);
        }
        for frame in self.pair.client_sends() {
            self.launch(true, &frame);
        }
        for frame in self.pair.server_sends() {
            self.launch(false, &frame);
        }
    }

    fn call(&mut self, calls: usize) {
        let tag = self.is_ordered.len();
        if tag == calls {
            return;
        }
        let ordered = !self.next().is_multiple_of(4);
        let len = [0, 20, 1_100, 1_300, 9_000][self.next() as usize % 5];
        let ahead_ns = [400_000, 4_000_000][self.next() as usize % 2];
        let deadline_ns = self.next().is_multiple_of(4).then_some(self.pair.now + ahead_ns);
        self.is_ordered.push(ordered);
        self.deadlines.push(deadline_ns.unwrap_or(u64::MAX));
        self.over.push(false);
        self.runs.push(0);
        let limits = CallLimits { deadline_ns, ordered };
        self.pair.try_call(len, tag as u64, limits).unwrap();
        if self.next().is_multiple_of(6) {
            let wanted = self.next() % (tag as u64 + 1);
            let session = self.pair.session;
            if let Some(ended) = self.pair.client.cancel(session, |tag| *tag == wanted) {
                self.on_end(&ended);
            }
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(200))]

    #[test]
    fn ordered_calls__under_loss_and_reordering(
        random in 1u64..,
        slots in prop::sample::select(vec![2u16, 8, 64]),
        credits in prop::sample::select(vec![1u16, 4, 64]),
    ) {
        const CALLS: usize = 40;
        /// A call that waits for an earlier one asks for its answer seldom, up to 4 s apart
        /// (`WAITING_PROBE_NS_MAX`), and a chain of calls may lose an answer each.
        const TURNS: usize = 6_000_000;
        let pair = in_order(Shape { slots, credits, ..Shape::default() });
        let (flights, running) = (Vec::new(), Vec::new());
        let (is_ordered, deadlines) = (Vec::new(), Vec::new());
        let (over, runs) = (Vec::new(), Vec::new());
        let mut world = World { pair, random, flights, is_ordered, deadlines, over, runs, ended: 0, running };
        for _ in 0..TURNS {
            if world.next().is_multiple_of(3) {
                world.call(CALLS);
            }
            world.step();
            if world.ended == CALLS {
                break;
            }
        }
        prop_assert_eq!(world.ended, CALLS, "all calls end");
        world.pair.assert_credits_back();
    }
}
