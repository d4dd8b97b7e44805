//! Negotiation of ECN-capable links (`docs/wire-protocol.md` §8.4).

use std::net::SocketAddr;

use petrel::Nexus;
use petrel::nexus::{Attach, UdpAttach};
use petrel_proto::control::{LinkAccept, LinkOpen, Message, Offer};
use petrel_transport::host::HostLink;
use petrel_transport::mux::MuxLink;

use super::harness::*;

/// An endpoint, with or without a controller that heeds marks, and with or without a socket that reads marks.
fn endpoint(nexus: &Nexus, heeds_marks: bool, reads_marks: bool) -> Endpoint {
    let local: SocketAddr = "127.0.0.1:40000".parse().unwrap();
    let udp = UdpAttach { reads_marks, heeds_marks, ..udp_attachment(local) };
    attach_with(nexus, Attach { udp: Some(udp), ..attachment(None, true) })
}

fn is_ecn(up: &Up) -> bool {
    match &up.transport {
        HostLink::Far(MuxLink::Near(link)) => link.ecn,
        _ => false,
    }
}

#[test]
fn link__is_ecn_capable_if_the_opener_heeds_marks_and_both_read_them() {
    for case in 0..16u32 {
        let [heeds, reads, server_heeds, server_reads] = [1, 2, 4, 8].map(|bit| case & bit != 0);
        let ((server_nexus, address), client_nexus) = (server(V4), client());
        let mut server = endpoint(&server_nexus, server_heeds, server_reads);
        let mut client = endpoint(&client_nexus, heeds, reads);
        let ups = [client.link(address, 0, UDP), server.up()];
        let expected = heeds && reads && server_reads;
        assert_eq!(ups.map(|up| is_ecn(&up)), [expected; 2], "case {case:04b}");
        for nexus in [server_nexus, client_nexus] {
            assert_eq!(nexus.stats().links_opened_ecn, u64::from(expected));
        }
    }
}

#[test]
fn link__over_shared_memory_is_never_ecn_capable() {
    let ((server_nexus, address), client_nexus) = (server(V4), client());
    let mut server = endpoint(&server_nexus, true, true);
    let mut client = endpoint(&client_nexus, true, true);
    for up in [client.link(address, 0, BOTH), server.up()] {
        assert!(matches!(up.transport, HostLink::Near(_)), "{up:?}");
    }
    assert_eq!(server_nexus.stats().links_opened_ecn, 0);
}

/// Requests a link from a peer, with or without heeding marks. Returns the request, and whether the link uses ECN.
fn answered(heeds_marks: bool, ecn: bool) -> (LinkOpen, bool) {
    let (listener, address) = listener();
    let nexus = client();
    let mut client = endpoint(&nexus, heeds_marks, true);
    client.ask(address, 0, UDP);
    let mut peer = RawPeer::after_hello_by(&listener);
    let open = peer.link_open();
    let offer = Offer::Udp { port: 9, max_frame: 1_472 };
    peer.send(LinkAccept {
        link: open.link,
        offer,
        ticket: None,
        ecn,
        features: Default::default(),
        data_ip: None,
    });
    (open, is_ecn(&client.up()))
}

#[test]
fn link_open__needs_the_peers_consent() {
    // A peer without support for the record answers without it.
    let (open, is_ecn) = answered(true, false);
    assert!(open.ecn && !is_ecn);
    // A grant without a request is ignored.
    let (open, is_ecn) = answered(false, true);
    assert!(!open.ecn && !is_ecn);
    let (open, is_ecn) = answered(true, true);
    assert!(open.ecn && is_ecn);
}

#[test]
fn link_accept__grants_nothing_that_was_not_asked_for() {
    let (nexus, address) = server(V4);
    let _server = endpoint(&nexus, true, true);
    let mut peer = RawPeer::after_hello(address);
    assert!(!peer.open_udp(1).ecn);
    let offers = vec![Offer::Udp { port: 9, max_frame: 1_472 }];
    let open = LinkOpen {
        link: 2,
        from_endpoint: 5,
        to_endpoint: 0,
        offers,
        ecn: true,
        features: Default::default(),
    };
    peer.send(open);
    let Some(Message::LinkAccept(accept)) = peer.receive() else { panic!("not LINK_ACCEPT") };
    assert!(accept.ecn);
}
