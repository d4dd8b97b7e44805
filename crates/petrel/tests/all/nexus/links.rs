//! Links between two nexuses.

use std::collections::HashSet;
use std::net::SocketAddr;
use std::time::Instant;

use petrel::Status;
use petrel::nexus::{Attach, UdpAttach};
use petrel::unstable::control::{LinkId, ToNexus};
use petrel_proto::control::{LinkAccept, LinkFeatures, SessionOpen};
use petrel_transport::host::HostLink;
use petrel_transport::mux::MuxLink;
use petrel_transport::shm::{Shm, ShmLink};
use petrel_transport::udp::Mtu;
use petrel_transport::{Transport, TxFrame};

use super::harness::*;

#[test]
fn link__over_udp_in_both_families() {
    for family in [V4, V6] {
        let (server_nexus, address) = server(family);
        let client_nexus = client();
        let mut server = attach(&server_nexus, family);
        let mut client = attach(&client_nexus, family);
        let up = client.link(address, 0, UDP);
        let up_server = server.up();
        assert_eq!(up_server.request, None);
        assert_eq!(up.incarnation, server_nexus.incarnation());
        assert_eq!(up_server.incarnation, client_nexus.incarnation());
        assert_eq!(up.peer.to_string(), format!("{address} endpoint 0"));
        for up in [up, up_server] {
            let HostLink::Far(MuxLink::Near(link)) = up.transport else {
                panic!("{:?}", up.transport)
            };
            let at = SocketAddr::new(address.ip(), 40_000);
            let header = if at.is_ipv6() { 48 } else { 28 };
            assert_eq!((link.addr, link.max_frame), (at, Some(17_000 - header)));
        }
    }
}

/// A client that keeps to its host sends to no other host, whatever the server names.
#[test]
fn link__to_an_address_that_the_server_names_keeps_to_the_host() {
    for (named, probe, expected) in [
        ("127.0.0.2", true, "127.0.0.2:9"),
        ("127.0.0.2", false, "127.0.0.1:9"),
        ("192.0.2.1", true, "127.0.0.1:9"),
    ] {
        let (listener, address) = listener();
        let nexus = client();
        let mut client = attach(&nexus, V4);
        client.ask(address, 0, UDP);
        let mut peer = RawPeer::after_hello_by(&listener);
        let link = peer.link_open().link;
        let features = LinkFeatures { probe, ..LinkFeatures::NONE };
        let data_ip = Some(named.parse().unwrap());
        peer.send(LinkAccept { features, data_ip, ..accept_udp(link) });
        let HostLink::Far(MuxLink::Near(link)) = client.up().transport else { panic!("not UDP") };
        assert_eq!(link.addr, expected.parse().unwrap(), "{named}, probes {probe}");
    }
}

/// The opener gets the path's round trip before any other message of the link, also for a second link over the
/// connection. Later it gets only shorter values.
#[test]
fn link__its_opener_is_told_the_path() {
    let (server_nexus, address) = server(V4);
    let client_nexus = client();
    let (mut server, mut client) = (attach(&server_nexus, V4), attach(&client_nexus, V4));
    let began = Instant::now();
    for _ in 0..2 {
        let link = client.link(address, 0, UDP).link;
        server.up();
        // Measurements that arrive earlier are kept in `paths`.
        let open = SessionOpen { slots: 3, ..proposal(4) };
        client.port.post(ToNexus::OpenSession { link, open });
        assert_eq!(client.refused().1.status, Status::InvalidArgument);
        let reported: Vec<u32> =
            client.paths.iter().filter(|(of, _)| *of == link).map(|(_, rtt_ns)| *rtt_ns).collect();
        let longest_ns = began.elapsed().as_nanos() as u64;
        assert!(!reported.is_empty() && reported.is_sorted_by(|a, b| a > b), "{reported:?}");
        assert!((1..=longest_ns).contains(&u64::from(reported[0])), "{reported:?} of {longest_ns}");
    }
    assert!(server.paths.is_empty(), "a server has no use for it");
}

#[test]
fn link__with_the_smaller_of_both_frames() {
    let (server_nexus, address) = server(V4);
    let local = "127.0.0.1:7".parse().unwrap();
    let small = UdpAttach { mtu: Mtu::Fixed(1_500), ..udp_attachment(local) };
    let mut server =
        attach_with(&server_nexus, Attach { udp: Some(small), ..attachment(None, false) });
    let mut client = attach(&client(), V4);
    for transport in [client.link(address, 0, UDP).transport, server.up().transport] {
        let HostLink::Far(MuxLink::Near(link)) = transport else { panic!("{transport:?}") };
        assert_eq!(link.max_frame, Some(1_472));
    }
}

/// Sends a frame each way.
fn check_rings((client, link): (&Endpoint, ShmLink), (server, server_link): (&Endpoint, ShmLink)) {
    assert_eq!(link.max_frame_bytes(), server_link.max_frame_bytes());
    let mut near = Shm::new(&shm_config(), client.waker.clone());
    let mut far = Shm::new(&shm_config(), server.waker.clone());
    let (to_far, to_near) = (near.add_peer(link).unwrap(), far.add_peer(server_link).unwrap());
    near.tx_burst(&[TxFrame { peer: to_far, head: b"there", body: b"" }]);
    far.tx_burst(&[TxFrame { peer: to_near, head: b"back", body: b"" }]);
    assert_eq!(far.rx_burst(9, |_, frame| assert_eq!(frame, b"there")), 1);
    assert_eq!(near.rx_burst(9, |_, frame| assert_eq!(frame, b"back")), 1);
}

fn shm_link(up: Up) -> ShmLink {
    match up.transport {
        HostLink::Near(link) => link,
        other => panic!("not shared memory: {other:?}"),
    }
}

#[test]
fn link__prefers_shared_memory_on_one_host() {
    for family in [V4, V6] {
        let (server_nexus, address) = server(family);
        let mut server = attach(&server_nexus, family);
        let mut client = attach(&client(), family);
        let link = shm_link(client.link(address, 0, BOTH));
        let server_link = shm_link(server.up());
        check_rings((&client, link), (&server, server_link));
        assert_eq!(server_nexus.stats().links_opened_shm, 1);
    }
}

#[test]
fn link__to_the_own_process() {
    let (nexus, address) = server(V4);
    let (mut server, mut client) = (attach(&nexus, V4), attach(&nexus, V4));
    let link = shm_link(client.link(address, 0, SHM));
    let server_link = shm_link(server.up());
    check_rings((&client, link), (&server, server_link));
}

#[test]
fn link__every_endpoint_with_every_other_over_one_connection() {
    const EACH: u16 = 12;
    let (server_nexus, address) = server(V4);
    let client_nexus = client();
    let mut servers: Vec<_> = (0..EACH).map(|_| attach(&server_nexus, V4)).collect();
    let mut clients: Vec<_> = (0..EACH).map(|_| attach(&client_nexus, V4)).collect();
    for client in &mut clients {
        for id in 0..EACH {
            client.ask(address, id, SHM);
        }
    }
    let all = clients.iter_mut().chain(&mut servers);
    let links: Vec<(usize, LinkId)> = all
        .enumerate()
        .flat_map(|(position, endpoint)| {
            (0..EACH).map(move |_| (position, endpoint.up().link)).collect::<Vec<_>>()
        })
        .collect();
    assert_eq!(links.len(), 2 * usize::from(EACH) * usize::from(EACH));
    let of_clients = links.iter().filter(|(position, _)| *position < usize::from(EACH));
    let distinct: HashSet<LinkId> = of_clients.map(|(_, link)| *link).collect();
    assert_eq!(distinct.len(), usize::from(EACH) * usize::from(EACH));
    assert_eq!(client_nexus.stats().connections_dialed, 1);
    assert_eq!(client_nexus.stats().shm_fallbacks, 0);
}

#[test]
fn link__that_cannot_be_had_says_why() {
    let ((nexus, here), (nexus_of_six, six)) = (server(V4), server(V6));
    let _without_udp = attach_with(&nexus, attachment(None, true));
    let _of_six = attach(&nexus_of_six, V6);
    let mut client = attach(&client(), V4);
    let other_host = |text: &str| text.parse::<SocketAddr>().unwrap();
    for (address, endpoint, transports, status, text) in [
        (here, 0, UDP, Status::FailedPrecondition, "does not use UDP"),
        (six, 0, UDP, Status::FailedPrecondition, "bind the endpoint to that one"),
        (here, 3, BOTH, Status::Unavailable, "no endpoint 3"),
        (other_host("192.0.2.1:31850"), 0, BOTH, Status::FailedPrecondition, "insecure()"),
        (other_host("[2001:db8::1]:31850"), 0, BOTH, Status::FailedPrecondition, "insecure()"),
        (other_host("[::ffff:192.0.2.1]:1"), 0, BOTH, Status::FailedPrecondition, "insecure()"),
    ] {
        let reason = client.no_link(address, endpoint, transports);
        assert!(reason.status == status && reason.message.contains(text), "{reason:?}");
    }
    assert_eq!(nexus.stats().links_refused, 2);
}

#[test]
fn drop_port__ends_its_links_and_no_others() {
    let (server_nexus, address) = server(V4);
    let (mut server, mut other) = (attach(&server_nexus, V4), attach(&server_nexus, V4));
    let mut client = attach(&client(), V4);
    let (first, second) = (client.link(address, 0, BOTH), client.link(address, 1, BOTH));
    drop((server.up(), other.up()));
    drop(server);
    let (link, reason) = client.down();
    assert_eq!((link, reason.status), (first.link, Status::Unavailable));
    assert!(reason.message.contains("endpoint 0"), "{reason:?}");
    drop(other);
    assert_eq!(client.down().0, second.link);
}
