//! A nexus in a process that runs out of descriptors. Alone in its process, to lower the process's limit.

use std::fs::File;
use std::net::{SocketAddr, TcpStream};
use std::time::{Duration, Instant};

use petrel::Nexus;
use petrel::nexus::fetch_stats;
use rustix::net::{AddressFamily, SocketType, connect, socket};
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

const HANG: Duration = Duration::from_secs(120);

fn wait_until(mut is_so: impl FnMut() -> bool) {
    let deadline = Instant::now() + HANG;
    while !is_so() {
        assert!(Instant::now() < deadline, "it does not come about");
        std::thread::sleep(Duration::from_millis(1));
    }
}

/// Takes all available descriptors.
fn take_descriptors() -> Vec<File> {
    std::iter::from_fn(|| File::open("/dev/null").ok()).collect()
}

/// Checks that the nexus pauses without a connection to drop.
fn check_pause(nexus: &Nexus, address: SocketAddr) {
    // The client's own descriptor is opened before the others are taken.
    let client = socket(AddressFamily::INET, SocketType::STREAM, None).unwrap();
    let taken = take_descriptors();
    connect(&client, &address).unwrap();
    wait_until(|| nexus.stats().accept_errors > 0);
    // A pause of 100 ms follows each attempt: more than a few in half a second would mean spinning.
    let before = nexus.stats().accept_errors;
    let began = Instant::now();
    std::thread::sleep(Duration::from_millis(500));
    let tries = nexus.stats().accept_errors - before;
    let most = began.elapsed().as_millis() as u64 / 50;
    assert!(tries <= most, "{tries} of {most}");
    drop(taken);
    wait_until(|| nexus.stats().connections_accepted == 1);
    drop(client);
    wait_until(|| nexus.stats().connections_open == 0);
}

/// Silent connections, fewer than half of the descriptors: both ends are in the same process.
const CROWD: usize = 16;

/// Checks that silent connections yield to one with a request.
fn check_newcomer(nexus: &Nexus, address: SocketAddr) {
    let crowd: Vec<_> = (0..CROWD).map(|_| TcpStream::connect(address).unwrap()).collect();
    wait_until(|| nexus.stats().connections_open == CROWD as u64);
    let reserve = File::open("/dev/null").unwrap();
    let taken = take_descriptors();
    // One descriptor for the client's own end, and none for the server's.
    drop(reserve);
    let json = fetch_stats(address, HANG).unwrap();
    assert!(json.contains("\"dropped_ungreeted_full\":1,"), "{json}");
    drop((crowd, taken));
}

#[test]
fn accept__without_descriptors_pauses_or_makes_room() {
    let nexus = Nexus::builder().listen("127.0.0.1:0".parse().unwrap()).start().unwrap();
    let address = nexus.local_addr().unwrap();
    let limit = getrlimit(Resource::Nofile);
    setrlimit(Resource::Nofile, Rlimit { current: Some(64), ..limit }).unwrap();
    check_pause(&nexus, address);
    check_newcomer(&nexus, address);
}
