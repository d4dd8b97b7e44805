//! Runs against servers that misbehave.

use std::ops::ControlFlow;
use std::thread::{self, JoinHandle};
use std::time::Duration;

use petrel::endpoint::AllowedTransports;
use petrel::endpoint::{EndpointConfig, IdlePolicy, Responder, Stop};
use petrel::{Endpoint, Nexus, Status};

use super::*;
use crate::client::{Client, ClientConfig};
use crate::methods;

/// A server whose methods the test chooses; it ends with the test.
struct BadServer {
    stop: Stop,
    thread: Option<JoinHandle<()>>,
    client: Client<Load>,
}

impl BadServer {
    fn start(register: fn(&mut Endpoint)) -> Self {
        let nexus = Nexus::builder().listen("127.0.0.1:0".parse().unwrap()).start().unwrap();
        let address = nexus.local_addr().unwrap();
        let (sender, receiver) = std::sync::mpsc::channel();
        let thread = thread::spawn(move || {
            let mut config = EndpointConfig::default();
            config.idle = IdlePolicy::Block;
            let mut endpoint = nexus.endpoint(config).unwrap();
            register(&mut endpoint);
            let stop = endpoint.stop_handle();
            sender.send(stop.clone()).unwrap();
            endpoint.run(&stop);
        });
        let stop = receiver.recv().unwrap();
        let client = Client::connect_to(address, &config()).unwrap();
        Self { stop, thread: Some(thread), client }
    }

    fn run(&mut self, plan: Plan) -> Counts {
        run(&mut self.client, plan, |_| ControlFlow::Continue(())).unwrap()
    }
}

impl Drop for BadServer {
    fn drop(&mut self) {
        self.stop.stop();
        if let Some(thread) = self.thread.take() {
            thread.join().unwrap();
        }
    }
}

fn config() -> ClientConfig {
    ClientConfig {
        endpoint: 0,
        transports: AllowedTransports::ALL,
        in_flight: 4,
        timeout: Duration::from_secs(60),
        idle: IdlePolicy::Block,
        message_bytes_max: petrel_proto::limits::MESSAGE_BYTES_DEFAULT,
    }
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
