//! Calls from any thread, by clients of one server.

use std::future::Future;
use std::pin::pin;
use std::sync::mpsc;
use std::task::{Context, Poll, Waker};
use std::thread;
use std::time::Duration;

use crate::common::remote::{Caller, plain};
use crate::common::{ECHO, Server, hold, over, pattern};
use futures_util::stream::{self, StreamExt, TryStreamExt};
use petrel::client::wait;
use petrel::endpoint::{CallOptions, EndpointConfig, IdlePolicy};
use petrel::workers::WorkerRequest;
use petrel::{Client, Execution, Status};
use petrel_skip::{Need, skip};

const HOLD: u16 = 10;

/// Its handler waits for a future.
const WAITS: u16 = 11;

/// A server that echoes, and passes requests of method HOLD to the test.
fn server() -> (Server, mpsc::Receiver<WorkerRequest>) {
    let (keep, kept) = mpsc::channel();
    let server = Server::start(over(true, true), "127.0.0.1:0", move |endpoint| {
        hold(endpoint, HOLD, keep);
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
    moves(&caller.client.call(ECHO, b""));
    moves(&caller.client.call(ECHO, b"").started());
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

fn call_often(client: &Client, number: u64) {
    for round in 0..200 {
        let message = pattern(40 + round as usize, number << 32 | round);
        assert_eq!(client.call(ECHO, &message[..]).wait().unwrap(), message);
    }
    let large = pattern(300_000, number);
    assert_eq!(client.call(ECHO, large.clone()).wait().unwrap(), large);
}

#[test]
fn calls__fail_with_the_reason() {
    let (server, kept) = server();
    let caller = Caller::start(over(true, true), server.address);
    let call = |method, request: &[u8]| {
        let end = caller.client.call(method, request).wait().unwrap_err();
        (end.status, end.execution)
    };
    assert_eq!(call(999, b"").0, Status::Unimplemented);
    let too_long = vec![0; (8 << 20) + 1];
    assert_eq!(call(ECHO, &too_long), (Status::ResourceExhausted, Execution::NotSent));
    let fails = caller.client.call(HOLD, b"").started();
    kept.recv().unwrap().fail(Status::NotFound, "naïve");
    let end = fails.wait().unwrap_err();
    assert_eq!((end.status, &*end.message), (Status::NotFound, "naïve"));
}

#[test]
fn call__waits_for_a_place_when_it_is_awaited() {
    let (server, kept) = server();
    let caller = Caller::start(calls_at_most(2), server.address);
    let client = &caller.client;
    let [one, two] = [b"one", b"two"].map(|text| client.call(HOLD, text).started());
    let first = kept.recv().unwrap();
    let second = kept.recv().unwrap();
    let mut third = client.call(HOLD, b"three").started();
    assert!(is_pending(&mut third), "there are two places");
    let waiting = thread::spawn(move || third.wait());
    // A cancel reaches the server before a later answer on the same session.
    echo(first);
    echo(kept.recv().unwrap());
    assert_eq!(waiting.join().unwrap().unwrap(), b"three");
    echo(second);
    assert_eq!([one, two].map(|call| call.wait().unwrap()), [&b"one"[..], b"two"]);
    assert_eq!(client.call(ECHO, b"four").wait().unwrap(), b"four");
}

#[test]
fn places__of_cancelled_calls_are_free_again() {
    let (server, kept) = server();
    let caller = Caller::start(calls_at_most(1), server.address);
    for _ in 0..20 {
        let mut call = caller.client.call(HOLD, b"dropped");
        while kept.try_recv().is_err() {
            assert!(is_pending(&mut call));
        }
        drop(call);
    }
    drop(caller.client.call(HOLD, b"never waited for").started());
    assert_eq!(caller.client.call(ECHO, b"fine").wait().unwrap(), b"fine");
}

#[test]
fn calls__that_are_dropped_or_late_are_told_to_the_server() {
    let (server, kept) = server();
    let caller = Caller::start(over(true, true), server.address);
    let dropped = caller.client.call(HOLD, b"dropped").started();
    let request = kept.recv().unwrap();
    assert!(!request.is_cancelled());
    drop(dropped);
    while !request.is_cancelled() {
        thread::yield_now();
    }
    let soon = CallOptions::new().timeout(Duration::from_millis(300));
    let end = caller.client.call(HOLD, b"late").options(soon).wait().unwrap_err();
    assert_eq!(end.status, Status::DeadlineExceeded, "{end}");
    let request = kept.recv().unwrap();
    // The earlier of a timeout and a deadline counts.
    let deadline = caller.client.now() + Duration::from_millis(50);
    let call =
        caller.client.call(HOLD, b"late").timeout(Duration::from_secs(60)).deadline(deadline);
    assert_eq!(call.wait().unwrap_err().status, Status::DeadlineExceeded);
    // The client's clock began earlier than the server's, by the request's transmission time.
    while !request.is_cancelled() || request.time_left() != Some(Duration::ZERO) {
        thread::yield_now();
    }
}

#[test]
fn endpoint__that_is_dropped_ends_all_calls_and_refuses_new_ones() {
    let (server, kept) = server();
    let mut caller = Caller::start(calls_at_most(4), server.address);
    let client = caller.client.clone();
    let calls: Vec<_> = (0..4u8).map(|n| client.call(HOLD, [n]).started()).collect();
    let requests: Vec<_> = (0..4).map(|_| kept.recv().unwrap()).collect();
    let waits = client.clone();
    let waiting = thread::spawn(move || waits.call(ECHO, b"waits").wait());
    caller.end();
    for call in calls {
        let end = call.wait().unwrap_err();
        assert_eq!((end.status, end.execution), (Status::Unavailable, Execution::MayHaveExecuted));
    }
    for end in [waiting.join().unwrap(), client.call(ECHO, b"late").wait()] {
        let end = end.unwrap_err();
        assert_eq!((end.status, end.execution), (Status::Unavailable, Execution::NotSent));
    }
    requests.into_iter().for_each(echo);
}

/// How users of futures join many calls.
#[test]
fn buffered__has_no_more_calls_on_their_way_than_it_may() {
    const AT_ONCE: usize = 5;
    let (server, kept) = server();
    let caller = Caller::start(over(true, true), server.address);
    let client = caller.client.clone();
    let all = thread::spawn(move || {
        let calls = stream::iter(0..200u32).map(|n| client.call(HOLD, n.to_le_bytes()));
        let all = calls.buffered(AT_ONCE).try_collect::<Vec<_>>();
        tokio::runtime::Builder::new_current_thread().build().unwrap().block_on(all)
    });
    let mut on_their_way = Vec::new();
    for answered in 0..200 {
        on_their_way.extend(kept.try_iter());
        if on_their_way.is_empty() {
            on_their_way.push(kept.recv().unwrap());
        }
        assert!(on_their_way.len() <= AT_ONCE, "{} at once", on_their_way.len());
        echo(on_their_way.swap_remove(answered % on_their_way.len()));
    }
    for (number, answer) in (0u32..).zip(all.join().unwrap().unwrap()) {
        assert_eq!(answer, number.to_le_bytes());
    }
}

#[test]
fn wait__on_the_thread_of_the_endpoint_is_refused() {
    let (server, _kept) = server();
    let mut endpoint = crate::common::client(over(true, true));
    let client = endpoint.client([server.address], plain());
    let call = client.call(ECHO, b"own").started();
    let wait = std::panic::AssertUnwindSafe(|| call.wait());
    assert!(std::panic::catch_unwind(wait).is_err(), "it would have waited for ever");
    // The thread's own event loop ends the call.
    let mut call = pin!(client.call(ECHO, b"own"));
    let mut cx = Context::from_waker(Waker::noop());
    let response = loop {
        if let Poll::Ready(response) = call.as_mut().poll(&mut cx) {
            break response;
        }
        endpoint.run_once();
    };
    assert_eq!(response.unwrap(), b"own");
}

async fn greet_many(client: Client) {
    let tasks: Vec<_> = (0..50u32)
        .map(|number| {
            let client = client.clone();
            tokio::spawn(async move {
                let name = format!("number {number}");
                let greeting = client.call(HOLD, name.as_bytes()).await.unwrap();
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
fn tokio__runs_clients_and_servers_on_one_thread_and_on_many() {
    greet_in(tokio::runtime::Builder::new_current_thread().build().unwrap());
    greet_in(tokio::runtime::Builder::new_multi_thread().worker_threads(2).build().unwrap());
}

#[test]
fn spawn__runs_a_task_on_the_thread_that_makes_the_calls() {
    let (server, _kept) = server();
    let client = Client::connect_wait(server.address).unwrap();
    let calls = client.clone();
    let spawned = client.spawn(async move |handle| {
        // A value that is not `Send`.
        let kept = std::rc::Rc::new(7_u8);
        handle.sleep(Duration::from_millis(1)).await;
        let answer = calls.call(ECHO, [*kept]).await?;
        Ok::<_, petrel::Error>((thread::current().id(), answer.into_vec()))
    });
    let (there, answer) = wait(spawned).unwrap().unwrap();
    assert_ne!(there, thread::current().id());
    assert_eq!(answer, [7]);
}

/// Reports its drop through a channel.
struct Tells(mpsc::Sender<()>);

impl Drop for Tells {
    fn drop(&mut self) {
        // The test may have failed meanwhile.
        let _ = self.0.send(());
    }
}

#[test]
fn spawn__ends_with_its_result_or_the_endpoint() {
    let (server, _kept) = server();
    let (tell, told) = mpsc::channel();
    let caller = Caller::start(over(true, true), server.address);
    let for_ever = |tell: mpsc::Sender<()>| {
        let tells = Tells(tell);
        caller.client.spawn(async move |_| {
            let _kept = tells;
            std::future::pending::<()>().await;
        })
    };
    let dropped = for_ever(tell.clone());
    assert!(told.try_recv().is_err());
    drop(dropped);
    told.recv().unwrap();
    let lost = for_ever(tell);
    drop(caller);
    told.recv().unwrap();
    assert_eq!(wait(lost).unwrap_err().status, Status::Unavailable);
}

/// Clients without settings for address families; the data port of an IPv6 server is IPv6.
#[test]
fn connect__reaches_a_server_at_an_ipv6_address_over_udp_alone() {
    if std::net::UdpSocket::bind("[::1]:0").is_err() {
        return skip(Need::Ipv6, "this host has no IPv6 loopback");
    }
    let server = Server::start(over(true, false), "[::1]:0", |_| {});
    let other = Server::start(over(true, false), "127.0.0.1:0", |_| {});
    for builder in [Client::builder(), Client::builder().insecure()] {
        let client = builder.clone().connect_wait(server.address).unwrap();
        assert_eq!(client.call(ECHO, "six").wait().unwrap(), "six");
        let four = wait(builder.clone().connect(other.address)).unwrap();
        assert_eq!(four.call(ECHO, "four").wait().unwrap(), "four");
        // The second client has only the other client's ports.
        let beside = builder.beside(&client).connect_wait(server.address).unwrap();
        assert_eq!(beside.call(ECHO, "beside").wait().unwrap(), "beside");
    }
}

/// Wherever the event loop runs code, and nowhere else on its thread.
#[test]
fn wait__panics_in_an_event_loop() {
    let refused = || {
        let panic = std::panic::catch_unwind(|| wait(std::future::ready(7))).unwrap_err();
        panic.downcast_ref::<&str>().is_some_and(|text| text.contains("await the future in a task"))
    };
    let server = Server::start(over(true, true), "127.0.0.1:0", move |endpoint| {
        endpoint.on(WAITS, move |_, cx, request| request.reply(cx, &[u8::from(refused())]));
    });
    let mut endpoint = crate::common::client(over(true, true));
    let session = endpoint.connect_wait(server.address).unwrap();
    assert_eq!(endpoint.call(session, WAITS, b"").wait().unwrap()[..], [1], "in a handler");
    endpoint.run_until(|_, _| refused());
    assert!(endpoint.run_for(Duration::ZERO, |_, _| refused()));
    assert!(endpoint.block_on(async { refused() }));
    // The test drives the loop.
    let (tell, told) = mpsc::channel();
    let _task = endpoint.handle().spawn(async move { tell.send(refused()).unwrap() });
    let in_task = loop {
        endpoint.run_once();
        if let Ok(in_task) = told.try_recv() {
            break in_task;
        }
    };
    assert!(in_task);
    assert_eq!(wait(std::future::ready(7)), 7, "between two runs of the loop");
}

#[test]
fn timeout__is_over_in_any_executor() {
    let (server, _kept) = server();
    let client = Client::connect_wait(server.address).unwrap();
    let (short, long) = (Duration::from_millis(1), Duration::from_secs(600));
    let never = std::future::pending::<()>();
    let error = wait(client.timeout(short, never)).unwrap_err();
    assert_eq!(
        error.to_string(),
        "DEADLINE_EXCEEDED: the time is over (the request may have been executed)"
    );
    let before_ns = client.now().as_ns();
    let answer = wait(client.timeout(long, client.call(ECHO, "soon"))).unwrap().unwrap();
    assert_eq!(answer, "soon");
    assert!(client.now().as_ns() > before_ns);
}
