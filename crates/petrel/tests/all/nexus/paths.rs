//! Announcement of further source ports (`docs/wire-protocol.md` §14.1).

use std::net::SocketAddr;

use petrel::Nexus;
use petrel::nexus::{Attach, UdpAttach};
use petrel_proto::control::{LinkAccept, LinkFeatures, LinkOpen, Message, Offer, PathPorts};
use petrel_transport::host::HostLink;

use super::harness::*;

/// An endpoint with these further source ports, whose own sessions use several paths or not.
fn endpoint(nexus: &Nexus, ports: &[u16], uses_paths: bool) -> Endpoint {
    let local: SocketAddr = "127.0.0.1:40000".parse().unwrap();
    let further_ports = PathPorts::new(ports).unwrap();
    let udp = UdpAttach { further_ports, uses_paths, ..udp_attachment(local) };
    attach_with(nexus, Attach { udp: Some(udp), ..attachment(None, true) })
}

fn paths(up: &Up) -> Vec<u16> {
    up.features.paths.as_slice().to_vec()
}

/// The sides may have different numbers of ports. Each learns the other's.
#[test]
fn link__has_several_paths_if_the_opener_asks_and_both_have_ports() {
    let (own, servers): ([u16; 3], [u16; 1]) = ([40_001, 40_007, 40_002], [50_000]);
    for case in 0..16u32 {
        let [asks, has, server_asks, server_has] = [1, 2, 4, 8].map(|bit| case & bit != 0);
        let ((server_nexus, address), client_nexus) = (server(V4), client());
        let ports = |has, ports| if has { ports } else { &[][..] };
        let mut server = endpoint(&server_nexus, ports(server_has, &servers), server_asks);
        let mut client = endpoint(&client_nexus, ports(has, &own), asks);
        let learned = [client.link(address, 0, UDP), server.up()].map(|up| paths(&up));
        let expected = match asks && has && server_has {
            true => [servers.to_vec(), own.to_vec()],
            false => [vec![], vec![]],
        };
        assert_eq!(learned, expected, "case {case:04b}");
    }
}

#[test]
fn link__over_shared_memory_has_one_path() {
    let ((server_nexus, address), client_nexus) = (server(V4), client());
    let mut server = endpoint(&server_nexus, &[50_000], true);
    let mut client = endpoint(&client_nexus, &[40_001], true);
    for up in [client.link(address, 0, BOTH), server.up()] {
        assert!(matches!(up.transport, HostLink::Near(_)), "{up:?}");
        assert!(up.features.paths.is_empty(), "{up:?}");
    }
}

/// Requests a link from a peer with `ports`, with probes or without. Returns the request, and the ports known to the endpoint.
fn answered(asks: bool, ports: &[u16], probe: bool) -> (LinkOpen, Vec<u16>) {
    let (listener, address) = listener();
    let nexus = client();
    let mut client = endpoint(&nexus, &[40_001, 40_002], asks);
    client.ask(address, 0, UDP);
    let mut peer = RawPeer::after_hello_by(&listener);
    let open = peer.link_open();
    let paths_of_peer = PathPorts::new(ports).unwrap();
    let features = LinkFeatures { paths: paths_of_peer, probe, ..LinkFeatures::NONE };
    peer.send(LinkAccept { features, ..accept_udp(open.link) });
    (open, paths(&client.up()))
}

#[test]
fn link_open__of_a_peer_without_paths_or_not_asked_for_them() {
    // An older peer ignores the record, and answers without it.
    let (open, learned) = answered(true, &[], true);
    assert_eq!((open.features.paths.as_slice(), learned), (&[40_001, 40_002][..], vec![]));
    // An announcement that was not asked for is ignored.
    let (open, learned) = answered(false, &[50_000], true);
    assert_eq!((open.features.paths.as_slice(), learned), (&[][..], vec![]));
    let (_, learned) = answered(true, &[50_000], true);
    assert_eq!(learned, [50_000]);
    // Without probes nothing proves that a port is the peer's.
    let (_, learned) = answered(true, &[50_000], false);
    assert!(learned.is_empty());
}

#[test]
fn link_accept__announces_nothing_to_an_opener_without_ports() {
    let (nexus, address) = server(V4);
    let mut server = endpoint(&nexus, &[50_000], true);
    let mut peer = RawPeer::after_hello(address);
    assert!(peer.open_udp(1).features.paths.is_empty());
    assert!(paths(&server.up()).is_empty());
    for (link, probe) in [(2, true), (3, false)] {
        let further = PathPorts::new(&[8]).unwrap();
        let features = LinkFeatures { paths: further, probe, ..LinkFeatures::NONE };
        let offer = Offer::Udp { port: 9, max_frame: 1_472 };
        peer.send(LinkOpen { features, ..open_of(link, offer) });
        let Some(Message::LinkAccept(accept)) = peer.receive() else { panic!("not LINK_ACCEPT") };
        assert_eq!(accept.features.paths.as_slice(), if probe { &[50_000][..] } else { &[] });
        assert_eq!(paths(&server.up()), if probe { &[8][..] } else { &[] });
    }
}
