//! Servers of several threads, called by clients that know their address alone.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use petrel::client::owner_of;
use petrel::endpoint::EndpointId;
use petrel::server::{RunningServer, ServerThread};
use petrel::workers::WorkerRequest;
use petrel::{Client, Endpoint, Server, Status};

use crate::common::free_address;

/// Answers with the place of the thread.
const PLACE: u16 = 1;
/// Keeps the request.
const HOLD: u16 = 2;

const LONG: Duration = Duration::from_secs(60);

fn set_up(endpoint: &mut Endpoint<ServerThread>, held: &Arc<Mutex<Vec<WorkerRequest>>>) {
    endpoint.on(PLACE, |thread, cx, request| request.reply(cx, &[thread.index as u8]));
    let held = Arc::clone(held);
    endpoint.on(HOLD, move |thread, cx, request| {
        let place = thread.index as u8;
        let (request, handled) = request.detach(cx);
        let mut held = held.lock().unwrap();
        held.push(request);
        if held.len() == 40 {
            held.drain(..).for_each(|request| request.reply(&[place]));
        }
        handled
    });
}

fn start(address: &str, threads: usize, name: &str) -> RunningServer {
    let held = Arc::default();
    let server = Server::bind(address).threads(threads).service(name);
    server.serve(|thread| thread, move |endpoint| set_up(endpoint, &held)).start().unwrap()
}

fn place(client: &Client) -> u8 {
    client.call(PLACE, "").timeout(LONG).wait().unwrap()[0]
}

/// How many calls each thread answers.
fn counts(places: impl Iterator<Item = u8>) -> BTreeMap<u8, u32> {
    let mut counts = BTreeMap::new();
    places.for_each(|place| *counts.entry(place).or_default() += 1);
    counts
}

#[test]
fn clients_with_a_call_at_a_time_share_the_threads_and_have_one_session_each() {
    let server = start("127.0.0.1:0", 4, "places");
    let clients: Vec<_> =
        (0..40).map(|_| Client::connect_wait(server.local_addr()).unwrap()).collect();
    let firsts = counts(clients.iter().map(|client| {
        let first = place(client);
        assert!((0..20).all(|_| place(client) == first), "one session");
        assert_eq!(client.stats().servers_ready, 1);
        first
    }));
    // Each thread is the first of ten clients on average. One in 10^5 runs has a thread without any.
    assert_eq!(firsts.len(), 4, "{firsts:?}");
    // A client may still name the endpoint.
    let named = Client::connect_wait((server.local_addr(), EndpointId(2))).unwrap();
    assert_eq!(place(&named), 2);
}

#[test]
fn a_client_with_many_calls_uses_all_threads() {
    let server = start("127.0.0.1:0", 4, "places");
    let client = Client::connect_wait(server.local_addr()).unwrap();
    // Waiting requests make the threads busy, and every thread is needed.
    let mut sessions = 0;
    for _ in 0..100 {
        let calls: Vec<_> =
            (0..40).map(|_| client.call(HOLD, "").timeout(LONG).started()).collect();
        calls.into_iter().for_each(|call| drop(call.wait().unwrap()));
        sessions = client.stats().servers_ready;
        if sessions == 4 {
            break;
        }
    }
    assert_eq!(sessions, 4);
    // The threads take turns. On a loaded host the client may find a thread slow, and the thread then gets few calls for seconds.
    let (mut shares, guard) = (BTreeMap::new(), Instant::now());
    while shares.len() < 4 {
        assert!(guard.elapsed() < LONG, "{shares:?}");
        *shares.entry(place(&client)).or_insert(0) += 1;
    }
}

#[test]
fn calls_with_a_key_go_to_the_thread_that_owns_it() {
    let server = start("127.0.0.1:0", 3, "places");
    for _ in 0..3 {
        let client = Client::connect_wait(server.local_addr()).unwrap();
        for key in 0..60_u32 {
            let key = key.to_le_bytes();
            let answer = client.call(PLACE, "").key(key).timeout(LONG).wait().unwrap();
            assert_eq!(usize::from(answer[0]), owner_of(&key, 3));
        }
    }
}

/// The process at the address is replaced by one with fewer threads, then by one with more.
#[test]
fn a_server_that_comes_back_with_other_threads_is_called_at_these() {
    let address = free_address().to_string();
    let mut server = start(&address, 4, "places");
    let client = Client::connect_wait(server.local_addr()).unwrap();
    let patient = |key: u32| {
        let call = client.call(PLACE, "").key(key.to_le_bytes()).timeout(LONG);
        usize::from(call.wait_for_ready().idempotent().wait().unwrap()[0])
    };
    for threads in [1, 2, 5, 1] {
        assert!((0..20).all(|key| patient(key) < 5));
        server.stop();
        server.wait().unwrap();
        server = start(&address, threads, "places");
        let owner = |key: u32| owner_of(&key.to_le_bytes(), threads);
        let guard = Instant::now();
        // The client learns of the threads when it connects again.
        while (0..20).any(|key| patient(key) != owner(key)) {
            assert!(guard.elapsed() < LONG, "{threads} threads");
        }
    }
    drop(client);
    server.stop();
    server.wait().unwrap();
}

#[test]
fn service__of_another_name_gets_no_call() {
    let server = start("127.0.0.1:0", 2, "places");
    let wanted = |name: &str| Client::builder().service(name).connect_wait(server.local_addr());
    assert!(wanted("places").unwrap().call(PLACE, "").timeout(LONG).wait().is_ok());
    let error = wanted("people").unwrap_err();
    let text = error.to_string();
    assert!(text.contains("\"places\"") && text.contains("\"people\" is wanted"), "{text}");
    let nameless = Server::bind("127.0.0.1:0").serve(|_| (), |_| {}).start().unwrap();
    let error =
        Client::builder().service("people").connect_wait(nameless.local_addr()).unwrap_err();
    assert!(error.to_string().contains("no name"), "{error}");
}

/// An address passes to another service: a client with a wanted name makes no call there.
#[test]
fn service__that_takes_over_the_address_gets_no_call() {
    let address = free_address().to_string();
    let first = start(&address, 1, "places");
    let client = Client::builder().service("places").connect_wait(first.local_addr()).unwrap();
    assert_eq!(place(&client), 0);
    first.stop();
    first.wait().unwrap();
    let _second = start(&address, 1, "people");
    let call = || client.call(PLACE, "").timeout(LONG).wait();
    let guard = Instant::now();
    loop {
        let error = call().unwrap_err();
        assert_eq!(error.status, Status::Unavailable, "{error}");
        if error.to_string().contains("\"people\"") {
            break;
        }
        assert!(guard.elapsed() < LONG, "{error}");
    }
}
