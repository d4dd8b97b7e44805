//! Draining without losing a call, and health queries.

use std::sync::mpsc;
use std::time::Duration;

use crate::common::{ECHO, Server, client, echo, keep, nexus, over, pattern, run_until_seen};
use petrel::endpoint::{EndpointConfig, HEALTH_METHOD, Health, SessionState};
use petrel::task::Parallel;
use petrel::{Endpoint, Execution, Status};
use petrel_proto::CallError;

/// Echoes a millisecond later.
const LATER: u16 = 2;
/// Never answers.
const NEVER: u16 = 3;

/// A server on its own thread. It drains on request and then returns the result.
struct Draining {
    address: std::net::SocketAddr,
    tell: mpsc::Sender<Duration>,
    result: mpsc::Receiver<usize>,
}

fn draining_server(config: EndpointConfig) -> Draining {
    let (tell, told) = mpsc::channel::<Duration>();
    let (give, result) = mpsc::channel();
    let (ready, address) = mpsc::channel();
    std::thread::spawn(move || {
        let nexus = nexus(Some("127.0.0.1:0".parse().unwrap()));
        let mut endpoint = nexus.endpoint(config).unwrap();
        serve(&mut endpoint);
        ready.send(nexus.local_addr().unwrap()).unwrap();
        let mut limit = None;
        run_until_seen(&mut endpoint, || {
            limit = told.try_recv().ok();
            limit.is_some()
        });
        give.send(endpoint.drain(limit.unwrap())).unwrap();
    });
    Draining { address: address.recv().unwrap(), tell, result }
}

fn serve(endpoint: &mut Endpoint) {
    let handle = endpoint.handle();
    endpoint.on_async(LATER, move |_, request| {
        let sleep = handle.sleep(Duration::from_millis(1));
        async move {
            sleep.await;
            Ok(request.into_message())
        }
    });
    keep(endpoint, NEVER);
    echo(endpoint, ECHO);
}

/// Calls without pause until the server drains. Returns the number of successful calls.
async fn call_until_told(session: petrel::task::Session) -> u64 {
    let mut calls = Parallel::new(32);
    let (mut answered, mut number) = (0, 0);
    let check = |label: u64, answer: Result<petrel::MsgBuf, petrel::Error>| match answer {
        Ok(reply) => {
            assert_eq!(reply[..], pattern(50, label)[..]);
            1
        }
        // Not sent because the server drains: nothing is lost.
        Err(failure) => {
            let why = (failure.status, failure.execution);
            assert_eq!(why, (Status::Unavailable, Execution::NotSent), "{failure}");
            0
        }
    };
    while session.state() == SessionState::Open {
        calls.has_room().await;
        let method = if number % 3 == 0 { LATER } else { ECHO };
        calls.push(number, session.call(method, &pattern(50, number)).started());
        number += 1;
        while let Some((label, answer)) = calls.try_next() {
            answered += check(label, answer);
        }
    }
    while let Some((label, answer)) = calls.next().await {
        answered += check(label, answer);
    }
    answered
}

fn drains_without_losing_a_call(config: EndpointConfig) {
    let server = draining_server(EndpointConfig::default());
    let mut client = client(config);
    let handle = client.handle();
    client.block_on(async {
        let session = handle.connect(server.address).await.unwrap();
        // The server has calls in progress when it begins to drain.
        for _ in 0..100 {
            session.call(ECHO, b"").await.unwrap();
        }
        let later = session.call(LATER, b"kept over the draining").started();
        session.call(HEALTH_METHOD, b"").await.unwrap();
        server.tell.send(Duration::from_secs(60)).unwrap();
        let answered = {
            let echo = call_until_told(session.clone()).await;
            assert_eq!(&later.await.unwrap()[..], b"kept over the draining");
            echo
        };
        assert!(answered > 0);
        let reason = session.ended().await;
        assert_eq!(reason.status, Status::Unavailable);
    });
    assert_eq!(server.result.recv().unwrap(), 0);
}

#[test]
fn a_server_under_load_drains_without_losing_a_call() {
    for shm in [false, true] {
        drains_without_losing_a_call(over(!shm, shm));
    }
}

#[test]
fn a_draining_server_takes_neither_sessions_nor_calls() {
    let server = draining_server(EndpointConfig::default());
    let mut client = client(EndpointConfig::default());
    let handle = client.handle();
    client.block_on(async {
        let session = handle.connect(server.address).await.unwrap();
        let never = session.call(NEVER, b"").started();
        session.call(ECHO, b"").await.unwrap();
        server.tell.send(Duration::from_secs(3)).unwrap();
        session.unavailable().await;
        assert_eq!(session.state(), SessionState::Draining);
        let refused = session.call(ECHO, b"one more").await.unwrap_err();
        assert_eq!(refused.message, CallError::Draining.to_string());
        assert_eq!(refused.execution, Execution::NotSent);
        let refused = handle.connect(server.address).await.unwrap_err();
        assert!(refused.to_string().contains("draining"), "{refused}");
        // The call's handler never answers, and the limit of the drain ends the call.
        let failure = never.await.unwrap_err();
        let why = (failure.status, failure.execution);
        assert_eq!(why, (Status::Unavailable, Execution::MayHaveExecuted));
    });
    assert_eq!(server.result.recv().unwrap(), 1);
}

#[test]
fn endpoints_tell_their_health() {
    let server = Server::start(over(true, true), "127.0.0.1:0", |endpoint| {
        endpoint.on(LATER, |_, cx, request| request.reply(cx, b""));
        endpoint.set_method_health(LATER, Health::NotServing);
    });
    let mut client = client(EndpointConfig::default());
    let handle = client.handle();
    client.block_on(async {
        let session = handle.connect(server.address).await.unwrap();
        assert_eq!(session.health(None).await.unwrap(), Health::Serving);
        assert_eq!(session.health(Some(ECHO)).await.unwrap(), Health::Serving);
        assert_eq!(session.health(Some(LATER)).await.unwrap(), Health::NotServing);
        assert_eq!(session.health(Some(77)).await.unwrap(), Health::Unknown);
        let failure = session.call(HEALTH_METHOD, b"odd").await.unwrap_err();
        assert_eq!(failure.status, Status::InvalidArgument);
    });
}
