//! The networks of the experiments with several paths.

use super::super::{Controller, LeafSpine};
use petrel_sim::fabric::{
    BufferPolicy, Forwarding, HostId, LinkConfig, LinkId, NicConfig, SwitchConfig, SwitchId,
    Topology,
};

/// A network of hosts with several paths between any two hosts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum PathNetwork {
    /// Hosts of 40 Gbit/s, and four links of 10 Gbit/s between their two switches.
    FourEqual,
    /// The same with links of 40 Gbit/s: one path alone carries a host.
    FourFull,
    /// The same with links of 20, 10, 5 and 5 Gbit/s.
    FourUnequal,
    /// The same with three links of 10 Gbit/s, and one at a fortieth of this rate.
    OneSlow,
    /// Five leaves with five hosts of 40 Gbit/s each, and four spines by links of 40 Gbit/s.
    Hosts25,
    /// Eight leaves with ten hosts of 40 Gbit/s each, and four spines by links of 100 Gbit/s: a quarter of
    /// the next.
    Hosts80,
    /// 32 leaves with ten hosts of 40 Gbit/s each, and four spines by links of 100 Gbit/s.
    Hosts320,
}

/// Rate of the hosts' links, in Gbit/s.
pub(super) const HOST_GBIT: u64 = 40;

/// Shared memory of a switch in bytes, as in `LeafSpine::cx4`.
const BUFFER_BYTES: u64 = 12_000_000;

/// Latency of a switch.
const SWITCH_NS: u64 = 400;

/// A built network.
#[derive(Clone, Debug)]
pub struct BuiltNetwork {
    /// Hosts, switches and links.
    pub topology: Topology,
    /// The hosts under each leaf.
    pub leaves: Vec<Vec<HostId>>,
    /// The links of the paths, away from the leaves.
    pub paths: Vec<Vec<LinkId>>,
    /// Bits per second of the paths of one leaf.
    pub path_bps: Vec<u64>,
    /// Half of the round trip between leaves, without sending times.
    pub one_way_ns: u64,
}

impl PathNetwork {
    /// Every network.
    pub const ALL: [Self; 7] = [
        Self::FourEqual,
        Self::FourFull,
        Self::FourUnequal,
        Self::OneSlow,
        Self::Hosts25,
        Self::Hosts80,
        Self::Hosts320,
    ];

    /// Returns the name: the rates of the paths in Gbit/s, or the number of hosts.
    pub const fn name(self) -> &'static str {
        match self {
            Self::FourEqual => "10/10/10/10",
            Self::FourFull => "40/40/40/40",
            Self::FourUnequal => "20/10/5/5",
            Self::OneSlow => "10/10/10/0.25",
            Self::Hosts25 => "25 hosts",
            Self::Hosts80 => "80 hosts",
            Self::Hosts320 => "320 hosts",
        }
    }

    /// Builds the network. Switches mark packets as the controller needs, by the rate of each port.
    pub fn build(self, controller: Controller) -> BuiltNetwork {
        let mut built = match self {
            Self::FourEqual => parallel([10_000; 4]),
            Self::FourFull => parallel([40_000; 4]),
            Self::FourUnequal => parallel([20_000, 10_000, 5_000, 5_000]),
            Self::OneSlow => parallel([10_000, 10_000, 10_000, 250]),
            // The round trip of the paper's testbed (12 µs), and of its simulation (16 µs).
            Self::Hosts25 => leaf_spine(5, 5, LinkConfig::gbit(40, 1_200)),
            Self::Hosts80 => leaf_spine(8, 10, LinkConfig::gbit(100, 1_700)),
            Self::Hosts320 => leaf_spine(32, 10, LinkConfig::gbit(100, 1_700)),
        };
        built.topology.set_ecn_by_rate(|bps| controller.marks((bps / 1_000_000_000).max(1)));
        built
    }
}

fn switch() -> SwitchConfig {
    SwitchConfig {
        buffer: BufferPolicy::Shared { bytes: BUFFER_BYTES, alpha_num: 8, alpha_den: 1 },
        ecn: None,
        forwarding: Forwarding::CutThrough,
        latency_ns: SWITCH_NS,
    }
}

/// Two switches with two hosts each, and parallel links of these Mbit/s between them. The round trip is 12 µs.
fn parallel(path_mbit: [u64; 4]) -> BuiltNetwork {
    const HOST_NS: u64 = 1_600;
    const PATH_NS: u64 = 2_000;
    let mut topology = Topology::new();
    let switches = [(); 2].map(|()| topology.add_switch(switch()));
    let leaves = switches.map(|switch| {
        let hosts = [(); 2].map(|()| topology.add_host(NicConfig::default()));
        let link = LinkConfig::gbit(HOST_GBIT, HOST_NS);
        for &host in &hosts {
            topology.connect(host, switch, link);
        }
        hosts.to_vec()
    });
    let path_bps = path_mbit.map(|mbit| mbit * 1_000_000);
    let paths = path_bps.map(|rate_bps| {
        let link = LinkConfig { rate_bps, delay_ns: PATH_NS };
        vec![topology.connect(switches[0], switches[1], link).0]
    });
    BuiltNetwork {
        topology,
        leaves: leaves.to_vec(),
        paths: paths.to_vec(),
        path_bps: path_bps.to_vec(),
        one_way_ns: 2 * HOST_NS + PATH_NS + 2 * SWITCH_NS,
    }
}

/// Leaves with hosts, joined by four spines; all links have one delay.
fn leaf_spine(leaves: u16, hosts_per_leaf: u16, spine_link: LinkConfig) -> BuiltNetwork {
    const SPINES: u16 = 4;
    let delay_ns = spine_link.delay_ns;
    let network = LeafSpine {
        leaves,
        hosts_per_leaf,
        spines: SPINES,
        links_per_spine: 1,
        nic: NicConfig::default(),
        host_link: LinkConfig::gbit(HOST_GBIT, delay_ns),
        spine_link,
        leaf: switch(),
        spine: switch(),
    };
    let topology = network.topology();
    let uplinks = |spine: u16| {
        let to = network.spine_switch(spine);
        let leaves = (0..leaves).map(SwitchId);
        leaves.flat_map(|leaf| topology.links_between(leaf, to)).collect()
    };
    let hosts = |leaf| (0..hosts_per_leaf).map(move |place| network.host(leaf, place)).collect();
    BuiltNetwork {
        leaves: (0..leaves).map(hosts).collect(),
        paths: (0..SPINES).map(uplinks).collect(),
        path_bps: vec![spine_link.rate_bps; usize::from(SPINES)],
        one_way_ns: 4 * delay_ns + 3 * SWITCH_NS,
        topology,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use petrel_sim::fabric::{FabricConfig, FabricHandle, SimAddr};

    #[test]
    fn build__hosts_of_different_leaves_are_as_far_apart_as_stated() {
        for network in PathNetwork::ALL {
            let built = network.build(Controller::Dcqcn);
            let fabric = FabricHandle::new(&built.topology, FabricConfig::default(), 1).unwrap();
            let (from, to) = (built.leaves[0][0], built.leaves.last().unwrap()[0]);
            let latency_ns = fabric.latency_ns(SimAddr::new(from, 1), SimAddr::new(to, 1));
            assert_eq!(latency_ns, Some(built.one_way_ns), "{}", network.name());
            assert_eq!((built.paths.len(), built.path_bps.len()), (4, 4));
        }
        let rtt_ns = |network: PathNetwork| 2 * network.build(Controller::None).one_way_ns;
        assert_eq!(
            (rtt_ns(PathNetwork::FourEqual), rtt_ns(PathNetwork::Hosts25)),
            (12_000, 12_000)
        );
        assert_eq!(rtt_ns(PathNetwork::Hosts320), 16_000);
    }

    #[test]
    fn build__the_fabric_is_the_papers() {
        let built = PathNetwork::Hosts320.build(Controller::None);
        assert_eq!(built.topology.host_count(), 320);
        assert!(built.leaves.iter().all(|hosts| hosts.len() == 10));
        // Full bisection: ten hosts of 40 Gbit/s, four links of 100.
        assert_eq!(built.path_bps.iter().sum::<u64>(), 10 * HOST_GBIT * 1_000_000_000);
        assert!(built.paths.iter().all(|links| links.len() == 32));
    }
}
