//! Datagrams of strangers that the kernel refuses, because the socket has a single peer.

use std::net::UdpSocket;

use petrel::nexus::fetch_stats;
use petrel_hostile::spray;

use crate::common::own_network::{Trial, in_own_network};
use crate::common::{ECHO, Server, client, counter, over};

const DATAGRAMS: u64 = 1_000;

/// In a separate network, to count only these datagrams.
#[test]
fn datagrams_that_the_kernel_refuses__are_counted_by_the_host() {
    let trial = Trial { what: "network namespace", script: "ip link set lo up", input: "" };
    let own = "datagrams_that_the_kernel_refuses__are_counted_by_the_host";
    in_own_network(&trial, module_path!(), own, || {
        let (tell, told) = std::sync::mpsc::channel();
        let server = Server::start(over(true, false), "127.0.0.1:0", move |endpoint| {
            tell.send(endpoint.transport().udp().local_addr()).unwrap();
        });
        let mut honest = client(over(true, false));
        let session = honest.connect_wait(server.address).unwrap();
        let before = counter(&fetch_stats(server.address, crate::HANG).unwrap(), "udp_no_ports");
        let (stranger, data) = (UdpSocket::bind("127.0.0.1:0").unwrap(), told.recv().unwrap());
        for number in 0..DATAGRAMS {
            // Instead of sending, the kernel may report the refusal of an earlier datagram.
            while stranger.send_to(&spray::datagram(number), data).is_err() {}
        }
        assert_eq!(&honest.call(session, ECHO, b"still").wait().unwrap()[..], b"still");
        let stats = fetch_stats(server.address, crate::HANG).unwrap();
        assert_eq!(counter(&stats, "udp_no_ports") - before, DATAGRAMS, "{stats}");
        assert!(stats.contains("\"rx_dropped_unknown_peer\":0"), "{stats}");
    });
}
