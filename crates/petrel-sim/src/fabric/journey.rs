//! The way of a packet: transmit queue, link, switch, link, receive queue.

use super::fault::{Fate, corrupt};
use super::packet::{Frames, PacketRef, SimAddr};
use super::stats::DropReason;
use super::topology::{HostId, LinkId, NodeId, SwitchId};
use super::trace_line::Mark;
use super::{Event, Fabric, Place};

impl Fabric {
    /// Whether the NIC of `host` has room for one more packet of this payload.
    pub(crate) fn has_tx_room(&self, host: HostId, payload_bytes: usize) -> bool {
        let nic = &self.hosts[usize::from(host.0)].nic;
        let link = &self.links[self.routes.uplink(host).0 as usize];
        let bytes = self.wire_bytes(payload_bytes);
        link.queued_packets() < nic.tx_packets && link.queued_bytes() + bytes <= nic.tx_bytes
    }

    /// Sends a packet that was made by `self.packets`. The caller has asked for room.
    pub(crate) fn submit(&mut self, packet: PacketRef) {
        let (from, to, frames) = {
            let packet = self.packets.get(&packet);
            (packet.from, packet.to, packet.frames.count())
        };
        self.stats.sent += 1;
        self.frames_in_pass += frames as u64;
        self.record(&packet, Mark::Send, Place::Host(from.host));
        self.overhear(&packet);
        self.show_sent(&packet);
        if from.host == to.host {
            let at = self.now.plus_ns(self.config.loopback_ns);
            self.queue.push(at, Event::Direct(packet));
        } else {
            self.enqueue(self.routes.uplink(from.host), packet);
        }
    }

    /// A transmitter has sent the last bit of its first packet.
    pub(super) fn handle_sent(&mut self, id: LinkId) {
        let link = &mut self.links[id.0 as usize];
        let Some((packet, bytes)) = link.pop_sent() else { return };
        let sender = link.from;
        if let Some(next_ps) = link.next_serialization_ps() {
            self.queue.push(self.now.plus_ps(next_ps), Event::Sent(id));
        }
        match sender {
            NodeId::Switch(switch) => self.switches[usize::from(switch.0)].release(bytes),
            NodeId::Host(host) => self.wake_tx_waiters(host, id),
        }
        self.launch(id, packet);
    }

    /// A packet has come to the end of a link.
    pub(super) fn handle_arrival(&mut self, id: LinkId, packet: PacketRef) {
        match self.links[id.0 as usize].to {
            NodeId::Host(host) => self.deliver(host, packet),
            NodeId::Switch(switch) => self.forward(switch, packet),
        }
    }

    /// A packet that takes no link has come.
    pub(super) fn handle_direct(&mut self, packet: PacketRef) {
        let host = self.packets.get(&packet).to.host;
        self.deliver(host, packet);
    }

    /// Takes the oldest packet out of a receive queue, and its frames for `frames`.
    pub(crate) fn take(&mut self, at: SimAddr, frames: &mut Frames) -> Option<SimAddr> {
        let host = self.hosts.get_mut(usize::from(at.host.0))?;
        let packet = host.ports.get_mut(&at.port)?.pop()?;
        self.record(&packet, Mark::Take, Place::Host(at.host));
        self.show_taken(&packet);
        self.stats.delivered += 1;
        let from = self.packets.take(packet, frames);
        self.frames_in_pass += frames.count() as u64;
        Some(from)
    }

    /// Ends the way of a packet, and counts why.
    pub(super) fn drop_packet(&mut self, packet: PacketRef, reason: DropReason, place: Place) {
        self.record(&packet, Mark::Drop(reason), place);
        self.stats.count_drop(reason);
        self.packets.free(packet);
    }

    fn wire_bytes(&self, payload_bytes: usize) -> u64 {
        payload_bytes as u64 + u64::from(self.config.overhead_bytes)
    }

    fn packet_bytes(&self, packet: &PacketRef) -> u64 {
        self.wire_bytes(self.packets.get(packet).frames.bytes.len())
    }

    fn enqueue(&mut self, id: LinkId, packet: PacketRef) {
        let bytes = self.packet_bytes(&packet);
        if let Some(sending_ps) = self.links[id.0 as usize].push(packet, bytes) {
            self.queue.push(self.now.plus_ps(sending_ps), Event::Sent(id));
        }
    }

    /// Wakes those whose transmissions were refused, once the queue is half empty: each of them
    /// then finds room for more than one packet.
    fn wake_tx_waiters(&mut self, host: HostId, uplink: LinkId) {
        let link = &self.links[uplink.0 as usize];
        let nic = &self.hosts[usize::from(host.0)].nic;
        let is_half_empty =
            link.queued_packets() <= nic.tx_packets / 2 && link.queued_bytes() <= nic.tx_bytes / 2;
        if !is_half_empty {
            return;
        }
        let waiters: Vec<_> = self.hosts[usize::from(host.0)].take_tx_waiters().collect();
        waiters.into_iter().for_each(|actor| self.wake(actor));
    }

    /// Puts a packet on the wire, where the faults of the link befall it.
    fn launch(&mut self, id: LinkId, packet: PacketRef) {
        let link = &mut self.links[id.0 as usize];
        let fate = link.faults.decide(self.now);
        let on_time = self.now.max(fate.held_until).plus_ns(link.config.delay_ns);
        if fate.spike {
            self.stats.spikes += 1;
            self.record(&packet, Mark::Spike(fate.held_until), Place::Link(id));
        }
        if let Some(later_ns) = fate.duplicate_ns {
            self.stats.duplicated += 1;
            self.record(&packet, Mark::Duplicate(later_ns), Place::Link(id));
            let copy = self.packets.duplicate(&packet);
            self.queue.push(on_time.plus_ns(later_ns), Event::Arrive(id, copy));
        }
        if fate.lost {
            self.drop_packet(packet, DropReason::Loss, Place::Link(id));
            return;
        }
        self.disturb(id, &packet, &fate);
        let at = on_time.plus_ns(fate.reorder_ns.unwrap_or(0));
        self.queue.push(at, Event::Arrive(id, packet));
    }

    fn disturb(&mut self, id: LinkId, packet: &PacketRef, fate: &Fate) {
        if let Some(later_ns) = fate.reorder_ns {
            self.stats.reordered += 1;
            self.record(packet, Mark::Reorder(later_ns), Place::Link(id));
        }
        if let Some(seed) = fate.corrupt_seed {
            self.stats.corrupted += 1;
            let victim = self.packets.get_mut(packet);
            victim.corrupted = true;
            corrupt(&mut victim.frames, seed);
            self.record(packet, Mark::Corrupt, Place::Link(id));
        }
    }

    fn forward(&mut self, switch: SwitchId, packet: PacketRef) {
        let place = Place::Switch(switch);
        let destination = self.packets.get(&packet).to.host;
        let Some(id) = self.routes.next_hop(switch, destination) else {
            return self.drop_packet(packet, DropReason::NoRoute, place);
        };
        let bytes = self.packet_bytes(&packet);
        let queued_bytes = self.links[id.0 as usize].queued_bytes();
        if self.switches[usize::from(switch.0)].admit(bytes, queued_bytes) {
            self.enqueue(id, packet);
        } else {
            self.drop_packet(packet, DropReason::SwitchBuffer, place);
        }
    }

    fn deliver(&mut self, host: HostId, packet: PacketRef) {
        match self.refusal(host, &packet) {
            Some(reason) => self.drop_packet(packet, reason, Place::Host(host)),
            None => self.receive(host, packet),
        }
    }

    /// Why the host cannot receive this packet.
    fn refusal(&self, host_id: HostId, packet: &PacketRef) -> Option<DropReason> {
        let host = &self.hosts[usize::from(host_id.0)];
        let (contents, bytes) = (self.packets.get(packet), self.packet_bytes(packet));
        if contents.to.host != host_id {
            return Some(DropReason::NoRoute);
        }
        if self.is_cut(contents.from.host, host_id) {
            return Some(DropReason::Partition);
        }
        if !host.is_up {
            return Some(DropReason::HostDown);
        }
        if contents.corrupted && self.config.verify_checksums {
            return Some(DropReason::Checksum);
        }
        match host.ports.get(&contents.to.port) {
            None => Some(DropReason::NoPort),
            Some(port) if !port.has_room(&host.nic, bytes) => Some(DropReason::RxQueue),
            Some(_) => None,
        }
    }

    fn receive(&mut self, host: HostId, packet: PacketRef) {
        self.record(&packet, Mark::Arrive, Place::Host(host));
        let (to, bytes) = (self.packets.get(&packet).to, self.packet_bytes(&packet));
        let ports = &mut self.hosts[usize::from(host.0)].ports;
        let Some(port) = ports.get_mut(&to.port) else { return self.packets.free(packet) };
        port.push(packet, bytes);
        if let Some(owner) = port.owner {
            self.wake(owner);
        }
    }
}
