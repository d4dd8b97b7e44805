//! Why sessions ended and calls failed: as counters, and as reported to the application.

use std::time::Duration;

use crate::common::remote::plain;
use crate::common::{ECHO, Server, client, counter, keep, over};
use petrel::endpoint::{EndpointConfig, EndpointStats, SessionEnd, SessionId};
use petrel::{Endpoint, Execution, Status};
use petrel_transport::host::Host;

/// Keeps its requests.
const KEEP: u16 = 2;

fn keeping_server(config: EndpointConfig) -> Server {
    Server::start(config, "127.0.0.1:0", |endpoint| keep(endpoint, KEEP))
}

/// Returns the end of the only session that has ended.
fn only_end(stats: &EndpointStats) -> &'static str {
    let ends: Vec<_> = stats.session_ends.iter().filter(|(_, count)| *count > 0).collect();
    assert_eq!(ends.len(), 1, "{ends:?}");
    assert_eq!(ends[0].1, 1);
    ends[0].0
}

fn end_of(client: &Endpoint, session: SessionId) -> (SessionEnd, String) {
    let (end, reason) = client.session_end(session).expect("the session has ended");
    (end, reason.message.clone())
}

#[test]
fn a_server_that_ends_is_the_reason_of_its_sessions_and_calls() {
    let mut server = keeping_server(over(true, true));
    let mut client = client(EndpointConfig::default());
    let session = client.connect_wait(server.address).unwrap();
    assert!(client.session_end(session).is_none());
    let call = client.session(session).call(KEEP, b"").started();
    client.call(session, ECHO, b"").wait().unwrap();
    server.end();
    let failure = client.block_on(call).unwrap_err();
    let handle = client.session(session);
    client.block_on(handle.ended());
    let (end, why) = end_of(&client, session);
    assert_eq!(end, SessionEnd::LinkLost);
    assert_eq!((&failure.message, failure.execution), (&why, Execution::MayHaveExecuted));
    let stats = client.stats();
    assert_eq!(only_end(&stats), "sessions_ended_link_lost");
    assert_eq!(stats.call_failures.may_have_executed, 1);
    // A later call gets the same reason.
    let call = client.session(session).call(ECHO, b"").started();
    let late = client.block_on(call).unwrap_err();
    assert!(late.message.contains(&why), "{late}");
    assert_eq!((late.status, late.execution), (Status::Unavailable, Execution::NotSent));
}

#[test]
fn each_other_end_has_its_own_reason() {
    let client_of = |accept: bool| {
        let mut config = over(true, true);
        config.sessions.accept = accept;
        let server = Server::start(config, "127.0.0.1:0", |_| {});
        (server, client(EndpointConfig::default()))
    };
    let (server, mut client) = client_of(true);
    let session = client.connect_wait(server.address).unwrap();
    client.close(session);
    assert_eq!(end_of(&client, session).0, SessionEnd::ClosedHere);
    assert_eq!(only_end(&client.stats()), "sessions_ended_closed_here");

    let (server, mut client) = client_of(false);
    client.connect_wait(server.address).unwrap_err();
    assert_eq!(only_end(&client.stats()), "sessions_ended_refused");

    let (mut server, mut client) = client_of(true);
    server.end();
    client.connect_wait(server.address).unwrap_err();
    assert_eq!(only_end(&client.stats()), "sessions_ended_not_reached");
}

#[test]
fn calls_of_clients_are_counted() {
    let server = keeping_server(over(true, true));
    let mut endpoint = client(EndpointConfig::default());
    let remote = endpoint.client([server.address], plain());
    endpoint.run_until(|_, _| remote.stats().servers_ready == 1);
    let count = |endpoint: &petrel::Endpoint| {
        let calls = endpoint.stats().client_calls;
        (calls.made, calls.not_made, calls.under_way, calls.waiting)
    };
    let call = remote.call(KEEP, b"").started();
    endpoint.call(&remote, ECHO, b"").wait().unwrap();
    assert_eq!(count(&endpoint), (2, 0, 1, 0));
    // The buffer for the response cannot be allocated.
    let options = petrel::endpoint::CallOptions::new().response_bytes(usize::MAX / 2);
    let failure = endpoint.block_on(remote.call(ECHO, b"").options(options)).unwrap_err();
    assert_eq!(failure.status, Status::ResourceExhausted);
    assert_eq!(count(&endpoint), (2, 1, 1, 0));
    assert!(endpoint.stats().to_json().contains("\"client_calls_not_made\":1"));
    drop(call);
    endpoint.run_once();
    assert_eq!(count(&endpoint), (2, 1, 0, 0));
}

/// The text of a client's failure names the side with the problem.
#[test]
fn a_link_that_cannot_be_had_says_on_which_side_and_why() {
    let server = Server::start(over(false, true), "127.0.0.1:0", |_| {});
    let mut client = client(over(true, false));
    let error = client.connect_wait(server.address).unwrap_err().to_string();
    assert!(error.contains("the server takes no transport that was offered"), "{error}");
    drop(server);
}

#[test]
fn links_without_shared_memory_are_counted_by_the_reason() {
    let server = Server::start(over(true, true), "127.0.0.1:0", |_| {});
    let nexus = crate::common::nexus(None);
    let mut client = nexus.endpoint(over(true, false)).unwrap();
    let session = client.connect_wait(server.address).unwrap();
    assert!(!Host::is_near(client.session_peer_id(session).unwrap()));
    let stats = nexus.stats();
    assert_eq!((stats.no_shm_endpoint, stats.no_shm_process, stats.no_shm_peer), (1, 0, 0));
}

/// A call cancelled just before its endpoint and event loop are dropped.
#[test]
fn a_server_hears_of_a_call_that_is_cancelled_just_before_its_endpoint_is_dropped() {
    for (udp, shm) in [(true, false), (false, true)] {
        let server = keeping_server(over(true, true));
        let mut watcher = client(over(true, true));
        let mut cancels = 0;
        // The end of the link may overtake the last packets.
        for _ in 0..50 {
            let mut client = client(over(udp, shm));
            let session = client.connect_wait(server.address).unwrap();
            let call =
                client.session(session).call(KEEP, b"").timeout(Duration::from_secs(60)).started();
            client.call(session, ECHO, b"").wait().unwrap();
            drop(call);
            drop(client);
            cancels = cancels_received(&mut watcher, &server);
            if cancels > 0 {
                break;
            }
        }
        assert!(cancels > 0, "udp: {udp}, shm: {shm}");
    }
}

/// Returns the server's counter, after the server has handled all earlier packets.
fn cancels_received(watcher: &mut Endpoint, server: &Server) -> u64 {
    let session = watcher.connect_wait(server.address).unwrap();
    watcher.call(session, ECHO, b"").wait().unwrap();
    let json = petrel::nexus::fetch_stats(server.address, Duration::from_secs(60)).unwrap();
    counter(&json, "cancels_received")
}
