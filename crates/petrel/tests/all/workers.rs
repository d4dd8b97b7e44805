//! Handlers on worker threads.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, mpsc};
use std::thread;
use std::time::{Duration, Instant};

use crate::common::remote::{Caller, plain};
use crate::common::{ECHO, Server, client, hold, over, pattern};
use futures_util::stream::{self, StreamExt};
use petrel::client::Call;
use petrel::endpoint::{CallOptions, EndpointConfig, IdlePolicy};
use petrel::workers::{WorkerRequest, Workers};
use petrel::{Endpoint, Execution, Status};

const WORK: u16 = 10;

fn echo(mut request: WorkerRequest) {
    let message = request.take_data();
    request.reply_vec(message);
}

fn failure(error: petrel::Error) -> (Status, String, Execution) {
    (error.status, error.message.clone(), error.execution)
}

/// A server whose method WORK runs on a pool.
fn server(
    config: EndpointConfig,
    workers: Workers,
    handler: impl Fn(WorkerRequest) + Send + Sync + 'static,
) -> (Server, Workers) {
    server_with(config, workers, |_| handler)
}

/// The same with a handler made from the endpoint.
fn server_with<H: Fn(WorkerRequest) + Send + Sync + 'static>(
    config: EndpointConfig,
    workers: Workers,
    handler: impl FnOnce(&mut Endpoint) -> H + Send + 'static,
) -> (Server, Workers) {
    let (give, take) = mpsc::channel();
    let server = Server::start(config, "127.0.0.1:0", move |endpoint| {
        let handler = handler(endpoint);
        endpoint.on_worker(WORK, &workers, handler);
        give.send(workers).unwrap();
    });
    (server, take.recv().unwrap())
}

/// Controls handlers that report their begin and wait for permission to go on.
struct Gate {
    begun: mpsc::Receiver<()>,
    go_on: mpsc::Sender<()>,
}

fn gate() -> (Gate, impl Fn(WorkerRequest) + Send + Sync + 'static) {
    let (begin, begun) = mpsc::channel();
    let (go_on, goes_on) = mpsc::channel();
    let goes_on = Mutex::new(goes_on);
    let handler = move |request: WorkerRequest| {
        begin.send(()).unwrap();
        goes_on.lock().unwrap().recv().unwrap();
        echo(request);
    };
    (Gate { begun, go_on }, handler)
}

#[test]
fn worker__answers_messages_of_every_size_under_every_idle_policy() {
    let spin = IdlePolicy::SpinThenBlock(std::time::Duration::from_micros(5));
    for idle in [IdlePolicy::Poll, IdlePolicy::Yield, spin, IdlePolicy::Block] {
        for (udp, shm) in [(true, false), (false, true)] {
            let mut config = over(udp, shm);
            // A sleeping endpoint has to be woken for each answer.
            config.idle = IdlePolicy::Block;
            let workers = Workers::builder().threads(1).idle(idle).start().unwrap();
            let (server, workers) = server(config.clone(), workers, echo);
            let mut client = client(config);
            let session = client.connect_wait(server.address).unwrap();
            for len in [0, 1, 32, 5000, 300_000, 40] {
                let message = pattern(len, len as u64);
                let reply = client.call(session, WORK, &message).wait().unwrap();
                assert!(reply[..] == message[..], "{len} bytes differ");
            }
            drop(server);
            let stats = workers.stats();
            assert_eq!((stats.queued, stats.refused, stats.panicked), (6, 0, 0));
        }
    }
}

#[test]
fn worker__that_fails_forgets_or_panics_answers_and_goes_on() {
    let workers = Workers::builder().threads(1).start().unwrap();
    let (server, workers) = server(over(true, true), workers, |request| match request.data() {
        b"fail" => request.fail(Status::NotFound, "no such thing: naïve"),
        b"forget" => drop(request),
        b"panic" => panic!("asked for by the test"),
        _ => echo(request),
    });
    let mut client = client(over(true, true));
    let session = client.connect_wait(server.address).unwrap();
    let mut fails =
        |message: &[u8]| failure(client.call(session, WORK, message).wait().unwrap_err());
    let not_found = (Status::NotFound, "no such thing: naïve".to_owned(), Execution::Answered);
    assert_eq!(fails(b"fail"), not_found);
    let forgotten = "the handler dropped the request".to_owned();
    assert_eq!(fails(b"forget"), (Status::Internal, forgotten, Execution::Answered));
    let panicked = "the handler panicked".to_owned();
    assert_eq!(fails(b"panic"), (Status::Internal, panicked, Execution::Answered));
    assert_eq!(&client.call(session, WORK, b"still fine").wait().unwrap()[..], b"still fine");
    drop(server);
    workers.stop();
    while !workers.is_idle() {
        thread::yield_now();
    }
    let stats = workers.stats();
    assert_eq!((stats.queued, stats.executed, stats.panicked), (4, 3, 1));
}

#[test]
fn queue__that_is_full_refuses_at_once_and_the_endpoint_goes_on() {
    let (gate, handler) = gate();
    let workers = Workers::builder().threads(1).queue_requests(2).start().unwrap();
    let (server, workers) = server(over(true, true), workers, handler);
    let caller = Caller::start(over(true, true), server.address);
    let runs = caller.client.call(WORK, b"runs").started();
    gate.begun.recv().unwrap();
    let wait = ["one", "two"].map(|text| caller.client.call(WORK, text).started());
    let refused = caller.client.call(WORK, b"too much").wait().unwrap_err();
    let refusal = (refused.status, refused.execution);
    assert_eq!(refusal, (Status::ResourceExhausted, Execution::Refused), "{refused}");
    assert_eq!(caller.client.call(ECHO, b"dispatch").wait().unwrap(), b"dispatch");
    assert_eq!((workers.stats().waiting, workers.stats().waiting_bytes), (2, 6));
    assert_eq!((workers.stats().busy, workers.stats().refused), (1, 1));
    (0..3).for_each(|_| gate.go_on.send(()).unwrap());
    assert_eq!(runs.wait().unwrap(), b"runs");
    assert_eq!(wait.map(|call| call.wait().unwrap()), [b"one", b"two"]);
}

#[test]
fn queue__is_bounded_in_bytes_but_takes_a_large_request_alone() {
    let (gate, handler) = gate();
    let workers = Workers::builder().threads(1).queue_bytes(1000).start().unwrap();
    let (server, _workers) = server(over(true, true), workers, handler);
    let caller = Caller::start(over(true, true), server.address);
    let runs = caller.client.call(WORK, b"runs").started();
    gate.begun.recv().unwrap();
    let large = caller.client.call(WORK, [1; 5000]).started();
    let refused = caller.client.call(WORK, b"a byte").wait().unwrap_err();
    assert_eq!(refused.status, Status::ResourceExhausted, "{refused}");
    (0..2).for_each(|_| gate.go_on.send(()).unwrap());
    assert_eq!(runs.wait().unwrap(), b"runs");
    assert_eq!(large.wait().unwrap(), [1; 5000]);
}

/// A pool of one worker that runs the first of the calls, while the others wait.
struct Loaded {
    calls: Vec<Call>,
    gate: Gate,
    caller: Caller,
    workers: Option<Workers>,
    _server: Server,
}

impl Loaded {
    fn start() -> Self {
        let (gate, handler) = gate();
        let workers = Workers::builder().threads(1).start().unwrap();
        let (server, workers) = server(over(true, true), workers, handler);
        let mut config = over(true, true);
        config.sessions.slots = 8;
        let caller = Caller::start(config, server.address);
        let start = |_| caller.client.call(WORK, b"work").started();
        let calls = (0..100).map(start).collect();
        gate.begun.recv().unwrap();
        // As many as the session has slots: the others wait at the client.
        while workers.stats().queued < 8 {
            thread::yield_now();
        }
        Self { calls, gate, caller, workers: Some(workers), _server: server }
    }

    fn is_refused(&self) {
        let end = self.caller.client.call(WORK, b"late").wait().unwrap_err();
        assert_eq!((end.status, end.execution), (Status::Unavailable, Execution::Refused));
    }
}

#[test]
fn shutdown__executes_queued_requests_and_refuses_later_ones() {
    let mut loaded = Loaded::start();
    let workers = loaded.workers.take().unwrap();
    workers.stop();
    (0..100).for_each(|_| loaded.gate.go_on.send(()).unwrap());
    let ends: Vec<_> = loaded.calls.drain(..).map(Call::wait).collect();
    let (executed, refused) = ends.split_at(8);
    executed.iter().for_each(|end| assert_eq!(end.as_deref().unwrap(), b"work"));
    let refusal = |end: &Result<_, petrel::Error>| end.as_ref().unwrap_err().status;
    refused.iter().for_each(|end| assert_eq!(refusal(end), Status::Unavailable));
    loaded.is_refused();
    let stats = workers.stats();
    assert_eq!((stats.queued, stats.refused, stats.failed), (8, 93, 0));
    workers.shutdown();
}

#[test]
fn drop__fails_queued_requests_and_waits_for_running_ones() {
    let mut loaded = Loaded::start();
    let runs = loaded.calls.remove(0);
    let workers = loaded.workers.take().unwrap();
    let dropping = thread::spawn(move || drop(workers));
    for call in loaded.calls.drain(..) {
        assert_eq!(call.wait().unwrap_err().status, Status::Unavailable);
    }
    loaded.is_refused();
    loaded.gate.go_on.send(()).unwrap();
    assert_eq!(runs.wait().unwrap(), b"work");
    dropping.join().unwrap();
}

#[test]
fn nested__calls_of_all_workers_wait_and_the_endpoint_goes_on() {
    let (release, kept) = mpsc::channel::<WorkerRequest>();
    // The back server keeps requests until all workers have sent one.
    let back = Server::start(over(true, true), "127.0.0.1:0", move |endpoint| {
        hold(endpoint, WORK, release);
    });
    let (address, workers) = (back.address, Workers::builder().threads(2).start().unwrap());
    let (front, _workers) = server_with(over(true, true), workers, move |endpoint| {
        let behind = endpoint.client([address], plain());
        move |mut request: WorkerRequest| match behind.call(WORK, request.take_data()).wait() {
            Ok(response) => request.reply_vec(response.into_vec()),
            Err(failure) => request.fail(failure.status, &failure.message),
        }
    });
    let caller = Caller::start(over(true, true), front.address);
    let calls = [b"1", b"2", b"3"].map(|text| caller.client.call(WORK, text).started());
    let both = [kept.recv().unwrap(), kept.recv().unwrap()];
    assert_eq!(caller.client.call(ECHO, b"awake").wait().unwrap(), b"awake");
    both.into_iter().for_each(echo);
    echo(kept.recv().unwrap());
    assert_eq!(calls.map(|call| call.wait().unwrap()), [b"1", b"2", b"3"]);
}

#[test]
fn late__requests_are_refused_and_running_handlers_see_the_cancellation() {
    let (gate, handler) = gate();
    let workers = Workers::builder().threads(1).start().unwrap();
    let (server, workers) = server(over(true, true), workers, handler);
    let caller = Caller::start(over(true, true), server.address);
    let runs = caller.client.call(WORK, b"runs").started();
    gate.begun.recv().unwrap();
    let given_up = caller.client.call(WORK, b"given up").started();
    let last = caller.client.call(WORK, b"last").started();
    while workers.stats().waiting < 2 {
        thread::yield_now();
    }
    let soon = CallOptions::new().timeout(Duration::from_millis(100));
    let late = caller.client.call(WORK, b"late").options(soon).started();
    drop(given_up);
    assert_eq!(late.wait().unwrap_err().status, Status::DeadlineExceeded);
    // A call after the cancellation is answered after it.
    caller.client.call(ECHO, b"").wait().unwrap();
    (0..2).for_each(|_| gate.go_on.send(()).unwrap());
    assert_eq!([runs, last].map(|call| call.wait().unwrap()), [&b"runs"[..], b"last"]);
    assert_eq!(gate.begun.try_iter().count(), 1, "the last one, and neither of those given up");
    workers.stop();
    while !workers.is_idle() {
        thread::yield_now();
    }
    let stats = workers.stats();
    // On a busy machine the late call may not even have reached the queue.
    assert_eq!(stats.executed, 2, "{stats:?}");
    assert_eq!(stats.expired + stats.cancelled, stats.queued - 2, "{stats:?}");
    assert!(stats.cancelled >= 1, "{stats:?}");
    assert_eq!((stats.waiting, stats.waiting_bytes), (0, 0), "nothing waits, and nothing counts");
}

#[test]
fn cancellation__reaches_a_handler_and_deadlines_its_calls() {
    let (keep, kept) = mpsc::channel::<WorkerRequest>();
    let back = Server::start(over(true, true), "127.0.0.1:0", move |endpoint| {
        hold(endpoint, WORK, keep);
    });
    let (address, (tell, told)) = (back.address, mpsc::channel());
    let workers = Workers::builder().threads(1).start().unwrap();
    let (front, _workers) = server_with(over(true, true), workers, move |endpoint| {
        let behind = endpoint.client([address], plain());
        move |request: WorkerRequest| {
            let began = Instant::now();
            let inherits = behind.call(WORK, b"inherits").started();
            let options = CallOptions::new().within(&request);
            let client = behind.clone();
            let explicit =
                thread::spawn(move || client.call(WORK, b"told").options(options).started());
            let explicit = explicit.join().unwrap();
            while !request.is_cancelled() {
                thread::yield_now();
            }
            let left = (request.time_left(), request.deadline().map(petrel::Time::as_ns));
            tell.send((began, left, [inherits, explicit].map(Call::wait))).unwrap();
        }
    });
    let caller = Caller::start(over(true, true), front.address);
    let options = CallOptions::new().timeout(Duration::from_secs(1));
    let called = Instant::now();
    let call = caller.client.call(WORK, b"").options(options).started();
    let nested = [kept.recv().unwrap(), kept.recv().unwrap()];
    let arrived = Instant::now();
    assert_eq!(call.wait().unwrap_err().status, Status::DeadlineExceeded);
    let (began, (left, deadline_ns), ends) = told.recv().unwrap();
    for end in ends {
        assert_eq!(end.unwrap_err().status, Status::DeadlineExceeded);
    }
    // A request carries the time left: the deadline at the server is later by the transmission time. The cancel of the
    // caller, whose time is over first, may arrive before it.
    assert!(left.unwrap() <= began - called, "{left:?}");
    let latest_ns = deadline_ns.unwrap() + (arrived - began).as_nanos() as u64;
    for request in nested {
        assert!(request.deadline().unwrap().as_ns() <= latest_ns);
        while !request.is_cancelled() {
            thread::yield_now();
        }
    }
}

#[test]
fn pool__serves_two_endpoints_and_requests_move_on_to_other_threads() {
    let workers = Arc::new(Workers::builder().threads(1).start().unwrap());
    let (onward, passed) = mpsc::channel::<WorkerRequest>();
    thread::spawn(move || passed.into_iter().for_each(echo));
    let servers = [(); 2].map(|()| {
        let (pool, onward) = (Arc::clone(&workers), onward.clone());
        Server::start(over(true, true), "127.0.0.1:0", move |endpoint| {
            endpoint.on_worker(WORK, &pool, move |request| onward.send(request).unwrap());
        })
    });
    for server in &servers {
        let mut client = client(over(true, true));
        let session = client.connect_wait(server.address).unwrap();
        for round in 0..50 {
            let message = pattern(100, round);
            let reply = client.call(session, WORK, &message).wait().unwrap();
            assert_eq!(reply[..], message[..]);
        }
    }
    assert_eq!(workers.stats().queued, 100);
}

#[test]
fn endpoint__that_is_gone_leaves_its_workers_alone() {
    let (gate, handler) = gate();
    let workers = Workers::builder().threads(1).start().unwrap();
    let (mut server, workers) = server(over(true, true), workers, handler);
    let caller = Caller::start(over(true, true), server.address);
    let call = caller.client.call(WORK, b"work").started();
    gate.begun.recv().unwrap();
    server.end();
    let end = call.wait().unwrap_err();
    assert_eq!((end.status, end.execution), (Status::Unavailable, Execution::MayHaveExecuted));
    gate.go_on.send(()).unwrap();
    workers.shutdown();
}

#[test]
fn builder__refuses_a_pool_that_could_do_nothing() {
    let error = Workers::builder().threads(0).start().unwrap_err();
    assert_eq!(error.kind(), std::io::ErrorKind::InvalidInput);
    let error = Workers::builder().queue_requests(0).start().unwrap_err();
    assert_eq!(error.kind(), std::io::ErrorKind::InvalidInput);
}

#[test]
fn workers__take_load_from_many_threads_without_losing_a_call() {
    const THREADS: usize = 4;
    const CALLS: usize = 2000;
    let workers = Workers::builder().threads(3).queue_requests(64).start().unwrap();
    let (server, workers) = server(over(true, true), workers, echo);
    let caller = Caller::start(over(true, true), server.address);
    let refused = AtomicUsize::new(0);
    thread::scope(|scope| {
        for number in 0..THREADS {
            let (client, refused) = (caller.client.clone(), &refused);
            scope.spawn(move || {
                let message = pattern(64, number as u64);
                let calls = stream::iter(0..CALLS).map(|_| client.call(WORK, &message[..]));
                let ended = calls.buffer_unordered(40).for_each(async |outcome| match outcome {
                    Ok(response) => assert_eq!(response, message),
                    Err(end) => {
                        assert_eq!(end.status, Status::ResourceExhausted, "{end}");
                        refused.fetch_add(1, Ordering::Relaxed);
                    }
                });
                tokio::runtime::Builder::new_current_thread().build().unwrap().block_on(ended);
            });
        }
    });
    let stats = workers.stats();
    assert_eq!(stats.refused as usize, refused.into_inner());
    assert_eq!((stats.queued + stats.refused) as usize, THREADS * CALLS);
    assert!(stats.delay_ns_max > 0 && stats.delay_ns_sum >= stats.delay_ns_max);
}
