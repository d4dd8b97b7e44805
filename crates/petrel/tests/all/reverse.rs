//! Sessions from servers to their clients, on the links of the clients (`docs/wire-protocol.md` §8.5).

use std::cell::RefCell;
use std::net::TcpListener;
use std::process::{Command, Stdio};
use std::sync::mpsc;
use std::time::Duration;

use petrel::endpoint::{AllowedTransports, EndpointConfig, SessionState};
use petrel::server::{RunningServer, start_successor};
use petrel::service::{Ctx, Raw};
use petrel::workers::{WorkerRequest, Workers};
use petrel::{Client, Endpoint, Error, Execution, Server, Status};
use rustix::process::Signal;

use crate::common::{self, ECHO, client, each_medium, over, pattern, run_until_seen};
use crate::server::Process;

/// Calls ECHO at the client that calls, and answers with its answer.
const BOUNCE: u16 = 2;

fn echo(endpoint: &mut Endpoint) {
    crate::common::echo(endpoint, ECHO);
}

/// Answers with what the client says to the same bytes, by a session back that is opened for the call.
fn bounce(endpoint: &mut Endpoint) {
    let handle = endpoint.handle();
    endpoint.on_async(BOUNCE, move |_, request| {
        let handle = handle.clone();
        async move {
            let back = handle.reverse(request.session()).await?;
            let answer = back.call(ECHO, request.data()).await;
            back.close();
            answer
        }
    });
}

fn serving(config: EndpointConfig) -> EndpointConfig {
    let mut config = config;
    config.sessions.reverse = true;
    config
}

/// UDP, shared memory and streams.
fn media() -> impl Iterator<Item = EndpointConfig> {
    let mut stream = over(true, false);
    stream.transports = AllowedTransports::STREAM;
    let is_far = common::device::is_used();
    each_medium().chain((!is_far).then_some(stream))
}

#[test]
fn a_server_calls_the_client_that_calls_it() {
    for config in media() {
        let server = common::Server::start(config.clone(), "127.0.0.1:0", bounce);
        let mut client = client(serving(config));
        echo(&mut client);
        let session = client.connect_wait(server.address).unwrap();
        // Small messages, and messages of several packets.
        for len in [0, 1, 1_000, 100_000] {
            let message = pattern(len, 7);
            let answer = client.call(session, BOUNCE, &message[..]).wait().unwrap();
            assert_eq!(answer[..], message[..]);
        }
        // The sessions back have ended, and only they.
        run_until_seen(&mut client, || true);
        while client.sessions_served() > 0 {
            client.run_once();
        }
        assert_eq!(client.session_state(session), SessionState::Open);
    }
}

/// A client that does not want calls: the server is told why.
#[test]
fn a_client_without_handlers_takes_no_calls() {
    let server = common::Server::start(over(true, true), "127.0.0.1:0", bounce);
    let mut client = client(over(true, true));
    echo(&mut client);
    let session = client.connect_wait(server.address).unwrap();
    let failure = client.call(session, BOUNCE, b"x").wait().unwrap_err();
    assert_eq!(failure.status, Status::FailedPrecondition);
    assert!(failure.message.contains("takes no calls from its servers"), "{failure}");
}

/// Answers with the caller's answer, by its client.
const ASK: u16 = 4;
/// The method of callbacks: answers with the name of the client.
const NAME: u16 = 5;
/// Never answers, at the client.
const HOLD: u16 = 6;
/// Has the server keep the caller.
const KEEP: u16 = 7;

const HANG: Duration = Duration::from_secs(60);

fn asking(endpoint: &mut Endpoint<Vec<Client>>) {
    endpoint.on_async(ASK, |handle, request| async move {
        let caller = handle.caller(&request)?;
        caller.call(NAME, request.data()).timeout(HANG).await
    });
    endpoint.on(KEEP, |kept, cx, request| match request.caller(cx) {
        Ok(caller) => {
            kept.push(caller);
            request.reply(cx, b"")
        }
        Err(error) => request.fail(cx, error.status, &error.message),
    });
}

fn start() -> RunningServer {
    Server::bind("127.0.0.1:0").serve(|_| Vec::new(), asking).start().unwrap()
}

/// Workers take the caller, too, and wait for its answers.
#[test]
fn a_worker_calls_the_client_that_calls_it() {
    let workers = Workers::builder().threads(1).start().unwrap();
    let ask = |request: WorkerRequest| {
        let call = |caller: Client| caller.call(NAME, request.data()).timeout(HANG).wait();
        match request.caller().and_then(call) {
            Ok(answer) => request.reply(&answer),
            Err(error) => request.fail(error.status, &error.message),
        }
    };
    let server = Server::bind("127.0.0.1:0")
        .serve(|_| (), move |endpoint| endpoint.on_worker(ASK, &workers, ask))
        .start()
        .unwrap();
    assert_eq!(named("worker ", &server).call(ASK, "7").timeout(HANG).wait().unwrap(), b"worker 7");
    let plain = Client::connect_wait(server.local_addr()).unwrap();
    let failure = plain.call(ASK, "").timeout(HANG).wait().unwrap_err();
    assert_eq!(failure.status, Status::FailedPrecondition, "{failure}");
}

/// A client whose callbacks answer with its name.
fn named(name: &'static str, server: &RunningServer) -> Client {
    let builder = Client::builder().serve(move |callbacks| {
        callbacks.on(NAME, move |cx, request| {
            let answer = [name.as_bytes(), request.data()].concat();
            request.reply(cx, &answer)
        });
    });
    builder.connect_wait(server.local_addr()).unwrap()
}

/// Clients share an endpoint, and even a server: each is called by its own callbacks.
#[test]
fn clients_of_a_process__are_called_by_their_own_callbacks() {
    let servers = [start(), start()];
    let clients: Vec<_> = servers
        .iter()
        .flat_map(|server| [("a", server), ("b", server)])
        .map(|(name, server)| (name, named(name, server)))
        .collect();
    let plain = Client::connect_wait(servers[0].local_addr()).unwrap();
    for round in 0..3 {
        for (name, client) in &clients {
            let answer = client.call(ASK, [round]).timeout(HANG).wait().unwrap();
            assert_eq!(answer, [name.as_bytes(), &[round]].concat());
        }
        let failure = plain.call(ASK, "").timeout(HANG).wait().unwrap_err();
        assert_eq!(failure.status, Status::FailedPrecondition, "{failure}");
    }
}

/// A server calls what the client has set, and nothing else.
#[test]
fn callbacks__that_are_missing_are_unimplemented() {
    let server = start();
    let builder = Client::builder().serve(|callbacks| {
        callbacks.on(HOLD, |cx, request| request.reply(cx, b""));
    });
    let client = builder.connect_wait(server.local_addr()).unwrap();
    let failure = client.call(ASK, "").timeout(HANG).wait().unwrap_err();
    assert_eq!(failure.status, Status::Unimplemented, "{failure}");
}

/// A method that is set twice is found at once.
#[test]
fn callbacks__that_cannot_be_set_fail_the_client() {
    let server = start();
    let builder = Client::builder().serve(|callbacks| {
        for _ in 0..2 {
            callbacks.on(HOLD, |cx, request| request.reply(cx, b""));
        }
    });
    let failure = builder.connect_wait(server.local_addr()).unwrap_err();
    assert_eq!(failure.status, Status::Internal, "{failure}");
    assert_eq!(named("next", &server).call(ASK, "").timeout(HANG).wait().unwrap(), b"next");
}

/// Calls back end when the client goes, and say whether they may have run.
#[test]
fn caller__of_a_client_that_goes_ends_calls() {
    let (give, given) = mpsc::channel::<Client>();
    let server = Server::bind("127.0.0.1:0").serve(
        move |_| give.clone(),
        |endpoint| {
            endpoint.on(KEEP, |give, cx, request| {
                give.send(request.caller(cx).unwrap()).unwrap();
                request.reply(cx, b"")
            });
        },
    );
    let server = server.start().unwrap();
    let (tell, told) = mpsc::channel();
    let builder = Client::builder().serve(move |callbacks| {
        let (tell, held) = (tell.clone(), RefCell::new(Vec::new()));
        callbacks.on(HOLD, move |cx, request| {
            let (responder, handled) = request.defer(cx);
            held.borrow_mut().push(responder);
            tell.send(()).unwrap();
            handled
        });
    });
    let client = builder.connect_wait(server.local_addr()).unwrap();
    client.call(KEEP, "").timeout(HANG).wait().unwrap();
    let caller = given.recv().unwrap();
    let held = caller.call(HOLD, "").timeout(HANG).started();
    told.recv().unwrap();
    drop(client);
    let failure = held.wait().unwrap_err();
    let why = (failure.status, failure.execution);
    assert_eq!(why, (Status::Unavailable, Execution::MayHaveExecuted), "{failure}");
    let failure = caller.call(HOLD, "").timeout(HANG).wait().unwrap_err();
    let why = (failure.status, failure.execution);
    assert_eq!(why, (Status::Unavailable, Execution::NotSent), "{failure}");
}

/// Names the place of a successor.
const SUCCESSOR: &str = "PETREL_TEST_REVERSE_SUCCESSOR";

/// After a hand-over, the next process calls the client back.
#[test]
fn start_successor__calls_the_clients_of_its_predecessor() {
    let test = "reverse::start_successor__calls_the_clients_of_its_predecessor";
    if std::env::var_os(SUCCESSOR).is_some() {
        Server::inherit_or_bind("127.0.0.1:1").serve(|_| Vec::new(), asking).run().unwrap();
        return;
    }
    let socket = TcpListener::bind("127.0.0.1:0").unwrap();
    let server = Server::listen_on(socket.try_clone().unwrap()).serve(|_| Vec::new(), asking);
    let server = server.start().unwrap();
    let client = named("one", &server);
    let ask = || client.call(ASK, "").timeout(HANG).wait_for_ready().idempotent().wait().unwrap();
    assert_eq!(ask(), b"one");
    server.stop();
    server.wait().unwrap();
    let mut command = Command::new(std::env::current_exe().unwrap());
    command.args([test, "--exact"]).env(SUCCESSOR, "1").stdout(Stdio::null());
    let child = start_successor(&mut command, [&socket], b"").unwrap();
    let mut successor = Process { child, address: socket.local_addr().unwrap() };
    assert_eq!(ask(), b"one");
    successor.signal(Signal::TERM);
    drop(client);
    assert!(successor.ends_well());
}

#[petrel::service(codec = Raw)]
trait Progress {
    async fn report(&self, cx: &Ctx, step: String) -> Result<String, Error>;
}

#[petrel::service(codec = Raw)]
trait Jobs {
    async fn run(&self, cx: &Ctx, name: String) -> Result<String, Error>;
    /// Tells the caller of the work later.
    #[dispatch]
    fn queue(&self, cx: &mut petrel::Context<'_>, name: &str) -> Result<String, Error>;
}

/// Callers that are told of their work.
struct Runner(mpsc::Sender<(Client, String)>);

impl Jobs for Runner {
    async fn run(&self, cx: &Ctx, name: String) -> Result<String, Error> {
        let progress = ProgressClient::new(cx.caller()?);
        let half = progress.report(format!("{name}: half")).await?;
        let whole = progress.report(format!("{name}: whole")).await?;
        Ok(half + ", " + &whole)
    }

    fn queue(&self, cx: &mut petrel::Context<'_>, name: &str) -> Result<String, Error> {
        self.0.send((cx.caller()?, name.to_owned())).expect("the test waits");
        Ok("queued".to_owned())
    }
}

/// Numbers the steps that it is told of.
struct Steps(std::cell::Cell<u32>);

impl Progress for Steps {
    async fn report(&self, _: &Ctx, step: String) -> Result<String, Error> {
        self.0.set(self.0.get() + 1);
        Ok(format!("{} {step}", self.0.get()))
    }
}

/// Typed services in both directions, over each medium.
#[test]
fn typed_services__in_both_directions() {
    for config in media() {
        let (queue, queued) = mpsc::channel();
        let server = Server::bind("127.0.0.1:0").transports(config.transports).serve(
            |_| (),
            move |endpoint| {
                let free = endpoint.with(|_, cx| cx.caller().map(drop));
                assert_eq!(free.unwrap_err().status, Status::FailedPrecondition);
                endpoint.serve(JobsServer::new(Runner(queue.clone())));
            },
        );
        let server = server.start().unwrap();
        let client = Client::builder().transports(config.transports).serve(|callbacks| {
            callbacks.serve(ProgressServer::new(Steps(Default::default())));
        });
        let jobs = JobsClient::new(client.connect_wait(server.local_addr()).unwrap());
        for (first, second) in [(1, 2), (3, 4)] {
            let answer = jobs.run("job".to_owned()).timeout(HANG).wait().unwrap();
            assert_eq!(answer, format!("{first} job: half, {second} job: whole"));
        }
        assert_eq!(jobs.queue("later").wait().unwrap(), "queued");
        assert_eq!(jobs.queue("more").metadata("a", "b").wait().unwrap(), "queued");
        for (step, expected) in [(5, "later"), (6, "more")] {
            let (caller, name) = queued.recv_timeout(HANG).unwrap();
            assert_eq!(name, expected);
            let told = ProgressClient::new(caller).report(name).timeout(HANG).wait().unwrap();
            assert_eq!(told, format!("{step} {expected}"));
        }
    }
}
