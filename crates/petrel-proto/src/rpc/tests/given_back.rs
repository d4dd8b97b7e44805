//! After a call's end nothing of it is sent. Its buffers belong to the application again, even if packets
//! waited in the queue or for the session's pace (eRPC §4.2.2, appendices B and C).

use super::congestion::{congest, timely};
use super::*;

#[test]
fn the_answer_comes_before_what_seemed_lost_is_sent_again() {
    let mut pair = Pair::new();
    pair.call(b"first", 10, 1);
    let request = pair.client_sends();
    let (handle, _) = pair.at_server(&request[0]).request();
    pair.respond(handle, b"y");
    let answer = pair.server_sends();
    // A false alarm: the request is queued for repetition when its answer arrives.
    pair.wait_for_timeout();
    assert!(pair.client.has_transmit());
    let mut completion = pair.at_client(&answer[0]).completed();
    completion.outcome.unwrap();
    completion.request.storage_mut().fill(0xDB);
    assert_eq!(pair.client.counters().ended_before_repeat, 1);
    assert_eq!(words(&pair.client_sends()), [""; 0]);
    pair.assert_credits_back();
}

#[test]
fn the_next_call_gets_the_place_in_the_queue() {
    let mut pair = Pair::with(Shape { slots: 1, ..Shape::default() });
    pair.call(b"first", 10, 1);
    pair.call(b"other", 10, 2);
    let request = pair.client_sends();
    let (handle, _) = pair.at_server(&request[0]).request();
    pair.respond(handle, b"y");
    let answer = pair.server_sends();
    pair.wait_for_timeout();
    pair.at_client(&answer[0]).completed().outcome.unwrap();
    let frames = pair.client_sends();
    assert_eq!(words(&frames), ["REQUEST s0 r833 m1 5 B"]);
    assert_eq!(pair.at_server(&frames[0]).request().1, b"other");
    assert_eq!(pair.client.counters().ended_before_repeat, 1);
}

#[test]
fn a_session_ends_while_calls_wait_to_be_sent_again() {
    let mut pair = Pair::new();
    pair.call(&pattern((5 * P) as usize, 1), 10, 1);
    pair.client_sends();
    pair.wait_for_timeout();
    pair.client.close(pair.session, Status::Unavailable, "the peer is gone").unwrap();
    assert_eq!(pair.event().outcome.unwrap_err().execution, Execution::MayHaveExecuted);
    assert_eq!(pair.client.counters().ended_before_repeat, 1);
    assert_eq!(pair.client.counters().failed_while_paced, 0, "no pace held it back");
    assert_eq!(words(&pair.client_sends()), [""; 0]);
}

#[test]
fn a_session_ends_while_its_pace_holds_calls_back() {
    let mut pair = timely();
    congest(&mut pair, 2_000_000);
    (0..3).for_each(|tag| pair.call(&pattern((5 * P) as usize, tag), 10, tag));
    pair.client_sends();
    pair.client.close(pair.session, Status::Unavailable, "the peer is gone").unwrap();
    (0..3).for_each(|_| assert!(pair.event().outcome.is_err()));
    assert_eq!(pair.client.counters().failed_while_paced, 3);
    // The wheel still has an entry for the session, which no longer exists.
    pair.now += 1_000_000_000;
    pair.client.release_paced(pair.now);
    assert_eq!(words(&pair.client_sends()), [""; 0]);
}

#[test]
fn a_call_given_up_while_its_pace_holds_it_back_waits_for_it_no_more() {
    let mut pair = timely();
    congest(&mut pair, 2_000_000);
    (0..3).for_each(|tag| pair.call(&pattern((5 * P) as usize, tag), 10, tag));
    pair.client_sends();
    let held =
        |pair: &mut Pair| pair.client.sessions.client_mut(pair.session).unwrap().held_back_count();
    assert_eq!(held(&mut pair), 3);
    for left in (0..3).rev() {
        let ended = pair.client.cancel(pair.session, |tag| *tag == left as u64).unwrap();
        assert_eq!((ended.tag, held(&mut pair)), (left as u64, left));
    }
    // Their slots serve the next calls, held back by the pace like the first ones.
    (3..5).for_each(|tag| pair.call(&pattern((5 * P) as usize, tag), 10, tag));
    pair.client_sends();
    assert_eq!((held(&mut pair), pair.client.counters().failed_while_paced), (2, 3));
}
