//! Server processes: their threads, and their end.

use std::net::{SocketAddr, TcpListener};
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::mpsc;
use std::thread;
use std::time::Duration;

use petrel::endpoint::EndpointId;
use petrel::nexus::SetupError;
use petrel::server::{inherited_listeners, inherited_state, start_successor};
use petrel::workers::Workers;
use petrel::{Client, Endpoint, Execution, Server, Status};
use rustix::process::{Pid, Signal, kill_process};

use crate::common::{free_address, wait_until};

/// Answers with the number of the endpoint.
const NAME: u16 = 1;
/// Never answers.
const HOLD: u16 = 2;
/// Answers after a while.
const LATER: u16 = 3;

/// Names a child's address; without it a test is the parent.
const CHILD: &str = "PETREL_TEST_SERVER";

fn serve(endpoint: &mut Endpoint) {
    let id = endpoint.stats().endpoint;
    endpoint.on(NAME, move |_, cx, request| request.reply(cx, &id.0.to_le_bytes()));
    crate::common::keep(endpoint, HOLD);
    let handle = endpoint.handle();
    endpoint.on_async(LATER, move |_, _| {
        let sleep = handle.sleep(Duration::from_millis(100));
        async move {
            sleep.await;
            Ok("later")
        }
    });
}

#[test]
fn start__serves_on_each_thread_and_stop_lets_calls_end() {
    let server = Server::bind("127.0.0.1:0").threads(2).serve(|_| (), serve).start().unwrap();
    let address = server.local_addr();
    for endpoint in [0u16, 1] {
        let client = Client::connect_wait((address, EndpointId(endpoint))).unwrap();
        assert_eq!(client.call(NAME, "").wait().unwrap(), endpoint.to_le_bytes());
    }
    let client = Client::connect_wait((address, EndpointId(0))).unwrap();
    let (later, held) = (client.call(LATER, "").started(), client.call(HOLD, "").started());
    // Behind the others on the same session.
    assert_eq!(client.call(NAME, "").wait().unwrap(), [0, 0]);
    server.stop();
    assert_eq!(later.wait().unwrap(), b"later", "what was on the way is served");
    wait_until(|| client.call(NAME, "").wait().is_err());
    assert!(Client::connect_wait(address).is_err(), "a server that drains takes no sessions");
    drop(held);
    server.wait().unwrap();
}

#[test]
fn start__reports_the_error() {
    let taken = TcpListener::bind("127.0.0.1:0").unwrap();
    let error = Server::bind(taken.local_addr().unwrap()).serve(|_| (), serve).start().unwrap_err();
    let text = error.to_string();
    assert!(matches!(&error, SetupError::System { .. }) && text.contains("in use"), "{text}");
    let error = Server::bind("nowhere").serve(|_| (), serve).start().unwrap_err();
    let text = error.to_string();
    assert!(matches!(&error, SetupError::Refused(_)) && text.contains("nowhere"), "{text}");
    let error = Server::bind("192.0.2.1:1").serve(|_| (), serve).start().unwrap_err();
    assert!(error.to_string().contains("insecure"), "{error}");
}

#[test]
fn insecure__listens_at_addresses_that_other_hosts_reach() {
    let server = Server::bind("0.0.0.0:0").insecure().serve(|_| (), serve).start().unwrap();
    assert!(server.local_addr().ip().is_unspecified());
    let error = Server::bind("0.0.0.0:0").serve(|_| (), serve).start().unwrap_err();
    assert!(error.to_string().contains("insecure"), "{error}");
}

#[test]
fn start__of_a_thread_whose_set_up_panics() {
    let started = Arc::new(AtomicU32::new(0));
    let count = Arc::clone(&started);
    let server = Server::bind("127.0.0.1:0").threads(2).serve(
        |_| (),
        move |_| {
            assert!(count.fetch_add(1, Ordering::SeqCst) == 0, "the second thread panics");
        },
    );
    assert!(matches!(server.start(), Err(SetupError::Panicked(_))));
    assert_eq!(started.load(Ordering::SeqCst), 2);
}

/// A process in [`petrel::server::ReadyServer::run`]. Killed if the test ends first.
pub(crate) struct Process {
    pub(crate) child: Child,
    pub(crate) address: SocketAddr,
}

impl Process {
    fn start(test: &str) -> Self {
        let address = free_address();
        let child = Command::new(std::env::current_exe().unwrap())
            .args([test, "--exact"])
            .env(CHILD, address.to_string())
            .stdout(Stdio::null())
            .spawn()
            .unwrap();
        Self { child, address }
    }

    /// Returns a client, once the process listens.
    fn connect(&self) -> Client {
        loop {
            match Client::connect_wait((self.address, EndpointId(0))) {
                Ok(client) => return client,
                Err(error) => assert_eq!(error.status, Status::Unavailable, "{error}"),
            }
            thread::sleep(Duration::from_millis(1));
        }
    }

    pub(crate) fn signal(&self, signal: Signal) {
        kill_process(Pid::from_child(&self.child), signal).unwrap();
    }

    fn is_there(&mut self) -> bool {
        self.child.try_wait().unwrap().is_none()
    }

    pub(crate) fn ends_well(&mut self) -> bool {
        self.child.wait().unwrap().success()
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        // A process that has ended cannot be killed.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Serves until a signal, in a child. Returns true in a child.
fn is_child() -> bool {
    let Ok(address) = std::env::var(CHILD) else { return false };
    Server::bind(address).threads(2).serve(|_| (), serve).run().unwrap();
    true
}

#[test]
fn run__ends_by_a_signal_when_the_calls_that_it_has_are_answered() {
    if is_child() {
        return;
    }
    for signal in [Signal::TERM, Signal::INT] {
        let test = "server::run__ends_by_a_signal_when_the_calls_that_it_has_are_answered";
        let mut process = Process::start(test);
        let client = process.connect();
        let held = client.call(HOLD, "").started();
        assert_eq!(client.call(NAME, "").wait().unwrap(), [0, 0]);
        process.signal(signal);
        wait_until(|| client.call(NAME, "").wait().is_err());
        assert!(process.is_there(), "it waits for the call");
        drop(held);
        assert!(process.ends_well());
    }
}

#[test]
fn run__ends_at_once_by_a_second_signal() {
    if is_child() {
        return;
    }
    let mut process = Process::start("server::run__ends_at_once_by_a_second_signal");
    let client = process.connect();
    let held = client.call(HOLD, "").started();
    assert_eq!(client.call(NAME, "").wait().unwrap(), [0, 0]);
    process.signal(Signal::TERM);
    wait_until(|| client.call(NAME, "").wait().is_err());
    assert!(process.is_there(), "it waits for the call");
    process.signal(Signal::TERM);
    assert!(process.ends_well());
    let error = held.wait().unwrap_err();
    assert_eq!((error.status, error.execution), (Status::Unavailable, Execution::MayHaveExecuted));
}

/// Servers one after the other, or both at once, on a shared socket: no connection is refused.
#[test]
fn listen_on__a_socket_that_another_server_has_too() {
    let socket = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = socket.local_addr().unwrap();
    let start = || {
        let socket = socket.try_clone().unwrap();
        Server::listen_on(socket).serve(|_| (), serve).start().unwrap()
    };
    let mut last = start();
    assert_eq!(last.local_addr(), address);
    let client = Client::connect_wait(address).unwrap();
    for _ in 0..5 {
        let next = start();
        client.call(NAME, "").wait().unwrap();
        last.stop();
        last.wait().unwrap();
        // Not marked idempotent: no call may be lost.
        client.call(NAME, "").wait().unwrap();
        last = next;
    }
    last.stop();
    last.wait().unwrap();
}

/// A stopping server leaves the address before the clients have left.
#[test]
fn stop__leaves_the_address_to_another_at_once() {
    let for_ever = Duration::from_secs(600);
    let first = Server::bind("127.0.0.1:0").drain_limit(for_ever).serve(|_| (), serve);
    let first = first.start().unwrap();
    let address = first.local_addr();
    let client = Client::connect_wait(address).unwrap();
    // Keeps the client's session open until it is answered.
    let call = client.call(HOLD, "").timeout(for_ever).started();
    first.stop();
    let second = loop {
        match Server::bind(address).serve(|_| (), serve).start() {
            Ok(second) => break second,
            Err(error) => assert!(error.to_string().contains("cannot listen"), "{error}"),
        }
        std::thread::yield_now();
    };
    // The first server accepts no calls, and still exists. The client may just have found no listener.
    client.call(NAME, "").timeout(Duration::from_secs(60)).wait_for_ready().wait().unwrap();
    drop(call);
    first.wait().unwrap();
    second.stop();
    second.wait().unwrap();
}

/// Names the place of the successor's address; without it a test is the predecessor.
const SUCCESSOR: &str = "PETREL_TEST_SUCCESSOR";
/// Adds a number to the state, and answers with the sum.
const ADD: u16 = 5;

fn serve_sum(endpoint: &mut Endpoint<u64>) {
    endpoint.on(ADD, |sum, cx, request| {
        *sum += u64::from(request.data()[0]);
        request.reply(cx, &sum.to_le_bytes())
    });
}

/// The successor has the listening socket and the sum of its predecessor, and no call fails in between.
#[test]
fn start_successor__continues_with_socket_and_state() {
    let test = "server::start_successor__continues_with_socket_and_state";
    if std::env::var_os(SUCCESSOR).is_some() {
        let state = inherited_state().unwrap().expect("the predecessor has left a state");
        let sum = u64::from_le_bytes(state.try_into().unwrap());
        assert!(inherited_state().unwrap().is_none(), "it is taken once");
        Server::inherit_or_bind("127.0.0.1:1").serve(move |_| sum, serve_sum).run().unwrap();
        return;
    }
    let socket = TcpListener::bind("127.0.0.1:0").unwrap();
    let (sums, ended) = mpsc::channel();
    let server = Server::listen_on(socket.try_clone().unwrap())
        .serve(|_| 7_u64, serve_sum)
        .at_end(move |thread, sum| sums.send((thread.index, thread.count, sum)).unwrap());
    let server = server.start().unwrap();
    let client = Client::connect_wait(server.local_addr()).unwrap();
    let add = |number: u8| {
        let call = client.call(ADD, [number]).timeout(Duration::from_secs(60)).wait_for_ready();
        u64::from_le_bytes(call.wait().unwrap()[..].try_into().unwrap())
    };
    assert_eq!(add(3), 10);
    server.stop();
    server.wait().unwrap();
    let state = ended.recv().unwrap();
    assert_eq!(state, (0, 1, 10));
    let mut command = Command::new(std::env::current_exe().unwrap());
    command.args([test, "--exact"]).env(SUCCESSOR, "1").stdout(Stdio::null());
    let child = start_successor(&mut command, [&socket], &state.2.to_le_bytes()).unwrap();
    let mut successor = Process { child, address: client_address(&socket) };
    assert_eq!(add(5), 15);
    successor.signal(Signal::TERM);
    drop(client);
    assert!(successor.ends_well());
}

fn client_address(socket: &TcpListener) -> SocketAddr {
    socket.local_addr().unwrap()
}

/// Descriptors are named for a process, or for a file; a safe function takes no others.
#[test]
fn inherited_listeners__only_of_this_process() {
    let test = "server::inherited_listeners__only_of_this_process";
    if let Some(expected) = std::env::var_os(SUCCESSOR) {
        let found = match inherited_listeners() {
            Ok(sockets) => sockets.len().to_string(),
            Err(error) => error.to_string(),
        };
        let expected = expected.to_str().unwrap();
        assert!(found.contains(expected), "{found:?}, and not {expected:?}");
        return;
    }
    let socket = TcpListener::bind("127.0.0.1:0").unwrap();
    let inode = rustix::fs::fstat(&socket).unwrap().st_ino;
    let descriptor = std::os::fd::AsRawFd::as_raw_fd(&socket);
    let handed_over = |inode| ("PETREL_HANDED_OVER", format!("socket:{descriptor}:{inode}"));
    let of_systemd = ("LISTEN_FDS", "1".to_owned());
    let other = ("LISTEN_PID", "1".to_owned());
    for (variables, expected) in [
        (vec![of_systemd.clone()], "LISTEN_FDS=1 without LISTEN_PID"),
        (vec![of_systemd, other], "0"),
        // The descriptor closes with the start of the program.
        (vec![handed_over(inode)], "0"),
        (vec![handed_over(inode + 1)], "0"),
        (vec![("PETREL_HANDED_OVER", "socket:3".to_owned())], "is malformed"),
        (vec![("PETREL_HANDED_OVER", "socket:-1:5".to_owned())], "is malformed"),
    ] {
        let mut command = Command::new(std::env::current_exe().unwrap());
        command.args([test, "--exact"]).envs(variables).env(SUCCESSOR, expected);
        let output = command.output().unwrap();
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    }
}

#[test]
fn run_async__is_awaited_in_tokio_whose_timers_handlers_and_workers_may_use() {
    if is_child_in_tokio() {
        return;
    }
    let test = "server::run_async__is_awaited_in_tokio_whose_timers_handlers_and_workers_may_use";
    let mut process = Process::start(test);
    let client = process.connect();
    assert_eq!(client.call(LATER, "").wait().unwrap(), b"slept in tokio");
    assert_eq!(client.call(NAME, "").wait().unwrap(), b"slept in a worker");
    process.signal(Signal::TERM);
    drop(client);
    assert!(process.ends_well());
}

/// Serves until a signal, in a child, from a task. Returns true in a child.
fn is_child_in_tokio() -> bool {
    let Ok(address) = std::env::var(CHILD) else { return false };
    let sleep = || tokio::time::sleep(Duration::from_millis(1));
    let serve = async move {
        let workers = Workers::builder().threads(1).start().unwrap();
        let workers = std::sync::Mutex::new(workers);
        let set_up = move |endpoint: &mut Endpoint| {
            endpoint.on_async(LATER, move |_, _| async move {
                sleep().await;
                Ok("slept in tokio")
            });
            endpoint.on_worker(NAME, &workers.lock().unwrap(), move |request| {
                tokio::runtime::Handle::current().block_on(async { sleep().await });
                request.reply(b"slept in a worker");
            });
        };
        let set_up = Arc::new(set_up);
        Server::bind(address).serve(|_| (), move |endpoint| set_up(endpoint)).run_async().await
    };
    let mut runtime = tokio::runtime::Builder::new_multi_thread();
    let runtime = runtime.worker_threads(1).enable_time().build().unwrap();
    runtime.block_on(serve).unwrap();
    true
}

#[test]
fn inherit_or_bind__binds_where_nothing_was_inherited() {
    assert!(inherited_listeners().unwrap().is_empty());
    let server = Server::inherit_or_bind("127.0.0.1:0").serve(|_| (), serve).start().unwrap();
    assert_ne!(server.local_addr().port(), 0);
    server.stop();
    server.wait().unwrap();
}
