//! The effect of a killed server on its client, and the absence of remains.

use std::fs;

use crate::common::{Server, command, finish, free_address, petrel, record};
use rustix::process::Signal;
use serde_json::Value;

/// Kills the server while a client makes large calls without end.
fn kill_during_large_calls(transport: &str) {
    let before = named_memory();
    let address = free_address();
    let server = Server::start(&["--listen", &address]);
    let client = command(&[
        "ping",
        &address,
        "--json",
        "--transport",
        transport,
        "--size",
        "8MiB",
        "--in-flight",
        "3",
        "--count",
        "1000000000",
        "--timeout",
        "60s",
    ])
    .spawn()
    .unwrap();
    // At this moment some calls have been answered, and others are in flight.
    server.wait_for_requests(5);
    let pid = server.pid();
    server.signal(Signal::KILL);
    assert_eq!(server.finish().0, None, "ended by the signal");
    let output = finish(client);
    assert_eq!(output.status.code(), Some(1), "{output:?}");
    assert_all_unavailable(&record(&output));
    assert_nothing_left(pid, &before);
    assert_serves_again(&address, transport);
}

fn assert_all_unavailable(ping: &Value) {
    let failures = ping["failures"].as_array().unwrap();
    assert!(!failures.is_empty(), "{ping}");
    assert!(failures.iter().all(|failure| failure["status"] == "UNAVAILABLE"), "{ping}");
    let unknown = failures.iter().any(|failure| failure["may_have_executed"] == "yes");
    assert!(unknown, "calls on the way may have been executed: {ping}");
    assert_eq!(ping["mismatched"], 0);
    let ended = ping["answered"].as_u64().unwrap() + ping["failed"].as_u64().unwrap();
    assert_eq!(ended, ping["calls"].as_u64().unwrap(), "every call has ended: {ping}");
}

/// Anonymous shared memory and abstract sockets vanish with the process; no named memory may carry
/// Petrel's name. Names from `before` the test belong to other processes.
fn assert_nothing_left(pid: u32, before: &[String]) {
    assert!(fs::metadata(format!("/proc/{pid}")).is_err(), "the server is still there");
    let mut left = named_memory();
    left.retain(|name| name.contains("petrel") && !before.contains(name));
    assert!(left.is_empty(), "{left:?}");
}

/// Returns the names of all named shared memory of this machine; empty if `/dev/shm` does not exist.
fn named_memory() -> Vec<String> {
    let Ok(names) = fs::read_dir("/dev/shm") else { return Vec::new() };
    names.filter_map(|entry| entry.ok()?.file_name().into_string().ok()).collect()
}

/// Checks that the same address works again at once, for new sessions.
fn assert_serves_again(address: &str, transport: &str) {
    let server = Server::start(&["--listen", address]);
    assert_eq!(server.address, address);
    let output = petrel(&["ping", address, "--json", "--transport", transport, "--size", "8MiB"]);
    assert_eq!(output.status.code(), Some(0), "{output:?}");
    assert_eq!(record(&output)["answered"], 10);
}

#[test]
fn ping__of_a_killed_server_ends_unavailable_over_udp() {
    kill_during_large_calls("udp");
}

#[test]
fn ping__of_a_killed_server_ends_unavailable_over_shared_memory() {
    kill_during_large_calls("shm");
}

#[test]
fn ping__of_a_server_that_hangs_ends_in_bounded_time() {
    let server = Server::on_free_port();
    let client =
        command(&["ping", &server.address, "--count", "1000000000", "--timeout", "60s", "--json"])
            .spawn()
            .unwrap();
    server.wait_for_requests(1);
    server.signal(Signal::STOP);
    let output = finish(client);
    assert_eq!(output.status.code(), Some(1));
    let failure = &record(&output)["failures"][0];
    assert_eq!(
        (&failure["status"], &failure["may_have_executed"]),
        (&"UNAVAILABLE".into(), &"yes".into())
    );
}
