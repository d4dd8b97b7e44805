//! Cancelled calls, and calls that take too long.

use std::time::Duration;

use petrel::endpoint::CallOptions;
use petrel::{Execution, Status};

use crate::interop::pair::{both, both_with};
use crate::interop::service::{ECHO, KEEP, WORK};

#[test]
fn cancel__of_a_call_that_is_never_answered_reaches_its_handler() {
    for mut pair in both() {
        let begun = pair.begin(KEEP, b"");
        pair.wait_until(|seen| seen.kept == 1);
        assert!(!begun.has_ended());
        assert!(pair.client.context().cancel(begun.key));
        let failure = pair.failure_of(&begun);
        let why = (failure.status, failure.execution);
        assert_eq!(why, (Status::Cancelled, Execution::MayHaveExecuted));
        pair.wait_until(|seen| seen.gone == 1);
        // The server's later answer is dropped.
        pair.release();
        assert_eq!(pair.call(ECHO, b"goes on", 7)[..], *b"goes on");
    }
}

#[test]
fn cancel__before_anything_was_sent() {
    for mut pair in both() {
        let begun = pair.begin(KEEP, b"");
        assert!(pair.client.context().cancel(begun.key));
        let failure = pair.failure_of(&begun);
        let why = (failure.status, failure.execution);
        assert_eq!(why, (Status::Cancelled, Execution::NotSent));
        assert_eq!(pair.call(ECHO, b"", 0).len(), 0);
        assert_eq!(pair.seen().kept, 0);
    }
}

#[test]
fn cancel__by_dropping_a_future() {
    for mut pair in both() {
        let call = pair.client.session(pair.session).call(KEEP, b"").started();
        pair.wait_until(|seen| seen.kept == 1);
        drop(call);
        pair.wait_until(|seen| seen.gone == 1);
    }
}

/// The session has one slot: the next call reuses the slot of the cancelled call.
#[test]
fn cancel__while_the_handler_runs_and_its_slot_is_used_again() {
    for mut pair in both_with(|config| config.sessions.slots = 1) {
        for round in 1..=3 {
            let begun = pair.begin(WORK, b"");
            pair.wait_until(|seen| seen.begun == round);
            assert!(pair.client.context().cancel(begun.key));
            assert_eq!(pair.failure_of(&begun).status, Status::Cancelled);
            pair.wait_until(|seen| seen.cancelled == round);
            let message = round.to_le_bytes();
            assert_eq!(pair.call(ECHO, &message, 8)[..], message);
        }
    }
}

#[test]
fn deadline__of_a_call_to_a_server_that_sleeps() {
    for mut pair in both() {
        // On a busy machine a short timeout may pass before the handler has begun.
        let times = (0..).map(|round| Duration::from_millis(50 << round));
        for time in times {
            let failure = pair.fails(WORK, b"", CallOptions::new().timeout(time));
            assert_eq!(failure.status, Status::DeadlineExceeded, "{failure}");
            if failure.execution == Execution::MayHaveExecuted && pair.seen().begun > 0 {
                break;
            }
        }
        pair.wait_until(|seen| seen.cancelled == seen.begun);
        assert_eq!(pair.call(ECHO, b"goes on", 7)[..], *b"goes on");
    }
}
