//! Strangers at the data port: their datagrams are dropped and counted, and honest calls go on.

use std::net::{SocketAddr, UdpSocket};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc;

use petrel_hostile::spray::datagram;

use crate::common::{ECHO, Server, client, over, pattern};

fn flood(targets: [SocketAddr; 2], stop: Arc<AtomicBool>) -> std::thread::JoinHandle<u64> {
    std::thread::spawn(move || {
        let socket = UdpSocket::bind("127.0.0.1:0").unwrap();
        let mut sent = 0;
        // Bounded in any case; the calls end the flood much earlier.
        while sent < 2_000_000 && !stop.load(Ordering::Relaxed) {
            for target in targets {
                // A full socket buffer refuses a datagram: the flood goes on.
                let _ = socket.send_to(&datagram(sent), target);
            }
            sent += 1;
        }
        sent
    })
}

#[test]
fn strangers_at_the_data_port_are_dropped_and_counted_while_calls_go_on() {
    let (tell, told) = mpsc::channel();
    let server = Server::start(over(true, false), "127.0.0.1:0", move |endpoint| {
        tell.send(endpoint.transport().udp().local_addr()).unwrap();
    });
    // With a second peer the client's socket receives datagrams of strangers: with a single peer the socket is
    // connected, and the kernel refuses them, as at the client's servers.
    let another = Server::start(over(true, false), "127.0.0.1:0", |_| ());
    let mut client = client(over(true, false));
    client.connect_wait(another.address).unwrap();
    let session = client.connect_wait(server.address).unwrap();
    let targets = [told.recv().unwrap(), client.transport().udp().local_addr()];
    let stop = Arc::new(AtomicBool::new(false));
    let flood = flood(targets, Arc::clone(&stop));
    for round in 0..300u64 {
        let message = pattern([0, 32, 3_000, 60_000][round as usize % 4], round);
        let reply = client.call(session, ECHO, &message).wait().unwrap();
        assert!(reply[..] == message[..], "round {round}");
    }
    stop.store(true, Ordering::Relaxed);
    assert!(flood.join().unwrap() > 0);
    client.call(session, ECHO, b"quiet again").wait().unwrap();
    assert!(client.stats().transport.rx_dropped_unknown_peer > 0);
    assert_eq!(client.stats().protocol.dropped_unknown_session, 0, "dropped before the core");
    assert_eq!(client.buffers_in_use().count, 0);
}
