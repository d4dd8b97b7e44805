//! Hosts: a NIC, the ports bound on it, and whether the host runs.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use crate::time::Time;

use super::config::NicConfig;
use super::cpu::ActorId;
use super::packet::PacketRef;

/// A host. The transmit queue is the queue of the host's link.
#[derive(Debug)]
pub(super) struct Host {
    pub(super) nic: NicConfig,
    pub(super) is_up: bool,
    /// Incremented by every crash. A transport of an earlier incarnation reaches nothing.
    pub(super) incarnation: u32,
    pub(super) paused_until: Time,
    pub(super) ports: BTreeMap<u16, Port>,
    /// Ports that only send: packets to them find no port.
    pub(super) source_ports: BTreeSet<u16>,
}

impl Host {
    pub(super) fn new(nic: NicConfig) -> Self {
        Self {
            nic,
            is_up: true,
            incarnation: 0,
            paused_until: Time::ZERO,
            ports: BTreeMap::new(),
            source_ports: BTreeSet::new(),
        }
    }

    /// Returns true if a port is bound, for receiving or for sending alone.
    pub(super) fn has_port(&self, port: u16) -> bool {
        self.ports.contains_key(&port) || self.source_ports.contains(&port)
    }

    /// Returns true if a transport bound in `incarnation` still belongs to this host.
    pub(super) fn is_current(&self, incarnation: u32) -> bool {
        self.is_up && self.incarnation == incarnation
    }

    /// Returns the actors with transmissions refused for lack of room, without duplicates.
    pub(super) fn take_tx_waiters(&mut self) -> impl Iterator<Item = ActorId> {
        self.ports.values_mut().filter_map(|port| {
            if std::mem::take(&mut port.is_tx_waiting) { port.owner } else { None }
        })
    }
}

/// A bound port: the receive queue of one endpoint.
#[derive(Debug, Default)]
pub(super) struct Port {
    /// The actor that is woken when a packet arrives.
    pub(super) owner: Option<ActorId>,
    /// Whether a transmission was refused since the queue last had room.
    pub(super) is_tx_waiting: bool,
    /// Packets with their sizes in bytes and arrival times.
    queue: VecDeque<(PacketRef, u64, Time)>,
    queued_bytes: u64,
}

impl Port {
    /// Returns true if a packet of `bytes` may enter the receive queue.
    pub(super) fn has_room(&self, nic: &NicConfig, bytes: u64) -> bool {
        self.queue.len() < nic.rx_packets && self.queued_bytes + bytes <= nic.rx_bytes
    }

    pub(super) fn push(&mut self, now: Time, packet: PacketRef, bytes: u64) {
        self.queue.push_back((packet, bytes, now));
        self.queued_bytes += bytes;
    }

    pub(super) fn pop(&mut self) -> Option<PacketRef> {
        let (packet, bytes, _) = self.queue.pop_front()?;
        self.queued_bytes -= bytes;
        Some(packet)
    }

    /// Returns the arrival time of the first packet.
    pub(super) fn first_came(&self) -> Option<Time> {
        self.queue.front().map(|(_, _, came)| *came)
    }

    pub(super) fn is_empty(&self) -> bool {
        self.queue.is_empty()
    }
}
