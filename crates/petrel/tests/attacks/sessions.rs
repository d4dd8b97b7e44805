//! Sessions without end: an address is limited to its share of the memory, and returns it.

use std::net::IpAddr;

use petrel_hostile::{Connection, Shape};

use crate::common::{ECHO, Server, client, over};
use crate::{data_port, make_call};

/// Opens sessions of 64 slots until the server refuses, and makes a call on the first. Returns their number.
fn open_all(connection: &mut Connection, flooder: IpAddr) -> u32 {
    const AT_ONCE: u32 = 256;
    let (socket, port) = data_port(flooder);
    let link = connection.open_link(1, port, 1_232, false).unwrap().unwrap();
    let shape = Shape { slots: 64, ..Shape::default() };
    let first = connection.open_session(&link, 0, shape).unwrap().unwrap();
    make_call(&socket, &link, &first);
    let mut count = 1;
    loop {
        let requests = count..count + AT_ONCE;
        let opens: Vec<_> = requests
            .clone()
            .map(|request| petrel_hostile::control::session_open(&link, request, shape))
            .collect();
        connection.send_all(&opens).unwrap();
        let answers = requests.map(|request| connection.session_answer(request).unwrap());
        let accepted = answers.flatten().count() as u32;
        count += accepted;
        if accepted < AT_ONCE {
            return count;
        }
        assert!(count < 1 << 20, "there is no end to it");
    }
}

#[test]
fn sessions__of_one_address_have_a_share_of_the_memory() {
    let mut config = over(true, false);
    config.sessions.slots = 64;
    let server = Server::start(config, "127.0.0.1:0", |_| ());
    let address = ([127, 0, 0, 1], server.address.port()).into();
    let mut honest = client(over(true, false));
    let session = honest.connect_wait(address).unwrap();
    let flooder = [127, 0, 0, 9].into();
    let mut greedy = Connection::greet_from(flooder, address).unwrap();
    let count = open_all(&mut greedy, flooder);
    // 64 MiB, half of the address's share: some 6 500 sessions of 64 slots, at 5 KiB each, use a half of it, and some
    // 20 000 of 16 slots the other.
    assert!((25_000..30_000).contains(&count), "{count}");
    let mut second = Connection::greet_from(flooder, address).unwrap();
    let count = open_all(&mut second, flooder);
    // As many bytes in sessions of 16 slots: the address has used its half for extra slots.
    assert!((35_000..45_000).contains(&count), "{count}");
    // A further connection of the address gets the remainder of the two, which is less than a session each. Another
    // address gets its own share.
    let mut again = Connection::greet_from(flooder, address).unwrap();
    let link = again.open_link(1, 11, 1_232, false).unwrap().unwrap();
    let shape = Shape { slots: 64, ..Shape::default() };
    let mut request = 1;
    while again.open_session(&link, request, shape).unwrap().is_some() {
        request += 1;
        assert!(request <= 3, "an address gets more than its share");
    }
    let mut newcomer = client(over(true, false));
    let new = newcomer.connect_wait(address).unwrap();
    assert_eq!(&newcomer.call(new, ECHO, b"new").wait().unwrap()[..], b"new");
    assert_eq!(&honest.call(session, ECHO, b"old").wait().unwrap()[..], b"old");
    // Ended sessions no longer count.
    drop((greedy, second));
    let deadline = std::time::Instant::now() + std::time::Duration::from_secs(60);
    request += 1;
    while again.open_session(&link, request, shape).unwrap().is_none() {
        request += 1;
        assert!(std::time::Instant::now() < deadline, "the share is not given back");
    }
}
