//! Fault schedules and forged frames.

use super::node::{Common, data_port};
use super::scenario::{FaultLevel, Scenario};
use crate::control::CrashKind;
use crate::fabric::SOURCE_PORT_FIRST;
use crate::fabric::{Action, FaultPlan, HostId, LinkId, LinkSet, Recorded, SimAddr};
use crate::rng::{Probability, Rng};

#[derive(Clone, Debug)]
pub(super) enum FaultAction {
    /// A fault window in which calls of these hosts may fail.
    FaultWindow {
        action: Action,
        hosts: Vec<HostId>,
        for_ns: u64,
    },
    /// The next turn of a host's threads stops in the middle. Opens a fault window when the stop begins.
    Stall {
        host: HostId,
        after: u64,
        for_ns: u64,
    },
    Crash {
        host: HostId,
        kind: CrashKind,
        down_ns: u64,
    },
    /// An endpoint ends in a running process and is replaced.
    Replace {
        at: SimAddr,
    },
    /// An endpoint drains for this time.
    Drain {
        at: SimAddr,
        for_ns: u64,
    },
    /// The drained endpoint ends and is replaced.
    EndDrain {
        at: SimAddr,
    },
    /// A cable loses everything for `lost_ns`, a fault window of these hosts. Then it is mended, or routes lead around
    /// it.
    Cut {
        link: LinkId,
        hosts: Vec<HostId>,
        lost_ns: u64,
        reconverge_ns: Option<u64>,
    },
    /// The cable is whole again, and routes follow if they left it.
    Mend {
        link: LinkId,
        reconverge_ns: Option<u64>,
    },
    /// The default fault plan is restored.
    Restore,
    /// The attacker injects frames.
    Forge {
        count: u64,
    },
    /// The attacker of sealed links acts.
    Attack {
        count: u64,
    },
}

/// Packets that the attacker keeps.
pub(super) const RECORDED: usize = 300;

/// Draws the fault actions of a run, in order of time.
pub(super) fn plan(scenario: &Scenario, rng: &mut Rng) -> Vec<(u64, FaultAction)> {
    let mut actions = Vec::new();
    if scenario.fault_level == FaultLevel::Full {
        for _ in 0..rng.between(1, 6) {
            let at_ns = rng.between(0, scenario.active_ns);
            add_fault_window(scenario, rng, at_ns, &mut actions);
        }
    }
    if scenario.is_attacked {
        for _ in 0..rng.between(5, 60) {
            let at_ns = rng.between(0, scenario.active_ns);
            actions.push((at_ns, FaultAction::Forge { count: rng.between(1, 40) }));
        }
    }
    actions.sort_by_key(|&(at_ns, _)| at_ns);
    actions
}

/// Adds endpoints that drain and are then replaced, as an operator does, also at low fault levels.
pub(super) fn add_drains(
    scenario: &Scenario,
    rng: &mut Rng,
    actions: &mut Vec<(u64, FaultAction)>,
) {
    if scenario.fault_level == FaultLevel::None {
        return;
    }
    for _ in 0..rng.below(3) {
        let host = HostId(rng.below(u64::from(scenario.hosts)) as u16);
        let at = data_port(host, rng.below(u64::from(scenario.endpoints_per_host)) as u16);
        let (from_ns, for_ns) = (rng.between(0, scenario.active_ns), 1 << rng.between(16, 28));
        actions.push((from_ns, FaultAction::Drain { at, for_ns }));
        actions.push((from_ns + for_ns, FaultAction::EndDrain { at }));
    }
    actions.sort_by_key(|&(at_ns, _)| at_ns);
}

/// Steps of a turn after which it may stop; most turns have fewer.
const STEPS_MAX: u64 = 24;

/// Adds threads that stop within a turn, in half of the worlds with the highest fault level, for a microsecond up to
/// longer than a heartbeat. Half of the stops come between the reading of the clock and everything else.
pub(super) fn add_stalls(
    scenario: &Scenario,
    rng: &mut Rng,
    actions: &mut Vec<(u64, FaultAction)>,
) {
    if rng.below(2) == 0 || scenario.fault_level != FaultLevel::Full {
        return;
    }
    // Stops as long as calls, and many of them: most stops are near no deadline.
    let are_short = rng.below(3) == 0;
    let (count, longest) =
        if are_short { (rng.between(20, 200), 21) } else { (rng.between(1, 12), 28) };
    for _ in 0..count {
        let host = HostId(rng.below(u64::from(scenario.hosts)) as u16);
        let after = if rng.below(2) == 0 { 1 } else { rng.between(2, STEPS_MAX) };
        let most = rng.between(11, longest);
        let for_ns = rng.between(1_000, 1 << most);
        let at_ns = rng.below(scenario.active_ns);
        actions.push((at_ns, FaultAction::Stall { host, after, for_ns }));
    }
    actions.sort_by_key(|&(at_ns, _)| at_ns);
}

fn add_fault_window(
    scenario: &Scenario,
    rng: &mut Rng,
    at_ns: u64,
    actions: &mut Vec<(u64, FaultAction)>,
) {
    let host = HostId(rng.below(u64::from(scenario.hosts)) as u16);
    let most = rng.between(11, 26);
    let for_ns = rng.between(1_000, 1 << most);
    let window = |action, hosts| FaultAction::FaultWindow { action, hosts, for_ns };
    match rng.below(11) {
        0 => {
            let endpoint = rng.below(u64::from(scenario.endpoints_per_host)) as u16;
            actions.push((at_ns, FaultAction::Replace { at: data_port(host, endpoint) }));
        }
        1..4 => {
            let (from, to) = split(scenario.hosts, rng);
            let one_way = rng.below(3) == 0;
            let hosts = [from.clone(), to.clone()].concat();
            actions.push((at_ns, window(Action::Partition { from, to, one_way, for_ns }, hosts)));
        }
        4..6 => actions.push((at_ns, window(Action::Pause { host, for_ns }, vec![host]))),
        6..10 => {
            let kind = CrashKind::draw(rng);
            let down_ns = if rng.below(15) == 0 { u64::MAX } else { for_ns };
            actions.push((at_ns, FaultAction::Crash { host, kind, down_ns }));
        }
        _ => {
            let plan = heavy_loss(rng);
            let links = if rng.below(2) == 0 { LinkSet::All } else { LinkSet::Host(host) };
            let action = Action::Faults { links, plan };
            actions.push((at_ns, window(action, all_hosts(scenario.hosts).collect())));
            actions.push((at_ns + for_ns, FaultAction::Restore));
        }
    }
}

fn all_hosts(count: u16) -> impl Iterator<Item = HostId> {
    (0..count).map(HostId)
}

/// Splits the hosts into two sets, neither empty.
fn split(count: u16, rng: &mut Rng) -> (Vec<HostId>, Vec<HostId>) {
    let alone = rng.below(u64::from(count)) as u16;
    let (mut from, mut to) = (vec![HostId(alone)], Vec::new());
    for host in all_hosts(count).filter(|host| host.0 != alone) {
        if to.is_empty() || rng.below(2) == 0 { to.push(host) } else { from.push(host) }
    }
    (from, to)
}

fn heavy_loss(rng: &mut Rng) -> FaultPlan {
    FaultPlan {
        loss: Probability::percent(rng.between(20, 100) as u32),
        reorder: Probability::percent(10),
        reorder_within_ns: 100_000,
        ..FaultPlan::NONE
    }
}

/// Injects a frame that its receiver must ignore: random bytes, a guess, a replayed frame, or a frame of a
/// session from a wrong peer.
///
/// Never injects changed bytes with a session's token *and* its peer's address. Frames have no checksum and
/// no seal; they rely on the medium's, and on the absence of attackers on the path.
pub(super) fn forge(common: &Common, rng: &mut Rng) {
    let scenario = &common.scenario;
    let anybody = |rng: &mut Rng| {
        let host = HostId(rng.below(u64::from(scenario.hosts)) as u16);
        data_port(host, rng.below(u64::from(scenario.endpoints_per_host)) as u16)
    };
    let (from, to) = (anybody(rng), anybody(rng));
    let fabric = &common.fabric;
    let delay_ns = rng.between(1, 20_000);
    match rng.below(5) {
        0 => fabric.inject(from, to, &garbage(rng), delay_ns),
        1 => fabric.inject(from, to, &guess(rng), delay_ns),
        2 | 3 => {
            if let Some(Recorded { from, to, frames }) = pick(common, rng) {
                frames.iter().for_each(|frame| fabric.inject(from, to, frame, delay_ns));
            }
        }
        _ => {
            if let Some(recorded) = pick(common, rng) {
                forge_from(common, rng, from, recorded, delay_ns);
            }
        }
    }
}

/// Injects a frame of a session, whole or truncated, from an address that is not its peer's.
fn forge_from(common: &Common, rng: &mut Rng, from: SimAddr, recorded: Recorded, delay_ns: u64) {
    // A session accepts frames from all ports that its peer announced.
    let is_source_port = recorded.from.port >= SOURCE_PORT_FIRST;
    let is_peer = from == recorded.from || is_source_port && from.host == recorded.from.host;
    let wrong_peer = if is_peer { SimAddr::new(from.host, 77) } else { from };
    for mut frame in recorded.frames {
        if rng.below(2) == 0 {
            frame.truncate(1 + rng.below(frame.len() as u64) as usize);
        }
        common.fabric.inject(wrong_peer, recorded.to, &frame, delay_ns);
    }
}

fn pick(common: &Common, rng: &mut Rng) -> Option<Recorded> {
    common.fabric.recorded(|count| rng.below(count as u64) as usize)
}

fn garbage(rng: &mut Rng) -> Vec<u8> {
    let mut bytes = vec![0; rng.between(1, 100) as usize];
    rng.fill(&mut bytes);
    bytes
}

/// Returns a frame of version 1 with a likely session and a guessed token.
fn guess(rng: &mut Rng) -> Vec<u8> {
    let mut bytes = garbage(rng);
    bytes.resize(bytes.len() + 16, 0);
    let first = 0x10 | rng.below(6) as u32 | (rng.below(8) as u32) << 12;
    bytes[..4].copy_from_slice(&first.to_le_bytes());
    bytes
}
