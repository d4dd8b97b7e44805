//! Calls from any thread, by client handles.

use std::future::Future;
use std::pin::pin;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, mpsc};
use std::task::{Context, Poll, Waker};
use std::thread;
use std::time::Duration;

use crate::common::remote::Caller;
use crate::common::{ECHO, Server, over, pattern};
use petrel::{
    CallOptions, EndpointConfig, Execution, IdlePolicy, NotStartedReason, Permit, RemoteCall,
    SessionClient, Status, WorkerRequest,
};

const HOLD: u16 = 10;

/// A server that echoes, and hands over the requests of method HOLD.
fn server() -> (Server, mpsc::Receiver<WorkerRequest>) {
    let (keep, kept) = mpsc::channel();
    let server = Server::start(over(true, true), "127.0.0.1:0", move |endpoint| {
        endpoint.on(HOLD, move |_, cx, request| {
            let (request, handled) = request.detach(cx);
            // Without the test nobody wants it.
            let _ = keep.send(request);
            handled
        });
    });
    (server, kept)
}

fn echo(mut request: WorkerRequest) {
    let message = request.take_data();
    request.reply_vec(message);
}

fn calls_at_most(max: usize) -> EndpointConfig {
    let mut config = over(true, true);
    config.client_calls_max = max;
    config
}

fn is_pending(future: impl Future) -> bool {
    pin!(future).poll(&mut Context::from_waker(Waker::noop())).is_pending()
}

#[test]
fn handles__are_send_sync_and_their_calls_futures_that_move() {
    fn moves<T: Send>(_: &T) {}
    fn is_shared<T: Clone + Send + Sync + 'static>(_: &T) {}
    let (server, _kept) = server();
    let caller = Caller::start(over(true, true), server.address);
    is_shared(&caller.client);
    is_shared(&caller.client.parallel(1));
    moves(&caller.client.call(ECHO, b"", 0));
    moves(&caller.client.start(ECHO, b"", 0).unwrap());
    moves(&caller.client.reserve());
}

#[test]
fn calls__of_many_threads_get_their_own_answers_and_wake_a_sleeping_endpoint() {
    for idle in [IdlePolicy::Block, IdlePolicy::default()] {
        for (udp, shm) in [(true, false), (false, true)] {
            let (server, _kept) = server();
            let mut config = over(udp, shm);
            config.idle = idle;
            let caller = Caller::start(config, server.address);
            thread::scope(|scope| {
                for number in 0..3 {
                    let client = caller.client.clone();
                    scope.spawn(move || call_often(&client, number));
                }
            });
        }
    }
}

fn call_often(client: &SessionClient, number: u64) {
    for round in 0..200 {
        let message = pattern(40 + round as usize, number << 32 | round);
        assert_eq!(client.call_wait(ECHO, &message[..], 300).unwrap(), message);
    }
    let large = pattern(300_000, number);
    assert_eq!(client.call_wait(ECHO, large.clone(), large.len()).unwrap(), large);
}

#[test]
fn calls__fail_with_the_reason() {
    let (server, kept) = server();
    let caller = Caller::start(over(true, true), server.address);
    let call = |method, request: &[u8], max| {
        let end = caller.client.call_wait(method, request, max).unwrap_err();
        (end.status, end.execution)
    };
    assert_eq!(call(999, b"", 0).0, Status::Unimplemented);
    let too_long = vec![0; (8 << 20) + 1];
    assert_eq!(call(ECHO, &too_long, 0), (Status::ResourceExhausted, Execution::NotSent));
    assert_eq!(call(ECHO, &[1; 100], 99), (Status::ResourceExhausted, Execution::Answered));
    let fails = caller.client.start(HOLD, b"", 0).unwrap();
    kept.recv().unwrap().fail(Status::NotFound, "naïve");
    let end = fails.wait().unwrap_err();
    assert_eq!((end.status, &*end.message), (Status::NotFound, "naïve"));
}

#[test]
fn start__without_a_place_gives_the_request_back_and_reserve_waits() {
    let (server, kept) = server();
    let caller = Caller::start(calls_at_most(2), server.address);
    let client = &caller.client;
    let one = client.start(HOLD, b"one", 10).unwrap();
    let two = client.start(HOLD, b"two", 10).unwrap();
    let refused = client.start(HOLD, b"three", 10).unwrap_err();
    assert_eq!(refused.reason, NotStartedReason::Full { max: 2 });
    assert_eq!(
        (refused.status(), refused.execution()),
        (Status::ResourceExhausted, Execution::NotSent)
    );
    assert_eq!(refused.request, b"three");
    assert!(is_pending(client.reserve()), "a place was given away twice");
    let waiting = client.clone();
    let third = thread::spawn(move || waiting.call_wait(ECHO, refused.request, 10));
    echo(kept.recv().unwrap());
    assert_eq!(third.join().unwrap().unwrap(), b"three");
    echo(kept.recv().unwrap());
    assert_eq!([one, two].map(|call| call.wait().unwrap()), [b"one", b"two"]);
    let both: [Permit; 2] = [client.reserve_wait().unwrap(), client.reserve_wait().unwrap()];
    drop(both);
    assert_eq!(client.call_wait(ECHO, b"four", 10).unwrap(), b"four");
}

#[test]
fn places__of_calls_that_are_given_up_are_free_again() {
    let (server, kept) = server();
    let caller = Caller::start(calls_at_most(1), server.address);
    for _ in 0..20 {
        let call = caller.client.reserve_wait().unwrap().start(HOLD, b"dropped", 10).unwrap();
        drop(kept.recv().unwrap());
        drop(call);
    }
    drop(caller.client.start(HOLD, b"never waited for", 10));
    assert_eq!(caller.client.call_wait(ECHO, b"fine", 10).unwrap(), b"fine");
}

#[test]
fn calls__that_are_dropped_or_late_are_told_to_the_server() {
    let (server, kept) = server();
    let caller = Caller::start(over(true, true), server.address);
    let dropped = caller.client.start(HOLD, b"dropped", 10).unwrap();
    let request = kept.recv().unwrap();
    assert!(!request.is_cancelled() && request.deadline_ns().is_none());
    drop(dropped);
    while !request.is_cancelled() {
        thread::yield_now();
    }
    let soon = CallOptions::new().timeout(Duration::from_millis(300));
    let end = caller.client.call_wait_with(HOLD, b"late", 10, soon).unwrap_err();
    assert_eq!(end.status, Status::DeadlineExceeded, "{end}");
    let request = kept.recv().unwrap();
    // The client's clock began earlier than the server's, by the time of the request's way.
    while !request.is_cancelled() || request.time_left() != Some(Duration::ZERO) {
        thread::yield_now();
    }
}

#[test]
fn endpoint__that_is_dropped_ends_all_calls_and_refuses_new_ones() {
    let (server, kept) = server();
    let mut caller = Caller::start(calls_at_most(4), server.address);
    let client = caller.client.clone();
    let calls: Vec<_> = (0..4u8).map(|n| client.start(HOLD, [n], 10).unwrap()).collect();
    let requests: Vec<_> = (0..4).map(|_| kept.recv().unwrap()).collect();
    let waits = client.clone();
    let waiting = thread::spawn(move || waits.reserve_wait().map(drop));
    caller.end();
    for call in calls {
        let end = call.wait().unwrap_err();
        assert_eq!((end.status, end.execution), (Status::Unavailable, Execution::MayHaveExecuted));
    }
    assert_eq!(waiting.join().unwrap(), Err(NotStartedReason::EndpointGone));
    let refused = client.start(ECHO, b"late", 10).unwrap_err();
    assert_eq!((refused.reason, &*refused.request), (NotStartedReason::EndpointGone, &b"late"[..]));
    let end = client.call_wait(ECHO, b"late", 10).unwrap_err();
    assert_eq!((end.status, end.execution), (Status::Unavailable, Execution::NotSent));
    requests.into_iter().for_each(echo);
}

#[test]
fn parallel__has_no_more_calls_on_their_way_than_it_may() {
    const AT_ONCE: usize = 5;
    let (server, kept) = server();
    let caller = Caller::start(over(true, true), server.address);
    let parallel = caller.client.parallel(AT_ONCE);
    let started = Arc::new(AtomicUsize::new(0));
    let count = Arc::clone(&started);
    let starter = thread::spawn(move || -> Vec<RemoteCall> {
        let start = |number: u32| {
            let call = parallel.start_wait(HOLD, number.to_le_bytes(), 4).unwrap();
            count.fetch_add(1, Ordering::SeqCst);
            call
        };
        (0..200).map(start).collect()
    });
    let mut on_their_way = Vec::new();
    for answered in 0..200 {
        on_their_way.extend(kept.try_iter());
        if on_their_way.is_empty() {
            on_their_way.push(kept.recv().unwrap());
        }
        assert!(on_their_way.len() <= AT_ONCE, "{} at once", on_their_way.len());
        assert!(started.load(Ordering::SeqCst) <= answered + AT_ONCE);
        echo(on_their_way.swap_remove(answered % on_their_way.len()));
    }
    for (number, call) in starter.join().unwrap().into_iter().enumerate() {
        assert_eq!(call.wait().unwrap(), (number as u32).to_le_bytes());
    }
}

#[test]
fn outcome__can_be_looked_for_waited_for_a_while_and_taken() {
    let (server, kept) = server();
    let caller = Caller::start(over(true, true), server.address);
    let mut call = caller.client.start(HOLD, b"later", 10).unwrap();
    let request = kept.recv().unwrap();
    assert!(!call.has_ended() && call.try_take().is_none());
    assert!(call.wait_for(Duration::from_millis(1)).is_none());
    echo(request);
    let end = call.wait_for(Duration::MAX).unwrap();
    assert_eq!(end.unwrap(), b"later");
    let mut call = caller.client.start(ECHO, b"soon", 10).unwrap();
    while !call.has_ended() {
        thread::yield_now();
    }
    assert_eq!(call.try_take().unwrap().unwrap(), b"soon");
}

#[test]
fn wait__on_the_thread_of_the_endpoint_is_refused() {
    let (server, _kept) = server();
    let mut endpoint = crate::common::client(over(true, true));
    let session = endpoint.connect_wait(server.address).unwrap();
    let call = endpoint.session_client(session).start(ECHO, b"own", 10).unwrap();
    let wait = std::panic::AssertUnwindSafe(|| call.wait());
    assert!(std::panic::catch_unwind(wait).is_err(), "it would have waited for ever");
    // The event loop of the thread itself ends the call.
    let client = endpoint.session_client(session);
    let mut call = pin!(client.call(ECHO, b"own", 10));
    let mut cx = Context::from_waker(Waker::noop());
    let response = loop {
        if let Poll::Ready(response) = call.as_mut().poll(&mut cx) {
            break response;
        }
        endpoint.run_once();
    };
    assert_eq!(response.unwrap(), b"own");
}

async fn greet_many(client: SessionClient) {
    let tasks: Vec<_> = (0..50u32)
        .map(|number| {
            let client = client.clone();
            tokio::spawn(async move {
                let name = format!("number {number}");
                let greeting = client.call(HOLD, name.as_bytes(), 100).await.unwrap();
                assert_eq!(greeting, format!("Hello, {name}!").as_bytes());
            })
        })
        .collect();
    for task in tasks {
        task.await.unwrap();
    }
}

/// Both sides are tasks: requests go to the executor, detached.
fn greet_in(runtime: tokio::runtime::Runtime) {
    let handle = runtime.handle().clone();
    let server = Server::start(over(true, true), "127.0.0.1:0", move |endpoint| {
        endpoint.on(HOLD, move |_, cx, request| {
            let (request, handled) = request.detach(cx);
            handle.spawn(async move {
                tokio::task::yield_now().await;
                let name = String::from_utf8_lossy(request.data());
                let greeting = format!("Hello, {name}!");
                request.reply(greeting.as_bytes());
            });
            handled
        });
    });
    let caller = Caller::start(over(true, true), server.address);
    runtime.block_on(greet_many(caller.client.clone()));
}

#[test]
fn tokio__runs_clients_and_servers_on_one_thread() {
    greet_in(tokio::runtime::Builder::new_current_thread().build().unwrap());
}

#[test]
fn tokio__runs_clients_and_servers_on_many_threads() {
    greet_in(tokio::runtime::Builder::new_multi_thread().worker_threads(2).build().unwrap());
}
