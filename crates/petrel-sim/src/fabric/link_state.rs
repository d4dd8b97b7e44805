//! Links that change during a run: taken down and up, with another rate or delay, and routes that follow.

use super::act::LinkSet;
use super::config::LinkConfig;
use super::packet::{PacketRef, SimAddr};
use super::routes::ecmp_hash;
use super::stats::DropReason;
use super::topology::{LinkId, NodeId};
use super::{Event, Fabric, Place};

impl Fabric {
    /// Returns the links of a set; none for links that do not exist.
    pub(super) fn links_of(&self, links: LinkSet) -> Vec<LinkId> {
        let is_meant = |index: u32| match links {
            LinkSet::All => true,
            LinkSet::One(link) => link.0 == index,
            // `Topology::connect` adds both directions of a cable in a row.
            LinkSet::Cable(link) => link.0 / 2 == index / 2,
            LinkSet::Host(host) => {
                let link = &self.links[index as usize];
                [link.from, link.to].contains(&NodeId::Host(host))
            }
        };
        (0..self.links.len() as u32).filter(|&index| is_meant(index)).map(LinkId).collect()
    }

    pub(super) fn set_links_up(&mut self, links: LinkSet, is_up: bool, reconverge_ns: Option<u64>) {
        for link in self.links_of(links) {
            self.links[link.0 as usize].is_up = is_up;
        }
        let state = if is_up { "UP" } else { "DOWN" };
        self.note(format_args!("LINK {links:?} {state}, routes after {reconverge_ns:?} ns"));
        if let Some(after_ns) = reconverge_ns {
            self.queue.push(self.now.plus_ns(after_ns), Event::Reconverge(links));
        }
    }

    /// Makes the routes follow the present state of some links. All switches change at once.
    pub(super) fn reconverge(&mut self, links: LinkSet) {
        for link in self.links_of(links) {
            let link = &mut self.links[link.0 as usize];
            link.is_routed = link.is_up;
        }
        let links_now = &self.links;
        self.routes.find_again(&self.topology, |link| links_now[link.0 as usize].is_routed);
        self.note(format_args!("ROUTES follow {links:?}"));
    }

    pub(super) fn shape_links(&mut self, links: LinkSet, config: LinkConfig) {
        for link in self.links_of(links) {
            self.links[link.0 as usize].set_config(config);
        }
        self.note(format_args!("SHAPE {links:?} {config:?}"));
    }

    /// Drops a packet that would have to cross a link that is down.
    pub(super) fn drop_on_dead_link(&mut self, id: LinkId, packet: PacketRef) {
        self.links[id.0 as usize].stats.dropped_down += 1;
        self.drop_packet(packet, DropReason::LinkDown, Place::Link(id));
    }

    /// Returns the links that packets between two addresses take at present; `None` without a path.
    pub(super) fn route(&self, from: SimAddr, to: SimAddr) -> Option<Vec<LinkId>> {
        let known = |at: SimAddr| usize::from(at.host.0) < self.hosts.len();
        if !known(from) || !known(to) || from.host == to.host {
            return None;
        }
        let mut links = vec![self.routes.uplink(from.host)];
        loop {
            let last = *links.last()?;
            match self.links[last.0 as usize].to {
                NodeId::Host(host) => return (host == to.host).then_some(links),
                NodeId::Switch(switch) => {
                    let salt = self.switches[usize::from(switch.0)].salt;
                    let hash = || ecmp_hash(from, to, salt);
                    links.push(self.routes.next_hop(switch, to.host, hash)?);
                }
            }
        }
    }
}
