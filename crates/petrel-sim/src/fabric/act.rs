//! Scheduled changes to hosts and links: partitions, pauses, crashes, new fault plans.

use crate::time::Time;

use super::config::LinkConfig;
use super::fault::FaultPlan;
use super::stats::DropReason;
use super::topology::{HostId, LinkId};
use super::{Event, Fabric, Place, Step};

/// A change to the fabric, made now or at a scheduled time.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Action {
    /// Gives links another fault plan.
    Faults {
        /// The links.
        links: LinkSet,
        /// The plan from now on.
        plan: FaultPlan,
    },
    /// Takes links down, or up again. Packets vanish that enter a link which is down, or would arrive over
    /// it; the queue in front of it continues to empty at the link's rate.
    Link {
        /// The links.
        links: LinkSet,
        /// The state from now on.
        is_up: bool,
        /// After this time all switches follow the state that the links have then: routes lead around links
        /// that are down, over the shortest remaining paths. Without a time no switch ever learns of the
        /// change: a link that went down is a black hole, and a withdrawn link stays unused.
        reconverge_ns: Option<u64>,
    },
    /// Gives links another rate and delay, from the next packet of each on. A shorter delay lets packets
    /// overtake those on the way.
    Shape {
        /// The links.
        links: LinkSet,
        /// Rate and delay from now on. The rate must not be zero.
        config: LinkConfig,
    },
    /// Separates two sets of hosts. Packets that would arrive while the partition lasts are dropped; hosts
    /// that are in neither set are not affected.
    Partition {
        /// One set.
        from: Vec<HostId>,
        /// The other set.
        to: Vec<HostId>,
        /// Whether only packets from `from` to `to` are dropped.
        one_way: bool,
        /// The duration.
        for_ns: u64,
    },
    /// Ends all partitions.
    HealAll,
    /// The host's actors do not run for a while. The NIC continues: it sends queued packets, and receives
    /// until its queues are full.
    Pause {
        /// The host.
        host: HostId,
        /// The duration.
        for_ns: u64,
    },
    /// The host's actors stop in the middle of their next turn, like a thread that loses its core. Before
    /// the stop, the turn sees the clock and the packets of its beginning; later, the clock and the packets
    /// of its end. Packets sent in the turn leave at its end, as if the NIC had kept the rest.
    Stall {
        /// The host.
        host: HostId,
        /// Number of steps of the turn before the stop: clock readings, and frames taken, pushed and flushed. With 1,
        /// the turn stops between its clock reading and everything else. 0 stops before the reading.
        after: u64,
        /// The duration.
        for_ns: u64,
    },
    /// The host loses everything: its actors, and all packets in its queues. The packet in transmission
    /// goes on. A packet in flight to the host arrives at the actor that is bound to the port by then.
    Crash {
        /// The host.
        host: HostId,
        /// How long the host is down. `u64::MAX` for good.
        down_ns: u64,
    },
}

/// A set of link directions.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LinkSet {
    /// All links.
    All,
    /// This link.
    One(LinkId),
    /// The two directions of the link's cable.
    Cable(LinkId),
    /// Both directions of a host's link.
    Host(HostId),
}

/// An active partition.
#[derive(Debug)]
pub(super) struct Partition {
    number: u32,
    one_way: bool,
    /// The sides of each host: bit 0 for the first set, bit 1 for the second.
    sides: Vec<u8>,
}

impl Partition {
    fn cuts(&self, from: HostId, to: HostId) -> bool {
        let side = |host: HostId| self.sides.get(usize::from(host.0)).copied().unwrap_or(0);
        let crosses = |a: HostId, b: HostId| side(a) & 1 != 0 && side(b) & 2 != 0;
        crosses(from, to) || (!self.one_way && crosses(to, from))
    }
}

impl Fabric {
    /// Schedules an action. A past time means now.
    pub(crate) fn schedule(&mut self, at: Time, action: Action) {
        self.queue.push(at.max(self.now), Event::Act(Box::new(action)));
    }

    /// Performs an action. Returns the step that the owner of the actors has to handle.
    pub(super) fn act(&mut self, action: Action) -> Option<Step> {
        match action {
            Action::Faults { links, plan } => self.set_faults(links, plan),
            Action::Link { links, is_up, reconverge_ns } => {
                self.set_links_up(links, is_up, reconverge_ns);
            }
            Action::Shape { links, config } => self.shape_links(links, config),
            Action::Partition { from, to, one_way, for_ns } => {
                self.begin_partition(&from, &to, one_way, for_ns);
            }
            Action::HealAll => {
                self.partitions.clear();
                self.note(format_args!("HEAL all partitions"));
            }
            Action::Pause { host, for_ns } => self.pause(host, for_ns),
            Action::Stall { host, after, for_ns } => self.stall(host, after, for_ns),
            Action::Crash { host, down_ns } => return self.crash(host, down_ns),
        }
        None
    }

    /// Returns true if a partition separates two hosts.
    pub(super) fn is_cut(&self, from: HostId, to: HostId) -> bool {
        self.partitions.iter().any(|partition| partition.cuts(from, to))
    }

    pub(super) fn heal(&mut self, number: u32) {
        let before = self.partitions.len();
        self.partitions.retain(|partition| partition.number != number);
        if self.partitions.len() < before {
            self.note(format_args!("HEAL partition {number}"));
        }
    }

    pub(super) fn restart(&mut self, host: HostId) -> Option<Step> {
        self.hosts[usize::from(host.0)].is_up = true;
        self.note(format_args!("RESTART {host}"));
        Some(Step::Restarted(host))
    }

    fn set_faults(&mut self, links: LinkSet, plan: FaultPlan) {
        for link in self.links_of(links) {
            self.links[link.0 as usize].faults.set_plan(plan);
        }
        self.note(format_args!("FAULTS {links:?} {plan:?}"));
    }

    fn begin_partition(&mut self, from: &[HostId], to: &[HostId], one_way: bool, for_ns: u64) {
        let mut sides = vec![0u8; self.hosts.len()];
        for (hosts, bit) in [(from, 1), (to, 2)] {
            for host in hosts {
                if let Some(side) = sides.get_mut(usize::from(host.0)) {
                    *side |= bit;
                }
            }
        }
        let number = self.stats.partitions as u32;
        self.stats.partitions += 1;
        self.partitions.push(Partition { number, one_way, sides });
        self.queue.push(self.now.plus_ns(for_ns), Event::Heal(number));
        let arrow = if one_way { "->" } else { "<->" };
        self.note(format_args!("PARTITION {number} {from:?} {arrow} {to:?} for {for_ns} ns"));
    }

    fn pause(&mut self, host: HostId, for_ns: u64) {
        let Some(paused) = self.hosts.get_mut(usize::from(host.0)) else { return };
        paused.paused_until = paused.paused_until.max(self.now.plus_ns(for_ns));
        self.stats.pauses += 1;
        self.note(format_args!("PAUSE {host} for {for_ns} ns"));
    }

    fn stall(&mut self, host: HostId, after: u64, for_ns: u64) {
        if self.stall_cores_of(host, after, for_ns) {
            self.stats.stalls += 1;
            self.note(format_args!("STALL {host} after {after} steps for {for_ns} ns"));
        }
    }

    fn crash(&mut self, host: HostId, down_ns: u64) -> Option<Step> {
        let crashed = self.hosts.get_mut(usize::from(host.0)).filter(|host| host.is_up)?;
        crashed.is_up = false;
        crashed.incarnation = crashed.incarnation.wrapping_add(1);
        crashed.paused_until = Time::ZERO;
        crashed.source_ports.clear();
        let mut lost = Vec::new();
        for (_, mut port) in std::mem::take(&mut crashed.ports) {
            lost.extend(std::iter::from_fn(|| port.pop()));
        }
        let uplink = &mut self.links[self.routes.uplink(host).0 as usize];
        lost.extend(std::iter::from_fn(|| uplink.pop_waiting(self.now)));
        self.stats.crashes += 1;
        self.note(format_args!("CRASH {host} for {down_ns} ns"));
        for packet in lost {
            self.drop_packet(packet, DropReason::Crash, Place::Host(host));
        }
        self.multicast.close_host(host);
        self.kill_cores_of(host);
        self.queue.push(self.now.plus_ns(down_ns), Event::Restart(host));
        Some(Step::Crashed(host))
    }
}
