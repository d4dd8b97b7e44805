//! A server's message memory: clients that stall in the middle of large requests, or fall silent after large responses,
//! leave room for others (`docs/wire-protocol.md` §6.4).

use std::cell::RefCell;
use std::net::SocketAddr;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use crate::common::{ECHO, Server, client, over, pattern};
use petrel::endpoint::{CallOptions, EndpointConfig, SessionId};
use petrel::{Endpoint, Execution, Status};

/// Answers with 8 MiB.
const GIVE: u16 = 2;

const LARGE: usize = 8 << 20;

/// Far longer than any call here: a guard against hangs.
const LONG: Duration = Duration::from_secs(60);

fn server(config: EndpointConfig) -> Server {
    Server::start(config, "127.0.0.1:0", |endpoint| {
        endpoint.on(GIVE, |_, cx, request| match cx.alloc(LARGE) {
            Ok(mut answer) => {
                answer.set_len(LARGE);
                request.reply_buffer(cx, answer)
            }
            Err(_) => request.fail(cx, Status::ResourceExhausted, "no memory for the answer"),
        });
    })
}

/// An endpoint that has sent the first packets of many large requests and then stands still; its nexus goes on and
/// keeps the sessions alive.
fn begin_requests(server: SocketAddr, sessions: usize) -> Endpoint {
    let mut config = over(true, false);
    // Mapped, and never written.
    config.memory.max_bytes = 8 << 30;
    let mut endpoint = client(config);
    let sessions: Vec<SessionId> =
        (0..sessions).map(|_| endpoint.connect_wait(server).unwrap()).collect();
    for session in sessions {
        for _ in 0..8 {
            let mut request = endpoint.alloc(LARGE).unwrap();
            request.set_len(LARGE);
            let response = endpoint.alloc(0).unwrap();
            endpoint.call(session, ECHO, request).into_buffer(response).then(|_, _, _| {}).unwrap();
        }
    }
    // Enough turns for each slot to send; far too few for a complete request.
    for _ in 0..20 {
        endpoint.run_once();
    }
    endpoint
}

fn try_large(client: &mut Endpoint, session: SessionId) -> Result<(), (Status, Execution)> {
    let options = CallOptions::new().timeout(LONG);
    let message = pattern(LARGE, 3);
    match client.call(session, ECHO, &message).options(options).wait() {
        Ok(reply) => {
            assert!(reply[..] == message[..], "the bytes differ");
            Ok(())
        }
        Err(failure) => Err((failure.status, failure.execution)),
    }
}

#[test]
fn half_arrived_requests_of_one_peer__honest_calls_go_on_small_and_large() {
    let server = server(over(true, false));
    let _attacker = begin_requests(server.address, 12);
    let mut honest = client(over(true, false));
    let session = honest.connect_wait(server.address).unwrap();
    for round in 0..3 {
        honest.call(session, ECHO, b"").wait().unwrap();
        assert_eq!(try_large(&mut honest, session), Ok(()), "round {round}");
    }
}

#[test]
fn half_arrived_requests_of_many_peers__small_calls_go_on_and_large_ones_come_back() {
    let server = server(over(true, false));
    let _attackers: Vec<Endpoint> = (0..5).map(|_| begin_requests(server.address, 4)).collect();
    let mut honest = client(over(true, false));
    let session = honest.connect_wait(server.address).unwrap();
    let mut refused = 0;
    loop {
        for size in [0, 1_000, 60_000] {
            let message = pattern(size, 1);
            let reply = honest.call(session, ECHO, &message).wait().unwrap();
            assert!(reply[..] == message[..]);
        }
        match try_large(&mut honest, session) {
            Ok(()) => break,
            Err(end) => assert_eq!(end, (Status::ResourceExhausted, Execution::Refused)),
        }
        refused += 1;
        assert!(refused < 1_000_000, "the requests that stand still do not give way");
    }
}

#[test]
fn kept_answers_of_idle_clients__the_next_client_gets_its_own() {
    let server = server(over(true, false));
    let mut idle = Vec::new();
    for at in 0..12 {
        let mut client = client(over(true, false));
        let session = client.connect_wait(server.address).unwrap();
        let ended = Rc::new(RefCell::new(Vec::new()));
        for _ in 0..8 {
            let (request, response) = (client.alloc(0).unwrap(), client.alloc(LARGE).unwrap());
            let ended = Rc::clone(&ended);
            client
                .call(session, GIVE, request)
                .into_buffer(response)
                .then(move |_, _, reply| {
                    ended.borrow_mut().push(reply.into_response().map(|answer| answer.len()));
                })
                .unwrap();
        }
        assert!(client.run_for(LONG, |_, _| ended.borrow().len() == 8), "client {at} waits");
        for end in ended.take() {
            assert_eq!(end.unwrap_or_else(|failure| panic!("client {at}: {failure}")), LARGE);
        }
        client.call(session, ECHO, b"").wait().unwrap();
        assert_eq!(client.stats().protocol.answers_acknowledged, 8);
        idle.push(client);
    }
}

/// Takes all memory of the endpoint, and answers.
const HOG: u16 = 3;

#[test]
fn no_memory_for_an_answer__the_handler_does_not_run() {
    let runs = Arc::new(AtomicU64::new(0));
    let seen = Arc::clone(&runs);
    let mut config = over(true, false);
    config.memory.max_bytes = 1 << 20;
    let server = Server::start(config, "127.0.0.1:0", move |endpoint| {
        let mut hoard = Vec::new();
        endpoint.on(HOG, move |_, cx, request| {
            // Of all sizes, down to the smallest.
            for capacity in [100_000, 10_000, 4_000, 1_000, 100, 0] {
                while let Ok(taken) = cx.alloc(capacity) {
                    hoard.push(taken);
                }
            }
            // This response's memory was reserved before.
            request.reply(cx, b"")
        });
        endpoint.on(ECHO, move |_, cx, request| {
            seen.fetch_add(1, Ordering::SeqCst);
            request.reply(cx, b"")
        });
    });
    let mut client = client(over(true, false));
    let session = client.connect_wait(server.address).unwrap();
    client.call(session, HOG, b"").wait().unwrap();
    // The first on a slot with memory for a response, the others on slots without.
    let ends = Rc::new(RefCell::new(Vec::new()));
    for _ in 0..3 {
        let ends = Rc::clone(&ends);
        client
            .call(session, ECHO, b"")
            .then(move |_, _, reply| {
                let end = reply.outcome.map_err(|failure| (failure.status, failure.execution));
                ends.borrow_mut().push(end);
            })
            .unwrap();
    }
    assert!(client.run_for(LONG, |_, _| ends.borrow().len() == 3));
    let refused = Err((Status::ResourceExhausted, Execution::Refused));
    assert_eq!(ends.borrow().iter().filter(|end| **end == refused).count(), 2, "{ends:?}");
    assert_eq!(runs.load(Ordering::SeqCst), 1, "no handler runs that cannot answer");
}
