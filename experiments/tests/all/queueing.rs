//! The fabric against calculated results: rates, delays and queues.

use crate::fabric::*;
use petrel_sim::fabric::{
    Arrivals, FabricHandle, Forwarding, HostId, LinkConfig, LinkId, NicConfig, SimAddr,
    SourceConfig, SourceId, SwitchConfig, Topology,
};

const PAYLOAD: u32 = 1_000;
const WIRE: u64 = PAYLOAD as u64 + OVERHEAD_BYTES;
const MS: u64 = 1_000_000;

fn ser_ps(bytes: u64, gbit: u64) -> u64 {
    bytes * 8_000 / gbit
}

fn add(
    fabric: &FabricHandle,
    from: HostId,
    to: HostId,
    bytes: u32,
    arrivals: Arrivals,
) -> SourceId {
    fabric.add_source(SourceConfig::new(addr(from), addr(to), bytes, arrivals)).unwrap()
}

/// A NIC whose queue is never full.
fn roomy() -> NicConfig {
    NicConfig { tx_packets: usize::MAX, tx_bytes: u64::MAX, ..NicConfig::default() }
}

fn switched(in_link: LinkConfig, out_link: LinkConfig, switch: SwitchConfig) -> FabricHandle {
    let mut topology = Topology::new();
    let centre = topology.add_switch(switch);
    for link in [in_link, out_link] {
        let host = topology.add_host(roomy());
        topology.connect(host, centre, link);
    }
    FabricHandle::new(&topology, exact_cpu(), 1).unwrap()
}

#[test]
fn line_rate__is_exact_with_overhead() {
    for (gbit, payload) in [(10, 64), (25, 1_472), (40, 8_192), (100, 0), (400, 1_472)] {
        let fabric = pair_with(NicConfig::default(), LinkConfig::gbit(gbit, 1_000), 1);
        // Twice the capacity of the link: it is never idle.
        let wire = u64::from(payload) + OVERHEAD_BYTES;
        let every_ps = ser_ps(wire, gbit) / 2;
        let source = add(&fabric, H0, H1, payload, Arrivals::Periodic { every_ps });
        fabric.advance(MS);
        let stats = fabric.link_stats(LinkId(0));
        let packets = MS * 1_000 / ser_ps(wire, gbit);
        assert_eq!((stats.packets, stats.bytes), (packets, packets * wire));
        let arrived = (MS - 1_000) * 1_000 / ser_ps(wire, gbit);
        assert_eq!(fabric.source_stats(source).delivered, arrived);
        assert!(fabric.source_stats(source).refused > 0);
        let bps = gbit as f64 * 1e9;
        assert!((stats.rate_bps() - bps).abs() <= wire as f64 * 8e3, "within a packet");
        assert!(fabric.stats().is_balanced());
    }
}

#[test]
fn line_rate__that_no_picosecond_divides() {
    let link = LinkConfig { rate_bps: 7_000_000_000, delay_ns: 0 };
    let fabric = pair_with(NicConfig::default(), link, 1);
    add(&fabric, H0, H1, PAYLOAD, Arrivals::Periodic { every_ps: 1_000_000 });
    fabric.advance(10 * MS);
    // Each packet takes up to a picosecond more than at the exact rate.
    let exact = 10.0 * 7e6 / (WIRE as f64 * 8.0);
    let sent = fabric.link_stats(LinkId(0)).packets as f64;
    assert!(sent <= exact && sent > exact - 1.0, "{sent} of {exact}");
}

/// Returns the average of some runs, and the standard error of that average.
fn mean_and_error(runs: &[f64]) -> (f64, f64) {
    let count = runs.len() as f64;
    let mean = runs.iter().sum::<f64>() / count;
    let variance = runs.iter().map(|run| (run - mean).powi(2)).sum::<f64>() / (count - 1.0);
    (mean, (variance / count).sqrt())
}

/// Checks waiting times of Poisson arrivals at a server with constant service time, by Pollaczek and
/// Khinchine: service * load / (2 (1 - load)). Runs of different seeds are independent: their spread
/// determines the error of the average.
fn assert_md1(load_percent: u64, packets: u64, waiting_ps: impl Fn(u64, u64, u64) -> f64) {
    const RUNS: u64 = 20;
    let service_ps = ser_ps(WIRE, 10);
    let mean_gap_ps = service_ps * 100 / load_percent;
    let duration_ns = packets * mean_gap_ps / 1_000;
    let runs: Vec<f64> = (0..RUNS).map(|seed| waiting_ps(seed, mean_gap_ps, duration_ns)).collect();
    let (mean, error) = mean_and_error(&runs);
    let load = service_ps as f64 / mean_gap_ps as f64;
    let expected = service_ps as f64 * load / (2.0 * (1.0 - load));
    assert!(error < 0.03 * expected, "the runs are too short: {mean} ± {error}");
    assert!((mean - expected).abs() < 4.0 * error, "{load}: {mean} ± {error}, not {expected}");
}

#[test]
fn waiting__at_a_nic_is_that_of_an_m_d_1_queue() {
    for (load_percent, packets) in [(20, 10_000), (50, 10_000), (70, 15_000), (90, 60_000)] {
        assert_md1(load_percent, packets, |seed, mean_ps, duration_ns| {
            let fabric = pair_with(roomy(), LinkConfig::gbit(10, 700), seed);
            let source = add(&fabric, H0, H1, PAYLOAD, Arrivals::Poisson { mean_ps });
            fabric.advance(duration_ns / 10);
            fabric.begin_measuring();
            fabric.advance(duration_ns);
            let delay = fabric.source_stats(source).delay;
            // Little's law relates the measured delays to the measured average of the queue.
            let in_system_ps = delay.mean_ps() - 700_000.0;
            let queue_bytes = fabric.link_stats(LinkId(0)).queued_bytes_mean();
            let little =
                delay.count() as f64 * WIRE as f64 * in_system_ps / (duration_ns as f64 * 1e3);
            assert!((queue_bytes / little - 1.0).abs() < 0.02, "{queue_bytes} {little}");
            in_system_ps - ser_ps(WIRE, 10) as f64
        });
    }
}

#[test]
fn waiting__at_a_switch_is_that_of_an_m_d_1_queue() {
    // The link to the switch is a thousand times faster: hardly any packet waits there.
    let (fast, slow) = (LinkConfig::gbit(10_000, 0), LinkConfig::gbit(10, 0));
    assert_md1(70, 15_000, |seed, mean_ps, duration_ns| {
        let mut topology = Topology::new();
        let buffer = petrel_sim::fabric::BufferPolicy::PerPort { bytes: u64::MAX };
        let centre = topology.add_switch(SwitchConfig { buffer, ..SwitchConfig::default() });
        for link in [fast, slow] {
            let host = topology.add_host(roomy());
            topology.connect(host, centre, link);
        }
        let fabric = FabricHandle::new(&topology, exact_cpu(), seed + 100).unwrap();
        let source = add(&fabric, H0, H1, PAYLOAD, Arrivals::Poisson { mean_ps });
        fabric.advance(duration_ns / 10);
        fabric.begin_measuring();
        fabric.advance(duration_ns);
        let own_ps = ser_ps(WIRE, 10) + ser_ps(WIRE, 10_000);
        fabric.source_stats(source).delay.mean_ps() - own_ps as f64
    });
}

#[test]
fn window__of_the_bandwidth_delay_product_fills_the_link() {
    // Two links of 8 Gbit/s each way: a byte takes a nanosecond. The round trip is 2 * (1042 + 42) + 4 *
    // delay; here the transmission time of 20 packets.
    const BDP: u32 = 20;
    let reply_bytes = 0;
    let delay_ns = (u64::from(BDP) * WIRE - 2 * (WIRE + OVERHEAD_BYTES)) / 4;
    assert_eq!(4 * delay_ns + 2 * (WIRE + OVERHEAD_BYTES), u64::from(BDP) * WIRE);
    let packets_with = |packets| {
        let link = LinkConfig::gbit(8, delay_ns);
        let fabric = star_with(2, SwitchConfig::default(), link, 1);
        add(&fabric, H0, H1, PAYLOAD, Arrivals::Window { packets, reply_bytes });
        fabric.advance(MS);
        fabric.begin_measuring();
        fabric.advance(1_000 * WIRE);
        let stats = fabric.link_stats(LinkId(0));
        (stats.packets, stats.queued_bytes_mean() / WIRE as f64)
    };
    assert_eq!(packets_with(BDP), (1_000, 1.0));
    assert_eq!(packets_with(BDP / 2), (500, 0.5));
    assert_eq!(packets_with(1), (1_000 / u64::from(BDP), 1.0 / f64::from(BDP)));
    // Packets in excess of the product wait at the first link.
    assert_eq!(packets_with(BDP + 7), (1_000, 8.0));
}

#[test]
fn window__goes_on_after_a_full_nic() {
    let nic = NicConfig { tx_packets: 2, ..NicConfig::default() };
    let fabric = pair_with(nic, LinkConfig::gbit(8, 100_000), 1);
    let source = add(&fabric, H0, H1, PAYLOAD, Arrivals::Window { packets: 50, reply_bytes: 0 });
    fabric.advance(100_000 + 50 * WIRE);
    assert_eq!(fabric.source_stats(source).delivered, 50);
    fabric.advance(MS);
    assert!(fabric.source_stats(source).delivered > 200);
    assert_eq!(fabric.source_stats(source).lost, 0);
}

/// Returns the time of one packet from host 0 to host 1.
fn one_way_ps(fabric: &FabricHandle, from: HostId, to: HostId, payload: u32) -> u64 {
    let config = SourceConfig {
        stop_ns: fabric.now_ns() + 1,
        start_ns: fabric.now_ns(),
        ..SourceConfig::new(addr(from), addr(to), payload, Arrivals::Periodic { every_ps: MS })
    };
    let source = fabric.add_source(config).unwrap();
    fabric.advance(MS);
    let delay = fabric.source_stats(source).delay;
    assert_eq!(delay.count(), 1);
    delay.max_ps()
}

#[test]
fn cut_through__latency_is_the_sum_of_its_parts() {
    let cut =
        SwitchConfig { forwarding: Forwarding::CutThrough, latency_ns: 300, ..Default::default() };
    let stored = SwitchConfig { latency_ns: 300, ..Default::default() };
    let way_ps = |gbit_in, gbit_out, switch, payload| {
        let links = (LinkConfig::gbit(gbit_in, 500), LinkConfig::gbit(gbit_out, 200));
        one_way_ps(&switched(links.0, links.1, switch), H0, H1, payload)
    };
    let rest_ps = (500 + 300 + 200) * 1_000;
    let whole = |gbit| ser_ps(WIRE, gbit);
    let head = |gbit| ser_ps(64, gbit);
    // Equal rates, and a slower output: the header is enough.
    assert_eq!(way_ps(25, 25, cut, PAYLOAD), head(25) + whole(25) + rest_ps);
    assert_eq!(way_ps(100, 25, cut, PAYLOAD), head(100) + whole(25) + rest_ps);
    // A faster output would run out of bits.
    assert_eq!(way_ps(25, 100, cut, PAYLOAD), whole(25) + whole(100) + rest_ps);
    assert_eq!(way_ps(25, 25, stored, PAYLOAD), 2 * whole(25) + rest_ps);
    // A packet smaller than the header size of cut-through arrives as a whole.
    assert_eq!(way_ps(25, 25, cut, 10), 2 * ser_ps(52, 25) + rest_ps);
}

#[test]
fn cut_through__across_two_tiers() {
    let network = petrel_experiments::sim::LeafSpine::cx4(2);
    let fabric = FabricHandle::new(&network.topology(), exact_cpu(), 1).unwrap();
    let (from, near, far) = (network.host(0, 0), network.host(0, 1), network.host(3, 1));
    let (whole, head) = (ser_ps(WIRE, 25), ser_ps(64, 100));
    assert_eq!(
        one_way_ps(&fabric, from, near, PAYLOAD),
        ser_ps(64, 25) + whole + (2 * 450 + 400) * 1_000
    );
    // The first leaf has to store, because its uplinks are faster than the host's link.
    assert_eq!(
        one_way_ps(&fabric, from, far, PAYLOAD),
        whole + 2 * head + whole + (4 * 450 + 3 * 400) * 1_000
    );
}

#[test]
fn cut_through__the_last_bit_never_overtakes() {
    let cut = SwitchConfig { forwarding: Forwarding::CutThrough, ..Default::default() };
    for (gbit_in, gbit_out) in [(1, 1), (10, 1), (1, 10), (25, 100), (100, 25), (40, 25), (25, 40)]
    {
        for payload in [0, 22, 23, 500, 1_472] {
            let links = (LinkConfig::gbit(gbit_in, 0), LinkConfig::gbit(gbit_out, 0));
            let way_ps = one_way_ps(&switched(links.0, links.1, cut), H0, H1, payload);
            let wire = u64::from(payload) + OVERHEAD_BYTES;
            assert!(way_ps >= ser_ps(wire, gbit_in).max(ser_ps(wire, gbit_out)));
            assert!(way_ps <= ser_ps(wire, gbit_in) + ser_ps(wire, gbit_out));
        }
    }
}

#[test]
fn cut_through__waits_for_a_busy_output() {
    // Two hosts send a packet each to the third at the same time.
    let cut =
        SwitchConfig { forwarding: Forwarding::CutThrough, latency_ns: 300, ..Default::default() };
    let fabric = star_with(3, cut, LinkConfig::gbit(8, 100), 1);
    let single = |from| {
        let arrivals = Arrivals::Periodic { every_ps: MS };
        let config = SourceConfig::new(addr(from), addr(H2), PAYLOAD, arrivals);
        fabric.add_source(SourceConfig { stop_ns: 1, ..config }).unwrap()
    };
    let sources = [single(H0), single(H1)];
    fabric.advance(MS);
    let delays = sources.map(|source| fabric.source_stats(source).delay.max_ps());
    let first_ns = 64 + 100 + 300 + WIRE + 100;
    // The second packet leaves directly after the first, from memory.
    assert_eq!(delays, [first_ns * 1_000, (first_ns + WIRE) * 1_000]);
    let port = fabric.links_between(petrel_sim::fabric::SwitchId(0), H2)[0];
    assert_eq!(fabric.link_stats(port).queued_bytes_max, 2 * WIRE);
    assert_eq!(fabric.switch_bytes(), 0);
}

#[test]
fn cut_through__keeps_the_line_rate_and_the_order() {
    let cut = SwitchConfig { forwarding: Forwarding::CutThrough, ..Default::default() };
    let fabric = star_with(2, cut, LinkConfig::gbit(25, 500), 1);
    let (mut a, mut b) = (bind(&fabric, H0), bind(&fabric, H1));
    assert_eq!(send(&mut a, H1, 0, 300, 1_000), 300);
    let header_ps = ser_ps(64, 25);
    let last_ps = 300 * ser_ps(WIRE, 25) + 2 * 500_000 + header_ps;
    fabric.advance(last_ps / 1_000);
    assert_eq!(receive_numbers(&mut b), (0..299).collect::<Vec<_>>());
    fabric.advance(1);
    assert_eq!(receive_numbers(&mut b), [299]);
}

#[test]
fn cut_through__a_crash_leaves_packets_in_flight() {
    let cut = SwitchConfig { forwarding: Forwarding::CutThrough, ..Default::default() };
    let fabric = star_with(2, cut, LinkConfig::gbit(8, 100), 1);
    let (mut a, mut b) = (bind(&fabric, H0), bind(&fabric, H1));
    send(&mut a, H1, 0, 5, 1_000);
    // The second packet is in transmission, and part of it is already beyond the link.
    fabric.advance(WIRE + 200);
    fabric.apply(petrel_sim::fabric::Action::Crash { host: H0, down_ns: u64::MAX });
    fabric.advance(MS);
    assert_eq!(receive_numbers(&mut b), [0, 1]);
    assert!(fabric.stats().is_balanced());
    assert_eq!((fabric.stats().in_flight, fabric.switch_bytes()), (0, 0));
}

#[test]
fn cut_through__a_spike_keeps_the_order() {
    use petrel_sim::Probability;
    use petrel_sim::fabric::FaultPlan;
    // A small packet after a large one needs a shorter lead before it is forwarded.
    let cut = SwitchConfig { forwarding: Forwarding::CutThrough, ..Default::default() };
    let fabric = switched(LinkConfig::gbit(1, 0), LinkConfig::gbit(100, 0), cut);
    let plan = FaultPlan {
        spike: Probability::percent(30),
        spike_within_ns: 100_000,
        ..FaultPlan::default()
    };
    fabric.set_faults(plan);
    fabric.advance(1);
    let (mut a, mut b) = (bind(&fabric, H0), bind(&fabric, H1));
    for number in 0..200 {
        assert_eq!(send(&mut a, H1, number, 1, if number % 2 == 0 { 1_400 } else { 60 }), 1);
    }
    fabric.advance(100 * MS);
    assert_eq!(receive_numbers(&mut b), (0..200).collect::<Vec<_>>());
    assert!(fabric.stats().spikes > 20);
}

#[test]
fn sources__refuse_what_cannot_be() {
    use petrel_sim::fabric::SourceError;
    let fabric = pair_with(NicConfig::default(), LinkConfig::default(), 1);
    let periodic = Arrivals::Periodic { every_ps: 1 };
    let try_add = |config| fabric.add_source(config).unwrap_err();
    let with = |arrivals| SourceConfig::new(addr(H0), addr(H1), 10, arrivals);
    let nowhere = SimAddr::new(HostId(9), 1);
    assert_eq!(
        try_add(SourceConfig::new(addr(H0), nowhere, 10, periodic)),
        SourceError::UnknownHost(HostId(9))
    );
    assert_eq!(try_add(SourceConfig::new(addr(H0), addr(H0), 10, periodic)), SourceError::NoTarget);
    assert_eq!(try_add(SourceConfig { to: Vec::new(), ..with(periodic) }), SourceError::NoTarget);
    assert_eq!(
        try_add(SourceConfig { payload_bytes: 65_508, ..with(periodic) }),
        SourceError::Payload { bytes: 65_508 }
    );
    for arrivals in [
        Arrivals::Periodic { every_ps: 0 },
        Arrivals::Poisson { mean_ps: 0 },
        Arrivals::OnOff { every_ps: 0, on_mean_ps: 1, off_mean_ps: 1 },
        Arrivals::Window { packets: 0, reply_bytes: 0 },
    ] {
        assert!(matches!(try_add(with(arrivals)), SourceError::Arrivals(_)));
    }
}
