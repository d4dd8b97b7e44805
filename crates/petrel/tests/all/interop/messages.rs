//! Empty and large calls.

use petrel::{Execution, Status};
use petrel_proto::limits::MESSAGE_BYTES_DEFAULT;

use crate::common::pattern;
use crate::interop::pair::both;
use crate::interop::service::{ECHO, GIVE};

const LARGEST: usize = MESSAGE_BYTES_DEFAULT as usize;

#[test]
fn call__empty() {
    for mut pair in both() {
        assert_eq!(pair.call(ECHO, b"", 0).len(), 0);
    }
}

#[test]
fn call__with_the_largest_request_and_response() {
    for mut pair in both() {
        let message = pattern(LARGEST, 8);
        let reply = pair.call(ECHO, &message, LARGEST);
        // Without printing 16 MiB.
        assert!(reply[..] == message[..], "what came back differs");
    }
}

#[test]
fn call__with_a_request_one_byte_too_large_is_not_made() {
    for mut pair in both() {
        let message = vec![0; LARGEST + 1];
        let end = pair.client.call(pair.session, ECHO, &message).wait();
        let Err(error) = end else { panic!("it was made: {end:?}") };
        assert_eq!(
            (error.status, error.execution),
            (Status::ResourceExhausted, Execution::NotSent)
        );
        let text = "the request has 8388609 bytes, and the server accepts 8388608";
        assert_eq!(error.message, text);
        assert_eq!(pair.call(ECHO, b"goes on", 7)[..], *b"goes on");
    }
}

#[test]
fn call__with_a_response_one_byte_too_large_fails() {
    for mut pair in both() {
        let give = |len: usize| (len as u32).to_le_bytes();
        let end = pair.client.call(pair.session, GIVE, &give(LARGEST + 1)).wait();
        let Err(failure) = end else { panic!("it went through") };
        let why = (failure.status, failure.execution, &failure.message[..]);
        let text = "the response exceeds what the caller accepts";
        assert_eq!(why, (Status::ResourceExhausted, Execution::Answered, text));
        assert_eq!(pair.call(GIVE, &give(LARGEST), LARGEST).len(), LARGEST);
    }
}

#[test]
fn call__with_a_response_larger_than_its_buffer_fails() {
    for mut pair in both() {
        for len in [101, 100_000] {
            let small = pair.client.alloc(100).unwrap();
            let request = u32::to_le_bytes(len);
            let call = pair.client.call(pair.session, GIVE, &request).into_buffer(small);
            let failure = call.wait().unwrap_err();
            let why = (failure.status, failure.execution);
            assert_eq!(why, (Status::ResourceExhausted, Execution::Answered), "{failure}");
            assert!(failure.message.contains(&len.to_string()), "{failure}");
        }
        assert_eq!(pair.call(ECHO, b"goes on", 7)[..], *b"goes on");
    }
}
