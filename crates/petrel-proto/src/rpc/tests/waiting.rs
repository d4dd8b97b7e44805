//! Many calls that wait for events: their resources, their cost, and their order when credits are short
//! (`docs/wire-protocol.md` §4, §6.3, §7.2).

use super::*;
use crate::congestion::{CongestionConfig, CongestionControl, SwiftConfig};
use crate::limits::{
    CREDITS_DEFAULT, ENDPOINT_METHOD, FUTURE_ROUNDS_MAX, SLOTS_AT_FIRST, SLOTS_DEFAULT,
    WAITING_PROBE_NS_MAX,
};

const SECOND_NS: u64 = 1_000_000_000;

fn wide() -> Shape {
    Shape { slots: SLOTS_DEFAULT, credits: CREDITS_DEFAULT, ..Shape::default() }
}

/// The requests passed to the server's handlers.
type Running = Vec<RequestHandle>;

/// Carries all frames in both directions until no more are sent; handlers only record requests. Returns the
/// ended calls.
fn settle(pair: &mut Pair, running: &mut Running) -> Vec<Completion<HeapBuffer>> {
    let mut ended = Vec::new();
    loop {
        let requests = pair.client_sends();
        for frame in &requests {
            if let Got::Request(handle, _) = pair.at_server(frame) {
                running.push(handle);
            }
        }
        let answers = pair.server_sends();
        for frame in &answers {
            if let Got::Completed(completion) = pair.at_client(frame) {
                ended.push(completion);
            }
        }
        if requests.is_empty() && answers.is_empty() {
            return ended;
        }
    }
}

/// Makes calls whose handlers do not answer, and waits for probes until all calls wait without a credit.
fn start_waiting(pair: &mut Pair, count: usize) -> Running {
    let mut running = Running::new();
    for tag in 0..count {
        pair.call(b"wake me", 10, tag as u64);
    }
    while running.len() < count
        || pair.client.credits(pair.session).unwrap().0 < CREDITS_DEFAULT.into()
    {
        assert!(settle(pair, &mut running).is_empty());
        if running.len() < count || pair.client.counters().calls_parked < count as u64 {
            pair.wait_for_probe();
        }
    }
    running
}

/// 2 000 calls wait on one session with default parameters, and another call finds a slot and a credit at
/// once. With the former 8 slots and 32 credits, the ninth call waited for as long as the others did.
#[test]
fn two_thousand_calls_wait_and_another_does_not() {
    let mut pair = Pair::with(wide());
    let running = start_waiting(&mut pair, 2_000);
    assert_eq!(running.len(), 2_000);
    let waits = pair.client.counters().credit_waits;
    pair.call(b"ping", 10, 9_999);
    let request = pair.client_sends();
    assert_eq!(request.len(), 1, "at once");
    let (handle, _) = pair.at_server(&request[0]).request();
    pair.respond(handle, b"pong");
    let answer = pair.server_sends();
    let ended = pair.at_client(&answer[0]).completed();
    assert_eq!((ended.tag, ended.response.message()), (9_999, &b"pong"[..]));
    assert_eq!(pair.client.counters().credit_waits, waits);
    assert_eq!(pair.client.counters().calls_queued, 0);
    // All calls are answered in the end, once each.
    for handle in &running {
        pair.respond(*handle, b"now");
    }
    let mut again = Running::new();
    let ended = settle(&mut pair, &mut again);
    assert_eq!((ended.len(), again.len()), (2_000, 0));
    assert!(ended.iter().all(|ended| ended.response.message() == b"now"));
    assert_eq!(pair.server.counters().requests_received, 2_001);
    pair.assert_credits_back();
    assert_eq!(pair.client.pending_calls(pair.session), 0);
}

#[test]
fn a_call_that_waits_for_a_minute_costs_some_thirty_probes() {
    let mut pair = Pair::new();
    pair.call(b"wake me", 10, 1);
    let mut running = Running::new();
    let start_ns = pair.now;
    let mut looks = Vec::new();
    while pair.now - start_ns < 52 * SECOND_NS {
        settle(&mut pair, &mut running);
        pair.wait_for_probe();
        looks.push(pair.now - start_ns);
    }
    assert!((20..45).contains(&looks.len()), "{} probes", looks.len());
    for pair in looks.windows(2) {
        let gap_ns = pair[1] - pair[0];
        // A tick of the wheel, and the least timeout.
        assert!(gap_ns <= pair[0] / 2 + 1_100_000, "after {} ns another {gap_ns} ns", pair[0]);
        assert!(gap_ns <= WAITING_PROBE_NS_MAX + 1_000_000);
    }
    // The answer is lost, and found by the next probe.
    pair.respond(running[0], b"now");
    pair.server_sends();
    let answered_ns = pair.now;
    let ended = loop {
        pair.wait_for_probe();
        if let Some(ended) = settle(&mut pair, &mut running).pop() {
            break ended;
        }
    };
    ended.outcome.unwrap();
    assert!(pair.now - answered_ns <= WAITING_PROBE_NS_MAX + 1_000_000);
    pair.assert_credits_back();
}

/// After the loss of a probe, or of its CREDIT, the next probe comes sooner than the next regular one.
#[test]
fn a_look_that_is_not_answered_is_repeated_after_a_timeout() {
    let mut pair = Pair::new();
    pair.call(b"wake me", 10, 1);
    let mut running = Running::new();
    settle(&mut pair, &mut running);
    while pair.now < 10 * SECOND_NS {
        pair.wait_for_probe();
        settle(&mut pair, &mut running);
    }
    pair.wait_for_probe();
    let lost_ns = pair.now;
    assert_eq!(pair.client_sends().len(), 1);
    pair.wait_for_probe();
    assert!(pair.now - lost_ns < 10_000_000, "{} ns", pair.now - lost_ns);
    settle(&mut pair, &mut running);
    // The probe was answered: the next probe is delayed again.
    let heard_ns = pair.now;
    pair.wait_for_probe();
    assert!(pair.now - heard_ns > SECOND_NS);
}

/// Unanswered probes are further and further apart. An answered probe shortens the time to the next one,
/// which comes earlier than planned before.
#[test]
fn an_answered_look_brings_the_next_near_again() {
    let mut pair = Pair::new();
    pair.call(b"x", 10, 0);
    run(&mut pair, |_| vec![]).outcome.unwrap();
    pair.call(b"wake me", 10, 1);
    let mut running = Running::new();
    settle(&mut pair, &mut running);
    pair.wait_for_probe();
    settle(&mut pair, &mut running);
    let start_ns = pair.now;
    let mut asking = Vec::new();
    for _ in 0..9 {
        pair.wait_for_probe();
        asking = pair.client_sends();
    }
    let planned_ns = pair.client.next_timeout_ns().unwrap() - pair.now;
    // The last probe was only late.
    pair.now += 5_000;
    pair.at_server(&asking[0]).nothing();
    let credit = pair.server_sends();
    pair.at_client(&credit[0]).nothing();
    let heard_ns = pair.now;
    pair.wait_for_probe();
    let gap_ns = pair.now - heard_ns;
    assert!(gap_ns <= (heard_ns - start_ns) / 2 + 200_000, "another after {gap_ns} ns");
    assert!(gap_ns < planned_ns * 3 / 4, "{gap_ns} of the {planned_ns} ns that were planned");
}

/// Each call with a buffer for a large response took half of the free credits: five calls held nearly all of
/// them while they waited.
#[test]
fn what_was_granted_returns_when_the_server_says_that_the_call_waits() {
    let mut pair = Pair::with(Shape { credits: 32, ..Shape::default() });
    let mut running = Running::new();
    for tag in 0..6 {
        pair.call(b"large?", 40 * P as usize, tag);
    }
    settle(&mut pair, &mut running);
    assert_eq!(running.len(), 6);
    assert!(pair.client.credits(pair.session).unwrap().0 < 4);
    while pair.client.credits(pair.session).unwrap().0 < 32 {
        pair.wait_for_probe();
        settle(&mut pair, &mut running);
    }
    pair.assert_credits_back();
    // The answer of 40 packets begins with one, and PULLs allow the others with credits.
    let message = pattern(40 * P as usize, 3);
    pair.respond(running[2], &message);
    let first = pair.server_sends();
    assert_eq!(first.len(), 1, "the grant is gone");
    pair.at_client(&first[0]).nothing();
    let ended = settle(&mut pair, &mut running).pop().expect("the call ends");
    assert_eq!((ended.tag, ended.response.message() == message), (2, true));
    pair.assert_credits_back();
}

/// The CREDIT may be out of date: the response may have arrived before.
#[test]
fn a_credit_with_flag_w_that_comes_late_takes_nothing_from_a_response() {
    let mut pair = Pair::with(Shape { credits: 32, ..Shape::default() });
    pair.call(b"large?", 3 * P as usize, 1);
    let request = pair.client_sends();
    let (handle, _) = pair.at_server(&request[0]).request();
    pair.wait_for_probe();
    let probe = pair.client_sends();
    pair.at_server(&probe[0]).nothing();
    let credit = pair.server_sends();
    assert_eq!(words(&credit), ["CREDIT s0 r832 up to 1, echo 0, waits again"]);
    pair.respond(handle, &pattern(3 * P as usize, 1));
    let first = pair.server_sends();
    assert_eq!(first.len(), 1);
    pair.at_client(&first[0]).nothing();
    pair.at_client(&credit[0]).nothing();
    let mut running = Running::new();
    let mut ended = settle(&mut pair, &mut running);
    while ended.is_empty() {
        pair.wait_for_probe();
        ended = settle(&mut pair, &mut running);
    }
    ended.remove(0).outcome.unwrap();
    pair.assert_credits_back();
}

/// The handlers of all calls wait, so no first copy measures the path: the answered repetition does.
/// Otherwise probes came after four timeouts, and only 64 calls at a time could begin to wait in this time.
#[test]
fn an_answered_repetition_measures_the_path() {
    let mut pair = Pair::new();
    pair.call(b"wake me", 10, 1);
    let request = pair.client_sends();
    pair.at_server(&request[0]).request();
    pair.wait_for_probe();
    let again = pair.client_sends();
    assert_eq!(pair.client.srtt_ns(pair.session), None);
    pair.at_server(&again[0]).nothing();
    pair.now += 7_000;
    let credit = pair.server_sends();
    pair.at_client(&credit[0]).nothing();
    assert_eq!(pair.client.srtt_ns(pair.session), Some(7_000));
}

/// A CREDIT without flag R may answer the first copy, which was only late.
#[test]
fn a_credit_that_may_answer_either_copy_measures_nothing() {
    let mut pair = Pair::new();
    pair.call(b"wake me", 10, 1);
    let request = pair.client_sends();
    pair.wait_for_probe();
    let again = pair.client_sends();
    pair.at_server(&again[0]).request();
    pair.at_server(&request[0]).nothing();
    let credit = pair.server_sends();
    assert_eq!(words(&credit), ["CREDIT s0 r832 up to 1, echo 0, waits"]);
    pair.at_client(&credit[0]).nothing();
    assert_eq!(pair.client.srtt_ns(pair.session), None);
    pair.assert_credits_back();
}

/// 64 calls on 32 credits, all repeated without end.
#[test]
fn no_slot_waits_for_many_rounds_when_credits_are_short() {
    for (slots, calls) in [(64u16, 63u64), (256, 200)] {
        let mut pair = Pair::with(Shape { slots, credits: 32, ..Shape::default() });
        for tag in 0..calls {
            pair.call(b"x", 10, tag);
        }
        let mut started = vec![0u64; calls as usize];
        let mut longest = 0;
        for round in 1..=400u64 {
            let requests = pair.client_sends();
            assert!(requests.len() <= 32);
            for frame in &requests {
                let (handle, _) = pair.at_server(frame).request();
                pair.respond(handle, b"y");
            }
            // Every continuation makes the next call at once, like a caller in a loop.
            for frame in &pair.server_sends() {
                let ended = pair.at_client(frame).completed();
                longest = longest.max(round - started[ended.tag as usize]);
                started[ended.tag as usize] = round;
                pair.call(b"x", 10, ended.tag);
            }
        }
        let fair = calls.div_ceil(32) + 1;
        assert!(longest <= fair, "{longest} rounds with {calls} calls, of {fair}");
    }
}

/// Neither small calls nor a large message displace the other.
#[test]
fn a_large_message_and_small_calls_take_turns_at_the_credits() {
    let mut pair = Pair::with(Shape { slots: 8, credits: 4, ..Shape::default() });
    pair.call(&pattern(200 * P as usize, 0), 10, 1_000);
    for tag in 0..6 {
        pair.call(b"x", 10, tag);
    }
    let (mut small, mut rounds) = (0, 0);
    let is_over = loop {
        rounds += 1;
        let mut over = false;
        let requests = pair.client_sends();
        for frame in &requests {
            if let Got::Request(handle, _) = pair.at_server(frame) {
                pair.respond(handle, b"y");
            }
        }
        for frame in &pair.server_sends() {
            if let Got::Completed(ended) = pair.at_client(frame) {
                over |= ended.tag == 1_000;
                if ended.tag < 1_000 {
                    small += 1;
                    pair.call(b"x", 10, ended.tag);
                }
            }
        }
        if over || rounds == 1_000 {
            break over;
        }
    };
    assert!(is_over, "the message is there after {rounds} rounds");
    assert!(small >= rounds, "{small} small calls in {rounds} rounds");
}

/// A health request is sent although all slots and credits are in use, and the server is silent.
#[test]
fn health_waits_behind_nothing() {
    // With slots left, and with calls that wait for one.
    for calls in [10, 80] {
        health_with(calls);
    }
}

fn health_with(calls: u64) {
    let mut pair = Pair::with(Shape { slots: 64, credits: 4, ..Shape::default() });
    for tag in 0..calls {
        pair.call(b"x", 10, tag);
    }
    assert_eq!(pair.client_sends().len(), 4);
    assert_eq!(pair.client.counters().calls_queued, calls.saturating_sub(63));
    let (request, response) = (buffer(b""), HeapBuffer::new(10, 1));
    pair.client.call(pair.now, pair.session, ENDPOINT_METHOD, request, response, 777).unwrap();
    let requests = pair.client_sends();
    assert_eq!(words(&requests), ["REQUEST s0 r832 m65535 0 B"]);
    let (handle, _) = pair.at_server(&requests[0]).request();
    pair.respond(handle, &[1]);
    let answers = pair.server_sends();
    assert_eq!(pair.at_client(&answers[0]).completed().tag, 777);
    assert_eq!(pair.client.credits(pair.session), Some((0, 4)));
    // Again on the same slot, and lost: the request is repeated like others.
    let (request, response) = (buffer(b""), HeapBuffer::new(10, 1));
    pair.client.call(pair.now, pair.session, ENDPOINT_METHOD, request, response, 778).unwrap();
    assert_eq!(words(&pair.client_sends()), ["REQUEST s0 r896 m65535 0 B"]);
    let again = loop {
        pair.wait_for_probe();
        let frames = pair.client_sends();
        if let Some(again) =
            frames.iter().find(|frame| words(std::slice::from_ref(*frame))[0].contains("r896"))
        {
            break again.clone();
        }
    };
    let (handle, _) = pair.at_server(&again).request();
    pair.respond(handle, &[1]);
    let answers = pair.server_sends();
    assert_eq!(pair.at_client(&answers[0]).completed().tag, 778);
    assert_eq!(pair.client.credits(pair.session), Some((0, 4)));
}

/// A request without a credit allows no packets of its answer that need credits, for any room of the caller.
#[test]
fn health_grants_one_packet() {
    for (method, expected) in [
        (ENDPOINT_METHOD, "REQUEST s0 r832 m65535 0 B"),
        (1, "REQUEST_PART s0 r833 m1 p0 of 0 B, 0 B, grant 4"),
    ] {
        let mut pair = Pair::with(Shape { slots: 64, credits: 32, ..Shape::default() });
        let (request, response) = (buffer(b""), HeapBuffer::new(4 * P as usize, 1));
        pair.client.call(pair.now, pair.session, method, request, response, 1).unwrap();
        assert_eq!(words(&pair.client_sends()), [expected]);
        let taken = if method == ENDPOINT_METHOD { 0 } else { 4 };
        assert_eq!(pair.client.credits(pair.session), Some((32 - taken, 32)));
    }
}

/// Slots are allocated with the calls: both ends begin with a few slots, and end with as many as were used at
/// once.
#[test]
fn slots_are_made_when_calls_need_them() {
    let mut pair = Pair::with(wide());
    let slots_of = |pair: &Pair| {
        (
            pair.client.slots_allocated(pair.session),
            pair.server.slots_allocated(pair.server_session),
        )
    };
    let least = usize::from(SLOTS_AT_FIRST);
    assert_eq!(slots_of(&pair), (least, least));
    for tag in 0..1_000 {
        pair.call(b"x", 10, tag);
        run(&mut pair, |_| vec![]).outcome.unwrap();
    }
    assert_eq!(slots_of(&pair), (least, least), "one call at a time");
    start_waiting(&mut pair, 100);
    assert_eq!(slots_of(&pair), (128, 128));
}

/// A dropped frame allocates no slot, and an accepted one no more than the agreed number.
#[test]
fn a_server_makes_slots_for_requests_that_it_takes() {
    let mut pair = Pair::with(wide());
    let least = usize::from(SLOTS_AT_FIRST);
    pair.call(b"x", 10, 1);
    let request = pair.client_sends().remove(0);
    let (header, _) = crate::wire::Header::parse(&request).unwrap();
    let of = |kind, request| crate::wire::Header { kind, request, ..header }.encode();
    let slots = u64::from(SLOTS_DEFAULT);
    // The first number of the last slot.
    let last = FIRST.next_multiple_of(slots) + slots - 1;
    for request in [last - slots, last + FUTURE_ROUNDS_MAX * slots] {
        pair.at_server(&of(crate::wire::Kind::Request, request)).nothing();
        pair.at_server(&of(crate::wire::Kind::Cancel, request)).nothing();
    }
    assert_eq!(pair.server.slots_allocated(pair.server_session), least);
    pair.at_server(&of(crate::wire::Kind::Request, last)).request();
    assert_eq!(pair.server.slots_allocated(pair.server_session), usize::from(SLOTS_DEFAULT));
}

/// Calls waiting for an event have no packets in flight, and leave the whole window to further calls.
#[test]
fn calls_that_wait_take_nothing_of_a_congestion_window() {
    let config = || {
        let swift = CongestionConfig::Swift(SwiftConfig::new());
        Config { congestion: CongestionControl::new(swift).unwrap(), ..Config::default() }
    };
    let sends = |waiting: usize| {
        let mut pair = Pair::with_config(wide(), config());
        start_waiting(&mut pair, waiting);
        pair.call(&pattern(200 * P as usize, 0), 10, 1_000);
        pair.client_sends().len()
    };
    let alone = sends(0);
    assert!(
        (1..usize::from(CREDITS_DEFAULT)).contains(&alone),
        "the window is what bounds: {alone}"
    );
    assert_eq!(sends(20), alone);
}
