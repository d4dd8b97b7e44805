//! Tests of all faults, and of their repetition by the seed.

use crate::common::*;
use petrel_sim::fabric::{
    Action, DropReason, FabricConfig, FabricHandle, FabricStats, FaultPlan, LinkConfig, LinkId,
    LinkSet, NicConfig, SwitchConfig, Topology,
};
use petrel_sim::{Probability, Trace};
use petrel_transport::Transport;

const LENGTH: usize = 200;
const MS: u64 = 1_000_000;

/// Sends numbered frames through a link with faults, and returns the received frames.
fn through(plan: FaultPlan, count: u32, seed: u64) -> (Vec<Vec<u8>>, FabricStats) {
    let fabric = pair_with(NicConfig::default(), LinkConfig::default(), seed);
    let (mut a, mut b) = (bind(&fabric, H0), bind(&fabric, H1));
    fabric.apply(Action::Faults { links: LinkSet::One(LinkId(0)), plan });
    let mut got = Vec::new();
    for first in (0..count).step_by(64) {
        fabric.advance(10_000);
        send(&mut a, H1, first, 64.min(count - first), LENGTH);
        got.extend(receive(&mut b).into_iter().map(|(_, bytes)| bytes));
    }
    fabric.advance(100 * MS);
    got.extend(receive(&mut b).into_iter().map(|(_, bytes)| bytes));
    let stats = fabric.stats();
    assert!(stats.is_balanced(), "{stats:?}");
    assert_eq!(stats.in_flight, 0);
    (got, stats)
}

fn numbers(frames: &[Vec<u8>]) -> Vec<u32> {
    frames.iter().map(|bytes| number_of(bytes)).collect()
}

#[test]
fn no_plan__nothing_goes_wrong() {
    let (got, stats) = through(FaultPlan::NONE, 1_000, 1);
    assert_eq!(numbers(&got), (0..1_000).collect::<Vec<_>>());
    assert_eq!((stats.delivered, stats.dropped_total()), (1_000, 0));
}

#[test]
fn loss__is_counted() {
    let plan = FaultPlan { loss: Probability::percent(10), ..FaultPlan::NONE };
    let (got, stats) = through(plan, 2_000, 1);
    let lost = stats.dropped(DropReason::Loss);
    assert!((140..260).contains(&lost), "{lost}");
    assert_eq!(got.len() as u64 + lost, 2_000);
    assert!(numbers(&got).is_sorted());
}

#[test]
fn duplication__delivers_the_same_bytes_again() {
    let (duplicate, duplicate_within_ns) = (Probability::percent(10), 50_000);
    let plan = FaultPlan { duplicate, duplicate_within_ns, ..FaultPlan::NONE };
    let (got, stats) = through(plan, 2_000, 1);
    assert!((140..260).contains(&stats.duplicated), "{stats:?}");
    assert_eq!(got.len() as u64, 2_000 + stats.duplicated);
    assert!(got.iter().all(|bytes| *bytes == numbered(number_of(bytes), LENGTH)));
}

#[test]
fn reordering__lets_packets_overtake() {
    let (reorder, reorder_within_ns) = (Probability::percent(10), 5_000);
    let plan = FaultPlan { reorder, reorder_within_ns, ..FaultPlan::NONE };
    let (got, stats) = through(plan, 2_000, 1);
    assert!(stats.reordered > 100);
    let mut order = numbers(&got);
    assert!(!order.is_sorted());
    order.sort_unstable();
    assert_eq!(order, (0..2_000).collect::<Vec<_>>());
}

#[test]
fn corruption__reaches_the_receiver_unless_checksums_stop_it() {
    let plan = FaultPlan { corrupt: Probability::percent(10), ..FaultPlan::NONE };
    for verify_checksums in [false, true] {
        let config = FabricConfig { verify_checksums, ..exact_cpu() };
        let topology = Topology::pair(NicConfig::default(), LinkConfig::default());
        let fabric = FabricHandle::new(&topology, config, 3).unwrap();
        let (mut a, mut b) = (bind(&fabric, H0), bind(&fabric, H1));
        fabric.set_faults(plan);
        fabric.advance(1);
        send(&mut a, H1, 0, 1_000, LENGTH);
        fabric.advance(MS);
        let got = receive(&mut b);
        let intact = got
            .iter()
            .filter(|(_, bytes)| {
                bytes.len() == LENGTH && *bytes == numbered(number_of(bytes), LENGTH)
            })
            .count() as u64;
        let stats = fabric.stats();
        assert!(stats.corrupted > 60, "{stats:?}");
        assert_eq!(intact, 1_000 - stats.corrupted);
        let stopped = if verify_checksums { stats.corrupted } else { 0 };
        assert_eq!(stats.dropped(DropReason::Checksum), stopped);
        let cut_to_nothing = b.stats().rx_dropped_malformed;
        assert_eq!(got.len() as u64 + stopped + cut_to_nothing, 1_000);
        assert!(stats.is_balanced());
    }
}

#[test]
fn spikes__delay_but_keep_the_order() {
    let plan = FaultPlan { spike: Probability::percent(2), spike_within_ns: MS, ..FaultPlan::NONE };
    let (got, stats) = through(plan, 1_000, 1);
    assert!(stats.spikes > 5);
    assert_eq!(numbers(&got), (0..1_000).collect::<Vec<_>>());
}

#[test]
fn faults__hit_only_the_links_they_are_meant_for() {
    let plan = FaultPlan { loss: Probability::ALWAYS, ..FaultPlan::NONE };
    for (links, expected) in [
        (LinkSet::All, [0, 0, 0]),
        (LinkSet::One(LinkId(0)), [0, 5, 5]),
        (LinkSet::Host(H1), [0, 0, 5]),
    ] {
        let fabric = star_with(3, SwitchConfig::default(), LinkConfig::default(), 1);
        let mut hosts = [H0, H1, H2].map(|host| bind(&fabric, host));
        fabric.apply(Action::Faults { links, plan });
        fabric.advance(1);
        // A ring: 0 to 1, 1 to 2, 2 to 0.
        for (from, to) in [(0, H1), (1, H2), (2, H0)] {
            send(&mut hosts[from], to, 0, 5, LENGTH);
        }
        fabric.advance(MS);
        let got = [H1, H2, H0].map(|host| receive(&mut hosts[usize::from(host.0)]).len());
        assert_eq!(got, expected, "{links:?}");
        assert!(fabric.stats().is_balanced());
    }
}

#[test]
fn partition__drops_between_its_sides_and_heals() {
    let fabric = star_with(3, SwitchConfig::default(), LinkConfig::default(), 1);
    let (mut a, mut b, mut c) = (bind(&fabric, H0), bind(&fabric, H1), bind(&fabric, H2));
    let (from, to) = (vec![H0], vec![H1]);
    fabric.schedule(MS, Action::Partition { from, to, one_way: false, for_ns: 2 * MS });
    let mut exchange = || {
        send(&mut a, H1, 0, 1, LENGTH);
        send(&mut b, H0, 0, 1, LENGTH);
        send(&mut a, H2, 0, 1, LENGTH);
        fabric.advance(MS / 2);
        [receive(&mut a).len(), receive(&mut b).len(), receive(&mut c).len()]
    };
    assert_eq!(exchange(), [1, 1, 1]);
    exchange();
    for _ in 0..4 {
        assert_eq!(exchange(), [0, 0, 1]);
    }
    assert_eq!(exchange(), [1, 1, 1]);
    let stats = fabric.stats();
    assert_eq!((stats.partitions, stats.dropped(DropReason::Partition)), (1, 8));
    assert!(stats.is_balanced());
}

#[test]
fn partition__one_way_and_heal_all() {
    let fabric = pair_with(NicConfig::default(), LinkConfig::default(), 1);
    let (mut a, mut b) = (bind(&fabric, H0), bind(&fabric, H1));
    let (from, to) = (vec![H0], vec![H1, petrel_sim::fabric::HostId(99)]);
    fabric.apply(Action::Partition { from, to, one_way: true, for_ns: u64::MAX });
    let mut exchange = || {
        fabric.advance(1);
        send(&mut a, H1, 0, 1, LENGTH);
        send(&mut b, H0, 0, 1, LENGTH);
        fabric.advance(MS);
        [receive(&mut a).len(), receive(&mut b).len()]
    };
    assert_eq!(exchange(), [1, 0]);
    fabric.apply(Action::HealAll);
    assert_eq!(exchange(), [1, 1]);
}

#[test]
fn crash__flushes_queues_and_old_packets_reach_the_new_incarnation() {
    let fabric = pair_with(NicConfig::default(), LinkConfig::gbit(1, 100_000), 1);
    let (mut a, mut b) = (bind(&fabric, H0), bind(&fabric, H1));
    // 242 bytes take 1936 ns. After 400 µs, some packets have arrived and some are in flight.
    send(&mut a, H1, 0, 200, LENGTH);
    send(&mut b, H0, 0, 300, LENGTH);
    fabric.advance(400_000);
    fabric.schedule(400_000, Action::Crash { host: H1, down_ns: 10_000 });
    fabric.advance(1);
    let stats = fabric.stats();
    // In the receive queue: (400 - 100) / 1.936. In the transmit queue: 300, minus the sent packets and the
    // packet in transmission.
    assert_eq!(stats.dropped(DropReason::Crash), 154 + 300 - 206 - 1);
    assert!(!fabric.is_up(H1));

    // The old transport stays unusable, even after the restart.
    assert_eq!(send(&mut b, H0, 0, 3, LENGTH), 3);
    assert_eq!(b.stats().tx_dropped_error, 3);
    fabric.advance(20_000);
    assert!(fabric.is_up(H1));
    let while_down = fabric.stats().dropped(DropReason::HostDown);
    let without_port = fabric.stats().dropped(DropReason::NoPort);
    assert!(while_down > 3 && without_port > 3, "{while_down} {without_port}");
    let mut reborn = bind(&fabric, H1);
    assert_eq!(receive(&mut b).len(), 0);
    drop(b);

    // Packets in flight arrive at the new transport; closing the old transport did not disturb the new one.
    fabric.advance(MS);
    let got = receive_numbers(&mut reborn);
    assert_eq!(got.last(), Some(&199));
    assert_eq!(got.len() as u64, 200 - 154 - while_down - without_port);
    let stats = fabric.stats();
    assert!(stats.is_balanced(), "{stats:?}");
    assert_eq!(stats.crashes, 1);
}

/// A run with every fault, and its trace.
fn everything(seed: u64) -> (Vec<String>, u64, FabricStats) {
    let fabric = star_with(3, SwitchConfig::default(), LinkConfig::default(), seed);
    fabric.set_trace(Trace::last(1_000_000).with_decoder(|bytes, text| {
        text.push_str(&format!("{:02x?}", &bytes[..bytes.len().min(4)]));
    }));
    let plan = FaultPlan {
        loss: Probability::percent(3),
        loss_continues: Probability::percent(50),
        duplicate: Probability::percent(3),
        duplicate_within_ns: 100_000,
        reorder: Probability::percent(3),
        reorder_within_ns: 10_000,
        corrupt: Probability::percent(3),
        spike: Probability::percent(1),
        spike_within_ns: 20_000,
    };
    fabric.set_faults(plan);
    let (from, to) = (vec![H0], vec![H2]);
    fabric.schedule(200_000, Action::Partition { from, to, one_way: false, for_ns: 50_000 });
    fabric.schedule(400_000, Action::Crash { host: H1, down_ns: 50_000 });
    let mut hosts = [H0, H1, H2].map(|host| bind(&fabric, host));
    for round in 0..40 {
        for (from, to) in [(0, H1), (1, H2), (2, H0), (0, H2)] {
            send(&mut hosts[from], to, round * 8, 8, LENGTH);
        }
        fabric.advance(20_000);
        hosts.iter_mut().for_each(|host| drop(receive(host)));
    }
    fabric.advance(10 * MS);
    hosts.iter_mut().for_each(|host| drop(receive(host)));
    (fabric.trace_lines(), fabric.digest(), fabric.stats())
}

#[test]
fn seed__gives_the_same_run_to_the_byte() {
    let (lines, digest, stats) = everything(5);
    let again = everything(5);
    assert_eq!(lines, again.0);
    assert_eq!((digest, stats), (again.1, again.2));
    let other = everything(6);
    assert_ne!(digest, other.1);
    assert_ne!(lines, other.0);
}

#[test]
fn trace__has_a_line_for_everything_counted() {
    let (lines, _, stats) = everything(5);
    let count = |word: &str| lines.iter().filter(|line| line.contains(word)).count() as u64;
    for reason in DropReason::ALL {
        assert_eq!(count(&format!("DROP({})", reason.name())), stats.dropped(reason));
    }
    assert_eq!(count("SEND"), stats.sent);
    assert_eq!(count("TAKE"), stats.delivered);
    assert_eq!(count("DUPLICATE("), stats.duplicated);
    assert_eq!(count("REORDER("), stats.reordered);
    assert_eq!(count("CORRUPT"), stats.corrupted);
    assert_eq!(count("SPIKE("), stats.spikes);
    assert_eq!(count("CRASH h1"), 1);
    assert_eq!(count("RESTART h1"), 1);
    assert_eq!(count("PARTITION"), 1);
    assert_eq!(count("HEAL partition"), 1);
    assert!(count("(corrupted)") > 0);
    assert!(stats.is_balanced());
    assert_eq!(stats.in_flight, 0);
}

#[test]
fn digest__needs_no_trace() {
    let run = |trace: Trace| {
        let fabric = pair_with(NicConfig::default(), LinkConfig::default(), 1);
        fabric.set_trace(trace);
        let mut a = bind(&fabric, H0);
        send(&mut a, H1, 0, 10, LENGTH);
        fabric.advance(MS);
        fabric.digest()
    };
    assert_eq!(run(Trace::off()), run(Trace::last(5)));
}
