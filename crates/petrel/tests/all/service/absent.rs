//! Servers that are not there, or do not answer: lazy clients, the time of a connect, and the texts of errors.

use std::net::TcpListener;
use std::time::{Duration, Instant};

use petrel::client::ClientConfig;
use petrel::endpoint::CallOptions;
use petrel::group::{ClientGroup, Late, Need};
use petrel::{Client, Execution, Server, Status};

use crate::common::free_address;

const ECHO: u16 = 1;

/// Far longer than the test.
const LONG: Duration = Duration::from_secs(60);

fn serve(address: std::net::SocketAddr) -> petrel::server::RunningServer {
    let server =
        Server::bind(address).serve(|_| (), |endpoint| crate::common::echo(endpoint, ECHO));
    server.start().unwrap()
}

/// The text of an error says everything once, also when `main` prints the error.
fn assert_once(error: &petrel::Error, parts: &[&str]) {
    let text = error.to_string();
    for part in parts {
        assert_eq!(text.matches(part).count(), 1, "{part:?} in {text:?}");
    }
    assert_eq!(format!("{error:?}"), text);
}

#[test]
fn lazy__client_starts_before_its_server_and_is_told_why_calls_fail() {
    let address = free_address();
    let client = Client::builder().lazy().connect_wait(address).unwrap();
    let error = client.call(ECHO, "early").wait().unwrap_err();
    assert_eq!((error.status, error.execution), (Status::Unavailable, Execution::NotSent));
    let (server, refused) = (address.to_string(), "no process listens");
    assert_once(&error, &[&server, refused, "no server can be reached", "was not sent"]);
    assert!(!error.message.contains("attempts"), "none reached a server: {error}");
    // The failure of a waiting call names the reason for the wait.
    let soon = Duration::from_millis(50);
    let error = client.call(ECHO, "early").wait_for_ready().timeout(soon).wait().unwrap_err();
    assert_eq!((error.status, error.execution), (Status::DeadlineExceeded, Execution::NotSent));
    assert_once(&error, &[&server, refused, "no server can be reached", "was not sent"]);
    let call = client.call(ECHO, "late").wait_for_ready().timeout(LONG).started();
    let _server = serve(address);
    assert_eq!(call.wait().unwrap(), b"late");
}

/// As before the first process of a service in a cluster: the name has no address.
#[test]
fn lazy__client_starts_before_its_servers_name_has_an_address() {
    // A label of 64 letters: the resolver says so without asking another host.
    let name = format!("{}:31850", "x".repeat(64));
    let client = Client::builder().lazy().connect_wait(&name).unwrap();
    let error = client.call(ECHO, "early").wait().unwrap_err();
    assert_eq!((error.status, error.execution), (Status::Unavailable, Execution::NotSent));
    assert_once(&error, &["names have no address yet"]);
    let call = client.call(ECHO, "late").wait_for_ready().timeout(LONG).started();
    let server = serve(free_address());
    client.set_targets(server.local_addr()).unwrap();
    assert_eq!(call.wait().unwrap(), b"late");
    let error = Client::connect_wait(&name).unwrap_err();
    assert!(error.to_string().contains(&name[..64]), "{error}");
    assert!(Client::builder().lazy().connect_wait("no port").is_err(), "a text that is no name");
}

#[test]
fn connect__that_is_not_lazy_fails_with_the_reason() {
    let (one, other) = (free_address(), free_address());
    let error = Client::connect_wait([one, other]).unwrap_err();
    let (one, other) = (one.to_string(), other.to_string());
    assert_once(&error, &[&one, &other, "no server can be reached", "was not sent"]);
}

/// A process that accepts connections and is silent, as a stopped one.
#[test]
fn connect__of_a_silent_server_obeys_the_timeout_and_costs_the_others_nothing() {
    let silent = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = silent.local_addr().unwrap();
    let mut config = ClientConfig::default();
    config.timeout = Duration::from_millis(100);
    let begin = Instant::now();
    let error = Client::builder().config(config).connect_wait(address).unwrap_err();
    assert!(begin.elapsed() < Duration::from_secs(4), "the control plane's own limit is 5 s");
    assert_eq!((error.status, error.execution), (Status::Unavailable, Execution::NotSent));
    assert_once(&error, &["no server can be reached", "the client's timeout"]);
    let other = serve("127.0.0.1:0".parse().unwrap());
    let client = Client::connect_wait([address, other.local_addr()]).unwrap();
    assert!(begin.elapsed() < Duration::from_secs(4));
    (0..100).for_each(|_| assert_eq!(client.call(ECHO, "x").wait().unwrap(), b"x"));
}

#[test]
fn group__of_lazy_clients_has_absent_members() {
    let (there, absent) = (serve("127.0.0.1:0".parse().unwrap()), free_address());
    let lazy = |address| Client::builder().lazy().connect_wait(address).unwrap();
    let group = ClientGroup::new([lazy(there.local_addr()), lazy(absent)]).unwrap();
    let options = CallOptions::new().timeout(LONG);
    let call = |need| petrel::client::wait(group.call(ECHO, "x", need, options, Late::Cancel));
    let members = call(Need::Any).unwrap();
    assert!(members[0].outcome.answer().is_some());
    let failure = call(Need::All).unwrap_err();
    let text = failure.to_string();
    assert_eq!(text.matches("no server can be reached").count(), 1, "{text}");
    assert_eq!(text.matches(&absent.to_string()).count(), 1, "{text}");
}

/// A search over shards of which one hangs and one is absent: the answers by the deadline, and why the rest has none.
#[test]
fn group__of_each_is_what_came_by_the_deadline() {
    const HANG: u16 = 2;
    let hanging = Server::bind("127.0.0.1:0").serve(
        |_| (),
        |endpoint| {
            endpoint.on_async(ECHO, |_, _| std::future::pending::<Result<Vec<u8>, _>>());
            endpoint.on(HANG, |_, cx, request| request.reply(cx, b""));
        },
    );
    let (hanging, there) = (hanging.start().unwrap(), serve("127.0.0.1:0".parse().unwrap()));
    let lazy = |address| Client::builder().lazy().connect_wait(address).unwrap();
    let addresses = [there.local_addr(), hanging.local_addr(), free_address()];
    let group = ClientGroup::new(addresses.map(lazy)).unwrap();
    // The members that are there are connected, and the second takes the request.
    group.members()[0].call(ECHO, "").wait_for_ready().timeout(LONG).wait().unwrap();
    group.members()[1].call(HANG, "").wait_for_ready().timeout(LONG).wait().unwrap();
    let options = CallOptions::new().timeout(Duration::from_secs(2));
    let call = group.call(ECHO, "found", Need::Each, options, Late::Cancel);
    let members = petrel::client::wait(call).unwrap();
    assert_eq!(*members[0].outcome.answer().unwrap(), *b"found");
    let failure = |place: usize| members[place].outcome.failure().unwrap();
    assert_eq!(failure(1).status, Status::DeadlineExceeded);
    assert_eq!(failure(1).execution, Execution::MayHaveExecuted);
    assert_eq!(failure(2).execution, Execution::NotSent);
}
