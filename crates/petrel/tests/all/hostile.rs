//! Strangers at the data port: their datagrams are dropped and counted, and honest calls go on.

use std::net::{SocketAddr, UdpSocket};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc;

use crate::common::{ECHO, Server, client, over, pattern};

/// Returns the next of all kinds of datagrams that a stranger may send.
fn hostile_datagram(number: u64) -> Vec<u8> {
    let random = pattern(1500, number);
    match number % 6 {
        0 => random[..(number as usize * 7) % 1400].to_vec(),
        // The header of a REQUEST with a guessed session and token.
        1 => [&[0x10, 0, 0, 0][..], &random[..60]].concat(),
        // A bundle whose lengths add up to less than the bundle.
        2 => [&[0x0F, 200, 0][..], &random[..100]].concat(),
        // A bundle of many tiny frames.
        3 => std::iter::once(0x0F).chain([1, 0, 0x10].repeat(300)).collect(),
        // Each kind, version 1, cut short.
        4 => vec![0x10 | (number / 6 % 16) as u8; (number / 6 % 40) as usize],
        // Another protocol altogether.
        _ => b"GET / HTTP/1.1\r\nHost: petrel\r\n\r\n".to_vec(),
    }
}

fn flood(targets: [SocketAddr; 2], stop: Arc<AtomicBool>) -> std::thread::JoinHandle<u64> {
    std::thread::spawn(move || {
        let socket = UdpSocket::bind("127.0.0.1:0").unwrap();
        let mut sent = 0;
        // Bounded in any case; the calls end the flood much earlier.
        while sent < 2_000_000 && !stop.load(Ordering::Relaxed) {
            for target in targets {
                // A full socket buffer refuses a datagram: the flood goes on.
                let _ = socket.send_to(&hostile_datagram(sent), target);
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
