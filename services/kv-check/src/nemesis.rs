//! The nemesis: the plan of faults.

use petrel_sim::control::CrashKind;
use petrel_sim::fabric::{Action, FaultPlan, HostId, LinkSet};
use petrel_sim::{Probability, Rng};

use crate::scenario::Scenario;

#[derive(Clone, Debug)]
pub(crate) enum FaultAction {
    Network(Action),
    /// Restores the usual link faults.
    Restore,
    Pause {
        target: FaultTarget,
        for_ns: u64,
    },
    /// A node goes down, and returns with or without its disk.
    Crash {
        target: FaultTarget,
        crash_kind: CrashKind,
        down_ns: u64,
        loses_disk: bool,
    },
    /// All nodes go down at once, and return with their disks.
    PowerLossOfAll {
        down_ns: u64,
    },
    /// The leader is cut off from all other nodes, but not from clients, for a time.
    Isolate {
        for_ns: u64,
    },
    /// The threads of a node stall within their next turn.
    Stall {
        target: FaultTarget,
        after: u64,
        for_ns: u64,
    },
    /// The leader is cut off as by `Isolate`, and stalls some time later.
    IsolateAndStall {
        cut_ns: u64,
        stall_in_ns: u64,
        after: u64,
        stall_ns: u64,
    },
    Transfer,
    /// An idle host becomes a node.
    Grow,
    /// A node leaves for good.
    Shrink,
}

#[derive(Clone, Copy, Debug)]
pub(crate) enum FaultTarget {
    Leader,
    Host(HostId),
}

/// Steps of a turn after which a stall may begin; most turns have fewer.
const STEPS_MAX: u64 = 24;

/// The fault actions, in order of time. Stalls have their own random numbers, which leaves worlds without stalls
/// unchanged.
pub(crate) fn plan(
    scenario: &Scenario,
    rng: &mut Rng,
    stalls: &mut Rng,
) -> Vec<(u64, FaultAction)> {
    let mut faults = Vec::new();
    for _ in 0..scenario.fault_count {
        let at_ns = rng.below(scenario.active_ns);
        add_fault(scenario, rng, at_ns, &mut faults);
    }
    for _ in 0..scenario.stalls.count {
        faults.push((stalls.below(scenario.active_ns), draw_stall(scenario, stalls)));
    }
    faults.sort_by_key(|(at_ns, _)| *at_ns);
    faults
}

fn add_fault(scenario: &Scenario, rng: &mut Rng, at_ns: u64, faults: &mut Vec<(u64, FaultAction)>) {
    // From a fraction of an election timeout to several of them.
    let for_ns = (scenario.election_ns() >> rng.below(5)) * rng.between(1, 6);
    let kind = rng.below(20);
    if scenario.reads_stale_leaders() && kind < 5 {
        let for_ns = scenario.election_ns() * rng.between(2, 5);
        faults.push((at_ns, FaultAction::Isolate { for_ns }));
        return;
    }
    match kind {
        0..5 => add_partition(scenario, rng, at_ns, for_ns, faults),
        5..7 => {
            faults.push((at_ns, FaultAction::Pause { target: draw_target(scenario, rng), for_ns }))
        }
        7..12 => {
            let crash_kind = CrashKind::draw(rng);
            let (target, loses_disk) = (draw_target(scenario, rng), rng.below(4) == 0);
            faults.push((
                at_ns,
                FaultAction::Crash { target, crash_kind, down_ns: for_ns, loses_disk },
            ));
        }
        12 => faults.push((at_ns, FaultAction::PowerLossOfAll { down_ns: for_ns })),
        13..15 => faults.push((at_ns, FaultAction::Transfer)),
        15..17 => faults.push((at_ns, FaultAction::Grow)),
        17 => faults.push((at_ns, FaultAction::Shrink)),
        _ => {
            let host = HostId(rng.below(u64::from(scenario.hosts())) as u16);
            let links = if rng.below(2) == 0 { LinkSet::All } else { LinkSet::Host(host) };
            let plan = heavy_loss(rng);
            faults.push((at_ns, FaultAction::Network(Action::Faults { links, plan })));
            faults.push((at_ns + for_ns, FaultAction::Restore));
        }
    }
}

/// Draws a stall, from a microsecond to some election timeouts. Every second stall comes directly after the reading of
/// the clock.
fn draw_stall(scenario: &Scenario, rng: &mut Rng) -> FaultAction {
    let election_ns = scenario.election_ns();
    let after = if rng.below(2) == 0 { 1 } else { rng.between(2, STEPS_MAX) };
    if scenario.stalls.targets_leaders && rng.below(2) == 0 {
        let stall_in_ns = rng.below(election_ns);
        let stall_ns = rng.between(election_ns, 6 * election_ns);
        let cut_ns = stall_in_ns + stall_ns + rng.below(election_ns);
        return FaultAction::IsolateAndStall { cut_ns, stall_in_ns, after, stall_ns };
    }
    let most = rng.between(10, u64::from((4 * election_ns).ilog2()));
    let for_ns = rng.between(1_000, 1 << most);
    FaultAction::Stall { target: draw_target(scenario, rng), after, for_ns }
}

fn draw_target(scenario: &Scenario, rng: &mut Rng) -> FaultTarget {
    if rng.below(2) == 0 {
        return FaultTarget::Leader;
    }
    FaultTarget::Host(HostId(rng.below(u64::from(scenario.replica_hosts())) as u16))
}

/// Adds a partition into two sides, symmetric or one-way. With a bridge, a host on neither side reaches both.
fn add_partition(
    scenario: &Scenario,
    rng: &mut Rng,
    at_ns: u64,
    for_ns: u64,
    faults: &mut Vec<(u64, FaultAction)>,
) {
    let alone = rng.below(u64::from(scenario.replica_hosts())) as u16;
    let bridge = (rng.below(4) == 0)
        .then(|| rng.below(u64::from(scenario.replica_hosts())) as u16)
        .filter(|bridge| *bridge != alone);
    let (mut from, mut to) = (vec![HostId(alone)], Vec::new());
    for host in (0..scenario.hosts()).filter(|host| *host != alone && Some(*host) != bridge) {
        if rng.below(3) == 0 { from.push(HostId(host)) } else { to.push(HostId(host)) }
    }
    if to.is_empty() {
        return;
    }
    if rng.below(2) == 0 {
        std::mem::swap(&mut from, &mut to);
    }
    let one_way = rng.below(3) == 0;
    faults.push((at_ns, FaultAction::Network(Action::Partition { from, to, one_way, for_ns })));
}

fn heavy_loss(rng: &mut Rng) -> FaultPlan {
    FaultPlan {
        loss: Probability::percent(rng.between(10, 100) as u32),
        reorder: Probability::percent(20),
        reorder_within_ns: 2_000_000,
        ..FaultPlan::NONE
    }
}
