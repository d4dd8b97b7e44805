//! Congestion control in the course of calls.

use super::*;
use crate::congestion::{
    CongestionConfig, CongestionControl, CongestionCounters, DcqcnConfig, Rate, SwiftConfig,
    TimelyConfig,
};

const GBIT: u64 = 25;

fn pair_with(congestion: CongestionConfig) -> Pair {
    let congestion = CongestionControl::new(congestion).unwrap();
    Pair::with_config(Shape::default(), Config { congestion, ..Config::default() })
}

pub(super) fn timely() -> Pair {
    pair_with(CongestionConfig::Timely(TimelyConfig::for_line(Rate::gbit(GBIT))))
}

/// Makes calls, answered after `rtt_ns`, until the session is limited.
pub(super) fn congest(pair: &mut Pair, rtt_ns: u64) {
    // Measures the length of the path first.
    call_and_answer(pair, 10_000, 0);
    for round in 0..20 {
        call_and_answer(pair, rtt_ns, round);
        if pair.client.congestion_counters().sessions_limited > 0 {
            return;
        }
    }
    panic!("long round trips limit nobody");
}

fn call_and_answer(pair: &mut Pair, rtt_ns: u64, tag: u64) {
    pair.call(b"x", 100, tag);
    let frames = sends_in_time(pair);
    pair.now += rtt_ns;
    let (handle, _) = pair.at_server(&frames[0]).request();
    pair.respond(handle, b"y");
    let frames = pair.server_sends();
    assert_eq!(pair.at_client(&frames[0]).completed().tag, tag);
}

/// Returns the client's frames as soon as its pace allows them.
fn sends_in_time(pair: &mut Pair) -> Vec<Vec<u8>> {
    for _ in 0..100_000 {
        let frames = pair.client_sends();
        if !frames.is_empty() {
            return frames;
        }
        pair.now += 1_000;
        pair.client.release_paced(pair.now);
    }
    panic!("it is never its time");
}

#[test]
fn short_round_trips_are_not_even_heard() {
    let mut pair = timely();
    for tag in 0..100 {
        call_and_answer(&mut pair, 10_000, tag);
    }
    assert_eq!(pair.client.congestion_counters().updates, 0);
}

#[test]
fn long_round_trips_pace_a_session_and_short_ones_release_it() {
    let mut pair = timely();
    congest(&mut pair, 2_000_000);
    for tag in 100..10_000 {
        call_and_answer(&mut pair, 5_000, tag);
        if pair.client.congestion_counters().sessions_released > 0 {
            return;
        }
    }
    panic!("short round trips release nobody");
}

#[test]
fn what_has_to_wait_for_its_pace_is_sent_then_and_credits_come_back() {
    let mut pair = timely();
    congest(&mut pair, 2_000_000);
    // Far more than a pace of some packets per round trip allows at once.
    let request = pattern(60 * P as usize, 7);
    pair.call(&request, 100, 1_000);
    let mut frames = pair.client_sends();
    assert!(frames.len() < 32, "{} packets at once", frames.len());
    let mut taken = None;
    for _ in 0..100_000 {
        frames.extend(pair.client_sends());
        for frame in std::mem::take(&mut frames) {
            if let Got::Request(handle, message) = pair.at_server(&frame) {
                taken = Some((handle, message));
            }
        }
        for frame in pair.server_sends() {
            pair.at_client(&frame);
        }
        pair.now += 1_000;
        pair.client.release_paced(pair.now);
        if taken.is_some() {
            break;
        }
    }
    let (handle, message) = taken.expect("the request arrives");
    assert_eq!(message, request);
    pair.respond(handle, b"ok");
    let frames = pair.server_sends();
    assert_eq!(pair.at_client(&frames[0]).completed().tag, 1_000);
    pair.assert_credits_back();
}

/// A limited session allows few packets of a response at a time, and grants none with the request.
#[test]
fn a_paced_session_pulls_few_packets_at_a_time() {
    let mut pair = timely();
    congest(&mut pair, 2_000_000);
    let room = 8 * P as usize;
    pair.call(b"x", room, 99);
    let request = sends_in_time(&mut pair).remove(0);
    assert!(
        words(std::slice::from_ref(&request))[0].starts_with("REQUEST s0 "),
        "it grants one packet"
    );
    let (handle, _) = pair.at_server(&request).request();
    pair.respond(handle, &pattern(room, 1));
    let mut bursts = Vec::new();
    loop {
        let answers = pair.server_sends();
        bursts.push(answers.len());
        let ended = answers.iter().any(|frame| matches!(pair.at_client(frame), Got::Completed(_)));
        if ended {
            break;
        }
        sends_in_time(&mut pair).iter().for_each(|pull| pair.at_server(pull).nothing());
    }
    assert_eq!(bursts.iter().sum::<usize>(), 8, "{bursts:?}");
    assert!(bursts.iter().all(|burst| *burst <= 2), "{bursts:?}");
}

#[test]
fn timeouts_release_what_waits_for_its_pace_as_well() {
    let mut pair = timely();
    congest(&mut pair, 2_000_000);
    pair.call(&pattern(60 * P as usize, 7), 100, 1);
    while !drain(&mut pair.client, pair.now).is_empty() {}
    for _ in 0..100_000 {
        pair.now += 1_000;
        pair.client.handle_timeouts(pair.now);
        if !drain(&mut pair.client, pair.now).is_empty() {
            return;
        }
    }
    panic!("it is never its time");
}

#[test]
fn a_mark_on_a_request_comes_back_with_the_answer() {
    let mut pair = pair_with(CongestionConfig::Dcqcn(DcqcnConfig::for_line(Rate::gbit(GBIT))));
    pair.call(b"x", 100, 1);
    let frames = pair.client_sends();
    let (handle, _) = pair.marked_at_server(&frames[0]).request();
    pair.respond(handle, b"y");
    let frames = pair.server_sends();
    assert_eq!(words(&frames), ["RESPONSE s0 r832 1 B congestion"]);
    pair.at_client(&frames[0]).completed();
    assert_eq!(pair.client.congestion_counters().marks, 1);
    // The mark is echoed once.
    pair.call(b"x", 100, 2);
    let frames = pair.client_sends();
    let (handle, _) = pair.at_server(&frames[0]).request();
    pair.respond(handle, b"y");
    assert_eq!(words(&pair.server_sends()), ["RESPONSE s0 r840 1 B"]);
}

#[test]
fn a_mark_on_an_answer_counts_too() {
    let mut pair = pair_with(CongestionConfig::Dcqcn(DcqcnConfig::for_line(Rate::gbit(GBIT))));
    pair.call(b"x", 100, 1);
    let frames = pair.client_sends();
    let (handle, _) = pair.at_server(&frames[0]).request();
    pair.respond(handle, b"y");
    let frames = pair.server_sends();
    pair.marked_at_client(&frames[0]).completed();
    assert_eq!(pair.client.congestion_counters().marks, 1);
}

/// A mark on any packet of an answer counts, also in a session without any limit so far.
#[test]
fn a_mark_on_any_packet_of_an_answer_counts() {
    for marked in 0..4 {
        let mut pair = pair_with(CongestionConfig::Dcqcn(DcqcnConfig::for_line(Rate::gbit(GBIT))));
        pair.call(b"x", 4 * P as usize, 1);
        let frames = pair.client_sends();
        let (handle, _) = pair.at_server(&frames[0]).request();
        pair.respond(handle, &pattern(4 * P as usize, 1));
        let frames = pair.server_sends();
        assert_eq!(frames.len(), 4);
        for (at, frame) in frames.iter().enumerate() {
            let got = match at == marked {
                true => pair.marked_at_client(frame),
                false => pair.at_client(frame),
            };
            assert_eq!(matches!(got, Got::Completed(_)), at == 3);
            let is_heard = pair.client.congestion_counters().marks > 0;
            assert_eq!(is_heard, at >= marked, "packet {at}, and {marked} is marked");
        }
    }
}

#[test]
fn an_answer_that_took_its_time_says_nothing_of_the_network() {
    let mut pair = timely();
    for tag in 0..50 {
        pair.call(b"x", 100, tag);
        let frames = pair.client_sends();
        let (handle, _) = pair.at_server(&frames[0]).request();
        pair.now += 900_000;
        pair.server.respond(handle, Status::Ok, buffer(b"y")).unwrap();
        let frames = pair.server_sends();
        pair.at_client(&frames[0]).completed();
    }
    assert_eq!(pair.client.congestion_counters().updates, 0);
}

/// Returns a session with a window of one packet, paced or nearly so.
fn with_a_window_of_one() -> Pair {
    let mut pair = pair_with(CongestionConfig::Swift(SwiftConfig::new()));
    let mut counters = CongestionCounters::default();
    let client = pair.client.sessions.client_mut(pair.session).unwrap();
    for at in 0..100 {
        client.congestion_mut().on_loss(pair.now + at, 5, &mut counters);
        if client.congestion().window_packets() == 1 {
            return pair;
        }
    }
    panic!("losses do not close the window");
}

/// A handler that waits for another call on the same session must not prevent its transmission.
#[test]
fn a_call_whose_handler_runs_is_not_on_the_way() {
    let mut pair = with_a_window_of_one();
    pair.call(b"poll", 100, 1);
    pair.call(b"post", 100, 2);
    let mut arrived = Vec::new();
    for _ in 0..10_000 {
        pair.now += 100_000;
        pair.client.release_paced(pair.now);
        pair.client.handle_timeouts(pair.now);
        for frame in pair.client_sends() {
            if let Got::Request(_, message) = pair.at_server(&frame) {
                arrived.push(message);
            }
        }
        for frame in pair.server_sends() {
            pair.at_client(&frame);
        }
    }
    assert_eq!(arrived, [b"poll", b"post"]);
}

/// Losses are compared with acknowledgements. If the fast paths reported only one acknowledgement per burst,
/// a few losses among many small calls would seem a large share.
#[test]
fn while_losses_are_counted_every_answer_of_a_burst_is_heard() {
    for fast_path in [true, false] {
        let mut pair = Pair::by(Shape::default(), fast_path);
        pair.call(&pattern(5 * P as usize, 1), 10, 0);
        (1..8).for_each(|tag| pair.call(b"x", 10, tag));
        let sent = pair.client_sends();
        pair.now += 10_000;
        for frame in &sent[1..] {
            if let Got::Request(handle, request) = pair.at_server(frame) {
                pair.respond(handle, &request);
            }
        }
        let answers = pair.server_sends();
        assert_eq!(words(&answers[..1]), ["CREDIT s0 r832 up to 0, echo 4"]);
        pair.at_client(&answers[0]).nothing();
        assert_eq!(pair.client.congestion_counters().losses, 1);
        let before = pair.client.congestion_counters().updates;
        for (tag, answer) in (1..).zip(&answers[1..]) {
            assert_eq!(pair.at_client(answer).completed().tag, tag);
        }
        let heard = pair.client.congestion_counters().updates - before;
        assert_eq!((answers.len(), heard), (8, 7), "short ways: {fast_path}");
    }
}
