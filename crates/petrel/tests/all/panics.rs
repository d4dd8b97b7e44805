//! Panics of a server's own code, with default settings: each ends its call, and the server goes on.

use std::future::pending;
use std::net::SocketAddr;
use std::ptr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::mpsc;
use std::time::Duration;

use petrel::client::ClientConfig;
use petrel::endpoint::{Batch, EndpointConfig, Handled, PanicPolicy};
use petrel::nexus::{SetupError, fetch_stats};
use petrel::server::RunningServer;
use petrel::workers::Workers;
use petrel::{Client, Context, Endpoint, Error, Execution, Request, Server, Status};

const ECHO: u16 = 1;
/// The request's first byte, which an empty request does not have.
const FIRST: u16 = 2;
const FIRST_ASYNC: u16 = 3;
const FIRST_IN_PLACE: u16 = 4;
const FIRST_BATCHED: u16 = 5;
const FIRST_BY_WORKER: u16 = 6;
/// Panics in the continuation of a nested call.
const NESTED: u16 = 7;
/// Panics in a task that its handler awaits.
const TASK: u16 = 8;
/// A locator panics before the handler runs.
const FETCHED: u16 = 9;
/// The closure that names memory for large requests panics.
const PLACED: u16 = 10;
/// Waits until its caller cancels, and panics then.
const CANCELLED: u16 = 11;

/// Bytes of a request of several packets.
const LARGE_BYTES: usize = 1 << 20;

fn first(bytes: &[u8]) -> [u8; 1] {
    // As a careless application does.
    #[allow(clippy::get_first)]
    [bytes[0]]
}

fn reply_first<S: 'static>(cx: &mut Context<'_, S>, request: Request<'_>) -> Handled {
    let answer = first(request.data());
    request.reply(cx, &answer)
}

fn echo<S: 'static>(_: &mut S, cx: &mut Context<'_, S>, request: Request<'_>) -> Handled {
    let data = request.data().to_vec();
    request.reply(cx, &data)
}

/// The state that handlers share with the test.
#[derive(Clone)]
struct Shared {
    workers: Arc<Workers>,
    /// Another server.
    peer: SocketAddr,
    /// How often the locator ran.
    located: Arc<AtomicU32>,
    cancelled: mpsc::Sender<()>,
}

fn set_up(endpoint: &mut Endpoint<u64>, shared: &Shared) {
    endpoint.on(ECHO, echo);
    endpoint.on(FIRST, |calls, cx, request| {
        *calls += 1;
        reply_first(cx, request)
    });
    endpoint.on_async(FIRST_ASYNC, |handle, request| async move {
        handle.sleep(Duration::from_micros(10)).await;
        Ok(first(request.data()))
    });
    endpoint.on_in_place(FIRST_IN_PLACE, |_, cx, request| {
        let mut byte = [0];
        request.data().slice(0..1).copy_to_slice(&mut byte);
        request.reply(cx, &byte)
    });
    endpoint.on_batch(FIRST_BATCHED, |_, cx: &mut Context<'_, u64>, batch: &Batch<'_>| {
        for index in 0..batch.len() {
            batch.reply(cx, index, &first(batch.message(index)));
        }
    });
    endpoint.on_worker(FIRST_BY_WORKER, &shared.workers, |request| {
        let answer = first(request.data());
        request.reply(&answer);
    });
    let peer = endpoint.client([shared.peer], ClientConfig::default());
    endpoint.on(NESTED, move |_, cx, request| {
        let (responder, handled) = request.defer(cx);
        let call = cx.call(&peer, ECHO, "").wait_for_ready();
        let sent = call.then(move |_, _, reply| {
            let _responder = responder;
            assert!(reply.outcome.is_err(), "as asked for");
        });
        sent.unwrap();
        handled
    });
    endpoint.on_async(TASK, |handle, request| async move {
        let task = handle.spawn(async move { first(request.data()) });
        Ok(task.await)
    });
    let located = Arc::clone(&shared.located);
    endpoint.prefetch(FETCHED, move |message| {
        located.fetch_add(1, Ordering::Relaxed);
        assert!(!message.is_empty(), "as asked for");
        ptr::null()
    });
    endpoint.on(FETCHED, echo);
    endpoint.receive_into(
        PLACED,
        |_, _| -> Option<Vec<u8>> { panic!("as asked for") },
        |_, cx, request, placed| {
            assert!(placed.is_none());
            let len = request.data().len() as u64;
            request.reply(cx, &len.to_le_bytes())
        },
    );
    let cancelled = shared.cancelled.clone();
    endpoint.on(CANCELLED, move |_, cx, request| {
        let (responder, handled) = request.defer(cx);
        let cancelled = cancelled.clone();
        cx.on_cancel(&responder, move |_, _| {
            cancelled.send(()).unwrap();
            panic!("as asked for");
        });
        held_forever(responder);
        handled
    });
}

/// Keeps a responder until the process ends, as a table of waiting calls does.
fn held_forever(responder: petrel::endpoint::Responder) {
    std::mem::forget(responder);
}

/// A server with all handlers, and its peer.
struct World {
    server: RunningServer,
    _peer: RunningServer,
    located: Arc<AtomicU32>,
    cancelled: mpsc::Receiver<()>,
}

fn start() -> World {
    let peer = Server::bind("127.0.0.1:0").serve(|_| (), |endpoint| endpoint.on(ECHO, echo));
    let peer = peer.start().unwrap();
    let workers = Arc::new(Workers::builder().threads(1).start().unwrap());
    let (sender, cancelled) = mpsc::channel();
    let located = Arc::new(AtomicU32::new(0));
    let shared = Shared {
        workers,
        peer: peer.local_addr(),
        located: Arc::clone(&located),
        cancelled: sender,
    };
    let server =
        Server::bind("127.0.0.1:0").serve(|_| 0, move |endpoint| set_up(endpoint, &shared));
    World { server: server.start().unwrap(), _peer: peer, located, cancelled }
}

fn panics(address: SocketAddr) -> u64 {
    let json = fetch_stats(address, Duration::from_secs(60)).unwrap();
    crate::common::counter(&json, "panics_caught")
}

fn assert_panicked(outcome: Result<petrel::client::Response, Error>, what: &str) {
    let error = outcome.expect_err(what);
    let of = (error.status, error.execution, error.message.as_str());
    assert_eq!(of, (Status::Internal, Execution::Answered, "the handler panicked"), "{what}");
}

#[test]
fn a_panic_of_any_handler_ends_its_call_and_the_next_call_is_answered() {
    let World { server, .. } = &start();
    let client = Client::connect_wait(server.local_addr()).unwrap();
    let methods = [FIRST, FIRST_ASYNC, FIRST_IN_PLACE, FIRST_BATCHED, FIRST_BY_WORKER];
    for (method, what) in methods.into_iter().zip(["on", "async", "in place", "batch", "worker"]) {
        for _ in 0..3 {
            assert_panicked(client.call(method, "").wait(), what);
        }
        assert_eq!(client.call(method, "a").wait().unwrap(), b"a", "{what}");
    }
    // The pool counts the panics of its threads.
    assert_eq!(panics(server.local_addr()), 3 * 4);
}

#[test]
fn a_panic_of_a_continuation_or_task_or_closure_beside_a_handler_ends_no_more() {
    let World { server, located, cancelled, .. } = &start();
    let client = Client::connect_wait(server.local_addr()).unwrap();
    assert_panicked(client.call(NESTED, "").wait(), "the continuation of a nested call");
    assert_panicked(client.call(TASK, "").wait(), "the task of a handler");
    assert_eq!(client.call(TASK, "a").wait().unwrap(), b"a");
    // A locator sees the requests of a burst.
    while located.load(Ordering::Relaxed) == 0 {
        let calls = [0; 64].map(|_| client.call(FETCHED, "").started());
        calls.into_iter().for_each(|call| assert_eq!(call.wait().unwrap(), b""));
    }
    let answer = client.call(PLACED, vec![7; LARGE_BYTES]).wait().unwrap();
    assert_eq!(answer, (LARGE_BYTES as u64).to_le_bytes());
    let call = client.call(CANCELLED, "").started();
    assert_eq!(client.call(ECHO, "behind").wait().unwrap(), b"behind");
    drop(call);
    cancelled.recv().unwrap();
    assert_eq!(client.call(ECHO, "still there").wait().unwrap(), b"still there");
    assert!(
        panics(server.local_addr()) >= 5,
        "two tasks, a locator, a destination, a cancellation"
    );
}

#[test]
fn of_calls_of_which_one_in_a_thousand_panics_these_alone_fail() {
    let World { server, .. } = &start();
    let address = server.local_addr();
    let failed = std::thread::scope(|scope| {
        let threads = [0; 4].map(|_| {
            scope.spawn(move || -> Vec<u32> {
                let client = Client::connect_wait(address).unwrap();
                let call = |number: u32| {
                    client.call(FIRST, if number.is_multiple_of(1000) { "" } else { "a" })
                };
                let outcomes = (1..=5000).map(|number| (number, call(number).wait()));
                outcomes.filter(|(_, outcome)| outcome.is_err()).map(|(number, _)| number).collect()
            })
        });
        threads.map(|thread| thread.join().unwrap())
    });
    let expected: Vec<u32> = (1..=5).map(|thousand| thousand * 1000).collect();
    assert_eq!(failed, [0; 4].map(|_| expected.clone()));
    assert_eq!(panics(address), 20);
}

/// The choice of a service whose state a panic may leave inconsistent.
#[test]
fn end_on_panic__ends_all_threads() {
    let set_up = |endpoint: &mut Endpoint| {
        endpoint.on(FIRST, |_, cx, request| reply_first(cx, request));
    };
    let server = Server::bind("127.0.0.1:0").threads(3).end_on_panic().serve(|_| (), set_up);
    let server = server.start().unwrap();
    let client = Client::connect_wait(server.local_addr()).unwrap();
    let error = client.call(FIRST, "").wait().unwrap_err();
    assert_eq!((error.status, error.execution), (Status::Unavailable, Execution::MayHaveExecuted));
    assert!(matches!(server.wait(), Err(SetupError::Panicked(_))));
}

/// The owner of an endpoint runs continuations and tasks, and gets the panics. A handler's panic ends with the call.
#[test]
fn an_endpoints_own_task_unwinds_to_the_owner_of_its_loop_and_a_handler_does_not() {
    let nexus = crate::common::nexus(Some("127.0.0.1:0".parse().unwrap()));
    let config = EndpointConfig::default();
    assert_eq!(config.panics, PanicPolicy::Handlers);
    let mut endpoint = nexus.endpoint(config).unwrap();
    endpoint.on(FIRST, |_, cx, request| reply_first(cx, request));
    let session = endpoint.connect_wait(nexus.local_addr().unwrap()).unwrap();
    let error = endpoint.call(session, FIRST, "").wait().unwrap_err();
    assert_eq!((error.status, error.execution), (Status::Internal, Execution::Answered));
    assert_eq!(endpoint.stats().panics, 1);
    drop(endpoint.handle().spawn(async { panic!("as asked for") }));
    let run = std::panic::AssertUnwindSafe(|| endpoint.block_on(pending::<()>()));
    assert!(std::panic::catch_unwind(run).is_err());
    assert_eq!(endpoint.stats().panics, 1);
}
