//! Callers that run the event loop of their client's endpoint: threads that wait, tasks of executors, and the endpoint's thread in
//! between. Each test has an endpoint without other clients.

use std::future::Future;
use std::pin::pin;
use std::rc::Rc;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::mpsc;
use std::task::{Context, Poll, Waker};
use std::thread;
use std::time::Duration;

use petrel::client::Background;
use petrel::server::RunningServer;
use petrel::workers::WorkerRequest;
use petrel::{Client, Server};

const ECHO: u16 = 1;
const HELD: u16 = 2;

/// Calls of a thread or task: more than it takes until callers run the event loop.
const CALLS: u32 = 500;

/// Far longer than a test.
const HANG_GUARD: Duration = Duration::from_secs(60);

/// Returns a server, the requests of method HELD, and a client whose endpoint has no other clients.
fn start() -> (RunningServer, mpsc::Receiver<WorkerRequest>, Client) {
    let (keep, kept) = mpsc::channel();
    let server = Server::bind("127.0.0.1:0").serve(
        |_| (),
        move |endpoint| {
            let keep = keep.clone();
            crate::common::echo(endpoint, ECHO);
            crate::common::hold(endpoint, HELD, keep);
        },
    );
    let server = server.start().unwrap();
    let background = Background::builder().start().unwrap();
    let client = Client::builder().background(&background);
    let client = client.connect_wait(server.local_addr()).unwrap();
    (server, kept, client)
}

/// Calls the server one call after another.
fn call_in_turn(client: &Client, of: u32) {
    for number in 0..CALLS {
        let request = [of, number].map(u32::to_le_bytes).concat();
        assert_eq!(client.call(ECHO, &request[..]).wait().unwrap(), request[..]);
    }
}

#[test]
fn wait__of_several_threads_at_times_together_and_at_times_alone() {
    let (_server, _kept, client) = start();
    call_in_turn(&client, 0);
    thread::scope(|scope| {
        let client = &client;
        for of in 1..4 {
            scope.spawn(move || {
                call_in_turn(client, of);
                thread::sleep(Duration::from_millis(of.into()));
                call_in_turn(client, of);
            });
        }
    });
    call_in_turn(&client, 4);
}

/// The first call's thread runs the event loop until the test answers; meanwhile another thread calls.
#[test]
fn wait__for_long_lets_others_call() {
    let (_server, kept, client) = start();
    call_in_turn(&client, 0);
    thread::scope(|scope| {
        let waits = scope.spawn(|| client.call(HELD, b"later").timeout(HANG_GUARD).wait());
        let held = kept.recv_timeout(HANG_GUARD).unwrap();
        call_in_turn(&client, 1);
        held.reply(b"now");
        assert_eq!(waits.join().unwrap().unwrap(), b"now");
    });
}

/// A task's `Rc` stays on the thread of the endpoint, whatever threads call meanwhile.
#[test]
fn spawn__runs_on_one_thread_while_others_call() {
    let (_server, _kept, client) = start();
    call_in_turn(&client, 0);
    let is_over = AtomicBool::new(false);
    thread::scope(|scope| {
        scope.spawn(|| {
            while !is_over.load(Ordering::Relaxed) {
                call_in_turn(&client, 1);
            }
        });
        for _ in 0..20 {
            let calls = client.clone();
            let spawned = client.spawn(async move |handle| {
                let began = Rc::new(thread::current().id());
                for _ in 0..10 {
                    handle.sleep(Duration::from_micros(100)).await;
                    calls.call(ECHO, b"x").await.unwrap();
                    assert_eq!(*began, thread::current().id());
                }
                (*began, thread::current().name().unwrap().to_owned())
            });
            let (id, name) = petrel::client::wait(spawned).unwrap();
            assert!(id != thread::current().id() && name.starts_with("petrel-"), "{name}");
        }
        is_over.store(true, Ordering::Relaxed);
    });
}

#[test]
fn tasks__of_a_runtime_are_all_answered_and_others_are_dropped_meanwhile() {
    let (_server, kept, client) = start();
    let answered = &AtomicU32::new(0);
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build().unwrap();
    runtime.block_on(async {
        let mut tasks = Vec::new();
        for of in 0..20_u32 {
            let client = client.clone();
            tasks.push(tokio::spawn(async move {
                let mut answered = 0;
                for number in 0..CALLS {
                    let request = [of, number].map(u32::to_le_bytes).concat();
                    assert_eq!(client.call(ECHO, &request[..]).await.unwrap(), request[..]);
                    answered += 1;
                    if number % 50 == of {
                        // A call that is given up, perhaps by the task that runs the event loop.
                        let held = client.call(HELD, b"never");
                        let given_up = tokio::time::timeout(Duration::from_millis(1), held).await;
                        assert!(given_up.is_err());
                    }
                }
                answered
            }));
        }
        for task in tasks {
            answered.fetch_add(task.await.unwrap(), Ordering::Relaxed);
        }
    });
    assert_eq!(answered.load(Ordering::Relaxed), 20 * CALLS);
    drop(kept);
    call_in_turn(&client, 99);
}

/// An executor that polls a call no longer: the endpoint's thread goes on.
#[test]
fn a_task_that_is_polled_no_longer_holds_nobody_up() {
    let (_server, kept, client) = start();
    let mut abandoned = pin!(client.call(HELD, b"long").timeout(HANG_GUARD));
    let mut cx = Context::from_waker(Waker::noop());
    let mut also = pin!(client.call(HELD, b"also").timeout(HANG_GUARD));
    for _ in 0..100 {
        assert!(abandoned.as_mut().poll(&mut cx).is_pending());
        assert!(also.as_mut().poll(&mut cx).is_pending());
    }
    thread::scope(|scope| {
        scope.spawn(|| call_in_turn(&client, 1)).join().unwrap();
        for _ in 0..2 {
            kept.recv_timeout(HANG_GUARD).unwrap().reply(b"at last");
        }
    });
    assert_eq!(petrel::client::wait(abandoned).unwrap(), b"at last");
    assert_eq!(petrel::client::wait(also).unwrap(), b"at last");
}

/// The task that runs the event loop gets a response, or gives the call up: another task runs the event loop.
#[test]
fn a_task_that_ends_leaves_the_event_loop_to_another() {
    let (_server, kept, client) = start();
    let mut cx = Context::from_waker(Waker::noop());
    for gives_up in [true, false].repeat(20) {
        let mut first = Box::pin(client.call(HELD, b"1").timeout(HANG_GUARD));
        let mut second = Box::pin(client.call(HELD, b"2").timeout(HANG_GUARD));
        let mut held = Vec::new();
        while held.len() < 2 {
            assert!(first.as_mut().poll(&mut cx).is_pending());
            assert!(second.as_mut().poll(&mut cx).is_pending());
            held.extend(kept.try_recv());
        }
        if gives_up {
            drop(first);
            held.into_iter().for_each(|request| request.reply(b"both"));
        } else {
            held.into_iter().for_each(|request| request.reply(b"both"));
            assert_eq!(petrel::client::wait(first).unwrap(), b"both");
        }
        let answer = loop {
            if let Poll::Ready(answer) = second.as_mut().poll(&mut cx) {
                break answer;
            }
        };
        assert_eq!(answer.unwrap(), b"both");
    }
}

/// An executor catches the panic, and drops the call that runs the event loop while the thread unwinds.
#[test]
fn a_task_that_panics_ends_its_own_call_alone() {
    let (_server, _kept, client) = start();
    for _ in 0..20 {
        let panics = std::panic::AssertUnwindSafe(|| {
            let mut cx = Context::from_waker(Waker::noop());
            let mut calls = [(); 2].map(|()| Box::pin(client.call(HELD, b"held")));
            for _ in 0..10 {
                calls.iter_mut().for_each(|call| assert!(call.as_mut().poll(&mut cx).is_pending()));
            }
            std::panic::resume_unwind(Box::new("a task's own panic"));
        });
        assert!(std::panic::catch_unwind(panics).is_err());
        assert_eq!(client.call(ECHO, b"x").wait().unwrap(), b"x");
    }
}
