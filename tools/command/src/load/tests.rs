//! Runs against servers that misbehave.

use std::ops::ControlFlow;
use std::time::Duration;

use petrel::endpoint::AllowedTransports;
use petrel::endpoint::{IdlePolicy, Responder};
use petrel::server::RunningServer;
use petrel::{Endpoint, Server, Status};

use super::*;
use crate::client::{Client, ClientConfig};
use crate::methods;

/// A server whose methods the test chooses; it ends with the test.
struct BadServer {
    _server: RunningServer,
    client: Client<Load>,
}

impl BadServer {
    fn start(register: fn(&mut Endpoint)) -> Self {
        let server = Server::bind("127.0.0.1:0").serve(|_| (), register).start().unwrap();
        let client = Client::connect_to(server.local_addr(), &config()).unwrap();
        Self { _server: server, client }
    }

    fn run(&mut self, plan: Plan) -> Counts {
        run(&mut self.client, plan, |_| ControlFlow::Continue(())).unwrap()
    }
}

fn config() -> ClientConfig {
    let timeout = Duration::from_secs(60);
    let config = ClientConfig::new(0, AllowedTransports::ALL, timeout);
    ClientConfig { in_flight: 4, idle: IdlePolicy::Block, ..config }
}

const PLAN: Plan = Plan {
    size: 1_000,
    in_flight: 4,
    calls: 100,
    timeout: Duration::from_secs(60),
    echo: Echo::Handler(methods::ECHO),
};

/// Changes one bit of every tenth reply.
fn corrupting_echo(endpoint: &mut Endpoint) {
    let mut count = 0;
    endpoint.on(methods::ECHO, move |_, cx, request| {
        let mut reply = request.data().to_vec();
        count += 1;
        reply[count % 1_000] ^= u8::from(count % 10 == 0);
        request.reply(cx, &reply)
    });
}

#[test]
fn run__counts_wrong_replies() {
    let counts = BadServer::start(corrupting_echo).run(PLAN);
    assert_eq!((counts.started, counts.answered, counts.mismatched), (100, 100, 10));
    assert!(counts.failures.is_empty() && !counts.is_valid());
}

/// Answers every request with the reply to the request before it.
fn late_echo(endpoint: &mut Endpoint) {
    let mut last = vec![0; 1_000];
    endpoint.on(methods::ECHO, move |_, cx, request| {
        let current = request.data().to_vec();
        request.reply(cx, &std::mem::replace(&mut last, current))
    });
}

#[test]
fn run__detects_the_reply_to_another_call() {
    let counts = BadServer::start(late_echo).run(PLAN);
    assert_eq!((counts.answered, counts.mismatched), (100, 100));
}

/// Answers every fourth request with an error.
fn failing_echo(endpoint: &mut Endpoint) {
    let mut count = 0;
    endpoint.on(methods::ECHO, move |_, cx, request| {
        count += 1;
        if count % 4 == 0 {
            return request.fail(cx, Status::Aborted, "not now");
        }
        let reply = request.data().to_vec();
        request.reply(cx, &reply)
    });
}

#[test]
fn run__goes_on_after_errors_that_the_server_answered() {
    let counts = BadServer::start(failing_echo).run(PLAN);
    assert_eq!((counts.started, counts.answered, counts.failed()), (100, 75, 25));
    assert_eq!(counts.failures.len(), 1);
    assert_eq!((counts.failures[0].status, counts.failures[0].executed), ("ABORTED", "answered"));
}

/// Keeps requests and never answers them.
fn silence(endpoint: &mut Endpoint) {
    let mut kept: Vec<Responder> = Vec::new();
    endpoint.on(methods::ECHO, move |_, cx, request| {
        let (responder, handled) = request.defer(cx);
        kept.push(responder);
        handled
    });
}

#[test]
fn run__gives_up_calls_that_take_too_long() {
    let timeout = Duration::from_millis(200);
    let counts = BadServer::start(silence).run(Plan { timeout, ..PLAN });
    assert_eq!((counts.started, counts.answered, counts.failed()), (4, 0, 4));
    assert_eq!(
        (counts.failures[0].status, counts.failures[0].executed),
        ("DEADLINE_EXCEEDED", "yes")
    );
}

#[test]
fn run__stops_when_the_watcher_says_so() {
    let mut server = BadServer::start(methods::register);
    let plan = Plan { calls: u64::MAX, ..PLAN };
    let counts = run(&mut server.client, plan, |_| ControlFlow::Break(())).unwrap();
    assert!(counts.is_valid());
    assert_eq!(counts.started, counts.answered);
}

/// A server whose only method answers wrongly.
#[test]
fn run__with_the_endpoints_own_echo_needs_no_method_of_the_server() {
    let mut server = BadServer::start(|endpoint| {
        endpoint.on(methods::ECHO, |_, cx, request| request.reply(cx, b"no echo"));
    });
    for size in [OWN_ECHO_BYTES_MIN as usize, 32, 100_000] {
        let counts = server.run(Plan { size, echo: Echo::Own, ..PLAN });
        assert_eq!((counts.answered, counts.mismatched), (100, 0), "{size}");
    }
}
