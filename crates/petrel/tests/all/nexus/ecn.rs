//! Negotiation of ECN-capable links (`docs/wire-protocol.md` §8.4).

use std::net::SocketAddr;

use petrel::Nexus;
use petrel::nexus::{Attach, UdpAttach};
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
