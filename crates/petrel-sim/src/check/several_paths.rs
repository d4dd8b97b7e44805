//! Worlds in which sessions have several paths (`docs/wire-protocol.md` §14): networks with parallel ways of unequal
//! rates and delays, source ports, policies, and ways that are cut.

use petrel::endpoint::{Disorder, EndpointConfig, PathPolicy};
use petrel_proto::limits::WINDOW_PACKETS;

use super::nemesis::FaultAction;
use super::scenario::{FaultLevel, Path, Scenario};
use crate::fabric::{EcnConfig, HostId, LinkConfig, LinkId, NicConfig, SwitchConfig, Topology};
use crate::rng::{Probability, Rng};
use crate::transport::{Medium, SOURCE_PORTS_MAX, SimTransportConfig};

/// The ways between the two halves of the hosts.
#[derive(Clone, Debug)]
pub(super) struct Ways {
    /// A link for every way; the cut is of the link's cable.
    cables: Vec<LinkId>,
    /// How many ways faults may cut, always fewer than there are.
    cut_max: usize,
}

/// The most ways between the halves.
const WAYS_MAX: u64 = 6;

/// The longest time for which a way loses everything without a fault window: some timeouts of a call pass, and
/// most of its repetitions are left.
const BLACK_HOLE_NS_MAX: u64 = 300_000;

const CUTS_MAX: u64 = 8;

/// The source ports of an endpoint, and whether it announces them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Announcing {
    /// Announces nothing, as a peer that does not know the record.
    Nothing,
    /// Announces ports to peers that announce ports; the endpoint's own sessions have one path.
    Answers,
    /// With its own sessions too.
    Asks,
}

/// Marks from the second packet of a queue on: the few packets of these worlds fill no longer queues.
const EARLY: EcnConfig =
    EcnConfig { k_min_bytes: 1_000, k_max_bytes: 8_000, p_max: Probability::percent(50) };

impl Scenario {
    /// Makes this a world of several ways: two switches with half of the hosts each, and parallel links or spines
    /// between the switches.
    pub(super) fn make_ways(&mut self, rng: &mut Rng) {
        let (nic, mut switch, host_link) = self.parts;
        switch.ecn = match rng.below(3) {
            0 => None,
            1 => Some(EcnConfig::DCQCN),
            _ => Some(EARLY),
        };
        let are_equal = rng.below(2) == 0;
        let count = rng.between(1, WAYS_MAX);
        let ways = (0..count).map(|_| match are_equal {
            true => host_link,
            false => LinkConfig {
                rate_bps: host_link.rate_bps / [1, 1, 2, 4, 10][rng.below(5) as usize],
                delay_ns: host_link.delay_ns << rng.below(5),
            },
        });
        let ways: Vec<LinkConfig> = ways.collect();
        let has_spines = rng.below(2) == 0;
        let mut topology = Topology::new();
        let leaves = [(); 2].map(|()| topology.add_switch(switch));
        for host in 0..usize::from(self.hosts) {
            let added = topology.add_host(nic);
            topology.connect(added, leaves[host % 2], host_link);
        }
        let cables = ways.iter().map(|&way| match has_spines {
            false => topology.connect(leaves[0], leaves[1], way).0,
            true => {
                let spine = topology.add_switch(switch);
                topology.connect(leaves[0], spine, way);
                topology.connect(spine, leaves[1], way).0
            }
        });
        let cables: Vec<LinkId> = cables.collect();
        let slowest = LinkConfig {
            rate_bps: ways.iter().fold(host_link.rate_bps, |least, way| least.min(way.rate_bps)),
            delay_ns: ways.iter().fold(host_link.delay_ns, |most, way| most.max(way.delay_ns)),
        };
        let cut_max = rng.below(cables.len() as u64) as usize;
        self.path = Path::new(slowest, if has_spines { 4 } else { 3 });
        self.topology = topology;
        self.ways = Some(Ways { cables, cut_max });
    }

    /// Draws the source ports and the policy of an endpoint, in a world of several ways. A quarter of the endpoints
    /// has one port, as all endpoints with the medium of UDP.
    pub(super) fn draw_paths(
        &self,
        rng: &mut Rng,
        settings: &mut SimTransportConfig,
        config: &mut EndpointConfig,
    ) -> Announcing {
        if self.ways.is_none() {
            return Announcing::Nothing;
        }
        let ports = match rng.below(4) {
            0 => 1,
            1 => rng.between(2, 4),
            2 => rng.between(2, 16),
            _ => rng.between(2, u64::from(SOURCE_PORTS_MAX)),
        };
        let policy = PathPolicy::ALL[rng.below(PathPolicy::ALL.len() as u64) as usize];
        config.sessions.path_policy = match policy {
            PathPolicy::MpRdma(_) if ports % 2 == 0 => PathPolicy::MpRdma(Disorder::PAPER),
            _ => policy,
        };
        config.sessions.path_credits = match rng.below(4) {
            0 => config.sessions.credits,
            1 => rng.between(1, 300) as u16,
            _ => WINDOW_PACKETS as u16,
        };
        let is_old = rng.below(8) == 0;
        if ports > 1 {
            (settings.source_ports, settings.medium) = (ports as u8, Medium::Packets);
        }
        match policy {
            _ if is_old || ports == 1 => Announcing::Nothing,
            PathPolicy::Single => Announcing::Answers,
            _ => Announcing::Asks,
        }
    }

    /// Adds ways that are cut and mended again. A cut is silent, or the routes lead around it after a while. In worlds without fault
    /// windows a cut way loses everything for a short time only.
    pub(super) fn add_cuts(&self, rng: &mut Rng, actions: &mut Vec<(u64, FaultAction)>) {
        let Some(ways) = &self.ways else { return };
        if self.fault_level == FaultLevel::None || ways.cut_max == 0 {
            return;
        }
        for _ in 0..rng.between(1, CUTS_MAX) {
            let link = ways.cables[rng.below(ways.cut_max as u64) as usize];
            let is_long = self.fault_level == FaultLevel::Full && rng.below(2) == 0;
            let most_ns = if is_long { 1 << rng.between(15, 26) } else { BLACK_HOLE_NS_MAX };
            let lost_ns = rng.between(1_000, most_ns);
            let reconverges = rng.below(2) == 0;
            // Without new routes the cut ends with its losses.
            let for_ns = if reconverges { lost_ns + (1 << rng.between(12, 26)) } else { lost_ns };
            let reconverge_ns = reconverges.then_some(lost_ns);
            let at_ns = rng.below(self.active_ns);
            let hosts = if is_long { (0..self.hosts).map(HostId).collect() } else { Vec::new() };
            actions.push((at_ns, FaultAction::Cut { link, hosts, lost_ns, reconverge_ns }));
            actions.push((at_ns + for_ns, FaultAction::Mend { link, reconverge_ns }));
        }
        actions.sort_by_key(|&(at_ns, _)| at_ns);
    }
}

/// The parts of which a scenario's network is built.
pub(super) type Parts = (NicConfig, SwitchConfig, LinkConfig);

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fabric::{FabricConfig, FabricHandle, SimAddr};

    #[test]
    fn make_ways__hosts_reach_each_other_by_all_ways_that_are_left() {
        let mut cut = 0;
        for seed in 0..200 {
            let rng = &mut Rng::new(seed);
            let mut scenario = Scenario::draw(rng);
            scenario.make_ways(rng);
            let ways = scenario.ways.clone().unwrap();
            assert!(ways.cut_max < ways.cables.len(), "a way is left");
            let fabric = FabricHandle::new(&scenario.topology, FabricConfig::default(), 1).unwrap();
            let trip = |port| {
                let ends = [SimAddr::new(HostId(0), port), SimAddr::new(HostId(1), 1)];
                fabric.latency_ns(ends[0], ends[1]).unwrap()
            };
            let longest = (0..50).map(trip).max().unwrap();
            assert!(longest <= scenario.path.trip_ns(0), "{longest} {scenario:?}");
            cut += ways.cut_max;
        }
        assert!(cut > 100);
    }

    #[test]
    fn draw_paths__has_every_policy_and_all_numbers_of_ports() {
        let mut seen = std::collections::BTreeSet::new();
        let mut ports = std::collections::BTreeSet::new();
        for seed in 0..2_000 {
            let rng = &mut Rng::new(seed);
            let mut scenario = Scenario::draw(rng);
            scenario.make_ways(rng);
            let mut config = scenario.draw_endpoint(rng);
            let mut settings = SimTransportConfig::default();
            let announcing = scenario.draw_paths(rng, &mut settings, &mut config);
            seen.insert((config.sessions.path_policy.name(), format!("{announcing:?}")));
            ports.insert(settings.source_ports);
            assert!(settings.medium == Medium::Packets || settings.source_ports == 1);
        }
        // Each policy is announced and not announced.
        assert_eq!(seen.len(), 2 * PathPolicy::ALL.len(), "{seen:?}");
        assert_eq!(ports.len(), usize::from(SOURCE_PORTS_MAX));
    }
}
