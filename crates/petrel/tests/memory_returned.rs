//! A server frees the memory of many sessions when they end. Alone in its process, to read the process's memory.

mod common;

use std::time::{Duration, Instant};

use common::{ECHO, Server, client, over};
use petrel_hostile::{Connection, Shape, control};

const SESSIONS: u32 = 12_500;
const AT_ONCE: u32 = 500;

/// The most that may remain of the 58 MB in use.
const REMAINDER_BYTES_MAX: u64 = 20 << 20;

fn resident_bytes() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap();
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:")).unwrap();
    line.trim().strip_suffix("kB").unwrap().trim().parse::<u64>().unwrap() << 10
}

#[test]
fn sessions_that_have_ended__give_their_memory_back() {
    let mut config = over(true, false);
    config.sessions.slots = 64;
    let server = Server::start(config, "127.0.0.1:0", |_| ());
    let mut honest = client(over(true, false));
    let session = honest.connect_wait(server.address).unwrap();
    let before = resident_bytes();
    let mut crowd = Connection::greet(server.address).unwrap();
    let link = crowd.open_link(1, 9, 1_232, false).unwrap().unwrap();
    let shape = Shape { slots: 64, ..Shape::default() };
    for first in (0..SESSIONS).step_by(AT_ONCE as usize) {
        let requests = first..first + AT_ONCE;
        let opens: Vec<_> =
            requests.clone().map(|r| control::session_open(&link, r, shape)).collect();
        crowd.send_all(&opens).unwrap();
        requests.for_each(|request| assert!(crowd.session_answer(request).unwrap().is_some()));
    }
    let peak = resident_bytes();
    // The first eight slots have memory.
    assert!(peak > before + u64::from(SESSIONS) * 512, "{before} {peak}");
    drop(crowd);
    let deadline = Instant::now() + Duration::from_secs(60);
    loop {
        assert_eq!(&honest.call(session, ECHO, b"old").wait().unwrap()[..], b"old");
        let now = resident_bytes();
        if now < before + REMAINDER_BYTES_MAX {
            println!("before {before}, with {SESSIONS} sessions {peak}, after {now}");
            break;
        }
        assert!(Instant::now() < deadline, "before {before}, peak {peak}, now {now}");
    }
}
