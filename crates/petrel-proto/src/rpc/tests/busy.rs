//! Busy servers behind a medium that loses no frame: silence is no reason to repeat a packet
//! (`docs/wire-protocol.md` §7.2).

use std::collections::VecDeque;

use super::*;
use crate::limits::{HEADER_BYTES, QUESTIONS_MAX};

/// A round trip by which the session knows its path.
fn exchange(pair: &mut Pair) {
    pair.call(b"x", 10, 1);
    let frames = pair.client_sends();
    pair.now += 1_000;
    let (handle, _) = pair.at_server(&frames[0]).request();
    pair.respond(handle, b"y");
    let answers = pair.server_sends();
    pair.at_client(&answers[0]).completed().outcome.unwrap();
}

/// Lets the client look for loss until `end_ns`. Returns the frames that it sends meanwhile.
fn look_until(pair: &mut Pair, end_ns: u64) -> Vec<Vec<u8>> {
    let mut sent = Vec::new();
    while let Some(due_ns) = pair.client.next_timeout_ns()
        && due_ns < end_ns
    {
        pair.now = due_ns;
        pair.client.handle_timeouts(due_ns);
        sent.extend(pair.client_sends());
    }
    pair.now = end_ns;
    sent
}

/// The handler keeps the server's only thread, so that the questions are read after the answer.
#[test]
fn a_handler_of_half_a_millisecond__causes_no_repetition() {
    for (fast_path, len) in
        [(true, 4), (false, 4), (true, 20 * P as usize), (false, 20 * P as usize)]
    {
        let mut pair = Pair::on_one_host(fast_path);
        exchange(&mut pair);
        let mut questions = 0;
        for round in 0..100 {
            pair.call(&pattern(len, round), 10, round);
            let sent = pair.client_sends();
            let end_ns = pair.now + 500_000;
            let asked = look_until(&mut pair, end_ns);
            questions += asked.len();
            let (last, parts) = sent.split_last().unwrap();
            parts.iter().for_each(|part| pair.at_server(part).nothing());
            let (handle, _) = pair.at_server(last).request();
            pair.respond(handle, b"done");
            let answers = pair.server_sends();
            assert_eq!(answers.len(), 1);
            pair.at_client(&answers[0]).completed().outcome.unwrap();
            asked.iter().for_each(|question| pair.at_server(question).nothing());
            assert!(pair.server_sends().is_empty(), "no answer is sent again");
        }
        let (client, server) = (pair.client.counters(), pair.server.counters());
        assert_eq!((client.packets_retransmitted, server.packets_retransmitted), (0, 0));
        assert!(questions < 30, "{questions} questions of 100 calls");
        pair.assert_credits_back();
    }
}

#[test]
fn a_handler_that_answers_later__is_asked_about() {
    for fast_path in [true, false] {
        let mut pair = Pair::on_one_host(fast_path);
        exchange(&mut pair);
        pair.call(b"slow", 10, 1);
        let request = pair.client_sends();
        let (handle, _) = pair.at_server(&request[0]).request();
        for _ in 0..10 {
            pair.wait_for_probe();
            let question = pair.client_sends();
            assert_eq!(words(&question), ["PULL s0 r840 up to 0, limit 1, again below 0 again"]);
            pair.at_server(&question[0]).nothing();
            let credit = pair.server_sends();
            assert_eq!(words(&credit), ["CREDIT s0 r840 up to 1, echo 0, waits"]);
            pair.at_client(&credit[0]).nothing();
            assert!(pair.client_sends().is_empty());
        }
        pair.respond(handle, b"done");
        let answers = pair.server_sends();
        pair.at_client(&answers[0]).completed().outcome.unwrap();
        pair.assert_credits_back();
    }
}

/// A server without memory drops packets. The questions end, and the packets are repeated.
#[test]
fn a_request_that_the_server_has_dropped__is_repeated_after_the_questions() {
    for len in [4, 3 * P as usize] {
        let mut pair = Pair::on_one_host(true);
        exchange(&mut pair);
        pair.call(&pattern(len, 1), 10, 1);
        let sent = pair.client_sends();
        for _ in 0..=QUESTIONS_MAX {
            pair.wait_for_probe();
            let question = pair.client_sends();
            assert_eq!(words(&question), ["PULL s0 r840 up to 0, limit 1, again below 0 again"]);
            pair.at_server(&question[0]).nothing();
            assert!(pair.server_sends().is_empty(), "the server does not know the request");
        }
        pair.wait_for_probe();
        let again = pair.client_sends();
        assert_eq!((again.len(), sent.len() > 1), (1, len > 4));
        assert_eq!(&again[0][HEADER_BYTES..], &sent[0][HEADER_BYTES..]);
        assert_eq!(pair.client.counters().packets_retransmitted, 1);
    }
}

/// Only the first packets can be dropped: later ones have a buffer.
#[test]
fn a_packet_that_the_server_has_dropped__is_repeated_at_the_first_answer() {
    let mut pair = Pair::on_one_host(true);
    exchange(&mut pair);
    pair.call(&pattern(2 * P as usize, 1), 10, 1);
    let sent = pair.client_sends();
    pair.at_server(&sent[1]).nothing();
    let credit = pair.server_sends();
    pair.at_client(&credit[0]).nothing();
    assert!(pair.client_sends().is_empty());
    pair.wait_for_probe();
    let question = pair.client_sends();
    pair.at_server(&question[0]).nothing();
    let credit = pair.server_sends();
    pair.at_client(&credit[0]).nothing();
    let again = pair.client_sends();
    assert_eq!(words(&again), ["REQUEST_PART s0 r840 m1 p0 of 2400 B, 1200 B, grant 1 again"]);
    pair.at_server(&again[0]).request();
}

/// A ring with room for one frame gives a packet per turn of the server.
#[test]
fn a_response_whose_packets_come_slowly__teaches_the_client_to_wait() {
    for turn_ns in [300_000, 2_000_000] {
        let mut pair = Pair::on_one_host(true);
        exchange(&mut pair);
        let response = pattern(100 * P as usize, 3);
        pair.call(b"large", response.len(), 1);
        let request = pair.client_sends();
        let (handle, _) = pair.at_server(&request[0]).request();
        pair.respond(handle, &response);
        let (mut ring, mut questions) = (VecDeque::from(pair.server_sends()), 0);
        let completion = loop {
            let end_ns = pair.now + turn_ns;
            for question in look_until(&mut pair, end_ns) {
                pair.at_server(&question).nothing();
                questions += 1;
            }
            let packet =
                ring.pop_front().expect("the server sends all packets that were asked for");
            match pair.at_client(&packet) {
                Got::Completed(completion) => break completion,
                got => got.nothing(),
            }
            for pull in pair.client_sends() {
                pair.at_server(&pull).nothing();
            }
            ring.extend(pair.server_sends());
        };
        completion.outcome.unwrap();
        assert!(questions < 15, "{questions} questions about 100 packets");
        assert_eq!(pair.server.counters().packets_retransmitted, 0);
        pair.assert_credits_back();
    }
}
