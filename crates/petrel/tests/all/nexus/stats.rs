//! Counters requested from outside.

use std::io::Write;
use std::net::{IpAddr, SocketAddr, UdpSocket};
use std::thread::JoinHandle;
use std::time::Duration;

use petrel::nexus::fetch_stats;
use petrel::unstable::control::{FromNexus, ToNexus};
use petrel::{Error, Execution, Nexus, Status};
use petrel_skip::{Need, skip};

use super::harness::*;

fn ask(address: SocketAddr) -> JoinHandle<Result<String, Error>> {
    std::thread::spawn(move || fetch_stats(address, HANG))
}

fn answer(endpoint: &mut Endpoint, json: &str) {
    let FromNexus::StatsRequested { request } = endpoint.next() else { panic!("not asked") };
    endpoint.port.post(ToNexus::Stats { request, json: json.to_owned() });
}

#[test]
fn fetch_stats__from_all_endpoints() {
    for family in [V4, V6] {
        let (nexus, address) = server(family);
        let mut endpoints = [attach(&nexus, family), attach(&nexus, family)];
        let requester = ask(address);
        answer(&mut endpoints[0], "{\"calls\":5}");
        answer(&mut endpoints[1], "{}");
        let json = requester.join().unwrap().unwrap();
        let start = format!("{{\"incarnation\":{},\"nexus\":{{", nexus.incarnation());
        assert!(json.starts_with(&start), "{json}");
        assert!(json.contains("\"connections_accepted\":1,"), "{json}");
        let end = "\"endpoints\":[{\"id\":0,\"stats\":{\"calls\":5}},{\"id\":1,\"stats\":{}}]}";
        assert!(json.ends_with(end), "{json}");
    }
}

#[test]
fn fetch_stats__of_an_endpoint_that_does_not_run() {
    let (nexus, address) = server(V4);
    let _endpoint = attach(&nexus, V4);
    let json = fetch_stats(address, HANG).unwrap();
    assert!(json.contains("{\"id\":0,\"error\":\"no answer in time"), "{json}");
}

#[test]
fn fetch_stats__in_several_parts() {
    let (nexus, address) = server(V4);
    let mut endpoints: Vec<_> = (0..5).map(|_| attach(&nexus, V4)).collect();
    let long = format!("{{\"name\":\"{}\"}}", "ü".repeat(30_000));
    let requesters = [ask(address), ask(address)];
    // A request during another's answer may get the same answer or a new one.
    while nexus.stats().stats_answered < 2 {
        for endpoint in &mut endpoints {
            if let Some(FromNexus::StatsRequested { request }) = endpoint.port.poll() {
                endpoint.port.post(ToNexus::Stats { request, json: long.clone() });
            }
        }
        std::thread::yield_now();
    }
    for requester in requesters {
        let json = requester.join().unwrap().unwrap();
        assert_eq!(json.matches(&long).count(), 5);
    }
}

#[test]
fn fetch_stats__from_nobody() {
    let (listener, address) = listener();
    drop(listener);
    let error = fetch_stats(address, HANG).unwrap_err();
    assert_eq!((error.status, error.execution), (Status::Unavailable, Execution::NotSent));
    let begin = format!("cannot connect to {address}: no process listens at {address}");
    assert!(error.message.starts_with(&begin), "{error}");
}

#[test]
fn fetch_stats__from_a_process_that_hangs() {
    let (_listener, address) = listener();
    let error = fetch_stats(address, Duration::from_millis(50)).unwrap_err();
    let expected = (Status::DeadlineExceeded, Execution::MayHaveExecuted);
    assert_eq!((error.status, error.execution), expected, "{error}");
    assert!(error.message.contains("within 50ms"), "{error}");
}

#[test]
fn fetch_stats__from_something_else() {
    let (listener, address) = listener();
    let requester = ask(address);
    let (mut stream, _) = listener.accept().unwrap();
    stream.write_all(b"SSH-2.0-OpenSSH_9\r\n").unwrap();
    let error = requester.join().unwrap().unwrap_err();
    assert_eq!(error.status, Status::Unimplemented, "{error}");
    let text = format!("{address} does not follow the protocol");
    assert!(error.message.contains(&text), "{error}");
}

/// An address of the host other than loopback, found without sending a packet.
fn outward_address() -> Option<IpAddr> {
    let socket = UdpSocket::bind("0.0.0.0:0").ok()?;
    socket.connect("192.0.2.1:9").ok()?;
    socket.local_addr().ok().map(|address| address.ip())
}

/// A server in a data center listens on its network's address, and is queried on its own host.
#[test]
fn fetch_stats__of_a_server_that_listens_on_a_networks_address() {
    let Some(ip) = outward_address() else {
        return skip(Need::Address, "this host has no address but loopback");
    };
    assert!(!ip.is_loopback());
    let builder = Nexus::builder().listen(SocketAddr::new(ip, 0)).insecure();
    let nexus = builder.start().unwrap();
    let json = fetch_stats(nexus.local_addr().unwrap(), HANG).unwrap();
    assert!(json.contains("\"stats_refused\":0"), "{json}");
    assert_eq!(nexus.stats().stats_answered, 1);
}
