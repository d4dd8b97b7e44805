//! A nexus in a process that runs out of descriptors. Alone in its process, whose limit it lowers.

use std::net::TcpStream;
use std::time::Duration;

use petrel::Nexus;
use petrel::nexus::fetch_stats;
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

#[test]
fn accept__waits_for_descriptors_without_spinning() {
    let nexus = Nexus::builder().listen("127.0.0.1:0".parse().unwrap()).start().unwrap();
    let address = nexus.local_addr().unwrap();
    let limit = getrlimit(Resource::Nofile);
    setrlimit(Resource::Nofile, Rlimit { current: Some(64), ..limit }).unwrap();
    let mut crowd = Vec::new();
    while let Ok(stream) = TcpStream::connect(address) {
        crowd.push(stream);
    }
    while nexus.stats().accept_errors == 0 {
        std::thread::sleep(Duration::from_millis(1));
    }
    // Each try is followed by a pause of 100 ms: more than a few in half a second means that it
    // spins.
    let before = nexus.stats().accept_errors;
    std::thread::sleep(Duration::from_millis(500));
    let tries = nexus.stats().accept_errors - before;
    assert!(tries <= 10, "{tries}");
    drop(crowd);
    let json = fetch_stats(address, Duration::from_secs(120)).unwrap();
    assert!(json.contains("\"accept_errors\":"), "{json}");
}
