//! Multicast: subscriptions of ports to senders, and the copies that switches make.
//!
//! A group is an address of a host that does not exist. The packets take a single link to the switch. The switch
//! sends a copy out of every port behind which a host listens to the sender (RFC 4607), and a host delivers
//! a copy to every listening port. Networks of several switches carry no groups: they would need trees.

use std::net::SocketAddr;

use super::packet::{Head, PacketRef, SimAddr};
use super::stats::DropReason;
use super::topology::{HostId, LinkId, SwitchId};
use super::{Fabric, Place};

/// The host of all groups: real host numbers are smaller.
const GROUPS: HostId = HostId(u16::MAX);

/// The port of the first group. Transports keep lower ports in tables that groups would make large.
const PORT_FIRST: u16 = 1_024;

const GROUPS_MAX: usize = 4_096;

/// All groups, and their listeners.
#[derive(Debug, Default)]
pub(crate) struct Multicast {
    /// The addresses of the groups, by number.
    groups: Vec<SocketAddr>,
    listeners: Vec<Listener>,
    /// Hosts to which the switch passes no multicast.
    blocked: Vec<HostId>,
}

/// A listener to a sender; one entry for each join.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Listener {
    at: SimAddr,
    group: SimAddr,
    from: SimAddr,
}

impl Multicast {
    /// Returns the fabric's address of a group; `None` for other than multicast addresses, or above the limit.
    pub(crate) fn group(&mut self, address: SocketAddr) -> Option<SimAddr> {
        if !address.ip().is_multicast() {
            return None;
        }
        let known = self.groups.iter().position(|group| *group == address);
        let number = known.or_else(|| {
            let is_new = self.groups.len() < GROUPS_MAX;
            is_new.then(|| self.groups.push(address))?;
            Some(self.groups.len() - 1)
        })?;
        Some(SimAddr::new(GROUPS, PORT_FIRST + number as u16))
    }

    pub(crate) fn join(&mut self, at: SimAddr, group: SimAddr, from: SimAddr) {
        self.listeners.push(Listener { at, group, from });
    }

    pub(crate) fn leave(&mut self, at: SimAddr, group: SimAddr, from: SimAddr) {
        let gone = Listener { at, group, from };
        if let Some(place) = self.listeners.iter().position(|listener| *listener == gone) {
            self.listeners.remove(place);
        }
    }

    /// Removes the listeners of a closed port.
    pub(super) fn close(&mut self, at: SimAddr) {
        self.listeners.retain(|listener| listener.at != at);
    }

    /// Removes the listeners of a crashed host.
    pub(super) fn close_host(&mut self, host: HostId) {
        self.listeners.retain(|listener| listener.at.host != host);
    }

    /// Sets whether the switch withholds multicast from a host.
    pub(crate) fn set_multicast_blocked(&mut self, host: HostId, is_blocked: bool) {
        self.blocked.retain(|blocked| *blocked != host);
        self.blocked.extend(is_blocked.then_some(host));
    }

    /// Returns the number of listeners; a port counts once for each join.
    pub(crate) fn listener_count(&self) -> usize {
        self.listeners.len()
    }

    /// Returns the ports that get a packet, without duplicates, in order of address.
    fn receivers(&self, head: &Head) -> Vec<SimAddr> {
        let hears = |listener: &&Listener| {
            (listener.group, listener.from) == (head.to, head.from)
                && !self.blocked.contains(&listener.at.host)
        };
        let mut ports: Vec<_> = self.listeners.iter().filter(hears).map(|it| it.at).collect();
        ports.sort_unstable();
        ports.dedup();
        ports
    }
}

/// Returns true if packets to this address go to a group.
pub(super) fn is_group(to: SimAddr) -> bool {
    to.host == GROUPS
}

impl Fabric {
    /// Returns true if packets to this address go to a group.
    pub(crate) fn is_group(&self, to: SimAddr) -> bool {
        is_group(to)
    }

    /// Sends a copy of a group's packet out of each port of the switch behind which a host listens.
    pub(super) fn replicate(&mut self, id: SwitchId, packet: PacketRef) {
        if self.switches.len() > 1 {
            return self.drop_packet(packet, DropReason::NoRoute, Place::Switch(id));
        }
        let receivers = self.multicast.receivers(self.packets.head(&packet));
        let mut ports: Vec<LinkId> = receivers
            .iter()
            .filter_map(|receiver| self.routes.next_hop(id, receiver.host, || 0))
            .collect();
        ports.sort_unstable();
        ports.dedup();
        let Some(last) = ports.pop() else {
            return self.drop_packet(packet, DropReason::NoRoute, Place::Switch(id));
        };
        for port in ports {
            let copy = self.copy(&packet);
            self.forward_by(id, port, copy);
        }
        self.forward_by(id, last, packet);
    }

    /// Delivers a group's packet to each listening port of a host.
    pub(super) fn deliver_to_group(&mut self, host: HostId, packet: PacketRef) {
        let mut receivers = self.multicast.receivers(self.packets.head(&packet));
        receivers.retain(|receiver| receiver.host == host);
        let Some(last) = receivers.pop() else {
            return self.drop_packet(packet, DropReason::NoPort, Place::Host(host));
        };
        for receiver in receivers {
            let copy = self.copy(&packet);
            self.packets.head_mut(&copy).to = receiver;
            self.deliver(host, copy);
        }
        self.packets.head_mut(&packet).to = last;
        self.deliver(host, packet);
    }

    fn copy(&mut self, packet: &PacketRef) -> PacketRef {
        self.stats.replicated += 1;
        self.packets.duplicate(packet)
    }
}
