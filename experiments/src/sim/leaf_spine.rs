//! Networks of two tiers.

use petrel_sim::fabric::{
    BufferPolicy, Forwarding, HostId, LinkConfig, NicConfig, SwitchConfig, SwitchId, Topology,
};

/// A network of two tiers: hosts under leaf switches ("top of rack"), and each leaf linked to each spine switch.
///
/// Hosts are numbered leaf by leaf, and switches leaves first.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LeafSpine {
    /// Leaf switches.
    pub leaves: u16,
    /// Hosts under each leaf.
    pub hosts_per_leaf: u16,
    /// Spine switches.
    pub spines: u16,
    /// Parallel links between a leaf and a spine.
    pub links_per_spine: u16,
    /// The NIC of each host.
    pub nic: NicConfig,
    /// From each host to its leaf.
    pub host_link: LinkConfig,
    /// From each leaf to each spine.
    pub spine_link: LinkConfig,
    /// Each leaf.
    pub leaf: SwitchConfig,
    /// Each spine.
    pub spine: SwitchConfig,
}

impl LeafSpine {
    /// The cluster "CX4" on which eRPC was measured (Kalia et al., NSDI 2019, Table 1 and §3.3). Five leaves have
    /// downlinks of 25 Gbit/s and five uplinks of 100 Gbit/s each to one spine; the cut-through switches have 12 MB of
    /// dynamic buffer. Full leaves have 40 hosts, for an oversubscription of 2:1; the paper uses 100 of the 200 hosts.
    ///
    /// The paper states 6 µs as the round trip between leaves, below 500 ns for a switch, and 2.9 µs for an
    /// RDMA read under one leaf. 450 ns for each link, including the NIC at its end, and 400 ns for each
    /// switch make 6.0 and 2.6 µs. The paper does not say how the memory is shared; alpha is 8, which
    /// allows a port 8/9 of the memory: the paper's text counts on almost all.
    pub fn cx4(hosts_per_leaf: u16) -> Self {
        let switch = SwitchConfig {
            buffer: BufferPolicy::Shared { bytes: 12_000_000, alpha_num: 8, alpha_den: 1 },
            ecn: None,
            forwarding: Forwarding::CutThrough,
            latency_ns: 400,
        };
        Self {
            leaves: 5,
            hosts_per_leaf,
            spines: 1,
            links_per_spine: 5,
            nic: NicConfig::default(),
            host_link: LinkConfig::gbit(25, 450),
            spine_link: LinkConfig::gbit(100, 450),
            leaf: switch,
            spine: switch,
        }
    }

    /// Changes the rate of the spine links so that the hosts of a leaf can offer `down` for each `up` that
    /// its uplinks carry: 2 and 1 for an oversubscription of 2:1.
    ///
    /// # Panics
    /// If `down` is zero.
    #[must_use]
    pub fn oversubscribed(mut self, down: u64, up: u64) -> Self {
        assert!(down > 0, "an oversubscription of 0:{up} needs links without end");
        let uplinks = u128::from(self.uplink_count()) * u128::from(down);
        let rate = self.down_bps() * u128::from(up) / uplinks.max(1);
        self.spine_link.rate_bps = u64::try_from(rate).unwrap_or(u64::MAX);
        self
    }

    /// Returns the load that the hosts of a leaf can offer, divided by the capacity of its uplinks.
    pub fn oversubscription(&self) -> f64 {
        let up_bps = u128::from(self.uplink_count()) * u128::from(self.spine_link.rate_bps);
        self.down_bps() as f64 / up_bps as f64
    }

    /// Builds the topology.
    pub fn topology(&self) -> Topology {
        let mut topology = Topology::new();
        let leaves: Vec<SwitchId> =
            (0..self.leaves).map(|_| topology.add_switch(self.leaf)).collect();
        let spines: Vec<SwitchId> =
            (0..self.spines).map(|_| topology.add_switch(self.spine)).collect();
        for &leaf in &leaves {
            for _ in 0..self.hosts_per_leaf {
                let host = topology.add_host(self.nic);
                topology.connect(host, leaf, self.host_link);
            }
            for &spine in &spines {
                for _ in 0..self.links_per_spine {
                    topology.connect(leaf, spine, self.spine_link);
                }
            }
        }
        topology
    }

    /// Returns the number of hosts.
    pub fn host_count(&self) -> usize {
        usize::from(self.leaves) * usize::from(self.hosts_per_leaf)
    }

    /// Returns a host, by leaf and place.
    pub fn host(&self, leaf: u16, place: u16) -> HostId {
        HostId(leaf.saturating_mul(self.hosts_per_leaf).saturating_add(place))
    }

    /// Returns the leaf of a host.
    pub fn leaf_of(&self, host: HostId) -> SwitchId {
        SwitchId(host.0 / self.hosts_per_leaf.max(1))
    }

    /// Returns a leaf.
    pub fn leaf_switch(&self, leaf: u16) -> SwitchId {
        SwitchId(leaf)
    }

    /// Returns a spine.
    pub fn spine_switch(&self, spine: u16) -> SwitchId {
        SwitchId(self.leaves.saturating_add(spine))
    }

    fn uplink_count(&self) -> u32 {
        u32::from(self.spines) * u32::from(self.links_per_spine)
    }

    fn down_bps(&self) -> u128 {
        u128::from(self.hosts_per_leaf) * u128::from(self.host_link.rate_bps)
    }
}

#[cfg(test)]
mod tests {
    use petrel_sim::fabric::{FabricConfig, FabricHandle};

    use super::*;

    #[test]
    fn cx4__is_the_papers() {
        let cx4 = LeafSpine::cx4(40);
        assert_eq!((cx4.host_count(), cx4.oversubscription()), (200, 2.0));
        let topology = cx4.topology();
        assert_eq!(topology.host_count(), 200);
        let uplinks = |leaf| topology.links_between(cx4.leaf_switch(leaf), cx4.spine_switch(0));
        assert_eq!((0..5).map(|leaf| uplinks(leaf).len()).sum::<usize>(), 25);
        assert!(FabricHandle::new(&topology, FabricConfig::default(), 1).is_ok());
    }

    #[test]
    fn oversubscribed__changes_the_uplinks() {
        let half = LeafSpine::cx4(20).oversubscribed(2, 1);
        assert_eq!((half.spine_link.rate_bps, half.oversubscription()), (50_000_000_000, 2.0));
        assert_eq!(half.oversubscribed(1, 3).oversubscription(), 1.0 / 3.0);
    }

    #[test]
    fn host__and_leaf_of_agree_with_the_links() {
        let network = LeafSpine { spines: 2, ..LeafSpine::cx4(3) };
        let topology = network.topology();
        for leaf in 0..5 {
            for place in 0..3 {
                let host = network.host(leaf, place);
                assert_eq!(network.leaf_of(host), network.leaf_switch(leaf));
                assert_eq!(topology.links_between(host, network.leaf_switch(leaf)).len(), 1);
            }
        }
        assert_eq!(network.spine_switch(1), SwitchId(6));
    }
}
