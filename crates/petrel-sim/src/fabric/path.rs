//! The path of a packet: transmit queue, link, switch, link, receive queue.

use super::config::CUT_THROUGH_BYTES;
use super::ecn::Ecn;
use super::fault::{Fate, corrupt};
use super::multicast::is_group;
use super::packet::{Frames, Head, PacketRef, SimAddr};
use super::routes::ecmp_hash;
use super::stats::DropReason;
use super::topology::{HostId, LinkId, NodeId, SwitchId};
use super::trace_line::Mark;
use super::{Event, Fabric, Place};

impl Fabric {
    /// Returns true if the NIC of `host` has room for a further packet of this payload.
    pub(crate) fn has_tx_room(&self, host: HostId, payload_bytes: usize) -> bool {
        let nic = &self.hosts[usize::from(host.0)].nic;
        let link = &self.links[self.routes.uplink(host).0 as usize];
        let bytes = self.wire_bytes(payload_bytes);
        link.queued_packets() < nic.tx_packets && link.queued_bytes() + bytes <= nic.tx_bytes
    }

    /// Returns the packets that a port's receive queue holds.
    pub(crate) fn rx_packets(&self, host: HostId) -> u64 {
        self.hosts[usize::from(host.0)].nic.rx_packets as u64
    }

    /// Returns true if the transmit queue of a NIC has room for this number of packets with this total payload.
    pub(crate) fn has_tx_room_for(&self, host: HostId, packets: usize, bytes: usize) -> bool {
        let link = &self.links[self.routes.uplink(host).0 as usize];
        let queued = (link.queued_packets(), link.queued_bytes());
        self.fits_tx_queue(host, packets, bytes, queued)
    }

    /// Returns true if an empty transmit queue would have room.
    pub(crate) fn could_have_tx_room_for(
        &self,
        host: HostId,
        packets: usize,
        bytes: usize,
    ) -> bool {
        self.fits_tx_queue(host, packets, bytes, (0, 0))
    }

    fn fits_tx_queue(
        &self,
        host: HostId,
        packets: usize,
        bytes: usize,
        (queued_packets, queued_bytes): (usize, u64),
    ) -> bool {
        let nic = &self.hosts[usize::from(host.0)].nic;
        let headers = (packets as u64 - 1) * self.wire_bytes(0);
        queued_packets + packets <= nic.tx_packets
            && queued_bytes + headers + self.wire_bytes(bytes) <= nic.tx_bytes
    }

    /// Sends a packet that was made by `self.packets`. The caller has checked for room.
    pub(crate) fn submit(&mut self, packet: PacketRef) {
        self.show_sent(&packet);
        self.submit_shown(packet);
    }

    /// Like `submit`, for a packet with frames already shown to the watcher.
    pub(crate) fn submit_shown(&mut self, packet: PacketRef) {
        let frames = self.packets.frames(&packet);
        let (count, bytes) = (frames.count(), frames.bytes.len());
        self.packets.head_mut(&packet).payload_bytes = bytes as u32;
        self.frames_in_turn += count as u64;
        self.record_sample(&packet);
        self.dispatch(packet);
    }

    /// Puts a packet into the transmit queue of its NIC.
    pub(super) fn dispatch(&mut self, packet: PacketRef) {
        let head = self.packets.head_mut(&packet);
        head.sent_at = self.now;
        let (from, to) = (head.from.host, head.to.host);
        let read_at = self.now.plus_ns(head.read_ns.into());
        self.stats.sent += 1;
        self.record(&packet, Mark::Send, Place::Host(from));
        if from == to {
            let at = read_at.plus_ns(self.config.loopback_ns);
            self.queue.push(at, Event::Direct(packet));
        } else if read_at > self.now {
            self.queue.push(read_at, Event::Read(packet));
        } else {
            self.enqueue(self.routes.uplink(from), packet);
        }
    }

    /// Handles a packet that the sender's device has read.
    pub(super) fn handle_read(&mut self, packet: PacketRef) {
        let host = self.packets.head(&packet).from.host;
        match self.hosts[usize::from(host.0)].is_up {
            true => self.enqueue(self.routes.uplink(host), packet),
            false => self.drop_packet(packet, DropReason::Crash, Place::Host(host)),
        }
    }

    /// Handles the end of a transmission.
    pub(super) fn handle_sent(&mut self, id: LinkId) {
        let link = &mut self.links[id.0 as usize];
        let Some((packet, bytes)) = link.pop_sent(self.now) else { return };
        let sender = link.from;
        self.begin_sending(id);
        match sender {
            NodeId::Switch(switch) => self.switches[usize::from(switch.0)].release(bytes),
            NodeId::Host(host) => self.wake_tx_waiters(host, id),
        }
        if let Some(packet) = packet {
            self.launch(id, packet, 0);
        }
    }

    pub(super) fn handle_arrival(&mut self, id: LinkId, packet: PacketRef) {
        let link = &self.links[id.0 as usize];
        if !link.is_up {
            return self.drop_on_dead_link(id, packet);
        }
        match link.to {
            NodeId::Host(host) => self.deliver(host, packet),
            NodeId::Switch(switch) => self.forward(switch, packet),
        }
    }

    /// Handles a packet that takes no link.
    pub(super) fn handle_direct(&mut self, packet: PacketRef) {
        let host = self.packets.head(&packet).to.host;
        self.deliver(host, packet);
    }

    /// Takes the oldest packet out of a receive queue, and its frames for `frames`.
    pub(crate) fn take(&mut self, at: SimAddr, frames: &mut Frames) -> Option<Head> {
        let clock = self.note_step();
        self.forget_reading();
        let port = self.hosts.get_mut(usize::from(at.host.0))?.ports.get_mut(&at.port)?;
        // Packets that come after the actor's clock have not arrived yet for an actor that stops in this turn.
        if port.first_came()? > clock {
            return None;
        }
        let packet = port.pop()?;
        self.record(&packet, Mark::Take, Place::Host(at.host));
        self.stats.delivered += 1;
        let head = self.packets.take(packet, frames);
        self.frames_in_turn += frames.count() as u64;
        if let Some(attack) = head.attack {
            self.stats.attacks[attack as usize] += 1;
        }
        Some(head)
    }

    pub(super) fn drop_packet(&mut self, packet: PacketRef, reason: DropReason, place: Place) {
        self.record(&packet, Mark::Drop(reason), place);
        self.stats.count_drop(reason);
        if let Some(source) = self.packets.head(&packet).source {
            self.sources[source.0 as usize].stats.lost += 1;
        }
        self.packets.free(packet);
    }

    pub(super) fn wire_bytes(&self, payload_bytes: usize) -> u64 {
        payload_bytes as u64 + u64::from(self.config.overhead_bytes)
    }

    fn packet_bytes(&self, packet: &PacketRef) -> u64 {
        self.wire_bytes(self.packets.head(packet).payload_bytes as usize)
    }

    fn enqueue(&mut self, id: LinkId, packet: PacketRef) {
        let bytes = self.packet_bytes(&packet);
        if self.links[id.0 as usize].push(self.now, packet, bytes) {
            self.begin_sending(id);
        }
    }

    /// Starts transmitting the first packet of a non-empty queue.
    fn begin_sending(&mut self, id: LinkId) {
        let link = &mut self.links[id.0 as usize];
        let Some(bytes) = link.first_bytes() else { return };
        let whole_ps = link.serialization_ps(bytes);
        self.queue.push(self.now.plus_ps(whole_ps), Event::Sent(id));
        if link.cuts_through
            && let Some(packet) = link.take_first()
        {
            let lead_ps = self.lead_ps(id, &packet, bytes, whole_ps);
            self.launch(id, packet, lead_ps);
        }
    }

    /// Returns how much of a packet a cut-through switch waits for, as time on the link that leads to the
    /// switch: the header, or the whole packet if the next link is faster.
    fn lead_ps(&self, id: LinkId, packet: &PacketRef, bytes: u64, whole_ps: u64) -> u64 {
        let link = &self.links[id.0 as usize];
        let NodeId::Switch(switch) = link.to else { return whole_ps };
        let Some(next) = self.next_hop(switch, packet) else { return whole_ps };
        if self.links[next.0 as usize].config.rate_bps > link.config.rate_bps {
            return whole_ps;
        }
        link.serialization_ps(bytes.min(CUT_THROUGH_BYTES))
    }

    fn next_hop(&self, switch: SwitchId, packet: &PacketRef) -> Option<LinkId> {
        let &Head { from, to, .. } = self.packets.head(packet);
        let salt = self.switches[usize::from(switch.0)].salt;
        self.routes.next_hop(switch, to.host, || ecmp_hash(from, to, salt))
    }

    /// Wakes actors whose transmissions were refused, once the queue is half empty, with room for several packets.
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

    /// Puts a packet on the wire, where the faults of the link apply. After `lead_ps`, the part that the
    /// receiver needs has been sent.
    fn launch(&mut self, id: LinkId, packet: PacketRef, lead_ps: u64) {
        let link = &mut self.links[id.0 as usize];
        if !link.is_up {
            return self.drop_on_dead_link(id, packet);
        }
        let fate = link.faults.decide(self.now);
        let way_ns = link.config.delay_ns.saturating_add(link.node_latency_ns);
        let on_time = self.now.plus_ps(lead_ps).max(fate.held_until).plus_ns(way_ns);
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
            self.links[id.0 as usize].stats.lost += 1;
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
            self.corrupt(packet, seed);
            self.record(packet, Mark::Corrupt, Place::Link(id));
        }
    }

    fn corrupt(&mut self, packet: &PacketRef, seed: u64) {
        self.packets.head_mut(packet).corrupted = true;
        // A source's packet has no bytes to change.
        if self.packets.head(packet).source.is_none() {
            let frames = self.packets.frames_mut(packet);
            corrupt(frames, seed);
            let left_bytes = frames.bytes.len() as u32;
            self.packets.head_mut(packet).payload_bytes = left_bytes;
        }
    }

    fn forward(&mut self, id: SwitchId, packet: PacketRef) {
        if is_group(self.packets.head(&packet).to) {
            return self.replicate(id, packet);
        }
        let Some(port) = self.next_hop(id, &packet) else {
            return self.drop_packet(packet, DropReason::NoRoute, Place::Switch(id));
        };
        self.forward_by(id, port, packet);
    }

    /// Puts a packet into the queue of a switch's port.
    pub(super) fn forward_by(&mut self, id: SwitchId, port: LinkId, packet: PacketRef) {
        let bytes = self.packet_bytes(&packet);
        let queued_bytes = self.links[port.0 as usize].queued_bytes();
        match self.switches[usize::from(id.0)].admit(bytes, queued_bytes) {
            Ok(()) => {
                self.mark(id, port, &packet, queued_bytes);
                self.enqueue(port, packet);
            }
            Err(reason) => {
                self.links[port.0 as usize].count_refused(reason);
                self.drop_packet(packet, reason, Place::Switch(id));
            }
        }
    }

    /// Marks a packet that enters an output port, if the port is congested.
    fn mark(&mut self, id: SwitchId, port: LinkId, packet: &PacketRef, queued_bytes: u64) {
        let link = &mut self.links[port.0 as usize];
        let Some(ecn) = link.ecn else { return };
        let switch = &mut self.switches[usize::from(id.0)];
        let head = self.packets.head_mut(packet);
        if head.ecn != Ecn::NotEct && ecn.marks(queued_bytes, &mut link.red) {
            head.ecn = Ecn::Ce;
            switch.stats.marked += 1;
            link.stats.marked += 1;
            self.stats.marked += 1;
            self.record(packet, Mark::Congested, Place::Switch(id));
        }
    }

    pub(super) fn deliver(&mut self, host: HostId, packet: PacketRef) {
        if is_group(self.packets.head(&packet).to) {
            return self.deliver_to_group(host, packet);
        }
        if let Some(reason) = self.refusal(host, &packet) {
            return self.drop_packet(packet, reason, Place::Host(host));
        }
        match self.packets.head(&packet).source {
            Some(source) => self.absorb(source, packet),
            None => self.receive(host, packet),
        }
    }

    /// Returns why the host cannot receive this packet.
    fn refusal(&self, host_id: HostId, packet: &PacketRef) -> Option<DropReason> {
        let host = &self.hosts[usize::from(host_id.0)];
        let head = self.packets.head(packet);
        if head.to.host != host_id {
            return Some(DropReason::NoRoute);
        }
        if self.is_cut(head.from.host, host_id) {
            return Some(DropReason::Partition);
        }
        if !host.is_up {
            return Some(DropReason::HostDown);
        }
        if head.corrupted && self.config.verify_checksums {
            return Some(DropReason::Checksum);
        }
        if head.source.is_some() {
            return None;
        }
        match host.ports.get(&head.to.port) {
            None => Some(DropReason::NoPort),
            Some(port) if !port.has_room(&host.nic, self.packet_bytes(packet)) => {
                Some(DropReason::RxQueue)
            }
            Some(_) => None,
        }
    }

    fn receive(&mut self, host: HostId, packet: PacketRef) {
        self.record(&packet, Mark::Arrive, Place::Host(host));
        let (to, bytes) = (self.packets.head(&packet).to, self.packet_bytes(&packet));
        let ports = &mut self.hosts[usize::from(host.0)].ports;
        let Some(port) = ports.get_mut(&to.port) else { return self.packets.free(packet) };
        port.push(self.now, packet, bytes);
        if let Some(owner) = port.owner {
            self.wake(owner);
        }
    }
}
