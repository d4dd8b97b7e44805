//! Starting, attaching, and ending.

use std::error::Error as _;
use std::io::ErrorKind;
use std::net::TcpStream;
use std::time::Duration;

use petrel::Nexus;
use petrel::endpoint::EndpointId;
use petrel::nexus::Attach;
use petrel::nexus::SetupError;
use petrel::unstable::control::ControlPlane;

use super::harness::*;

#[test]
fn start__refuses_the_world_without_insecure() {
    for address in ["0.0.0.0:0", "[::]:0", "192.0.2.1:0", "[::ffff:192.0.2.1]:0"] {
        let error = Nexus::builder().listen(address.parse().unwrap()).start().unwrap_err();
        assert!(matches!(error, SetupError::NotLoopback { .. }), "{error}");
        assert!(error.to_string().contains("insecure()"), "{error}");
    }
    let nexus = Nexus::builder().listen("0.0.0.0:0".parse().unwrap()).insecure().start().unwrap();
    assert_ne!(nexus.local_addr().unwrap().port(), 0);
}

#[test]
fn start__says_that_the_address_is_taken() {
    let (_nexus, address) = server(V4);
    let error = Nexus::builder().listen(address).start().unwrap_err();
    let text = error.to_string();
    let SetupError::System { source, .. } = &error else { panic!("{text}") };
    assert_eq!(source.kind(), ErrorKind::AddrInUse);
    assert_eq!(
        text,
        format!("cannot listen on {address}: {source}; choose another address or port 0")
    );
    let of_std = error.source().and_then(|source| source.downcast_ref::<std::io::Error>());
    assert_eq!(of_std.map(std::io::Error::kind), Some(ErrorKind::AddrInUse));
}

#[test]
fn start__checks_the_number_of_connections() {
    for connections in [0, 7, 65_537] {
        let error = Nexus::builder().connections_max(connections).start().unwrap_err();
        let text = format!("{connections} connections are out of range; choose 8 to 65536");
        assert_eq!(error.to_string(), text);
    }
    Nexus::builder().connections_max(65_536).start().unwrap();
}

#[test]
fn start__checks_the_heartbeat() {
    for heartbeat in [Duration::ZERO, Duration::from_micros(999), Duration::from_secs(11)] {
        let error = Nexus::builder().heartbeat(heartbeat).start().unwrap_err();
        let text = format!("a heartbeat of {heartbeat:?} is out of range; choose 1 ms to 10 s");
        assert_eq!(error.to_string(), text);
    }
    Nexus::builder().heartbeat(Duration::from_secs(10)).start().unwrap();
}

#[test]
fn attach__numbers_endpoints() {
    let nexus = client();
    let with_id = |id| Attach { id: Some(EndpointId(id)), ..attachment(None, false) };
    let [a, b] = [attach(&nexus, V4), attach(&nexus, V4)];
    assert_eq!((a.port.id().0, b.port.id().0), (0, 1));
    let seven = nexus.attach(with_id(7)).unwrap();
    assert_eq!(seven.endpoint_id().0, 7);
    let error = nexus.attach(with_id(7)).unwrap_err();
    let text = "endpoint 7 exists already in this process; choose another number, or none";
    assert_eq!(error.to_string(), text);
    let error = nexus.attach(with_id(u16::MAX)).unwrap_err();
    let text = "65535 is no endpoint's number; choose one below, or none";
    assert_eq!(error.to_string(), text);
    drop((seven, a));
    assert_eq!(nexus.attach(with_id(7)).unwrap().id().0, 7);
    assert_eq!(attach(&nexus, V4).port.id().0, 0);
}

#[test]
fn random__differs_every_time() {
    let mut endpoint = attach(&client(), V4);
    let mut numbers: Vec<u64> = (0..1_000).map(|_| endpoint.port.random()).collect();
    numbers.sort_unstable();
    numbers.dedup();
    assert_eq!(numbers.len(), 1_000);
    assert_ne!(client().incarnation(), client().incarnation());
}

#[test]
fn drop__frees_the_address_with_the_last_handle_or_port() {
    let (nexus, address) = server(V4);
    let (clone, endpoint) = (nexus.clone(), attach(&nexus, V4));
    drop((nexus, clone));
    TcpStream::connect(address).unwrap();
    drop(endpoint);
    assert!(TcpStream::connect(address).is_err());
    Nexus::builder().listen(address).start().unwrap();
}
