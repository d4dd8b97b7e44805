//! Status codes and their messages.

use petrel::endpoint::CallOptions;
use petrel::{Error, Execution, Status};

use crate::interop::pair::{Pair, both};
use crate::interop::service::{ECHO, FAIL, NOBODY};

/// The message of gRPC's case `special_status_message`.
const SPECIAL: &str = "\t\ntest with whitespace\r\nand Unicode BMP ☺ and non-BMP 😈\t\n";

fn fail_with(pair: &mut Pair, status: Status, message: &str) -> Error {
    let request = [&[status.code()], message.as_bytes()].concat();
    pair.fails(FAIL, &request, CallOptions::new())
}

#[test]
fn status__comes_with_its_message() {
    for mut pair in both() {
        for status in Status::ALL.into_iter().filter(|status| *status != Status::Ok) {
            let message = format!("test status message of {status}");
            let failure = fail_with(&mut pair, status, &message);
            assert_eq!(failure, Error::new(status, message));
        }
    }
}

#[test]
fn status__with_special_characters_in_its_message() {
    for mut pair in both() {
        let failure = fail_with(&mut pair, Status::Unknown, SPECIAL);
        assert_eq!((failure.status, &failure.message[..]), (Status::Unknown, SPECIAL));
    }
}

#[test]
fn status__without_a_message() {
    for mut pair in both() {
        assert_eq!(fail_with(&mut pair, Status::Aborted, "").message, "");
    }
}

/// A message for people is limited to one packet (`docs/wire-protocol.md` §3.3).
#[test]
fn status__with_a_message_that_is_too_long_is_cut_between_characters() {
    for mut pair in both() {
        // The cut falls once at a character's end and three times within one.
        for shift in 0..4 {
            let long = "x".repeat(shift) + &"😈".repeat(100_000);
            let failure = fail_with(&mut pair, Status::Aborted, &long);
            assert_eq!(failure.status, Status::Aborted);
            let len = failure.message.len();
            assert!(long.starts_with(&failure.message), "{shift}: other text, {len} bytes");
            assert!(len > 1000 && len < long.len(), "{len} bytes");
        }
    }
}

#[test]
fn method__without_a_handler() {
    for mut pair in both() {
        let failure = pair.fails(NOBODY, b"", CallOptions::new());
        let why = (failure.status, failure.execution);
        assert_eq!(why, (Status::Unimplemented, Execution::Refused), "{failure}");
        assert_eq!(failure.message, "the server has no such method");
        assert_eq!(pair.call(ECHO, b"goes on", 7)[..], *b"goes on");
    }
}
