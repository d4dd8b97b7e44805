//! Clients of a service: calls from any thread and any executor that outlive sessions and servers.

use std::net::SocketAddr;
use std::sync::atomic::Ordering;
use std::time::Duration;

use petrel::client::Targets;
use petrel::client::{Background, ClientConfig};
use petrel::endpoint::Health;
use petrel::{Client, Execution, Status};

use crate::common::{ECHO, Server, client, counter, free_address, over, wait_until};
use crate::service::{NEVER, server, server_at};

/// Refused by the first server.
const REFUSE: u16 = 5;

#[test]
fn started__calls_go_out_before_they_are_awaited() {
    let (server, counts) = server("only");
    let client = Client::connect_wait(server.address).unwrap();
    let never = client.call(NEVER, "").started();
    wait_until(|| counts.came.load(Ordering::SeqCst) == 1);
    let not_begun = client.call(NEVER, "");
    assert_eq!(client.call(ECHO, "after").wait().unwrap(), b"after");
    assert_eq!(counts.came.load(Ordering::SeqCst), 1, "a call that is not polled is not made");
    drop((never, not_begun));
    wait_until(|| counts.went.load(Ordering::SeqCst) == 1);
}

#[test]
fn connect__reports_the_error() {
    let error = Client::connect_wait(free_address()).unwrap_err();
    assert_eq!((error.status, error.execution), (Status::Unavailable, Execution::NotSent));
    assert!(error.message.contains("no server can be reached"), "{error}");
    let error = Client::connect_wait("localhost").unwrap_err();
    assert_eq!(error.status, Status::InvalidArgument);
    assert!(error.message.contains("a host and a port expected"), "{error}");
    let error = Client::connect_wait("192.0.2.1:31850").unwrap_err();
    assert!(error.message.contains("insecure"), "another host: {error}");
    let none: [SocketAddr; 0] = [];
    assert_eq!(Client::connect_wait(none).unwrap_err().status, Status::InvalidArgument);
}

#[test]
fn connect__to_a_file_reports_the_error_in_it() {
    let path = std::env::temp_dir().join(format!("petrel-connect-{}", std::process::id()));
    let connect = || Client::connect_wait(Targets::file(&path));
    let error = connect().unwrap_err();
    assert_eq!((error.status, error.execution), (Status::Unavailable, Execution::NotSent));
    assert!(error.message.contains("cannot be read"), "{error}");
    std::fs::write(&path, "127.0.0.1:1\n127.0.0.1:2 weight=none\n").unwrap();
    let error = connect().unwrap_err();
    assert_eq!(error.status, Status::InvalidArgument);
    assert!(error.message.contains(&format!("{}:2: ", path.display())), "{error}");
    std::fs::remove_file(&path).unwrap();
}

#[test]
fn client__of_a_file_follows_it_and_outlives_mistakes_in_it() {
    let (mut first, _) = server("only");
    let (second, _) = server("only");
    let path = std::env::temp_dir().join(format!("petrel-follow-{}", std::process::id()));
    std::fs::write(&path, format!("{} # alone", first.address)).unwrap();
    let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
    let client = runtime.block_on(Client::connect(Targets::file(&path))).unwrap();
    let echo = |message: &str| {
        // A server that ends may have got the call.
        let call = client.call(ECHO, message).idempotent().wait_for_ready();
        assert_eq!(call.wait().unwrap(), message.as_bytes());
    };
    echo("by the first");
    std::fs::write(&path, format!("{}\n{}", first.address, second.address)).unwrap();
    wait_until(|| client.stats().servers_ready == 2);
    std::fs::write(&path, "nonsense").unwrap();
    first.end();
    echo("by the second, which the file does not have any more");
    let (third, _) = server("only");
    std::fs::write(&path, format!("{} weight=3", third.address)).unwrap();
    wait_until(|| client.stats().sessions_opened == 3 && client.stats().servers_ready == 1);
    drop(second);
    echo("by the third");
    std::fs::remove_file(&path).unwrap();
}

#[test]
fn connect__to_a_name_and_to_whichever_of_many_is_there() {
    let (server, _) = server("only");
    let name = format!("localhost:{}", server.address.port());
    let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
    let client = runtime.block_on(Client::connect(name)).unwrap();
    assert_eq!(client.call(ECHO, "by name").wait().unwrap(), b"by name");
    let client = Client::connect_wait([free_address(), server.address]).unwrap();
    for _ in 0..10 {
        assert_eq!(client.call(ECHO, "one is there").wait().unwrap(), b"one is there");
    }
}

/// Also when another server has refused the call before.
#[test]
fn response__names_the_server_that_gave_it() {
    let serve = |name: &'static str| {
        let server = petrel::Server::bind("127.0.0.1:0").serve(
            |_| (),
            move |endpoint| {
                endpoint.on(ECHO, move |_, cx, request| request.reply(cx, name.as_bytes()));
                endpoint.on(REFUSE, move |_, cx, request| match name {
                    "first" => request.refuse(cx, Status::Unavailable, "not here"),
                    _ => request.reply(cx, name.as_bytes()),
                });
            },
        );
        server.start().unwrap()
    };
    let (first, second) = (serve("first"), serve("second"));
    let client = Client::connect_wait([first.local_addr(), second.local_addr()]).unwrap();
    let mut seen = [0; 2];
    wait_until(|| {
        let response = client.call(ECHO, "who?").wait().unwrap();
        let (place, address) = match &*response {
            b"first" => (0, first.local_addr()),
            _ => (1, second.local_addr()),
        };
        assert_eq!(response.server(), address, "{response:?}");
        seen[place] += 1;
        seen.iter().all(|count| *count > 0)
    });
    for _ in 0..20 {
        let response = client.call(REFUSE, "who?").wait().unwrap();
        assert_eq!((response.server(), &*response), (second.local_addr(), &b"second"[..]));
    }
}

#[test]
fn server__that_is_gone_fails_a_call_unless_it_waits() {
    let (mut server, _) = server("only");
    let address = server.address;
    let client = Client::connect_wait(address).unwrap();
    server.end();
    // The client may notice the loss of the session only after the first attempt.
    let error = client.call(ECHO, "").wait().unwrap_err();
    assert_eq!(error.status, Status::Unavailable);
    let waits = client.call(ECHO, "patient").wait_for_ready().started();
    let gives_up = client.call(ECHO, "").wait_for_ready().started();
    drop(gives_up);
    let (_server, _) = server_at(&address.to_string(), "next");
    assert_eq!(waits.wait().unwrap(), b"patient");
}

#[test]
fn background__ends_with_its_last_client_and_its_calls_with_it() {
    let (server, counts) = server("only");
    let background = Background::builder().threads(2).start().unwrap();
    let clients: Vec<_> = (0..4)
        .map(|_| Client::builder().background(&background).connect_wait(server.address).unwrap())
        .collect();
    for client in &clients {
        assert_eq!(client.call(ECHO, "each").wait().unwrap(), b"each");
    }
    let call = clients[0].call(NEVER, "").started();
    wait_until(|| counts.came.load(Ordering::SeqCst) == 1);
    drop((background, clients));
    // The call keeps the first client alive.
    assert_eq!(counts.went.load(Ordering::SeqCst), 0);
    drop(call);
    wait_until(|| counts.went.load(Ordering::SeqCst) == 1);
}

#[test]
fn client__that_is_dropped_closes_its_sessions_and_leaves_its_number_to_the_next() {
    let (server, _) = server("only");
    let mut endpoint = client(over(true, true));
    for _ in 0..3 {
        let clients = [(); 2].map(|()| endpoint.client([server.address], Default::default()));
        let calls = clients.each_ref().map(|client| client.call(ECHO, "").started());
        let mut ended = calls.map(Box::pin);
        endpoint.block_on(async {
            for call in &mut ended {
                assert_eq!(call.as_mut().await.unwrap(), b"");
            }
        });
        drop((ended, clients));
        while endpoint.object_counts().left_at_end().is_some() {
            endpoint.run_once();
        }
    }
}

#[test]
fn health__of_the_server_and_of_a_method() {
    let server = Server::start(over(true, true), "127.0.0.1:0", |endpoint| {
        endpoint.set_method_health(NEVER, Health::NotServing);
    });
    let client = Client::connect_wait(server.address).unwrap();
    assert_eq!(client.health(None).wait().unwrap(), Health::Serving);
    assert_eq!(client.health(Some(ECHO)).wait().unwrap(), Health::Serving);
    assert_eq!(client.health(Some(NEVER)).wait().unwrap(), Health::NotServing);
    assert_eq!(client.health(Some(77)).wait().unwrap(), Health::Unknown);
}

#[test]
fn set_targets__leaves_a_server_when_its_last_call_has_ended() {
    let (first, counts) = server("only");
    let (second, second_counts) = server("only");
    let client = Client::connect_wait(first.address).unwrap();
    let held = client.call(NEVER, "").started();
    wait_until(|| counts.came.load(Ordering::SeqCst) == 1);
    client.set_targets([second.address, second.address]).unwrap();
    for _ in 0..20 {
        assert_eq!(client.call(ECHO, "to the other").wait().unwrap(), b"to the other");
    }
    let at_second = client.call(NEVER, "").started();
    wait_until(|| second_counts.came.load(Ordering::SeqCst) == 1);
    // A closed session would have cancelled it.
    assert_eq!(counts.went.load(Ordering::SeqCst), 0);
    drop(held);
    wait_until(|| counts.went.load(Ordering::SeqCst) == 1);
    wait_until(|| fetch_sessions(&first) == 0);
    assert_eq!(fetch_sessions(&second), 1, "a server that is named twice is one server");
    drop(at_second);
    assert!(client.set_targets([0_u8; 0].map(|_| second.address)).is_err());
    client.set_targets([first.address]).unwrap();
    wait_until(|| fetch_sessions(&second) == 0);
}

/// Returns the number of a server's sessions.
fn fetch_sessions(server: &Server) -> u64 {
    let json = petrel::nexus::fetch_stats(server.address, Duration::from_secs(10)).unwrap();
    counter(&json, "sessions")
}

/// Names are looked up again: after the loss of a server the client finds the current server of the name.
#[test]
fn client__of_a_name_looks_it_up_again_when_a_server_is_gone() {
    let (named, _) = server("only");
    let (mut other, _) = server("only");
    let client = Client::connect_wait(format!("localhost:{}", named.address.port())).unwrap();
    client.set_targets([other.address]).unwrap();
    assert_eq!(client.call(ECHO, "elsewhere").wait().unwrap(), b"elsewhere");
    wait_until(|| fetch_sessions(&named) == 0);
    other.end();
    let call = client.call(ECHO, "back").idempotent().wait_for_ready();
    assert_eq!(call.timeout(Duration::from_secs(60)).wait().unwrap(), b"back");
    assert_eq!(fetch_sessions(&named), 1);
}

/// The configured timeout applies to calls without their own, and bounds no others.
#[test]
fn timeout__of_a_call_may_be_longer_than_that_of_the_client() {
    let (server, counts) = server("only");
    let mut config = ClientConfig::default();
    config.timeout = Duration::from_secs(1);
    let client = Client::builder().config(config).connect_wait(server.address).unwrap();
    let long = client.call(NEVER, "").timeout(Duration::from_secs(240)).started();
    wait_until(|| counts.came.load(Ordering::SeqCst) == 1);
    let failure = client.call(NEVER, "").wait().unwrap_err();
    assert_eq!(failure.status, Status::DeadlineExceeded);
    let echo = client.call(ECHO, "").timeout(Duration::from_secs(60));
    assert_eq!(echo.wait().map(Vec::from), Ok(Vec::new()));
    // A request that came late was not run; the long call is the only one left.
    let left = || counts.came.load(Ordering::SeqCst) - counts.went.load(Ordering::SeqCst);
    wait_until(|| left() == 1);
    drop(long);
    wait_until(|| left() == 0);
}
