//! One message to many servers, without copies.

use std::cell::RefCell;
use std::rc::Rc;

use crate::common::{ECHO, Server, client, keep, over, pattern};
use petrel::endpoint::{CallOptions, SessionId, SharedMsg};
use petrel::{Endpoint, Execution, Reply, Status};

/// Makes a call with the message on every session, and runs the loop until all have ended.
fn call_all(
    client: &mut Endpoint,
    sessions: &[SessionId],
    message: &SharedMsg,
    options: CallOptions,
) -> Vec<Reply> {
    let ended = Rc::new(RefCell::new(Vec::new()));
    for &session in sessions {
        let response = client.alloc(message.len()).unwrap();
        let end = Rc::clone(&ended);
        client
            .call(session, ECHO, message)
            .into_buffer(response)
            .options(options)
            .then_cancellable(move |_, _, reply| {
                end.borrow_mut().push(reply);
            })
            .unwrap();
    }
    client.run_until(|_, _| ended.borrow().len() == sessions.len());
    ended.take()
}

fn echo_to_all(udp: bool, shm: bool) {
    let servers: Vec<_> =
        (0..3).map(|_| Server::start(over(udp, shm), "127.0.0.1:0", |_| {})).collect();
    let mut client = client(over(udp, shm));
    let sessions: Vec<_> =
        servers.iter().map(|server| client.connect_wait(server.address).unwrap()).collect();
    let packet = client.core().agreed(sessions[0]).unwrap().packet_bytes as usize;
    let sizes = [0, 1, 1024, 1025, packet, packet + 1, 1 << 20, 8 << 20];
    for len in sizes.into_iter().filter(|&len| len <= 8 << 20) {
        let bytes = pattern(len, len as u64);
        let message = SharedMsg::from(client.alloc_message(&bytes).unwrap());
        let before = client.buffers_in_use().bytes;
        let replies = call_all(&mut client, &sessions, &message, CallOptions::new());
        // With a deadline the first packet has another header.
        let until = CallOptions::new().timeout(std::time::Duration::from_secs(600));
        let replies: Vec<_> =
            replies.into_iter().chain(call_all(&mut client, &sessions, &message, until)).collect();
        for reply in &replies {
            assert!(reply.request.is_empty(), "the caller has the message");
            assert!(reply.message().unwrap() == &bytes[..], "{len} bytes differ");
        }
        drop(replies);
        assert_eq!(client.buffers_in_use().bytes, before, "{len} bytes");
        let buffer = message.try_unwrap().expect("no call has it any more");
        assert_eq!(buffer[..], bytes[..]);
    }
    assert_eq!(client.buffers_in_use().count, 0);
}

#[test]
fn call_shared__every_size_over_every_transport() {
    echo_to_all(true, false);
    echo_to_all(false, true);
}

#[test]
fn call_shared__lies_in_memory_once() {
    let server = Server::start(over(true, false), "127.0.0.1:0", |_| {});
    let mut client = client(over(true, false));
    let session = client.connect_wait(server.address).unwrap();
    let message = SharedMsg::from(client.alloc_message(&pattern(4 << 20, 1)).unwrap());
    let before = client.buffers_in_use().bytes;
    for _ in 0..20 {
        let response = client.alloc(0).unwrap();
        client
            .call(session, ECHO, &message)
            .into_buffer(response)
            .then_cancellable(|_, _, _| {})
            .unwrap();
    }
    // Headers for 20 calls, not 80 MiB.
    assert!(client.buffers_in_use().bytes - before < 4 << 20);
    let message = message.try_unwrap().expect_err("calls have it");
    client.run_until(|_, cx| cx.pending_calls(session) == 0);
    message.try_unwrap().expect("all calls have ended");
}

#[test]
fn call_shared__that_is_not_made_gives_the_response_back() {
    let mut client = client(over(true, false));
    let server = Server::start(over(true, false), "127.0.0.1:0", |_| {});
    let session = client.connect_wait(server.address).unwrap();
    client.close(session);
    let message = SharedMsg::from(client.alloc_message(&pattern(5000, 2)).unwrap());
    let response = client.alloc(77).unwrap();
    let rejected = client
        .call(session, ECHO, &message)
        .into_buffer(response)
        .then_cancellable(|_, _, _| panic!("it was not made"))
        .unwrap_err();
    let error = rejected.error;
    assert_eq!((error.status, error.execution), (Status::Unavailable, Execution::NotSent));
    let begin = "the session has ended; open a new one; it ended because: ";
    assert!(error.message.starts_with(begin), "{error}");
    assert_eq!(rejected.response.unwrap().capacity(), 77);
    message.try_unwrap().expect("nobody has it");
}

#[test]
fn call_shared__that_fails_lets_go_of_the_message() {
    let mut server = Server::start(over(true, false), "127.0.0.1:0", |endpoint| keep(endpoint, 7));
    let mut client = client(over(true, false));
    let session = client.connect_wait(server.address).unwrap();
    let message = SharedMsg::from(client.alloc_message(&pattern(50_000, 3)).unwrap());
    let ended = Rc::new(RefCell::new(None));
    let end = Rc::clone(&ended);
    let response = client.alloc(10).unwrap();
    client
        .call(session, 7, &message)
        .into_buffer(response)
        .then_cancellable(move |_, _, reply| {
            *end.borrow_mut() = Some(reply);
        })
        .unwrap();
    client.run_for(std::time::Duration::from_millis(1), |_, _| false);
    server.end();
    client.run_until(|_, _| ended.borrow().is_some());
    let reply = ended.take().unwrap();
    assert_eq!(reply.outcome.unwrap_err().status, Status::Unavailable);
    message.try_unwrap().expect("the call has ended");
}
