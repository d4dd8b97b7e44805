//! Frames over TCP: calls through streams, and what ends them.

use std::io::{Read, Write};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::Duration;

use petrel::endpoint::AllowedTransports;
use petrel::server::RunningServer;
use petrel::{Client, Endpoint, Error, Server, Status};

pub(crate) const ECHO: u16 = 1;
/// Answers with the medium of the session.
pub(crate) const MEDIUM: u16 = 2;

const LONG: Duration = Duration::from_secs(60);

/// Echoes, and tells the medium.
pub(crate) fn set_up(endpoint: &mut Endpoint) {
    crate::common::echo(endpoint, ECHO);
    endpoint.on(MEDIUM, |_, cx, request| {
        let medium = request.peer(cx).unwrap().medium;
        request.reply(cx, medium.as_bytes())
    });
}

fn serve() -> RunningServer {
    let server = Server::bind("127.0.0.1:0").threads(2).message_bytes_max(16 << 20);
    server.serve(|_| (), set_up).start().unwrap()
}

fn connect(address: SocketAddr) -> Result<Client, Error> {
    Client::builder().transports(AllowedTransports::STREAM).connect_wait(address)
}

fn medium(client: &Client) -> String {
    let reply = client.call(MEDIUM, "").timeout(LONG).wait().unwrap();
    String::from_utf8(reply.to_vec()).unwrap()
}

#[test]
fn calls_of_all_sizes_and_many_at_a_time() {
    let server = serve();
    let client =
        Client::builder().transports(AllowedTransports::STREAM).message_bytes_max(16 << 20);
    let client = client.connect_wait(server.local_addr()).unwrap();
    assert_eq!(medium(&client), "stream");
    for size in [0, 1, 32, 1_400, 9_000, 65_000, 70_000, 1 << 20, 12 << 20] {
        let message: Vec<u8> = (0..size).map(|at| (at % 251) as u8).collect();
        let reply = client.call(ECHO, message.clone()).timeout(LONG).wait().unwrap();
        assert!(reply == message, "{size} bytes");
    }
    let calls: Vec<_> = (0..2_000_u32)
        .map(|number| (number, client.call(ECHO, number.to_le_bytes()).timeout(LONG).started()))
        .collect();
    for (number, call) in calls {
        assert_eq!(call.wait().unwrap(), number.to_le_bytes());
    }
    assert_eq!(medium(&client), "stream");
}

/// Forwards connections to one of several servers in turn: a load balancer, which forwards no datagram.
struct Balancer {
    address: SocketAddr,
    /// The connections, to be broken.
    connections: Arc<Mutex<Vec<(TcpStream, TcpStream)>>>,
    accepted: Arc<AtomicUsize>,
}

impl Balancer {
    fn start(servers: Vec<SocketAddr>) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        let connections = Arc::<Mutex<Vec<_>>>::default();
        let accepted = Arc::<AtomicUsize>::default();
        let (all, count) = (Arc::clone(&connections), Arc::clone(&accepted));
        thread::spawn(move || {
            for client in listener.incoming() {
                let client = client.unwrap();
                let turn = count.fetch_add(1, Ordering::Relaxed);
                let Ok(server) = TcpStream::connect(servers[turn % servers.len()]) else {
                    continue;
                };
                all.lock()
                    .unwrap()
                    .push((client.try_clone().unwrap(), server.try_clone().unwrap()));
                for (mut from, mut to) in
                    [(client.try_clone().unwrap(), server.try_clone().unwrap()), (server, client)]
                {
                    thread::spawn(move || {
                        let mut buffer = vec![0; 64 << 10];
                        while let Ok(count @ 1..) = from.read(&mut buffer) {
                            if to.write_all(&buffer[..count]).is_err() {
                                break;
                            }
                        }
                        let _ = (to.shutdown(Shutdown::Both), from.shutdown(Shutdown::Both));
                    });
                }
            }
        });
        Self { address, connections, accepted }
    }
}

#[test]
fn behind_a_load_balancer_the_stream_reaches_the_process_of_the_link() {
    let servers = [serve(), serve(), serve()];
    let balancer = Balancer::start(servers.iter().map(RunningServer::local_addr).collect());
    let client = connect(balancer.address).unwrap();
    for number in 0..100_u32 {
        let reply = client.call(ECHO, number.to_le_bytes()).timeout(LONG).wait().unwrap();
        assert_eq!(reply, number.to_le_bytes());
    }
    assert_eq!(medium(&client), "stream");
    // The control connection, and at least three dials until the same server had its turn.
    assert!(balancer.accepted.load(Ordering::Relaxed) >= 4);
}

#[test]
fn a_broken_stream_ends_its_calls_and_the_client_goes_on_by_another() {
    let server = serve();
    let balancer = Balancer::start(vec![server.local_addr()]);
    let client = connect(balancer.address).unwrap();
    for _ in 0..5 {
        let call = |number: u32| {
            let call = client.call(ECHO, number.to_le_bytes()).timeout(LONG);
            call.wait_for_ready().idempotent().wait()
        };
        (0..100).for_each(|number| assert_eq!(call(number).unwrap(), number.to_le_bytes()));
        // The last is the stream's: the control connection stays.
        let (client_end, _) = balancer.connections.lock().unwrap().pop().unwrap();
        client_end.shutdown(Shutdown::Both).unwrap();
        (0..100).for_each(|number| assert_eq!(call(number).unwrap(), number.to_le_bytes()));
    }
}

/// A balancer that never chooses the process of the link: the failure names the reason.
#[test]
fn a_stream_that_cannot_be_made_is_an_error_with_the_reason() {
    let (first, other) = (serve(), serve());
    let mut order = vec![other.local_addr(); 1_000];
    order[0] = first.local_addr();
    let balancer = Balancer::start(order);
    let error = connect(balancer.address).unwrap_err();
    let text = error.to_string();
    assert!(text.contains("TCP stream could not be set up: 64 connections"), "{text}");
}

/// Bytes of strangers at the listening port: no ticket, a wrong ticket, and a ticket behind a HELLO.
#[test]
fn strangers_with_tickets_are_told_or_dropped() {
    let server = serve();
    let message = |kind: u16, body: &[u8]| {
        let length = (body.len() as u32).to_le_bytes();
        [&length[..], &kind.to_le_bytes(), &[0, 0], body].concat()
    };
    let ticket = [&[1, 0, 16, 0][..], &[7; 16]].concat();
    for (bytes, expected) in [
        (message(20, &ticket), "no link of this process waits"),
        (message(20, &[]), "STREAM_OPEN"),
        ([message(20, &ticket), vec![1, 0, 0, 0, 9]].concat(), "only message of its side"),
        (message(21, &[1, 0, 4, 0, 9, 0, 0, 0]), "before HELLO"),
    ] {
        let mut stranger = TcpStream::connect(server.local_addr()).unwrap();
        stranger.write_all(b"PETREL\r\n").unwrap();
        stranger.write_all(&bytes).unwrap();
        let mut answer = Vec::new();
        let _ = stranger.read_to_end(&mut answer);
        assert!(String::from_utf8_lossy(&answer).contains(expected), "{expected}: {answer:?}");
    }
    let client = connect(server.local_addr()).unwrap();
    assert_eq!(client.call(ECHO, "still").wait().unwrap(), b"still");
}

#[test]
fn a_server_without_streams_refuses_them_with_the_reason() {
    let server = Server::bind("127.0.0.1:0").transports(AllowedTransports::UDP);
    let server = server.serve(|_| (), |_| {}).start().unwrap();
    let error = connect(server.local_addr()).unwrap_err();
    assert_eq!(error.status, Status::Unavailable);
    let text = error.to_string();
    assert!(text.contains("the endpoint does not use TCP streams"), "{text}");
}
