use super::*;
use crate::session::Role;

#[test]
fn a_request_runs_once_whatever_is_repeated() {
    let mut pair = Pair::new();
    pair.call(b"x", 10, 1);
    let request = pair.client_sends().remove(0);
    let (handle, _) = pair.at_server(&request).request();
    pair.at_server(&request).nothing();
    pair.respond(handle, b"y");
    pair.at_server(&request).nothing();
    let answer = pair.server_sends();
    assert_eq!(answer.len(), 1, "what is about to be sent is not repeated");
    pair.at_server(&request).nothing();
    assert!(pair.server_sends().is_empty(), "a copy that the network made asks for nothing");
    pair.at_server(&repeated(&request)).nothing();
    assert_eq!(words(&pair.server_sends()), ["RESPONSE s0 r832 1 B again"]);
    pair.at_client(&answer[0]).completed();
    pair.call(b"2", 10, 2);
    let next = pair.client_sends().remove(0);
    pair.at_server(&next).request();
    pair.at_server(&request).nothing();
    assert_eq!(pair.server.counters().requests_received, 2);
}

/// An answer given later is marked, because its round trip is no measurement. The slot's next answer, given
/// at once, is not marked, whenever it is sent.
#[test]
fn an_answer_given_at_once_says_nothing_of_the_one_before_it() {
    let mut pair = Pair::with(Shape { slots: 1, ..Shape::default() });
    let aux = |frame: &Vec<u8>| u16::from_le_bytes([frame[8], frame[9]]);
    pair.call(b"1", 10, 1);
    let handle = pair.arrives();
    pair.server.respond(handle, Status::Ok, buffer(b"later")).unwrap();
    let answer = pair.server_sends().remove(0);
    assert_eq!(aux(&answer), crate::wire::ANSWERED_LATER);
    pair.at_client(&answer).completed().outcome.unwrap();
    pair.call(b"2", 10, 2);
    let second = pair.client_sends().remove(0);
    let (handle, _) = pair.at_server(&second).request();
    let mut answers = Vec::new();
    let mut sink = |_: PeerKey, head: &[u8], body: &[u8]| {
        answers.push([head, body].concat());
        true
    };
    pair.server.respond_at_once(handle, buffer(b"at once"), &mut sink).unwrap();
    pair.at_server(&repeated(&second)).nothing();
    answers.extend(pair.server_sends());
    assert_eq!(words(&answers), ["RESPONSE s0 r833 7 B", "RESPONSE s0 r833 7 B again"]);
    assert_eq!((aux(&answers[0]), aux(&answers[1])), (0, 0));
}

/// The addresses for prefetching are those of the request's memory, and null without any.
#[test]
fn addresses_of_an_upcoming_request_are_those_of_session_slot_and_answer() {
    let mut pair = Pair::new();
    pair.call(b"x", 10, 1);
    let frame = pair.client_sends().remove(0);
    let upcoming = UpcomingFrame::of(&frame);
    assert!(!pair.server.looks_ahead(), "one session is no reason to");
    let (handle, _) = pair.at_server(&frame).request();
    let place = pair.server_session.index as usize;
    let expected = |pair: &Pair| {
        let entry = pair.server.sessions.at(place as u32).expect("the session");
        let Role::Server(server) = entry.role() else { panic!("a server's session") };
        let slot = &server.slots()[server.slot_index(FIRST)];
        let message = slot.message().map_or(std::ptr::null(), Buffer::address);
        let is_answered = slot.message().is_some();
        (std::ptr::from_ref(entry).cast(), std::ptr::from_ref(slot).cast(), message, is_answered)
    };
    for has_answer in [false, true] {
        let (entry, slot, message, is_answered) = expected(&pair);
        assert_eq!(is_answered, has_answer);
        assert_eq!(pair.server.session_address(upcoming), entry);
        assert_eq!(pair.server.slot_address(upcoming), slot);
        let lines = [message, message.wrapping_add(64)];
        assert_eq!(pair.server.answer_addresses(upcoming), lines);
        if !has_answer {
            pair.respond(handle, b"y");
        }
    }
    // For another session, a client session, and a frame that is not valid.
    let mut foreign = frame.clone();
    foreign[3] = 0xFF;
    let foreign = UpcomingFrame::of(&foreign);
    assert!(pair.server.session_address(foreign).is_null());
    assert!(pair.server.slot_address(foreign).is_null());
    assert!(pair.server.answer_addresses(foreign)[0].is_null());
    assert!(pair.client.slot_address(upcoming).is_null());
    assert!(pair.client.answer_addresses(upcoming)[0].is_null());
    assert_eq!(pair.server.session_address(UpcomingFrame::of(b"short")), expected(&pair).0);
}

/// The addresses for a call that will follow are those of the session's entry and of the slot that the call takes.
#[test]
fn addresses_of_an_announced_call_are_those_of_session_and_slot() {
    let mut pair = Pair::new();
    let session = pair.session;
    let expected = |pair: &Pair| {
        let entry = pair.client.sessions.at(session.index).expect("the session");
        let Role::Client(client) = entry.role() else { panic!("a client's session") };
        let free = client.slots().iter().find(|slot| slot.is_free()).expect("a free slot");
        (std::ptr::from_ref(entry).cast::<u8>(), std::ptr::from_ref(free).cast::<u8>())
    };
    for tag in 0..3 {
        let (entry, slot) = expected(&pair);
        let lines = [entry, entry.wrapping_add(64), entry.wrapping_add(128)];
        assert_eq!(pair.client.call_session_addresses(session), lines);
        assert_eq!(pair.client.call_slot_addresses(session), [slot, slot.wrapping_add(64)]);
        pair.call(b"x", 10, tag);
        assert_ne!(pair.client.call_slot_addresses(session)[0], slot, "the call took the slot");
    }
    // For no session, a server's session, and a session without a free slot.
    let foreign = SessionId { index: 77, generation: 0 };
    assert!(pair.client.call_session_addresses(foreign)[0].is_null());
    assert!(pair.client.call_slot_addresses(foreign)[0].is_null());
    assert!(pair.server.call_slot_addresses(pair.server_session)[0].is_null());
    (3..8).for_each(|tag| pair.call(b"x", 10, tag));
    assert!(pair.client.call_slot_addresses(session)[0].is_null());
}

#[test]
fn a_replayed_request_of_long_ago_is_stale() {
    let mut pair = Pair::with(Shape { slots: 1, ..Shape::default() });
    let mut old = Vec::new();
    for round in 0..20u8 {
        pair.call(&[round], 10, u64::from(round));
        old.push(pair.client_sends().remove(0));
        let (handle, _) = pair.at_server(&old[round as usize]).request();
        pair.respond(handle, b"");
        let answer = pair.server_sends().remove(0);
        pair.at_client(&answer).completed();
    }
    for request in &old[..19] {
        pair.at_server(request).nothing();
    }
    assert_eq!(pair.server.counters().dropped_stale, 19);
    assert_eq!(pair.server.counters().requests_received, 20);
    assert!(pair.server_sends().is_empty(), "the stale are not answered");
}

#[test]
fn a_request_too_far_ahead_is_not_taken() {
    let mut pair = Pair::new();
    pair.call(b"x", 10, 1);
    let mut request = pair.client_sends().remove(0);
    // 65 537 rounds of 8 slots further on.
    let number = FIRST + 8 * 65_537 - 8;
    request[10..16].copy_from_slice(&(number + 8).to_le_bytes()[..6]);
    pair.at_server(&request).nothing();
    assert_eq!(pair.server.counters().dropped_future, 1);
    request[10..16].copy_from_slice(&(number - 8).to_le_bytes()[..6]);
    pair.at_server(&request).request();
}

/// On both paths, and for requests of one packet and of several.
#[test]
fn a_request_as_far_ahead_as_may_be_is_taken_and_none_beyond() {
    for fast_path in [false, true] {
        for len in [1, 2 * P as usize] {
            let mut pair = Pair::by(Shape::default(), fast_path);
            pair.call(&pattern(len, 1), 10, 1);
            let mut request = pair.client_sends().remove(0);
            // The slot's number is one stride below the first request's.
            let most = FIRST - 8 + 8 * crate::limits::FUTURE_ROUNDS_MAX;
            for (number, dropped) in [(most + 8, 1), (most, 0)] {
                request[10..16].copy_from_slice(&number.to_le_bytes()[..6]);
                let before = pair.server.counters().dropped_future;
                let got = pair.at_server(&request);
                assert_eq!(pair.server.counters().dropped_future - before, dropped);
                assert_eq!(matches!(got, Got::Request(..)), dropped == 0 && len == 1);
            }
        }
    }
}

/// A slot that the server has not allocated holds no request to repeat.
#[test]
fn a_stale_request_of_any_slot_is_dropped() {
    for fast_path in [false, true] {
        let shape = Shape { slots: 64, ..Shape::default() };
        let mut pair = Pair::by(shape, fast_path);
        pair.call(b"x", 10, 1);
        let mut request = pair.client_sends().remove(0);
        let first = FIRST.next_multiple_of(64);
        for number in first - 64..first {
            request[10..16].copy_from_slice(&number.to_le_bytes()[..6]);
            pair.at_server(&request).nothing();
        }
        let counters = pair.server.counters();
        // A new slot's initial number counts as an ended request.
        assert_eq!(counters.dropped_stale + counters.dropped_duplicate, 64);
        assert_eq!(counters.requests_received, 0);
    }
}

/// At the largest allowed sizes, and a byte beyond.
#[test]
fn a_request_of_one_packet_is_as_large_as_a_packet_and_as_was_agreed() {
    for fast_path in [false, true] {
        for (request_bytes_max, len, refused, malformed) in [
            (1_000, 999, 0, 0),
            (1_000, 1_000, 0, 0),
            (1_000, 1_001, 1, 0),
            (8 << 20, P as usize, 0, 0),
            (8 << 20, P as usize + 1, 0, 1),
        ] {
            let shape = Shape { request_bytes_max, ..Shape::default() };
            let mut pair = Pair::by(shape, fast_path);
            pair.call(b"", 10, 1);
            let mut request = pair.client_sends().remove(0);
            request.resize(16 + len, 7);
            let got = pair.at_server(&request);
            match got {
                Got::Request(_, bytes) => assert_eq!((bytes.len(), refused + malformed), (len, 0)),
                _ => assert_eq!(refused + malformed, 1, "{len} of {request_bytes_max}"),
            }
            let counters = pair.server.counters();
            assert_eq!(counters.refused_too_large, refused);
            assert_eq!(counters.dropped_malformed, malformed);
            let answers = words(&pair.server_sends());
            assert_eq!(answers.len() as u64, refused, "{answers:?}");
        }
    }
}

/// Any copy of the request may have met congestion.
#[test]
fn a_mark_on_a_repeated_request_that_runs_comes_back() {
    for is_marked in [false, true] {
        let mut pair = Pair::new();
        pair.call(b"x", 10, 1);
        let request = pair.client_sends().remove(0);
        let (handle, _) = pair.at_server(&request).request();
        match is_marked {
            true => pair.marked_at_server(&request).nothing(),
            false => pair.at_server(&request).nothing(),
        }
        pair.respond(handle, b"y");
        let answers = words(&pair.server_sends());
        assert_eq!(answers.iter().any(|answer| answer.contains("congestion")), is_marked);
    }
}

/// The former answer's buffer is reused for the next answer, unless large: then its memory is worth more than
/// the saved time.
#[test]
fn a_request_comes_with_the_buffer_of_the_answer_before_it() {
    for (room, is_given) in [(1, true), (P as usize, true), (P as usize + 1, false)] {
        let mut pair = Pair::by(Shape { slots: 1, ..Shape::default() }, false);
        pair.call(b"x", 10, 1);
        let request = pair.client_sends().remove(0);
        let (handle, _) = pair.at_server(&request).request();
        let mut answer = HeapBuffer::new(room, 1);
        answer.set_message(b"y");
        pair.server.respond_at_once(handle, answer, &mut nowhere()).unwrap();
        let answer = pair.server_sends().remove(0);
        pair.at_client(&answer).completed();
        pair.call(b"x", 10, 1);
        let request = pair.client_sends().remove(0);
        let received = pair.server.handle_frame(pair.now, PEER, &request, &mut POOL.clone());
        let Received::Request { spare, .. } = received else { panic!("{received:?}") };
        assert_eq!(spare.map(|spare| spare.capacity()), is_given.then_some(room));
    }
}

/// A slot's memory for arriving packets is freed when the request is complete or has expired.
#[test]
fn a_request_that_is_whole_or_too_late_holds_no_memory_for_its_packets() {
    let of_slot = |pair: &Pair| {
        let entry = pair.server.sessions.at(0).expect("the session");
        let Role::Server(server) = entry.role() else { panic!("a server") };
        server.slots()[server.slot_index(FIRST)].boxes()
    };
    let mut pair = Pair::new();
    pair.call(&pattern(2 * P as usize, 1), 10, 1);
    let frames = pair.client_sends();
    pair.at_server(&frames[0]).nothing();
    assert_eq!(of_slot(&pair), (true, true));
    pair.at_server(&frames[1]).request();
    assert_eq!(of_slot(&pair), (false, false));

    let mut pair = Pair::new();
    pair.call_until(&pattern(3 * P as usize, 1), 10, 1, pair.now + 1_000_000);
    let frames = pair.client_sends();
    pair.at_server(&frames[0]).nothing();
    assert_eq!(of_slot(&pair), (true, true));
    pair.now += 1_000_000;
    // Out of order, because the fast path does not check the time.
    pair.at_server(&frames[2]).nothing();
    assert_eq!(pair.server.counters().requests_expired, 1);
    assert_eq!(of_slot(&pair), (true, false), "the text of the refusal is left");
}

#[test]
fn packets_in_any_order_and_twice_make_one_request() {
    let mut pair = Pair::new();
    let message = pattern(5 * P as usize + 3, 9);
    pair.call(&message, 10, 1);
    let frames = pair.client_sends();
    assert_eq!(frames.len(), 6);
    for index in [5, 2, 2, 0, 4, 5, 3, 0] {
        pair.at_server(&frames[index]).nothing();
    }
    let (handle, request) = pair.at_server(&frames[1]).request();
    assert!(request == message);
    pair.at_server(&frames[1]).nothing();
    pair.respond(handle, b"once");
    let answers = pair.server_sends();
    assert_eq!(words(&answers), ["RESPONSE s0 r832 4 B"], "no CREDIT beside the answer");
    pair.at_client(&answers[0]).completed().outcome.unwrap();
    pair.assert_credits_back();
}

#[test]
fn the_answer_to_a_request_given_up_is_discarded() {
    let mut pair = Pair::with(Shape { slots: 1, ..Shape::default() });
    pair.call(b"1", 10, 1);
    let old = pair.arrives();
    for _ in 0..=Config::default().retries_max {
        pair.wait_for_timeout();
        pair.client_sends();
    }
    pair.event().outcome.unwrap_err();
    pair.call(b"2", 10, 2);
    let new = pair.arrives();
    let rejected = pair.server.respond(old, Status::Ok, buffer(b"late")).unwrap_err();
    assert_eq!(rejected.error, RespondError::Gone);
    assert_eq!(rejected.message.message(), b"late");
    pair.respond(new, b"2!");
    let answer = pair.server_sends().remove(0);
    assert_eq!(pair.at_client(&answer).completed().response.message(), b"2!");
}

#[test]
fn an_error_carries_status_and_text_cut_to_a_packet() {
    let mut pair = Pair::new();
    pair.call(b"x", 10, 1);
    let handle = pair.arrives();
    let long = "€".repeat(2000);
    pair.server.respond(handle, Status::NotFound, buffer(long.as_bytes())).unwrap();
    let answer = pair.server_sends().remove(0);
    assert_eq!(answer.len(), 16 + P as usize);
    let completion = pair.at_client(&answer).completed();
    let failure = completion.outcome.unwrap_err();
    assert_eq!((failure.status, failure.execution), (Status::NotFound, Execution::Answered));
    assert!(failure.message.starts_with("€€€"));
    assert_eq!(completion.response.len(), 0);
}

#[test]
fn errors_of_the_core_need_no_buffer_and_are_repeated_too() {
    let mut pair = Pair::new();
    pair.call(b"x", 10, 1);
    let request = pair.client_sends().remove(0);
    let (handle, _) = pair.at_server(&request).request();
    pair.server.respond_error(handle, Status::Unimplemented, "no such method");
    assert_eq!(pair.server_sends().len(), 1);
    pair.at_server(&repeated(&request)).nothing();
    let again = pair.server_sends();
    assert_eq!(words(&again), ["RESPONSE s0 r832 status 12 14 B again"]);
    let failure = pair.at_client(&again[0]).completed().outcome.unwrap_err();
    assert_eq!(failure.message, "no such method");
}

#[test]
fn no_memory_for_a_request_is_told_and_the_session_goes_on() {
    let mut pair = Pair::new();
    pair.call(&pattern(3 * P as usize, 0), 10, 1);
    let frames = pair.client_sends();
    let mut none = HeapPool { len_max: 100 };
    got(pair.server.handle_frame(pair.now, PEER, &frames[0], &mut none)).nothing();
    pair.at_server(&frames[1]).nothing();
    let answers = pair.server_sends();
    let failure = pair.at_client(&answers[0]).completed().outcome.unwrap_err();
    assert_eq!(failure.status, Status::ResourceExhausted);
    assert_eq!(pair.server.counters().refused_no_memory, 1);
    pair.assert_credits_back();
    pair.call(b"small", 10, 2);
    run(&mut pair, |request| request.to_vec()).outcome.unwrap();
}

#[test]
fn a_client_that_breaks_the_size_limit_gets_an_error() {
    let mut pair = Pair::with(Shape { request_bytes_max: 2000, ..Shape::default() });
    pair.call(b"1234", 10_000, 1);
    let mut request = pair.client_sends().remove(0);
    // The same header with another size, and the payload for this size.
    request[16..20].copy_from_slice(&2001u32.to_le_bytes());
    request.resize(24 + P as usize, 7);
    pair.at_server(&request).nothing();
    assert_eq!(pair.server.counters().refused_too_large, 1);
    assert_eq!(words(&pair.server_sends()), ["RESPONSE s0 r832 status 8 refused 35 B"]);
}

#[test]
fn parts_that_contradict_each_other_are_dropped() {
    let mut pair = Pair::new();
    pair.call(&pattern(3 * P as usize, 0), 10, 1);
    let frames = pair.client_sends();
    pair.at_server(&frames[0]).nothing();
    let mut size = frames[1].clone();
    size[16] ^= 1;
    pair.at_server(&size).nothing();
    let mut packet = frames[2].clone();
    packet[20] = 200;
    pair.at_server(&packet).nothing();
    pair.at_server(&frames[2][..1000]).nothing();
    let mut grant = frames[2].clone();
    grant[23] = 0;
    pair.at_server(&grant).nothing();
    assert_eq!(pair.server.counters().dropped_malformed, 4);
    pair.at_server(&frames[1]).nothing();
    pair.at_server(&frames[2]).request();
}

#[test]
fn a_response_beyond_the_grant_is_pulled_by_credits() {
    let mut pair = Pair::with(Shape { credits: 4, ..Shape::default() });
    let response = pattern(20 * P as usize, 3);
    pair.call(b"give", response.len(), 1);
    let completion = run(&mut pair, |_| response.clone());
    assert!(completion.response.message() == response);
    pair.assert_credits_back();
}

#[test]
fn a_response_over_the_clients_limit_can_still_be_answered_with_an_error() {
    let mut pair = Pair::new();
    pair.call(b"x", 10, 1);
    let handle = pair.arrives();
    let rejected =
        pair.server.respond(handle, Status::Ok, buffer(&vec![0; (8 << 20) + 1])).unwrap_err();
    assert!(matches!(rejected.error, RespondError::TooLarge { max: 8_388_608, .. }));
    pair.server.respond_error(handle, Status::ResourceExhausted, "too large");
    assert_eq!(pair.server_sends().len(), 1);
}

#[test]
fn the_short_way_takes_packets_in_the_middle_of_a_burst_that_come_in_order() {
    let mut pair = Pair::new();
    let message: Vec<u8> = (0..8 * P).map(|i| (i / 3) as u8).collect();
    pair.call(&message, 10, 1);
    let frames = pair.client_sends();
    assert_eq!(frames.len(), 8);
    let takes = |pair: &mut Pair, index: usize| pair.server.handle_next_part(PEER, &frames[index]);
    assert!(!takes(&mut pair, 0), "the first has to get a buffer");
    pair.at_server(&frames[0]).nothing();
    assert!(takes(&mut pair, 1));
    assert!(!takes(&mut pair, 1), "it came before");
    assert!(!takes(&mut pair, 3), "it is not the next");
    pair.at_server(&frames[3]).nothing();
    assert!(!takes(&mut pair, 2), "another is there behind it");
    pair.at_server(&frames[2]).nothing();
    assert_eq!(words(&pair.server_sends()), ["CREDIT s0 r832 up to 4, echo 2"]);
    assert!(!takes(&mut pair, 4), "the slot has to be queued for its CREDIT");
    pair.at_server(&frames[4]).nothing();
    assert!(!pair.server.handle_next_part(PeerKey(8), &frames[5]), "from somebody else");
    assert!(!pair.server.handle_next_part(PEER, &frames[5][..100]), "cut short");
    assert!(takes(&mut pair, 5) && takes(&mut pair, 6));
    assert!(!takes(&mut pair, 7), "the last runs the request");
    let (_, request) = pair.at_server(&frames[7]).request();
    assert!(request == message);
    assert_eq!(pair.server.counters().frames_accepted, 8);
}

/// The fast path accepts exactly the expected packet, to every significant bit.
#[test]
fn the_short_way_takes_no_packet_that_differs_in_a_field() {
    let mut pair = Pair::new();
    let message = pattern(6 * P as usize, 2);
    pair.call(&message, 10, 1);
    let frames = pair.client_sends();
    pair.at_server(&frames[0]).nothing();
    let expected = frames[1].clone();
    // Kind, flags, session, token, request number, size, packet and grant. Only the method is not checked.
    for at in (0..24).filter(|at| ![8, 9].contains(at)) {
        for bit in 0..8 {
            let mut other = expected.clone();
            other[at] ^= 1 << bit;
            let before = *pair.server.counters();
            assert!(!pair.server.handle_next_part(PEER, &other), "bit {bit} of byte {at}");
            assert!(pair.server.counters().iter().eq(before.iter()));
        }
    }
    for len in [0, 23, 24, expected.len() - 1] {
        assert!(!pair.server.handle_next_part(PEER, &expected[..len]), "{len} bytes");
    }
    assert!(!pair.server.handle_next_part(PEER, &[&expected[..], &[0]].concat()), "a byte more");
    assert!(!pair.client.handle_next_part(PEER, &expected), "a client takes no requests");
    for frame in &frames[1..5] {
        assert!(pair.server.handle_next_part(PEER, frame));
    }
    assert_eq!(pair.at_server(&frames[5]).request().1, message);
}

/// Accepted control frames stay unchanged to the end of the burst, for any number of refused frames behind
/// them.
#[test]
fn refused_control_frames_do_not_come_round_to_those_that_were_taken() {
    let mut pair = Pair::with(Shape { slots: 64, credits: 1_000, ..Shape::default() });
    for tag in 0..64 {
        pair.call(&pattern(3 * P as usize, tag), 10, tag);
    }
    for frame in pair.client_sends() {
        if words(std::slice::from_ref(&frame))[0].contains(" p0 of") {
            pair.at_server(&frame).nothing();
        }
    }
    let mut kept: Vec<(*const u8, Vec<u8>)> = Vec::new();
    let mut offered = 0;
    let sent = pair.server.transmit(pair.now, &mut |_: PeerKey, head: &[u8], _: &[u8]| {
        for (place, bytes) in &kept {
            assert!(*place != head.as_ptr(), "{bytes:?} would be written over");
        }
        offered += 1;
        let takes = offered <= 2;
        takes.then(|| kept.push((head.as_ptr(), head.to_vec())));
        takes
    });
    assert_eq!((sent, kept.len()), (2, 2));
    assert!(offered > crate::limits::TRANSMIT_FRAMES_MAX, "all of the others were refused");
}

panics! {
    respond_error__with_status_ok: "an error has another status than OK" => {
        let mut core: Core<HeapBuffer> = Core::new(0, Config::default());
        let session = SessionId { index: 0, generation: 0 };
        core.respond_error(RequestHandle { session, number: 0 }, Status::Ok, "fine");
    };
}
