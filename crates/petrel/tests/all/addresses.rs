//! Servers at addresses as hosts have them: several of a host, and all of it.

use std::net::SocketAddr;
use std::time::Duration;

use petrel::client::Background;
use petrel::endpoint::{AllowedTransports, EndpointConfig};
use petrel::{Client, Nexus, Server};

const ECHO: u16 = 1;

/// A client of UDP alone, as from another host, calls an address of this host.
fn calls_at(address: SocketAddr, large: usize) {
    let mut config = EndpointConfig::default();
    config.transports = AllowedTransports::UDP;
    let background = Background::builder().nexus(Nexus::builder().insecure()).endpoint(config);
    let background = background.start().unwrap();
    let client = Client::builder().background(&background).connect_wait(address).unwrap();
    for number in 0..1_000_u32 {
        let call = client.call(ECHO, number.to_le_bytes()).timeout(Duration::from_secs(3));
        assert_eq!(call.wait().unwrap(), number.to_le_bytes(), "{address}, call {number}");
    }
    // Many small ones at a time, and large ones by segmentation offload.
    let calls: Vec<_> = (0..300_u32)
        .map(|number| (number, client.call(ECHO, number.to_le_bytes()).started()))
        .collect();
    calls
        .into_iter()
        .for_each(|(number, call)| assert_eq!(call.wait().unwrap(), number.to_le_bytes()));
    let message = vec![7; large];
    assert_eq!(client.call(ECHO, message.clone()).wait().unwrap(), message);
}

/// The former answer came from the first address, where no client expects it: each call ended after 3.5 s.
#[test]
fn a_server_of_all_addresses_answers_from_the_address_that_was_called() {
    let server = Server::bind("0.0.0.0:0")
        .insecure()
        .serve(|_| (), |endpoint| crate::common::echo(endpoint, ECHO));
    let server = server.start().unwrap();
    let port = server.local_addr().port();
    for address in ["127.0.0.1", "127.0.0.2", "127.9.9.9"] {
        calls_at(SocketAddr::new(address.parse().unwrap(), port), 200_000);
    }
    // Clients of both addresses at a time, on one endpoint of the server.
    std::thread::scope(|scope| {
        for address in ["127.0.0.2", "127.0.0.3", "127.0.0.1"] {
            scope.spawn(move || calls_at(SocketAddr::new(address.parse().unwrap(), port), 1_000));
        }
    });
}
