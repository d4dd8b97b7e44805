//! A slot's timer fires when the current call needs it, whatever the slot waited for before.

use super::*;
use crate::limits::HEADER_BYTES;
use crate::recovery::rtt::RtoBounds;

/// Round trip of the answered calls, in nanoseconds.
const TRIP_NS: u64 = 10_000;

/// The latest time of a probe that is set now, including ticks of the wheel.
fn probe_ns_max() -> u64 {
    RtoBounds::default().probe_min_ns + (2 << 16)
}

/// Sends and answers a request of one packet.
fn exchange(pair: &mut Pair) {
    pair.call(b"x", 10, 1);
    let frames = pair.client_sends();
    answer(pair, &frames[0]);
}

/// Answers a request of one packet.
fn answer(pair: &mut Pair, frame: &[u8]) {
    pair.now += TRIP_NS;
    let (handle, _) = pair.at_server(frame).request();
    pair.respond(handle, b"y");
    let answers = pair.server_sends();
    pair.at_client(&answers[0]).completed().outcome.unwrap();
}

/// Advances the time until the client sends frames. Returns the frames and the passed time.
fn wait_until_sent(pair: &mut Pair) -> (Vec<Vec<u8>>, u64) {
    let began = pair.now;
    for _ in 0..10_000 {
        let next_ns = pair.client.next_timeout_ns().expect("a timer is set");
        pair.now = next_ns.max(pair.now + 1);
        pair.client.handle_timeouts(pair.now);
        let frames = pair.client_sends();
        if !frames.is_empty() {
            return (frames, pair.now - began);
        }
    }
    panic!("nothing is sent");
}

/// Loses a request of one packet. Returns its repetition and the time until then.
fn lose(pair: &mut Pair) -> (Vec<u8>, u64) {
    pair.call(b"x", 10, 1);
    let _lost = pair.client_sends();
    let (mut frames, after_ns) = wait_until_sent(pair);
    (frames.remove(0), after_ns)
}

fn pairs() -> [Pair; 2] {
    [true, false].map(|fast_path| Pair::by(Shape { slots: 1, ..Shape::default() }, fast_path))
}

/// The doubt of the server's life comes with a timeout of 50 ms, and again with each longer timeout (§8.6).
#[test]
fn a_silent_server_is_reported_by_the_slot_that_asks() {
    for mut pair in [true, false].map(|fast_path| Pair::by(Shape::default(), fast_path)) {
        exchange(&mut pair);
        (0..4).for_each(|_| pair.call(b"x", 10, 1));
        let _lost = pair.client_sends();
        let (began, mut reports) = (pair.now, Vec::new());
        while pair.now < began + 1_000_000_000 {
            wait_until_sent(&mut pair);
            let (now, session) = (pair.now, pair.session);
            while let Some(event) = pair.client.poll_event() {
                assert!(matches!(event, Event::ServerSilent(id) if id == session), "{event:?}");
                reports.push((now - began) / 1_000_000);
            }
        }
        // Timeouts of 1, 2, 4, 8 and 16 ms at least have passed in vain.
        assert!((30..100).contains(&reports[0]), "{reports:?}");
        assert!(reports.len() <= 6, "one slot asks for all: {reports:?}");
    }
}

/// With a probe time from the least timeout on, probes are disabled: the first check for loss is a timeout.
#[test]
fn probes_are_off_from_the_least_timeout_on() {
    let least_ns = RtoBounds::default().min_ns;
    for (probe_min_ns, looks) in
        [(least_ns - 1, (1, 0)), (least_ns, (0, 1)), (least_ns + 1, (0, 1))]
    {
        for fast_path in [true, false] {
            let rto = RtoBounds { probe_min_ns, ..RtoBounds::default() };
            let config = Config { rto, fast_path, ..Config::default() };
            let mut pair = Pair::with_config(Shape { slots: 1, ..Shape::default() }, config);
            exchange(&mut pair);
            let (_, after_ns) = lose(&mut pair);
            let counters = pair.client.counters();
            assert_eq!((counters.probes, counters.timeouts), looks, "{probe_min_ns}");
            assert!(after_ns >= least_ns - 1, "{after_ns}");
        }
    }
}

#[test]
fn a_probe_does_not_wait_for_the_timeout_of_before_the_first_round_trip() {
    for mut pair in pairs() {
        exchange(&mut pair);
        let (_, after_ns) = lose(&mut pair);
        assert!(after_ns <= probe_ns_max(), "{after_ns}");
        assert_eq!(pair.client.counters().probes, 1);
    }
}

#[test]
fn a_probe_does_not_wait_for_the_timeout_of_a_former_call() {
    for mut pair in pairs() {
        // The session knows its path, and its former timers have come due.
        exchange(&mut pair);
        pair.now += 20_000_000;
        pair.client.handle_timeouts(pair.now);
        for _ in 0..5 {
            // After the probe the slot waits for a timeout, which the answer makes unnecessary.
            let (again, after_ns) = lose(&mut pair);
            assert!(after_ns <= probe_ns_max(), "{after_ns}");
            answer(&mut pair, &again);
            // A probed packet is not measured, and the next packet gets more time until a measurement.
            exchange(&mut pair);
        }
        let counters = pair.client.counters();
        assert_eq!((counters.probes, counters.timeouts), (5, 0));
    }
}

#[test]
fn a_probe_does_not_wait_for_the_timeout_of_a_slower_path() {
    for mut pair in pairs() {
        exchange(&mut pair);
        pair.call(b"x", 10, 1);
        let frames = pair.client_sends();
        // The server halts for a while, and the next timer is set for this delay.
        pair.now += 8_000_000;
        answer(&mut pair, &frames[0]);
        pair.now += 20_000_000;
        pair.client.handle_timeouts(pair.now);
        for _ in 0..100 {
            exchange(&mut pair);
        }
        let (_, after_ns) = lose(&mut pair);
        assert!(after_ns <= probe_ns_max(), "{after_ns}");
    }
}

#[test]
fn a_request_of_many_packets_is_probed_again_after_a_probe() {
    for mut pair in pairs() {
        exchange(&mut pair);
        pair.call(&pattern(40 * P as usize, 1), 10, 2);
        let _lost = pair.client_sends();
        let mut silences = 0;
        loop {
            let (frames, after_ns) = wait_until_sent(&mut pair);
            assert!(after_ns < RtoBounds::default().min_ns, "{after_ns}");
            silences += 1;
            pair.now += TRIP_NS;
            frames.iter().for_each(|frame| pair.at_server(frame).nothing());
            let credits = pair.server_sends();
            pair.at_client(&credits[0]).nothing();
            // The packets sent on this evidence are lost again.
            let _lost = pair.client_sends();
            if silences == 3 {
                break;
            }
        }
        assert_eq!(pair.client.counters().timeouts, 0);
    }
}

#[test]
fn a_slower_path_is_measured_although_each_call_is_looked_for() {
    // Below the timeout, beyond it, and beyond its double, with which the call after a timeout begins.
    for trip_ns in [700_000, 1_900_000, 2_500_000, 5_000_000, 30_000_000] {
        for mut pair in pairs() {
            exchange(&mut pair);
            for _ in 0..20 {
                pair.call(b"x", 10, 1);
                let sent = pair.client_sends();
                let arrival_ns = pair.now + trip_ns;
                while let Some(due_ns) = pair.client.next_timeout_ns()
                    && due_ns < arrival_ns
                {
                    pair.now = due_ns;
                    pair.client.handle_timeouts(due_ns);
                    let _late = pair.client_sends();
                }
                pair.now = arrival_ns - TRIP_NS;
                answer(&mut pair, &sent[0]);
            }
            let counters = pair.client.counters();
            let looks = counters.probes + counters.timeouts;
            assert!(looks <= 10, "{looks} for calls that take {trip_ns} ns");
            assert!(pair.client.srtt_ns(pair.session).unwrap() > trip_ns / 2);
        }
    }
}

/// Several calls in flight in a session with a known round trip, and their frames.
fn in_flight(fast_path: bool) -> (Pair, Vec<Vec<u8>>) {
    let mut pair = Pair::by(Shape { slots: 8, ..Shape::default() }, fast_path);
    exchange(&mut pair);
    (0..8).for_each(|tag| pair.call(b"x", 10, tag));
    let frames = pair.client_sends();
    assert_eq!(frames.len(), 8);
    (pair, frames)
}

/// Returns the number of a frame's request.
fn number(frame: &[u8]) -> &[u8] {
    &frame[HEADER_BYTES - 6..HEADER_BYTES]
}

/// A pause of the server, or of the whole machine.
#[test]
fn question_of_another__is_awaited_by_all_slots_but_one_while_the_server_pauses() {
    for fast_path in [true, false] {
        let (mut pair, frames) = in_flight(fast_path);
        let (began, mut again) = (pair.now, Vec::new());
        while pair.now < began + 2_500_000 {
            again.extend(wait_until_sent(&mut pair).0);
        }
        assert!((2..=6).contains(&again.len()), "{} questions", again.len());
        for frame in &frames {
            answer(&mut pair, frame);
        }
        let counters = pair.client.counters();
        assert_eq!((counters.calls_succeeded, counters.calls_timed_out), (9, 0));
        assert_eq!(counters.probes + counters.timeouts, again.len() as u64);
    }
}

/// The answers to all packets that came have come with the answer to the question.
#[test]
fn ask_after_silence__asks_for_all_slots_that_have_waited() {
    for fast_path in [true, false] {
        let (mut pair, frames) = in_flight(fast_path);
        let (question, after_ns) = wait_until_sent(&mut pair);
        assert!(question.len() == 1 && after_ns <= probe_ns_max(), "{after_ns}");
        assert_ne!(number(&question[0]), number(&frames[0]));
        answer(&mut pair, &frames[0]);
        // Without the asker, which waits for the answer to its repetition.
        let (lost, after_ns) = wait_until_sent(&mut pair);
        assert!(lost.len() == 6 && after_ns <= probe_ns_max(), "{} {after_ns}", lost.len());
        for frame in question.iter().chain(&lost) {
            answer(&mut pair, frame);
        }
        let counters = pair.client.counters();
        assert_eq!((counters.calls_succeeded, counters.timeouts), (9, 0));
    }
}

/// An asker whose call ends without an answer leaves the question to another slot.
#[test]
fn question_of_another__ends_with_the_asking_call() {
    let (mut pair, frames) = in_flight(true);
    let (question, _) = wait_until_sent(&mut pair);
    let asker = frames.iter().position(|frame| number(frame) == number(&question[0]));
    let asker = asker.expect("the repetition of a call in flight");
    pair.client.cancel(pair.session, |tag| *tag == asker as u64);
    let (next, after_ns) = wait_until_sent(&mut pair);
    assert!(!next.is_empty() && after_ns <= probe_ns_max(), "{after_ns}");
}

/// A slot that has waited, and has come forward since, misses nothing.
#[test]
fn ask_after_silence__asks_for_no_slot_that_has_sent_since() {
    for fast_path in [true, false] {
        let mut pair = Pair::by(Shape { slots: 8, ..Shape::default() }, fast_path);
        exchange(&mut pair);
        (0..2).for_each(|tag| pair.call(&pattern(60 * P as usize, tag), 10, tag));
        let frames = pair.client_sends();
        let (question, _) = wait_until_sent(&mut pair);
        pair.now += TRIP_NS;
        for frame in frames.iter().chain(&question) {
            pair.at_server(frame).nothing();
        }
        for credit in pair.server_sends() {
            pair.at_client(&credit).nothing();
        }
        let further = pair.client_sends();
        assert!(further.iter().any(|frame| number(frame) != number(&question[0])));
        let probes = pair.client.counters().probes;
        pair.client.handle_timeouts(pair.now);
        assert_eq!((pair.client.counters().probes, probes), (1, 1));
    }
}

/// The way back takes ten times as long as the probe's pause, and a request shows nothing of it: each wait for a packet of the
/// response looks like a loss. Two responses in turn.
#[test]
fn a_response_over_a_slower_way__is_not_repeated_again_and_again() {
    const PACKETS: usize = 30;
    const BACK_NS: u64 = 1_000_000;
    const STEP_NS: u64 = 5_000;
    for fast_path in [true, false] {
        let shape = Shape { slots: 1, credits: 2, ..Shape::default() };
        let mut pair = Pair::by(shape, fast_path);
        exchange(&mut pair);
        for round in 1..3 {
            let message = pattern(PACKETS * P as usize, round);
            pair.call(b"x", message.len(), round);
            let mut back: Vec<(u64, Vec<u8>)> = Vec::new();
            let mut ended = None;
            while ended.is_none() {
                for frame in pair.client_sends() {
                    if let Got::Request(handle, _) = pair.at_server(&frame) {
                        pair.respond(handle, &message);
                    }
                }
                let sent = pair.server_sends();
                back.extend(sent.into_iter().map(|frame| (pair.now + BACK_NS, frame)));
                pair.now += STEP_NS;
                pair.client.handle_timeouts(pair.now);
                while back.first().is_some_and(|(at_ns, _)| *at_ns <= pair.now) {
                    if let Got::Completed(end) = pair.at_client(&back.remove(0).1) {
                        ended = Some(end);
                    }
                }
            }
            assert_eq!(ended.unwrap().tag, round);
        }
        let (client, server) = (pair.client.counters(), pair.server.counters());
        assert!(server.packets_retransmitted < 10, "{}", server.packets_retransmitted);
        assert!(client.probes + client.timeouts < 10, "{} {}", client.probes, client.timeouts);
    }
}
