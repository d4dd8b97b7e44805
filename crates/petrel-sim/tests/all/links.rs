//! Links that change during a run: cuts, routes that follow, rates, and marking rules of single ports.

use crate::common::*;
use petrel_sim::fabric::{
    Action, Arrivals, DropReason, EcnConfig, FabricHandle, HostId, LinkConfig, LinkId, LinkSet,
    NicConfig, SimAddr, SourceConfig, SwitchConfig, Topology,
};

const PAYLOAD: u32 = 1_000;
const WIRE: u64 = PAYLOAD as u64 + OVERHEAD_BYTES;
const US: u64 = 1_000;
const PARALLEL: usize = 4;

/// Makes two hosts under a switch each, with four parallel links between the switches. Returns the links
/// from the first switch to the second.
fn parallel() -> (Topology, [LinkId; PARALLEL]) {
    let mut topology = Topology::new();
    let switches = [(); 2].map(|()| topology.add_switch(SwitchConfig::default()));
    for switch in switches {
        let host = topology.add_host(NicConfig::default());
        topology.connect(host, switch, LinkConfig::gbit(40, 500));
    }
    let between = LinkConfig::gbit(10, 500);
    let links = [(); PARALLEL].map(|()| topology.connect(switches[0], switches[1], between).0);
    (topology, links)
}

fn fabric_of(topology: &Topology) -> FabricHandle {
    FabricHandle::new(topology, exact_cpu(), 1).unwrap()
}

/// Adds sources from 64 ports of the first host to the second: together a tenth of the parallel links.
fn add_sources(fabric: &FabricHandle) {
    for port in 0..64 {
        let arrivals = Arrivals::Poisson { mean_ps: WIRE * 800 * 64 * 10 / PARALLEL as u64 };
        let (from, to) = (SimAddr::new(H0, port), addr(H1));
        fabric.add_source(SourceConfig::new(from, to, PAYLOAD, arrivals)).unwrap();
    }
}

/// Returns the packets on each link within a time.
fn packets_on(fabric: &FabricHandle, links: &[LinkId; PARALLEL], for_ns: u64) -> [u64; PARALLEL] {
    fabric.begin_measuring();
    fabric.advance(for_ns);
    links.map(|link| fabric.link_stats(link).packets)
}

fn set_up(fabric: &FabricHandle, link: LinkId, is_up: bool, reconverge_ns: Option<u64>) {
    fabric.apply(Action::Link { links: LinkSet::Cable(link), is_up, reconverge_ns });
}

#[test]
fn link__that_is_down_swallows_what_enters_and_what_travels() {
    let fabric = pair_with(NicConfig::default(), LinkConfig::gbit(8, 10_000), 1);
    let (mut a, mut b) = (bind(&fabric, H0), bind(&fabric, H1));
    send(&mut a, H1, 0, 2, 100);
    // The first packet travels, the second is being sent.
    fabric.advance(200);
    set_up(&fabric, LinkId(0), false, None);
    fabric.advance(100 * US);
    assert_eq!(receive_numbers(&mut b), []);
    assert_eq!(fabric.stats().dropped(DropReason::LinkDown), 2);
    assert_eq!(fabric.link_stats(LinkId(0)).dropped_down, 2);

    send(&mut b, H0, 5, 1, 100);
    fabric.advance(100 * US);
    assert_eq!(receive_numbers(&mut a), [], "a cable is down in both directions");

    set_up(&fabric, LinkId(1), true, None);
    send(&mut a, H1, 2, 1, 100);
    fabric.advance(100 * US);
    assert_eq!(receive_numbers(&mut b), [2]);
    assert!(fabric.stats().is_balanced());
}

#[test]
fn link__down_in_one_direction_leaves_the_other() {
    let fabric = pair_with(NicConfig::default(), LinkConfig::gbit(8, 100), 1);
    let (mut a, mut b) = (bind(&fabric, H0), bind(&fabric, H1));
    fabric.apply(Action::Link {
        links: LinkSet::One(LinkId(1)),
        is_up: false,
        reconverge_ns: None,
    });
    send(&mut a, H1, 0, 1, 100);
    send(&mut b, H0, 1, 1, 100);
    fabric.advance(10 * US);
    assert_eq!((receive_numbers(&mut a), receive_numbers(&mut b)), (vec![], vec![0]));
}

#[test]
fn reconvergence__leads_around_a_link_and_back() {
    let (topology, links) = parallel();
    let fabric = fabric_of(&topology);
    add_sources(&fabric);
    fabric.advance(100 * US);
    let before = packets_on(&fabric, &links, 1_000 * US);
    assert!(before.iter().all(|&packets| packets > 0), "{before:?}");

    set_up(&fabric, links[1], false, Some(500 * US));
    let meanwhile = packets_on(&fabric, &links, 500 * US);
    assert!(meanwhile[1] > 0, "the routes do not know yet");
    assert_eq!(fabric.link_stats(links[1]).dropped_down, meanwhile[1]);
    let lost = fabric.stats().dropped_total();

    // The packets that had been led to the link before.
    fabric.advance(10 * US);
    let after = packets_on(&fabric, &links, 1_000 * US);
    assert!(after[1] == 0 && after[0] > 0 && after[2] > 0 && after[3] > 0, "{after:?}");
    assert!(fabric.stats().dropped_total() <= lost + 64, "{:?}", fabric.stats());
    assert!(after.iter().sum::<u64>().abs_diff(before.iter().sum()) <= 64);

    set_up(&fabric, links[1], true, Some(500 * US));
    assert_eq!(packets_on(&fabric, &links, 500 * US)[1], 0, "up, but not in the routes");
    fabric.advance(10 * US);
    let again = packets_on(&fabric, &links, 1_000 * US);
    assert!(again[1].abs_diff(before[1]) <= 64, "the flows of before: {before:?} {again:?}");
}

#[test]
fn reconvergence__a_silent_cut_is_never_learned_of() {
    let (topology, links) = parallel();
    let fabric = fabric_of(&topology);
    add_sources(&fabric);
    set_up(&fabric, links[0], false, None);
    set_up(&fabric, links[1], false, Some(10 * US));
    fabric.advance(1_000 * US);
    let packets = packets_on(&fabric, &links, 1_000 * US);
    assert!(packets[0] > 0 && packets[1] == 0, "{packets:?}");
    assert_eq!(fabric.link_stats(links[0]).dropped_down, packets[0]);
}

#[test]
fn reconvergence__follows_the_state_of_its_own_time() {
    let (topology, links) = parallel();
    let fabric = fabric_of(&topology);
    add_sources(&fabric);
    // A link that is back before any switch took note.
    set_up(&fabric, links[0], false, Some(100 * US));
    fabric.advance(50 * US);
    set_up(&fabric, links[0], true, None);
    fabric.advance(100 * US);
    assert!(packets_on(&fabric, &links, 1_000 * US)[0] > 0);
    assert_eq!(fabric.link_stats(links[0]).dropped_down, 0);
}

#[test]
fn reconvergence__without_any_path_is_no_route() {
    let (topology, links) = parallel();
    let fabric = fabric_of(&topology);
    let (mut a, mut b) = (bind(&fabric, H0), bind(&fabric, H1));
    links.iter().for_each(|&link| set_up(&fabric, link, false, Some(0)));
    fabric.advance(US);
    assert_eq!(fabric.route(addr(H0), addr(H1)), None);
    send(&mut a, H1, 0, 1, 100);
    fabric.advance(100 * US);
    assert_eq!(receive_numbers(&mut b), []);
    assert_eq!(fabric.stats().dropped(DropReason::NoRoute), 1);
}

#[test]
fn reconvergence__a_spine_without_a_leaf_serves_the_others() {
    let mut topology = Topology::new();
    let mut switch = || topology.add_switch(SwitchConfig::default());
    let (leaves, spines) = ([switch(), switch(), switch()], [switch(), switch()]);
    let hosts = leaves.map(|leaf| {
        let host = topology.add_host(NicConfig::default());
        topology.connect(host, leaf, LinkConfig::gbit(25, 450));
        for spine in spines {
            topology.connect(leaf, spine, LinkConfig::gbit(100, 450));
        }
        host
    });
    let fabric = fabric_of(&topology);
    let cut = fabric.links_between(spines[0], leaves[2])[0];
    set_up(&fabric, cut, false, Some(0));
    fabric.advance(US);
    let spines_to = |to: HostId| {
        let routes = (0..64).map(|port| {
            let from = SimAddr::new(hosts[0], port);
            fabric.route(from, addr(to)).unwrap()[1]
        });
        let links: std::collections::BTreeSet<LinkId> = routes.collect();
        spines.map(|spine| links.contains(&fabric.links_between(leaves[0], spine)[0]))
    };
    assert_eq!((spines_to(hosts[2]), spines_to(hosts[1])), ([false, true], [true, true]));
}

#[test]
fn shape__a_link_has_its_new_rate_and_delay() {
    let fabric = pair_with(NicConfig::default(), LinkConfig::gbit(8, 100), 1);
    let (mut a, mut b) = (bind(&fabric, H0), bind(&fabric, H1));
    let config = LinkConfig { rate_bps: 2_000_000_000, delay_ns: 5_000 };
    send(&mut a, H1, 0, 2, 958);
    // 1 000 B take a microsecond, and four afterwards. The first packet keeps its rate.
    fabric.apply(Action::Shape { links: LinkSet::Cable(LinkId(0)), config });
    fabric.advance(1_000 + 5_000 - 1);
    assert_eq!(receive_numbers(&mut b), []);
    fabric.advance(1);
    assert_eq!(receive_numbers(&mut b), [0]);
    fabric.advance(4_000 - 1);
    assert_eq!(receive_numbers(&mut b), []);
    fabric.advance(1);
    assert_eq!(receive_numbers(&mut b), [1]);
}

#[test]
fn set_ecn__one_port_marks_and_its_neighbours_do_not() {
    let (mut topology, links) = parallel();
    let step = EcnConfig { k_min_bytes: 3_000, k_max_bytes: 3_000, ..EcnConfig::DCQCN };
    topology.set_ecn(links[2], Some(step));
    let fabric = fabric_of(&topology);
    for port in 0..64 {
        // All sources together have twice the rate of the parallel links.
        let arrivals = Arrivals::Poisson { mean_ps: WIRE * 800 * 64 / 8 };
        let config = SourceConfig::new(SimAddr::new(H0, port), addr(H1), PAYLOAD, arrivals);
        fabric.add_source(SourceConfig { ecn_capable: true, ..config }).unwrap();
    }
    fabric.advance(1_000 * US);
    let marked = links.map(|link| fabric.link_stats(link).marked);
    assert!(marked[2] > 0 && [0, 1, 3].iter().all(|&link| marked[link] == 0), "{marked:?}");
}

#[test]
fn route__is_the_way_of_the_packets() {
    let (topology, links) = parallel();
    let fabric = fabric_of(&topology);
    let mut used = [false; PARALLEL];
    for port in 0..64 {
        let from = SimAddr::new(H0, port);
        let route = fabric.route(from, addr(H1)).unwrap();
        assert_eq!(route.len(), 3);
        let arrivals = Arrivals::Window { packets: 1, reply_bytes: 1 };
        let start_ns = fabric.now_ns();
        let config = SourceConfig::new(from, addr(H1), PAYLOAD, arrivals);
        let stop_ns = start_ns + 1;
        fabric.add_source(SourceConfig { start_ns, stop_ns, ..config }).unwrap();
        let packets = packets_on(&fabric, &links, 100 * US);
        assert_eq!(packets.iter().sum::<u64>(), 1);
        for (used, (link, packets)) in used.iter_mut().zip(links.iter().zip(packets)) {
            assert_eq!(route[1] == *link, packets == 1);
            *used |= packets == 1;
        }
    }
    assert_eq!(used, [true; PARALLEL], "64 ports find four links");
    assert_eq!(fabric.route(addr(H0), addr(H0)), None);
    assert_eq!(fabric.route(addr(H0), addr(HostId(9))), None);
}
