//! Sessions from servers to their clients, on the links of the clients (`docs/wire-protocol.md` §8.5).

use petrel::endpoint::{AllowedTransports, EndpointConfig, SessionState};
use petrel::{Endpoint, Status};

use crate::common::{ECHO, Server, client, each_medium, over, pattern, run_until_seen};

/// Calls ECHO at the client that calls, and answers with its answer.
const BOUNCE: u16 = 2;

fn echo(endpoint: &mut Endpoint) {
    endpoint.on(ECHO, |_, cx, request| {
        let data = request.data().to_vec();
        request.reply(cx, &data)
    });
}

/// Answers with what the client says to the same bytes, by a session back that is opened for the call.
fn bounce(endpoint: &mut Endpoint) {
    let handle = endpoint.handle();
    endpoint.on_async(BOUNCE, move |_, request| {
        let handle = handle.clone();
        async move {
            let back = handle.reverse(request.session()).await?;
            let answer = back.call(ECHO, request.data()).await;
            back.close();
            answer
        }
    });
}

fn serving(config: EndpointConfig) -> EndpointConfig {
    let mut config = config;
    config.sessions.reverse = true;
    config
}

/// UDP, shared memory and streams.
fn media() -> impl Iterator<Item = EndpointConfig> {
    let mut stream = over(true, false);
    stream.transports = AllowedTransports::STREAM;
    let is_far = crate::common::device::is_used();
    each_medium().chain((!is_far).then_some(stream))
}

#[test]
fn a_server_calls_the_client_that_calls_it() {
    for config in media() {
        let server = Server::start(config.clone(), "127.0.0.1:0", bounce);
        let mut client = client(serving(config));
        echo(&mut client);
        let session = client.connect_wait(server.address).unwrap();
        // Small messages, and messages of several packets.
        for len in [0, 1, 1_000, 100_000] {
            let message = pattern(len, 7);
            let answer = client.call(session, BOUNCE, &message[..]).wait().unwrap();
            assert_eq!(answer[..], message[..]);
        }
        // The sessions back have ended, and only they.
        run_until_seen(&mut client, || true);
        while client.sessions_served() > 0 {
            client.run_once();
        }
        assert_eq!(client.session_state(session), SessionState::Open);
    }
}

/// A client that does not want calls: the server is told why.
#[test]
fn a_client_without_handlers_takes_no_calls() {
    let server = Server::start(over(true, true), "127.0.0.1:0", bounce);
    let mut client = client(over(true, true));
    echo(&mut client);
    let session = client.connect_wait(server.address).unwrap();
    let failure = client.call(session, BOUNCE, b"x").wait().unwrap_err();
    assert_eq!(failure.status, Status::FailedPrecondition);
    assert!(failure.message.contains("takes no calls from its servers"), "{failure}");
}
