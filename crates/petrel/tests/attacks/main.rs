//! Peers that use the protocol against the server: honest clients must not notice.

#[path = "../common/mod.rs"]
mod common;

mod connections;
mod links;
mod paths;
mod refused;
mod regions;
mod sessions;

use std::net::{IpAddr, UdpSocket};

use petrel_hostile::control::{Link, Session};

/// Far longer than any step: only a hang exceeds it.
const HANG: std::time::Duration = std::time::Duration::from_secs(60);

/// A data port, and its number.
fn data_port(ip: IpAddr) -> (UdpSocket, u16) {
    let socket = UdpSocket::bind((ip, 0)).unwrap();
    socket.set_read_timeout(Some(HANG)).unwrap();
    let port = socket.local_addr().unwrap().port();
    (socket, port)
}

/// Makes two calls, after which the session's connection yields to no newcomer: the server notes the first request in the turn that
/// answers it, and perhaps after the answer has left.
fn make_call(socket: &UdpSocket, link: &Link, session: &Session) {
    for number in 0..2 {
        let request = petrel_hostile::frames::request(session, number, common::ECHO, b"a client");
        socket.send_to(&request, link.data).unwrap();
        let mut datagram = [0; 1_500];
        let bytes = socket.recv(&mut datagram).unwrap();
        assert!(datagram[..bytes].ends_with(b"a client"));
    }
}
