//! Routing tables, and the choice among equal links.

use std::collections::{BTreeMap, VecDeque};

use super::packet::SimAddr;
use super::topology::{HostId, LinkId, NodeId, SwitchId, Topology, TopologyError};

const NOWHERE: u32 = u32::MAX;

/// The link out of each host and, for every switch, the links on the shortest paths to each host.
///
/// Paths have the fewest hops. A hash of the packet's addresses and ports chooses among equal paths,
/// including parallel links (ECMP): all packets of a pair of ports take one path.
#[derive(Debug)]
pub(super) struct Routes {
    uplinks: Vec<LinkId>,
    /// A row per switch, a column per host: an index into `groups`.
    group_of: Vec<u32>,
    groups: Vec<Group>,
    members: Vec<LinkId>,
}

/// Equal links: a range of `members`.
#[derive(Clone, Copy, Debug)]
struct Group {
    first: u32,
    count: u32,
}

impl Routes {
    /// Finds all paths. `uplinks` has the link of every host.
    pub(super) fn find(topology: &Topology, uplinks: Vec<LinkId>) -> Result<Self, TopologyError> {
        let mut routes =
            Self { uplinks, group_of: Vec::new(), groups: Vec::new(), members: Vec::new() };
        routes.find_again(topology, |_| true);
        routes.check_complete(topology)?;
        Ok(routes)
    }

    /// Finds all paths over the usable links. Hosts without a path stay unreachable.
    pub(super) fn find_again(&mut self, topology: &Topology, is_usable: impl Fn(LinkId) -> bool) {
        self.group_of.clear();
        self.group_of.resize(topology.switches.len() * self.uplinks.len(), NOWHERE);
        self.groups.clear();
        self.members.clear();
        let around = Around::new(topology, is_usable);
        let mut known = BTreeMap::new();
        for host in 0..self.uplinks.len() {
            self.add_destination(topology, &around, HostId(host as u16), &mut known);
        }
    }

    #[inline]
    pub(super) fn uplink(&self, host: HostId) -> LinkId {
        self.uplinks[usize::from(host.0)]
    }

    /// Returns the link by which `switch` sends to `destination`; `None` for an unknown host. `hash`
    /// chooses among equal links.
    #[inline]
    pub(super) fn next_hop(
        &self,
        switch: SwitchId,
        destination: HostId,
        hash: impl FnOnce() -> u64,
    ) -> Option<LinkId> {
        if usize::from(destination.0) >= self.uplinks.len() {
            return None;
        }
        let group = *self.groups.get(self.group_of[self.slot(switch, destination)] as usize)?;
        let chosen = match group.count {
            1 => 0,
            // The upper half of the product: a number below `count`.
            count => ((hash() >> 32) * u64::from(count)) >> 32,
        };
        Some(self.members[group.first as usize + chosen as usize])
    }

    fn slot(&self, switch: SwitchId, destination: HostId) -> usize {
        usize::from(switch.0) * self.uplinks.len() + usize::from(destination.0)
    }

    /// Adds the links of every switch to neighbours nearer to the destination.
    fn add_destination(
        &mut self,
        topology: &Topology,
        around: &Around,
        destination: HostId,
        known: &mut BTreeMap<Vec<LinkId>, u32>,
    ) {
        let hops = around.hops_to(topology, destination);
        for index in 0..topology.switches.len() {
            let switch = SwitchId(index as u16);
            let node = topology.node_index(switch.into());
            let Some(own) = hops[node] else { continue };
            let nearer = |link: &&LinkId| {
                let to = topology.links[link.0 as usize].to;
                hops[topology.node_index(to)].is_some_and(|hops| hops + 1 == own)
            };
            let links: Vec<LinkId> = around.outgoing[node].iter().filter(nearer).copied().collect();
            let slot = self.slot(switch, destination);
            self.group_of[slot] = *known.entry(links).or_insert_with_key(|links| self.group(links));
        }
    }

    fn group(&mut self, links: &[LinkId]) -> u32 {
        let (first, count) = (self.members.len() as u32, links.len() as u32);
        self.members.extend_from_slice(links);
        self.groups.push(Group { first, count });
        (self.groups.len() - 1) as u32
    }

    fn check_complete(&self, topology: &Topology) -> Result<(), TopologyError> {
        let ids = || (0..self.uplinks.len()).map(|index| HostId(index as u16));
        for (from, to) in ids().flat_map(|from| ids().map(move |to| (from, to))) {
            let reached = match topology.links[self.uplink(from).0 as usize].to {
                NodeId::Host(host) => host == to,
                NodeId::Switch(switch) => self.next_hop(switch, to, || 0).is_some(),
            };
            if from != to && !reached {
                return Err(TopologyError::Disconnected { from, to });
            }
        }
        Ok(())
    }
}

/// The links into and out of every node.
struct Around {
    incoming: Vec<Vec<LinkId>>,
    outgoing: Vec<Vec<LinkId>>,
}

impl Around {
    fn new(topology: &Topology, is_usable: impl Fn(LinkId) -> bool) -> Self {
        let nodes = topology.hosts.len() + topology.switches.len();
        let mut around =
            Self { incoming: vec![Vec::new(); nodes], outgoing: vec![Vec::new(); nodes] };
        let numbered = topology.links.iter().zip((0u32..).map(LinkId));
        for (link, id) in numbered.filter(|&(_, id)| is_usable(id)) {
            around.incoming[topology.node_index(link.to)].push(id);
            around.outgoing[topology.node_index(link.from)].push(id);
        }
        around
    }

    /// Returns the number of links between each node and the destination, by a breadth-first search
    /// outwards from the destination. Hosts end paths and never forward: no other host has a distance.
    fn hops_to(&self, topology: &Topology, destination: HostId) -> Vec<Option<u32>> {
        let mut hops = vec![None; self.incoming.len()];
        hops[topology.node_index(destination.into())] = Some(0u32);
        let mut frontier = VecDeque::from([NodeId::Host(destination)]);
        while let Some(node) = frontier.pop_front() {
            let index = topology.node_index(node);
            for &link in &self.incoming[index] {
                let from = topology.links[link.0 as usize].from;
                let neighbour = topology.node_index(from);
                if matches!(from, NodeId::Switch(_)) && hops[neighbour].is_none() {
                    hops[neighbour] = hops[index].map(|hops| hops + 1);
                    frontier.push_back(from);
                }
            }
        }
        hops
    }
}

/// The hash by which a switch chooses among equal paths. The hash covers addresses and ports (the protocol
/// is always UDP), with a different salt for every switch. With a common salt, a neighbour would choose a
/// single link for all packets from one switch.
#[inline]
pub(super) fn ecmp_hash(from: SimAddr, to: SimAddr, salt: u64) -> u64 {
    let hosts = u64::from(from.host.0) << 48 | u64::from(to.host.0) << 32;
    let ports = u64::from(from.port) << 16 | u64::from(to.port);
    // Two rounds of multiplying and folding, with the salt between them too. One round over a salted tuple
    // leaves two switches with hashes that are equal except for a fixed difference.
    let first = fold((hosts | ports) ^ salt, 0x9fb2_1c65_1e98_df25);
    fold(first.wrapping_add(salt), 0xd6e8_feb8_6659_fd93)
}

fn fold(word: u64, factor: u64) -> u64 {
    let product = u128::from(word ^ word >> 32) * u128::from(factor);
    (product >> 64) as u64 ^ product as u64
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fabric::config::{LinkConfig, NicConfig, SwitchConfig};

    fn nic() -> NicConfig {
        NicConfig::default()
    }

    #[test]
    fn routes__star_goes_through_the_switch() {
        let topology = Topology::star(3, nic(), SwitchConfig::default(), LinkConfig::default());
        let routes = topology.routes().unwrap();
        for host in 0..3 {
            let link = routes.next_hop(SwitchId(0), HostId(host), || 0).unwrap();
            assert_eq!(topology.links[link.0 as usize].to, NodeId::Host(HostId(host)));
        }
        assert_eq!(routes.next_hop(SwitchId(0), HostId(3), || 0), None);
    }

    #[test]
    fn routes__take_the_fewest_hops() {
        // h0 - s0 - s1 - s2 - h1, and a direct link s0 - s2.
        let mut topology = Topology::new();
        let hosts = [topology.add_host(nic()), topology.add_host(nic())];
        let switches: [SwitchId; 3] =
            std::array::from_fn(|_| topology.add_switch(SwitchConfig::default()));
        let link = LinkConfig::default();
        topology.connect(hosts[0], switches[0], link);
        topology.connect(switches[0], switches[1], link);
        topology.connect(switches[1], switches[2], link);
        let (direct, _) = topology.connect(switches[0], switches[2], link);
        topology.connect(switches[2], hosts[1], link);
        let routes = topology.routes().unwrap();
        assert_eq!(routes.next_hop(switches[0], hosts[1], || 0), Some(direct));
    }

    #[test]
    fn routes__equal_paths_share() {
        // h0 - s0 = (s1 | s2 by two links) = s3 - h1.
        let mut topology = Topology::new();
        let hosts = [topology.add_host(nic()), topology.add_host(nic())];
        let switches: [SwitchId; 4] =
            std::array::from_fn(|_| topology.add_switch(SwitchConfig::default()));
        let link = LinkConfig::default();
        topology.connect(hosts[0], switches[0], link);
        topology.connect(hosts[1], switches[3], link);
        let up = [(0, 1), (0, 2), (0, 2)]
            .map(|(a, b): (usize, usize)| topology.connect(switches[a], switches[b], link).0);
        topology.connect(switches[1], switches[3], link);
        topology.connect(switches[2], switches[3], link);
        let routes = topology.routes().unwrap();
        let chosen = |third: u64| {
            routes.next_hop(switches[0], hosts[1], || third * (u64::MAX / 3) + (1 << 33)).unwrap()
        };
        assert_eq!([chosen(0), chosen(1), chosen(2)], up);
        // Backwards there is one path.
        let back = routes.next_hop(switches[1], hosts[0], || u64::MAX).unwrap();
        assert_eq!(topology.links[back.0 as usize].to, switches[0].into());
    }

    #[test]
    fn find_again__leaves_out_links_and_takes_them_back() {
        // h0 - s0 = s1 - h1, with two links between the switches.
        let mut topology = Topology::new();
        let hosts = [topology.add_host(nic()), topology.add_host(nic())];
        let switches = [
            topology.add_switch(SwitchConfig::default()),
            topology.add_switch(SwitchConfig::default()),
        ];
        let link = LinkConfig::default();
        topology.connect(hosts[0], switches[0], link);
        topology.connect(hosts[1], switches[1], link);
        let parallel = [(); 2].map(|()| topology.connect(switches[0], switches[1], link).0);
        let mut routes = topology.routes().unwrap();
        let chosen = |routes: &Routes| {
            [0, u64::MAX].map(|hash| routes.next_hop(switches[0], hosts[1], || hash))
        };
        assert_eq!(chosen(&routes), parallel.map(Some));
        routes.find_again(&topology, |id| id != parallel[0]);
        assert_eq!(chosen(&routes), [Some(parallel[1]); 2]);
        routes.find_again(&topology, |id| !parallel.contains(&id));
        assert_eq!(chosen(&routes), [None; 2]);
        routes.find_again(&topology, |_| true);
        assert_eq!(chosen(&routes), parallel.map(Some));
    }
}
