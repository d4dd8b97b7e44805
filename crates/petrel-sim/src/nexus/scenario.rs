//! The scenario of a nexus world: everything drawn before the run.

use std::net::SocketAddr;
use std::time::Duration;

use petrel::endpoint::AllowedTransports;
use petrel::nexus::Nexus;
use petrel::nexus::NexusBuilder;

use crate::net::{Conditions, Family, HostId};
use crate::rng::{Probability, Rng};

const MS: u64 = 1_000_000;

/// The control port of the first process of a host.
const CONTROL_PORT: u16 = 31_850;

/// The features of a world. Every seed disables about half of the features.
#[derive(Clone, Copy, Debug)]
pub(super) struct Features {
    pub(super) sessions: bool,
    pub(super) groups: bool,
    pub(super) stats_clients: bool,
    pub(super) drains: bool,
    /// Endpoints are added and removed, and links are requested before their endpoints exist.
    pub(super) changes: bool,
    pub(super) foreign_peers: bool,
    pub(super) cuts: bool,
    pub(super) crashes: bool,
    /// Threads of nexuses stop, or run late.
    pub(super) stalls: bool,
    /// Endpoints that stop, or do not answer.
    pub(super) hangs: bool,
    pub(super) shm: bool,
}

impl Features {
    fn draw(rng: &mut Rng) -> Self {
        let mut flip = || rng.below(2) == 0;
        Self {
            sessions: flip() || flip(),
            groups: flip(),
            stats_clients: flip(),
            drains: flip(),
            changes: flip(),
            foreign_peers: flip(),
            cuts: flip(),
            crashes: flip(),
            stalls: flip(),
            hangs: flip(),
            shm: flip(),
        }
    }
}

impl Features {
    /// Removes the faults of honest processes if `is_fault_free` is set.
    fn tamed(self, is_fault_free: bool) -> Self {
        match is_fault_free {
            true => Self {
                cuts: false,
                crashes: false,
                stalls: false,
                hangs: false,
                changes: false,
                ..self
            },
            false => self,
        }
    }
}

/// The UDP address settings of a process's endpoints.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum DataPort {
    /// At the process's address.
    Proper,
    /// At any address.
    Any,
    /// With a small fixed MTU.
    Small,
    /// With an MTU larger than any path's.
    TooLarge,
    /// At an address without connections.
    Elsewhere,
    /// At port zero.
    Zero,
    /// Without UDP.
    None,
}

impl DataPort {
    fn draw(rng: &mut Rng) -> Self {
        let rare = [Self::TooLarge, Self::Elsewhere, Self::Zero, Self::None];
        match rng.below(16) {
            0 => rare[rng.below(4) as usize],
            1 | 2 => Self::Small,
            3..=5 => Self::Any,
            _ => Self::Proper,
        }
    }

    fn is_usable(self) -> bool {
        matches!(self, Self::Proper | Self::Any | Self::Small)
    }
}

/// The settings of a process.
#[derive(Clone, Debug)]
pub(super) struct Plan {
    pub(super) host: HostId,
    pub(super) address: SocketAddr,
    pub(super) settings: NexusBuilder,
    pub(super) heartbeat_ns: u64,
    pub(super) step_ns: u64,
    pub(super) has_shm: bool,
    pub(super) can_udp: bool,
    pub(super) port: DataPort,
    /// The assumed and the real limit of descriptors.
    pub(super) descriptors_max: u64,
    pub(super) descriptors_real: u64,
    /// Events of one poll.
    pub(super) events_max: usize,
    pub(super) endpoints: u16,
    /// How often its thread begins a turn late, and the maximum delay.
    pub(super) late: Probability,
    pub(super) late_ns_max: u64,
}

/// The settings of a world.
#[derive(Clone, Debug)]
pub(super) struct Scenario {
    pub(super) features: Features,
    pub(super) conditions: Conditions,
    pub(super) hosts: usize,
    pub(super) plans: Vec<Plan>,
    pub(super) active_ns: u64,
    pub(super) requests: u64,
    /// Whether only foreign peers misbehave, and there is room for all: honest processes get everything they request.
    pub(super) is_fair: bool,
    /// Whether connection slots are scarce.
    pub(super) has_few_connections: bool,
    /// Whether idle connections time out at the end, which takes a minute.
    pub(super) waits_for_idle: bool,
}

impl Scenario {
    pub(super) fn draw(rng: &mut Rng) -> Self {
        // In a sixth of the worlds only foreign peers misbehave, to check the promises to honest processes.
        let is_fault_free = rng.below(6) == 0;
        let features = Features::draw(rng).tamed(is_fault_free);
        let heartbeat_ns = [5, 20, 50, 100, 250, 1_000][rng.below(6) as usize] * MS;
        let is_rough = rng.below(2) == 0;
        let is_scarce = rng.below(4) == 0 && !is_fault_free;
        let conditions = draw_conditions(rng, heartbeat_ns, is_rough, is_scarce);
        let count = if rng.below(8) == 0 { rng.between(5, 12) } else { rng.between(2, 4) } as usize;
        let hosts = rng.between(1, count as u64) as usize;
        let has_few_connections = rng.below(4) == 0;
        // Descriptors run out before the connection slots do.
        let is_poor = has_few_connections && rng.below(2) == 0 && !is_fault_free;
        let kind = (features, conditions.family);
        let limits = (has_few_connections, is_poor);
        let draw = |index| draw_plan(rng, index, hosts, kind, heartbeat_ns, limits);
        let plans = (0..count).map(draw).collect();
        let Features { cuts, crashes, stalls, hangs, changes, .. } = features;
        let is_fair = !(cuts || crashes || stalls || hangs || changes || is_scarce || is_poor);
        Self {
            features,
            conditions,
            hosts,
            plans,
            active_ns: heartbeat_ns * rng.between(8, 30),
            requests: rng.between(10, 50),
            is_fair,
            has_few_connections,
            waits_for_idle: heartbeat_ns >= 250 * MS && rng.below(2) == 0,
        }
    }

    pub(super) fn heartbeat_ns_max(&self) -> u64 {
        self.plans.iter().map(|plan| plan.heartbeat_ns).max().unwrap_or(0)
    }

    pub(super) fn step_ns_max(&self) -> u64 {
        self.plans.iter().map(|plan| plan.step_ns).max().unwrap_or(0)
    }
}

fn draw_conditions(
    rng: &mut Rng,
    heartbeat_ns: u64,
    is_rough: bool,
    is_scarce: bool,
) -> Conditions {
    let some = |rng: &mut Rng, parts| Probability::per_million(rng.below(parts) as u32);
    let scarce = if is_scarce { some(rng, 20_000) } else { Probability::NEVER };
    Conditions {
        delay_ns: (5_000, rng.between(20_000, heartbeat_ns / 20)),
        window_bytes: [256, 4 << 10, 64 << 10, 1 << 20][rng.below(4) as usize],
        choppy: if is_rough { some(rng, 900_000) } else { Probability::NEVER },
        harsh_resets: if is_rough { Probability::percent(50) } else { Probability::NEVER },
        scarce,
        scarce_shm: if rng.below(4) == 0 { some(rng, 300_000) } else { Probability::NEVER },
        family: [Family::V4, Family::V4, Family::Loopback, Family::V6][rng.below(4) as usize],
        machine_hosts: 1,
        mtu: 1_500,
    }
}

/// Draws the settings and the faults of a process.
fn draw_plan(
    rng: &mut Rng,
    index: usize,
    hosts: usize,
    (features, family): (Features, Family),
    heartbeat_ns: u64,
    (has_few_connections, is_poor): (bool, bool),
) -> Plan {
    let host = index % hosts;
    let address = SocketAddr::new(family.address(host), CONTROL_PORT + (index / hosts) as u16);
    let heartbeat_ns = heartbeat_ns * rng.between(1, 2);
    let step_ns = (heartbeat_ns * rng.between(4, 40)).clamp(50 * MS, 5_000 * MS);
    let has_shm = features.shm && rng.below(4) != 0;
    let allows_udp = rng.below(16) != 0 || !has_shm;
    let data_port = DataPort::draw(rng);
    let transports =
        AllowedTransports { udp: allows_udp, shm: has_shm, stream: false, verbs: false };
    let descriptors_max = if has_few_connections { rng.between(20, 60) } else { 4_096 };
    let settings = Nexus::builder()
        .listen(address)
        .transports(transports)
        .heartbeat(Duration::from_nanos(heartbeat_ns))
        .connect_timeout(Duration::from_nanos(step_ns));
    let settings = if family == Family::Loopback { settings } else { settings.insecure() };
    // Turns are late rarely and by much, or often and by less than a tick, which does not excuse a late peer.
    let (late, late_ns_max) = match rng.below(2) {
        0 => (Probability::percent(2), rng.between(1, 3 * heartbeat_ns / 2)),
        _ => (Probability::percent(50), heartbeat_ns / 4),
    };
    Plan {
        host,
        address,
        settings,
        heartbeat_ns,
        step_ns,
        has_shm,
        can_udp: allows_udp && data_port.is_usable(),
        port: data_port,
        descriptors_max,
        // The rest of the process may have used more descriptors than assumed.
        descriptors_real: if is_poor {
            rng.between(descriptors_max / 3, descriptors_max)
        } else {
            4_096
        },
        events_max: if rng.below(4) == 0 { rng.between(1, 4) as usize } else { 256 },
        endpoints: rng.between(1, 3) as u16,
        late: if features.stalls { late } else { Probability::NEVER },
        late_ns_max,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn draw__gives_worlds_of_every_kind() {
        let all: Vec<_> = (0..300).map(|seed| Scenario::draw(&mut Rng::new(seed))).collect();
        assert!(all.iter().all(|scenario| scenario.plans.len() >= 2));
        let count = |is: fn(&Scenario) -> bool| all.iter().filter(|scenario| is(scenario)).count();
        assert!(count(|scenario| scenario.is_fair) >= 20);
        assert!(count(|scenario| scenario.is_fair && scenario.has_few_connections) >= 3);
        assert!(count(|scenario| scenario.waits_for_idle) > 20);
        assert!(count(|scenario| scenario.plans.len() > 4) > 10);
        assert!(count(|scenario| scenario.features.cuts && scenario.features.crashes) > 30);
        assert!(count(|scenario| scenario.conditions.family == Family::V6) > 30);
    }
}
