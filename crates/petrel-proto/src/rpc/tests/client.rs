use super::*;

#[test]
fn calls_beyond_the_slots_wait_and_complete_in_any_order() {
    let mut pair = Pair::with(Shape { slots: 2, ..Shape::default() });
    for tag in 0..3 {
        pair.call(&[tag as u8], 10, tag);
    }
    let frames = pair.client_sends();
    assert_eq!(words(&frames), ["REQUEST s0 r832 m1 1 B", "REQUEST s0 r833 m1 1 B"]);
    let (first, _) = pair.at_server(&frames[0]).request();
    let (second, _) = pair.at_server(&frames[1]).request();
    pair.respond(second, b"b");
    let answers = pair.server_sends();
    assert_eq!(pair.at_client(&answers[0]).completed().tag, 1);
    let frames = pair.client_sends();
    assert_eq!(words(&frames), ["REQUEST s0 r835 m1 1 B"]);
    let (third, _) = pair.at_server(&frames[0]).request();
    pair.respond(third, b"c");
    pair.respond(first, b"a");
    let tags: Vec<u64> =
        pair.server_sends().iter().map(|f| pair.at_client(f).completed().tag).collect();
    assert_eq!(tags, [2, 0]);
    pair.assert_credits_back();
}

#[test]
fn a_lost_request_is_sent_again_after_the_timeout() {
    let mut pair = Pair::new();
    pair.call(b"x", 10, 1);
    assert_eq!(pair.client_sends().len(), 1);
    pair.wait_for_timeout();
    let frames = pair.client_sends();
    assert_eq!(words(&frames), ["REQUEST s0 r832 m1 1 B again"]);
    let (handle, _) = pair.at_server(&frames[0]).request();
    pair.respond(handle, b"y");
    let answers = pair.server_sends();
    pair.at_client(&answers[0]).completed().outcome.unwrap();
    assert_eq!(pair.client.srtt_ns(pair.session), None, "Karn: an ambiguous round trip");
    pair.assert_credits_back();
}

#[test]
fn a_lost_response_is_sent_again_without_running_the_handler_again() {
    let mut pair = Pair::new();
    pair.call(b"x", 10, 1);
    let request = pair.client_sends();
    let (handle, _) = pair.at_server(&request[0]).request();
    pair.respond(handle, b"y");
    let _lost = pair.server_sends();
    pair.wait_for_timeout();
    let again = pair.client_sends();
    pair.at_server(&again[0]).nothing();
    let answers = pair.server_sends();
    assert_eq!(words(&answers), ["RESPONSE s0 r832 1 B again"]);
    pair.at_client(&answers[0]).completed().outcome.unwrap();
    assert_eq!(pair.server.counters().requests_received, 1);
}

#[test]
fn a_running_handler_keeps_the_call_alive_for_any_time() {
    let mut pair = Pair::new();
    pair.call(b"slow", 10, 1);
    let request = pair.client_sends();
    let (handle, _) = pair.at_server(&request[0]).request();
    for round in 0..30 {
        pair.wait_for_probe();
        let probe = pair.client_sends();
        let expected = if round == 0 {
            "REQUEST s0 r832 m1 4 B again"
        } else {
            "PULL s0 r832 up to 0, limit 1, again below 1 again"
        };
        assert_eq!(words(&probe), [expected]);
        pair.at_server(&probe[0]).nothing();
        let credit = pair.server_sends();
        assert_eq!(words(&credit), ["CREDIT s0 r832 up to 1, echo 0, waits again"]);
        pair.at_client(&credit[0]).nothing();
    }
    pair.respond(handle, b"done");
    let answers = pair.server_sends();
    pair.at_client(&answers[0]).completed().outcome.unwrap();
    pair.assert_credits_back();
}

#[test]
fn silence_ends_a_call_as_unavailable_and_perhaps_executed() {
    let mut pair = Pair::new();
    pair.call(b"x", 10, 9);
    let retries = Config::default().retries_max;
    for _ in 0..=retries {
        assert_eq!(pair.client_sends().len(), 1);
        pair.wait_for_timeout();
    }
    let completion = pair.event();
    let failure = completion.outcome.unwrap_err();
    assert_eq!((completion.tag, failure.status), (9, Status::Unavailable));
    assert_eq!(failure.execution, Execution::MayHaveExecuted);
    pair.assert_credits_back();
    // The slot continues with the next number, accepted by the server although a number is missing.
    pair.call(b"z", 10, 10);
    let frames = pair.client_sends();
    assert_eq!(words(&frames), ["REQUEST s0 r840 m1 1 B"]);
    pair.at_server(&frames[0]).request();
}

#[test]
fn one_lost_packet_of_many_is_sent_again_alone_and_at_once() {
    let mut pair = Pair::new();
    let message = pattern(10 * P as usize, 1);
    pair.call(&message, 10, 1);
    let frames = pair.client_sends();
    assert_eq!(frames.len(), 10);
    for (index, frame) in frames.iter().enumerate() {
        if index != 3 {
            pair.at_server(frame).nothing();
        }
    }
    let credit = pair.server_sends();
    assert_eq!(words(&credit), ["CREDIT s0 r832 up to 3, echo 9"]);
    pair.at_client(&credit[0]).nothing();
    let again = pair.client_sends();
    assert_eq!(words(&again), ["REQUEST_PART s0 r832 m1 p3 of 12000 B, 1200 B, grant 1 again"]);
    let (_, request) = pair.at_server(&again[0]).request();
    assert_eq!(request, message);
    assert_eq!(pair.client.counters().timeouts, 0);
}

#[test]
fn a_lost_train_is_found_with_one_timeout() {
    let mut pair = Pair::new();
    pair.call(&pattern(20 * P as usize, 1), 10, 1);
    let frames = pair.client_sends();
    pair.at_server(&frames[0]).nothing();
    let credit = pair.server_sends();
    pair.at_client(&credit[0]).nothing();
    pair.client_sends();
    pair.wait_for_timeout();
    let probe = pair.client_sends();
    assert_eq!(probe.len(), 1);
    pair.at_server(&probe[0]).nothing();
    let credit = pair.server_sends();
    pair.at_client(&credit[0]).nothing();
    // The packets sent at least three transmissions before the probe; the last two may be in flight.
    let again = pair.client_sends();
    assert_eq!(again.len(), 16);
    for frame in &again {
        pair.at_server(frame).nothing();
    }
    let credit = pair.server_sends();
    pair.at_client(&credit[0]).nothing();
    assert_eq!(pair.client_sends().len(), 2, "with that evidence they are lost too");
    assert_eq!(pair.client.counters().timeouts, 1);
}

#[test]
fn a_lost_packet_of_a_response_is_asked_for_at_once() {
    let mut pair = Pair::new();
    let response = pattern(8 * P as usize, 2);
    pair.call(b"give", response.len(), 1);
    let request = pair.client_sends();
    assert_eq!(words(&request), ["REQUEST_PART s0 r832 m1 p0 of 4 B, 4 B, grant 8"]);
    let (handle, _) = pair.at_server(&request[0]).request();
    pair.respond(handle, &response);
    let frames = pair.server_sends();
    assert_eq!(frames.len(), 8, "the granted packets need no further round trip");
    for (index, frame) in frames.iter().enumerate() {
        if index != 2 {
            pair.at_client(frame).nothing();
        }
    }
    let pull = pair.client_sends();
    assert_eq!(words(&pull), ["PULL s0 r832 up to 2, limit 8, again below 3 again"]);
    pair.at_server(&pull[0]).nothing();
    let again = pair.server_sends();
    assert_eq!(words(&again), ["RESPONSE_PART s0 r832 p2 of 9600 B, 1200 B, grant 0 again"]);
    let completion = pair.at_client(&again[0]).completed();
    assert!(completion.response.message() == response);
    pair.assert_credits_back();
}

/// Packets asked for in one call have no effect on the slot's next call.
#[test]
fn a_lost_packet_of_each_response_in_a_slot_is_asked_for() {
    let mut pair = Pair::with(Shape { slots: 1, ..Shape::default() });
    let response = pattern(8 * P as usize, 2);
    for (call, lost) in [4, 3, 2, 1, 0, 0].into_iter().enumerate() {
        pair.call(b"give", response.len(), call as u64);
        let request = pair.client_sends();
        let (handle, _) = pair.at_server(&request[0]).request();
        pair.respond(handle, &response);
        let mut frames = pair.server_sends();
        assert_eq!(frames.len(), 8);
        frames.remove(lost);
        frames.iter().for_each(|frame| pair.at_client(frame).nothing());
        let pull = pair.client_sends();
        let number = FIRST + call as u64;
        let expected = format!("PULL s0 r{number} up to {lost}, limit 8,");
        assert!(words(&pull)[0].starts_with(&expected), "{:?}", words(&pull));
        pair.at_server(&pull[0]).nothing();
        let again = pair.server_sends();
        assert_eq!(again.len(), 1);
        assert!(pair.at_client(&again[0]).completed().response.message() == response);
        let counters = pair.client.counters();
        assert_eq!((counters.losses_detected, counters.timeouts), (call as u64 + 1, 0));
        assert_eq!(pair.client.congestion_counters().losses, call as u64 + 1);
    }
}

/// Makes a call whose response has eight packets, and delivers the first three. Returns the others.
fn with_five_packets_to_come(pair: &mut Pair, response: &[u8]) -> Vec<Vec<u8>> {
    pair.call(b"give", response.len(), 1);
    let request = pair.client_sends();
    let (handle, _) = pair.at_server(&request[0]).request();
    pair.respond(handle, response);
    let mut frames = pair.server_sends();
    let to_come = frames.split_off(3);
    frames.iter().for_each(|frame| pair.at_client(frame).nothing());
    to_come
}

#[test]
fn a_lost_end_of_a_response_is_asked_for_by_its_first_packet() {
    let mut pair = Pair::new();
    let response = pattern(8 * P as usize, 2);
    with_five_packets_to_come(&mut pair, &response);
    pair.wait_for_timeout();
    let pull = pair.client_sends();
    assert_eq!(words(&pull), ["PULL s0 r832 up to 3, limit 8, again below 4 again"]);
    pair.at_server(&pull[0]).nothing();
    let again = pair.server_sends();
    assert_eq!(words(&again), ["RESPONSE_PART s0 r832 p3 of 9600 B, 1200 B, grant 0 again"]);
    pair.at_client(&again[0]).nothing();
    let pull = pair.client_sends();
    assert_eq!(words(&pull), ["PULL s0 r832 up to 4, limit 8, again below 8 again"]);
    pair.at_server(&pull[0]).nothing();
    let again = pair.server_sends();
    assert_eq!(again.len(), 4);
    again[..3].iter().for_each(|frame| pair.at_client(frame).nothing());
    let completion = pair.at_client(&again[3]).completed();
    assert!(completion.response.message() == response);
    pair.assert_credits_back();
}

/// Found by the simulator: each window of 8 MiB was sent twice, because a queue was longer than the time
/// until a probe. 5 156 packets were sent again without any loss.
#[test]
fn what_of_a_response_is_only_late_is_not_sent_again_as_a_whole() {
    let mut pair = Pair::new();
    let response = pattern(8 * P as usize, 2);
    let late = with_five_packets_to_come(&mut pair, &response);
    pair.wait_for_timeout();
    let pull = pair.client_sends();
    pair.at_server(&pull[0]).nothing();
    let again = pair.server_sends();
    late[..4].iter().for_each(|frame| pair.at_client(frame).nothing());
    pair.at_client(&again[0]).nothing();
    assert_eq!(pair.client_sends().len(), 0);
    assert!(pair.at_client(&late[4]).completed().response.message() == response);
    assert_eq!(pair.server.counters().packets_retransmitted, 1);
    pair.assert_credits_back();
}

#[test]
fn a_response_larger_than_the_buffer_is_an_error_and_harms_nobody() {
    for len in [11, 5 * P as usize] {
        let mut pair = Pair::new();
        pair.call(b"x", 10, 1);
        let completion = run(&mut pair, |_| pattern(len, 0));
        let failure = completion.outcome.unwrap_err();
        assert_eq!(failure.status, Status::ResourceExhausted);
        assert_eq!(failure.execution, Execution::Answered);
        assert_eq!(completion.response.len(), 0);
        pair.assert_credits_back();
        pair.call(b"x", 10, 2);
        run(&mut pair, |_| b"short".to_vec()).outcome.unwrap();
    }
}

#[test]
fn a_request_over_the_limit_is_refused_before_anything_is_sent() {
    let mut pair = Pair::with(Shape { request_bytes_max: 5000, ..Shape::default() });
    let request = buffer(&pattern(5001, 0));
    let rejected =
        pair.client.call(pair.now, pair.session, 1, request, HeapBuffer::new(1, 1), 0).unwrap_err();
    assert_eq!(rejected.error, CallError::RequestTooLarge { len: 5001, max: 5000 });
    assert_eq!(rejected.request.len(), 5001, "the buffer comes back");
    assert!(pair.client_sends().is_empty());
    pair.call(&pattern(5000, 0), 1, 1);
    run(&mut pair, |_| vec![]).outcome.unwrap();
}

#[test]
fn credits_bound_what_is_on_the_way_and_stalled_slots_go_on() {
    let mut pair = Pair::with(Shape { credits: 4, ..Shape::default() });
    pair.call(&pattern(6 * P as usize, 0), 1, 1);
    pair.call(b"small", 1, 2);
    let frames = pair.client_sends();
    assert_eq!(frames.len(), 4);
    for frame in &frames {
        pair.at_server(frame).nothing();
    }
    let credit = pair.server_sends();
    pair.at_client(&credit[0]).nothing();
    let frames = pair.client_sends();
    assert_eq!(frames.len(), 3, "the rest, and the call that had waited for credits");
}

/// The call that gets its credit back has nothing left to send: the waiting call gets the credit.
#[test]
fn credits_that_come_back_to_a_call_that_has_sent_all_go_to_the_call_that_waits() {
    let mut pair = Pair::with(Shape { credits: 3, ..Shape::default() });
    pair.call(&pattern(3 * P as usize, 0), 1, 1);
    pair.call(b"small", 1, 2);
    let frames = pair.client_sends();
    assert_eq!(frames.len(), 3, "all of the first request, and all credits");
    pair.at_server(&frames[0]).nothing();
    pair.at_server(&frames[1]).nothing();
    let credits = pair.server_sends();
    assert!(!credits.is_empty());
    credits.iter().for_each(|credit| pair.at_client(credit).nothing());
    assert_eq!(words(&pair.client_sends()), ["REQUEST s0 r833 m1 5 B"]);
}

#[test]
fn frames_that_fit_no_rule_change_nothing() {
    let mut pair = Pair::new();
    pair.call(&pattern(3 * P as usize, 0), 10, 1);
    let frames = pair.client_sends();
    let (handle, _) = {
        pair.at_server(&frames[0]).nothing();
        pair.at_server(&frames[1]).nothing();
        pair.at_server(&frames[2]).request()
    };
    pair.respond(handle, b"ok");
    let answer = pair.server_sends().remove(0);
    let check = |pair: &mut Pair, bytes: &[u8], name: &str| {
        let before = *pair.client.counters();
        pair.at_client(bytes).nothing();
        let changed: Vec<_> = pair
            .client
            .counters()
            .iter()
            .zip(before.iter())
            .filter(|(a, b)| a != b)
            .map(|(a, _)| a.0)
            .collect();
        assert_eq!(changed, [name]);
    };
    let mut token = answer.clone();
    token[4] ^= 1;
    check(&mut pair, &token, "dropped_unknown_session");
    let mut session = answer.clone();
    session[2] ^= 1;
    check(&mut pair, &session, "dropped_unknown_session");
    let mut past = answer.clone();
    past[10] ^= 0x40;
    check(&mut pair, &past, "dropped_stale");
    let mut future = answer.clone();
    future[12] ^= 1;
    check(&mut pair, &future, "dropped_future");
    let mut version = answer.clone();
    version[0] ^= 0x20;
    check(&mut pair, &version, "dropped_malformed");
    check(&mut pair, &answer[..15], "dropped_malformed");
    check(&mut pair, &[], "dropped_malformed");
    let mut direction = answer.clone();
    direction[0] &= 0xF0;
    check(&mut pair, &direction, "dropped_wrong_direction");
    let before = *pair.client.counters();
    let other = PeerKey(8);
    got(pair.client.handle_frame(0, other, &answer, &mut POOL.clone())).nothing();
    assert_eq!(pair.client.counters().dropped_wrong_peer, before.dropped_wrong_peer + 1);
    pair.at_client(&answer).completed().outcome.unwrap();
    check(&mut pair, &answer, "dropped_stale");
}

/// Returns the counters that a frame from the server increases.
fn counted(pair: &mut Pair, frame: &[u8]) -> Vec<&'static str> {
    let before = *pair.client.counters();
    pair.at_client(frame).nothing();
    let counts = pair.client.counters().iter().zip(before.iter());
    counts.filter(|(now, before)| now.1 > before.1).map(|(now, _)| now.0).collect()
}

/// Returns a server's answer of `answer` bytes to a request of `request` bytes.
fn answers_to(shape: Shape, request: usize, room: usize, answer: usize) -> Vec<Vec<u8>> {
    let mut pair = Pair::with(shape);
    pair.call(&pattern(request, 1), room, 1);
    for frame in pair.client_sends() {
        if let Got::Request(handle, _) = pair.at_server(&frame) {
            pair.respond(handle, &pattern(answer, 2));
        }
    }
    let mut answers = pair.server_sends();
    answers.retain(|frame| words(std::slice::from_ref(frame))[0].starts_with("RESPONSE"));
    answers
}

/// A frame about a request that has not begun, or was not sent completely, is not part of its answer.
#[test]
fn answers_to_what_was_not_asked_are_dropped() {
    let large = 3 * P as usize;
    for fast_path in [false, true] {
        for (request, answer) in [(1, 1), (1, large), (large, 1), (large, large)] {
            let answers = answers_to(Shape::default(), request, large, answer);
            let answer = answers.last().expect("an answer");
            let mut pair = Pair::by(Shape::default(), fast_path);
            // Free slots hold the numbers of their next requests.
            assert_eq!(counted(&mut pair, answer), ["dropped_future"]);
            pair.call(&pattern(request, 1), large, 1);
            assert_eq!(counted(&mut pair, answer), ["dropped_malformed"], "nothing was sent");
            if request == large && answers.len() > 1 {
                refuse_behind(&mut pair.client, pair.now, 1);
                assert_eq!(counted(&mut pair, answer), ["dropped_malformed"], "some was not sent");
            }
        }
    }
}

#[test]
fn parts_of_a_response_that_contradict_each_other_are_dropped() {
    let large = 4 * P as usize;
    let answers = answers_to(Shape::default(), 1, large, large);
    let small = answers_to(Shape::default(), 1, large, 1).remove(0);
    assert_eq!(answers.len(), 4);
    for is_receiving in [false, true] {
        let mut pair = Pair::new();
        pair.call(&pattern(1, 1), large, 1);
        pair.client_sends();
        if is_receiving {
            pair.at_client(&answers[1]).nothing();
            for size in [large as u32 - 1, large as u32 + 1] {
                let mut other = answers[2].clone();
                other[16..20].copy_from_slice(&size.to_le_bytes());
                assert_eq!(counted(&mut pair, &other), ["dropped_malformed"], "{size}");
            }
            assert_eq!(counted(&mut pair, &small), ["dropped_malformed"], "it answers once");
        }
        let mut beyond_the_end = answers[3].clone();
        beyond_the_end[20] = 4;
        assert_eq!(counted(&mut pair, &beyond_the_end), ["dropped_malformed"]);
        let cut = &answers[2][..answers[2].len() - 1];
        assert_eq!(counted(&mut pair, cut), ["dropped_malformed"]);
        let longer = [&answers[2][..], &[0]].concat();
        assert_eq!(counted(&mut pair, &longer), ["dropped_malformed"]);
        let (last, others) = answers.split_last().unwrap();
        for (at, frame) in others.iter().enumerate() {
            let expected = match at {
                1 if is_receiving => "dropped_duplicate",
                _ => "frames_accepted",
            };
            assert_eq!(counted(&mut pair, frame), [expected]);
        }
        assert_eq!(pair.at_client(last).completed().response.message(), pattern(large, 2));
        pair.assert_credits_back();
    }
}

/// An error may replace the rest of a response.
#[test]
fn an_error_ends_a_response_that_has_begun() {
    let large = 4 * P as usize;
    let answers = answers_to(Shape::default(), 1, large, large);
    let mut error = answers_to(Shape::default(), 1, large, 1).remove(0);
    error[8] = Status::DataLoss as u8;
    let mut pair = Pair::new();
    pair.call(&pattern(1, 1), large, 1);
    pair.client_sends();
    pair.at_client(&answers[1]).nothing();
    let failure = pair.at_client(&error).completed().outcome.unwrap_err();
    assert_eq!((failure.status, failure.execution), (Status::DataLoss, Execution::Answered));
    pair.assert_credits_back();
}

#[test]
fn packets_of_a_response_that_were_not_allowed_are_dropped() {
    let shape = Shape { credits: 8, ..Shape::default() };
    let room = 20 * P as usize;
    let answers = answers_to(shape, 1, room, room);
    assert_eq!(answers.len(), 4, "as many as the request granted");
    for is_receiving in [false, true] {
        let mut pair = Pair::with(shape);
        pair.call(&pattern(1, 1), room, 1);
        pair.client_sends();
        if is_receiving {
            pair.at_client(&answers[0]).nothing();
        }
        let allowed = pair.client_sends().len();
        assert_eq!(allowed, usize::from(is_receiving), "a PULL for more");
        let mut beyond = answers[3].clone();
        for packet in [4, 5, 19] {
            beyond[20] = packet;
            let mut counted = counted(&mut pair, &beyond);
            if is_receiving {
                // The PULL has allowed some packets.
                counted.retain(|name| *name == "dropped_beyond_window" && packet == 19);
                assert_eq!(counted.len(), usize::from(packet == 19));
            } else {
                assert_eq!(counted, ["dropped_beyond_window"]);
            }
        }
        assert!(!counted(&mut pair, &answers[3]).contains(&"dropped_beyond_window"));
    }
}

/// Only an error can report that the request was not executed.
#[test]
fn an_answer_that_comes_too_late_may_say_that_the_request_was_refused() {
    use crate::wire::REFUSED;
    for (status, bits, execution) in [
        (Status::Ok, 0, Execution::MayHaveExecuted),
        (Status::Ok, REFUSED, Execution::MayHaveExecuted),
        (Status::Unavailable, 0, Execution::MayHaveExecuted),
        (Status::Unavailable, REFUSED, Execution::Refused),
    ] {
        let mut pair = Pair::new();
        pair.call_until(b"x", 100, 1, pair.now + 1_000_000);
        let handle = pair.arrives();
        pair.respond(handle, b"y");
        let mut answer = pair.server_sends().remove(0);
        answer[8..10].copy_from_slice(&(status as u16 | bits).to_le_bytes());
        pair.now += 1_000_000;
        let failure = pair.at_client(&answer).completed().outcome.unwrap_err();
        let found = (failure.status, failure.execution);
        assert_eq!(found, (Status::DeadlineExceeded, execution), "{status:?} {bits}");
    }
}

#[test]
fn a_refused_frame_is_made_again() {
    let mut pair = Pair::new();
    pair.call(b"x", 10, 1);
    assert_eq!(refuse_behind(&mut pair.client, pair.now, 0).len(), 0);
    assert!(pair.client.has_transmit());
    let frames = pair.client_sends();
    assert_eq!(words(&frames), ["REQUEST s0 r832 m1 1 B"]);
}

/// Found by the simulator: refused frames waited in a queue, new frames overtook them, and the changed order
/// looked like loss.
#[test]
fn refused_packets_of_a_request_are_as_if_never_sent() {
    let mut pair = Pair::with(Shape { credits: 16, ..Shape::default() });
    pair.call(&pattern(10 * P as usize, 3), 4 * P as usize, 1);
    assert_eq!(refuse_behind(&mut pair.client, pair.now, 2).len(), 2);
    assert_eq!(pair.client.credits(pair.session), Some((14, 16)), "neither packets nor grant");
    assert_eq!(pair.client.counters().packets_sent, 2);
    let rest = pair.client_sends();
    assert_eq!(rest.len(), 8);
    assert!(words(&rest)[0].contains(" p2 of") && words(&rest)[7].ends_with("grant 4"));
    assert!(words(&rest).iter().all(|frame| !frame.ends_with("again")));
}

/// The core offers no further frames in a burst after the medium has refused one.
#[test]
fn a_refused_packet_is_offered_once_in_a_burst() {
    for taken in 0..4 {
        let mut pair = Pair::new();
        pair.call(&pattern(4 * P as usize, 3), 10, 1);
        let mut offered = 0;
        let sent = pair.client.transmit(pair.now, &mut |_: PeerKey, _: &[u8], _: &[u8]| {
            offered += 1;
            offered <= taken
        });
        assert_eq!((sent, offered), (taken, taken + 1));
    }
}

/// The last packet of a request grants packets of the response, if so configured.
#[test]
fn requests_grant_packets_of_the_response() {
    for fast_path in [false, true] {
        for (response_grants, grant) in [(true, 4), (false, 1)] {
            let config = Config { response_grants, fast_path, ..Config::default() };
            for request in [1, 3 * P as usize] {
                let mut pair = Pair::with_config(Shape::default(), config.clone());
                pair.call(&pattern(request, 1), 4 * P as usize, 1);
                let frames = words(&pair.client_sends());
                let (last, others) = frames.split_last().unwrap();
                let end = format!("grant {grant}");
                let is_plain = grant == 1 && request == 1;
                assert_eq!(last.ends_with(&end), !is_plain, "{last}");
                assert_eq!(last.starts_with("REQUEST s0 "), is_plain, "{last}");
                assert!(others.iter().all(|frame| frame.ends_with("grant 1")), "{others:?}");
                let (free, all) = pair.client.credits(pair.session).unwrap();
                assert_eq!(all - free, frames.len() as u32 + grant - 1);
            }
        }
    }
}

/// For any number of credits, the server keeps one window of packets. Every acknowledgement moves the window.
#[test]
fn a_window_of_a_request_is_under_way_at_a_time() {
    use crate::limits::WINDOW_PACKETS;
    for fast_path in [false, true] {
        let mut pair = Pair::by(Shape { credits: 1_000, ..Shape::default() }, fast_path);
        pair.call(&pattern((WINDOW_PACKETS + 40) as usize * P as usize, 1), 10, 1);
        let frames = pair.client_sends();
        assert_eq!(frames.len() as u32, WINDOW_PACKETS);
        for frame in &frames[..3] {
            pair.at_server(frame).nothing();
            let credits = pair.server_sends();
            credits.iter().for_each(|credit| pair.at_client(credit).nothing());
            assert_eq!(pair.client_sends().len(), 1);
        }
        // The same for a response that arrives out of order: allowed up to a window beyond the first gap.
        let mut pair = Pair::by(Shape { credits: 1_000, ..Shape::default() }, fast_path);
        let room = (WINDOW_PACKETS + 40) as usize * P as usize;
        pair.call(b"x", room, 1);
        let handle = pair.arrives();
        pair.respond(handle, &pattern(room, 2));
        let mut frames = pair.server_sends();
        let first = frames.remove(0);
        let mut allowed = 1 + frames.len();
        while !frames.is_empty() {
            frames.iter().for_each(|frame| pair.at_client(frame).nothing());
            pair.client_sends().iter().for_each(|pull| pair.at_server(pull).nothing());
            frames = pair.server_sends();
            frames.retain(|frame| {
                *frame != first && !words(std::slice::from_ref(frame))[0].ends_with("again")
            });
            allowed += frames.len();
        }
        assert_eq!(allowed as u32, WINDOW_PACKETS);
    }
}

/// A request of one packet with a deadline is sent as REQUEST on either path, unless its grant exceeds one
/// packet.
#[test]
fn requests_with_a_deadline_are_whole_where_one_packet_says_it_all() {
    for fast_path in [false, true] {
        for (request, room, is_whole) in
            [(1, 100, true), (P, P, true), (1, 4 * P, false), (2 * P, 100, false)]
        {
            let mut pair = Pair::by(Shape::default(), fast_path);
            let deadline_ns = pair.now + 1_000_000;
            pair.call_until(&pattern(request as usize, 1), room as usize, 1, deadline_ns);
            let frames = words(&pair.client_sends());
            assert_eq!(frames[0].starts_with("REQUEST s0 "), is_whole, "{frames:?}");
            assert_eq!(frames[0].starts_with("REQUEST_PART s0 "), !is_whole, "{frames:?}");
        }
    }
}

/// A message that must queue for credits is counted: a request, and a response asked for by PULL.
#[test]
fn waits_for_credits_are_counted() {
    let waits = |pair: &Pair| pair.client.counters().credit_waits;
    let with_one_left = || {
        let mut pair = Pair::with(Shape { credits: 2, ..Shape::default() });
        pair.call(b"holds a credit", 10, 0);
        let request = pair.client_sends().remove(0);
        pair.at_server(&request).request();
        pair
    };
    for (packets, expected) in [(1, 0), (2, 1), (3, 1)] {
        let mut pair = with_one_left();
        pair.call(&pattern(packets * P as usize, 1), 10, 1);
        assert_eq!((pair.client_sends().len(), waits(&pair)), (1, expected));
    }
    for (packets, expected) in [(2, 0), (3, 1), (4, 1)] {
        let mut pair = with_one_left();
        let room = packets * P as usize;
        pair.call(b"x", room, 1);
        let handle = pair.arrives();
        pair.respond(handle, &pattern(room, 2));
        let answers = pair.server_sends();
        pair.at_client(&answers[0]).nothing();
        assert_eq!((pair.client_sends().len(), waits(&pair)), (1, expected), "{packets} packets");
    }
}

#[test]
fn a_refused_repetition_stays_one() {
    let mut pair = Pair::new();
    pair.call(&pattern(3 * P as usize, 3), 10, 1);
    pair.client_sends();
    pair.wait_for_timeout();
    assert_eq!(refuse_behind(&mut pair.client, pair.now, 0).len(), 0);
    assert_eq!(pair.client.counters().packets_retransmitted, 0);
    let frames = pair.client_sends();
    assert_eq!(words(&frames), ["REQUEST_PART s0 r832 m1 p0 of 3600 B, 1200 B, grant 1 again"]);
}

#[test]
fn refused_packets_of_a_response_and_pulls_are_polled_again_in_order() {
    let mut pair = Pair::with(Shape { credits: 16, ..Shape::default() });
    pair.call(b"x", 10 * P as usize, 1);
    let request = pair.client_sends();
    let (handle, _) = pair.at_server(&request[0]).request();
    let message = pattern(10 * P as usize, 4);
    pair.respond(handle, &message);
    let mut frames = refuse_behind(&mut pair.server, pair.now, 1);
    frames.extend(pair.server_sends());
    let count = frames.len();
    assert!((5..10).contains(&count), "as many as were granted: {count}");
    // The second packet is lost, as the PULL shows; the medium first refuses the PULL.
    for frame in frames.iter().take(1).chain(&frames[2..]) {
        pair.at_client(frame).nothing();
    }
    assert_eq!(refuse_behind(&mut pair.client, pair.now, 0).len(), 0);
    let pull = pair.client_sends();
    assert!(words(&pull)[0].contains("up to 1,") && !words(&pull)[0].contains("below 0"));
    pair.at_server(&pull[0]).nothing();
    for frame in pair.server_sends() {
        if let Got::Completed(completion) = pair.at_client(&frame) {
            assert_eq!(completion.response.message(), message);
            pair.assert_credits_back();
            return;
        }
    }
    panic!("the call has not ended");
}

/// Found by the simulator: of two answers, the one that filled the medium in a burst was first again in the
/// next burst.
#[test]
fn a_medium_with_little_room_is_shared_by_turns() {
    for calls in 2..5 {
        let mut pair = Pair::with(Shape { credits: 64, ..Shape::default() });
        for _ in 0..calls {
            pair.call(b"x", 10 * P as usize, 1);
        }
        let requests = pair.client_sends();
        for request in &requests {
            let (handle, _) = pair.at_server(request).request();
            pair.respond(handle, &pattern(10 * P as usize, 4));
        }
        let bursts = (0..calls).map(|_| refuse_behind(&mut pair.server, pair.now, 1).remove(0));
        let frames = words(&bursts.collect::<Vec<_>>());
        assert!(frames.iter().all(|frame| frame.contains(" p0 of ")), "{frames:?}");
    }
}

#[test]
fn a_session_out_of_request_numbers_says_so() {
    let mut client: Core<HeapBuffer> = Core::new(0, Config::default());
    let session = client.open(1, (1 << 48) - 8).unwrap();
    client.establish(session, agreed(0, 2, Shape::default())).unwrap();
    // Every slot has one number left. Calls use further slots until half of the slots are retired.
    for number in 0..4 {
        assert!(client.poll_event().is_none(), "{number} of 8 slots are used up");
        client.call(0, session, 1, buffer(b"x"), HeapBuffer::new(4, 1), 0).unwrap();
        let request = drain(&mut client, 0).remove(0);
        let (header, _) = crate::wire::Header::parse(&request).unwrap();
        assert_eq!(header.request, (1 << 48) - 8 + number);
        let answer = crate::wire::Header {
            kind: crate::wire::Kind::Response,
            session: 0,
            token: 1,
            aux: 0,
            ..header
        };
        got(client.handle_frame(0, PEER, &answer.encode(), &mut POOL.clone())).completed();
    }
    assert!(matches!(client.poll_event(), Some(Event::SessionExhausted(id)) if id == session));
}

/// Found by the simulator: the first copy of a repeated packet was taken for the second. Then everything sent
/// between the two seemed lost and was sent again, and so on to the message's end.
#[test]
fn the_first_copy_of_a_repeated_packet_does_not_show_later_ones_lost() {
    let mut pair = Pair::with(Shape { credits: 32, ..Shape::default() });
    pair.call(&pattern((1_000 * P) as usize, 5), 10, 1);
    let first = pair.client_sends();
    pair.wait_for_timeout();
    // A false alarm: the network is slow, and nothing was lost. The timer repeats packet 0.
    let again = pair.client_sends();
    assert_eq!((first.len(), again.len()), (32, 1));
    let at_first = pair.at_server(&first[0]);
    at_first.nothing();
    let credit = pair.server_sends();
    assert_eq!(words(&credit), ["CREDIT s0 r832 up to 1, echo 0"]);
    pair.at_client(&credit[0]).nothing();
    assert!(words(&pair.client_sends()).iter().all(|frame| !frame.ends_with("again")));
    for frame in &first[1..] {
        pair.at_server(frame).nothing();
    }
    pair.server_sends().iter().for_each(|credit| pair.at_client(credit).nothing());
    assert_eq!(pair.client.counters().losses_detected, 0);
}

/// Found by the simulator: a late CREDIT named a packet whose entry in the order of transmissions belonged to
/// a packet 256 later. Everything before the later packet then seemed lost.
#[test]
fn a_credit_about_a_packet_long_ago_shows_none_lost() {
    let mut pair = Pair::with(Shape { credits: 100, ..Shape::default() });
    pair.call(&pattern((1_000 * P) as usize, 5), 10, 1);
    let mut credits = Vec::new();
    let mut sent = pair.client_sends();
    for next in 0..350 {
        pair.at_server(&sent[next].clone()).nothing();
        credits.extend(pair.server_sends());
        pair.at_client(&credits[next].clone()).nothing();
        sent.extend(pair.client_sends());
    }
    // With a repetition, the transmission numbers differ from the packet numbers.
    pair.wait_for_timeout();
    assert_eq!(pair.client_sends().len(), 1);
    let late = &credits[190];
    assert_eq!(words(&credits[190..191]), ["CREDIT s0 r832 up to 191, echo 190"]);
    pair.at_client(late).nothing();
    assert_eq!(words(&pair.client_sends()), Vec::<String>::new());
    assert_eq!(pair.client.counters().losses_detected, 0);
}

/// A slot that was woken and needs no credit must pass the wake-up on.
#[test]
fn a_wake_up_is_not_lost_to_a_slot_that_does_not_need_it() {
    let mut pair = Pair::with(Shape { credits: 2, ..Shape::default() });
    pair.call(b"z", 100, 0);
    pair.call(&pattern(3 * P as usize, 1), 100, 1);
    let frames = pair.client_sends();
    let (z, _) = pair.at_server(&frames[0]).request();
    pair.at_server(&frames[1]).nothing();
    pair.respond(z, b"y");
    let (credits, answers): (Vec<_>, Vec<_>) =
        pair.server_sends().into_iter().partition(|frame| frame.len() == 24);
    pair.at_client(&answers[0]).completed();
    pair.call(b"b", 100, 2);
    let frames = pair.client_sends();
    pair.at_server(&frames[0]).nothing();
    let more_credits = pair.server_sends();
    pair.at_client(&credits[0]).nothing();
    let frames = pair.client_sends();
    pair.at_server(&frames[0]).request();
    more_credits.iter().for_each(|frame| pair.at_client(frame).nothing());
    let frames = pair.client_sends();
    let (b, _) = pair.at_server(&frames[0]).request();
    pair.call(b"c", 100, 3);
    pair.call(b"d", 100, 4);
    pair.client_sends();
    pair.respond(b, b"y");
    // The handler of the large request still runs, and holds one credit.
    let mut arrived = 0;
    for _ in 0..10 {
        for frame in pair.server_sends() {
            pair.at_client(&frame);
        }
        for frame in pair.client_sends() {
            if let Got::Request(handle, _) = pair.at_server(&frame) {
                pair.respond(handle, b"y");
                arrived += 1;
            }
        }
    }
    assert_eq!(arrived, 2, "c and d");
}

/// Only requests of several packets, and repeated ones, need memory for acknowledged and lost packets.
#[test]
fn a_request_of_one_packet_borrows_nothing_until_it_is_sent_again() {
    for fast_path in [false, true] {
        for (len, borrows) in [(0, false), (P as usize, false), (P as usize + 1, true)] {
            let mut pair = Pair::by(Shape::default(), fast_path);
            pair.call(&pattern(len, 1), 100, 1);
            let first = pair.client_sends();
            let session = pair.session;
            let has_parts = |pair: &mut Pair| {
                let client = pair.client.sessions.client_mut(session).unwrap();
                client.slots().iter().any(|slot| slot.parts().is_some())
            };
            assert_eq!(has_parts(&mut pair), borrows, "{len} bytes in {} frames", first.len());
            pair.wait_for_timeout();
            assert!(!pair.client_sends().is_empty());
            assert!(has_parts(&mut pair));
        }
    }
}

/// With fewer credits than concurrent calls, every call gets its turn.
#[test]
fn credits_go_round() {
    for (credits, calls) in [(1, 6), (2, 8), (3, 8)] {
        let mut pair = Pair::with(Shape { credits, ..Shape::default() });
        let mut ended = vec![0; calls];
        (0..calls).for_each(|tag| pair.call(b"x", 100, tag as u64));
        for _ in 0..1_000 {
            for frame in pair.client_sends() {
                let (handle, _) = pair.at_server(&frame).request();
                pair.respond(handle, b"y");
            }
            for frame in pair.server_sends() {
                let tag = pair.at_client(&frame).completed().tag;
                ended[tag as usize] += 1;
                pair.call(b"x", 100, tag);
            }
        }
        let fair = 1_000 * usize::from(credits) / calls;
        assert!(ended.iter().all(|&count| count > fair / 2), "{credits} credits: {ended:?}");
    }
}

/// A sink for one peer that accepts all frames.
struct WayTo {
    peer: PeerKey,
    frames: Vec<Vec<u8>>,
}

impl FrameSink for WayTo {
    fn send(&mut self, _: PeerKey, head: &[u8], body: &[u8]) -> bool {
        self.frames.push([head, body].concat());
        true
    }

    fn reaches(&mut self, peer: PeerKey) -> bool {
        self.peer == peer
    }
}

/// While a frame is handled, the sink reaches only its sender: calls and answers for other peers wait for the
/// next burst.
#[test]
fn what_goes_out_at_once_goes_to_its_own_peer_only() {
    for (peer, reaches) in [(PEER, true), (PeerKey(PEER.0 + 1), false)] {
        for has_deadline in [false, true] {
            let mut pair = Pair::new();
            let way = || WayTo { peer, frames: Vec::new() };
            let (request, response) = (buffer(b"ping"), HeapBuffer::new(100, 1));
            let call = PendingCall { method: 1, tag: 1, request, response };
            let (now, session, mut out) = (pair.now, pair.session, way());
            let limits =
                CallLimits { deadline_ns: Some(now + 1_000_000_000), ..CallLimits::default() };
            match has_deadline {
                true => pair.client.call_with_at_once(now, session, call, limits, &mut out),
                false => pair.client.call_at_once(now, session, call, &mut out),
            }
            .unwrap();
            let queued = pair.client_sends();
            assert_eq!(
                (out.frames.len(), queued.len()),
                match reaches {
                    true => (1, 0),
                    false => (0, 1),
                }
            );
            let sent = [out.frames, queued].concat();
            let (handle, _) = pair.at_server(&sent[0]).request();
            let mut back = way();
            pair.server.respond_at_once(handle, buffer(b"pong"), &mut back).unwrap();
            let queued = pair.server_sends();
            assert_eq!(
                (back.frames.len(), queued.len()),
                match reaches {
                    true => (1, 0),
                    false => (0, 1),
                }
            );
            let sent = [back.frames, queued].concat();
            pair.at_client(&sent[0]).completed().outcome.unwrap();
            pair.assert_credits_back();
        }
    }
}

/// The general path can do everything that the fast paths do. Only this test verifies the use of the fast
/// paths by common calls.
#[test]
fn calls_of_one_packet_take_the_short_ways() {
    for (has_deadline, credits) in [(false, 1), (false, 32), (true, 1), (true, 32)] {
        let mut pair = Pair::with(Shape { credits, ..Shape::default() });
        match has_deadline {
            true => pair.call_until(b"ping", 100, 1, pair.now + 1_000_000_000),
            false => pair.call(b"ping", 100, 1),
        }
        let now = pair.now;
        let mut frames = Vec::new();
        let mut sink = |_: PeerKey, head: &[u8], body: &[u8]| {
            frames.push([head, body].concat());
            true
        };
        let work = pair.client.shared.queue.pop().expect("a request to send");
        let Core { sessions, shared, .. } = &mut pair.client;
        let is_sent = fast::send_plain::<_, _, _, false>(sessions, shared, now, work, &mut sink);
        assert_eq!(is_sent, !has_deadline);
        if has_deadline {
            assert!(fast::is_timed(sessions, work));
            assert!(fast::send_queued_timed(sessions, shared, now, work, &mut sink));
        }
        let plain = pair.server.handle_plain_request(PEER, &frames[0]).map(|taken| taken.handle);
        assert_eq!(plain.is_some(), !has_deadline);
        let timed = pair.server.handle_timed_request(now, PEER, &frames[0]);
        let handle = plain.or(timed.map(|(taken, _)| taken.handle)).expect("a request");
        pair.respond(handle, b"pong");
        let mut answers = Vec::new();
        let mut sink = |_: PeerKey, head: &[u8], body: &[u8]| {
            answers.push([head, body].concat());
            true
        };
        let work = pair.server.shared.queue.pop().expect("an answer to send");
        let Core { sessions, shared, .. } = &mut pair.server;
        assert!(!fast::is_timed(sessions, work));
        assert!(fast::send_plain::<_, _, _, false>(sessions, shared, now, work, &mut sink));
        let ended = pair.client.handle_plain_response(now, PEER, &answers[0], || now);
        assert_eq!(ended.expect("a plain answer").response.message(), b"pong");
        pair.assert_credits_back();
    }
}
