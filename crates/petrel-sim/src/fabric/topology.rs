//! Hosts, switches and the links between them.

use super::config::{BufferPolicy, EcnConfig, LinkConfig, NicConfig, SwitchConfig};
use super::routes::Routes;

/// Maximum number of hosts in one fabric: the routing tables of all switches then stay within a few megabytes.
pub const HOSTS_MAX: usize = 4_096;
/// Maximum number of switches in one fabric.
pub const SWITCHES_MAX: usize = 1_024;

/// A host, numbered from 0 in the order of [`Topology::add_host`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct HostId(pub u16);

/// A switch, numbered from 0 in the order of [`Topology::add_switch`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct SwitchId(pub u16);

/// One direction of a link.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct LinkId(pub u32);

/// Either end of a link.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum NodeId {
    /// A host.
    Host(HostId),
    /// A switch.
    Switch(SwitchId),
}

impl From<HostId> for NodeId {
    fn from(host: HostId) -> Self {
        Self::Host(host)
    }
}

impl From<SwitchId> for NodeId {
    fn from(switch: SwitchId) -> Self {
        Self::Switch(switch)
    }
}

impl std::fmt::Display for HostId {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "h{}", self.0)
    }
}

impl std::fmt::Display for NodeId {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Host(host) => host.fmt(f),
            Self::Switch(SwitchId(index)) => write!(f, "s{index}"),
        }
    }
}

/// The reason for which a topology cannot be used.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum TopologyError {
    /// A host needs a NIC with a link.
    #[error("{host} has {links} links; join each host to exactly one host or switch")]
    NotOneLink {
        /// The host.
        host: HostId,
        /// The number of its links.
        links: usize,
    },
    /// One host cannot be reached from another.
    #[error("there is no path from {from} to {to}; add the missing links")]
    Disconnected {
        /// The source host.
        from: HostId,
        /// The unreachable host.
        to: HostId,
    },
    /// A link names a node that was never added, connects a node with itself, or has no rate.
    #[error("the link between {a} and {b} is impossible: unknown node, same node or zero rate")]
    BadLink {
        /// One end.
        a: NodeId,
        /// The other end.
        b: NodeId,
    },
    /// More nodes than a fabric may have.
    #[error("{hosts} hosts and {switches} switches; at most {HOSTS_MAX} and {SWITCHES_MAX}")]
    TooLarge {
        /// Requested number of hosts.
        hosts: usize,
        /// Requested number of switches.
        switches: usize,
    },
    /// The settings of a switch are contradictory.
    #[error("s{} cannot be: {problem}", switch.0)]
    BadSwitch {
        /// The switch.
        switch: SwitchId,
        /// The problem and its remedy.
        problem: &'static str,
    },
    /// The marking rule of an output port is impossible.
    #[error("the port of link {} cannot mark: {problem}", link.0)]
    BadPort {
        /// The link behind the port.
        link: LinkId,
        /// The problem and its remedy.
        problem: &'static str,
    },
}

/// Hosts, switches and links, from which a fabric is made.
#[derive(Clone, Debug, Default)]
pub struct Topology {
    pub(super) hosts: Vec<NicConfig>,
    pub(super) switches: Vec<SwitchConfig>,
    pub(super) links: Vec<Direction>,
}

/// One direction of a link in the topology.
#[derive(Clone, Copy, Debug)]
pub(super) struct Direction {
    pub(super) from: NodeId,
    pub(super) to: NodeId,
    pub(super) config: LinkConfig,
    pub(super) marking: Marking,
}

/// Which marking rule the port in front of a link has.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum Marking {
    /// The rule of the port's switch.
    #[default]
    OfSwitch,
    /// A rule of the port's own; `None` for no marks.
    Own(Option<EcnConfig>),
}

impl Topology {
    /// Makes an empty topology.
    pub fn new() -> Self {
        Self::default()
    }

    /// Makes two hosts, back to back.
    pub fn pair(nic: NicConfig, link: LinkConfig) -> Self {
        let mut topology = Self::new();
        let (a, b) = (topology.add_host(nic), topology.add_host(nic));
        topology.connect(a, b, link);
        topology
    }

    /// Makes `host_count` hosts around one switch.
    pub fn star(host_count: usize, nic: NicConfig, switch: SwitchConfig, link: LinkConfig) -> Self {
        let mut topology = Self::new();
        let centre = topology.add_switch(switch);
        for _ in 0..host_count {
            let host = topology.add_host(nic);
            topology.connect(host, centre, link);
        }
        topology
    }

    /// Adds a host.
    pub fn add_host(&mut self, nic: NicConfig) -> HostId {
        self.hosts.push(nic);
        HostId(saturating_index(self.hosts.len()))
    }

    /// Adds a switch.
    pub fn add_switch(&mut self, switch: SwitchConfig) -> SwitchId {
        self.switches.push(switch);
        SwitchId(saturating_index(self.switches.len()))
    }

    /// Links two nodes. Returns the directions from `a` to `b` and from `b` to `a`.
    pub fn connect(
        &mut self,
        a: impl Into<NodeId>,
        b: impl Into<NodeId>,
        config: LinkConfig,
    ) -> (LinkId, LinkId) {
        let (a, b) = (a.into(), b.into());
        let first = self.links.len() as u32;
        let marking = Marking::OfSwitch;
        self.links.push(Direction { from: a, to: b, config, marking });
        self.links.push(Direction { from: b, to: a, config, marking });
        (LinkId(first), LinkId(first + 1))
    }

    /// Gives the output port in front of a link a marking rule of its own, in place of its switch's;
    /// `None` for no marks.
    ///
    /// # Panics
    /// If the link was never added.
    pub fn set_ecn(&mut self, link: LinkId, ecn: Option<EcnConfig>) {
        self.links[link.0 as usize].marking = Marking::Own(ecn);
    }

    /// Gives every output port of every switch the rule for its link's rate, in bits per second.
    pub fn set_ecn_by_rate(&mut self, rule: impl Fn(u64) -> Option<EcnConfig>) {
        for link in &mut self.links {
            if let NodeId::Switch(_) = link.from {
                link.marking = Marking::Own(rule(link.config.rate_bps));
            }
        }
    }

    /// Returns the links from a node directly to a second node, oldest first.
    pub fn links_between(&self, from: impl Into<NodeId>, to: impl Into<NodeId>) -> Vec<LinkId> {
        let ends = (from.into(), to.into());
        let numbered = self.links.iter().zip((0u32..).map(LinkId));
        numbered.filter(|(link, _)| (link.from, link.to) == ends).map(|(_, id)| id).collect()
    }

    /// Returns the marking rule of the port in front of a link. A host's NIC never marks.
    pub(super) fn ecn_of(&self, direction: &Direction) -> Option<EcnConfig> {
        match (direction.from, direction.marking) {
            (NodeId::Host(_), _) => None,
            (NodeId::Switch(_), Marking::Own(ecn)) => ecn,
            (NodeId::Switch(switch), Marking::OfSwitch) => self.switches[usize::from(switch.0)].ecn,
        }
    }

    /// Returns the number of hosts.
    pub fn host_count(&self) -> usize {
        self.hosts.len()
    }

    /// Checks everything, and finds the routes.
    pub(super) fn routes(&self) -> Result<Routes, TopologyError> {
        self.check_size()?;
        self.check_links()?;
        self.check_switches()?;
        self.check_ports()?;
        Routes::find(self, self.uplinks()?)
    }

    fn check_switches(&self) -> Result<(), TopologyError> {
        for (index, switch) in self.switches.iter().enumerate() {
            if let Some(problem) = problem_of(switch) {
                return Err(TopologyError::BadSwitch { switch: SwitchId(index as u16), problem });
            }
        }
        Ok(())
    }

    /// Checks the marking rules of output ports; only switches may mark.
    fn check_ports(&self) -> Result<(), TopologyError> {
        for (direction, link) in self.links.iter().zip((0u32..).map(LinkId)) {
            let problem = match (direction.from, direction.marking) {
                (_, Marking::OfSwitch) => None,
                (NodeId::Host(_), Marking::Own(_)) => {
                    Some("the NIC of a host marks nothing; set the rule of a switch's port")
                }
                (NodeId::Switch(_), Marking::Own(ecn)) => ecn.and_then(problem_of_ecn),
            };
            if let Some(problem) = problem {
                return Err(TopologyError::BadPort { link, problem });
            }
        }
        Ok(())
    }

    fn check_size(&self) -> Result<(), TopologyError> {
        let (hosts, switches) = (self.hosts.len(), self.switches.len());
        if hosts > HOSTS_MAX || switches > SWITCHES_MAX {
            return Err(TopologyError::TooLarge { hosts, switches });
        }
        Ok(())
    }

    fn check_links(&self) -> Result<(), TopologyError> {
        let known = |node| match node {
            NodeId::Host(HostId(index)) => usize::from(index) < self.hosts.len(),
            NodeId::Switch(SwitchId(index)) => usize::from(index) < self.switches.len(),
        };
        let possible = |link: &&Direction| {
            known(link.from) && known(link.to) && link.from != link.to && link.config.rate_bps > 0
        };
        match self.links.iter().find(|link| !possible(link)) {
            Some(link) => Err(TopologyError::BadLink { a: link.from, b: link.to }),
            None => Ok(()),
        }
    }

    fn uplinks(&self) -> Result<Vec<LinkId>, TopologyError> {
        let mut uplinks = vec![(LinkId(0), 0usize); self.hosts.len()];
        for (index, link) in self.links.iter().enumerate() {
            if let NodeId::Host(host) = link.from {
                let (uplink, count) = &mut uplinks[usize::from(host.0)];
                (*uplink, *count) = (LinkId(index as u32), *count + 1);
            }
        }
        match uplinks.iter().position(|&(_, count)| count != 1) {
            Some(host) => {
                let links = uplinks[host].1;
                Err(TopologyError::NotOneLink { host: HostId(host as u16), links })
            }
            None => Ok(uplinks.into_iter().map(|(uplink, _)| uplink).collect()),
        }
    }

    /// Returns the index of a node: hosts first, then switches.
    pub(super) fn node_index(&self, node: NodeId) -> usize {
        match node {
            NodeId::Host(HostId(index)) => usize::from(index),
            NodeId::Switch(SwitchId(index)) => self.hosts.len() + usize::from(index),
        }
    }
}

fn problem_of(switch: &SwitchConfig) -> Option<&'static str> {
    if let BufferPolicy::Shared { alpha_num, alpha_den, .. } = switch.buffer
        && (alpha_num == 0 || alpha_den == 0)
    {
        return Some("alpha must be above zero, and finite");
    }
    switch.ecn.and_then(problem_of_ecn)
}

/// Returns the problem with a marking rule.
fn problem_of_ecn(ecn: EcnConfig) -> Option<&'static str> {
    let is_upside_down = ecn.k_min_bytes > ecn.k_max_bytes;
    is_upside_down.then_some("k_min_bytes must not be above k_max_bytes")
}

/// Returns the index of the newest of `count` items; `Topology::routes` refuses numbers beyond `u16`.
fn saturating_index(count: usize) -> u16 {
    u16::try_from(count - 1).unwrap_or(u16::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fabric::config::EcnConfig;

    fn nic() -> NicConfig {
        NicConfig::default()
    }

    #[test]
    fn routes__refuse_what_cannot_work() {
        let mut lonely = Topology::new();
        let host = lonely.add_host(nic());
        assert_eq!(lonely.routes().unwrap_err(), TopologyError::NotOneLink { host, links: 0 });

        let mut islands = Topology::new();
        for _ in 0..2 {
            let (a, b) = (islands.add_host(nic()), islands.add_host(nic()));
            islands.connect(a, b, LinkConfig::default());
        }
        let apart = TopologyError::Disconnected { from: HostId(0), to: HostId(2) };
        assert_eq!(islands.routes().unwrap_err(), apart);

        let mut unknown = Topology::new();
        let host = unknown.add_host(nic());
        unknown.connect(host, SwitchId(9), LinkConfig::default());
        assert!(matches!(unknown.routes(), Err(TopologyError::BadLink { .. })));

        let mut large = Topology::new();
        for _ in 0..=HOSTS_MAX {
            large.add_host(nic());
        }
        assert!(matches!(large.routes(), Err(TopologyError::TooLarge { .. })));
    }

    #[test]
    fn routes__no_host_forwards() {
        // h0 - s0 - h1 - s1 - h2 would need h1 to forward, and h1 has two links.
        let mut topology = Topology::new();
        let hosts: [HostId; 3] = std::array::from_fn(|_| topology.add_host(nic()));
        let switches = [
            topology.add_switch(SwitchConfig::default()),
            topology.add_switch(SwitchConfig::default()),
        ];
        let link = LinkConfig::default();
        topology.connect(hosts[0], switches[0], link);
        topology.connect(hosts[1], switches[0], link);
        topology.connect(hosts[1], switches[1], link);
        topology.connect(hosts[2], switches[1], link);
        assert!(matches!(topology.routes(), Err(TopologyError::NotOneLink { links: 2, .. })));
    }

    #[test]
    fn routes__refuse_impossible_switches() {
        let refused = |switch| {
            let topology = Topology::star(2, nic(), switch, LinkConfig::default());
            matches!(topology.routes(), Err(TopologyError::BadSwitch { .. }))
        };
        let shared = |alpha_num, alpha_den| SwitchConfig {
            buffer: BufferPolicy::Shared { bytes: 1 << 20, alpha_num, alpha_den },
            ..SwitchConfig::default()
        };
        assert!(refused(shared(1, 0)) && refused(shared(0, 1)) && !refused(shared(1, 2)));
        let ecn = EcnConfig { k_min_bytes: 2, k_max_bytes: 1, ..EcnConfig::DCQCN };
        assert!(refused(SwitchConfig { ecn: Some(ecn), ..SwitchConfig::default() }));
    }

    #[test]
    fn set_ecn__is_for_ports_of_switches() {
        let star = || Topology::star(2, nic(), SwitchConfig::default(), LinkConfig::default());
        let (to_switch, to_host) = (LinkId(0), LinkId(1));
        let with = |link, ecn| {
            let mut topology = star();
            topology.set_ecn(link, Some(ecn));
            topology.routes().err()
        };
        assert_eq!(with(to_host, EcnConfig::DCQCN), None);
        let refused = |error| matches!(error, Some(TopologyError::BadPort { .. }));
        assert!(refused(with(to_switch, EcnConfig::DCQCN)));
        assert!(refused(with(
            to_host,
            EcnConfig { k_min_bytes: 2, k_max_bytes: 1, ..EcnConfig::DCQCN }
        )));
    }

    #[test]
    fn ecn_of__is_the_switch_s_unless_the_port_has_its_own() {
        let switch = SwitchConfig { ecn: Some(EcnConfig::DCQCN), ..SwitchConfig::default() };
        let mut topology = Topology::star(2, nic(), switch, LinkConfig::default());
        let own = EcnConfig { k_min_bytes: 7, ..EcnConfig::DCQCN };
        topology.set_ecn(LinkId(1), Some(own));
        let rules: Vec<_> = topology.links.iter().map(|link| topology.ecn_of(link)).collect();
        assert_eq!(rules, [None, Some(own), None, Some(EcnConfig::DCQCN)]);
        topology.set_ecn(LinkId(1), None);
        assert_eq!(topology.ecn_of(&topology.links[1]), None);
    }
}
