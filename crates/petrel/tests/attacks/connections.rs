//! Connections that fill the server (`docs/wire-protocol.md` §8.3, §8.4): other clients still get in.

use std::net::SocketAddr;
use std::sync::{Mutex, MutexGuard, PoisonError};

use petrel::nexus::fetch_stats;
use petrel_hostile::{Connection, Shape};
use petrel_skip::{Need, skip};
use rustix::process::{Resource, Rlimit, Uid, geteuid, getrlimit, getuid, setrlimit};
use rustix::thread::set_thread_res_uid;

use crate::common::{ECHO, Server, client, counter, over};
use crate::{HANG, data_port, make_call};

/// More than the server accepts.
const FLOOD: usize = 4_200;

/// Allows the sockets of both sides. One flood at a time: three together would exceed the descriptor limit of many
/// machines.
fn room_for_a_flood() -> MutexGuard<'static, ()> {
    static FLOODS: Mutex<()> = Mutex::new(());
    let alone = FLOODS.lock().unwrap_or_else(PoisonError::into_inner);
    let limit = getrlimit(Resource::Nofile);
    setrlimit(Resource::Nofile, Rlimit { current: limit.maximum, ..limit }).unwrap();
    let current = getrlimit(Resource::Nofile).current.unwrap_or(u64::MAX);
    assert!(current > 3 * FLOOD as u64, "raise the limit of descriptors: ulimit -n");
    alone
}

/// Calls the server as a new client unrelated to the flood, and fetches its counters.
fn check_newcomers(address: SocketAddr) {
    let mut newcomer = client(over(true, false));
    let session = newcomer.connect_wait(address).unwrap();
    assert_eq!(&newcomer.call(session, ECHO, b"new").wait().unwrap()[..], b"new");
    let json = fetch_stats(address, HANG).unwrap();
    assert!(counter(&json, "connections_open") <= 4_096 + 256, "{json}");
}

#[test]
fn connections_without_a_session_or_a_request__yield_to_newcomers() {
    [false, true].into_iter().for_each(yield_to_newcomers);
}

fn yield_to_newcomers(with_session: bool) {
    let _alone = room_for_a_flood();
    let server = Server::start(over(true, false), "127.0.0.1:0", |_| ());
    let mut honest = client(over(true, false));
    let session = honest.connect_wait(server.address).unwrap();
    let mut crowd = Vec::new();
    for port in 0..FLOOD {
        let mut connection = Connection::greet(server.address).unwrap();
        // A refusal is as good: it keeps no client out.
        if let Ok(Some(link)) = connection.open_link(1, 1 + port as u16, 1_232, false)
            && with_session
        {
            let shape = Shape { slots: 1, ..Shape::default() };
            connection.open_session(&link, 1, shape).unwrap().unwrap();
        }
        crowd.push(connection);
        if port % 512 == 0 {
            assert_eq!(&honest.call(session, ECHO, b"old").wait().unwrap()[..], b"old");
        }
    }
    (0..5).for_each(|_| check_newcomers(server.address));
    assert_eq!(&honest.call(session, ECHO, b"old").wait().unwrap()[..], b"old");
    let stats = fetch_stats(server.address, HANG).unwrap();
    assert!(counter(&stats, "dropped_idle_full") > 0, "{stats}");
    drop(crowd);
}

#[test]
fn connections_of_clients__have_a_share_and_are_told() {
    let _alone = room_for_a_flood();
    let server = Server::start(over(true, false), "127.0.0.1:0", |_| ());
    let mut honest = client(over(true, false));
    let session = honest.connect_wait(server.address).unwrap();
    assert_eq!(&honest.call(session, ECHO, b"old").wait().unwrap()[..], b"old");
    let mut crowd = Vec::new();
    let (socket, port) = data_port([127, 0, 0, 1].into());
    let refused = (0..FLOOD).find(|_| {
        let mut connection = Connection::greet(server.address).unwrap();
        let link = connection.open_link(1, port, 1_232, false).unwrap();
        if let Some(link) = &link {
            let shape = Shape { slots: 1, ..Shape::default() };
            let session = connection.open_session(link, 1, shape).unwrap().unwrap();
            make_call(&socket, link, &session);
        }
        crowd.push(connection);
        link.is_none()
    });
    // An address may have this number of honest clients: it is loopback's share, and not the total.
    let share = refused.expect("a share has an end");
    assert!((3_000..3_584).contains(&share), "{share}");
    // A client with a session blocks no other, and counters remain available.
    assert_eq!(&honest.call(session, ECHO, b"old").wait().unwrap()[..], b"old");
    let stats = fetch_stats(server.address, HANG).unwrap();
    assert_eq!(counter(&stats, "dropped_idle_full"), 0, "{stats}");
    assert_eq!(counter(&stats, "sessions"), share as u64 + 1, "{stats}");
    // A refused client gets the reason.
    let mut newcomer = client(over(true, false));
    let refusal = newcomer.connect_wait(server.address).unwrap_err().to_string();
    assert!(refusal.contains("share of this server's connections"), "{refusal}");
    serve_another_user(server.address);
    // A new client gets a freed place, and another address has its own places.
    crowd.truncate(share - 10);
    let deadline = std::time::Instant::now() + HANG;
    while newcomer.connect_wait(server.address).is_err() {
        assert!(std::time::Instant::now() < deadline, "the places are not given back");
    }
}

/// Calls the server as another user of this host, who has a share of its own.
fn serve_another_user(address: SocketAddr) {
    if !geteuid().is_root() {
        return skip(Need::Users, "only root may become another user");
    }
    let call = move || {
        // The user of this thread, and of the nexus that it starts.
        set_thread_res_uid(getuid(), Uid::from_raw(65_534), getuid()).unwrap();
        check_newcomers(address);
    };
    std::thread::spawn(call).join().unwrap();
}

#[test]
fn connections_of_clients__leave_places_to_other_addresses() {
    let _alone = room_for_a_flood();
    let server = Server::start(over(true, false), "127.0.0.1:0", |_| ());
    let local = |host: u8| SocketAddr::from(([127, 0, 0, host], server.address.port()));
    let mut crowd = Vec::new();
    let (socket, port) = data_port([127, 0, 0, 9].into());
    loop {
        let mut connection = Connection::greet_from([127, 0, 0, 9].into(), local(1)).unwrap();
        let Some(link) = connection.open_link(1, port, 1_232, false).unwrap() else { break };
        let shape = Shape { slots: 1, ..Shape::default() };
        let session = connection.open_session(&link, 1, shape).unwrap().unwrap();
        make_call(&socket, &link, &session);
        crowd.push(connection);
        assert!(crowd.len() < FLOOD);
    }
    (0..5).for_each(|_| check_newcomers(local(1)));
}
