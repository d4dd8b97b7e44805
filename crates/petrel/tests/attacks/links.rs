//! Several links to an address and port: each keeps its own limits (`docs/wire-protocol.md` §8.4).

use petrel::Endpoint;
use petrel_hostile::{Connection, Shape};
use petrel_transport::udp::Mtu;

use crate::common::{ECHO, Server, client, over, pattern};

/// Checks responses of a full packet, of an almost full packet, and of several packets.
fn check_calls(client: &mut Endpoint, session: petrel::endpoint::SessionId, rounds: u64) {
    for round in 0..rounds {
        for size in [32, 1_300, 1_440, 5_000, 60_000] {
            let message = pattern(size, round);
            let reply = client.call(session, ECHO, &message).wait().unwrap();
            assert!(reply[..] == message[..], "{size} bytes in round {round}");
        }
    }
}

fn check_nothing_was_dropped(server: &Server) {
    let mut connection = Connection::greet(server.address).unwrap();
    let stats = connection.stats().unwrap();
    assert!(stats.contains("\"tx_dropped_oversize\":0"), "{stats}");
}

#[test]
fn links_to_a_victims_port__change_none_of_its_limits() {
    let server = Server::start(over(true, false), "127.0.0.1:0", |_| ());
    let mut victim = client(over(true, false));
    let session = victim.connect_wait(server.address).unwrap();
    check_calls(&mut victim, session, 2);
    let port = victim.transport().udp().local_addr().port();
    let mut attacker = Connection::greet(server.address).unwrap();
    for (number, (max_frame, ecn)) in
        [(1_232, false), (1_232, true), (65_507, false), (65_507, true)].into_iter().enumerate()
    {
        let link = attacker.open_link(number as u32, port, max_frame, ecn).unwrap().unwrap();
        attacker.open_session(&link, number as u32, Shape::default()).unwrap().unwrap();
        check_calls(&mut victim, session, 3);
    }
    // Nor does the end of such links.
    drop(attacker);
    check_calls(&mut victim, session, 3);
    check_nothing_was_dropped(&server);
}

#[test]
fn a_link_of_a_smaller_mtu_between_the_same_ports__leaves_the_first_one_alone() {
    let server = Server::start(over(true, false), "127.0.0.1:0", |_| ());
    let mut first = client(over(true, false));
    let session = first.connect_wait(server.address).unwrap();
    let port = first.transport().udp().local_addr().port();
    // The same data port, now with the least MTU, as a restarted client might request.
    let mut later = Connection::greet(server.address).unwrap();
    let link = later.open_link(1, port, 1_232, false).unwrap().unwrap();
    let later_session = later.open_session(&link, 1, Shape::default()).unwrap().unwrap();
    assert_eq!(later_session.packet_bytes, 1_200);
    check_calls(&mut first, session, 5);
    check_nothing_was_dropped(&server);
}

#[test]
fn the_link_that_came_first__may_end_first() {
    let server = Server::start(over(true, false), "127.0.0.1:0", |_| ());
    let mut config = over(true, false);
    config.host.udp.mtu = Mtu::Fixed(1_500);
    let mut victim = client(config);
    let port = victim.transport().udp().local_addr().port();
    let mut attacker = Connection::greet(server.address).unwrap();
    attacker.open_link(1, port, 1_232, true).unwrap().unwrap();
    let session = victim.connect_wait(server.address).unwrap();
    check_calls(&mut victim, session, 2);
    drop(attacker);
    check_calls(&mut victim, session, 5);
    let second = victim.connect_wait(server.address).unwrap();
    check_calls(&mut victim, second, 2);
    check_nothing_was_dropped(&server);
}
