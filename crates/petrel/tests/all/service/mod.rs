//! Services: calls of clients that outlive sessions and servers.

mod absent;
mod attempts;
mod balance;
mod endpoints;
mod outliers;
mod redirects;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use crate::common::{ECHO, Server, client, echo, keep_with, nexus, over, run_until_seen};
use petrel::client::ClientConfig;
use petrel::endpoint::{CallOptions, EndpointConfig};
use petrel::{Client, Endpoint, Execution, Status};

/// Never answers; counts requests and cancellations.
pub(crate) const NEVER: u16 = 2;
/// Answers with the status in the request's first byte, and counts.
const FAIL: u16 = 3;
/// Answers with the server's name.
const NAME: u16 = 4;

#[derive(Default)]
pub(crate) struct Counts {
    pub(crate) came: AtomicU32,
    pub(crate) went: AtomicU32,
}

fn serve(endpoint: &mut Endpoint, name: &'static str, counts: &Arc<Counts>) {
    let never = Arc::clone(counts);
    keep_with(endpoint, NEVER, move |cx, responder| {
        never.came.fetch_add(1, Ordering::SeqCst);
        let counts = Arc::clone(&never);
        cx.on_cancel(responder, move |_, _| {
            counts.went.fetch_add(1, Ordering::SeqCst);
        });
    });
    let fail = Arc::clone(counts);
    endpoint.on(FAIL, move |_, cx, request| {
        fail.came.fetch_add(1, Ordering::SeqCst);
        let status = Status::from_code(request.data()[0]);
        request.fail(cx, status, "as asked for")
    });
    endpoint.on(NAME, move |_, cx, request| request.reply(cx, name.as_bytes()));
}

pub(crate) fn server_at(listen: &str, name: &'static str) -> (Server, Arc<Counts>) {
    let counts = Arc::new(Counts::default());
    let served = Arc::clone(&counts);
    let server = Server::start(over(true, true), listen, move |endpoint| {
        serve(endpoint, name, &served);
    });
    (server, counts)
}

pub(crate) fn server(name: &'static str) -> (Server, Arc<Counts>) {
    server_at("127.0.0.1:0", name)
}

fn seconds(seconds: u64) -> CallOptions {
    CallOptions::new().timeout(Duration::from_secs(seconds))
}

/// Returns a client connected to both servers.
fn to_both(
    client: &mut Endpoint,
    servers: &[(Server, Arc<Counts>)],
    config: ClientConfig,
) -> Client {
    let handle = client.handle();
    let service = client.client(servers.iter().map(|(server, _)| server.address), config);
    client.block_on(async {
        while service.stats().servers_ready < servers.len() as u64 {
            handle.sleep(Duration::from_millis(1)).await;
        }
    });
    service
}

/// Runs the endpoint until a server is available.
fn until_ready(endpoint: &mut Endpoint, service: &Client) {
    endpoint.run_until(|_, _| service.stats().servers_ready > 0);
}

/// Runs the client until a server has got a request of [`NEVER`]. Returns the server.
fn wait_for_one(client: &mut Endpoint, servers: &[(Server, Arc<Counts>)]) -> usize {
    let which = || servers.iter().position(|(_, counts)| counts.came.load(Ordering::SeqCst) > 0);
    run_until_seen(client, || which().is_some());
    which().unwrap()
}

#[test]
fn retry__after_a_possible_execution_only_of_idempotent_calls() {
    for is_idempotent in [false, true] {
        let mut servers = [server("one"), server("other")];
        let mut client = client(EndpointConfig::default());
        let service = to_both(&mut client, &servers, ClientConfig::default());
        let options = if is_idempotent { seconds(60).idempotent() } else { seconds(60) };
        let call = client.handle().spawn({
            let service = service.clone();
            async move { service.call(NEVER, b"").options(options).await }
        });
        let has_it = wait_for_one(&mut client, &servers);
        servers[has_it].0.end();
        if is_idempotent {
            let other = Arc::clone(&servers[1 - has_it].1);
            run_until_seen(&mut client, || other.came.load(Ordering::SeqCst) == 1);
            assert_eq!((service.stats().retries, call.try_take().is_none()), (1, true));
        } else {
            let failure = client.block_on(call).unwrap_err();
            let why = (failure.status, failure.execution);
            assert_eq!(why, (Status::Unavailable, Execution::MayHaveExecuted));
            assert_eq!(service.stats().retries, 0);
        }
    }
}

#[test]
fn a_hedge_answers_for_a_server_that_hangs_which_hears_of_it() {
    let (hangs, counts) = server("hangs");
    let hung = Arc::clone(&counts);
    let (answers, _) = {
        let counts = Arc::new(Counts::default());
        let server = Server::start(over(true, true), "127.0.0.1:0", |endpoint| {
            endpoint.on(NEVER, |_, cx, request| request.reply(cx, b"answered here"));
        });
        (server, counts)
    };
    let servers = [(hangs, counts), (answers, Arc::default())];
    let mut client = client(EndpointConfig::default());
    let service = to_both(&mut client, &servers, ClientConfig::default());
    let options = seconds(60).hedge_after(Duration::from_millis(2));
    for _ in 0..20 {
        let reply = client.block_on(service.call(NEVER, b"").options(options)).unwrap();
        assert_eq!(&reply[..], b"answered here");
    }
    // Calls begin with the two servers in turn.
    let stats = service.stats();
    assert!(hung.came.load(Ordering::SeqCst) > 0 && stats.hedges_won > 0, "{stats:?}");
    // Including the winning ones; a call has at most three beside its first attempt.
    assert!((stats.hedges_won..=20 * 3).contains(&stats.hedges), "{stats:?}");
    // Each hanging attempt was cancelled.
    run_until_seen(&mut client, || {
        hung.went.load(Ordering::SeqCst) == hung.came.load(Ordering::SeqCst)
    });
}

#[test]
fn answers_are_not_tried_again_but_for_unavailable_ones_that_do_no_harm() {
    let (server, counts) = server("only");
    let mut client = client(EndpointConfig::default());
    let service = client.client([server.address], ClientConfig::default());
    let mut came = 0;
    for (status, options, attempts) in [
        (Status::NotFound, seconds(60).idempotent(), 1),
        (Status::Unavailable, seconds(60), 1),
        (Status::Unavailable, seconds(60).idempotent(), 4),
    ] {
        let code = [status.code()];
        let call = service.call(FAIL, code).options(options.wait_for_ready());
        let failure = client.block_on(call).unwrap_err();
        assert_eq!((failure.status, failure.execution), (status, Execution::Answered));
        came += attempts;
        assert_eq!(counts.came.load(Ordering::SeqCst), came);
    }
}

/// If every call fails, the budget bounds retries, not the number of calls.
#[test]
fn retries_stop_when_their_budget_is_used_up() {
    let (server, counts) = server("only");
    let mut client = client(EndpointConfig::default());
    let mut config = ClientConfig::default();
    config.retry_backoff.max = Duration::from_micros(10);
    config.retry_budget.reserve_per_s = 0;
    let service = client.client([server.address], config);
    let options = seconds(60).idempotent().wait_for_ready();
    let code = [Status::Unavailable.code()];
    for _ in 0..1000 {
        let call = service.call(FAIL, code).options(options);
        client.block_on(call).unwrap_err();
    }
    let (stats, came) = (service.stats(), counts.came.load(Ordering::SeqCst));
    assert_eq!(u64::from(came), 1000 + stats.retries);
    assert!(stats.retries < 300 && stats.budget_exhausted > 700, "{stats:?}");
}

#[test]
fn timeout__without_an_answer_or_a_server() {
    let (server, counts) = server("silent");
    let mut client = client(EndpointConfig::default());
    let service = client.client([server.address], ClientConfig::default());
    until_ready(&mut client, &service);
    let options = CallOptions::new().timeout(Duration::from_millis(30)).wait_for_ready();
    // On a busy machine the deadline may pass before the request leaves: then the call was not sent.
    while counts.came.load(Ordering::SeqCst) == 0 {
        let failure = client.block_on(service.call(NEVER, b"").options(options)).unwrap_err();
        assert_eq!(failure.status, Status::DeadlineExceeded);
        match failure.execution {
            Execution::MayHaveExecuted => {
                _ = client.block_on(service.call(ECHO, b"").options(seconds(60)))
            }
            other => assert_eq!(other, Execution::NotSent),
        }
    }
    run_until_seen(&mut client, || {
        counts.went.load(Ordering::SeqCst) == counts.came.load(Ordering::SeqCst)
    });
    let nobody = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let listens: SocketAddr = nobody.local_addr().unwrap();
    let service = client.client([listens], ClientConfig::default());
    let failure = client.block_on(service.call(NEVER, b"").options(options)).unwrap_err();
    let why = (failure.status, failure.execution);
    assert_eq!(why, (Status::DeadlineExceeded, Execution::NotSent));
}

/// Servers are replaced in turn, under load, without effect on calls.
#[test]
fn a_rolling_restart_loses_no_call() {
    let draining = |listen: SocketAddr| {
        let (tell, told) = std::sync::mpsc::channel::<()>();
        let (ready, address) = std::sync::mpsc::channel();
        let thread = std::thread::spawn(move || {
            let nexus = nexus(Some(listen));
            let mut endpoint = nexus.endpoint(EndpointConfig::default()).unwrap();
            echo(&mut endpoint, ECHO);
            ready.send(nexus.local_addr().unwrap()).unwrap();
            run_until_seen(&mut endpoint, || told.try_recv().is_ok());
            assert_eq!(endpoint.drain(Duration::from_secs(60)), 0);
        });
        (address.recv().unwrap(), tell, thread)
    };
    let any: SocketAddr = "127.0.0.1:0".parse().unwrap();
    let mut servers = vec![draining(any), draining(any)];
    let mut client = client(EndpointConfig::default());
    let handle = client.handle();
    let addresses: Vec<_> = servers.iter().map(|(address, ..)| *address).collect();
    let service = client.client(addresses, ClientConfig::default());
    let stop = std::rc::Rc::new(std::cell::Cell::new(false));
    let load: Vec<_> = (0..8)
        .map(|_| {
            let (service, stop) = (service.clone(), std::rc::Rc::clone(&stop));
            handle.spawn(async move {
                let mut answered = 0u64;
                while !stop.get() {
                    let message = answered.to_le_bytes();
                    let reply =
                        service.call(ECHO, message).options(seconds(60).wait_for_ready()).await;
                    assert_eq!(reply.unwrap()[..], message);
                    answered += 1;
                }
                answered
            })
        })
        .collect();
    client.block_on(async {
        for _ in 0..4 {
            while service.stats().servers_ready < 2 {
                handle.sleep(Duration::from_millis(1)).await;
            }
            let (address, tell, thread) = servers.remove(0);
            tell.send(()).unwrap();
            while !thread.is_finished() {
                handle.sleep(Duration::from_millis(1)).await;
            }
            thread.join().unwrap();
            servers.push(draining(address));
        }
        while service.stats().servers_ready < 2 {
            handle.sleep(Duration::from_millis(1)).await;
        }
        stop.set(true);
        for task in load {
            assert!(task.await > 0);
        }
    });
    assert_eq!(service.stats().sessions_opened, 6);
    // The servers learn of the client's end, and then check whether to end.
    servers.iter().for_each(|(_, tell, _)| tell.send(()).unwrap());
    drop((service, handle, client));
    servers.into_iter().for_each(|(.., thread)| thread.join().unwrap());
}

#[test]
fn a_dropped_client_closes_its_sessions_and_ends_its_tasks() {
    let (server, _) = server("only");
    let mut client = client(EndpointConfig::default());
    let service = client.client([server.address], ClientConfig::default());
    until_ready(&mut client, &service);
    assert_eq!(client.core().session_count(), 1);
    drop(service);
    while client.core().session_count() > 0 {
        client.run_once();
    }
}

/// Found by the simulator: a session being opened when its client was dropped stayed open.
#[test]
fn a_client_dropped_while_it_connects_leaves_no_session_behind() {
    let (server, _) = server("only");
    let mut client = client(EndpointConfig::default());
    let open = |client: &mut Endpoint| client.client([server.address], ClientConfig::default());
    // With a link, a session is open after few turns.
    let other = open(&mut client);
    until_ready(&mut client, &other);
    let tasks = client.stats().tasks;
    for turns in 0..8 {
        let service = open(&mut client);
        for _ in 0..turns {
            client.run_once();
        }
        drop(service);
        while (client.core().session_count(), client.stats().tasks) != (1, tasks) {
            client.run_once();
        }
    }
}

/// Found by the simulator: the hedge's refusal was reported as the outcome of the whole call.
#[test]
fn a_hedge_that_is_refused_says_nothing_of_the_attempt_beside_it() {
    let (hangs, counts) = server("hangs");
    let refuses = Server::start(over(true, true), "127.0.0.1:0", |endpoint| {
        endpoint
            .on(NEVER, |_, cx, request| request.refuse(cx, Status::FailedPrecondition, "not here"));
    });
    let mut client = client(EndpointConfig::default());
    // No third attempt, at the server of the first, while the answer of the second is late.
    let mut config = ClientConfig::default();
    config.attempts_max = 2;
    let service = client.client([hangs.address, refuses.address], config);
    let hedged = seconds(60).hedge_after(Duration::from_millis(5));
    let (mut calls, mut unknown, handle) = (0, 0, client.handle());
    client.block_on(async {
        while service.stats().servers_ready < 2 {
            handle.sleep(Duration::from_millis(1)).await;
        }
        // Enough calls to reach the hanging server at least once.
        while counts.came.load(Ordering::SeqCst) == 0 || calls < 8 {
            calls += 1;
            let failure = service.call(NEVER, b"").options(hedged).await.unwrap_err();
            assert_eq!(failure.status, Status::FailedPrecondition);
            unknown += u32::from(failure.execution == Execution::MayHaveExecuted);
        }
    });
    // Earlier packets to the server arrive before a later request on the same link.
    let session = client.connect_wait(hangs.address).unwrap();
    client.call(session, ECHO, b"").wait().unwrap();
    // An attempt may have been cancelled before the request left: the server never sees the request.
    let came = counts.came.load(Ordering::SeqCst);
    assert!((1..=unknown).contains(&came), "{came} requests came, {unknown} calls are uncertain");
}

/// Each of the client's tasks waits to reconnect, and their waits overlap.
#[test]
fn a_dropped_client_whose_servers_are_gone_leaves_no_task() {
    let gone: Vec<_> = (0..4)
        .map(|_| {
            let (mut server, _) = server("gone");
            server.end();
            server.address
        })
        .collect();
    let mut client = client(EndpointConfig::default());
    let handle = client.handle();
    let service = client.client(gone, ClientConfig::default());
    client.block_on(async {
        while service.stats().connects_failed < 20 {
            handle.sleep(Duration::from_millis(1)).await;
        }
    });
    drop(service);
    client.run_once();
    assert_eq!(client.stats().tasks, 0);
}
