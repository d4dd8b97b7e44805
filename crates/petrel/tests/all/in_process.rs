//! A server and its clients without a network: in a network namespace without any address, not even loopback.

use petrel::{Client, Server};

use crate::common::own_network::{self, Trial};

const ECHO: u16 = 1;

fn echo() -> petrel::server::RunningServer {
    let server = Server::in_process()
        .threads(2)
        .serve(|_| (), |endpoint| crate::common::echo(endpoint, ECHO));
    server.start().unwrap()
}

/// Calls of all sizes, of several clients and servers.
fn calls() {
    let servers = [echo(), echo()];
    for server in &servers {
        for client in [server.client().unwrap(), server.client().unwrap()] {
            for size in [0, 32, 70_000, 4 << 20] {
                let message: Vec<u8> = (0..size).map(|at| (at % 251) as u8).collect();
                assert!(client.call(ECHO, message.clone()).wait().unwrap() == message);
            }
        }
    }
    let client = servers[0].client().unwrap();
    let [first, second] = servers;
    assert_ne!(first.local_addr(), second.local_addr());
    first.stop();
    first.wait().unwrap();
    assert!(client.call(ECHO, "").wait().is_err());
    assert_eq!(second.client().unwrap().call(ECHO, "there").wait().unwrap(), b"there");
}

#[test]
fn calls_within_a_process() {
    calls();
}

#[test]
fn calls_within_a_process_without_any_network() {
    let trial = Trial { what: "network namespaces", script: "ip address flush dev lo", input: "" };
    let test = "calls_within_a_process_without_any_network";
    own_network::in_own_network(&trial, module_path!(), test, || {
        petrel_netns::ip("address flush dev lo").unwrap();
        assert!(std::net::UdpSocket::bind("127.0.0.1:0").is_err(), "there is no network");
        calls();
    });
}

/// A client of the process's shared threads has the address as well.
#[test]
fn an_ordinary_client_reaches_the_address() {
    let server = echo();
    let client = Client::connect_wait(server.local_addr()).unwrap();
    assert_eq!(client.call(ECHO, "petrel").wait().unwrap(), b"petrel");
    let other = Server::bind("127.0.0.1:0").serve(|_| (), |_| {}).start().unwrap();
    assert!(other.client().is_ok());
}
