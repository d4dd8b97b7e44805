//! Rates, queues and accounting of the fabric.

use crate::common::*;
use petrel_sim::fabric::{
    Action, BindError, BufferPolicy, DropReason, FabricConfig, FabricHandle, LinkConfig, LinkId,
    NicConfig, SimAddr, SwitchConfig, Topology,
};
use petrel_sim::{SimTransport, SimTransportConfig, Time};
use petrel_transport::{LinkError, PeerId, Transport, TxFrame};

const LENGTH: usize = 1000;
const WIRE_BYTES: u64 = LENGTH as u64 + OVERHEAD_BYTES;

#[test]
fn link__carries_packets_at_exactly_its_rate() {
    const GBIT: u64 = 100;
    const DELAY_NS: u64 = 700;
    const COUNT: u32 = 500;
    let fabric = pair_with(NicConfig::default(), LinkConfig::gbit(GBIT, DELAY_NS), 1);
    let (mut a, mut b) = (bind(&fabric, H0), bind(&fabric, H1));
    assert_eq!(send(&mut a, H1, 0, COUNT, LENGTH), COUNT);

    // 80 ps for each byte at 100 Gbit/s. A nanosecond before its end, packet k has not arrived.
    let end_ps = |k: u64| k * WIRE_BYTES * 80 + DELAY_NS * 1_000;
    for number in 0..COUNT {
        let k = u64::from(number) + 1;
        let end = Time::ZERO.plus_ps(end_ps(k));
        fabric.advance(end.ns() - fabric.now_ns() - 1);
        assert_eq!(receive(&mut b).len(), 0, "packet {k} is early");
        fabric.advance(2);
        assert_eq!(receive_numbers(&mut b), [number], "at the end of packet {k}");
    }
    assert_eq!(fabric.link_stats(LinkId(0)).bytes, u64::from(COUNT) * WIRE_BYTES);
    assert_eq!(fabric.link_stats(LinkId(1)).packets, 0);
}

#[test]
fn switch__stores_and_forwards() {
    let fabric = star_with(2, SwitchConfig::default(), LinkConfig::gbit(8, 100), 1);
    let (mut a, mut b) = (bind(&fabric, H0), bind(&fabric, H1));
    send(&mut a, H1, 0, 3, LENGTH);
    // One byte takes a nanosecond. The first packet is sent twice; the others follow at once.
    let first_ns = 2 * (WIRE_BYTES + 100);
    fabric.advance(first_ns - 1);
    assert_eq!(receive(&mut b).len(), 0);
    for number in 0..3 {
        fabric.advance(1);
        assert_eq!(receive_numbers(&mut b), [number]);
        fabric.advance(WIRE_BYTES - 1);
    }
}

#[test]
fn tx_burst__refuses_frames_beyond_the_queue() {
    let nic = NicConfig { tx_packets: 10, ..NicConfig::default() };
    let fabric = pair_with(nic, LinkConfig::gbit(8, 0), 1);
    let (mut a, mut b) = (bind(&fabric, H0), bind(&fabric, H1));
    let bodies: Vec<_> = (0..12).map(|number| numbered(number, LENGTH)).collect();
    let frames: Vec<TxFrame> = bodies.iter().map(|bytes| frame(H1, bytes)).collect();
    assert_eq!(a.tx_burst(&frames), 0b1100_0000_0000);
    assert_eq!((a.stats().tx_frames, a.stats().tx_blocked), (10, 2));
    // A packet has been sent, and left room for another.
    fabric.advance(WIRE_BYTES);
    assert_eq!(a.tx_burst(&frames[10..]), 0b10);
    fabric.advance(1_000_000);
    assert_eq!(receive_numbers(&mut b), (0..11).collect::<Vec<_>>());
    assert!(fabric.stats().is_balanced());
    assert_eq!(fabric.stats().in_flight, 0);
}

#[test]
fn tx_burst__refuses_by_bytes_too() {
    let nic = NicConfig { tx_bytes: 3 * WIRE_BYTES, ..NicConfig::default() };
    let fabric = pair_with(nic, LinkConfig::default(), 1);
    let mut a = bind(&fabric, H0);
    assert_eq!(send(&mut a, H1, 0, 5, LENGTH), 3);
}

#[test]
fn switch__drops_packets_beyond_its_buffer() {
    // Two hosts send to one at full rate: half of the packets must be dropped.
    const COUNT: u32 = 400;
    let buffer = BufferPolicy::PerPort { bytes: 20 * WIRE_BYTES };
    let fabric = star_with(
        3,
        SwitchConfig { buffer, ..SwitchConfig::default() },
        LinkConfig::gbit(25, 500),
        1,
    );
    let (mut a, mut b, mut c) = (bind(&fabric, H0), bind(&fabric, H1), bind(&fabric, H2));
    assert_eq!(send(&mut a, H2, 0, COUNT, LENGTH), COUNT);
    assert_eq!(send(&mut b, H2, 0, COUNT, LENGTH), COUNT);
    fabric.advance(10_000_000);

    let (got, stats) = (receive(&mut c).len() as u64, fabric.stats());
    let dropped = stats.dropped(DropReason::SwitchBuffer);
    assert!(dropped > 0);
    assert_eq!(got + dropped, 2 * u64::from(COUNT));
    assert_eq!((stats.sent, stats.delivered, stats.in_flight), (2 * u64::from(COUNT), got, 0));
    assert!(stats.is_balanced());
    // The port to the third host filled its memory, and released all of it.
    let port = fabric.link_stats(LinkId(5));
    assert_eq!((port.queued_bytes_max, port.packets), (20 * WIRE_BYTES, got));
    assert_eq!(fabric.switch_bytes(), 0);
}

#[test]
fn nic__drops_packets_beyond_its_receive_queue() {
    for nic in [
        NicConfig { rx_packets: 7, ..NicConfig::default() },
        NicConfig { rx_bytes: 7 * WIRE_BYTES, ..NicConfig::default() },
    ] {
        let fabric = pair_with(nic, LinkConfig::default(), 1);
        let (mut a, mut b) = (bind(&fabric, H0), bind(&fabric, H1));
        send(&mut a, H1, 0, 20, LENGTH);
        fabric.advance(1_000_000);
        assert_eq!(fabric.stats().in_flight, 7);
        assert_eq!(receive_numbers(&mut b), (0..7).collect::<Vec<_>>());
        assert_eq!(fabric.stats().dropped(DropReason::RxQueue), 13);
        assert!(fabric.stats().is_balanced());
    }
}

#[test]
fn deliver__drops_for_unbound_and_closed_ports() {
    let fabric = pair_with(NicConfig::default(), LinkConfig::default(), 1);
    let mut a = bind(&fabric, H0);
    send(&mut a, H1, 0, 3, LENGTH);
    fabric.advance(1_000_000);
    assert_eq!(fabric.stats().dropped(DropReason::NoPort), 3);

    let b = bind(&fabric, H1);
    send(&mut a, H1, 0, 4, LENGTH);
    fabric.advance(1_000_000);
    drop(b);
    assert_eq!(fabric.stats().dropped(DropReason::Closed), 4);
    assert!(fabric.stats().is_balanced());
    assert_eq!(fabric.stats().in_flight, 0);
    bind(&fabric, H1);
}

#[test]
fn loopback__stays_on_its_host() {
    let fabric = pair_with(NicConfig::default(), LinkConfig::default(), 1);
    let mut a = bind(&fabric, H0);
    let other = SimAddr::new(H0, 2);
    let mut b = SimTransport::bind(&fabric, other, SimTransportConfig::default()).unwrap();
    let peer = a.add_peer(other.into()).unwrap();
    b.add_peer(addr(H0).into()).unwrap();
    let bytes = numbered(5, LENGTH);
    a.tx_burst(&[TxFrame { peer, head: &bytes, body: &[] }]);
    fabric.advance(FabricConfig::default().loopback_ns);
    assert_eq!(receive_numbers(&mut b), [5]);
    assert_eq!(fabric.link_stats(LinkId(0)).packets, 0);
    assert!(fabric.stats().is_balanced());
}

#[test]
fn coalesce__puts_neighbouring_frames_into_one_packet() {
    let config = SimTransportConfig { coalesce: true, ..SimTransportConfig::default() };
    let fabric = star_with(3, SwitchConfig::default(), LinkConfig::default(), 1);
    let mut a = bind_with(&fabric, H0, config);
    let (mut b, mut c) = (bind(&fabric, H1), bind(&fabric, H2));
    let bytes: Vec<_> = (0..10).map(|number| numbered(number, 400)).collect();
    // Three frames fit into a packet, a fourth does not; another peer begins another packet.
    let hosts = [H1, H1, H1, H1, H1, H2, H2, H1, H1, H1];
    let frames: Vec<TxFrame> = hosts.iter().zip(&bytes).map(|(&to, b)| frame(to, b)).collect();
    assert_eq!(a.tx_burst(&frames), 0);
    assert_eq!((a.stats().tx_frames, a.stats().tx_datagrams), (10, 4));
    fabric.advance(1_000_000);
    let sizes: Vec<_> = receive(&mut b).iter().map(|(_, bytes)| bytes.len()).collect();
    assert_eq!(sizes, [400; 8]);
    assert_eq!(b.stats().rx_datagrams, 3);
    assert_eq!(receive(&mut c), [(PeerId(0), numbered(5, 400)), (PeerId(0), numbered(6, 400))]);
    assert!(fabric.stats().is_balanced());
}

#[test]
fn coalesce__respects_the_queue() {
    let config = SimTransportConfig { coalesce: true, ..SimTransportConfig::default() };
    let nic = NicConfig { tx_bytes: 3 * 400 + 2 * 42, ..NicConfig::default() };
    let fabric = pair_with(nic, LinkConfig::default(), 1);
    let mut a = bind_with(&fabric, H0, config);
    let bytes: Vec<_> = (0..5).map(|number| numbered(number, 400)).collect();
    let frames: Vec<TxFrame> = bytes.iter().map(|bytes| frame(H1, bytes)).collect();
    assert_eq!(a.tx_burst(&frames), 0b11000);
    assert_eq!((fabric.stats().sent, fabric.stats().in_flight), (1, 1));
}

#[test]
fn tx_burst__drops_and_counts_what_it_cannot_send() {
    let fabric = pair_with(NicConfig::default(), LinkConfig::default(), 1);
    let mut a = bind(&fabric, H0);
    let large = vec![0; 1473];
    let unknown = TxFrame { peer: PeerId(77), head: b"x", body: &[] };
    assert_eq!(a.tx_burst(&[frame(H1, &large), unknown, frame(H1, b"")]), 0);
    let stats = a.stats();
    assert_eq!((stats.tx_dropped_oversize, stats.tx_dropped_no_peer), (1, 1));
    assert_eq!((stats.tx_dropped_error, stats.tx_frames), (1, 0));
    assert_eq!(fabric.stats().sent, 0);
}

#[test]
fn rx_burst__drops_frames_of_unknown_peers_and_keeps_its_budget() {
    let fabric = star_with(3, SwitchConfig::default(), LinkConfig::default(), 1);
    let (mut a, mut c) = (bind(&fabric, H0), bind(&fabric, H2));
    let mut b = SimTransport::bind(&fabric, addr(H1), SimTransportConfig::default()).unwrap();
    let known = b.add_peer(addr(H0).into()).unwrap();
    send(&mut a, H1, 0, 10, LENGTH);
    send(&mut c, H1, 0, 10, LENGTH);
    fabric.advance(1_000_000);
    let mut seen = 0;
    assert_eq!(b.rx_burst(4, |peer, _| seen += u32::from(peer == known)), 4);
    assert_eq!(seen, 4);
    assert_eq!(receive(&mut b).len(), 6);
    assert_eq!((b.stats().rx_frames, b.stats().rx_dropped_unknown_peer), (10, 10));
}

#[test]
fn peers__count_how_often_they_were_added() {
    let fabric = pair_with(NicConfig::default(), LinkConfig::default(), 1);
    let mut a = SimTransport::bind(&fabric, addr(H0), SimTransportConfig::default()).unwrap();
    let peer = a.add_peer(addr(H1).into()).unwrap();
    assert_eq!(a.add_peer(addr(H1).into()).unwrap(), peer);
    a.remove_peer(peer);
    assert_eq!(a.max_frame_bytes(peer), 1472);
    a.remove_peer(peer);
    assert_eq!(a.max_frame_bytes(peer), 0);
    a.remove_peer(peer);
    assert_eq!(a.add_peer(SimAddr::new(H1, 9).into()).unwrap(), peer);
    let nowhere = SimAddr::new(petrel_sim::fabric::HostId(9), 1);
    assert!(matches!(a.add_peer(nowhere.into()), Err(LinkError::Unsupported(_))));
}

#[test]
fn bind__refuses_what_it_cannot_give() {
    let fabric = pair_with(NicConfig::default(), LinkConfig::default(), 1);
    let config = SimTransportConfig::default();
    let bind = |at, config| SimTransport::bind(&fabric, at, config).map(drop);
    let unknown = petrel_sim::fabric::HostId(2);
    assert!(matches!(bind(addr(unknown), config), Err(BindError::UnknownHost(_))));
    let small = SimTransportConfig { max_frame_bytes: 1231, ..config };
    assert!(matches!(bind(addr(H0), small), Err(BindError::FrameBytes { bytes: 1231 })));
    let _taken = SimTransport::bind(&fabric, addr(H0), config).unwrap();
    assert!(matches!(bind(addr(H0), config), Err(BindError::InUse(_))));
    assert!(bind(SimAddr::new(H0, 2), config).is_ok());
    fabric.apply(Action::Crash { host: H1, down_ns: 10 });
    fabric.advance(5);
    assert!(matches!(bind(addr(H1), config), Err(BindError::HostDown(_))));
    fabric.advance(5);
    assert!(bind(addr(H1), config).is_ok());
}

#[test]
fn routes__cross_several_switches() {
    // Two racks of two hosts under one spine.
    let (nic, switch) = (NicConfig::default(), SwitchConfig::default());
    let mut topology = Topology::new();
    let spine = topology.add_switch(switch);
    for _ in 0..2 {
        let leaf = topology.add_switch(switch);
        topology.connect(leaf, spine, LinkConfig::gbit(100, 500));
        for _ in 0..2 {
            let host = topology.add_host(nic);
            topology.connect(host, leaf, LinkConfig::default());
        }
    }
    let fabric = FabricHandle::new(&topology, exact_cpu(), 1).unwrap();
    let hosts = (0..4).map(petrel_sim::fabric::HostId);
    let mut transports: Vec<_> = hosts.clone().map(|host| bind(&fabric, host)).collect();
    for transport in &mut transports {
        let from = u32::from(transport.addr().host.0);
        hosts.clone().for_each(|to| assert_eq!(send(transport, to, from, 1, LENGTH), 1));
    }
    fabric.advance(1_000_000);
    for transport in &mut transports {
        let mut got = receive(transport);
        got.sort();
        let expected: Vec<_> = (0..4).map(|from| (PeerId(from), numbered(from, LENGTH))).collect();
        assert_eq!(got, expected);
    }
    assert!(fabric.stats().is_balanced());
}
