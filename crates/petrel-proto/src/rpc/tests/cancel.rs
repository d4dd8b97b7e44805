//! Requests given up by their client: CANCEL at both ends, in every state (`docs/wire-protocol.md` §5.4,
//! §6.2).

use super::*;
use crate::limits::FUTURE_ROUNDS_MAX;

const MS: u64 = 1_000_000;

impl Pair {
    fn cancel(&mut self, tag: u64) -> Completion<HeapBuffer> {
        let ended = self.client.cancel(self.session, |other| *other == tag);
        let ended = ended.expect("the call has not ended");
        assert_eq!(ended.tag, tag);
        assert_eq!(ended.outcome.as_ref().unwrap_err().status, Status::Cancelled);
        ended
    }

    fn watched(&mut self) -> Option<RequestHandle> {
        match self.server.poll_event() {
            None => None,
            Some(Event::Cancelled(handle)) => Some(handle),
            Some(other) => panic!("{other:?}"),
        }
    }

    /// Makes a call that runs at the server and is watched there.
    fn watched_call(&mut self, tag: u64) -> RequestHandle {
        self.call(b"runs", 10, tag);
        let frame = self.client_sends().remove(0);
        let (handle, _) = self.at_server(&frame).request();
        assert!(self.server.watch(handle) && self.server.is_awaited(handle));
        handle
    }
}

fn execution(ended: &Completion<HeapBuffer>) -> Execution {
    ended.outcome.as_ref().unwrap_err().execution
}

fn pairs() -> [Pair; 2] {
    [true, false].map(|fast_path| Pair::by(Shape { slots: 1, ..Shape::default() }, fast_path))
}

#[test]
fn a_malformed_cancel_does_nothing() {
    for mut pair in pairs() {
        let handle = pair.watched_call(1);
        let _ = pair.cancel(1);
        let cancel = pair.client_sends().remove(0);
        pair.at_server(&[&cancel[..], &[0]].concat()).nothing();
        assert_eq!(pair.server.counters().dropped_malformed, 1);
        assert!(pair.server.is_awaited(handle) && pair.watched().is_none());
    }
}

/// A watched request causes no notice about the slot's next request.
#[test]
fn a_watched_request_leaves_nothing_to_the_next_in_its_slot() {
    for mut pair in pairs() {
        let handle = pair.watched_call(1);
        pair.respond(handle, b"y");
        let answer = pair.server_sends().remove(0);
        pair.at_client(&answer).completed().outcome.unwrap();
        pair.call(b"next", 10, 2);
        let next = pair.client_sends().remove(0);
        pair.at_server(&next).request();
        let _ = pair.cancel(2);
        let cancel = pair.client_sends().remove(0);
        pair.at_server(&cancel).nothing();
        assert_eq!(pair.watched(), None);
    }
}

#[test]
fn a_running_request_is_cancelled_and_its_handler_told_once() {
    for mut pair in pairs() {
        let handle = pair.watched_call(1);
        assert_eq!(execution(&pair.cancel(1)), Execution::MayHaveExecuted);
        pair.assert_credits_back();
        let frames = pair.client_sends();
        assert_eq!(words(&frames), ["CANCEL s0 r832"]);
        assert_eq!(frames[0].len(), 16);
        pair.at_server(&frames[0]).nothing();
        assert_eq!(pair.watched(), Some(handle));
        assert!(!pair.server.is_awaited(handle) && !pair.server.watch(handle));
        let rejected = pair.server.respond(handle, Status::Ok, buffer(b"late")).unwrap_err();
        assert_eq!(rejected.error, RespondError::Gone);
        // The network duplicated the CANCEL; the copy has no effect.
        pair.at_server(&frames[0]).nothing();
        assert_eq!((pair.watched(), pair.server_sends().len()), (None, 0));
        let counters = pair.server.counters();
        assert_eq!((counters.cancels_received, counters.cancels_too_late), (1, 1));
        // The next call uses the slot at once.
        pair.call(b"next", 10, 2);
        run(&mut pair, |request| request.to_vec()).outcome.unwrap();
    }
}

#[test]
fn a_call_that_was_not_sent_is_cancelled_without_a_word() {
    for mut pair in pairs() {
        pair.call(b"in the slot", 10, 1);
        pair.call(b"in the queue", 10, 2);
        pair.call(b"behind it", 10, 3);
        assert_eq!(execution(&pair.cancel(2)), Execution::NotSent);
        assert_eq!(execution(&pair.cancel(1)), Execution::NotSent);
        assert!(pair.client.cancel(pair.session, |tag| *tag < 3).is_none());
        assert_eq!(words(&pair.client_sends()), ["REQUEST s0 r832 m1 9 B"], "the third alone");
        assert_eq!(pair.client.counters().calls_cancelled, 2);
        assert_eq!(pair.client.counters().cancels_sent, 0);
    }
}

#[test]
fn a_request_that_was_cancelled_before_it_came_never_runs() {
    for mut pair in pairs() {
        pair.call(b"delayed", 10, 1);
        let request = pair.client_sends().remove(0);
        pair.cancel(1);
        let cancel = pair.client_sends().remove(0);
        pair.at_server(&cancel).nothing();
        pair.at_server(&request).nothing();
        pair.at_server(&request).nothing();
        assert!(pair.server_sends().is_empty(), "nobody waits for an answer");
        assert_eq!(pair.server.counters().requests_received, 0);
        pair.call(b"next", 10, 2);
        run(&mut pair, |request| request.to_vec()).outcome.unwrap();
    }
}

#[test]
fn packets_of_a_request_that_was_cancelled_before_they_came_are_duplicates() {
    let mut pair = Pair::new();
    pair.call(&pattern(3 * P as usize, 1), 10, 1);
    let frames = pair.client_sends();
    pair.cancel(1);
    let cancel = pair.client_sends().remove(0);
    pair.at_server(&cancel).nothing();
    frames.iter().for_each(|frame| pair.at_server(frame).nothing());
    let counters = pair.server.counters();
    assert_eq!((counters.dropped_duplicate, counters.dropped_malformed), (3, 0));
    assert!(pair.server_sends().is_empty());
}

#[test]
fn a_cancel_behind_the_next_request_is_stale() {
    for mut pair in pairs() {
        pair.call(b"first", 10, 1);
        let _lost = pair.client_sends();
        pair.cancel(1);
        let cancel = pair.client_sends().remove(0);
        pair.call(b"second", 10, 2);
        let handle = pair.arrives();
        pair.at_server(&cancel).nothing();
        assert_eq!(pair.server.counters().dropped_stale, 1);
        assert!(pair.server.is_awaited(handle));
    }
}

#[test]
fn an_arriving_request_is_freed() {
    let mut pair = Pair::new();
    pair.call(&pattern(3 * P as usize, 1), 10, 1);
    let frames = pair.client_sends();
    pair.at_server(&frames[0]).nothing();
    pair.at_server(&frames[1]).nothing();
    let _credits = pair.server_sends();
    pair.cancel(1);
    pair.assert_credits_back();
    let cancel = pair.client_sends().remove(0);
    pair.at_server(&cancel).nothing();
    // The last packet arrives late: the request has ended, and the server sends nothing.
    pair.at_server(&frames[2]).nothing();
    assert!(pair.server_sends().is_empty());
    assert_eq!(pair.server.counters().requests_received, 0);
}

#[test]
fn what_was_answered_stays_so() {
    let mut pair = Pair::new();
    pair.call(b"x", 10, 1);
    let handle = pair.arrives();
    pair.respond(handle, b"y");
    let answers = pair.server_sends();
    pair.cancel(1);
    let cancel = pair.client_sends().remove(0);
    pair.at_server(&cancel).nothing();
    assert_eq!(pair.server.counters().cancels_too_late, 1);
    // No call waits for the answer.
    pair.at_client(&answers[0]).nothing();
    assert_eq!(pair.client.counters().dropped_stale, 1);
}

#[test]
fn a_cancel_too_far_ahead_is_dropped() {
    let mut pair = Pair::new();
    pair.call(b"x", 10, 1);
    let _lost = pair.client_sends();
    pair.cancel(1);
    let mut cancel = pair.client_sends().remove(0);
    let far = FIRST + 8 * FUTURE_ROUNDS_MAX;
    cancel[10..16].copy_from_slice(&far.to_le_bytes()[..6]);
    pair.at_server(&cancel).nothing();
    assert_eq!(pair.server.counters().dropped_future, 1);
    // The same for a slot without any request so far.
    cancel[10..16].copy_from_slice(&(FIRST - 8).to_le_bytes()[..6]);
    pair.at_server(&cancel).nothing();
    assert_eq!(pair.server.counters().dropped_stale, 1);
}

#[test]
fn a_lost_cancel_is_made_up_for_by_the_next_request() {
    for mut pair in pairs() {
        let handle = pair.watched_call(1);
        pair.cancel(1);
        let _lost = pair.client_sends();
        pair.call(b"next", 10, 2);
        let next = pair.arrives();
        assert_eq!((pair.watched(), pair.watched()), (Some(handle), None));
        // Without a watch there is no notice, but a query works.
        pair.cancel(2);
        let _lost = pair.client_sends();
        pair.call(&pattern(2 * P as usize, 1), 10, 3);
        pair.client_sends().iter().for_each(|frame| drop(pair.at_server(frame)));
        assert!(!pair.server.is_awaited(next));
        assert_eq!(pair.watched(), None);
    }
}

#[test]
fn watched_requests_end_with_their_session() {
    let mut pair = Pair::new();
    let first = pair.watched_call(1);
    let second = pair.watched_call(2);
    pair.call(b"not watched", 10, 3);
    let frame = pair.client_sends().remove(0);
    drop(pair.at_server(&frame));
    pair.server.respond(second, Status::Ok, buffer(b"")).unwrap();
    pair.server.close(pair.server_session, Status::Unavailable, "gone").unwrap();
    assert_eq!((pair.watched(), pair.watched()), (Some(first), None));
}

#[test]
fn a_watched_request_that_is_answered_is_not_told_of() {
    for mut pair in pairs() {
        let handle = pair.watched_call(1);
        pair.respond(handle, b"pong");
        let answer = pair.server_sends().remove(0);
        pair.at_client(&answer).completed().outcome.unwrap();
        pair.call(b"next", 10, 2);
        run(&mut pair, |request| request.to_vec()).outcome.unwrap();
        assert_eq!(pair.watched(), None);
    }
}

#[test]
fn a_refused_cancel_waits_for_the_medium() {
    let mut pair = Pair::new();
    for tag in 1..=3 {
        pair.call(b"x", 10, tag);
    }
    let _lost = pair.client_sends();
    (1..=3).for_each(|tag| drop(pair.cancel(tag)));
    assert!(refuse_behind(&mut pair.client, pair.now, 0).is_empty());
    let mut frames = refuse_behind(&mut pair.client, pair.now, 1);
    frames.extend(pair.client_sends());
    assert_eq!(words(&frames), ["CANCEL s0 r832", "CANCEL s0 r833", "CANCEL s0 r834"]);
}

#[test]
fn of_a_session_that_has_ended_nothing_is_told() {
    let mut pair = Pair::new();
    pair.call(b"x", 10, 1);
    let _lost = pair.client_sends();
    pair.cancel(1);
    pair.client.close(pair.session, Status::Unavailable, "gone").unwrap();
    assert!(pair.client_sends().is_empty());
    assert_eq!(pair.client.counters().cancels_sent, 0);
}

#[test]
fn a_cancelled_calls_end_can_come_by_an_event() {
    let mut pair = Pair::new();
    pair.call(b"x", 10, 1);
    assert!(pair.client.cancel_by_event(pair.session, |tag| *tag == 1));
    assert_eq!(pair.event().outcome.unwrap_err().status, Status::Cancelled);
    assert!(!pair.client.cancel_by_event(pair.session, |_| true));
}

#[test]
fn a_session_ends_before_its_server_would_not_follow() {
    let mut pair = Pair::with(Shape { slots: 1, ..Shape::default() });
    let mut last = Vec::new();
    for round in 0..FUTURE_ROUNDS_MAX {
        assert!(!pair.client.has_events(), "round {round}");
        pair.call(b"x", 10, round);
        last = pair.client_sends();
        pair.cancel(round);
        let _lost = pair.client_sends();
    }
    // The server still accepts the last request.
    pair.at_server(&last[0]).request();
    let Some(Event::SessionExhausted(id)) = pair.client.poll_event() else { panic!("it goes on") };
    assert_eq!(id, pair.session);
    pair.call(b"x", 10, 0);
    assert!(pair.client_sends().is_empty(), "the slot is not used any more");
}

#[test]
fn a_server_that_is_heard_of_late_is_followed() {
    let mut pair = Pair::with(Shape { slots: 1, ..Shape::default() });
    for round in 0..FUTURE_ROUNDS_MAX + 10 {
        pair.call(b"x", 10, round);
        let sent = pair.client_sends();
        pair.cancel(round);
        let _lost = pair.client_sends();
        if round % 60_000 == 59_999 {
            let (handle, _) = pair.at_server(&sent[0]).request();
            pair.respond(handle, b"too late");
            let late = pair.server_sends().remove(0);
            pair.at_client(&late).nothing();
        }
    }
    assert!(!pair.client.has_events());
}

#[test]
fn a_call_that_expires_is_cancelled_at_the_server() {
    let mut pair = Pair::new();
    pair.call_until(b"x", 10, 1, pair.now + MS);
    let frame = pair.client_sends().remove(0);
    let (handle, _) = pair.at_server(&frame).request();
    assert!(pair.server.watch(handle));
    pair.now += 2 * MS;
    pair.client.handle_timeouts(pair.now);
    assert_eq!(pair.event().outcome.unwrap_err().status, Status::DeadlineExceeded);
    for frame in pair.client_sends() {
        pair.at_server(&frame).nothing();
    }
    assert_eq!(pair.watched(), Some(handle));
}

#[test]
fn a_refusal_says_that_the_handler_was_not_called() {
    for mut pair in pairs() {
        pair.call(b"x", 10, 1);
        let request = pair.client_sends().remove(0);
        let (handle, _) = pair.at_server(&request).request();
        pair.server.refuse(handle, Status::ResourceExhausted, "the queue is full");
        let answers = pair.server_sends();
        assert_eq!(words(&answers), ["RESPONSE s0 r832 status 8 refused 17 B"]);
        let ended = pair.at_client(&answers[0]).completed();
        assert_eq!(execution(&ended), Execution::Refused);
        // The slot's next error comes from a handler.
        pair.call(b"x", 10, 2);
        let handle = pair.arrives();
        pair.server.respond(handle, Status::NotFound, buffer(b"no")).unwrap();
        let answers = pair.server_sends();
        assert_eq!(execution(&pair.at_client(&answers[0]).completed()), Execution::Answered);
    }
}
