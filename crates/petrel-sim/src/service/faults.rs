//! The faults of a run.

use crate::fabric::{Action, FabricHandle, FaultPlan, HostId, LinkSet};
use crate::rng::{Probability, Rng};

/// The kinds of faults that seeds draw.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Faults {
    /// Packets are lost, late, repeated and out of order.
    pub packets: bool,
    /// Hosts have no connection to some others, in one direction or in both.
    pub partitions: bool,
    /// Hosts stop for a while, as if their processor were busy elsewhere.
    pub pauses: bool,
    /// Servers crash, and start again.
    pub crashes: bool,
}

impl Faults {
    /// All kinds.
    pub const ALL: Self = Self { packets: true, partitions: true, pauses: true, crashes: true };

    /// No faults: the times of packets differ from seed to seed alone.
    pub const NONE: Self =
        Self { packets: false, partitions: false, pauses: false, crashes: false };

    /// Packets alone: every call with the default timeouts succeeds.
    pub const PACKETS: Self = Self { packets: true, ..Self::NONE };
}

/// A fault at a time.
#[derive(Clone, Copy, Debug)]
enum Kind {
    HeavyLoss,
    Partition,
    Pause,
    Crash,
}

/// Schedules the faults of a run. The first hosts are the servers. Returns the time at which the faults are over, except for hosts that are
/// not back yet.
pub(super) fn schedule(fabric: &FabricHandle, rng: &mut Rng, faults: Faults, servers: u16) -> u64 {
    // Many runs are short, and most of a run's time passes without packets: half of the times are below 8 ms.
    let active_ns = 1 << rng.between(17, 29);
    if faults.packets {
        // Bytes that a fault changes would be found by the checksums of a real network.
        let most = FaultPlan { corrupt: Probability::NEVER, ..FaultPlan::RECOVERABLE_MOST };
        let plan = FaultPlan::draw(rng, &most);
        fabric.set_faults(plan);
    }
    let kinds = [
        (faults.packets, Kind::HeavyLoss),
        (faults.partitions, Kind::Partition),
        (faults.pauses, Kind::Pause),
        (faults.crashes && servers > 0, Kind::Crash),
    ];
    let kinds: Vec<Kind> =
        kinds.iter().filter_map(|&(is_on, kind)| is_on.then_some(kind)).collect();
    if kinds.is_empty() {
        return active_ns;
    }
    for _ in 0..rng.between(0, 8) {
        let kind = kinds[rng.below(kinds.len() as u64) as usize];
        let at_ns = rng.below(active_ns);
        for (after_ns, action) in actions(kind, rng, fabric.host_count() as u16, servers) {
            fabric.schedule(at_ns + after_ns, action);
        }
    }
    active_ns
}

/// Ends all faults but crashes, whose hosts come back by themselves.
pub(super) fn end(fabric: &FabricHandle) {
    fabric.set_faults(FaultPlan::NONE);
    fabric.apply(Action::HealAll);
}

fn actions(kind: Kind, rng: &mut Rng, hosts: u16, servers: u16) -> Vec<(u64, Action)> {
    let host = |rng: &mut Rng, count: u16| HostId(rng.below(u64::from(count)) as u16);
    let for_ns = 1 << rng.between(11, 26);
    match kind {
        Kind::HeavyLoss => {
            let loss = Probability::percent(rng.between(20, 100) as u32);
            let links = LinkSet::Host(host(rng, hosts));
            let lossy = FaultPlan { loss, ..FaultPlan::NONE };
            let faults = |plan| Action::Faults { links, plan };
            vec![(0, faults(lossy)), (for_ns, faults(FaultPlan::NONE))]
        }
        Kind::Partition => {
            let alone = host(rng, hosts);
            let to = (0..hosts).map(HostId).filter(|host| *host != alone && rng.below(3) > 0);
            let (from, to) = (vec![alone], to.collect());
            let one_way = rng.below(3) == 0;
            vec![(0, Action::Partition { from, to, one_way, for_ns })]
        }
        Kind::Pause => vec![(0, Action::Pause { host: host(rng, hosts), for_ns })],
        Kind::Crash => vec![(0, Action::Crash { host: host(rng, servers), down_ns: for_ns })],
    }
}
