//! Announcements of ports that are another's (`docs/wire-protocol.md` §14.1).

use std::net::UdpSocket;
use std::time::Duration;

use petrel::endpoint::{EndpointConfig, PathPolicy};
use petrel_hostile::control::{Link, link_open};
use petrel_hostile::{Connection, Shape, frames};
use petrel_transport::Transport as _;

use crate::HANG;
use crate::common::{ECHO, Server, client, over, pattern};

fn with_ports(path_policy: PathPolicy) -> EndpointConfig {
    let mut config = over(true, false);
    config.host.udp.further_ports = 3;
    config.sessions.path_policy = path_policy;
    config
}

/// Opens a link with the offer of a port, the announcement of further ports, and probes.
fn linked(connection: &mut Connection, number: u32, port: u16, further: &[u16]) -> Link {
    let further: Vec<u8> = further.iter().flat_map(|port| port.to_le_bytes()).collect();
    let open = link_open(number, port, 1_472, false).with(9, further).with(11, []);
    connection.open_link_by(number, 1_472, &open).unwrap().expect("the server accepts the link")
}

fn stat(connection: &mut Connection, name: &str) -> u64 {
    crate::common::counter(&connection.stats().unwrap(), name)
}

fn local(socket: &UdpSocket) -> u16 {
    socket.local_addr().unwrap().port()
}

#[test]
fn answers__to_a_port_that_has_sent_nothing_are_none() {
    let server = Server::start(with_ports(PathPolicy::Single), "127.0.0.1:0", |_| ());
    let [victim, own] = [(); 2].map(|()| UdpSocket::bind("127.0.0.1:0").unwrap());
    victim.set_read_timeout(Some(HANG)).unwrap();
    let mut attacker = Connection::greet(server.address).unwrap();
    let link = linked(&mut attacker, 1, local(&victim), &[local(&own)]);
    let session = attacker.open_session(&link, 1, Shape::default()).unwrap().unwrap();
    let slots = u64::from(session.slots);
    for slot in 0..slots {
        own.send_to(&frames::request(&session, slot, ECHO, b"an attack"), link.data).unwrap();
    }
    // The attack has arrived.
    while stat(&mut attacker, "dropped_wrong_peer") < slots {
        std::thread::sleep(Duration::from_millis(1));
    }
    victim.set_nonblocking(true).unwrap();
    let mut datagram = [0; 1_500];
    assert!(victim.recv(&mut datagram).is_err(), "nothing goes to the victim");
    victim.set_nonblocking(false).unwrap();
    // A sending port is a client's, and the further ports are then, too.
    victim.send_to(&frames::request(&session, 0, ECHO, b"a call"), link.data).unwrap();
    let answered = victim.recv(&mut datagram).unwrap();
    assert!(datagram[..answered].ends_with(b"a call"));
    own.send_to(&frames::request(&session, 1, ECHO, b"another"), link.data).unwrap();
    let answered = victim.recv(&mut datagram).unwrap();
    assert!(datagram[..answered].ends_with(b"another"));
}

#[test]
fn links_to_a_victims_ports__take_no_path_away() {
    let server = Server::start(with_ports(PathPolicy::Coupled), "127.0.0.1:0", |_| ());
    let mut victim = client(with_ports(PathPolicy::Coupled));
    let session = victim.connect_wait(server.address).unwrap();
    let udp = victim.transport().udp();
    let (port, further) = (udp.local_addr().port(), udp.further_ports().to_vec());
    let mut observer = Connection::greet(server.address).unwrap();
    // The server accepts as many frames as the victim sends: those of three paths of four would be missing.
    let mut check = |calls: u64| {
        let counts = |observer: &mut Connection, victim: &petrel::Endpoint| {
            let accepted = stat(observer, "frames_accepted");
            [accepted, victim.stats().protocol.packets_sent]
        };
        let before = counts(&mut observer, &victim);
        for call in 0..calls {
            let message = pattern(20_000, call);
            assert!(victim.call(session, ECHO, &message).wait().unwrap()[..] == message[..]);
        }
        let after = counts(&mut observer, &victim);
        let [accepted, sent] = [after[0] - before[0], after[1] - before[1]];
        assert!(2 * accepted > sent, "{accepted} frames of {sent} were accepted");
    };
    check(200);
    let own = UdpSocket::bind("127.0.0.1:0").unwrap();
    let mut attacker = Connection::greet(server.address).unwrap();
    // The victim's address with another list, the victim's further ports in another order, and one as an address.
    linked(&mut attacker, 1, port, &[local(&own)]);
    check(200);
    linked(&mut attacker, 2, local(&own), &[further[2], further[1], further[0]]);
    check(200);
    linked(&mut attacker, 3, further[0], &[further[1]]);
    check(200);
    // The attack has arrived: frames were delivered for the attacker's links, too.
    assert!(stat(&mut attacker, "dropped_wrong_peer") > 0);
    drop(attacker);
    check(200);
}
