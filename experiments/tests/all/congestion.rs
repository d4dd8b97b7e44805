//! Tests of overload in the fabric: marks, shared memory, equal paths, oversubscription.

use crate::fabric::*;
use petrel_experiments::sim::LeafSpine;
use petrel_sim::fabric::{
    Arrivals, BufferPolicy, DropReason, Ecn, EcnConfig, FabricHandle, HostId, LinkConfig, LinkId,
    NicConfig, SimAddr, SourceConfig, SourceId, SwitchConfig, SwitchId, Topology,
};
use petrel_sim::{Probability, Rng, SimTransportConfig};
use petrel_transport::Transport;

const PAYLOAD: u32 = 1_000;
const WIRE: u64 = PAYLOAD as u64 + OVERHEAD_BYTES;
const MS: u64 = 1_000_000;
const S0: SwitchId = SwitchId(0);

/// Sends as fast as a link of 25 Gbit/s allows.
fn flood(fabric: &FabricHandle, from: SimAddr, to: SimAddr) -> SourceId {
    let arrivals = Arrivals::Periodic { every_ps: WIRE * 320 };
    fabric.add_source(SourceConfig::new(from, to, PAYLOAD, arrivals)).unwrap()
}

fn shared(bytes: u64, alpha_num: u32, alpha_den: u32) -> SwitchConfig {
    let buffer = BufferPolicy::Shared { bytes, alpha_num, alpha_den };
    SwitchConfig { buffer, ..SwitchConfig::default() }
}

#[test]
fn shared_buffer__congested_ports_have_the_closed_form_s_share() {
    const BYTES: u64 = 2_000_000;
    for (alpha_num, alpha_den) in [(1, 4), (1, 1), (4, 1)] {
        for ports in [1u16, 2, 5] {
            // Two senders for each of the first hosts.
            let hosts = usize::from(ports) * 3;
            let fabric =
                star_with(hosts, shared(BYTES, alpha_num, alpha_den), LinkConfig::default(), 1);
            for sender in ports..3 * ports {
                flood(&fabric, addr(HostId(sender)), addr(HostId(sender % ports)));
            }
            fabric.advance(5 * MS);
            fabric.begin_measuring();
            fabric.advance(MS);
            let alpha = f64::from(alpha_num) / f64::from(alpha_den);
            let share = alpha / (1.0 + f64::from(ports) * alpha) * BYTES as f64;
            // A port refuses a packet at most one packet below its share, and sends one packet between two
            // arrivals. With alpha above one, its threshold moves by alpha packets.
            let slack = (2.0 + alpha) * WIRE as f64;
            for port in 0..ports {
                let link = fabric.links_between(S0, HostId(port))[0];
                let queue = fabric.link_stats(link).queued_bytes_mean();
                assert!((queue - share).abs() < slack, "{alpha} {ports}: {queue}, not {share}");
            }
            let stats = fabric.switch_stats(S0);
            assert!(stats.used_bytes_max as f64 <= f64::from(ports) * share + slack);
            assert!(stats.dropped_threshold > 0);
            assert_eq!(stats.dropped_full, 0);
        }
    }
}

#[test]
fn shared_buffer__counts_drops_by_reason() {
    // A large alpha lets two ports fill the memory, before the threshold binds.
    let fabric = star_with(6, shared(300_000, 1_000, 1), LinkConfig::default(), 1);
    let sources =
        [2, 3, 4, 5].map(|from| flood(&fabric, addr(HostId(from)), addr(HostId(from % 2))));
    fabric.advance(MS);
    let (stats, switch) = (fabric.stats(), fabric.switch_stats(S0));
    let dropped =
        [DropReason::SwitchBuffer, DropReason::SwitchThreshold].map(|reason| stats.dropped(reason));
    assert!(dropped[0] > 0, "{dropped:?}");
    assert_eq!(dropped, [switch.dropped_full, switch.dropped_threshold]);
    let ports = [0, 1].map(|port| fabric.link_stats(fabric.links_between(S0, HostId(port))[0]));
    assert_eq!(ports.iter().map(|port| port.refused()).sum::<u64>(), dropped.iter().sum::<u64>());
    let lost = sources.iter().map(|&source| fabric.source_stats(source).lost).sum::<u64>();
    assert_eq!(lost, stats.dropped_total());
    assert!(switch.used_bytes_max <= 300_000 && switch.used_bytes_max > 300_000 - WIRE);
    assert!(stats.is_balanced());
}

/// Makes a port of 25 Gbit/s with a standing queue, fed by a window from a link four times as fast. Returns
/// the queue that packets find, the number of marked packets, and the number of all packets.
fn standing_queue(ecn: EcnConfig, packets: u32, ecn_capable: bool) -> (u64, u64, u64) {
    let mut topology = Topology::new();
    let switch = SwitchConfig { ecn: Some(ecn), ..shared(12_000_000, 8, 1) };
    let centre = topology.add_switch(switch);
    for gbit in [100, 25] {
        let host = topology.add_host(NicConfig::default());
        topology.connect(host, centre, LinkConfig::gbit(gbit, 500));
    }
    let fabric = FabricHandle::new(&topology, exact_cpu(), 1).unwrap();
    let arrivals = Arrivals::Window { packets, reply_bytes: 0 };
    let config = SourceConfig::new(addr(H0), addr(H1), PAYLOAD, arrivals);
    let source = fabric.add_source(SourceConfig { ecn_capable, ..config }).unwrap();
    fabric.advance(MS);
    fabric.begin_measuring();
    fabric.advance(20 * MS);
    let port = fabric.link_stats(fabric.links_between(S0, H1)[0]);
    let stats = fabric.source_stats(source);
    assert_eq!(port.marked, fabric.switch_stats(S0).marked);
    assert!(port.marked.abs_diff(stats.marked) <= 200, "those under way at the ends");
    (port.queued_bytes_max - WIRE, port.marked, port.packets)
}

#[test]
fn red__marks_with_the_probability_of_its_queue() {
    let ecn =
        EcnConfig { k_min_bytes: 20_000, k_max_bytes: 100_000, p_max: Probability::percent(10) };
    for window in [50, 70, 90] {
        let (queue, marked, packets) = standing_queue(ecn, window, true);
        assert!((20_000..100_000).contains(&queue));
        let p = 0.1 * (queue - 20_000) as f64 / 80_000.0;
        let deviation = (packets as f64 * p * (1.0 - p)).sqrt();
        let expected = packets as f64 * p;
        assert!(expected > 20.0 * deviation / 4.0, "enough packets to tell");
        assert!((marked as f64 - expected).abs() < 4.0 * deviation, "{marked}, not {expected}");
    }
}

#[test]
fn red__all_above_none_below_none_without_ect() {
    let ecn = EcnConfig { k_min_bytes: 20_000, k_max_bytes: 50_000, ..EcnConfig::DCQCN };
    let (_, marked, packets) = standing_queue(ecn, 100, true);
    assert!(marked.abs_diff(packets) <= 1, "{marked} of {packets}");
    assert_eq!(standing_queue(ecn, 100, false).1, 0);
    assert_eq!(standing_queue(ecn, 20, true).1, 0);
}

#[test]
fn transport__learns_of_marks() {
    let ecn = EcnConfig { k_min_bytes: 2 * WIRE, k_max_bytes: 2 * WIRE, ..EcnConfig::DCQCN };
    let switch = SwitchConfig { ecn: Some(ecn), ..SwitchConfig::default() };
    for (ecn_capable, expected) in [(true, [Ecn::Ect0, Ecn::Ce]), (false, [Ecn::NotEct; 2])] {
        let fabric = star_with(3, switch, LinkConfig::default(), 1);
        let config = SimTransportConfig { ecn_capable, ..SimTransportConfig::default() };
        let mut senders = [H0, H1].map(|host| bind_with(&fabric, host, config));
        let mut receiver = bind(&fabric, H2);
        senders.iter_mut().for_each(|sender| assert_eq!(send(sender, H2, 0, 20, 1_000), 20));
        fabric.advance(MS);
        let mut seen = Vec::new();
        while receiver.rx_burst(1, |_, _| {}) > 0 {
            seen.push(receiver.received_ecn());
        }
        assert_eq!(seen.len(), 40);
        // The queue grows by a packet for every departing one: the first packets find a short queue.
        assert_eq!([seen[0], seen[39 - 2]], expected);
        let marked = seen.iter().filter(|&&ecn| ecn == Ecn::Ce).count() as u64;
        assert_eq!((receiver.rx_marked(), fabric.stats().marked), (marked, marked));
    }
}

/// Returns chi-square, the distance of counts from equal shares.
fn chi_square(counts: &[u64]) -> f64 {
    let expected = counts.iter().sum::<u64>() as f64 / counts.len() as f64;
    counts.iter().map(|&count| (count as f64 - expected).powi(2) / expected).sum()
}

/// Values that chi-square exceeds once in a hundred thousand times, with 4 - 1 and 5 - 1 degrees.
const CHI_SQUARE_OF_4: f64 = 25.9;
const CHI_SQUARE_OF_5: f64 = 28.5;

/// Sends one packet for each of `flows` flows from the first leaf to the second.
fn scatter(network: &LeafSpine, flows: u16, seed: u64) -> FabricHandle {
    let fabric = FabricHandle::new(&network.topology(), exact_cpu(), seed).unwrap();
    let mut rng = Rng::new(seed);
    for flow in 0..flows {
        let mut place = || rng.below(u64::from(network.hosts_per_leaf)) as u16;
        let (from, to) = (network.host(0, place()), network.host(1, place()));
        let arrivals = Arrivals::Periodic { every_ps: u64::MAX };
        let (from, to) = (SimAddr::new(from, flow), SimAddr::new(to, 7));
        fabric.add_source(SourceConfig::new(from, to, 100, arrivals)).unwrap();
    }
    fabric.advance(MS);
    fabric
}

fn packets_on(fabric: &FabricHandle, from: SwitchId, to: SwitchId) -> Vec<u64> {
    let links = fabric.links_between(from, to);
    links.iter().map(|&link| fabric.link_stats(link).packets).collect()
}

#[test]
fn ecmp__flows_spread_evenly() {
    let network = LeafSpine {
        nic: NicConfig { tx_packets: 4_096, ..NicConfig::default() },
        ..LeafSpine::cx4(20)
    };
    for seed in 0..5 {
        let fabric = scatter(&network, 4_000, seed);
        let up = packets_on(&fabric, network.leaf_switch(0), network.spine_switch(0));
        assert_eq!((up.len(), up.iter().sum()), (5, 4_000u64));
        assert!(chi_square(&up) < CHI_SQUARE_OF_5, "{up:?}");
    }
}

#[test]
fn ecmp__no_polarisation_at_the_second_switch() {
    // Four spines, and four parallel links to each. A spine chooses among the links back to a leaf, and
    // receives only flows chosen by the leaf's hash.
    let network = LeafSpine { leaves: 2, spines: 4, links_per_spine: 4, ..LeafSpine::cx4(20) };
    let fabric = scatter(&network, 16_000, 1);
    let mut to_spines = Vec::new();
    for spine in (0..4).map(|spine| network.spine_switch(spine)) {
        to_spines.push(packets_on(&fabric, network.leaf_switch(0), spine).iter().sum());
        let down = packets_on(&fabric, spine, network.leaf_switch(1));
        assert!(chi_square(&down) < CHI_SQUARE_OF_4, "{down:?}");
    }
    assert_eq!(to_spines.iter().sum::<u64>(), 16_000);
    assert!(chi_square(&to_spines) < CHI_SQUARE_OF_4, "{to_spines:?}");
}

#[test]
fn ecmp__a_flow_keeps_its_path_and_a_seed_its_choice() {
    let network = LeafSpine::cx4(20);
    let path_of = |seed, port| {
        let fabric = FabricHandle::new(&network.topology(), exact_cpu(), seed).unwrap();
        let (from, to) = (SimAddr::new(network.host(0, 3), port), addr(network.host(4, 2)));
        flood(&fabric, from, to);
        fabric.advance(MS / 10);
        let used = packets_on(&fabric, network.leaf_switch(0), network.spine_switch(0));
        assert_eq!(used.iter().filter(|&&packets| packets > 0).count(), 1, "{used:?}");
        used.iter().position(|&packets| packets > 0).unwrap()
    };
    let of_ports = |seed| (0..32).map(|port| path_of(seed, port)).collect::<Vec<_>>();
    assert_eq!(of_ports(1), of_ports(1));
    assert_ne!(of_ports(1), of_ports(2));
    let mut paths = of_ports(1);
    paths.sort_unstable();
    paths.dedup();
    assert_eq!(paths.len(), 5, "the port is the entropy");
}

#[test]
fn oversubscription__halves_the_throughput_out_of_a_leaf() {
    let network = LeafSpine::cx4(20).oversubscribed(2, 1);
    let fabric = FabricHandle::new(&network.topology(), exact_cpu(), 1).unwrap();
    for place in 0..20 {
        for port in 0..10 {
            let from = SimAddr::new(network.host(0, place), port);
            let to = SimAddr::new(network.host(1 + port % 4, place), port);
            let arrivals = Arrivals::Poisson { mean_ps: WIRE * 3_200 };
            fabric.add_source(SourceConfig::new(from, to, PAYLOAD, arrivals)).unwrap();
        }
    }
    fabric.advance(2 * MS);
    fabric.begin_measuring();
    fabric.advance(MS);
    let up = fabric.links_between(network.leaf_switch(0), network.spine_switch(0));
    let bps: f64 = up.iter().map(|&link| fabric.link_stats(link).rate_bps()).sum();
    assert!((245e9..250.1e9).contains(&bps), "{bps}");
    assert!(fabric.switch_stats(network.leaf_switch(0)).used_bytes_max > 1_000_000);
}

#[test]
fn digest__is_the_same_for_a_seed_with_everything_on() {
    let run = |seed| {
        let mut network = LeafSpine::cx4(4).oversubscribed(2, 1);
        network.leaf.ecn = Some(EcnConfig::DCQCN);
        let fabric = FabricHandle::new(&network.topology(), exact_cpu(), seed).unwrap();
        for host in (0..20).map(HostId) {
            let arrivals = Arrivals::OnOff {
                every_ps: 300_000,
                on_mean_ps: 20_000_000,
                off_mean_ps: 5_000_000,
            };
            let to = (0..20).map(HostId).filter(|&to| to != host).map(addr).collect();
            let config = SourceConfig::new(addr(host), addr(host), PAYLOAD, arrivals);
            fabric.add_source(SourceConfig { to, ecn_capable: true, ..config }).unwrap();
        }
        fabric.advance(MS);
        let stats = fabric.stats();
        assert!(stats.marked > 0 && stats.is_balanced());
        assert!(fabric.link_stats(LinkId(0)).packets > 0);
        fabric.digest()
    };
    assert_eq!(run(1), run(1));
    assert_ne!(run(1), run(2));
}
