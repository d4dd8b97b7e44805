//! Restarted servers, and clients that continue with the next server.

use std::time::Duration;

use petrel::client::ClientConfig;
use petrel::client::Response;
use petrel::endpoint::{CallOptions, EndpointConfig, SessionId};
use petrel::task::Task;
use petrel::{Client, Endpoint, Execution, Status};

use crate::common::{each_medium, free_address};
use crate::interop::pair::{client, server, until};
use crate::interop::process::Process;
use crate::interop::service::{KEEP, KEPT, RELEASE, RUNS, WHO};

/// No call here takes as long.
fn patient() -> CallOptions {
    CallOptions::new().timeout(Duration::from_secs(240)).wait_for_ready()
}

fn begin(
    client: &Endpoint,
    service: &Client,
    options: CallOptions,
) -> Task<Result<Response, petrel::Error>> {
    let service = service.clone();
    client.handle().spawn(async move { service.call(KEEP, b"once").options(options).await })
}

/// Opens a separate session.
fn connect(client: &mut Endpoint, server: &Process) -> SessionId {
    client.connect_wait(server.address()).unwrap()
}

/// Returns how many calls a server has kept, and how often the call ran there.
fn seen(client: &mut Endpoint, server: &Process) -> (u64, u64) {
    let session = connect(client, server);
    let counts = [KEPT, RUNS].map(|method| {
        let count = client.call(session, method, b"once").wait().unwrap();
        u64::from_le_bytes(count[..].try_into().unwrap())
    });
    client.close(session);
    counts.into()
}

fn wait_until_kept(client: &mut Endpoint, server: &Process) {
    until(|| (seen(client, server).0 > 0).then_some(()));
}

fn who(client: &mut Endpoint, service: &Client) -> u32 {
    let reply = client.block_on(service.call(WHO, b"").options(patient().idempotent())).unwrap();
    u32::from_le_bytes(reply[..].try_into().unwrap())
}

/// The client's event loop has not run since the restart: it knows only the former process's link.
#[test]
fn restarted__server_gives_a_session_at_the_first_attempt() {
    for config in each_medium() {
        let address = free_address();
        let mut server = Process::server(address);
        let mut client = client(config);
        client.connect_wait(address).unwrap();
        for _ in 0..3 {
            server.kill();
            server = Process::server(address);
            let also = client.connect(address).unwrap();
            let session = connect(&mut client, &server);
            for session in [session, also] {
                let reply = client.call(session, WHO, b"").wait().unwrap();
                assert_eq!(reply[..], server.id().to_le_bytes());
            }
        }
    }
}

#[test]
fn killed__server_that_is_not_started_again_gives_no_session() {
    for config in each_medium() {
        let mut server = server();
        let mut client = client(config);
        client.connect_wait(server.address()).unwrap();
        server.kill();
        let error = client.connect_wait(server.address()).unwrap_err();
        assert_eq!(error.status, Status::Unavailable);
        assert!(error.to_string().contains("no process listens"), "{error}");
    }
}

#[test]
fn restarted__server_is_found_again_and_no_call_runs_there_twice() {
    for config in each_medium() {
        let address = free_address();
        let mut first = Process::server(address);
        let mut client = client(config);
        let service = client.client([address], ClientConfig::default());
        assert_eq!(who(&mut client, &service), first.id());
        let call = begin(&client, &service, patient());
        wait_until_kept(&mut client, &first);
        first.kill();
        let second = Process::server(address);
        let failure = client.block_on(call).unwrap_err();
        let why = (failure.status, failure.execution);
        assert_eq!(why, (Status::Unavailable, Execution::MayHaveExecuted), "{failure}");
        assert_eq!(who(&mut client, &service), second.id());
        assert_eq!(seen(&mut client, &second), (0, 0), "the old call has run in the new process");
        assert_eq!((service.stats().sessions_opened, service.stats().retries), (2, 0));
    }
}

/// A call made after the loss of a session and before the next attempt waits for the attempt.
#[test]
fn restarted__server_is_waited_for_between_two_sessions() {
    for config in each_medium() {
        let address = free_address();
        let mut first = Process::server(address);
        let mut client = client(config);
        let mut config = ClientConfig::default();
        // Long enough to make a call in.
        config.connect_backoff.first = Duration::from_secs(1);
        let service = client.client([address], config);
        assert_eq!(who(&mut client, &service), first.id());
        first.kill();
        let second = Process::server(address);
        client.run_until(|_, _| service.stats().servers_ready == 0);
        let options = CallOptions::new().timeout(Duration::from_secs(240));
        let answer = client.block_on(service.call(WHO, b"").options(options)).unwrap();
        assert_eq!(answer[..], second.id().to_le_bytes());
    }
}

/// Most of these calls have not left when their server is killed. They go to the next server, whatever the method, even
/// with a single attempt.
#[test]
fn restarted__server_gets_requests_that_never_left() {
    const CALLS: usize = 300;
    for config in each_medium() {
        let address = free_address();
        let mut first = Process::server(address);
        let mut client = client(config);
        let mut config = ClientConfig::default();
        config.attempts_max = 1;
        let service = client.client([address], config);
        assert_eq!(who(&mut client, &service), first.id());
        first.stand_still();
        let begin = |_| {
            let service = service.clone();
            client.handle().spawn(async move { service.call(WHO, b"").options(patient()).await })
        };
        let calls: Vec<_> = (0..CALLS).map(begin).collect();
        client.run_for(Duration::from_millis(5), |_, _| false);
        first.kill();
        let second = Process::server(address);
        let outcomes = client.block_on(async {
            let mut outcomes = Vec::new();
            for call in calls {
                outcomes.push(call.await);
            }
            outcomes
        });
        let (answers, failures): (Vec<_>, Vec<_>) = outcomes.into_iter().partition(Result::is_ok);
        assert!(answers.iter().flatten().all(|id| id[..] == second.id().to_le_bytes()));
        // Others may have reached the first server.
        let uncertain = |failure: petrel::Error| failure.execution == Execution::MayHaveExecuted;
        assert!(failures.into_iter().all(|failure| uncertain(failure.unwrap_err())));
        assert!(answers.len() > CALLS / 2, "{} of {CALLS} calls were answered", answers.len());
    }
}

#[test]
fn restarted__server_gets_idempotent_calls_again() {
    let address = free_address();
    let mut first = Process::server(address);
    let mut client = client(EndpointConfig::default());
    let service = client.client([address], ClientConfig::default());
    let call = begin(&client, &service, patient().idempotent());
    wait_until_kept(&mut client, &first);
    first.kill();
    let second = Process::server(address);
    wait_until_kept(&mut client, &second);
    let session = connect(&mut client, &second);
    client.call(session, RELEASE, b"").wait().unwrap();
    let answer = client.block_on(call).unwrap();
    assert_eq!(answer[..], second.id().to_le_bytes());
    assert_eq!(seen(&mut client, &second).1, 1);
}

#[test]
fn killed__server_of_two_is_replaced_by_the_other_for_a_call_that_does_no_harm() {
    for config in each_medium() {
        let mut servers = [server(), server()];
        let mut client = client(config);
        let addresses = servers.each_ref().map(Process::address);
        let service = client.client(addresses, ClientConfig::default());
        let call = begin(&client, &service, patient().idempotent());
        let has_it = until(|| servers.iter().position(|server| seen(&mut client, server).0 == 1));
        servers[has_it].kill();
        let other = &servers[1 - has_it];
        wait_until_kept(&mut client, other);
        let session = connect(&mut client, other);
        client.call(session, RELEASE, b"").wait().unwrap();
        let answer = client.block_on(call).unwrap();
        assert_eq!(answer[..], other.id().to_le_bytes());
        assert_eq!(service.stats().retries, 1);
    }
}
