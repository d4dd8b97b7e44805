//! Transports with several source ports.

use crate::common::*;
use petrel_sim::fabric::{
    BindError, DropReason, FabricHandle, LinkConfig, LinkId, NicConfig, SimAddr, SwitchConfig,
    Topology,
};
use petrel_sim::{Medium, SOURCE_PORTS_MAX, SimTransport, SimTransportConfig};
use petrel_transport::Transport;

const H0_FROM_H1: petrel_transport::PeerId = petrel_transport::PeerId(0);

fn ports(source_ports: u8) -> SimTransportConfig {
    SimTransportConfig { source_ports, ..SimTransportConfig::default() }
}

/// Makes two hosts under a switch each, with four parallel links between the switches.
fn parallel() -> FabricHandle {
    let mut topology = Topology::new();
    let switches = [(); 2].map(|()| topology.add_switch(SwitchConfig::default()));
    for switch in switches {
        let host = topology.add_host(NicConfig::default());
        topology.connect(host, switch, LinkConfig::gbit(40, 500));
    }
    for _ in 0..4 {
        topology.connect(switches[0], switches[1], LinkConfig::gbit(10, 500));
    }
    FabricHandle::new(&topology, exact_cpu(), 1).unwrap()
}

/// Receives packet by packet: the peer, the index of its source port, and the number in the packet.
fn receive_sources(at: &mut SimTransport) -> Vec<(u32, u8, u32)> {
    let mut got = Vec::new();
    loop {
        let mut next = None;
        if at.rx_burst(1, |peer, bytes| next = Some((peer.0, number_of(bytes)))) == 0 {
            return got;
        }
        let (peer, number) = next.unwrap();
        got.push((peer, at.received_source(), number));
    }
}

#[test]
fn push_from__each_source_port_takes_its_way_and_the_receiver_knows_it() {
    let fabric = parallel();
    let mut a = bind_with(&fabric, H0, ports(16));
    let mut b = bind(&fabric, H1);
    b.accept_ports(H0_FROM_H1, a.further_ports()).unwrap();
    let mut used = std::collections::BTreeSet::<LinkId>::new();
    for source in 0..16 {
        let bytes = numbered(u32::from(source), 100);
        fabric.begin_measuring();
        assert_eq!(a.tx_burst_from(source, &[frame(H1, &bytes)]), 0);
        fabric.advance(10_000);
        assert_eq!(receive_sources(&mut b), [(0, source, u32::from(source))]);
        let link = fabric.route(a.source_addr(source), addr(H1)).unwrap()[1];
        assert_eq!(fabric.link_stats(link).packets, 1);
        used.insert(link);
    }
    assert_eq!(used.len(), 4, "sixteen source ports find four links");
    assert_eq!(a.source_addr(0), a.addr());
}

#[test]
fn push__takes_the_first_source_port() {
    let fabric = parallel();
    let mut a = bind_with(&fabric, H0, ports(4));
    let mut b = bind(&fabric, H1);
    b.accept_ports(H0_FROM_H1, a.further_ports()).unwrap();
    assert_eq!(send(&mut a, H1, 7, 1, 100), 1);
    fabric.advance(10_000);
    assert_eq!(receive_sources(&mut b), [(0, 0, 7)]);
}

#[test]
fn accept_ports__other_ports_are_strangers() {
    let fabric = parallel();
    let mut a = bind_with(&fabric, H0, ports(3));
    let mut b = bind(&fabric, H1);
    b.accept_ports(H0_FROM_H1, &a.further_ports()[..1]).unwrap();
    for source in 0..3 {
        let bytes = numbered(u32::from(source), 100);
        assert_eq!(a.tx_burst_from(source, &[frame(H1, &bytes)]), 0);
    }
    fabric.advance(10_000);
    let mut got = receive_sources(&mut b);
    got.sort_unstable();
    assert_eq!(got, [(0, 0, 0), (0, 1, 1)]);
    assert_eq!(b.stats().rx_dropped_unknown_peer, 1);
}

#[test]
fn push_from__frames_of_two_source_ports_share_no_packet() {
    let fabric = parallel();
    let mut a = bind_with(&fabric, H0, SimTransportConfig { coalesce: true, ..ports(2) });
    let mut b = bind(&fabric, H1);
    b.accept_ports(H0_FROM_H1, a.further_ports()).unwrap();
    let bytes = [0, 1, 2].map(|number| numbered(number, 100));
    for (source, frame_bytes) in [0, 0, 1].into_iter().zip(&bytes) {
        let tx = frame(H1, frame_bytes);
        #[expect(unsafe_code, reason = "the bytes outlive the flush")]
        // SAFETY: `bytes` lives until after the flush.
        let is_taken = unsafe { a.push_from(source, tx.peer, tx.head, tx.body) };
        assert!(is_taken);
    }
    a.flush();
    assert_eq!((a.stats().tx_frames, a.stats().tx_datagrams), (3, 2));
    fabric.advance(10_000);
    assert_eq!(receive(&mut b).len(), 3);
}

#[test]
fn bind__source_ports_are_the_transport_s_own_until_it_closes() {
    let fabric = parallel();
    let a = bind_with(&fabric, H0, ports(2));
    let other = SimTransport::bind(&fabric, SimAddr::new(H0, 9), ports(2)).unwrap();
    assert_ne!(a.further_ports(), other.further_ports());
    let taken = a.source_addr(1);
    let bind = |at| SimTransport::bind(&fabric, at, ports(1));
    assert!(matches!(bind(taken), Err(BindError::InUse(at)) if at == taken));
    // A port for sending receives nothing.
    let mut b = SimTransport::bind(&fabric, addr(H1), ports(1)).unwrap();
    let peer = b.add_peer(taken.into()).unwrap();
    b.tx_burst(&[petrel_transport::TxFrame { peer, head: b"x", body: b"" }]);
    fabric.advance(10_000);
    assert_eq!(fabric.stats().dropped(DropReason::NoPort), 1);
    drop(a);
    assert!(bind(taken).is_ok());
}

#[test]
fn bind__refuses_counts_that_the_medium_does_not_have() {
    let fabric = parallel();
    let refused = |config| {
        matches!(SimTransport::bind(&fabric, addr(H0), config), Err(BindError::SourcePorts { .. }))
    };
    assert!(refused(ports(0)) && refused(ports(SOURCE_PORTS_MAX + 1)));
    assert!(refused(SimTransportConfig { medium: Medium::Udp { seed: 1 }, ..ports(2) }));
    assert!(!refused(ports(SOURCE_PORTS_MAX)));
}
